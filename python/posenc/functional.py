"""Every operator with its defaults.

Shapes: B batch, L query length, S key length, H heads, D head dimension, n frequencies.
All functions work inside ``torch.jit.script``, ``torch.compile(fullgraph=True)`` and
``torch.export``, under ``torch.func`` transforms, forward-mode AD and autocast.

Errors come from the operators: ``ValueError`` for shapes and values, ``TypeError`` for dtypes,
``IndexError`` for positions outside a table. Each names the operator, what it expected, what came.
"""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from . import _C

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal, overload

__all__ = [
    "add_positional_encoding",
    "add_positions",
    "add_sinusoidal",
    "alibi_attention",
    "alibi_bias",
    "alibi_slopes",
    "alibi_softmax",
    "apply_rotary",
    "embed_tokens",
    "get_positional_encoding",
    "merge_attention",
    "positions_for_context_parallel",
    "positions_from_cu_seqlens",
    "positions_from_documents",
    "positions_from_input_ids",
    "positions_from_mask",
    "positions_from_offsets",
    "rope_inv_freq",
    "rotary_embedding",
    "rotary_embedding_",
    "sinusoidal_encoding",
    "sinusoidal_inv_freq",
]


# ------------------------------------------------------------------------------ frequencies, slopes
# The C++ library computes these numbers. TorchScript and torch.compile cannot call a pybind11
# function; for them the same formulas stand here in the subset of Python that both understand
# (a test compares the two bit for bit).
def _power_series(base: float, n: int, step: int, span: int) -> list[float]:
    """base ** (-step i / span), i < n."""
    result: list[float] = []
    for i in range(n):
        result.append(math.pow(base, -float(step * i) / float(span)))
    return result


def _traced_slopes(
    n_heads: int, bias_max: float, head_start: int, total_heads: int | None, geometric: bool
) -> list[float]:
    total = n_heads
    if total_heads is not None:
        total = total_heads
    if n_heads < 1 or head_start < 0 or head_start + n_heads > total:
        raise ValueError(
            "alibi_slopes: expected n_heads >= 1 and heads [head_start, head_start + n_heads) "
            f"among total_heads = {total}, got n_heads {n_heads}, head_start {head_start}"
        )
    power = 1
    while power * 2 <= total:
        power = power * 2
    result: list[float] = []
    for h in range(head_start, head_start + n_heads):
        if geometric:
            exponent = bias_max * float(h + 1) / float(total)
        elif h < power:
            exponent = bias_max * float(h + 1) / float(power)
        else:
            exponent = bias_max * float(2 * (h - power) + 1) / float(2 * power)
        result.append(math.pow(2.0, -exponent))
    return result


