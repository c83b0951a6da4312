"""Attention with a bias, and the merging of its parts."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .._tracing import is_traced_size, traced_distance

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal, overload


def _alibi_attention_out(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    slopes: list[float] | Tensor,
    mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    offset: int | None = None,
    q_positions: Tensor | None = None,
    k_positions: Tensor | None = None,
    key_norms: Tensor | None = None,
    return_lse: bool = False,
) -> Tensor:
    if isinstance(slopes, Tensor):
        return torch.ops.posenc.alibi_attention(
            q, k, v, slopes, mask, is_causal, scale, offset, q_positions, k_positions, key_norms
        )[0]
    else:
        return torch.ops.posenc.alibi_attention(
            q, k, v, slopes, mask, is_causal, scale, offset, q_positions, k_positions, key_norms
        )[0]


def _alibi_attention_pair(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    slopes: list[float] | Tensor,
    mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    offset: int | None = None,
    q_positions: Tensor | None = None,
    k_positions: Tensor | None = None,
    key_norms: Tensor | None = None,
    return_lse: bool = False,
) -> tuple[Tensor, Tensor]:
    if isinstance(slopes, Tensor):
        return torch.ops.posenc.alibi_attention(
            q, k, v, slopes, mask, is_causal, scale, offset, q_positions, k_positions, key_norms
        )
    else:
        return torch.ops.posenc.alibi_attention(
            q, k, v, slopes, mask, is_causal, scale, offset, q_positions, k_positions, key_norms
        )


if TYPE_CHECKING:

    @overload
    def alibi_attention(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        slopes: Sequence[float] | Tensor,
        mask: Tensor | None = ...,
        is_causal: bool = ...,
        scale: float | None = ...,
        offset: int | None = ...,
        q_positions: Tensor | None = ...,
        k_positions: Tensor | None = ...,
        key_norms: Tensor | None = ...,
        return_lse: Literal[False] = ...,
    ) -> Tensor: ...

    @overload
    def alibi_attention(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        slopes: Sequence[float] | Tensor,
        mask: Tensor | None = ...,
        is_causal: bool = ...,
        scale: float | None = ...,
        offset: int | None = ...,
        q_positions: Tensor | None = ...,
        k_positions: Tensor | None = ...,
        key_norms: Tensor | None = ...,
        *,
        return_lse: Literal[True],
    ) -> tuple[Tensor, Tensor]: ...


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
    return_lse=False,
):
    """Attention with ALiBi's bias ``-slope_h |query position - key position|`` in O(L) memory.

    Args:
        q: (B, H, L, D).
        k, v: (B, Hkv, S, D), H a multiple of Hkv; query head h reads key head h // (H / Hkv).
        slopes: H floats; or a tensor (H) or (B, H), which is differentiable.
        mask: bool, broadcastable to (B, H, L, S), True keeps (operators take no other mask).
        is_causal: a key takes part where its position <= the query's.
        scale: of the scores; None: 1 / sqrt(D).
        offset: position of query 0 minus position of key 0; None: S - L (a cache).
        q_positions, k_positions: (B, L) and (B, S), in place of ``offset`` where positions are
            not consecutive.
        key_norms: largest norm of each block of keys, where a cache keeps it.
        return_lse: also return the log-sum-exp of each row; a constant inside
            ``torch.jit.script``.

    Returns:
        out (B, H, L, D) of q's dtype, 0 in a row without an allowed key; with ``return_lse`` the
        pair (out, lse), lse (B, H, L) float32 (float64 for float64), -inf for such a row. Both
        are differentiable, so parts can be merged by `merge_attention`.

    Source: Press et al. 2021, arXiv:2108.12409.

    >>> q, k, v = torch.randn(3, 2, 8, 100, 64)
    >>> P.alibi_attention(q, k, v, P.alibi_slopes(8), is_causal=True).shape
    torch.Size([2, 8, 100, 64])
    """
    if (
        offset is not None
        and is_traced_size(offset)
        and q_positions is None
        and k_positions is None
    ):
        q_positions, k_positions = traced_distance(q, k, offset)
        offset = None
    if return_lse:
        return _alibi_attention_pair(
            q, k, v, slopes, mask, is_causal, scale, offset, q_positions, k_positions, key_norms
        )
    return _alibi_attention_out(
        q, k, v, slopes, mask, is_causal, scale, offset, q_positions, k_positions, key_norms
    )


# The result's type depends on a flag: TorchScript resolves that as it does for
# F.max_pool1d(return_indices), by this table of torch; eager and compiled code run the body above.
torch._jit_internal.boolean_dispatched[alibi_attention] = {
    "if_true": _alibi_attention_pair,
    "if_false": _alibi_attention_out,
    "index": 11,
    "default": False,
    "arg_name": "return_lse",
}


def merge_attention(
    out1: Tensor, lse1: Tensor, out2: Tensor, lse2: Tensor
) -> tuple[Tensor, Tensor]:
    """Attention over the union of two sets of keys from the results over each.

    Args:
        out1, out2: (B, H, L, D).
        lse1, lse2: (B, H, L), as `alibi_attention` returns them with ``return_lse=True``.

    Returns:
        (out, lse) of the union, exact, differentiable in all four; rows without a key in either
        part give 0 and -inf.

    Source: the online softmax of Rabe and Staats 2021, arXiv:2112.05682.

    >>> q, k, v = torch.randn(3, 1, 2, 5, 8)
    >>> slopes = P.alibi_slopes(2)
    >>> first = P.alibi_attention(
    ...     q, k[:, :, :3], v[:, :, :3], slopes, offset=0, return_lse=True
    ... )
    >>> second = P.alibi_attention(
    ...     q, k[:, :, 3:], v[:, :, 3:], slopes, offset=-3, return_lse=True
    ... )
    >>> out, lse = P.merge_attention(*first, *second)
    >>> torch.testing.assert_close(out, P.alibi_attention(q, k, v, slopes))
    """
    return torch.ops.posenc.merge_attention(out1, lse1, out2, lse2)
