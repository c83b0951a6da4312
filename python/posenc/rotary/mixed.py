"""`MixedRotaryEmbedding`: RoPE whose learned frequencies mix the axes of a grid."""

import math

import torch
from torch import Tensor, nn

from .. import _C
from .._layer import ROTARY_KEYS, Layer, any_int, positive_int, positive_real


class MixedRotaryEmbedding(Layer):
    """RoPE-Mixed: pair i of a head turns by ``y freqs[0, h, i] + x freqs[1, h, i]``, learned.

    Args:
        head_dim: D, the last axis of x; a multiple of 4.
        n_heads: H.
        base: theta of the frequencies from which training sets out: 10 as published.
        per_head: frequencies for each head; False: shared by all heads, which is a learned linear
            map of the coordinates, as in LightGlue.
        interleaved: pairs (2i, 2i + 1) as published; False: (i, i + D / 2).
        n_prefix, n_suffix: tokens at the beginning and the end of the sequence that have no
            position (class token, registers); they pass bit for bit.
        seq_dim: the axis of x that is time: 1 for (B, L, H, D), 2 for (B, H, L, D).
        device, dtype: of the parameter.

    Attributes:
        freqs: parameter (2, H, D / 2), or (2, D / 2) where shared; ``freqs[a]`` multiplies
            ``position_ids[a]``, radians. Checkpoints of RoPE-ViT hold (x, y): they want positions
            in that order, ``position_ids.flip(0)``. So do LightGlue's, whose projection's weight
            is ``freqs.T``.

    The angle is computed in float64, whatever the parameter's dtype.

    Sources: Heo et al. 2024, arXiv:2403.13298; LightGlue, arXiv:2306.13643.

    >>> tower = posenc.MixedRotaryEmbedding(64, n_heads=12, n_prefix=1)  # a class token
    >>> position_ids = P.vision_position_ids(torch.tensor([[1, 4, 6]]))
    >>> tower(torch.randn(2, 25, 12, 64), position_ids).shape
    torch.Size([2, 25, 12, 64])
    """

    _legacy_keys = ROTARY_KEYS

    def __init__(
        self,
        head_dim: int,
        n_heads: int,
        base: float = 10.0,
        *,
        per_head: bool = True,
        interleaved: bool = True,
        n_prefix: int = 0,
        n_suffix: int = 0,
        seq_dim: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        where = type(self).__name__
        self.head_dim = positive_int(where, "head_dim", head_dim)
        self.n_heads = positive_int(where, "n_heads", n_heads)
        self.base = positive_real(where, "base", base)
        self.per_head = bool(per_head)
        self.interleaved = bool(interleaved)
        self.n_prefix = any_int(where, "n_prefix", n_prefix)
        self.n_suffix = any_int(where, "n_suffix", n_suffix)
        self.seq_dim = any_int(where, "seq_dim", seq_dim)
        options = _C.MixedRotaryEmbeddingOptions(self.head_dim, self.n_heads)
        options.base = self.base
        options.n_prefix = self.n_prefix
        options.n_suffix = self.n_suffix
        options.check()
        n = self.head_dim // 2
        shape = (2, self.n_heads, n) if self.per_head else (2, n)
        self.freqs = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Magnitudes ``base ** (-4 j / D)``, along a random direction of each head and across."""
        sets = self.n_heads if self.per_head else 1
        with torch.no_grad():
            like = {"device": self.freqs.device, "dtype": self.freqs.dtype}
            angles = torch.rand(sets, **like) * (2 * math.pi)
            values = torch.ops.posenc.mixed_rotary_freqs(angles, self.head_dim // 2, self.base)
            self.freqs.copy_(values.view_as(self.freqs))

    def _rotate(self, x: Tensor, position_ids: Tensor) -> Tensor:
        if not torch.jit.is_tracing() and x.size(-1) != self.head_dim:
            raise ValueError(
                f"MixedRotaryEmbedding: expected the last axis of x to be head_dim = "
                f"{self.head_dim}, got shape {list(x.shape)}"
            )
        return torch.ops.posenc.mixed_rotary_embedding(
            x,
            self.freqs,
            position_ids,
            0,
            self.seq_dim,
            self.interleaved,
            self.n_prefix,
            self.n_suffix,
            False,
        )

    def forward(self, x: Tensor, position_ids: Tensor) -> Tensor:
        """Rotates x.

        Args:
            x: (B, L, H, D), or with time on ``seq_dim``.
            position_ids: (2, L), the same for each row of the batch, or (2, B, L), of the tokens
                between prefix and suffix: row (y) and column (x); integer or real.

        Returns:
            x's shape and dtype.
        """
        return self._rotate(x, position_ids)

    @torch.jit.export
    def rotate(self, q: Tensor, k: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Rotates q and k by the same positions; with ``per_head`` both have H heads."""
        return self._rotate(q, position_ids), self._rotate(k, position_ids)

    def extra_repr(self) -> str:
        text = f"{self.head_dim}, {self.n_heads}, base={self.base:g}, per_head={self.per_head}"
        text += f", interleaved={self.interleaved}"
        for name, default in (("n_prefix", 0), ("n_suffix", 0), ("seq_dim", 1)):
            if getattr(self, name) != default:
                text += f", {name}={getattr(self, name)}"
        return text
