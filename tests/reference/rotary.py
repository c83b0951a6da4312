"""Rotation of pairs of channels."""

import math

import numpy as np

from reference.positions import normal_positions, split_axes


def rope_inv_freq(dim, base=10000.0):
    return [base ** (-2 * i / dim) for i in range(dim // 2)]


def pair(i, n, interleaved, start):
    """The two channels of pair i of n."""
    if interleaved:
        return start + 2 * i, start + 2 * i + 1
    return start + i, start + n + i


def frequency_of(inv_freq, i, b, h):
    """Frequency i for batch row b and head h, of a list (n) or an array (n), (B, 1, n), (1, H, n)."""
    f = np.asarray(inv_freq, dtype=np.float64)
    if f.ndim == 1:
        return f[i]
    return f[b if f.shape[0] > 1 else 0, h if f.shape[1] > 1 else 0, i]


def rotary_embedding(
    x,
    inv_freq,
    position_ids=None,
    offset=0,
    seq_dim=1,
    interleaved=True,
    interleaved_out=None,
    rotary_start=0,
    attention_factor=1.0,
    axes=None,
    inverse=False,
):
    if interleaved_out is None:
        interleaved_out = interleaved
    batch, time, heads = split_axes(x.shape, seq_dim)
    n = np.asarray(inv_freq).shape[-1]
    rows = 1 if batch is None else x.shape[batch]
    pos = normal_positions(
        position_ids, offset, rows, x.shape[time], 1 if axes is None else max(axes) + 1
    )
    out = x.astype(np.float64).copy()
    for index in np.ndindex(*x.shape[:-1]):
        b = 0 if batch is None else index[batch]
        h = index[heads[0]] if heads else 0
        for i in range(n):
            p = pos[b, index[time], 0 if axes is None else axes[i]]
            angle = p * frequency_of(inv_freq, i, b, h)
            c = attention_factor * math.cos(angle)
            s = attention_factor * math.sin(angle) * (-1 if inverse else 1)
            lo, hi = pair(i, n, interleaved, rotary_start)
            lo_out, hi_out = pair(i, n, interleaved_out, rotary_start)
            a, z = float(x[index][lo]), float(x[index][hi])
            out[index][lo_out] = a * c - z * s
            out[index][hi_out] = a * s + z * c
    return out


def apply_rotary(
    x,
    cos,
    sin,
    position_ids=None,
    seq_dim=2,
    interleaved=False,
    interleaved_out=None,
    rotary_start=0,
    inverse=False,
):
    if interleaved_out is None:
        interleaved_out = interleaved
    batch, time, _ = split_axes(x.shape, seq_dim)
    rows = 1 if batch is None else x.shape[batch]
    width = cos.shape[-1]
    doubled = 2 * width > x.shape[-1] - rotary_start
    n = width // 2 if doubled else width
    pos = normal_positions(position_ids, 0, rows, x.shape[time])
    out = x.astype(np.float64).copy()
    for index in np.ndindex(*x.shape[:-1]):
        b = 0 if batch is None else index[batch]
        t = index[time]
        if cos.ndim == 3:
            row = (b if cos.shape[0] > 1 else 0, t)
        else:
            row = (int(pos[b, t, 0]),)
        for i in range(n):
            column = 2 * i if doubled and interleaved else i
            c = cos[row][column]
            s = sin[row][column] * (-1 if inverse else 1)
            lo, hi = pair(i, n, interleaved, rotary_start)
            lo_out, hi_out = pair(i, n, interleaved_out, rotary_start)
            out[index][lo_out] = x[index][lo] * c - x[index][hi] * s
            out[index][hi_out] = x[index][lo] * s + x[index][hi] * c
    return out
