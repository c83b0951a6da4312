"""The rotation: exact phases, one function of (position, frequency), and the in-place form."""

import math
from typing import ClassVar

import numpy as np
import posenc  # noqa: F401
import pytest
import reference
import torch
import torch._dynamo.testing
from samples.compare import FLOATS, assert_near, assert_same

rotate = torch.ops.posenc.rotary_embedding
rotate_ = torch.ops.posenc.rotary_embedding_
LAYOUTS = ({"interleaved": True}, {"interleaved": False}, {"interleaved_out": False})
layouts = pytest.mark.parametrize("layout", LAYOUTS, ids=("pairs", "halves", "pairs_to_halves"))
dtypes = pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: str(d)[6:])
FREQ = reference.rope_inv_freq(64)


def test_fixture_F1():
    x = torch.tensor([[[1.0, 2.0, 3.0, 4.0]]], dtype=torch.float64)
    pairs = rotate(x, [1.0, 0.01], offset=1)
    halves = rotate(x, [1.0, 0.01], offset=1, interleaved=False)
    want = torch.tensor([-1.142640, 1.922076, 2.959851, 4.029800], dtype=torch.float64)
    torch.testing.assert_close(pairs[0, 0], want, rtol=0, atol=1e-6)
    want = torch.tensor([-1.984111, 1.959901, 2.462378, 4.019800], dtype=torch.float64)
    torch.testing.assert_close(halves[0, 0], want, rtol=0, atol=1e-6)


@layouts
@dtypes
def test_every_way_to_name_a_position_gives_the_same_bits(layout, dtype):
    """A range, an offset, ids of each integer type and shape, and equal axes are one function."""
    x = torch.randn(2, 150, 3, 64, dtype=torch.float64).to(dtype)
    start = 100
    want = rotate(x, FREQ, offset=start, **layout)
    ids = torch.arange(start, start + 150)
    for positions in (
        ids,
        ids[None],
        ids.expand(2, 150),
        ids.to(torch.int32),
        ids.to(torch.int16),
        ids.expand(2, 150).contiguous(),
    ):
        assert_same(rotate(x, FREQ, positions, **layout), want)
    assert_same(rotate(x, FREQ, ids - 40, offset=40, **layout), want)
    three = ids.expand(3, 2, 150)
    assert_same(rotate(x, FREQ, three, axes=[0, 1, 2, 1] * 8, **layout), want)
    assert_same(rotate(x, FREQ, three[:, :1], axes=[0, 1, 2, 1] * 8, **layout), want)


def test_an_offset_neither_overflows_nor_rounds_the_ids():
    x = torch.randn(1, 2, 1, 8)
    freq = reference.rope_inv_freq(8)
    for ids, offset in (
        (torch.tensor([3, 9], dtype=torch.int16), 40_000),
        (torch.tensor([3, 9], dtype=torch.int32), 2**31 - 2),
        (torch.tensor([3, 9], dtype=torch.uint8), 250),
        (torch.tensor([0.5, 9.25]), 2**24),
    ):
        want = rotate(x, freq, ids.double() + offset)
        torch.testing.assert_close(rotate(x, freq, ids, offset=offset), want, rtol=0, atol=1e-6)
        mapped = torch.vmap(lambda t, i=ids, o=offset: rotate(t[None], freq, i, offset=o)[0])(x)
        torch.testing.assert_close(mapped, want, rtol=0, atol=1e-6)


@layouts
@dtypes
def test_chunks_equal_the_whole_and_steps_equal_prefill(layout, dtype):
    x = torch.randn(2, 200, 2, 64, dtype=torch.float64).to(dtype)
    whole = rotate(x, FREQ, offset=30, **layout)
    for size in (1, 7, 64, 65):
        parts = [
            rotate(x[:, s : s + size], FREQ, offset=30 + s, **layout) for s in range(0, 200, size)
        ]
        assert_same(torch.cat(parts, 1), whole, f"chunks of {size}")
    order = torch.randperm(200)
    assert_same(rotate(x[:, order], FREQ, order + 30, **layout), whole[:, order], "shuffled tokens")


@dtypes
def test_layouts_of_time_are_one(dtype):
    """Batch, time and heads in any order give the same numbers for the same token."""
    x = torch.randn(2, 9, 3, 16, dtype=torch.float64).to(dtype)
    freq = reference.rope_inv_freq(16)
    want = rotate(x, freq)
    assert_same(rotate(x.transpose(1, 2), freq, seq_dim=2).transpose(1, 2), want)
    assert_same(rotate(x.transpose(0, 1), freq, seq_dim=0).transpose(0, 1), want)
    assert_same(rotate(x.transpose(1, 2).contiguous(), freq, seq_dim=-2).transpose(1, 2), want)
    assert_same(rotate(x[:, :, 0], freq), want[:, :, 0])
    assert_same(rotate(x[0, :, 0], freq, seq_dim=0), want[0, :, 0])


