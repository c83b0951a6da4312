"""Positions of queries and keys in an ALiBi model of transformers, in the place of its mask."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Keys(NamedTuple):
    """What the model hands to its attention modules."""

    offset: int | None  #: position of query 0, where there is no padding
    q_positions: Tensor | None  #: (B or 1, L); -1 for padding, which sees nothing
    k_positions: Tensor | None  #: (B or 1, S)
    keep: Tensor | None  #: (B, 1, 1, S) bool, False for padding
    per_head: bool = False  #: batch and heads are one axis, and positions are biases

    @property
    def ndim(self) -> int:
        """No mask of four axes: Falcon merges its bias into one."""
        return 0

    def to(self, *args: Any, **kwargs: Any) -> "Keys":
        """MPT asks its mask to be bool."""
        return self


#: Positions (B, T), or biases of each head (B, H, T), from (B, T) bool, True for real tokens.
Count = Callable[[Tensor], Tensor]


def real_tokens(real: Tensor) -> Tensor:
    """Positions where padding does not count (BLOOM, Falcon)."""
    return torch.ops.posenc.positions_from_mask(real)


def places(real: Tensor) -> Tensor:
    """Positions where padding counts (MPT)."""
    return torch.arange(real.size(-1), device=real.device).expand(real.shape)


def own_biases(real: Tensor, build: Callable[..., Tensor], heads: int, scale: float) -> Tensor:
    """Biases that a model rounds one by one, as positions under the slope 1.

    Rounding makes neighbours equal. Causality goes by positions, so each token gets a little more
    than the one before.

    Args:
        build: transformers' ``build_alibi_tensor``.
        scale: of the biases beside the scores.
    """
    biases = build(real.long(), heads, torch.float32).unflatten(0, (-1, heads)).squeeze(2)
    return biases.double() * scale + torch.arange(real.size(-1), device=real.device) * 2.0**-30


def keys_of(
    inputs: Tensor, attention_mask: Tensor | None, cache: Any, count: Count, rounded: bool
) -> Keys:
    """The positions of a call.

    Args:
        inputs: (B, L, D), the embedded tokens.
        attention_mask: (B, seen tokens), or None.
        cache: transformers' own, or None.
        count: makes the positions.
        rounded: ``count`` gives biases of each head.
    """
    batch, q_length, device = inputs.size(0), inputs.size(1), inputs.device
    past, start = 0, 0
    k_length = q_length if attention_mask is None else attention_mask.size(-1)
    if cache is not None:
        past = cache.get_query_offset(0)
        k_length, start = cache.get_mask_sizes(q_length, 0)
    if attention_mask is not None:
        real = attention_mask.to(device=device, dtype=torch.bool)
        if real.size(-1) < start + k_length:  # a static cache has room that is not written yet
            real = nn.functional.pad(real, (0, start + k_length - real.size(-1)))
    elif not isinstance(past, Tensor) and start == 0 and not rounded:
        return Keys(past, None, None, None)
    else:
        real = torch.ones(batch, start + k_length, dtype=torch.bool, device=device)
    positions = count(real)
    keep = real[:, None, None, start : start + k_length]
    if rounded:
        real = real[:, None].expand(positions.shape).flatten(0, 1)
        keep = keep.expand(-1, positions.size(1), -1, -1).flatten(0, 1)[:, None]
        positions = positions.flatten(0, 1)
    positions = positions.masked_fill(~real, -1)
    queries = torch.arange(q_length, device=device) + past
    return Keys(
        None,
        positions.index_select(1, queries),
        positions[:, start : start + k_length],
        None if attention_mask is None else keep,
        rounded,
    )


def attend(
    q: Tensor, k: Tensor, v: Tensor, slopes: list[float], scale: float, keys: Keys
) -> Tensor:
    """(B, L, H D) from q (B, H, L, D) and k, v (B, Hkv, S, D).

    With biases of each head for positions the slope is 1 and ``slopes`` are not read.
    """
    heads = q.size(1)
    if keys.per_head:
        k, v = (x.expand(-1, heads, -1, -1) for x in (k, v))
        q, k, v = (x.flatten(0, 1)[:, None] for x in (q, k, v))
        slopes = [1.0]
    out, _ = torch.ops.posenc.alibi_attention(
        q, k, v, slopes, keys.keep, True, scale, keys.offset, keys.q_positions, keys.k_positions
    )
    if keys.per_head:
        out = out.squeeze(1).unflatten(0, (-1, heads))
    return out.transpose(1, 2).flatten(2)
