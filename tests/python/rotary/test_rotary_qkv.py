"""A packed projection: q and k rotated, v bit for bit, in one pass or in place."""

import posenc
import pytest
import reference
import torch
from samples.compare import FLOATS, assert_same, needs_torchscript

one = torch.ops.posenc.rotary_embedding
packed = torch.ops.posenc.rotary_embedding_qkv
packed_ = torch.ops.posenc.rotary_embedding_qkv_
FREQ = reference.rope_inv_freq(16)
OPTIONS = (
    {},
    {"interleaved": False, "offset": 1000},
    {"interleaved_out": False, "attention_factor": 1.25},
    {"interleaved": False, "interleaved_out": True, "inverse": True},
    {"rotary_start": 4},
)
options = pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(o) or "plain")
dtypes = pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: str(d)[6:])
# shape of qkv, (n_heads, n_kv_heads), entries of axis 2 that are rotated
LAYOUTS = {
    "equal": ((2, 70, 6, 20), (2, 2), 4),
    "grouped": ((2, 70, 8, 20), (4, 2), 6),
    "one_kv_head": ((2, 1, 5, 20), (3, 1), 4),
    "three": ((2, 70, 3, 4, 20), (4, 4), 2),
    "three_one_token": ((2, 1, 3, 4, 20), (4, 4), 2),
}
layouts = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)


def unpacked(qkv, rotated, **arguments):
    """What the packed call stands for: unpack, rotate, pack."""
    front = one(qkv[:, :, :rotated].contiguous(), FREQ, **arguments)
    return torch.cat((front, qkv[:, :, rotated:]), 2)


@layouts
@options
@dtypes
def test_the_bits_of_unpacking(layout, options, dtype):
    shape, heads, rotated = layout
    qkv = torch.randn(shape, dtype=torch.float64).to(dtype)
    want = unpacked(qkv, rotated, **options)
    assert_same(packed(qkv, FREQ, *heads, **options), want)
    ids = torch.randint(-9, 10**6, shape[:2])
    want = unpacked(qkv, rotated, position_ids=ids, **options)
    before = qkv.clone()
    assert_same(packed(qkv, FREQ, *heads, ids, **options), want)
    assert_same(qkv, before)
    version = qkv._version
    assert packed_(qkv, FREQ, *heads, ids, **options) is qkv
    assert_same(qkv, want)
    assert qkv._version > version


def test_v_passes_whatever_it_holds():
    """Not a number, infinity and denormal numbers are v's own business."""
    for shape, heads, rotated in LAYOUTS.values():
        qkv = torch.randn(shape).bfloat16()
        v = qkv[:, :, rotated:]
        v[..., 0], v[..., 1], v[..., 2] = float("nan"), float("inf"), 1e-40
        out = packed(qkv, FREQ, *heads)
        assert torch.equal(out[:, :, rotated:].view(torch.int16), v.view(torch.int16))
        assert out[:, :, :rotated].isfinite().all()


@layouts
def test_any_memory(layout):
    """Slices of a fused projection, transposed and spread channels: the bits of the plain one."""
    shape, heads, _ = layout
    plain = torch.randn(shape)
    want = packed(plain, FREQ, *heads)
    wide = torch.full((*shape[:2], 7 + plain[0, 0].numel()), 5.0)
    slot = wide[..., 3:-4].view(shape)  # a projection that holds more than q, k and v
    slot.copy_(plain)
    spread = torch.zeros(*shape[:-1], 40)[..., ::2].copy_(plain)
    for name, qkv in (
        ("slice", slot),
        ("spread", spread),
        ("heads first", plain.transpose(1, 2).contiguous().transpose(1, 2)),
        ("channels outermost", plain.movedim(-1, 0).contiguous().movedim(0, -1)),
        ("batch of one memory", plain[:1].expand(shape)),
    ):
        expected = want if name != "batch of one memory" else want[:1].expand(shape)
        assert_same(packed(qkv, FREQ, *heads), expected, name)
        if name != "batch of one memory":
            packed_(qkv, FREQ, *heads)
            assert_same(qkv, want, name)
    outside = torch.cat((wide[..., :3], wide[..., -4:]), -1)
    assert (outside == 5).all(), "the call in place wrote beside q, k and v"


