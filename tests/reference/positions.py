"""Where a token stands."""

import itertools

import numpy as np


def split_axes(shape, seq_dim):
    """(batch axis or None, time axis, head axes) of an input whose last axis holds channels."""
    rank = len(shape)
    time = seq_dim % rank
    if rank == 2:
        return None, time, []
    batch = 1 if time == 0 else 0
    heads = [axis for axis in range(rank - 1) if axis not in (batch, time)]
    return batch, time, heads


def normal_positions(position_ids, offset, batch, length, axes=1):
    """Positions as (batch, length, axes), from any of the accepted forms."""
    out = np.zeros((batch, length, axes))
    for b in range(batch):
        for t in range(length):
            for a in range(axes):
                if position_ids is None:
                    p = t
                else:
                    ids = np.asarray(position_ids)
                    if ids.ndim == 3:
                        ids = ids[a]
                    if ids.ndim == 2:
                        ids = ids[b if ids.shape[0] > 1 else 0]
                    p = ids[t]
                out[b, t, a] = float(p) + offset
    return out


def positions_from_mask(mask):
    """Positions counted from the real tokens (nonzero) of each row; padding before them is at 0."""
    mask = np.asarray(mask)
    out = np.zeros(mask.shape, dtype=np.int64)
    for row in np.ndindex(*mask.shape[:-1]):
        seen = 0
        for t in range(mask.shape[-1]):
            seen += bool(mask[row][t])
            out[row][t] = max(seen - 1, 0)
    return out


def positions_from_cu_seqlens(cu_seqlens, total):
    """Positions of packed sequences, which begin and end at the numbers of cu_seqlens."""
    out = np.zeros(total, dtype=np.int64)
    for begin, end in itertools.pairwise(cu_seqlens):
        for t in range(begin, end):
            out[t] = t - begin
    return out


def positions_from_documents(document_ids):
    """Positions that start again with each document of a row."""
    ids = np.asarray(document_ids)
    out = np.zeros(ids.shape, dtype=np.int64)
    for row in np.ndindex(*ids.shape[:-1]):
        for t in range(1, ids.shape[-1]):
            same = ids[row][t] == ids[row][t - 1]
            out[row][t] = out[row][t - 1] + 1 if same else 0
    return out


def positions_from_offsets(offsets, length):
    """Row b starts at offsets[b]."""
    return np.array([[int(start) + t for t in range(length)] for start in offsets], dtype=np.int64)


def positions_for_context_parallel(length, rank, world_size, zigzag=False):
    """Positions of one rank's slice; zigzag gives each rank one early and one late piece."""
    if not zigzag:
        size = length // world_size
        return np.arange(rank * size, (rank + 1) * size)
    size = length // (2 * world_size)
    early, late = rank, 2 * world_size - 1 - rank
    return np.concatenate([np.arange(piece * size, (piece + 1) * size) for piece in (early, late)])
