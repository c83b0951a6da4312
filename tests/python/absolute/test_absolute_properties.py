"""Added encodings of random shapes, strides, dtypes and positions against the reference."""

import posenc  # noqa: F401
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st
from samples.compare import array, assert_near
from samples.strategies import dtypes, positions, seeds, strided


@st.composite
def inputs(draw, **limits):
    """(x, position_ids, options)"""
    width = draw(st.integers(1, 40))
    batch, length, heads = draw(st.integers(1, 3)), draw(st.integers(0, 9)), draw(st.integers(1, 3))
    seq_dim, shape, batch = draw(
        st.sampled_from(
            (
                (0, (length, width), 1),
                (1, (batch, length, width), batch),
                (0, (length, batch, width), batch),
                (2, (batch, heads, length, width), batch),
            )
        )
    )
    x = draw(strided(shape, draw(dtypes), draw(seeds)))
    ids, offset = draw(positions(batch, length, **limits))
    seq_dim -= draw(st.sampled_from((0, len(shape))))
    return x, ids, {"offset": offset, "seq_dim": seq_dim}


@given(inputs(), st.booleans(), st.sampled_from((1.0, 2.5, 22.627)))
def test_add_sinusoidal(call, interleaved, scale):
    x, ids, options = call
    options = {
        "inv_freq": reference.sinusoidal_inv_freq(x.shape[-1]),
        "interleaved": interleaved,
        "scale": scale,
        **options,
    }
    out = torch.ops.posenc.add_sinusoidal(x, position_ids=ids, **options)
    want = reference.add_sinusoidal(array(x), position_ids=array(ids), **options)
    phase = abs(options["offset"]) + 10
    if ids is not None and ids.numel():
        phase += ids.double().abs().max().item()
    size = 1.0 if not x.numel() else max(1.0, x.double().abs().max().item())
    steps = 4 + (2 * phase if x.dtype == torch.float64 else 0)
    assert out.dtype == x.dtype and out.shape == x.shape
    assert_near(out, want, steps=steps, magnitude=size * scale + 1)


@given(inputs(largest=15, smallest=0, integer_only=True), seeds)
def test_add_positions_and_its_gradients(call, seed):
    x, ids, options = call
    options["offset"] = options["offset"] % 5
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(20, x.shape[-1], generator=generator, dtype=torch.float64).to(x.dtype)
    x, weight = x.detach().requires_grad_(), weight.requires_grad_()
    out = torch.ops.posenc.add_positions(x, weight, ids, **options)
    want = reference.add_positions(array(x), array(weight), array(ids), **options)
    assert_near(out, want, steps=1, magnitude=10.0)
    upstream = torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out.dtype)
    grad_x, grad_weight = torch.autograd.grad(out, (x, weight), upstream)
    assert torch.equal(grad_x, upstream)
    batch, time, _ = reference.positions.split_axes(out.shape, options["seq_dim"])
    rows = 1 if batch is None else out.shape[batch]
    where = reference.normal_positions(array(ids), options["offset"], rows, out.shape[time])
    total = torch.zeros(weight.shape, dtype=torch.float64)
    count = torch.zeros(20)
    moved = upstream.double()
    for index in torch.cartesian_prod(*(torch.arange(n) for n in out.shape[:-1])).reshape(
        -1, out.dim() - 1
    ):
        b = 0 if batch is None else index[batch]
        row = int(where[b, index[time], 0])
        total[row] += moved[tuple(index)]
        count[row] += 1
    assert_near(grad_weight, total, steps=max(1.0, count.max().item()), magnitude=20.0)
