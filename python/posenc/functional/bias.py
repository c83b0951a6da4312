"""What is added to the scores."""

import torch
from torch import Tensor

from .._device import default_device
from .._tracing import refuse_traced_sizes


def alibi_bias(
    slopes: list[float] | Tensor,
    q_len: int,
    k_len: int,
    offset: int | None = None,
    is_causal: bool = False,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
) -> Tensor:
    """ALiBi's bias ``-slope_h |i + offset - j|``, for printing and for other attention code.

    `alibi_attention` needs no such matrix.

    Args:
        slopes: H floats, or a tensor (H), which is differentiable.
        q_len, k_len: numbers of queries and keys.
        offset: position of query 0 minus position of key 0; None: k_len - q_len (a cache).
        is_causal: -inf where the key is later than the query.
        dtype: of the result, None for the default dtype.
        device: of the result; None for that of ``slopes``, the default one where it is a list.

    Returns:
        (H, q_len, k_len).

    Raises:
        TypeError: a size that ``torch.jit.trace`` follows, which a trace could not keep.

    Source: Press et al. 2021, arXiv:2108.12409 (with the true distance; under a causal mask any
    constant per row gives the same weights).

    >>> P.alibi_bias([1.0], 2, 4, is_causal=True)  # the last 2 of 4 tokens
    tensor([[[-2., -1., -0., -inf],
             [-3., -2., -1., -0.]]])
    """
    if not torch.jit.is_scripting():
        if torch.jit.is_tracing():
            refuse_traced_sizes(
                "alibi_bias",
                "use alibi_attention, torch.jit.script or torch.export",
                q_len=q_len,
                k_len=k_len,
                offset=offset,
            )
    if isinstance(slopes, Tensor):
        if device is not None and device != slopes.device:
            raise ValueError(
                f"alibi_bias: expected device to be that of slopes ({slopes.device}), got {device}"
            )
        return torch.ops.posenc.alibi_bias(slopes, q_len, k_len, offset, is_causal, dtype=dtype)
    else:
        if not torch.jit.is_scripting():
            if device is None:
                device = default_device()
        return torch.ops.posenc.alibi_bias(
            slopes, q_len, k_len, offset, is_causal, dtype=dtype, device=device
        )


def alibi_softmax(
    scores: Tensor,
    slopes: list[float],
    mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float = 1.0,
    offset: int | None = None,
) -> Tensor:
    """``softmax(scale * scores + ALiBi's bias)`` over the keys, in one pass.

    Args:
        scores: (B, H, L, S).
        slopes: H floats.
        mask: bool, broadcastable to (B, H, L, S), True keeps.
        is_causal: block keys later than the query.
        scale: multiplies the scores.
        offset: position of query 0 minus position of key 0; None: S - L.

    Returns:
        (B, H, L, S); 0 in a row without an allowed key.

    Raises:
        TypeError: an offset that ``torch.jit.trace`` follows, which a trace could not keep. None,
            for S - L, it follows.

    >>> P.alibi_softmax(torch.zeros(1, 1, 2, 3), [1.0])[0, 0]
    tensor([[0.2119, 0.5761, 0.2119],
            [0.0900, 0.2447, 0.6652]])
    """
    if not torch.jit.is_scripting():
        if torch.jit.is_tracing():
            refuse_traced_sizes(
                "alibi_softmax",
                "use alibi_attention, torch.jit.script or torch.export",
                offset=offset,
            )
    return torch.ops.posenc.alibi_softmax(scores, slopes, mask, is_causal, scale, offset)
