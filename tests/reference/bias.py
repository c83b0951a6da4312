"""ALiBi: what is added to the scores."""

import math

import numpy as np


def alibi_slopes(n_heads, bias_max=8.0, head_start=0, total_heads=None, geometric=False):
    """2^(-b(h+1)/n) for the first n = 2^floor(log2 H) heads, then every second of the next."""
    total = n_heads if total_heads is None else total_heads
    n = total if geometric else 2 ** math.floor(math.log2(total))
    slopes = []
    for h in range(total):
        if h < n:
            slopes.append(2.0 ** (-bias_max * (h + 1) / n))
        else:
            slopes.append(2.0 ** (-bias_max * (2 * (h - n) + 1) / (2 * n)))
    return slopes[head_start : head_start + n_heads]


def slope_of(slopes, b, h):
    """Slope of head h in batch row b, of (H) or (B, H)."""
    s = np.asarray(slopes, dtype=np.float64)
    return s[h] if s.ndim == 1 else s[b if s.shape[0] > 1 else 0, h]


def alibi_bias(slopes, q_len, k_len, offset=None, is_causal=False, dtype=None, device=None):
    slopes = np.asarray(slopes, dtype=np.float64)
    offset = k_len - q_len if offset is None else offset
    out = np.zeros((*slopes.shape, q_len, k_len))
    for index in np.ndindex(*out.shape):
        *head, i, j = index
        out[index] = -slopes[tuple(head)] * abs(i + offset - j)
        if is_causal and j > i + offset:
            out[index] = -math.inf
    return out


def softmax_row(scores):
    """(weights, log-sum-exp); no allowed key gives zeros and -inf."""
    top = max(scores, default=-math.inf)
    if top == -math.inf:
        return np.zeros(len(scores)), -math.inf
    e = np.array([math.exp(s - top) for s in scores])
    return e / e.sum(), top + math.log(e.sum())


def alibi_softmax(scores, slopes, mask=None, is_causal=False, scale=1.0, offset=None):
    B, H, L, S = scores.shape
    offset = S - L if offset is None else offset
    keep = np.ones(scores.shape, bool) if mask is None else np.broadcast_to(mask, scores.shape)
    out = np.zeros(scores.shape)
    for b, h, i in np.ndindex(B, H, L):
        row = []
        for j in range(S):
            allowed = keep[b, h, i, j] and not (is_causal and j > i + offset)
            bias = -slope_of(slopes, b, h) * abs(i + offset - j)
            row.append(scale * scores[b, h, i, j] + bias if allowed else -math.inf)
        out[b, h, i], _ = softmax_row(row)
    return out
