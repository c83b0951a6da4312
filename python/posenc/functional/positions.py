"""Positions of tokens, from padding, packing and caches."""

import torch
from torch import Tensor

from .._device import default_device
from .._tracing import is_traced_size, refuse_traced_sizes


def positions_from_mask(mask: Tensor) -> Tensor:
    """Positions of real tokens in a padded batch: cumulative sum - 1, not below 0.

    Args:
        mask: (B, L) or (L), bool, int or float; nonzero marks a real token.

    Returns:
        int64, the mask's shape. [0, 0, 1, 1, 1] gives [0, 0, 0, 1, 2].

    >>> P.positions_from_mask(torch.tensor([[0, 0, 1, 1, 1]]))
    tensor([[0, 0, 0, 1, 2]])
    """
    return torch.ops.posenc.positions_from_mask(mask)


def positions_from_cu_seqlens(
    cu_seqlens: Tensor, total: int, offsets: Tensor | None = None
) -> Tensor:
    """Positions in packed documents, restarting at each.

    Args:
        cu_seqlens: (n + 1) cumulated lengths that begin with 0, as flash-attention takes them.
        total: number of tokens.
        offsets: (n), integer: tokens of each document that came before, as in a cache.

    Returns:
        int64 (total).

    Raises:
        TypeError: a total that ``torch.jit.trace`` follows, which a trace could not keep.

    >>> P.positions_from_cu_seqlens(torch.tensor([0, 3, 5]), 5)
    tensor([0, 1, 2, 0, 1])
    """
    if not torch.jit.is_scripting():
        if torch.jit.is_tracing():
            refuse_traced_sizes(
                "positions_from_cu_seqlens",
                "use positions_from_documents, torch.jit.script or torch.export",
                total=total,
            )
    return torch.ops.posenc.positions_from_cu_seqlens(cu_seqlens, total, offsets)


def positions_from_documents(document_ids: Tensor) -> Tensor:
    """Positions in packed documents, restarting where the id changes.

    Args:
        document_ids: (B, L) or (L), integer.

    Returns:
        int64, the same shape. [1, 1, 2, 2, 2] gives [0, 1, 0, 1, 2].

    >>> P.positions_from_documents(torch.tensor([1, 1, 2, 2, 2]))
    tensor([0, 1, 0, 1, 2])
    """
    return torch.ops.posenc.positions_from_documents(document_ids)


def positions_from_offsets(offsets: Tensor, length: int) -> Tensor:
    """Positions in a batch whose rows decode at different places: ``offsets[b] + (0, 1, ...)``.

    Args:
        offsets: (B), integer.
        length: new tokens in each row.

    Returns:
        int64 (B, length).

    >>> P.positions_from_offsets(torch.tensor([3, 7]), 2)
    tensor([[3, 4],
            [7, 8]])
    """
    if not torch.jit.is_scripting():
        if type(length) is not int and is_traced_size(length):
            first = torch.ops.posenc.positions_from_offsets(offsets, 1)
            return first + torch.arange(length, device=first.device)
    return torch.ops.posenc.positions_from_offsets(offsets, length)


def positions_for_context_parallel(
    length: int,
    rank: int,
    world_size: int,
    zigzag: bool = False,
    device: torch.device | None = None,
) -> Tensor:
    """The positions that one rank of a context-parallel group holds.

    Args:
        length: the whole sequence, divisible by world_size (2 world_size with zigzag).
        rank, world_size: of the group.
        zigzag: rank r holds chunks r and 2 world_size - 1 - r, so that causal work is even.
        device: of the result; None for the default device.

    Returns:
        int64 (length / world_size).

    Raises:
        TypeError: a length that ``torch.jit.trace`` follows, which a trace could not keep.

    >>> P.positions_for_context_parallel(8, rank=0, world_size=2, zigzag=True)
    tensor([0, 1, 6, 7])
    """
    if not torch.jit.is_scripting():
        if torch.jit.is_tracing():
            refuse_traced_sizes(
                "positions_for_context_parallel",
                "use torch.jit.script or torch.export",
                length=length,
                rank=rank,
                world_size=world_size,
            )
        if device is None:
            device = default_device()
    return torch.ops.posenc.positions_for_context_parallel(length, rank, world_size, zigzag, device)


def positions_from_input_ids(input_ids: Tensor, padding_idx: int) -> Tensor:
    """Positions as fairseq and RoBERTa count them: real tokens from padding_idx + 1 on, padding
    at padding_idx.

    Args:
        input_ids: (B, L) or (L), integer.
        padding_idx: the id of padding. A table for them needs max_len + padding_idx + 1 rows.

    Returns:
        int64, the same shape. With padding_idx 1, [5, 6, 1, 1] gives [2, 3, 1, 1].

    >>> P.positions_from_input_ids(torch.tensor([[5, 6, 1, 1]]), padding_idx=1)
    tensor([[2, 3, 1, 1]])
    """
    real_token = input_ids.ne(padding_idx).to(torch.int64)
    return real_token.cumsum(-1) * real_token + padding_idx