def test_in_place_refuses_memory_that_overlaps_itself():
    with pytest.raises(RuntimeError):
        packed_(torch.randn(1, 5, 6, 16).expand(2, 5, 6, 16), FREQ, 2, 2)


class TestDerivatives:
    @layouts
    def test_gradient_is_that_of_unpacking(self, layout):
        shape, heads, rotated = layout
        qkv = torch.randn(shape, dtype=torch.float64, requires_grad=True)
        weight = torch.randn(shape, dtype=torch.float64)
        got = torch.autograd.grad(packed(qkv, FREQ, *heads, attention_factor=1.5), qkv, weight)
        want = torch.autograd.grad(unpacked(qkv, rotated, attention_factor=1.5), qkv, weight)
        assert_same(got, want)
        assert_same(got[0][:, :, rotated:], weight[:, :, rotated:], "gradient of v")

    def test_in_place(self):
        x = torch.randn(1, 3, 5, 16, dtype=torch.float64, requires_grad=True)

        def call(t):
            return packed_(t * 1.0, FREQ, 3, 1, interleaved_out=False)

        assert torch.autograd.gradcheck(call, (x,), fast_mode=True, check_forward_ad=True)
        assert torch.autograd.gradgradcheck(call, (x,), fast_mode=True)
        with pytest.raises(RuntimeError, match="leaf"):
            packed_(x, FREQ, 3, 1)

    def test_in_place_through_a_projection(self):
        """As a model does it: a fused linear, rotated where it is, unpacked, and trained."""
        torch.manual_seed(0)
        linear = torch.nn.Linear(8, 5 * 16)
        x = torch.randn(2, 4, 8)
        grads = []
        for call in (packed, packed_):
            out = call(linear(x).unflatten(-1, (5, 16)), FREQ, 3, 1)
            q, k, v = out.split((3, 1, 1), 2)
            grads.append(torch.autograd.grad((q * k * v).sum(), list(linear.parameters())))
        assert_same(*grads)

    def test_in_place_transforms_compile_and_opcheck(self):
        qkv = torch.randn(2, 5, 5, 16)
        want = packed(qkv, FREQ, 3, 1)
        mapped = torch.vmap(lambda t: packed_(t[None].clone(), FREQ, 3, 1)[0])(qkv)
        torch.testing.assert_close(mapped, want)
        result = torch.library.opcheck(packed_.default, (qkv.clone(), FREQ, 3, 1))
        assert set(result.values()) == {"SUCCESS"}, result
        torch.compile(lambda t: packed_(t, FREQ, 3, 1), backend="aot_eager", fullgraph=True)(qkv)
        torch.testing.assert_close(qkv, want, rtol=0, atol=1e-6)


QKV = torch.randn(2, 5, 6, 16)
ERRORS = {
    "heads": (lambda: packed(QKV, FREQ, 4, 2), ValueError, ("8 heads", "got 6")),
    "no_heads": (lambda: packed(QKV, FREQ, 6, 0), ValueError, ("n_kv_heads", "0")),
    "rank": (lambda: packed(QKV[0], FREQ, 2, 2), ValueError, ("(B, L, 3, H, D)", "[5, 6, 16]")),
    "seq_dim": (lambda: packed(QKV, FREQ, 2, 2, seq_dim=2), ValueError, ("seq_dim 1", "got 2")),
    "seq_dim_negative": (
        lambda: packed(QKV, FREQ, 2, 2, seq_dim=-2), ValueError, ("seq_dim 1", "got -2"),
    ),
    "three": (
        lambda: packed(QKV.view(2, 5, 2, 3, 16), FREQ, 3, 3), ValueError, ("(B, L, 3, H, D)",),
    ),
    "three_heads": (
        lambda: packed(QKV.view(2, 5, 3, 2, 16), FREQ, 2, 1), ValueError, ("n_kv_heads = 1",),
    ),
    "width": (lambda: packed(QKV[..., :8], FREQ, 2, 2), ValueError, ("head_dim >= 16", "8 in qkv")),
    "dtype": (lambda: packed(QKV.long(), FREQ, 2, 2), TypeError, ("expected qkv", "Long")),
    "ids": (
        lambda: packed(QKV, FREQ, 2, 2, torch.arange(4)), ValueError, ("position_ids", "[4]"),
    ),
    "in_place": (lambda: packed_(QKV, FREQ, 4, 2), ValueError, ("rotary_embedding_qkv_", "got 6")),
}  # fmt: skip


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name):
    call, kind, words = ERRORS[name]
    with pytest.raises(kind) as error:
        call()
    assert "rotary_embedding_qkv" in str(error.value)
    for word in words:
        assert word in str(error.value), str(error.value)


