"""M: masks and softmax next to a bias. A test has the name of its fault."""

import posenc
import posenc.functional as P
import pytest
import torch
from samples.compare import assert_same

HALVES = (torch.float16, torch.bfloat16)
every_kind = pytest.mark.parametrize("name", ("RoPEAttention", "ALiBiAttention"))


def build(name, **options):
    torch.manual_seed(0)
    return getattr(posenc, name)(16, 2, **options)


def silent_output(layer):
    """What a row without any key gives: the output projection of zeros."""
    bias = layer.out_proj.bias
    return torch.zeros(16, dtype=layer.out_proj.weight.dtype) if bias is None else bias.detach()


@every_kind
@pytest.mark.parametrize("dtype", (torch.float32, *HALVES), ids=str)
@pytest.mark.parametrize("kind", (torch.bool, torch.int64, torch.float32), ids=str)
def test_M2_a_row_without_a_key_is_zero(name, dtype, kind):
    layer = build(name).to(dtype)
    x = torch.randn(2, 5, 16).to(dtype).requires_grad_()
    mask = torch.ones(5, 5)
    mask[3] = 0
    out = layer(x, mask=mask.to(kind))
    assert_same(out[:, 3].detach(), silent_output(layer).expand(2, 16))
    out.float().sum().backward()
    assert torch.isfinite(x.grad).all()
    for parameter in layer.parameters():
        assert torch.isfinite(parameter.grad).all()
    nothing = layer(x, mask=torch.zeros(5, 5).to(kind))
    assert_same(nothing.detach(), silent_output(layer).expand(2, 5, 16))
    padded = layer(x, key_padding_mask=torch.tensor([[1] * 5, [0] * 5]).to(kind))
    assert_same(padded[1].detach(), silent_output(layer).expand(5, 16))
    assert torch.isfinite(padded).all()


@pytest.mark.parametrize("dtype", (torch.float64, torch.float32, *HALVES), ids=str)
def test_M2_operators_give_zero_and_minus_infinity(dtype):
    q, k, v = torch.randn(3, 1, 2, 4, 8).to(dtype).unbind()
    leaves = [t.requires_grad_() for t in (q, k, v)]
    mask = torch.ones(1, 1, 4, 4, dtype=torch.bool)
    mask[..., 2, :] = False
    out, lse = P.alibi_attention(*leaves, [0.5, 0.25], mask, return_lse=True)
    assert not out[:, :, 2].any() and (lse[:, :, 2] == -float("inf")).all()
    (out.float().sum() + torch.where(lse.isinf(), 0, lse).float().sum()).backward()
    for leaf in leaves:
        assert torch.isfinite(leaf.grad).all()
    assert not q.grad[:, :, 2].any()
    weights = P.alibi_softmax(torch.randn(1, 2, 4, 4).to(dtype), [0.5, 0.25], mask)
    assert not weights[:, :, 2].any()
    before = P.alibi_attention(q, k, v, [0.5, 0.25], is_causal=True, offset=-2)
    assert not before[:, :, :2].any() and before[:, :, 2:].any()


@every_kind
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_M3_masks_are_combined_as_booleans(name, dtype):
    """Causal, mask, padding and a bias of large negative numbers on one key: finite, and masked."""
    layer = build(name, is_causal=True).to(dtype)
    x = torch.randn(2, 5, 16).to(dtype)
    lowest = torch.finfo(dtype).min
    mask = torch.ones(5, 5)
    mask[:, 1] = 0
    keep = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]])
    for bias in (lowest, -30000.0, -1.0):
        attn_bias = torch.zeros(1, 1, 5, 5, dtype=dtype)
        attn_bias[..., 1] = bias
        out = layer(x, mask=mask, attn_bias=attn_bias, key_padding_mask=keep)
        assert torch.isfinite(out).all()
        assert_same(
            layer(x, mask=mask, key_padding_mask=keep), layer(x, mask=mask, key_padding_mask=keep)
        )
        plain = layer(x, mask=mask, key_padding_mask=keep)
        torch.testing.assert_close(out, plain, rtol=0, atol=2 * torch.finfo(dtype).eps)
    deep = torch.full((5, 5), lowest, dtype=dtype)
    assert torch.isfinite(layer(x, attn_bias=deep)).all()


