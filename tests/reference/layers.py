"""Whole layers, from their learned arrays: {parameter name: array}."""

import numpy as np

from reference.absolute import add_positions, add_sinusoidal, embed_tokens, sinusoidal_inv_freq
from reference.attention import dense_attention
from reference.bias import alibi_slopes
from reference.grids import axial_turns, middle_rows, mixed_rotary_embedding, turn
from reference.positions import normal_positions, positions_from_mask
from reference.relatives import query_temperature, xpos_embedding
from reference.rotary import rope_inv_freq, rotary_embedding


def sinusoidal_layer(state, x, d_model, base=10000.0, **arguments):
    return add_sinusoidal(x, sinusoidal_inv_freq(d_model, base), **arguments)


def learned_layer(state, x, **arguments):
    return add_positions(x, state["positional_embeddings.weight"], **arguments)


def embedding_layer(state, input_ids, **arguments):
    weight = state["token_embedding.weight"]
    width = weight.shape[1]
    return embed_tokens(
        input_ids, weight, sinusoidal_inv_freq(width), scale=width**0.5, **arguments
    )


def rotary_layer(state, x, rotary_dim, base=10000.0, **arguments):
    return rotary_embedding(x, rope_inv_freq(rotary_dim, base), **arguments)


def axial_layer(state, x, position_ids, arrangement, base=10000.0, scale=1.0, offset=0, seq_dim=1):
    out = x.astype(np.float64).copy()
    for index, _, positions in middle_rows(x, position_ids, seq_dim, 0, 0):
        for low, high, axis, frequency in axial_turns(arrangement, x.shape[-1], base):
            turn(out[index], low, high, (positions[axis] + offset) * scale * frequency)
    return out


def mixed_layer(state, x, position_ids, **arguments):
    return mixed_rotary_embedding(x, state["freqs"], position_ids, **arguments)


def learned_rotary_layer(state, x, rotary_dim, base=10000.0, **arguments):
    """Frequencies f exp(alpha), or trained themselves, for all heads or for each."""
    if "alpha" in state:
        frequencies = np.array(rope_inv_freq(rotary_dim, base)) * np.exp(state["alpha"])
    else:
        frequencies = state["freqs"]
    if frequencies.ndim == 2:
        frequencies = frequencies[None]
    return rotary_embedding(x, frequencies, **arguments)


def xpos_layer(state, x, rotary_dim, base=10000.0, **arguments):
    return xpos_embedding(x, rope_inv_freq(rotary_dim, base), **arguments)


def temperature_layer(state, x, **arguments):
    return query_temperature(x, **arguments)


def linear(state, name, x):
    out = x @ state[f"{name}.weight"].T
    return out + state[f"{name}.bias"] if f"{name}.bias" in state else out


def attention_layer(
    state,
    x,
    n_heads,
    n_kv_heads=None,
    is_causal=False,
    kind="rope",
    rotary_dim=None,
    base=10000.0,
    interleaved=True,
    mask=None,
    attn_bias=None,
    key_padding_mask=None,
    position_ids=None,
    offset=0,
):
    """Self-attention with rotated q and k (kind "rope") or with a distance bias (kind "alibi")."""
    B, L, width = x.shape
    n_kv_heads = n_kv_heads or n_heads
    head_dim = width // n_heads

    def heads(name, n):
        return linear(state, name, x).reshape(B, L, n, head_dim)

    q, k, v = (
        heads("query_proj", n_heads),
        heads("key_proj", n_kv_heads),
        heads("value_proj", n_kv_heads),
    )
    if position_ids is None and key_padding_mask is not None:
        position_ids = positions_from_mask(key_padding_mask)
    positions = normal_positions(position_ids, offset, B, L)[..., 0]
    if kind == "rope":
        frequencies = rope_inv_freq(rotary_dim or head_dim, base)
        q, k = (
            rotary_embedding(t, frequencies, positions, interleaved=interleaved) for t in (q, k)
        )
    slopes = alibi_slopes(n_heads) if kind == "alibi" else [0.0] * n_heads
    shape = (B, n_heads, L, L)
    allowed = np.ones(shape, bool) if mask is None else np.broadcast_to(mask != 0, shape)
    added = np.zeros(shape) if attn_bias is None else np.broadcast_to(attn_bias, shape)

    def keep_of(b, h, i, j):
        if key_padding_mask is not None and not key_padding_mask[b, j]:
            return False
        return allowed[b, h, i, j] and (not is_causal or j <= i)

    def bias_of(b, h, i, j):
        return added[b, h, i, j] - slopes[h] * abs(positions[b, i] - positions[b, j])

    out, _ = dense_attention(*(t.transpose(0, 2, 1, 3) for t in (q, k, v)), bias_of, keep_of)
    return linear(state, "out_proj", out.transpose(0, 2, 1, 3).reshape(B, L, width))