class TestLayer:
    ARGUMENTS = (
        {},
        {"interleaved": False, "rotary_dim": 8, "rotary_start": 4},
        {"attention_factor": 1.5, "inverse": True, "interleaved_out": False},
        {"scaling": {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 8}},
    )

    @pytest.mark.parametrize("package", (posenc, posenc.cpp), ids=("python", "cpp"))
    @pytest.mark.parametrize("arguments", ARGUMENTS, ids=lambda a: "-".join(a) or "plain")
    def test_each_layout(self, package, arguments):
        rope = package.RotaryPositionalEmbedding(16, **arguments)
        ids = torch.randint(0, 99, (2, 9))
        for shape, n_kv, sizes in (
            ((2, 9, 6, 16), None, (2, 2, 2)),
            ((2, 9, 8, 16), 2, (4, 2, 2)),
            ((2, 9, 3, 4, 16), None, (1, 1, 1)),
        ):
            qkv = torch.randn(shape)
            q, k, v = qkv.split(sizes, 2)
            for position_ids, offset in ((None, 30), (ids, 2)):
                out = rope.rotate_packed(qkv, n_kv, position_ids, offset)
                want = rope(q, position_ids, offset), rope(k, position_ids, offset), v
                assert_same(out.split(sizes, 2), want)
                if package is posenc and len(shape) == 4:
                    flat = rope.rotate_packed(qkv.flatten(-2), n_kv, position_ids, offset)
                    assert_same(flat, out.flatten(-2))

    @needs_torchscript
    def test_script_and_compile(self):
        rope = posenc.RotaryPositionalEmbedding(16)
        qkv = torch.randn(2, 9, 8, 16)
        want = rope.rotate_packed(qkv, 2)
        assert_same(torch.jit.script(rope).rotate_packed(qkv, 2), want)
        compiled = torch.compile(rope.rotate_packed, backend="aot_eager", fullgraph=True)
        assert_same(compiled(qkv, 2), want)

    @pytest.mark.parametrize("package", (posenc, posenc.cpp), ids=("python", "cpp"))
    def test_errors(self, package):
        rope = package.RotaryPositionalEmbedding(16)
        for call, words in (
            (lambda: rope.rotate_packed(torch.randn(2, 9, 8, 16)), ("n_kv_heads", "8")),
            (lambda: rope.rotate_packed(torch.randn(2, 9, 8, 16), 4), ("n_kv_heads", "4")),
            (lambda: rope.rotate_packed(torch.randn(2, 9, 8, 16), 0), ("n_kv_heads", "0")),
            (lambda: rope.rotate_packed(torch.randn(2, 9, 6, 12)), ("16", "12")),
            (lambda: rope.rotate_packed(torch.randn(9, 16)), ("[9, 16]",)),
            (lambda: rope.rotate_packed(torch.randn(2, 9, 3, 2, 16), 1), ("n_kv_heads", "1")),
        ):
            with pytest.raises(ValueError) as error:
                call()
            for word in words:
                assert word in str(error.value), str(error.value)
        with pytest.raises(ValueError, match="seq_dim 1"):
            package.RotaryPositionalEmbedding(16, seq_dim=2).rotate_packed(torch.randn(2, 6, 9, 16))
