"""Every operator with its defaults.

Shapes: B batch, L query length, S key length, H heads, D head dimension, n frequencies.
Examples take ``import torch, posenc`` and ``import posenc.functional as P`` for granted.

All functions work inside ``torch.jit.script``, ``torch.compile(fullgraph=True)`` and
``torch.export``, under ``torch.func`` transforms, forward-mode AD and autocast.

Errors come from the operators: ``ValueError`` for shapes and values, ``TypeError`` for dtypes,
``IndexError`` for positions outside a table. Each names the operator, what it expected, what came.
"""

from .absolute import (
    add_positional_encoding,
    add_positions,
    add_sinusoidal,
    embed_tokens,
    get_positional_encoding,
    sinusoidal_encoding,
)
from .attention import (
    alibi_attention,
    merge_attention,
)
from .bias import (
    alibi_bias,
    alibi_softmax,
)
from .cached_keys import (
    re_rotate,
    shift,
)
from .frequencies import (
    alibi_slopes,
    rope_inv_freq,
    sinusoidal_inv_freq,
)
from .grids import (
    augment_coordinates,
    axial_rotary_embedding,
    grid_coordinates,
    mixed_rotary_embedding,
    mrope_axes,
    mrope_decode_position_ids,
    mrope_position_ids,
    rope_axes,
    vision_position_ids,
    xdrope_position_ids,
)
from .learned_rotary import (
    learned_inv_freq,
)
from .positions import (
    positions_for_context_parallel,
    positions_from_cu_seqlens,
    positions_from_documents,
    positions_from_input_ids,
    positions_from_mask,
    positions_from_offsets,
)
from .rotary import (
    apply_rotary,
    convert_rope_weights,
    rotary_embedding,
    rotary_embedding_,
    rotary_embedding_qk,
    rotary_embedding_qk_,
    rotary_embedding_qkv,
    rotary_embedding_qkv_,
)
from .temperature import (
    query_temperature,
)
from .xpos import (
    xpos_embedding,
    xpos_reach,
)

__all__ = [
    "add_positional_encoding",
    "add_positions",
    "add_sinusoidal",
    "alibi_attention",
    "alibi_bias",
    "alibi_slopes",
    "alibi_softmax",
    "apply_rotary",
    "augment_coordinates",
    "axial_rotary_embedding",
    "convert_rope_weights",
    "embed_tokens",
    "get_positional_encoding",
    "grid_coordinates",
    "learned_inv_freq",
    "merge_attention",
    "mixed_rotary_embedding",
    "mrope_axes",
    "mrope_decode_position_ids",
    "mrope_position_ids",
    "positions_for_context_parallel",
    "positions_from_cu_seqlens",
    "positions_from_documents",
    "positions_from_input_ids",
    "positions_from_mask",
    "positions_from_offsets",
    "query_temperature",
    "re_rotate",
    "rope_axes",
    "rope_inv_freq",
    "rotary_embedding",
    "rotary_embedding_",
    "rotary_embedding_qk",
    "rotary_embedding_qk_",
    "rotary_embedding_qkv",
    "rotary_embedding_qkv_",
    "shift",
    "sinusoidal_encoding",
    "sinusoidal_inv_freq",
    "vision_position_ids",
    "xdrope_position_ids",
    "xpos_embedding",
    "xpos_reach",
]
