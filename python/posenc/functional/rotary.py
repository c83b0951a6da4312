"""The rotation of q and k."""

import torch
from torch import Tensor


def rotary_embedding(
    x: Tensor,
    inv_freq: list[float] | Tensor,
    position_ids: Tensor | None = None,
    offset: int = 0,
    seq_dim: int = 1,
    interleaved: bool = True,
    interleaved_out: bool | None = None,
    rotary_start: int = 0,
    attention_factor: float = 1.0,
    axes: list[int] | None = None,
    inverse: bool = False,
) -> Tensor:
    """Rotary position embedding: turns pairs of channels by position x frequency.

    Channels ``[rotary_start, rotary_start + 2 n)`` are rotated, all others pass bit for bit.
    Angles are float64, their cos and sin rounded once, the rotation is float32 (float64 for
    float64 input), the output has the input's dtype.

    Args:
        x: (..., D), any strides, usually (B, L, H, D); (B, H, L, D) with ``seq_dim=2``.
        inv_freq: n frequencies in radians per position; or a float64 tensor (n), (B, 1, n) one set
            per row, (1, H, n) one per head, which is differentiable.
        position_ids: (L), (1, L) or (B, L), integer or real, negative too; with ``axes`` also
            (A, B, L). None: 0 ... L - 1.
        offset: added to every position: the number of tokens before this call.
        seq_dim: the axis of ``x`` that is time. The batch is axis 0 (axis 1 where time is 0).
        interleaved: pairs are channels (2i, 2i + 1); False: (i, i + n), as Llama in transformers.
        interleaved_out: the layout to write, where it differs (DeepSeek-V3 reads pairs, writes
            halves).
        rotary_start: first rotated channel.
        attention_factor: scales the rotated channels (YaRN, LongRoPE).
        axes: for each frequency the axis of ``position_ids`` that it reads (M-RoPE).
        inverse: rotate by the negative angle (``attention_factor`` multiplies as before).

    Source: Su et al. 2021, arXiv:2104.09864.
    """
    if isinstance(inv_freq, Tensor):
        return torch.ops.posenc.rotary_embedding(
            x, inv_freq, position_ids, offset, seq_dim, interleaved, interleaved_out,
            rotary_start, attention_factor, axes, inverse,
        )  # fmt: skip
    else:
        return torch.ops.posenc.rotary_embedding(
            x, inv_freq, position_ids, offset, seq_dim, interleaved, interleaved_out,
            rotary_start, attention_factor, axes, inverse,
        )  # fmt: skip


def rotary_embedding_(
    x: Tensor,
    inv_freq: list[float],
    position_ids: Tensor | None = None,
    offset: int = 0,
    seq_dim: int = 1,
    interleaved: bool = True,
    interleaved_out: bool | None = None,
    rotary_start: int = 0,
    attention_factor: float = 1.0,
    axes: list[int] | None = None,
    inverse: bool = False,
) -> Tensor:
    """`rotary_embedding` in place: x's own memory is rotated and returned.

    Autograd sees a mutation as of any in-place operator of torch: ``RuntimeError`` for a leaf that
    requires a gradient.
    """
    return torch.ops.posenc.rotary_embedding_(
        x, inv_freq, position_ids, offset, seq_dim, interleaved, interleaved_out,
        rotary_start, attention_factor, axes, inverse,
    )  # fmt: skip


def apply_rotary(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    position_ids: Tensor | None = None,
    seq_dim: int = 2,
    interleaved: bool = False,
    interleaved_out: bool | None = None,
    rotary_start: int = 0,
    inverse: bool = False,
    doubled: bool = False,
) -> Tensor:
    """The rotation with cos and sin given, as a trained model's own tables.

    Args:
        x: usually (B, H, L, D): the defaults are those of PyTorch's proposed
            ``F.rotary_embedding``.
        cos, sin: tables (T, w) that ``position_ids`` index (rows 0 ... L - 1 without), or rows
            already gathered, (B, L, w) or (1, L, w). Differentiable in both.
        position_ids: (L), (1, L) or (B, L), integer; ``IndexError`` outside the table.
        seq_dim, interleaved, interleaved_out, rotary_start, inverse: as in `rotary_embedding`.
        doubled: w is 2n, not n: the tables repeat each frequency, ``cat(f, f)`` for halves (as
            transformers makes them) and (f0, f0, f1, f1, ...) for pairs; the two channels of a
            pair use their own numbers.
    """
    return torch.ops.posenc.apply_rotary(
        x, cos, sin, position_ids, seq_dim, interleaved, interleaved_out, rotary_start, inverse,
        doubled,
    )  # fmt: skip
