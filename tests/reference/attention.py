"""Attention: a weighted mean of values, and the merging of partial ones."""

import math

import numpy as np

from reference.bias import slope_of, softmax_row


def dense_attention(q, k, v, bias_of, keep_of, scale=None):
    """(out, lse) with the bias and the permission of (b, h, i, j) given as functions."""
    B, H, L, D = q.shape
    S, group = k.shape[2], H // k.shape[1]
    scale = 1 / math.sqrt(D) if scale is None else scale
    out = np.zeros((B, H, L, v.shape[-1]))
    lse = np.zeros((B, H, L))
    for b, h, i in np.ndindex(B, H, L):
        row = []
        for j in range(S):
            if keep_of(b, h, i, j):
                dot = float(np.dot(q[b, h, i], k[b, h // group, j]))
                row.append(scale * dot + bias_of(b, h, i, j))
            else:
                row.append(-math.inf)
        weights, lse[b, h, i] = softmax_row(row)
        for j in range(S):
            if row[j] != -math.inf:
                out[b, h, i] += weights[j] * v[b, h // group, j]
    return out, lse


def alibi_attention(
    q,
    k,
    v,
    slopes,
    mask=None,
    is_causal=False,
    scale=None,
    offset=None,
    q_positions=None,
    k_positions=None,
    key_norms=None,
):
    B, H, L, _ = q.shape
    S = k.shape[2]
    offset = S - L if offset is None else offset
    keep = None if mask is None else np.broadcast_to(mask, (B, H, L, S))

    def at(positions, b, t, default):
        if positions is None:
            return default
        row = positions if positions.ndim == 1 else positions[b if positions.shape[0] > 1 else 0]
        return float(row[t])

    def distance(b, i, j):
        return at(q_positions, b, i, i + offset) - at(k_positions, b, j, j)

    def bias_of(b, h, i, j):
        return -slope_of(slopes, b, h) * abs(distance(b, i, j))

    def keep_of(b, h, i, j):
        if keep is not None and not keep[b, h, i, j]:
            return False
        return not is_causal or distance(b, i, j) >= 0

    return dense_attention(q, k, v, bias_of, keep_of, scale)


def merge_attention(out1, lse1, out2, lse2):
    out, lse = np.zeros(out1.shape), np.zeros(lse1.shape)
    for index in np.ndindex(*lse1.shape):
        a, b = lse1[index], lse2[index]
        top = max(a, b)
        if top == -math.inf:
            lse[index] = -math.inf
            continue
        wa, wb = math.exp(a - top), math.exp(b - top)
        lse[index] = top + math.log(wa + wb)
        out[index] = (wa * out1[index] + wb * out2[index]) / (wa + wb)
    return out, lse
