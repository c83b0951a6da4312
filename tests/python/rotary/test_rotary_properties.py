"""The rotation of random shapes, strides, layouts, dtypes and positions against the reference."""

import posenc  # noqa: F401
import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from samples.compare import array, assert_near, assert_same
from samples.strategies import dtypes, positions, seeds, strided


@st.composite
def axis_positions(draw, axes, batch, length):
    """(A, B, L) or (A, 1, L), or one of the forms that every axis reads alike; and an offset."""
    if draw(st.booleans()):
        return draw(positions(batch, length))
    rows = draw(st.sampled_from((1, batch)))
    number = st.integers(-(2**20), 2**20)
    size = (max(axes) + 1) * rows * length
    values = draw(st.lists(number, min_size=size, max_size=size))
    ids = torch.tensor(values, dtype=torch.int64).reshape(max(axes) + 1, rows, length)
    return ids, draw(st.integers(-50, 5000))


@st.composite
def turns(draw, n, start, batch, length):
    """position_ids and every option that does not depend on the shape."""
    axes = None
    if draw(st.integers(0, 3)) == 0:
        axes = draw(st.lists(st.integers(0, 2), min_size=n, max_size=n))
        ids, offset = draw(axis_positions(axes, batch, length))
    else:
        ids, offset = draw(positions(batch, length))
    base = draw(st.sampled_from((100.0, 1e4, 5e5)))
    return ids, {
        "inv_freq": reference.rope_inv_freq(2 * n, base),
        "offset": offset,
        "interleaved": draw(st.booleans()),
        "interleaved_out": draw(st.sampled_from((None, True, False))),
        "rotary_start": start,
        "attention_factor": draw(st.sampled_from((1.0, 1.346574, 0.5))),
        "axes": axes,
        "inverse": draw(st.booleans()),
    }


def shape_of(rank, seq_dim, batch, length, heads, width):
    if rank == 2:
        return (length, width)
    if rank == 3:
        return (length, batch, width) if seq_dim == 0 else (batch, length, width)
    middle = {0: (length, batch, heads), 1: (batch, length, heads), 2: (batch, heads, length)}
    return (*middle[seq_dim], width)


@st.composite
def calls(draw, tensors=1):
    """x (or several that turn alike, of other heads, width and memory), position_ids, options."""
    n = draw(st.integers(1, 20))
    start = draw(st.integers(0, 3))
    rank = draw(st.integers(2, 4))
    batch, length = draw(st.integers(1, 3)), draw(st.integers(0, 9))
    if rank == 2:
        seq_dim, batch = 0, 1
    else:
        seq_dim = draw(st.sampled_from((0, 1) if rank == 3 else (0, 1, 2)))
    made = []
    for _ in range(tensors):
        width = start + 2 * n + draw(st.integers(0, 3))
        shape = shape_of(rank, seq_dim, batch, length, draw(st.integers(1, 3)), width)
        made.append(draw(strided(shape, draw(dtypes), draw(seeds))))
    ids, options = draw(turns(n, start, batch, length))
    options["seq_dim"] = draw(st.sampled_from((seq_dim, seq_dim - rank)))
    return (*made, ids, options)


@st.composite
def packed_calls(draw):
    """qkv in both layouts, position_ids, options."""
    n, start = draw(st.integers(1, 20)), draw(st.integers(0, 3))
    width = start + 2 * n + draw(st.integers(0, 3))
    batch, length = draw(st.integers(1, 3)), draw(st.integers(0, 9))
    heads, kv_heads = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    if draw(st.booleans()):
        shape, kv_heads = (batch, length, 3, heads, width), heads
    else:
        shape = (batch, length, heads + 2 * kv_heads, width)
    qkv = draw(strided(shape, draw(dtypes), draw(seeds)))
    ids, options = draw(turns(n, start, batch, length))
    return qkv, ids, {**options, "n_heads": heads, "n_kv_heads": kv_heads}


def owns_its_memory(x):
    return not any(s == 0 and n > 1 for s, n in zip(x.stride(), x.shape, strict=True))


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
    if owns_its_memory(own):
        torch.ops.posenc.rotary_embedding_(own, position_ids=ids, **options)
        assert_same(own, want)


@given(calls(tensors=2))
def test_query_and_key_in_one_call(call):
    """Values, the bits of two calls, and the call in place."""
    *qk, ids, options = call
    out = torch.ops.posenc.rotary_embedding_qk(*qk, position_ids=ids, **options)
    for x, y in zip(qk, out, strict=True):
        want = reference.rotary_embedding(array(x), position_ids=array(ids), **options)
        steps, magnitude = bound(x, ids, options)
        assert y.dtype == x.dtype
        assert_near(y, want, steps=steps, magnitude=magnitude)
        assert_same(y, torch.ops.posenc.rotary_embedding(x, position_ids=ids, **options))
    own = [x.clone(memory_format=torch.preserve_format) for x in qk]
    if all(owns_its_memory(x) for x in own):
        torch.ops.posenc.rotary_embedding_qk_(*own, position_ids=ids, **options)
        assert_same(own, out)


