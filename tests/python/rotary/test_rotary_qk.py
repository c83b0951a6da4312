"""q and k in one call: the bits of two calls, whatever the derivative, layout or memory."""

import posenc
import pytest
import reference
import torch
from samples.compare import FLOATS, assert_same

one = torch.ops.posenc.rotary_embedding
both = torch.ops.posenc.rotary_embedding_qk
both_ = torch.ops.posenc.rotary_embedding_qk_
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


def draw(dtype=torch.float32, length=70, **kwargs):
    q, k = (torch.randn(2, length, h, 20, dtype=torch.float64).to(dtype) for h in (4, 2))
    return q.requires_grad_(kwargs.get("q", False)), k.requires_grad_(kwargs.get("k", False))


@options
@dtypes
def test_the_bits_of_two_calls(options, dtype):
    for length in (70, 1):
        q, k = draw(dtype, length)
        want = one(q, FREQ, **options), one(k, FREQ, **options)
        assert_same(both(q, k, FREQ, **options), want)
        ids = torch.randint(-9, 10**6, (2, length))
        want = one(q, FREQ, ids, **options), one(k, FREQ, ids, **options)
        assert_same(both(q, k, FREQ, ids, **options), want)
        both_(q, k, FREQ, ids, **options)
        assert_same((q, k), want)


def test_slices_of_one_projection_and_other_memory():
    fused = torch.randn(2, 9, 4 + 2 * 2, 16)
    q, k, v = fused.split((4, 2, 2), 2)
    want = one(q, FREQ), one(k, FREQ)
    assert_same(both(q, k, FREQ), want)
    # Axes of heads that no stride can merge, beside plain ones.
    q5 = torch.randn(2, 9, 3, 2, 16).transpose(2, 3)
    k5 = torch.randn(2, 9, 16, 5).transpose(2, 3)[:, :, ::2]
    assert_same(both(q5, k5, FREQ), (one(q5, FREQ), one(k5, FREQ)))
    expanded = k[:, :, :1].expand(-1, -1, 4, -1)
    assert_same(both(q, expanded, FREQ)[1], one(expanded.contiguous(), FREQ))
    before = v.clone()
    both_(q, k, FREQ)
    assert_same((q, k, v), (*want, before))


def test_batches_that_differ():
    """Tokens without a batch, (tokens, heads, D), as serving engines have them; and one set of keys
    for a batch of queries."""
    q, k = torch.randn(9, 4, 16), torch.randn(9, 2, 16)
    ids = torch.randint(0, 99, (9,))
    for position_ids in (None, ids):
        for layout in (lambda t: t, lambda t: t.transpose(0, 1).contiguous().transpose(0, 1)):
            x, y = layout(q.clone()), layout(k.clone())
            want = (
                one(q[None], FREQ, position_ids)[0],
                one(k[None], FREQ, position_ids)[0],
            )
            assert_same(both(x, y, FREQ, position_ids, seq_dim=0), want)
            both_(x, y, FREQ, position_ids, seq_dim=0)
            assert_same((x, y), want)
    q, k = torch.randn(3, 9, 4, 16), torch.randn(1, 9, 2, 16)
    assert_same(both(q, k, FREQ, ids[None]), (one(q, FREQ, ids), one(k, FREQ, ids)))


def test_two_dtypes():
    q, k = draw()
    k = k.bfloat16()
    assert_same(both(q, k, FREQ), (one(q, FREQ), one(k, FREQ)))


@pytest.mark.parametrize("heads", ((0, 2), (4, 0), (0, 0)))
def test_no_heads(heads):
    q, k = (torch.randn(2, 3, h, 16) for h in heads)
    assert_same(both(q, k, FREQ), (one(q, FREQ), one(k, FREQ)))


class TestOneGradientOfTwo:
    def test_an_input_that_wants_none_gives_an_output_without(self):
        for wanted in ("q", "k"):
            out = both(*draw(**{wanted: True}), FREQ)
            assert [o.requires_grad for o in out] == [wanted == "q", wanted == "k"]

    @options
    def test_one_output_used(self, options):
        """The gradient of the other output never arrives: nothing is rotated for it."""
        for number in (0, 1):
            inputs = draw(torch.float64, 5, q=True, k=True)
            out = both(*inputs, FREQ, **options)[number]
            weight = torch.randn_like(out)
            grads = torch.autograd.grad(out, inputs, weight, allow_unused=True)
            assert grads[1 - number] is None
            want = torch.autograd.grad(one(inputs[number], FREQ, **options), inputs[number], weight)
            assert_same(grads[number], want[0])

    def test_one_input_asked(self):
        inputs = draw(torch.float64, 5, q=True, k=True)
        out = both(*inputs, FREQ)
        weights = [torch.randn_like(o) for o in out]
        together = torch.autograd.grad(out, inputs, weights, retain_graph=True)
        for number in (0, 1):
            alone = torch.autograd.grad(out, inputs[number], weights, retain_graph=True)[0]
            assert_same(alone, together[number])

    def test_a_tangent_for_one(self):
        q, k = draw(torch.float64, 5)
        _, tangent = torch.func.jvp(lambda t: both(t, k, FREQ)[0], (q,), (q,))
        torch.testing.assert_close(tangent, one(q, FREQ), rtol=1e-12, atol=1e-12)
        _, tangent = torch.func.jvp(lambda t: both(t, k, FREQ)[1], (q,), (q,))
        assert not tangent.any()