@pytest.mark.parametrize(
    "position", (0, 1, 63, 64, 4095, 131071, 1000003, 2**24 - 1, 2**31 + 7, -5)
)
@dtypes
def test_far_positions_are_exact(position, dtype):
    """Phases hold at any distance; fp64 keeps what the product of two doubles keeps."""
    x = torch.randn(1, 1, 2, 64, dtype=torch.float64).to(dtype)
    want = reference.rotary_embedding(x.double().numpy(), FREQ, offset=position)
    for out in (rotate(x, FREQ, offset=position), rotate(x, FREQ, torch.tensor([position]))):
        phase = abs(position) * 2.0**-51 if dtype == torch.float64 else 0.0
        assert_near(out, want, steps=6 + phase * 2**53, magnitude=4.0, what=f"position {position}")


def test_the_frequency_list_is_used_as_doubles():
    """A frequency that fp32 cannot hold must not be rounded on the way."""
    f = 10 ** (-1 / 4)
    x = torch.tensor([[[1.0, 0.0]]], dtype=torch.float64)
    out = rotate(x, [f], offset=1048575)
    want = [math.cos(1048575 * f), math.sin(1048575 * f)]
    torch.testing.assert_close(
        out[0, 0], torch.tensor(want, dtype=torch.float64), rtol=0, atol=1e-9
    )


@layouts
def test_rotation_is_a_group(layout):
    """R(a)R(b) = R(a+b), R(m)^T = R(-m) = the inverse, norms stay."""
    if "interleaved_out" in layout:
        pytest.skip("a change of layout is no power of one map")
    x = torch.randn(1, 4, 2, 16, dtype=torch.float64)
    freq = reference.rope_inv_freq(16)
    a = rotate(rotate(x, freq, offset=5, **layout), freq, offset=11, **layout)
    ids = 2 * torch.arange(4) + 16
    torch.testing.assert_close(a, rotate(x, freq, ids, **layout), rtol=0, atol=1e-12)
    back = rotate(rotate(x, freq, offset=9, **layout), freq, offset=9, inverse=True, **layout)
    torch.testing.assert_close(back, x, rtol=0, atol=1e-12)
    negative = rotate(x, freq, -torch.arange(4) - 9, **layout)
    torch.testing.assert_close(
        negative, rotate(x, freq, offset=9, inverse=True, **layout), rtol=0, atol=1e-12
    )
    torch.testing.assert_close(negative.norm(dim=-1), x.norm(dim=-1), rtol=1e-12, atol=0)


def test_channels_outside_pass_through_bit_for_bit():
    x = torch.randn(2, 5, 3, 13).bfloat16()
    x[..., 0] = float("nan")
    x[..., -1] = float("inf")
    out = rotate(x, [1.0, 0.1, 0.01], rotary_start=4, attention_factor=0.5)
    outside = [0, 1, 2, 3, 10, 11, 12]
    assert torch.equal(out[..., outside].view(torch.int16), x[..., outside].view(torch.int16))
    assert not torch.equal(out[..., 4:10], x[..., 4:10])


def test_dot_products_do_not_depend_on_the_written_layout():
    q, k = torch.randn(2, 1, 9, 2, 16, dtype=torch.float64).unbind(0)
    freq = reference.rope_inv_freq(16)
    pairs = (rotate(q, freq) * rotate(k, freq)).sum(-1)
    moved = [rotate(t, freq, interleaved_out=False) for t in (q, k)]
    torch.testing.assert_close((moved[0] * moved[1]).sum(-1), pairs, rtol=1e-12, atol=1e-12)
    # What pairs-to-halves writes is what halves computes of the permuted input.
    perm = torch.cat((torch.arange(0, 16, 2), torch.arange(1, 16, 2)))
    assert_same(moved[0], rotate(q[..., perm], freq, interleaved=False))


