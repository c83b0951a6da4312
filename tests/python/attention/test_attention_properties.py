"""alibi_attention of random shapes, strides, dtypes, masks and positions against the reference."""

import posenc  # noqa: F401
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from samples.compare import array, assert_near, compute_unit, unit
from samples.operators import skipped
from samples.strategies import dtypes, seeds, strided


@st.composite
def calls(draw):
    batch, group, kv_heads = (draw(st.integers(1, 2)) for _ in range(3))
    heads = group * kv_heads
    L, S = draw(st.integers(1, 20)), draw(st.integers(0, 40))
    D, Dv = draw(st.integers(1, 20)), draw(st.integers(1, 12))
    dtype, seed = draw(dtypes), draw(seeds)
    shapes = ((batch, heads, L, D), (batch, kv_heads, S, D), (batch, kv_heads, S, Dv))
    tensors = [draw(strided(s, dtype, seed + i)) for i, s in enumerate(shapes)]
    generator = torch.Generator().manual_seed(seed)
    mask = None
    if draw(st.booleans()):
        shape = [draw(st.sampled_from((1, n))) for n in (batch, heads, L, S)]
        mask = torch.rand(shape, generator=generator) < draw(st.sampled_from((0.1, 0.7, 1.0)))
    options = {
        "slopes": draw(st.lists(st.floats(0, 2), min_size=heads, max_size=heads)),
        "mask": mask,
        "is_causal": draw(st.booleans()),
        "scale": draw(st.sampled_from((None, 0.3, 1.0))),
        "offset": draw(st.sampled_from((None, 0, -3, 5))),
    }
    if draw(st.booleans()):
        options["offset"] = None
        for name, length in (("q_positions", L), ("k_positions", S)):
            rows = draw(st.sampled_from((1, batch)))
            options[name] = torch.randint(0, 50, (rows, length), generator=generator)
    return tensors, options


@settings(max_examples=80)
@given(calls())
def test_value_and_statistics(call):
    (q, k, v), options = call
    out, lse = torch.ops.posenc.alibi_attention(q, k, v, **options)
    arrays = {name: array(value) for name, value in options.items()}
    want, want_lse = reference.alibi_attention(array(q), array(k), array(v), **arrays)
    assert out.dtype == q.dtype and out.shape == want.shape
    largest = max(1.0, v.double().abs().max().item()) if v.numel() else 1.0
    scores = 100.0 + q.double().norm(dim=-1).max().item() * (
        k.double().norm(dim=-1).max().item() if k.numel() else 0.0
    )
    # An error of the scores, in units at their size, is that of the weights.
    steps = 16 + 2 * scores
    assert_near(out, want, steps=steps, magnitude=largest, skipped=skipped(q.dtype))
    assert_near(lse, want_lse, steps=steps, magnitude=1.0, skipped=skipped(q.dtype))


@settings(max_examples=40)
@given(calls())
def test_gradients_equal_those_of_the_dense_formula(call):
    """Against the float64 composite that the same operator takes under torch.func."""
    (q, k, v), options = call
    leaves = [t.detach().requires_grad_() for t in (q, k, v)]
    out, lse = torch.ops.posenc.alibi_attention(*leaves, **options)
    g_out = torch.randn_like(out, memory_format=torch.contiguous_format)
    g_lse = torch.randn_like(lse)
    live = torch.isfinite(lse)
    loss = (out * g_out).sum().double() + torch.where(live, lse * g_lse, 0).sum().double()
    got = torch.autograd.grad(loss, leaves)

    def dense(*values):
        o, s = torch.ops.posenc.alibi_attention(*values, **options)
        return (o * g_out.double()).sum() + torch.where(live, s * g_lse.double(), 0).sum()

    wide = [t.detach().double() for t in leaves]
    want = torch.func.grad(dense, argnums=(0, 1, 2))(*wide)
    for name, a, e in zip("qkv", got, want, strict=True):
        size = max([1.0, *(w.abs().max().item() for w in want if w.numel())])
        steps = 400 + 8 * unit(q.dtype) / compute_unit(q.dtype)
        assert_near(
            a, e, steps=steps, magnitude=3 * size, skipped=8 * skipped(q.dtype), what=f"d{name}"
        )