@every_kind
def test_M5_blocked_is_blocked_whatever_the_bias(name):
    """Key 0 allowed at -12000, key 1 masked: all weight is on key 0."""
    layer = build(name)
    x = torch.randn(1, 2, 16)
    bias = torch.tensor([[-12000.0, 0.0]]).expand(2, 2)
    mask = torch.tensor([[1, 0], [1, 0]])
    out = layer(x, mask=mask, attn_bias=bias)
    torch.testing.assert_close(out, layer(x, mask=mask), rtol=0, atol=1e-6)
    value = layer.out_proj(layer.value_proj(x[:, :1]))
    torch.testing.assert_close(out, value.expand_as(out), rtol=0, atol=1e-6)
    steep = P.alibi_attention(
        torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 2, 2), torch.eye(2)[None, None], [12000.0],
        torch.tensor([True, False])[None, None, None],
    )  # fmt: skip
    assert steep[0, 0, 0].tolist() == [1.0, 0.0]


@every_kind
@pytest.mark.parametrize("broken", (float("nan"), float("inf"), -float("inf")))
def test_M6_a_masked_key_is_never_touched(name, broken):
    """Neither a NaN in a blocked input row nor an infinity reaches the rows that may not see it."""
    layer = build(name)
    clean = torch.randn(1, 5, 16)
    dirty = clean.clone()
    dirty[:, 2] = broken
    clean[:, 2] = 0
    mask = torch.ones(5, 5)
    mask[:, 2] = 0
    rows = [0, 1, 3, 4]
    for given in ({"mask": mask}, {"mask": mask, "attn_bias": torch.randn(5, 5)}):
        want = layer(clean, **given)[:, rows]
        torch.testing.assert_close(layer(dirty, **given)[:, rows], want, rtol=0, atol=1e-6)
    keep = torch.tensor([[1, 1, 0, 1, 1]])
    want = layer(clean, key_padding_mask=keep)[:, rows]
    torch.testing.assert_close(
        layer(dirty, key_padding_mask=keep)[:, rows], want, rtol=0, atol=1e-6
    )
    causal = build(name, is_causal=True)
    want = causal(clean)[:, :2]
    torch.testing.assert_close(causal(dirty)[:, :2], want, rtol=0, atol=1e-6)


@pytest.mark.parametrize("broken", (float("nan"), float("inf")))
def test_M6_operators_and_their_gradients(broken):
    slopes = [0.5, 0.25]
    q, k, v = torch.randn(3, 1, 2, 40, 8).unbind()
    mask = torch.ones(1, 1, 1, 40, dtype=torch.bool)
    mask[..., 33] = False
    results = []
    for value in (0.0, broken):
        leaves = [t.clone() for t in (q, k, v)]
        leaves[1][:, :, 33] = value
        leaves[2][:, :, 33] = value
        leaves = [t.requires_grad_() for t in leaves]
        out = P.alibi_attention(*leaves, slopes, mask)
        results.append((out.detach(), *torch.autograd.grad(out.sum(), leaves)))
    for clean, dirty in zip(*results, strict=True):
        torch.testing.assert_close(dirty, clean, rtol=0, atol=1e-6)
    scores = torch.randn(1, 2, 3, 40)
    dirty = scores.clone()
    dirty[..., 33] = broken
    assert_same(P.alibi_softmax(dirty, slopes, mask), P.alibi_softmax(scores, slopes, mask))


@every_kind
def test_M8_prefill_into_an_empty_cache_is_causal(name):
    layer = build(name, is_causal=True)
    x = torch.randn(2, 5, 16)
    want = layer(x)
    for cache in (None, layer.empty_cache(2)):
        out, _ = layer.forward_cached(x, cache)
        torch.testing.assert_close(out, want, rtol=0, atol=1e-6)
    later = x.clone()
    later[:, 3:] += 1
    out, _ = layer.forward_cached(later, layer.empty_cache(2))
    torch.testing.assert_close(out[:, :3], want[:, :3], rtol=0, atol=1e-6)
    # And in a second piece, tokens of that piece see each other causally.
    head, cache = layer.forward_cached(x[:, :2])
    tail, _ = layer.forward_cached(x[:, 2:], cache)
    torch.testing.assert_close(torch.cat((head, tail), 1), want, rtol=0, atol=1e-5)


