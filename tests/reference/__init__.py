"""The encodings in float64, by loops over numpy arrays: slow, obvious, written from the formulas.

Every function has the name, the argument names and the defaults of the operator that it judges, so
a test calls both with the same dictionary. Nothing here imports torch or posenc.
"""

from reference.absolute import (
    add_positions,
    add_sinusoidal,
    embed_tokens,
    sinusoidal_encoding,
    sinusoidal_inv_freq,
)
from reference.attention import alibi_attention, dense_attention, merge_attention
from reference.bias import alibi_bias, alibi_slopes, alibi_softmax
from reference.grids import axial_rotary_embedding, mixed_rotary_embedding, rope_axes
from reference.positions import (
    normal_positions,
    positions_for_context_parallel,
    positions_from_cu_seqlens,
    positions_from_documents,
    positions_from_mask,
    positions_from_offsets,
)
from reference.relatives import query_temperature, xpos_embedding, xpos_zeta
from reference.rotary import (
    apply_rotary,
    convert_rope_weights,
    re_rotate,
    rope_inv_freq,
    rotary_embedding,
    rotary_embedding_qk,
    rotary_embedding_qkv,
    shift,
)

__all__ = [
    "add_positions",
    "add_sinusoidal",
    "alibi_attention",
    "alibi_bias",
    "alibi_slopes",
    "alibi_softmax",
    "apply_rotary",
    "axial_rotary_embedding",
    "convert_rope_weights",
    "dense_attention",
    "embed_tokens",
    "merge_attention",
    "mixed_rotary_embedding",
    "normal_positions",
    "positions_for_context_parallel",
    "positions_from_cu_seqlens",
    "positions_from_documents",
    "positions_from_mask",
    "positions_from_offsets",
    "query_temperature",
    "re_rotate",
    "rope_axes",
    "rope_inv_freq",
    "rotary_embedding",
    "rotary_embedding_qk",
    "rotary_embedding_qkv",
    "shift",
    "sinusoidal_encoding",
    "sinusoidal_inv_freq",
    "xpos_embedding",
    "xpos_zeta",
]