class TestInPlace:
    OPTIONS = (
        {},
        {"interleaved": False, "offset": 9},
        {"interleaved_out": False},
        {"interleaved": False, "interleaved_out": True, "inverse": True},
        {"rotary_start": 3, "attention_factor": 1.5},
    )
    options = pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(o) or "plain")
    freq = reference.rope_inv_freq(8)

    @options
    @dtypes
    def test_equals_the_functional_form(self, options, dtype):
        x = torch.randn(2, 70, 3, 12, dtype=torch.float64).to(dtype)
        want = rotate(x, self.freq, **options)
        for layout in (lambda t: t, lambda t: t.transpose(0, 2).contiguous().transpose(0, 2)):
            y = layout(x.clone())
            version = y._version
            out = rotate_(y, self.freq, **options)
            assert out is y or out.data_ptr() == y.data_ptr()
            assert y._version > version
            assert_same(y, want)

    def test_writes_through_a_slice_and_leaves_the_rest(self):
        fused = torch.randn(2, 5, 3, 3, 8)
        before = fused.clone()
        rotate_(fused[:, :, 1], self.freq)
        assert_same(fused[:, :, 1], rotate(before[:, :, 1], self.freq))
        assert_same(fused[:, :, 0], before[:, :, 0])
        assert_same(fused[:, :, 2], before[:, :, 2])

    def test_a_leaf_that_needs_a_gradient_is_refused(self):
        with pytest.raises(RuntimeError, match="leaf"):
            rotate_(torch.randn(1, 5, 2, 8, requires_grad=True), self.freq)

    @options
    def test_gradient_through_an_intermediate(self, options):
        x = torch.randn(2, 4, 2, 12, dtype=torch.float64, requires_grad=True)

        def inplace(t):
            return rotate_(t * 1.0, self.freq, **options)

        assert torch.autograd.gradcheck(inplace, (x,), check_forward_ad=True)
        assert torch.autograd.gradgradcheck(inplace, (x,), fast_mode=True)

    def test_a_saved_value_that_was_overwritten_is_an_error(self):
        x = torch.randn(1, 4, 2, 8, requires_grad=True)
        y = x.exp()
        rotate_(y, self.freq)
        with pytest.raises(RuntimeError, match="inplace"):
            y.sum().backward()

    def test_memory_that_overlaps_itself_is_refused(self):
        x = torch.randn(1, 1, 2, 8).expand(3, 4, 2, 8)
        with pytest.raises(RuntimeError):
            rotate_(x, self.freq)

    def test_an_inference_tensor(self):
        with torch.inference_mode():
            x = torch.randn(1, 4, 2, 8)
            want = rotate(x, self.freq)
            assert_same(rotate_(x, self.freq), want)

    def test_functional_transforms(self):
        x = torch.randn(3, 4, 2, 8)
        want = rotate(x, self.freq)
        got = torch.vmap(lambda t: rotate_(t.clone(), self.freq, seq_dim=0))(x)
        torch.testing.assert_close(got, want)
        tangent = torch.func.jvp(lambda t: rotate_(t.clone(), self.freq), (x,), (x,))[1]
        torch.testing.assert_close(tangent, want)
        g = torch.func.grad(lambda t: (rotate_(t * 1, self.freq) ** 2).sum())(x)
        torch.testing.assert_close(g, 2 * x)

    def test_opcheck_and_compile(self):
        x = torch.randn(1, 5, 2, 8)
        result = torch.library.opcheck(rotate_.default, (x.clone(), self.freq))
        assert set(result.values()) == {"SUCCESS"}, result

        def f(t):
            y = t.clone()
            rotate_(y, self.freq)
            return y + 1

        compiled = torch.compile(f, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(x), f(x), rtol=0, atol=1e-6)

    def test_a_compiled_call_mutates_its_argument(self):
        x = torch.randn(1, 5, 2, 8)
        want = rotate(x, self.freq)
        torch.compile(lambda t: rotate_(t, self.freq), backend="aot_eager", fullgraph=True)(x)
        assert_same(x, want)


class TestCompilations:
    """Lengths and offsets are symbols of a compiled graph: they do not compile it again."""

    @staticmethod
    def count(function, calls, most):
        counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
        compiled = torch.compile(function, backend=counter, fullgraph=True)
        for arguments in calls:
            torch.testing.assert_close(compiled(*arguments), function(*arguments))
        assert counter.frame_count <= most, f"{counter.frame_count} compilations"

    def test_lengths(self):
        calls = [(torch.randn(1, n, 2, 64),) for n in range(16, 33)]
        self.count(lambda x: rotate(x, FREQ), calls, 2)

    def test_offsets(self):
        calls = [(torch.randn(1, 8, 2, 64), n) for n in range(1, 20)]
        self.count(lambda x, offset: rotate(x, FREQ, offset=offset), calls, 2)

    def test_both(self):
        calls = [(torch.randn(1, n, 2, 64), 3 * n) for n in range(16, 33)]
        self.count(lambda x, offset: rotate(x, FREQ, offset=offset), calls, 3)

    def test_lengths_with_a_gradient(self):
        calls = [(torch.randn(1, n, 2, 64, requires_grad=True), 3 * n) for n in range(16, 33)]
        self.count(lambda x, offset: rotate(x, FREQ, offset=offset), calls, 3)


