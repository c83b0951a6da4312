"""Positions that are added to the embeddings: sinusoidal, learned, and with the token embedding."""

import math

import torch
from torch import Tensor, nn

from . import _C
from ._layer import INDEX_KEYS, TABLE_KEYS, Layer, any_int, positive_int, positive_real, real
from .functional import (
    add_positional_encoding,
    add_positions,
    add_sinusoidal,
    embed_tokens,
    get_positional_encoding,
)

__all__ = [
    "LearnedPositionalEncoding",
    "SinusoidalPositionalEncoding",
    "TransformerEmbedding",
    "add_positional_encoding",
    "get_positional_encoding",
]


class SinusoidalPositionalEncoding(Layer):
    """``scale * x`` plus the sinusoidal encoding of each position.

    Args:
        d_model: width of x; odd widths leave out the last cosine.
        max_seq_len: no limit: kept for signatures that have one. Any position works.
        base: 10000 in the paper.
        interleaved: sin and cos alternate; False: all sines, then all cosines.
        scale: multiplies x (the paper: sqrt(d_model) for embeddings), not the encoding.
        seq_dim: the axis of x that is time; 0 for (L, B, d_model).
        spacing: of the frequencies, see `posenc.functional.sinusoidal_inv_freq`.

    Holds no tensor. Source: Vaswani et al. 2017, arXiv:1706.03762, section 3.5.

    >>> layer = posenc.SinusoidalPositionalEncoding(64, scale=8.0)
    >>> layer(torch.randn(2, 100, 64)).shape
    torch.Size([2, 100, 64])
    """

    inv_freq: list[float]

    _legacy_keys = TABLE_KEYS

    def __init__(
        self,
        d_model: int,
        max_seq_len: int = 5000,
        base: float = 10000.0,
        *,
        interleaved: bool = True,
        scale: float = 1.0,
        seq_dim: int = 1,
        spacing: str = "standard",
    ) -> None:
        super().__init__()
        where = type(self).__name__
        self.d_model = positive_int(where, "d_model", d_model)
        self.max_seq_len = positive_int(where, "max_seq_len", max_seq_len)
        self.base = positive_real(where, "base", base)
        self.interleaved = bool(interleaved)
        self.scale = real(where, "scale", scale)
        self.seq_dim = any_int(where, "seq_dim", seq_dim)
        self.spacing = spacing
        self.inv_freq = list(_C.sinusoidal_inv_freq(self.d_model, self.base, spacing))

    def forward(self, x: Tensor, position_ids: Tensor | None = None, offset: int = 0) -> Tensor:
        """Adds the encoding.

        Args:
            x: (B, L, d_model) (any rank >= 2 with time on ``seq_dim``).
            position_ids: (L), (1, L) or (B, L), integer or real; None: 0 ... L - 1.
            offset: added to every position.

        Returns:
            x's shape and dtype.
        """
        if not torch.jit.is_tracing() and x.size(-1) != self.d_model:
            raise ValueError(
                "SinusoidalPositionalEncoding: expected the last axis of x to be "
                f"d_model = {self.d_model}, got shape {list(x.shape)}"
            )
        return add_sinusoidal(
            x, self.inv_freq, position_ids, offset, self.seq_dim, self.interleaved, self.scale
        )

    def extra_repr(self) -> str:
        text = f"{self.d_model}, base={self.base:g}, interleaved={self.interleaved}"
        if self.scale != 1.0:
            text += f", scale={self.scale:g}"
        if self.spacing != "standard":
            text += f", spacing={self.spacing!r}"
        if self.seq_dim != 1:
            text += f", seq_dim={self.seq_dim}"
        return text


