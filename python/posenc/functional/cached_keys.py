"""Keys in a cache, which were rotated and stay."""

import torch
from torch import Tensor

from .._tracing import is_traced_size, traced_offset


def re_rotate(
    keys: Tensor,
    old_inv_freq: list[float] | Tensor,
    new_inv_freq: list[float] | Tensor,
    position_ids: Tensor | None = None,
    offset: int = 0,
    seq_dim: int = 1,
    interleaved: bool = True,
    rotary_start: int = 0,
    old_attention_factor: float = 1.0,
    new_attention_factor: float = 1.0,
    axes: list[int] | None = None,
    inverse: bool = False,
) -> Tensor:
    """Moves cached keys from one set of frequencies to another.

    For dynamic NTK past another length, LongRoPE past its switch, or a context that is extended
    after the cache was filled. One rotation by position x (new - old), the difference taken in
    float64; up to one more rounding to their dtype the keys are as if rotated afresh.

    Args:
        keys: as they left `rotary_embedding`.
        old_inv_freq, new_inv_freq: n frequencies each, radians per position; or float64 tensors
            (n), (B, 1, n), (1, H, n), which are differentiable.
        position_ids, offset: the positions that the keys were rotated at.
        seq_dim, rotary_start, axes, inverse: as in `rotary_embedding`, for the keys as they are.
        interleaved: the layout that the keys have now: the one that was written.
        old_attention_factor, new_attention_factor: what the keys are scaled by, and shall be.

    Returns:
        a tensor of keys' shape and dtype.

    >>> k = torch.randn(1, 10, 2, 64)
    >>> old, new = P.rope_inv_freq(64, 1e4), P.rope_inv_freq(64, 1e6)
    >>> moved = P.re_rotate(P.rotary_embedding(k, old), old, new)
    >>> torch.testing.assert_close(moved, P.rotary_embedding(k, new))
    """
    if not torch.jit.is_scripting():
        if type(offset) is not int:
            position_ids, offset = traced_offset(keys, position_ids, offset, seq_dim)
    if isinstance(old_inv_freq, Tensor):
        if isinstance(new_inv_freq, Tensor):
            new = new_inv_freq
        else:
            new = torch.tensor(new_inv_freq, dtype=torch.float64, device=keys.device)
        if not torch.jit.is_scripting():  # by its name: see rotary_embedding
            return torch.ops.posenc.re_rotate.Tensor(
                keys, old_inv_freq, new, position_ids, offset, seq_dim, interleaved, rotary_start,
                old_attention_factor, new_attention_factor, axes, inverse,
            )  # fmt: skip
        return torch.ops.posenc.re_rotate(
            keys, old_inv_freq, new, position_ids, offset, seq_dim, interleaved, rotary_start,
            old_attention_factor, new_attention_factor, axes, inverse,
        )  # fmt: skip
    elif isinstance(new_inv_freq, Tensor):
        old = torch.tensor(old_inv_freq, dtype=torch.float64, device=keys.device)
        if not torch.jit.is_scripting():
            return torch.ops.posenc.re_rotate.Tensor(
                keys, old, new_inv_freq, position_ids, offset, seq_dim, interleaved, rotary_start,
                old_attention_factor, new_attention_factor, axes, inverse,
            )  # fmt: skip
        return torch.ops.posenc.re_rotate(
            keys, old, new_inv_freq, position_ids, offset, seq_dim, interleaved, rotary_start,
            old_attention_factor, new_attention_factor, axes, inverse,
        )  # fmt: skip
    else:
        return torch.ops.posenc.re_rotate(
            keys, old_inv_freq, new_inv_freq, position_ids, offset, seq_dim, interleaved,
            rotary_start, old_attention_factor, new_attention_factor, axes, inverse,
        )  # fmt: skip


def shift(
    keys: Tensor,
    delta: int | Tensor,
    inv_freq: list[float] | Tensor,
    seq_dim: int = 1,
    interleaved: bool = True,
    rotary_start: int = 0,
    inverse: bool = False,
) -> Tensor:
    """Moves cached keys by ``delta`` positions, as a cache does that evicts tokens.

    A pure rotation: an attention factor that the keys carry is not applied again. For keys of one
    position axis: one number cannot move a key that reads several.

    Args:
        keys: as they left `rotary_embedding`.
        delta: one number, or a tensor (B) one a row, (B, L) one a key; integer or real.
        inv_freq: the frequencies that the keys carry, or a float64 tensor (n), (B, 1, n),
            (1, H, n).
        seq_dim, rotary_start, inverse: as in `rotary_embedding`, for the keys as they are.
        interleaved: the layout that the keys have now: the one that was written.

    Returns:
        a tensor of keys' shape and dtype.

    >>> k, inv_freq = torch.randn(1, 10, 2, 64), P.rope_inv_freq(64)
    >>> moved = P.shift(P.rotary_embedding(k, inv_freq, offset=4), -4, inv_freq)
    >>> torch.testing.assert_close(moved, P.rotary_embedding(k, inv_freq))
    """
    if isinstance(delta, Tensor):
        by = delta
        if not torch.jit.is_scripting():
            if is_traced_size(delta):  # on the CPU, as sizes are
                by = delta.reshape(1).to(keys.device)
    else:
        by = torch.full([1], delta, dtype=torch.int64, device=keys.device)
    if isinstance(inv_freq, Tensor):
        if not torch.jit.is_scripting():
            return torch.ops.posenc.shift.Tensor(
                keys, by, inv_freq, seq_dim, interleaved, rotary_start, inverse
            )
        return torch.ops.posenc.shift(
            keys, by, inv_freq, seq_dim, interleaved, rotary_start, inverse
        )
    else:
        return torch.ops.posenc.shift(
            keys, by, inv_freq, seq_dim, interleaved, rotary_start, inverse
        )
