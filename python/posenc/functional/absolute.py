"""What is added to the embeddings."""

import torch
from torch import Tensor

from .._tracing import traced_offset
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
        ``(*position_ids.shape, d_model)``.

    Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.5.

    >>> P.sinusoidal_encoding(torch.tensor([0, 1]), P.sinusoidal_inv_freq(4), 4)
    tensor([[0.0000, 1.0000, 0.0000, 1.0000],
            [0.8415, 0.5403, 0.0100, 0.9999]])
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

    >>> x = torch.zeros(1, 2, 4)
    >>> P.add_sinusoidal(x, P.sinusoidal_inv_freq(4), offset=1)
    tensor([[[ 0.8415,  0.5403,  0.0100,  0.9999],
             [ 0.9093, -0.4161,  0.0200,  0.9998]]])
    """
    if not torch.jit.is_scripting():
        if type(offset) is not int:
            position_ids, offset = traced_offset(x, position_ids, offset, seq_dim)
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
        IndexError: a position outside ``[0, max_len)``, with the position and the limit. For
            ``position_ids`` on a GPU the kernel stops instead, with the operator's name, as that
            of ``torch.nn.functional.embedding`` does: nothing waits to read them.

    >>> weight = torch.arange(8.0).view(4, 2)
    >>> P.add_positions(torch.zeros(1, 2, 2), weight, offset=1)
    tensor([[[2., 3.],
             [4., 5.]]])
    """
    if not torch.jit.is_scripting():
        if type(offset) is not int:
            position_ids, offset = traced_offset(x, position_ids, offset, seq_dim)
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

    Raises:
        IndexError: an id outside ``[0, vocab_size)``, with the id and the limit. On a GPU the
            kernel stops instead, with the operator's name: nothing waits to read the ids.

    >>> weight = torch.zeros(10, 4)
    >>> P.embed_tokens(torch.tensor([[3, 3]]), weight, P.sinusoidal_inv_freq(4), scale=2.0)
    tensor([[[0.0000, 1.0000, 0.0000, 1.0000],
             [0.8415, 0.5403, 0.0100, 0.9999]]])
    """
    if not torch.jit.is_scripting():
        if type(offset) is not int:
            position_ids, offset = traced_offset(input_ids, position_ids, offset, -1)
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

    >>> P.get_positional_encoding(2, 4)
    tensor([[0.0000, 1.0000, 0.0000, 1.0000],
            [0.8415, 0.5403, 0.0100, 0.9999]])
    """
    if not torch.jit.is_tracing() and seq_len < 0:
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

    >>> P.add_positional_encoding(torch.zeros(1, 2, 4))
    tensor([[[0.0000, 1.0000, 0.0000, 1.0000],
             [0.8415, 0.5403, 0.0100, 0.9999]]])
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
    if not torch.jit.is_scripting():
        if type(offset) is not int:
            position_ids, offset = traced_offset(embeddings, position_ids, offset, 1)
    return torch.ops.posenc.add_sinusoidal(
        embeddings,
        sinusoidal_inv_freq(embeddings.size(2), base),
        position_ids,
        offset,
        1,
        True,
        1.0,
    )
