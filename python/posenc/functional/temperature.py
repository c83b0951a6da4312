"""The temperature of queries in long contexts."""

import torch
from torch import Tensor

from .._tracing import traced_offset


def query_temperature(
    q: Tensor,
    beta: float,
    floor_scale: float,
    position_ids: Tensor | None = None,
    offset: int = 0,
    seq_dim: int = 1,
    shift: float = 0.0,
) -> Tensor:
    """Queries at position p times ``1 + beta * ln(1 + floor((p + shift) / floor_scale))``.

    A softmax over more keys is flatter; queries that grow with the logarithm of their position
    undo it. Positions with p + shift < floor_scale, negative ones too, pass bit for bit.

    Args:
        q: (..., D), any strides, usually (B, L, H, D).
        beta: growth with each e-fold. Llama 4, on its layers without rope: 0.1, with floor_scale
            8192 and shift 1. Ministral 3 and Mistral 4, on every layer, after the rotation: their
            ``llama_4_scaling_beta``, with floor_scale ``original_max_position_embeddings``.
        floor_scale: positions of one step, above 0.
        position_ids: (L), (1, L) or (B, L), integer or real. None: 0 ... L - 1.
        offset: added to every position: the number of tokens before this call.
        seq_dim: the axis of q that is time.
        shift: added to the position before the division.

    Returns:
        q's shape and dtype. The factor is float64, rounded once to float32 (float64 for float64 q),
        and never to a half type.

    Source: the published code of Llama 4 and of Ministral 3 in transformers.

    >>> q = torch.ones(1, 4, 1, 1)
    >>> P.query_temperature(q, beta=0.5, floor_scale=2).flatten()
    tensor([1.0000, 1.0000, 1.3466, 1.3466])
    """
    if not torch.jit.is_scripting():
        if type(offset) is not int:
            position_ids, offset = traced_offset(q, position_ids, offset, seq_dim)
    return torch.ops.posenc.query_temperature(
        q, beta, floor_scale, position_ids, offset, seq_dim, shift
    )
