"""Sizes that torch.jit.trace follows.

While a trace is recorded, ``x.shape[i]`` is a tensor, so that the graph knows where a size comes
from. An operator of the library that is handed one in the place of an int would read it once, and
the graph would keep that number: right shapes, wrong numbers, at every other length. torch's own
arithmetic on such a tensor stays in the graph, and so does what is handed on as positions.
"""

from typing import Any

import torch
from torch import Tensor

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
#: Dtypes of positions, and what a sum of them is computed in.
_WIDE = {
    **dict.fromkeys(_INTEGERS, torch.int64),
    torch.float32: torch.float64,
    torch.float64: torch.float64,
}


def is_traced_size(value: Any) -> bool:
    """Whether ``value`` stands for an int in a trace that is being recorded."""
    return isinstance(value, Tensor) and value.dim() == 0 and torch.jit.is_tracing()


def traced_offset(
    x: Tensor, position_ids: Tensor | None, offset: Any, seq_dim: int
) -> tuple[Tensor | None, Any]:
    """Positions and offset that mean the same, the offset an int in a trace as well.

    Callers ask for the type of ``offset`` first: an int, as it is nearly always, needs no call.

    Args:
        x: has the L tokens on axis ``seq_dim``.
        position_ids: any shape; None: 0 ... L - 1.
        offset: added to every position.
    """
    if not is_traced_size(offset):
        return position_ids, offset
    if position_ids is None:
        return torch.arange(x.size(seq_dim), device=x.device) + offset, 0
    # As wide as the operators' own sum: an offset need not fit the dtype of the positions.
    wide = _WIDE.get(position_ids.dtype)
    if wide is None:  # the operator refuses it
        return position_ids, 0
    return position_ids.to(wide) + offset, 0


def traced_distance(q: Tensor, k: Tensor, offset: Any) -> tuple[Tensor, Tensor]:
    """Positions (B, L) and (B, S) of q (B, H, L, D) and k (B, Hkv, S, D) in the place of an
    offset that a trace follows."""
    queries = torch.arange(q.size(2), device=q.device) + offset
    keys = torch.arange(k.size(2), device=k.device)
    return queries.expand(q.size(0), -1), keys.expand(k.size(0), -1)


def refuse_traced_sizes(where: str, instead: str, **sizes: Any) -> None:
    """An error for sizes that only a number can stand for.

    Args:
        where: the function.
        instead: what serves in a trace.
        sizes: its arguments by their names.

    Raises:
        TypeError: one of them is followed by a trace that is being recorded.
    """
    for name, value in sizes.items():
        if is_traced_size(value):
            raise TypeError(
                f"{where}: expected {name} as an int, got a size that torch.jit.trace follows: a "
                f"trace would keep the number of this call; {instead}, or int({name}) where "
                "that number is meant"
            )