def test_tables_of_Hugging_Face_width_are_accepted():
    """cos and sin as cat(f, f) for halves, repeat_interleave for pairs, equal the plain tables."""
    x = torch.randn(2, 3, 5, 8)
    angle = torch.arange(5.0)[:, None] * torch.tensor(reference.rope_inv_freq(8)).float()
    cos, sin = angle.cos(), angle.sin()
    apply = torch.ops.posenc.apply_rotary
    want = apply(x, cos, sin)
    assert_same(apply(x, torch.cat((cos, cos), -1), torch.cat((sin, sin), -1), doubled=True), want)
    batched = [torch.cat((t, t), -1).expand(2, 5, 8) for t in (cos, sin)]
    assert_same(apply(x, *batched, doubled=True), want)
    pairs = apply(x, cos, sin, interleaved=True)
    doubled = [t.repeat_interleave(2, -1) for t in (cos, sin)]
    assert_same(apply(x, *doubled, interleaved=True, doubled=True), pairs)
    with pytest.raises(ValueError, match="doubled"):
        apply(x, torch.cat((cos, cos), -1), torch.cat((sin, sin), -1))


@dtypes
def test_given_tables_and_own_phases_agree(dtype):
    x = torch.randn(2, 3, 9, 16, dtype=torch.float64).to(dtype)
    freq = reference.rope_inv_freq(16)
    angle = torch.arange(9, dtype=torch.float64)[:, None] * torch.tensor(freq, dtype=torch.float64)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    out = torch.ops.posenc.apply_rotary(x, angle.cos().to(wide), angle.sin().to(wide))
    want = rotate(x, freq, seq_dim=2, interleaved=False)
    assert out.dtype == dtype
    assert_near(out, want, steps=8, magnitude=4.0)


def test_trained_frequencies_gather_over_heads_and_rows():
    """The gradient of a shared frequency is the sum of those of its copies."""
    x = torch.randn(2, 5, 3, 8, dtype=torch.float64)
    upstream = torch.randn_like(x)
    freq = torch.tensor(reference.rope_inv_freq(8), dtype=torch.float64, requires_grad=True)
    shared = torch.autograd.grad(rotate.Tensor(x, freq), freq, upstream)[0]
    for shape in ((2, 1, 4), (1, 3, 4)):
        copies = freq.detach().expand(shape).clone().requires_grad_()
        each = torch.autograd.grad(rotate.Tensor(x, copies), copies, upstream)[0]
        torch.testing.assert_close(each.sum((0, 1)), shared, rtol=1e-12, atol=1e-12)


def test_a_list_and_a_tensor_of_frequencies_give_the_same_bits():
    for dtype in FLOATS:
        x = torch.randn(2, 130, 2, 64, dtype=torch.float64).to(dtype)
        freq = torch.tensor(FREQ, dtype=torch.float64)
        assert_same(rotate.Tensor(x, freq, offset=77), rotate(x, FREQ, offset=77))