def rope_inv_freq(dim: int, base: float = 10000.0) -> list[float]:
    """RoPE's frequencies ``base ** (-2 i / dim)``, i = 0 ... dim / 2 - 1, in float64.

    Args:
        dim: rotated channels, even; else ``ValueError``.
        base: theta, above 0.

    Source: Su et al. 2021, arXiv:2104.09864.
    """
    if not torch.jit.is_scripting() and not torch.compiler.is_compiling():
        return list(_C.rope_inv_freq(dim, base))
    if dim < 2 or dim % 2 != 0 or base <= 0:
        raise ValueError("rope_inv_freq: expected an even dim >= 2 and base > 0")
    return _power_series(base, dim // 2, 2, dim)


def sinusoidal_inv_freq(
    d_model: int, base: float = 10000.0, spacing: str = "standard"
) -> list[float]:
    """Frequencies of a sinusoidal table, in radians per position, in float64.

    Args:
        d_model: width of the table.
        base: theta, above 0.
        spacing: ``"standard"``: ``base ** (-2 i / d_model)``, i < ceil(d_model / 2) (the paper,
            BART, DETR). ``"half_minus_one"``: ``base ** (-i / (h - 1))``, i < h = d_model // 2
            (tensor2tensor, fairseq, Whisper); an odd width then ends with a channel of zeros.

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.5.
    """
    if not torch.jit.is_scripting() and not torch.compiler.is_compiling():
        return list(_C.sinusoidal_inv_freq(d_model, base, spacing))
    if d_model < 1 or base <= 0:
        raise ValueError("sinusoidal_inv_freq: expected d_model >= 1 and base > 0")
    if spacing == "standard":
        return _power_series(base, (d_model + 1) // 2, 2, d_model)
    if spacing != "half_minus_one":
        raise ValueError(
            f"sinusoidal_inv_freq: expected spacing 'standard' or 'half_minus_one', got '{spacing}'"
        )
    return _power_series(base, d_model // 2, 1, max(d_model // 2 - 1, 1))


def alibi_slopes(
    n_heads: int,
    bias_max: float = 8.0,
    head_start: int = 0,
    total_heads: int | None = None,
    geometric: bool = False,
) -> list[float]:
    """ALiBi's slopes, one a head: ``2 ** (-bias_max (h + 1) / n)`` with n the largest power of two
    <= ``total_heads``; the heads past n take every second slope of the series for 2n.

    Args:
        n_heads: heads held here.
        bias_max: exponent of the last slope (8 in the paper; MPT's ``alibi_bias_max``).
        head_start: index of the first of them, under tensor parallelism.
        total_heads: heads of the whole model; ``n_heads`` when None.
        geometric: one plain geometric series for any head count (the paper's sentence; no
            released checkpoint uses it).

    Returns:
        list of ``n_heads`` floats (scores lost per position of distance).

    Source: Press et al. 2021, arXiv:2108.12409, and its published code.
    """
    if not torch.jit.is_scripting() and not torch.compiler.is_compiling():
        return list(_C.alibi_slopes(n_heads, bias_max, head_start, total_heads, geometric))
    return _traced_slopes(n_heads, bias_max, head_start, total_heads, geometric)


# ----------------------------------------------------------------------------------------- rotary
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


# --------------------------------------------------------------------------------------- absolute
def sinusoidal_encoding(
    position_ids: Tensor,
    inv_freq: list[float],
    d_model: int,
    interleaved: bool = True,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Sinusoidal encoding of positions: ``sin(p f_i), cos(p f_i)``.

    Args:
        position_ids: any shape, integer or real.
        inv_freq: ceil(d_model / 2) frequencies, see `sinusoidal_inv_freq`.
        d_model: width of the result; odd widths leave out the last cosine.
        interleaved: sin and cos alternate (the paper); False: all sines, then all cosines.
        dtype: of the result; None for the default dtype.

    Returns:
        (*position_ids.shape, d_model).

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.5.
    """
    return torch.ops.posenc.sinusoidal_encoding(position_ids, inv_freq, d_model, interleaved, dtype)


def add_sinusoidal(
    x: Tensor,
    inv_freq: list[float],
    position_ids: Tensor | None = None,
    offset: int = 0,
    seq_dim: int = 1,
    interleaved: bool = True,
    scale: float = 1.0,
) -> Tensor:
    """``scale * x`` plus the sinusoidal encoding of each token's position, in one pass.

    Args:
        x: (..., d_model), any rank >= 2, usually (B, L, d_model).
        inv_freq: ceil(d_model / 2) frequencies.
        position_ids: (L), (1, L) or (B, L), integer or real; None: 0 ... L - 1.
        offset: added to every position.
        seq_dim: the axis of ``x`` that is time.
        scale: multiplies ``x``, not the encoding.
    """
    return torch.ops.posenc.add_sinusoidal(
        x, inv_freq, position_ids, offset, seq_dim, interleaved, scale
    )


def add_positions(
    x: Tensor,
    weight: Tensor,
    position_ids: Tensor | None = None,
    offset: int = 0,
    seq_dim: int = 1,
) -> Tensor:
    """``x + weight[position]``: learned positions.

    Args:
        x: (..., d_model), usually (B, L, d_model).
        weight: (max_len, d_model).
        position_ids: (L), (1, L) or (B, L), integer; None: 0 ... L - 1.
        offset: added to every position.
        seq_dim: the axis of ``x`` that is time.

    Raises:
        IndexError: a position outside ``[0, max_len)``, with the position and the limit.
    """
    return torch.ops.posenc.add_positions(x, weight, position_ids, offset, seq_dim)


def embed_tokens(
    input_ids: Tensor,
    weight: Tensor,
    inv_freq: list[float],
    position_ids: Tensor | None = None,
    offset: int = 0,
    interleaved: bool = True,
    scale: float = 1.0,
    padding_idx: int = -1,
) -> Tensor:
    """``weight[input_ids] * scale`` plus the sinusoidal encoding, in one pass.

    Args:
        input_ids: (B, L) or (L), integer.
        weight: (vocab_size, d_model).
        inv_freq: ceil(d_model / 2) frequencies.
        position_ids: (L), (1, L) or (B, L); None: 0 ... L - 1.
        offset: added to every position.
        scale: multiplies the embedding, not the encoding (sqrt(d_model) in the paper).
        padding_idx: a row of ``weight`` that gets no gradient; -1 for none.

    Returns:
        (B, L, d_model) or (L, d_model), of weight's dtype.
    """
    return torch.ops.posenc.embed_tokens(
        input_ids, weight, inv_freq, position_ids, offset, interleaved, scale, padding_idx
    )


def get_positional_encoding(
    seq_len: int,
    d_model: int,
    base: float = 10000.0,
    interleaved: bool = True,
    offset: int = 0,
    dtype: torch.dtype | None = None,
    device: torch.device | None = None,
    spacing: str = "standard",
) -> Tensor:
    """The sinusoidal table: ``PE[p, 2i] = sin(p base^(-2i/d_model))``, ``PE[p, 2i+1] = cos(same)``.

    Args:
        seq_len: number of positions.
        d_model: width.
        base: 10000 in the paper.
        interleaved: sin and cos alternate; False: all sines, then all cosines.
        offset: position of the first row.
        dtype, device: of the result; None for the defaults.
        spacing: of the frequencies, see `sinusoidal_inv_freq`.

    Returns:
        (seq_len, d_model).

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.5.
    """
    if seq_len < 0:
        raise ValueError(f"get_positional_encoding: expected seq_len >= 0, got {seq_len}")
    positions = torch.arange(offset, offset + seq_len, dtype=torch.int64, device=device)
    return torch.ops.posenc.sinusoidal_encoding(
        positions, sinusoidal_inv_freq(d_model, base, spacing), d_model, interleaved, dtype
    )


def add_positional_encoding(
    embeddings: Tensor,
    max_seq_len: int = 5000,
    position_ids: Tensor | None = None,
    offset: int = 0,
    base: float = 10000.0,
) -> Tensor:
    """Adds the sinusoidal table to embeddings.

    Args:
        embeddings: (B, L, d_model).
        max_seq_len: longest length allowed; a longer one (offset counted) is a ``ValueError``.
        position_ids: (L), (1, L) or (B, L); None: 0 ... L - 1.
        offset: added to every position.
        base: 10000 in the paper.

    Returns:
        (B, L, d_model), of the dtype of ``embeddings``.

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.5.
    """
    if embeddings.dim() != 3:
        raise ValueError(
            "add_positional_encoding: expected embeddings of shape (batch, length, d_model), "
            f"got {list(embeddings.shape)}"
        )
    if not torch.jit.is_tracing() and offset + embeddings.size(1) > max_seq_len:
        raise ValueError(
            f"add_positional_encoding: expected at most max_seq_len = {max_seq_len} "
            f"positions, got {offset + embeddings.size(1)}"
        )
    return torch.ops.posenc.add_sinusoidal(
        embeddings,
        sinusoidal_inv_freq(embeddings.size(2), base),
        position_ids,
        offset,
        1,
        True,
        1.0,
    )


# ------------------------------------------------------------------------------- bias, attention
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
        device: of the result (that of ``slopes`` where it is a tensor).

    Returns:
        (H, q_len, k_len).

    Source: Press et al. 2021, arXiv:2108.12409 (with the true distance; under a causal mask any
    constant per row gives the same weights).
    """
    if isinstance(slopes, Tensor):
        if device is not None and device != slopes.device:
            raise ValueError(
                f"alibi_bias: expected device to be that of slopes ({slopes.device}), got {device}"
            )
        return torch.ops.posenc.alibi_bias(slopes, q_len, k_len, offset, is_causal, dtype=dtype)
    else:
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
    """
    return torch.ops.posenc.alibi_softmax(scores, slopes, mask, is_causal, scale, offset)


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
    """
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
    """
    return torch.ops.posenc.merge_attention(out1, lse1, out2, lse2)


# -------------------------------------------------------------------------------------- positions
def positions_from_mask(mask: Tensor) -> Tensor:
    """Positions of real tokens in a padded batch: cumulative sum - 1, not below 0.

    Args:
        mask: (B, L) or (L), bool, int or float; nonzero marks a real token.

    Returns:
        int64, the mask's shape. [0, 0, 1, 1, 1] gives [0, 0, 0, 1, 2].
    """
    return torch.ops.posenc.positions_from_mask(mask)


def positions_from_cu_seqlens(cu_seqlens: Tensor, total: int) -> Tensor:
    """Positions in packed documents, restarting at each.

    Args:
        cu_seqlens: (n + 1) cumulated lengths that begin with 0, as flash-attention takes them.
        total: number of tokens.

    Returns:
        int64 (total).
    """
    return torch.ops.posenc.positions_from_cu_seqlens(cu_seqlens, total)


def positions_from_documents(document_ids: Tensor) -> Tensor:
    """Positions in packed documents, restarting where the id changes.

    Args:
        document_ids: (B, L) or (L), integer.

    Returns:
        int64, the same shape. [1, 1, 2, 2, 2] gives [0, 1, 0, 1, 2].
    """
    return torch.ops.posenc.positions_from_documents(document_ids)


def positions_from_offsets(offsets: Tensor, length: int) -> Tensor:
    """``offsets[b] + 0 ... length - 1``: rows of a batch that decode at different places.

    Args:
        offsets: (B), integer.
        length: new tokens in each row.

    Returns:
        int64 (B, length).
    """
    return torch.ops.posenc.positions_from_offsets(offsets, length)


def positions_for_context_parallel(
    length: int, rank: int, world_size: int, zigzag: bool = False
) -> Tensor:
    """The positions that one rank of a context-parallel group holds.

    Args:
        length: the whole sequence, divisible by world_size (2 world_size with zigzag).
        rank, world_size: of the group.
        zigzag: rank r holds chunks r and 2 world_size - 1 - r, so that causal work is even.

    Returns:
        int64 (length / world_size).
    """
    return torch.ops.posenc.positions_for_context_parallel(length, rank, world_size, zigzag)


def positions_from_input_ids(input_ids: Tensor, padding_idx: int) -> Tensor:
    """Positions as fairseq and RoBERTa count them: real tokens from padding_idx + 1 on, padding
    at padding_idx.

    Args:
        input_ids: (B, L) or (L), integer.
        padding_idx: the id of padding. A table for them needs max_len + padding_idx + 1 rows.

    Returns:
        int64, the same shape. With padding_idx 1, [5, 6, 1, 1] gives [2, 3, 1, 1].
    """
    real_token = input_ids.ne(padding_idx).to(torch.int64)
    return real_token.cumsum(-1) * real_token + padding_idx
