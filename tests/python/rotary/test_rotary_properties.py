"""The rotation of random shapes, strides, layouts, dtypes and positions against the reference."""

import posenc  # noqa: F401
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from samples.compare import array, assert_near, assert_same
from samples.strategies import dtypes, positions, seeds, strided


@st.composite
def calls(draw):
    n = draw(st.integers(1, 20))
    start = draw(st.integers(0, 3))
    width = start + 2 * n + draw(st.integers(0, 3))
    rank = draw(st.integers(2, 4))
    batch, length, heads = (
        draw(st.integers(1, 3)),
        draw(st.integers(0, 9)),
        draw(st.integers(1, 3)),
    )
    if rank == 2:
        shape, seq_dim, batch = (length, width), 0, 1
    elif rank == 3:
        seq_dim = draw(st.sampled_from((0, 1)))
        shape = (length, batch, width) if seq_dim == 0 else (batch, length, width)
    else:
        seq_dim = draw(st.sampled_from((0, 1, 2)))
        middle = {0: (length, batch, heads), 1: (batch, length, heads), 2: (batch, heads, length)}
        shape = (*middle[seq_dim], width)
    dtype = draw(dtypes)
    x = draw(strided(shape, dtype, draw(seeds)))
    ids, offset = draw(positions(batch, length))
    base = draw(st.sampled_from((100.0, 1e4, 5e5)))
    options = {
        "inv_freq": reference.rope_inv_freq(2 * n, base),
        "offset": offset,
        "seq_dim": draw(st.sampled_from((seq_dim, seq_dim - rank))),
        "interleaved": draw(st.booleans()),
        "interleaved_out": draw(st.sampled_from((None, True, False))),
        "rotary_start": start,
        "attention_factor": draw(st.sampled_from((1.0, 1.346574, 0.5))),
        "inverse": draw(st.booleans()),
    }
    return x, ids, options


def bound(x, ids, options):
    """(roundings inside, magnitude) of a call"""
    size = 1.0 if not x.numel() else max(1.0, x.detach().double().abs().max().item())
    phase = abs(options["offset"]) + 10
    if ids is not None and ids.numel():
        phase += ids.double().abs().max().item()
    steps = 6 + (2 * phase if x.dtype == torch.float64 else 0)
    return steps, 1.5 * size * max(1.0, options["attention_factor"])


@given(calls())
def test_value(call):
    x, ids, options = call
    out = torch.ops.posenc.rotary_embedding(x, position_ids=ids, **options)
    want = reference.rotary_embedding(array(x), position_ids=array(ids), **options)
    steps, magnitude = bound(x, ids, options)
    assert out.dtype == x.dtype and out.shape == x.shape
    assert_near(out, want, steps=steps, magnitude=magnitude)


@given(calls(), st.randoms(use_true_random=False))
def test_gradient(call, random):
    """The gradient is the transposed rotation, whatever the memory of x and of the gradient."""
    x, ids, options = call
    x = x.detach().requires_grad_()
    out = torch.ops.posenc.rotary_embedding(x, position_ids=ids, **options)
    upstream = torch.randn(out.shape, dtype=torch.float64).to(out.dtype)
    if random.random() < 0.5 and out.dim() > 2:
        upstream = upstream.transpose(0, 1).contiguous().transpose(0, 1)
    grad = torch.autograd.grad(out, x, upstream)[0]
    back = dict(options, inverse=not options["inverse"])
    written = options["interleaved_out"]
    if written is not None:
        back["interleaved"], back["interleaved_out"] = written, options["interleaved"]
    want = reference.rotary_embedding(array(upstream), position_ids=array(ids), **back)
    steps, magnitude = bound(upstream, ids, options)
    assert_near(grad, want, steps=steps, magnitude=magnitude)


@given(calls())
def test_in_place_and_contiguous_give_the_same_bits(call):
    x, ids, options = call
    want = torch.ops.posenc.rotary_embedding(x.contiguous(), position_ids=ids, **options)
    assert_same(torch.ops.posenc.rotary_embedding(x, position_ids=ids, **options), want)
    own = x.clone(memory_format=torch.preserve_format)
    if not any(s == 0 and n > 1 for s, n in zip(own.stride(), own.shape, strict=True)):
        torch.ops.posenc.rotary_embedding_(own, position_ids=ids, **options)
        assert_same(own, want)
