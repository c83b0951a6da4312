"""`LongSequenceRoPE`."""

import torch
from torch import Tensor

from .. import _C
from .._layer import ROTARY_KEYS, Layer, positive_int, positive_real
from ..functional.rotary import rotary_embedding


class LongSequenceRoPE(Layer):
    """RoPE for long sequences, whole or chunk by chunk, with bitwise equal results.

    Args:
        head_dim: D, even.
        chunk_size: tokens a chunk.
        base: theta, 10000 in the paper.
        interleaved: pairs are channels (2i, 2i + 1); False: (i, i + D / 2).

    No table of cos and sin exists either way: the operator walks the tokens in blocks.
    Source: Su et al. 2021, arXiv:2104.09864.

    >>> rope = posenc.LongSequenceRoPE(64)
    >>> x = torch.randn(1, 3000, 2, 64)
    >>> torch.equal(rope(x, use_chunking=True), rope(x, use_chunking=False))
    True
    """

    inv_freq: list[float]

    _legacy_keys = ROTARY_KEYS

    def __init__(
        self,
        head_dim: int,
        chunk_size: int = 1024,
        base: float = 10000.0,
        *,
        interleaved: bool = True,
    ) -> None:
        super().__init__()
        where = type(self).__name__
        self.head_dim = positive_int(where, "head_dim", head_dim)
        if self.head_dim % 2:
            raise ValueError(f"{where}: expected head_dim to be even, got {head_dim}")
        self.chunk_size = positive_int(where, "chunk_size", chunk_size)
        self.base = positive_real(where, "base", base)
        self.interleaved = bool(interleaved)
        self.inv_freq = list(_C.rope_inv_freq(self.head_dim, self.base))

    def forward(
        self,
        x: Tensor,
        use_chunking: bool = True,
        position_ids: Tensor | None = None,
        offset: int = 0,
    ) -> Tensor:
        """Rotates x.

        Args:
            x: (B, L, H, D).
            use_chunking: kept from the article, where it bounds the memory of cos and sin tables.
                There are none here: both ways run the same call over blocks of tokens, whose only
                memory is the output.
            position_ids: (L), (1, L) or (B, L); None: 0 ... L - 1.
            offset: added to every position.

        Returns:
            x's shape and dtype.
        """
        if not torch.jit.is_tracing() and (x.dim() != 4 or x.size(-1) != self.head_dim):
            raise ValueError(
                "LongSequenceRoPE: expected x of shape (batch, length, heads, "
                f"{self.head_dim}), got {list(x.shape)}"
            )
        # The operator needs no memory beyond its output and walks tokens in blocks by itself, so
        # cutting x up here could only add copies: both ways are the one fused call.
        return rotary_embedding(
            x, self.inv_freq, position_ids, offset, 1, self.interleaved, None, 0, 1.0, None, False
        )

    def extra_repr(self) -> str:
        return (
            f"{self.head_dim}, chunk_size={self.chunk_size}, base={self.base:g}, "
            f"interleaved={self.interleaved}"
        )
