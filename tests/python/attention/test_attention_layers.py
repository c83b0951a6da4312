"""Attention: norms of keys, backward operators, errors, dropout, and the layers' cache."""

import io
from typing import ClassVar

import posenc
import posenc.functional as P
import pytest
import torch
from samples.compare import assert_same, needs_torchscript

SLOPES = P.alibi_slopes(4)
both = pytest.mark.parametrize("name", ("RoPEAttention", "ALiBiAttention"))


def qkv(L, S, dtype=torch.float32, heads=4, kv_heads=4, D=16):
    shapes = ((2, heads, L, D), (2, kv_heads, S, D), (2, kv_heads, S, D))
    return [torch.randn(shape, dtype=torch.float64).to(dtype) for shape in shapes]


class TestKeyNorms:
    """With the largest norm of each block of keys at hand, far blocks are not even read."""

    @pytest.mark.parametrize("dtype", (torch.float64, torch.float32, torch.bfloat16), ids=str)
    @pytest.mark.parametrize("rows", (1, 5, 40))
    def test_they_change_nothing(self, dtype, rows):
        q, k, v = qkv(rows, 700, dtype, kv_heads=2)
        norms = torch.ops.posenc.alibi_key_norms(k, v)
        want = P.alibi_attention(q, k, v, SLOPES, is_causal=True, return_lse=True)
        got = P.alibi_attention(q, k, v, SLOPES, is_causal=True, key_norms=norms, return_lse=True)
        near = {torch.float64: 1e-14, torch.float32: 2e-6}.get(dtype, 2**-7)
        torch.testing.assert_close(got[0], want[0], rtol=near, atol=near)
        torch.testing.assert_close(got[1], want[1], rtol=1e-4, atol=1e-4)

    def test_they_are_upper_bounds_and_mark_what_is_broken(self):
        _, k, v = qkv(1, 200)
        v[0, 0, 70, 3] = float("nan")
        k[1, 2, 130, 0] = float("inf")
        norms = torch.ops.posenc.alibi_key_norms(k, v)
        blocks = [k[:, :, s : s + 64].norm(dim=-1).amax(-1) for s in range(0, 200, 64)]
        exact = torch.stack(blocks, -1)
        assert norms.shape == exact.shape
        assert norms[0, 0, 1] == norms[1, 2, 2] == float("inf")
        finite = norms.isfinite()
        assert finite.sum() == norms.numel() - 2
        assert (norms[finite] >= exact[finite]).all()
        assert (norms[finite] <= exact[finite] * 1.001).all()


CHECKS = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")


def test_backward_operators_are_operators():
    """With schema, Meta and derivatives of their own: never silently zero."""
    q, k, v = qkv(3, 5, torch.float64)
    out, lse = torch.ops.posenc.alibi_attention(q, k, v, SLOPES, is_causal=True)
    ops = torch.ops.posenc
    arguments = (
        torch.randn_like(out),
        torch.randn_like(lse),
        q,
        k,
        v,
        out,
        lse,
        SLOPES,
        None,
        True,
    )
    slopes = torch.tensor(SLOPES, dtype=torch.float64)
    learned = (*arguments[:7], slopes, None, True)
    weights = torch.softmax(torch.randn(1, 4, 3, 5, dtype=torch.float64), -1)
    table = (torch.randn(2, 3, 4), 7, torch.tensor([[0, 6, 0], [1, 1, 1]]), 0, 1)
    for op, args in (
        (ops._alibi_attention_backward.default, arguments),
        (ops._alibi_attention_backward.Tensor, learned),
        (ops._alibi_softmax_backward.default, (torch.randn_like(weights), weights, 0.5)),
        (ops._add_positions_backward.default, table),
    ):
        result = torch.library.opcheck(op, args, test_utils=CHECKS)
        assert set(result.values()) == {"SUCCESS"}, (op, result)
    weights.requires_grad_()
    grad = torch.randn(1, 4, 3, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda g, w: ops._alibi_softmax_backward(g, w, 0.5), (grad, weights)
    )