@given(calls(tensors=2))
def test_gradient_of_query_and_key(call):
    """That of two calls, bit for bit."""
    *qk, ids, options = call
    leaves = [x.detach().requires_grad_() for x in qk]
    out = torch.ops.posenc.rotary_embedding_qk(*leaves, position_ids=ids, **options)
    upstream = [torch.randn(o.shape, dtype=torch.float64).to(o.dtype) for o in out]
    got = torch.autograd.grad(out, leaves, upstream)
    alone = [torch.ops.posenc.rotary_embedding(x, position_ids=ids, **options) for x in leaves]
    assert_same(got, torch.autograd.grad(alone, leaves, upstream))


@given(packed_calls())
def test_packed(call):
    """Values of q and k, the bits of v, the call in place, and the gradient."""
    qkv, ids, options = call
    out = torch.ops.posenc.rotary_embedding_qkv(qkv, position_ids=ids, **options)
    want = reference.rotary_embedding_qkv(array(qkv), position_ids=array(ids), **options)
    steps, magnitude = bound(qkv, ids, options)
    assert out.dtype == qkv.dtype
    assert_near(out, want, steps=steps, magnitude=magnitude)
    rotated = 2 if qkv.dim() == 5 else options["n_heads"] + options["n_kv_heads"]
    assert_same(out[:, :, rotated:], qkv[:, :, rotated:])
    own = qkv.clone(memory_format=torch.preserve_format)
    if owns_its_memory(own):
        torch.ops.posenc.rotary_embedding_qkv_(own, position_ids=ids, **options)
        assert_same(own, out)
    leaf = qkv.detach().requires_grad_()
    upstream = torch.randn(qkv.shape, dtype=torch.float64).to(qkv.dtype)
    again = torch.ops.posenc.rotary_embedding_qkv(leaf, position_ids=ids, **options)
    grad = torch.autograd.grad(again, leaf, upstream)[0]
    back = dict(options, inverse=not options["inverse"])
    written = options["interleaved_out"]
    if written is not None:
        back["interleaved"], back["interleaved_out"] = written, options["interleaved"]
    want = reference.rotary_embedding_qkv(array(upstream), position_ids=array(ids), **back)
    steps, magnitude = bound(upstream, ids, options)
    assert_near(grad, want, steps=steps, magnitude=magnitude)


@given(calls(), st.sampled_from((100.0, 1e4, 5e5)), st.integers(-5000, 5000))
def test_cached_keys_move(call, base, delta):
    """Rotated keys moved to other frequencies, and to other positions, are keys rotated there."""
    x, ids, options = call
    x = x.double()
    options.update(interleaved_out=None, inverse=False)
    cached = torch.ops.posenc.rotary_embedding(x, position_ids=ids, **options)
    layout = {k: options[k] for k in ("seq_dim", "interleaved", "rotary_start")}
    other = reference.rope_inv_freq(2 * len(options["inv_freq"]), base)
    moved = torch.ops.posenc.re_rotate(
        cached, options["inv_freq"], other, ids, options["offset"], axes=options["axes"], **layout
    )
    steps, magnitude = bound(x, ids, options)
    want = torch.ops.posenc.rotary_embedding(x, position_ids=ids, **{**options, "inv_freq": other})
    assert_near(moved, want, steps=3 * steps, magnitude=magnitude)
    moved = torch.ops.posenc.shift(cached, torch.tensor([delta]), options["inv_freq"], **layout)
    options["offset"] += delta
    want = torch.ops.posenc.rotary_embedding(x, position_ids=ids, **options)
    assert_near(moved, want, steps=3 * (steps + 2 * abs(delta)), magnitude=magnitude)


@pytest.mark.parametrize("interleaved", (True, False))
def test_fp32_is_within_1e_6_of_fp64_up_to_two_to_the_24(interleaved):
    """x of magnitude 1, whole and real positions, widths of the vector loops and of their tail."""
    generator = torch.Generator().manual_seed(7)
    for width, base in ((64, 1e4), (128, 5e5), (6, 1e4)):
        freq = reference.rope_inv_freq(width, base)
        ids = torch.randint(0, 2**24 + 1, (120,), generator=generator).double()
        ids[:6] = torch.tensor([2**24, 2**24 - 1, 2**23 + 1, 63, 64, 0])
        ids[100:] += torch.rand(20, generator=generator, dtype=torch.float64)
        x = torch.rand((1, 120, 1, width), generator=generator) * 2 - 1
        x[:, ::7] = x[:, ::7].sign()
        out = torch.ops.posenc.rotary_embedding(x, freq, ids, interleaved=interleaved)
        want = reference.rotary_embedding(
            array(x), freq, position_ids=array(ids), interleaved=interleaved
        )
        assert abs(array(out) - want).max() <= 1e-6
        whole = ids.long()
        for got in (
            torch.ops.posenc.rotary_embedding(x, freq, whole, interleaved=interleaved)[:, :100],
            torch.cat(
                [
                    torch.ops.posenc.rotary_embedding(
                        x[:, i : i + 1], freq, offset=int(p), interleaved=interleaved
                    )
                    for i, p in enumerate(whole[:100])
                ],
                1,
            ),
        ):
            assert abs(array(got) - want[:, :100]).max() <= 1e-6
