"""The rotation of q and k."""

import torch
from torch import Tensor
from torch.overrides import has_torch_function_unary

from .. import _C
from .._tracing import traced_offset


def _is_plain(x: Tensor, offset: int) -> bool:
    """Whether a call is an eager one on a plain tensor.

    torch.ops takes longer to read a dozen arguments than the rotation of a decoded token takes;
    such a call reaches the same operator through `_C`. Whatever watches calls from Python, and
    sizes that are symbols, need torch.ops.
    """
    return (
        not torch.compiler.is_compiling()
        and type(offset) is int
        and not has_torch_function_unary(x)
    )


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

    >>> x = torch.randn(2, 100, 8, 64)
    >>> P.rotary_embedding(x, P.rope_inv_freq(64)).shape
    torch.Size([2, 100, 8, 64])
    >>> P.rotary_embedding(torch.tensor([[[1.0, 0.0]]]), [torch.pi / 2], offset=1).round()
    tensor([[[0., 1.]]])
    """
    if isinstance(inv_freq, Tensor):
        if not torch.jit.is_scripting():
            if type(offset) is not int:
                position_ids, offset = traced_offset(x, position_ids, offset, seq_dim)
            # By its name: torch.ops tries the overloads in turn, and where the first does not fit
            # it spends half a millisecond on an error that nobody sees.
            return torch.ops.posenc.rotary_embedding.Tensor(
                x, inv_freq, position_ids, offset, seq_dim, interleaved, interleaved_out,
                rotary_start, attention_factor, axes, inverse,
            )  # fmt: skip
        return torch.ops.posenc.rotary_embedding(
            x, inv_freq, position_ids, offset, seq_dim, interleaved, interleaved_out,
            rotary_start, attention_factor, axes, inverse,
        )  # fmt: skip
    else:
        if not torch.jit.is_scripting():
            if _is_plain(x, offset):
                return _C.rotary_embedding(
                    x, inv_freq, position_ids, offset, seq_dim, interleaved, interleaved_out,
                    rotary_start, attention_factor, axes, inverse,
                )  # fmt: skip
            position_ids, offset = traced_offset(x, position_ids, offset, seq_dim)
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

    Args:
        x: (..., D), usually (B, L, H, D).
        inv_freq, ...: as in `rotary_embedding`.

    Autograd sees a mutation as of any in-place operator of torch: ``RuntimeError`` for a leaf that
    requires a gradient.

    >>> x = torch.randn(2, 100, 8, 64)
    >>> P.rotary_embedding_(x, P.rope_inv_freq(64)) is x
    True
    """
    if not torch.jit.is_scripting():
        if type(offset) is not int:
            position_ids, offset = traced_offset(x, position_ids, offset, seq_dim)
    return torch.ops.posenc.rotary_embedding_(
        x, inv_freq, position_ids, offset, seq_dim, interleaved, interleaved_out,
        rotary_start, attention_factor, axes, inverse,
    )  # fmt: skip


def rotary_embedding_qk(
    q: Tensor,
    k: Tensor,
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
) -> tuple[Tensor, Tensor]:
    """`rotary_embedding` of a query and a key by the same positions, in one call.

    Bit for bit two calls, in little more than the time of one where few tokens are decoded.

    Args:
        q, k: (..., D), usually (B, L, H, D) and (B, L, Hkv, D), of one length; heads, and the
            batch where ``position_ids`` have none, may differ in number.
        inv_freq, ...: as in `rotary_embedding`.

    Returns:
        the rotated q and k.

    >>> q, k = torch.randn(2, 100, 8, 64), torch.randn(2, 100, 2, 64)
    >>> q, k = P.rotary_embedding_qk(q, k, P.rope_inv_freq(64))
    >>> q.shape, k.shape
    (torch.Size([2, 100, 8, 64]), torch.Size([2, 100, 2, 64]))
    """
    if not torch.jit.is_scripting():
        if _is_plain(q, offset) and not has_torch_function_unary(k):
            return _C.rotary_embedding_qk(
                q, k, inv_freq, position_ids, offset, seq_dim, interleaved, interleaved_out,
                rotary_start, attention_factor, axes, inverse,
            )  # fmt: skip
        position_ids, offset = traced_offset(q, position_ids, offset, seq_dim)
    return torch.ops.posenc.rotary_embedding_qk(
        q, k, inv_freq, position_ids, offset, seq_dim, interleaved, interleaved_out,
        rotary_start, attention_factor, axes, inverse,
    )  # fmt: skip


def rotary_embedding_qk_(
    q: Tensor,
    k: Tensor,
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
) -> tuple[Tensor, Tensor]:
    """`rotary_embedding_qk` in place.

    Args:
        q, k: (B, L, H, D) and (B, L, Hkv, D); they may be slices of one tensor, but not overlap.
        inv_freq, ...: as in `rotary_embedding`.

    >>> qkv = torch.randn(2, 100, 12, 64)  # 8 + 2 + 2 heads
    >>> q, k, v = qkv.split([8, 2, 2], dim=2)
    >>> q, k = P.rotary_embedding_qk_(q, k, P.rope_inv_freq(64))
    >>> q.data_ptr() == qkv.data_ptr()
    True
    """
    if not torch.jit.is_scripting():
        if type(offset) is not int:
            position_ids, offset = traced_offset(q, position_ids, offset, seq_dim)
    return torch.ops.posenc.rotary_embedding_qk_(
        q, k, inv_freq, position_ids, offset, seq_dim, interleaved, interleaved_out,
        rotary_start, attention_factor, axes, inverse,
    )  # fmt: skip