class TestErrors:
    """The text names the operator, what it expected and what came; the next call works."""

    x = torch.randn(2, 5, 2, 16)
    freq = reference.rope_inv_freq(16)

    CASES: ClassVar = {
        "head_dim": (ValueError, lambda s: rotate(s.x[..., :8], s.freq), ("16", "8")),
        "start": (ValueError, lambda s: rotate(s.x, s.freq, rotary_start=1), ("16", "1")),
        "negative_start": (ValueError, lambda s: rotate(s.x, s.freq, rotary_start=-1), ("-1",)),
        "integers": (TypeError, lambda s: rotate(s.x.long(), s.freq), ("float", "Long")),
        "ids_length": (
            ValueError,
            lambda s: rotate(s.x, s.freq, torch.arange(4)),
            ("position", "4", "5"),
        ),
        "ids_batch": (
            ValueError,
            lambda s: rotate(s.x, s.freq, torch.zeros(3, 5, dtype=torch.long)),
            ("position", "3", "2"),
        ),
        "ids_rank": (
            ValueError,
            lambda s: rotate(s.x, s.freq, torch.zeros(1, 1, 2, 5, dtype=torch.long)),
            ("position",),
        ),
        "ids_bool": (
            (TypeError, ValueError),
            lambda s: rotate(s.x, s.freq, torch.ones(5, dtype=torch.bool)),
            ("position",),
        ),
        "axes_length": (
            ValueError,
            lambda s: rotate(s.x, s.freq, torch.zeros(3, 1, 5), axes=[0, 1]),
            ("axes", "8", "2"),
        ),
        "axes_range": (
            ValueError,
            lambda s: rotate(s.x, s.freq, torch.zeros(3, 1, 5), axes=[0, 1, 2, 3] * 2),
            ("axes", "3"),
        ),
        "seq_dim": (
            (ValueError, IndexError),
            lambda s: rotate(s.x, s.freq, seq_dim=4),
            ("seq_dim", "4"),
        ),
        "seq_dim_last": (ValueError, lambda s: rotate(s.x, s.freq, seq_dim=3), ("seq_dim", "3")),
        "rank": (ValueError, lambda s: rotate(s.x[0, 0, 0], s.freq, seq_dim=0), ("1",)),
        "in_place": (
            ValueError,
            lambda s: rotate_(s.x[..., :8], s.freq),
            ("rotary_embedding_", "16", "8"),
        ),
        "tensor_freq": (
            ValueError,
            lambda s: rotate.Tensor(s.x, torch.ones(3, 1, 8, dtype=torch.float64)),
            ("inv_freq", "3"),
        ),
        "tensor_dtype": (
            (TypeError, ValueError),
            lambda s: rotate.Tensor(s.x, torch.ones(8, dtype=torch.long)),
            ("inv_freq",),
        ),
        "table_width": (
            ValueError,
            lambda s: torch.ops.posenc.apply_rotary(s.x, torch.ones(2, 3), torch.ones(2, 4)),
            ("apply_rotary", "cos", "sin"),
        ),
        "table_short": (
            (ValueError, IndexError),
            lambda s: torch.ops.posenc.apply_rotary(
                s.x, torch.ones(4, 8), torch.ones(4, 8), seq_dim=1
            ),
            ("apply_rotary", "4", "5"),
        ),
        "table_one": (
            (ValueError, IndexError),
            lambda s: torch.ops.posenc.apply_rotary(
                s.x, torch.ones(1, 8), torch.ones(1, 8), seq_dim=1
            ),
            ("apply_rotary", "1", "5"),
        ),
        "table_past": (
            IndexError,
            lambda s: torch.ops.posenc.apply_rotary(
                s.x, torch.ones(9, 8), torch.ones(9, 8), torch.tensor([0, 1, 2, 3, 9]), seq_dim=1
            ),
            ("apply_rotary", "9"),
        ),
        "table_before": (
            IndexError,
            lambda s: torch.ops.posenc.apply_rotary(
                s.x, torch.ones(9, 8), torch.ones(9, 8), torch.tensor([0, 1, 2, 3, -1]), seq_dim=1
            ),
            ("apply_rotary", "-1", "9"),
        ),
    }

    @pytest.mark.parametrize("case", CASES)
    def test_text_and_a_usable_process(self, case):
        kind, call, words = self.CASES[case]
        with pytest.raises(kind) as error:
            call(self)
        text = str(error.value)
        operator = "apply_rotary" if case.startswith("table") else "rotary_embedding"
        for word in (operator, *words):
            assert word in text, f"{word!r} is missing in: {text}"
        out = rotate(self.x, self.freq)
        want = reference.rotary_embedding(self.x.double().numpy(), self.freq)
        assert np.abs(out.double().numpy() - want).max() < 1e-5


def test_gathered_rows_of_a_dynamic_length_export():
    """The length stays a symbol beside the width, which is a number."""

    class Rotate(torch.nn.Module):
        def forward(self, x, angle):
            return torch.ops.posenc.apply_rotary(x, angle.cos(), angle.sin(), seq_dim=1)

    length = torch.export.Dim("length", min=2, max=40)
    x, angle = torch.randn(2, 6, 3, 8), torch.randn(1, 6, 4)
    program = torch.export.export(
        Rotate(), (x, angle), dynamic_shapes={"x": {1: length}, "angle": {1: length}}
    ).module()
    x, angle = torch.randn(2, 11, 3, 8), torch.randn(1, 11, 4)
    assert_same(program(x, angle), Rotate()(x, angle))
