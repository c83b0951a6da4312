"""Relatives of the rotation: xPos, the temperature of queries."""

import math

import numpy as np

from reference.positions import normal_positions, split_axes
from reference.rotary import rotary_embedding


def xpos_zeta(i, dim, gamma=0.4):
    return (2 * i + gamma * dim) / ((1 + gamma) * dim)


def xpos_embedding(
    x,
    inv_freq,
    position_ids=None,
    offset=0,
    seq_dim=1,
    interleaved=True,
    rotary_start=0,
    scale_base=512.0,
    centre=0.0,
    gamma=0.4,
    is_key=False,
):
    """The rotation, then each pair times zeta ** (+-(position - centre) / scale_base)."""
    out = rotary_embedding(
        x, inv_freq, position_ids, offset, seq_dim, interleaved, rotary_start=rotary_start
    )
    n = len(inv_freq)
    batch, time, _ = split_axes(x.shape, seq_dim)
    rows = 1 if batch is None else x.shape[batch]
    positions = normal_positions(position_ids, offset, rows, x.shape[time])
    for index in np.ndindex(*x.shape[:-1]):
        p = positions[0 if batch is None else index[batch], index[time], 0]
        for i in range(n):
            power = (p - centre) / scale_base * (-1 if is_key else 1)
            scale = xpos_zeta(i, 2 * n, gamma) ** power
            channels = (2 * i, 2 * i + 1) if interleaved else (i, n + i)
            for channel in channels:
                out[index][rotary_start + channel] *= scale
    return out


def query_temperature(q, beta, floor_scale, position_ids=None, offset=0, seq_dim=1, shift=0.0):
    """q times 1 + beta ln(1 + floor((p + shift) / floor_scale)), which is 1 before floor_scale."""
    out = q.astype(np.float64).copy()
    batch, time, _ = split_axes(q.shape, seq_dim)
    rows = 1 if batch is None else q.shape[batch]
    positions = normal_positions(position_ids, offset, rows, q.shape[time])
    for index in np.ndindex(*q.shape[:-1]):
        p = positions[0 if batch is None else index[batch], index[time], 0]
        step = max(0, math.floor((p + shift) / floor_scale))
        out[index] *= 1 + beta * math.log(1 + step)
    return out
