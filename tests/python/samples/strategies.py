"""Hypothesis strategies: shapes, layouts in memory, dtypes and positions of tensors."""

import torch
from hypothesis import strategies as st

from samples.compare import FLOATS

dtypes = st.sampled_from(FLOATS)
seeds = st.integers(0, 2**31 - 1)


@st.composite
def strided(draw, shape, dtype, seed):
    """Random numbers of a shape, in memory of any order, with gaps, offsets or expanded axes."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    form = draw(st.sampled_from(("plain", "permuted", "gaps", "inner step", "expanded")))
    if form == "permuted":
        order = draw(st.permutations(range(len(shape))))
        inverse = [order.index(axis) for axis in range(len(shape))]
        return values.permute(order).contiguous().permute(inverse)
    if form == "gaps":
        wide = torch.full((*shape[:-1], shape[-1] + 3), 7.0, dtype=dtype)
        view = wide[..., 1:-2]
        return view.copy_(values)
    if form == "inner step":
        wide = torch.full((*shape[:-1], 2 * shape[-1]), 7.0, dtype=dtype)
        view = wide[..., ::2]
        return view.copy_(values)
    if form == "expanded":
        axis = draw(st.integers(0, len(shape) - 2))
        if shape[axis]:
            return values.narrow(axis, 0, 1).expand(shape)
    return values


@st.composite
def positions(draw, batch, length, largest=2**20, integer_only=False, smallest=None):
    """(position_ids or None, offset)"""
    smallest = -largest if smallest is None else smallest
    offset = draw(st.integers(0 if smallest == 0 else -50, min(largest, 5000)))
    form = draw(st.sampled_from(("range", "row", "batch")))
    if form == "range":
        return None, offset
    rows = draw(st.sampled_from((1, batch))) if form == "batch" else 1
    number = st.integers(smallest, largest)
    if not integer_only and draw(st.booleans()):
        number = st.floats(smallest, largest, width=32)
    values = draw(st.lists(number, min_size=rows * length, max_size=rows * length))
    real = any(isinstance(v, float) for v in values)
    dtype = torch.float64 if real else draw(st.sampled_from((torch.int64, torch.int32)))
    ids = torch.tensor(values, dtype=dtype).reshape(rows, length)
    return (ids if form == "batch" else ids[0]), offset
