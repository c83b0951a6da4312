"""`XPosRotaryEmbedding`."""

import torch
from torch import Tensor

from .. import _C
from .._layer import ROTARY_KEYS, Layer, any_int, positive_int, positive_real, real
from ..functional.xpos import xpos_embedding

_HOMES = ("rope.", "xpos.", "rotary_emb.", "rotary_pos_emb.", "")


class XPosRotaryEmbedding(Layer):
    """xPos: RoPE whose fast pairs fade with distance, for lengths beyond the trained one.

    Pair i of a query at position p is rotated and scaled by
    ``zeta_i ** ((p - centre) / scale_base)``, of a key by the inverse, so that q.k holds
    ``zeta_i ** ((p_q - p_k) / scale_base)``. Meant for causal attention: of a key after its query
    the fast pairs grow.

    Args:
        head_dim: head width D: the last axis of q and k.
        base: theta, 10000 in the paper.
        scale_base: positions in which the scale of pair i goes down by zeta_i, 512 in the paper.
        centre: the position of scale 1. It cancels in q.k, so any number does as long as it never
            changes: keys of a cache hold it. (Other codes centre on the length of each call, after
            which cached keys are wrong.) What it decides is the reach, below.
        interleaved: pairs are channels (2i, 2i + 1); False: (i, i + rotary_dim / 2).
        seq_dim: the axis of q and k that is time: 1 for (B, L, H, D), 2 for (B, H, L, D).
        gamma: of ``zeta_i = (2 i + gamma dim) / ((1 + gamma) dim)``, 0.4 in the paper.
        rotary_dim: number of rotated channels, even; None: all from ``rotary_start`` on.
        rotary_start: first rotated channel.

    The scale must fit the dtype of q and k: positions farther from the centre than
    `posenc.functional.xpos_reach` (31161 in float32 and bfloat16 with scale_base 512, 2266 in
    float16) are a ``ValueError``; a larger ``scale_base`` reaches farther in proportion.

    The layer holds no tensor. Source: Sun et al. 2022, arXiv:2212.10554.

    >>> xpos = posenc.XPosRotaryEmbedding(64)
    >>> q, k = xpos.rotate(torch.randn(2, 100, 8, 64), torch.randn(2, 100, 2, 64))
    >>> q.shape, k.shape
    (torch.Size([2, 100, 8, 64]), torch.Size([2, 100, 2, 64]))
    """

    inv_freq: list[float]

    _legacy_keys = ROTARY_KEYS | frozenset(home + "scale" for home in _HOMES)

    def __init__(
        self,
        head_dim: int,
        base: float = 10000.0,
        scale_base: float = 512.0,
        centre: float = 0.0,
        interleaved: bool = True,
        seq_dim: int = 1,
        gamma: float = 0.4,
        *,
        rotary_dim: int | None = None,
        rotary_start: int = 0,
    ) -> None:
        super().__init__()
        where = type(self).__name__
        self.head_dim = positive_int(where, "head_dim", head_dim)
        self.base = positive_real(where, "base", base)
        self.scale_base = positive_real(where, "scale_base", scale_base)
        self.centre = real(where, "centre", centre)
        self.interleaved = bool(interleaved)
        self.seq_dim = any_int(where, "seq_dim", seq_dim)
        self.gamma = positive_real(where, "gamma", gamma)
        self.rotary_start = any_int(where, "rotary_start", rotary_start)
        options = _C.XPosRotaryEmbeddingOptions(self.head_dim)
        options.base = self.base
        options.scale_base = self.scale_base
        options.centre = self.centre
        options.gamma = self.gamma
        if rotary_dim is not None:
            options.rotary_dim = any_int(where, "rotary_dim", rotary_dim)
        options.rotary_start = self.rotary_start
        options.check()
        self.rotary_dim = options.width()
        self.inv_freq = list(options.inv_freq())

    def _turn(self, x: Tensor, position_ids: Tensor | None, offset: int, is_key: bool) -> Tensor:
        if not torch.jit.is_tracing() and x.size(-1) != self.head_dim:
            raise ValueError(
                "XPosRotaryEmbedding: expected the last axis of x to be "
                f"head_dim = {self.head_dim}, got shape {list(x.shape)}"
            )
        return xpos_embedding(
            x,
            self.inv_freq,
            position_ids,
            offset,
            self.seq_dim,
            self.interleaved,
            self.rotary_start,
            self.scale_base,
            self.centre,
            self.gamma,
            is_key,
        )

    def forward(
        self,
        x: Tensor,
        position_ids: Tensor | None = None,
        offset: int = 0,
        is_key: bool = False,
    ) -> Tensor:
        """Rotates and scales queries, or keys with ``is_key``.

        Args:
            x: (B, L, H, D), or another shape with time on ``seq_dim``.
            position_ids: (L), (1, L) or (B, L), integer or real. None: 0 ... L - 1.
            offset: added to every position: the number of tokens before this call.
            is_key: scale by the inverse.

        Returns:
            x's shape and dtype.
        """
        return self._turn(x, position_ids, offset, is_key)

    @torch.jit.export
    def rotate(
        self, q: Tensor, k: Tensor, position_ids: Tensor | None = None, offset: int = 0
    ) -> tuple[Tensor, Tensor]:
        """q and k, whose head counts may differ, at the same positions."""
        return (
            self._turn(q, position_ids, offset, False),
            self._turn(k, position_ids, offset, True),
        )

    def extra_repr(self) -> str:
        text = f"{self.head_dim}, base={self.base:g}, scale_base={self.scale_base:g}"
        text += f", centre={self.centre:g}, interleaved={self.interleaved}"
        if self.gamma != 0.4:
            text += f", gamma={self.gamma:g}"
        if self.rotary_dim != self.head_dim:
            text += f", rotary_dim={self.rotary_dim}, rotary_start={self.rotary_start}"
        if self.seq_dim != 1:
            text += f", seq_dim={self.seq_dim}"
        return text