class LearnedPositionalEncoding(Layer):
    """x plus a learned row for each position.

    Args:
        max_len: number of positions; past it is an ``IndexError``.
        d_model: width of x.
        position_offset: rows before position 0 (OPT: 2; RoBERTa: padding_idx + 1): the table has
            ``max_len + position_offset`` rows and position p reads row ``p + position_offset``.
        seq_dim: the axis of x that is time; 0 for (L, B, d_model).
        device, dtype: of the table.

    The table is ``positional_embeddings`` (an ``nn.Embedding``), normal with std 0.02, as in GPT-2
    and BERT.

    >>> layer = posenc.LearnedPositionalEncoding(512, 64)
    >>> layer(torch.randn(2, 100, 64), offset=12).shape
    torch.Size([2, 100, 64])
    >>> layer(torch.randn(2, 1, 64), offset=512)
    Traceback (most recent call last):
        ...
    IndexError: add_positions: expected positions in [0, 512), the rows of the table, got ...
    """

    _legacy_keys = INDEX_KEYS

    def __init__(
        self,
        max_len: int,
        d_model: int,
        *,
        position_offset: int = 0,
        seq_dim: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        where = type(self).__name__
        self.max_len = positive_int(where, "max_len", max_len)
        self.d_model = positive_int(where, "d_model", d_model)
        self.position_offset = any_int(where, "position_offset", position_offset)
        if self.position_offset < 0:
            raise ValueError(f"{where}: expected position_offset >= 0, got {position_offset}")
        self.seq_dim = any_int(where, "seq_dim", seq_dim)
        self.positional_embeddings = nn.Embedding(
            self.max_len + self.position_offset, self.d_model, device=device, dtype=dtype
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the table anew: normal, std 0.02."""
        nn.init.normal_(self.positional_embeddings.weight, std=0.02)

    def forward(self, x: Tensor, position_ids: Tensor | None = None, offset: int = 0) -> Tensor:
        """Adds the rows.

        Args:
            x: (B, L, d_model) (any rank >= 2 with time on ``seq_dim``).
            position_ids: (L), (1, L) or (B, L), integer; None: 0 ... L - 1.
            offset: added to every position.

        Raises:
            IndexError: a position outside [0, max_len), with the position and the limit.
        """
        if not torch.jit.is_tracing() and x.size(-1) != self.d_model:
            raise ValueError(
                "LearnedPositionalEncoding: expected the last axis of x to be "
                f"d_model = {self.d_model}, got shape {list(x.shape)}"
            )
        weight = self.positional_embeddings.weight
        if self.position_offset > 0:
            weight = weight[self.position_offset :]
        return add_positions(x, weight, position_ids, offset, self.seq_dim)

    def extra_repr(self) -> str:
        text = f"max_len={self.max_len}, d_model={self.d_model}"
        if self.position_offset:
            text += f", position_offset={self.position_offset}"
        if self.seq_dim != 1:
            text += f", seq_dim={self.seq_dim}"
        return text


class TransformerEmbedding(Layer):
    """Token embedding x sqrt(d_model) plus the sinusoidal encoding, in one pass.

    Args:
        vocab_size: number of tokens.
        d_model: width.
        max_len: no limit: kept for the article's signature. Any length works.
        padding_idx: a token whose row starts at 0 and gets no gradient.
        scale: what multiplies the embedding (never the encoding); None: sqrt(d_model). ``False``
            or 1.0 leaves it as it is.
        base: of the encoding, 10000 in the paper.
        interleaved: sin and cos alternate; False: all sines, then all cosines.
        spacing: of the frequencies, see `posenc.functional.sinusoidal_inv_freq`.
        device, dtype: of the table.

    The table is ``token_embedding`` (an ``nn.Embedding``).
    Source: Vaswani et al. 2017, arXiv:1706.03762, sections 3.4 and 3.5.

    >>> embed = posenc.TransformerEmbedding(vocab_size=1000, d_model=64, padding_idx=0)
    >>> embed(torch.tensor([[5, 7, 0], [9, 2, 4]])).shape
    torch.Size([2, 3, 64])
    """

    inv_freq: list[float]

    _legacy_keys = TABLE_KEYS

    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        max_len: int = 5000,
        *,
        padding_idx: int | None = None,
        scale: float | None = None,
        base: float = 10000.0,
        interleaved: bool = True,
        spacing: str = "standard",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        where = type(self).__name__
        self.vocab_size = positive_int(where, "vocab_size", vocab_size)
        self.d_model = positive_int(where, "d_model", d_model)
        self.max_len = positive_int(where, "max_len", max_len)
        self.base = positive_real(where, "base", base)
        self.interleaved = bool(interleaved)
        if scale is None or scale is True:
            self.scale = math.sqrt(self.d_model)
        elif scale is False:
            self.scale = 1.0
        else:
            self.scale = real(where, "scale", scale)
        self.spacing = spacing
        self.inv_freq = list(_C.sinusoidal_inv_freq(self.d_model, self.base, spacing))
        if padding_idx is not None:
            padding_idx = any_int(where, "padding_idx", padding_idx)
            if not -self.vocab_size <= padding_idx < self.vocab_size:
                raise ValueError(
                    f"{where}: expected padding_idx within the vocabulary of {self.vocab_size}, "
                    f"got {padding_idx}"
                )
            padding_idx %= self.vocab_size
        self.padding_idx = -1 if padding_idx is None else padding_idx
        self.token_embedding = nn.Embedding(
            self.vocab_size, self.d_model, padding_idx, device=device, dtype=dtype
        )

    def forward(
        self, input_ids: Tensor, position_ids: Tensor | None = None, offset: int = 0
    ) -> Tensor:
        """Embeds tokens.

        Args:
            input_ids: (B, L) or (L), integer.
            position_ids: (L), (1, L) or (B, L), integer or real; None: 0 ... L - 1.
            offset: added to every position.

        Returns:
            (B, L, d_model) or (L, d_model).
        """
        return embed_tokens(
            input_ids,
            self.token_embedding.weight,
            self.inv_freq,
            position_ids,
            offset,
            self.interleaved,
            self.scale,
            self.padding_idx,
        )

    def extra_repr(self) -> str:
        text = f"{self.vocab_size}, {self.d_model}, scale={self.scale:g}"
        if self.padding_idx >= 0:
            text += f", padding_idx={self.padding_idx}"
        return text
