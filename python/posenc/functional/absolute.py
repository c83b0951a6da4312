"""What is added to the embeddings."""

import torch
from torch import Tensor

from .frequencies import sinusoidal_inv_freq


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