class TestErrors:
    q, k, v = qkv(3, 5)
    scores = torch.zeros(2, 4, 3, 5)
    call = staticmethod(P.alibi_attention)

    CASES: ClassVar = {
        "slopes": (ValueError, lambda s: s.call(s.q, s.k, s.v, [0.5]), ("slopes", "4", "1")),
        "rank": (ValueError, lambda s: s.call(s.q[0], s.k, s.v, SLOPES), ("q", "3")),
        "batch": (ValueError, lambda s: s.call(s.q, s.k[:1], s.v[:1], SLOPES), ("k",)),
        "heads": (ValueError, lambda s: s.call(s.q, s.k[:, :3], s.v[:, :3], SLOPES), ("4", "3")),
        "width": (ValueError, lambda s: s.call(s.q[..., :8], s.k, s.v, SLOPES), ("8", "16")),
        "keys": (ValueError, lambda s: s.call(s.q, s.k, s.v[:, :, :4], SLOPES), ("5", "4")),
        "dtypes": (TypeError, lambda s: s.call(s.q, s.k.double(), s.v, SLOPES), ("k",)),
        "integers": (TypeError, lambda s: s.call(*(t.long() for t in (s.q, s.k, s.v)), SLOPES), ()),
        "mask": (
            ValueError,
            lambda s: s.call(s.q, s.k, s.v, SLOPES, torch.ones(3, 4, dtype=torch.bool)),
            ("mask", "4"),
        ),
        "positions": (
            ValueError,
            lambda s: s.call(s.q, s.k, s.v, SLOPES, k_positions=torch.zeros(2, 4).long()),
            ("k_positions", "4", "5"),
        ),
        "both": (
            ValueError,
            lambda s: s.call(s.q, s.k, s.v, SLOPES, offset=1, q_positions=torch.zeros(2, 3).long()),
            ("offset", "q_positions"),
        ),
    }

    @pytest.mark.parametrize("case", CASES)
    def test_text_and_a_usable_process(self, case):
        kind, call, words = self.CASES[case]
        with pytest.raises(kind) as error:
            call(self)
        for word in ("alibi_attention", *words):
            assert word in str(error.value), f"{word!r} is missing in: {error.value}"
        assert torch.isfinite(self.call(self.q, self.k, self.v, SLOPES)).all()

    def test_softmax(self):
        for kind, call, word in (
            (ValueError, lambda: P.alibi_softmax(self.scores, [0.5]), "slopes"),
            (ValueError, lambda: P.alibi_softmax(self.scores[0], SLOPES), "scores"),
            (TypeError, lambda: P.alibi_softmax(self.scores.long(), SLOPES), "scores"),
        ):
            with pytest.raises(kind) as error:
                call()
            assert "alibi_softmax" in str(error.value) and word in str(error.value)

    @both
    def test_layers(self, name):
        layer = getattr(posenc, name)(16, 4)
        x = torch.randn(2, 5, 16)
        for call, words in (
            (lambda: layer(x[..., :8]), ("16", "8")),
            (lambda: layer(x[0]), ("16",)),
            (lambda: layer(x, mask=torch.ones(4, 4)), ("mask", "4")),
            (lambda: layer(x, attn_bias=torch.zeros(4, 4)), ("attn_bias", "4")),
            (lambda: layer(x, key_padding_mask=torch.ones(2, 4)), ("key_padding_mask", "4")),
            (lambda: layer(x, position_ids=torch.arange(4)), ("position_ids", "4")),
        ):
            with pytest.raises(ValueError) as error:
                call()
            for word in words:
                assert word in str(error.value), str(error.value)
        assert torch.isfinite(layer(x)).all()


@both
def test_dropout_is_for_training_alone_and_keeps_the_mean(name):
    torch.manual_seed(0)
    layer = getattr(posenc, name)(16, 4, dropout=0.3)
    x = torch.randn(1, 6, 16)
    want = layer.eval()(x)
    assert_same(layer(x), want)
    layer.train()
    with torch.no_grad():
        mean = torch.stack([layer(x) for _ in range(250)]).mean(0)
    assert not torch.equal(layer(x), want)
    torch.testing.assert_close(mean, want, rtol=0, atol=0.08)


@needs_torchscript
@both
def test_the_cache_in_a_script_and_reordered(name):
    torch.manual_seed(0)
    layer = getattr(posenc, name)(16, 4, is_causal=True, n_kv_heads=2).eval()
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(layer), buffer)
    buffer.seek(0)
    loaded = torch.jit.load(buffer)
    x = torch.randn(3, 9, 16)
    want = layer(x)
    out, cache = loaded.forward_cached(x[:, :4])
    outs = [out]
    for t in range(4, 9):
        out, cache = loaded.forward_cached(x[:, t : t + 1], cache)
        outs.append(out)
    torch.testing.assert_close(torch.cat(outs, 1), want, rtol=0, atol=1e-5)
    # Beam search: rows of the cache are taken in another order, and go on from there.
    _, cache = layer.forward_cached(x[:, :6])
    order = torch.tensor([2, 0, 0])
    taken = posenc.KVCache(*(t[order] for t in cache))
    out, _ = layer.forward_cached(x[order, 6:7], taken)
    torch.testing.assert_close(out[:, 0], want[order, 6], rtol=0, atol=1e-5)


@both
def test_gradients_through_a_cache(name):
    """Training on pieces with a cache gives the gradients of one pass."""
    torch.manual_seed(0)
    layer = getattr(posenc, name)(16, 4, is_causal=True).double()
    x = torch.randn(2, 6, 16, dtype=torch.float64)
    upstream = torch.randn_like(x)
    want = torch.autograd.grad(layer(x), list(layer.parameters()), upstream)
    head, cache = layer.forward_cached(x[:, :4])
    tail, _ = layer.forward_cached(x[:, 4:], cache)
    got = torch.autograd.grad(torch.cat((head, tail), 1), list(layer.parameters()), upstream)
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-10)


def test_autocast_casts_as_torch_s_attention_does():
    q, k, v = qkv(4, 4)
    for low in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", low):
            ours, lse = P.alibi_attention(q, k, v, SLOPES, return_lse=True)
            theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v)
            compiled = torch.compile(
                lambda *t: P.alibi_attention(*t, SLOPES), backend="aot_eager", fullgraph=True
            )
            assert compiled(q, k, v).dtype == ours.dtype == theirs.dtype == low
        assert lse.dtype == torch.float32
        torch.testing.assert_close(
            ours.float(), P.alibi_attention(q, k, v, SLOPES), rtol=0, atol=8 * torch.finfo(low).eps
        )