class TestInPlace:
    def test_marks_both(self):
        q, k = draw()
        versions = q._version, k._version
        out = both_(q, k, FREQ)
        assert q._version > versions[0] and k._version > versions[1]
        assert [o.data_ptr() for o in out] == [q.data_ptr(), k.data_ptr()]

    def test_gradient(self):
        q, k = draw(torch.float64, 4, q=True, k=True)

        def call(a, b):
            return both_(a * 1.0, b * 1.0, FREQ, interleaved_out=False)

        assert torch.autograd.gradcheck(call, (q, k), fast_mode=True, check_forward_ad=True)
        assert torch.autograd.gradgradcheck(call, (q, k), fast_mode=True)
        out = both_(q.detach().clone(), k * 1.0, FREQ)
        assert not out[0].requires_grad and out[1].requires_grad

    def test_refusals(self):
        q, k = draw(k=True)
        with pytest.raises(RuntimeError, match="leaf"):
            both_(q, k, FREQ)
        x = torch.randn(2, 5, 2, 20)
        with pytest.raises(RuntimeError):
            both_(x, x, FREQ)
        with pytest.raises(RuntimeError):
            both_(x, x[:, :, :1].expand(-1, -1, 2, -1), FREQ)

    def test_transforms_compile_and_opcheck(self):
        q, k = draw(length=5)
        want = both(q, k, FREQ)
        mapped = torch.vmap(lambda a, b: both_(a.clone(), b.clone(), FREQ, seq_dim=0))(q, k)
        torch.testing.assert_close(mapped, want)

        def call(a, b):
            a, b = a.clone(), b.clone()
            both_(a, b, FREQ)
            return a + 1, b + 1

        compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
        torch.testing.assert_close(compiled(q, k), call(q, k), rtol=0, atol=1e-6)
        result = torch.library.opcheck(both_.default, (q.clone(), k.clone(), FREQ))
        assert set(result.values()) == {"SUCCESS"}, result
        torch.compile(lambda a, b: both_(a, b, FREQ), backend="aot_eager", fullgraph=True)(q, k)
        torch.testing.assert_close((q, k), want, rtol=0, atol=1e-6)


ERRORS = {
    "length": (lambda q, k: both(q, k[:, :3], FREQ), ValueError, ("of one length", "[2, 3, 2")),
    "batch": (
        lambda q, k: both(q, k[:1], FREQ, torch.zeros(2, 5)),
        ValueError,
        ("position_ids", "(1, 5)", "[1, 5, 2, 20]"),
    ),
    "width": (lambda q, k: both(q, k[..., :8], FREQ), ValueError, ("head_dim >= 16", "8 in k")),
    "dtype": (lambda q, k: both(q, k.long(), FREQ), TypeError, ("expected k", "Long")),
    "ids": (lambda q, k: both(q, k, FREQ, torch.arange(4)), ValueError, ("position_ids", "[4]")),
    "device": (lambda q, k: both(q, k.to("meta"), FREQ), ValueError, ("q's device", "meta")),
    "seq_dim": (lambda q, k: both(q, k[:, :, 0], FREQ, seq_dim=2), ValueError, ("seq_dim", "k")),
    "in_place": (lambda q, k: both_(q, k[:, :3], FREQ), ValueError, ("rotary_embedding_qk_",)),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_name_the_tensor(name):
    call, kind, words = ERRORS[name]
    q, k = draw(length=5)
    with pytest.raises(kind) as error:
        call(q, k)
    assert "rotary_embedding_qk" in str(error.value)
    for word in words:
        assert word in str(error.value), str(error.value)


@pytest.mark.parametrize("package", (posenc, posenc.cpp), ids=("python", "cpp"))
@pytest.mark.parametrize(
    "arguments",
    (
        {},
        {"interleaved": False, "rotary_dim": 8, "rotary_start": 4},
        {"seq_dim": 2, "attention_factor": 1.5, "inverse": True},
        {"scaling": {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 8}},
        {"axes": [0, 1, 1, 0, 2, 2, 0, 1]},
    ),
    ids=lambda a: "-".join(a) or "plain",
)
def test_the_layers_method_is_two_calls_of_it(package, arguments):
    rope = package.RotaryPositionalEmbedding(16, **arguments)
    q, k = torch.randn(2, 9, 4, 16), torch.randn(2, 9, 2, 16)
    if rope_seq_dim := arguments.get("seq_dim"):
        assert rope_seq_dim == 2
        q, k = q.transpose(1, 2), k.transpose(1, 2)
    ids = torch.randint(0, 99, (3, 2, 9) if "axes" in arguments else (2, 9))
    for position_ids, offset in ((None, 0), (None, 30), (ids, 2)):
        want = rope(q, position_ids, offset), rope(k, position_ids, offset)
        assert_same(rope.rotate(q, k, position_ids, offset), want)


def test_the_layers_method_takes_heads_side_by_side():
    rope = posenc.RotaryPositionalEmbedding(16)
    q, k = torch.randn(2, 9, 64), torch.randn(2, 9, 16)
    assert_same(rope.rotate(q, k), (rope(q), rope(k)))
    with pytest.raises(ValueError, match=r"d_model = 16.*40"):
        rope.rotate(q, torch.randn(2, 9, 40))
