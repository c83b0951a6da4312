"""Encodings that are added to the embeddings."""

import math

import numpy as np

from reference.positions import normal_positions, split_axes


def sinusoidal_inv_freq(d_model, base=10000.0):
    """base^(-2i/d) for each pair of channels; an odd width has one more sine than cosines."""
    return [base ** (-2 * i / d_model) for i in range((d_model + 1) // 2)]


def encode(position, inv_freq, d_model, interleaved=True):
    """The row of one position: sin and cos in turn, or all sines before all cosines."""
    row = np.zeros(d_model)
    n_sin = (d_model + 1) // 2
    for i in range(n_sin):
        angle = position * inv_freq[i]
        row[2 * i if interleaved else i] = math.sin(angle)
        if i < d_model // 2:
            row[2 * i + 1 if interleaved else n_sin + i] = math.cos(angle)
    return row


def sinusoidal_encoding(position_ids, inv_freq, d_model, interleaved=True, dtype=None):
    ids = np.asarray(position_ids)
    out = np.zeros((*ids.shape, d_model))
    for index in np.ndindex(*ids.shape):
        out[index] = encode(float(ids[index]), inv_freq, d_model, interleaved)
    return out


def add_sinusoidal(
    x, inv_freq, position_ids=None, offset=0, seq_dim=1, interleaved=True, scale=1.0
):
    batch, time, _ = split_axes(x.shape, seq_dim)
    rows = 1 if batch is None else x.shape[batch]
    pos = normal_positions(position_ids, offset, rows, x.shape[time])
    out = np.zeros(x.shape)
    for index in np.ndindex(*x.shape[:-1]):
        p = pos[0 if batch is None else index[batch], index[time], 0]
        out[index] = scale * x[index] + encode(p, inv_freq, x.shape[-1], interleaved)
    return out


def add_positions(x, weight, position_ids=None, offset=0, seq_dim=1):
    batch, time, _ = split_axes(x.shape, seq_dim)
    rows = 1 if batch is None else x.shape[batch]
    pos = normal_positions(position_ids, offset, rows, x.shape[time])
    out = np.zeros(x.shape)
    for index in np.ndindex(*x.shape[:-1]):
        p = int(pos[0 if batch is None else index[batch], index[time], 0])
        if not 0 <= p < weight.shape[0]:
            raise IndexError(f"position {p} outside a table of {weight.shape[0]}")
        out[index] = x[index] + weight[p]
    return out


def embed_tokens(
    input_ids,
    weight,
    inv_freq,
    position_ids=None,
    offset=0,
    interleaved=True,
    scale=1.0,
    padding_idx=-1,
):
    ids = input_ids if input_ids.ndim == 2 else input_ids[None]
    pos = normal_positions(position_ids, offset, *ids.shape)
    out = np.zeros((*ids.shape, weight.shape[1]))
    for b, t in np.ndindex(*ids.shape):
        row = encode(pos[b, t, 0], inv_freq, weight.shape[1], interleaved)
        out[b, t] = scale * weight[ids[b, t]] + row
    return out.reshape(*input_ids.shape, weight.shape[1])