def rotary_embedding_qkv(
    qkv: Tensor,
    inv_freq: list[float],
    n_heads: int,
    n_kv_heads: int,
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
    """`rotary_embedding` of the q and k in a packed projection; v passes bit for bit.

    One pass over memory, without unpacking.

    Args:
        qkv: (B, L, n_heads + 2 n_kv_heads, D): heads of q, then of k, then of v (a fused
            projection, grouped heads or not); or (B, L, 3, H, D), as flash-attention packs it.
            Any strides.
        n_heads, n_kv_heads: heads of q and of k; both H in the second layout.
        seq_dim: 1, where both layouts have the time; ``ValueError`` for another.
        inv_freq, ...: as in `rotary_embedding`.

    Returns:
        a tensor of qkv's shape and dtype.

    >>> qkv = torch.randn(2, 100, 12, 64)  # 8 + 2 + 2 heads
    >>> out = P.rotary_embedding_qkv(qkv, P.rope_inv_freq(64), n_heads=8, n_kv_heads=2)
    >>> torch.equal(out[:, :, 10:], qkv[:, :, 10:])
    True
    """
    if not torch.jit.is_scripting():
        if type(offset) is not int:
            position_ids, offset = traced_offset(qkv, position_ids, offset, seq_dim)
    return torch.ops.posenc.rotary_embedding_qkv(
        qkv, inv_freq, n_heads, n_kv_heads, position_ids, offset, seq_dim, interleaved,
        interleaved_out, rotary_start, attention_factor, axes, inverse,
    )  # fmt: skip


def rotary_embedding_qkv_(
    qkv: Tensor,
    inv_freq: list[float],
    n_heads: int,
    n_kv_heads: int,
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
    """`rotary_embedding_qkv` in place: q and k are rotated where they are, v is not touched.

    Args:
        qkv: (B, L, n_heads + 2 n_kv_heads, D) or (B, L, 3, H, D).
        inv_freq, ...: as in `rotary_embedding_qkv`.

    >>> qkv = torch.randn(2, 100, 3, 8, 64)
    >>> P.rotary_embedding_qkv_(qkv, P.rope_inv_freq(64), n_heads=8, n_kv_heads=8) is qkv
    True
    """
    if not torch.jit.is_scripting():
        if type(offset) is not int:
            position_ids, offset = traced_offset(qkv, position_ids, offset, seq_dim)
    return torch.ops.posenc.rotary_embedding_qkv_(
        qkv, inv_freq, n_heads, n_kv_heads, position_ids, offset, seq_dim, interleaved,
        interleaved_out, rotary_start, attention_factor, axes, inverse,
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
        position_ids: (L), (1, L) or (B, L), integer; ``IndexError`` outside the table, or on a GPU
            the kernel stops, as that of ``torch.nn.functional.embedding`` does.
        seq_dim, interleaved, interleaved_out, rotary_start, inverse: as in `rotary_embedding`.
        doubled: w is 2n, not n: the tables repeat each frequency, ``cat(f, f)`` for halves (as
            transformers makes them) and (f0, f0, f1, f1, ...) for pairs; the two channels of a
            pair use their own numbers. ``inverse`` then multiplies by the transposed matrix, which
            turns back where the two numbers are equal.

    >>> angles = torch.arange(100.0)[:, None] * torch.tensor(P.rope_inv_freq(64))
    >>> x = torch.randn(2, 8, 100, 64)
    >>> P.apply_rotary(x, angles.cos(), angles.sin()).shape
    torch.Size([2, 8, 100, 64])
    """
    return torch.ops.posenc.apply_rotary(
        x, cos, sin, position_ids, seq_dim, interleaved, interleaved_out, rotary_start, inverse,
        doubled,
    )  # fmt: skip


def convert_rope_weights(
    weight: Tensor,
    n_heads: int,
    to: str,
    rotary_dim: int | None = None,
    rotary_start: int = 0,
) -> Tensor:
    """Reorders the rows of a q or k projection from one layout of the pairs to the other.

    A model that was trained with interleaved pairs then runs with halves, and the other way round:
    the scores stay what they were. Convert weight and bias of both the q and the k projection (and
    the scale of a norm that q or k passes before the rotation, with ``n_heads=1``).

    Args:
        weight: (n_heads D, in), or a bias (n_heads D), any dtype.
        n_heads: heads in the weight; for k the number of key heads.
        to: ``"half"``: pairs (2i, 2i + 1) become (i, i + rotary_dim / 2), as Meta's Llama is
            converted for transformers; ``"interleaved"``: the reverse.
        rotary_dim: rotated channels of a head, even; None: all from ``rotary_start`` on.
        rotary_start: first rotated channel. Channels that are not rotated stay in place.

    Returns:
        a tensor of weight's shape and dtype; ``ValueError`` for widths that do not fit.

    >>> bias = torch.arange(4)
    >>> P.convert_rope_weights(bias, n_heads=1, to="half")
    tensor([0, 2, 1, 3])
    """
    return torch.ops.posenc.convert_rope_weights(weight, n_heads, to, rotary_dim, rotary_start)