@every_kind
@pytest.mark.parametrize("options", ({}, {"n_kv_heads": 1}), ids=("full", "grouped"))
def test_M9_causal_equals_the_explicit_mask(name, options):
    causal, plain = build(name, is_causal=True, **options), build(name, **options)
    x = torch.randn(2, 7, 16)
    lower = torch.ones(7, 7).tril()
    want = causal(x)
    torch.testing.assert_close(plain(x, mask=lower), want, rtol=0, atol=1e-6)
    torch.testing.assert_close(causal(x, mask=lower), want, rtol=0, atol=1e-6)
    torch.testing.assert_close(causal(x, mask=torch.ones(7, 7)), want, rtol=0, atol=1e-6)
    zero = torch.zeros(7, 7)
    torch.testing.assert_close(causal(x, attn_bias=zero), want, rtol=0, atol=1e-6)
    blocked = zero.masked_fill(lower == 0, -float("inf"))
    torch.testing.assert_close(plain(x, attn_bias=blocked), want, rtol=0, atol=1e-6)
    keep = torch.ones(2, 7)
    torch.testing.assert_close(causal(x, key_padding_mask=keep), want, rtol=0, atol=1e-6)


@pytest.mark.parametrize("length", (31, 32, 33, 65, 129))
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16), ids=str)
def test_M11_keys_expanded_over_heads(length, dtype):
    q = torch.randn(2, 4, length, 16).to(dtype)
    one = torch.randn(2, 2, 1, length, 16).to(dtype)
    slopes = P.alibi_slopes(4)
    for causal in (True, False):
        results = []
        for copied in (False, True):
            k, v = (t.expand(2, 4, length, 16) for t in one)
            k, v = ((t.contiguous() if copied else t).requires_grad_() for t in (k, v))
            out = P.alibi_attention(q, k, v, slopes, is_causal=causal)
            results.append((out, *torch.autograd.grad(out.float().sum(), (k, v))))
        assert_same(*results)
        grouped = P.alibi_attention(q, *one, slopes, is_causal=causal)
        near = 1e-6 if dtype == torch.float32 else torch.finfo(dtype).eps
        torch.testing.assert_close(grouped, results[0][0].detach(), rtol=near, atol=near)


@every_kind
def test_M12_a_real_valued_bias_in_eval_mode(name):
    layer = build(name, dropout=0.5)
    x = torch.randn(2, 5, 16)
    bias = -3 * torch.rand(2, 2, 5, 5)
    evaluated = layer.eval()(x, attn_bias=bias)
    assert torch.isfinite(evaluated).all()
    with torch.inference_mode():
        torch.testing.assert_close(layer(x, attn_bias=bias), evaluated, rtol=0, atol=1e-6)
    layer.dropout = 0.0
    torch.testing.assert_close(layer.train()(x, attn_bias=bias), evaluated, rtol=0, atol=1e-6)
    encoder = torch.nn.Sequential(layer.eval())
    torch.testing.assert_close(encoder(x), layer(x))


def test_operators_take_boolean_masks_only():
    """0 blocks, or 0.0 keeps: both are in use, so a float is an error that names them."""
    q, k, v = torch.randn(3, 1, 2, 4, 8).unbind()
    for mask in (torch.zeros(4, 4), torch.ones(4, 4, dtype=torch.int64)):
        for call in (
            lambda m: P.alibi_attention(q, k, v, [0.5, 0.25], m),
            lambda m: P.alibi_softmax(torch.zeros(1, 2, 4, 4), [0.5, 0.25], m),
        ):
            with pytest.raises(TypeError) as error:
                call(mask)
            assert "bool" in str(error.value) and "0" in str(error.value)
