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
    """Frequency i for batch row b and head h, of (n), (B, 1, n) or (1, H, n)."""
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


def rotary_embedding_qk(q, k, inv_freq, **arguments):
    return rotary_embedding(q, inv_freq, **arguments), rotary_embedding(k, inv_freq, **arguments)


def rotary_embedding_qkv(qkv, inv_freq, n_heads, n_kv_heads, **arguments):
    """Rotates all, and puts v back."""
    rotated = 2 if qkv.ndim == 5 else n_heads + n_kv_heads
    out = rotary_embedding(qkv, inv_freq, **arguments)
    out[:, :, rotated:] = qkv[:, :, rotated:]
    return out


def re_rotate(
    keys,
    old_inv_freq,
    new_inv_freq,
    position_ids=None,
    offset=0,
    seq_dim=1,
    interleaved=True,
    rotary_start=0,
    old_attention_factor=1.0,
    new_attention_factor=1.0,
    axes=None,
    inverse=False,
):
    """Back to no rotation by the old frequencies, then forth by the new."""
    shared = {
        "position_ids": position_ids,
        "offset": offset,
        "seq_dim": seq_dim,
        "interleaved": interleaved,
        "rotary_start": rotary_start,
        "axes": axes,
    }
    plain = rotary_embedding(
        keys, old_inv_freq, attention_factor=1 / old_attention_factor, inverse=not inverse, **shared
    )
    return rotary_embedding(
        plain, new_inv_freq, attention_factor=new_attention_factor, inverse=inverse, **shared
    )


def shift(keys, delta, inv_freq, seq_dim=1, interleaved=True, rotary_start=0, inverse=False):
    """Every key turned by its own delta."""
    batch, time, _ = split_axes(keys.shape, seq_dim)
    rows = 1 if batch is None else keys.shape[batch]
    positions = np.zeros((rows, keys.shape[time]))
    for b in range(rows):
        for t in range(keys.shape[time]):
            by = np.asarray(delta)
            if by.ndim > 0:
                by = by[b if by.shape[0] > 1 else 0]
            if by.ndim > 0:
                by = by[t if by.shape[0] > 1 else 0]
            positions[b, t] = by
    return rotary_embedding(
        keys,
        inv_freq,
        positions,
        seq_dim=seq_dim,
        interleaved=interleaved,
        rotary_start=rotary_start,
        inverse=inverse,
    )


def convert_rope_weights(weight, n_heads, to, rotary_dim=None, rotary_start=0):
    """Row after row: channel i of pair p goes where the other layout has it."""
    head_dim = weight.shape[0] // n_heads
    n = (head_dim - rotary_start if rotary_dim is None else rotary_dim) // 2
    out = weight.copy()
    for head in range(0, weight.shape[0], head_dim):
        for i in range(n):
            source = pair(i, n, to == "half", rotary_start)
            target = pair(i, n, to != "half", rotary_start)
            for a, b in zip(source, target, strict=True):
                out[head + b] = weight[head + a]
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
    doubled=False,
):
    """The rotation by given numbers; inverse is the transposed map.

    Doubled tables have a number for each channel, laid out as the input.
    """
    if interleaved_out is None:
        interleaved_out = interleaved
    batch, time, _ = split_axes(x.shape, seq_dim)
    rows = 1 if batch is None else x.shape[batch]
    n = cos.shape[-1] // (2 if doubled else 1)
    pos = normal_positions(position_ids, 0, rows, x.shape[time])
    out = x.astype(np.float64).copy()
    for index in np.ndindex(*x.shape[:-1]):
        b = 0 if batch is None else index[batch]
        t = index[time]
        gathered = (b if cos.shape[0] > 1 else 0, t)
        row = gathered if cos.ndim == 3 else int(pos[b, t, 0])
        for i in range(n):
            first, second = pair(i, n, interleaved, 0) if doubled else (i, i)
            c1, c2 = cos[row][first], cos[row][second]
            s1, s2 = sin[row][first], sin[row][second]
            if inverse:
                s1, s2 = -s2, -s1
            lo, hi = pair(i, n, interleaved, rotary_start)
            lo_out, hi_out = pair(i, n, interleaved_out, rotary_start)
            out[index][lo_out] = x[index][lo] * c1 - x[index][hi] * s1
            out[index][hi_out] = x[index][hi] * c2 + x[index][lo] * s2
    return out
