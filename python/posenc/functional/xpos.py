"""xPos: a rotation whose pairs also fade with distance."""

import torch
from torch import Tensor

from .._tracing import traced_offset


def xpos_embedding(
    x: Tensor,
    inv_freq: list[float],
    position_ids: Tensor | None = None,
    offset: int = 0,
    seq_dim: int = 1,
    interleaved: bool = True,
    rotary_start: int = 0,
    scale_base: float = 512.0,
    centre: float = 0.0,
    gamma: float = 0.4,
    is_key: bool = False,
) -> Tensor:
    """xPos: `rotary_embedding` whose pair i of a query at position p is scaled by
    ``zeta_i ** ((p - centre) / scale_base)``, and that of a key by the inverse, with
    ``zeta_i = (2 i + gamma dim) / ((1 + gamma) dim)``.

    q.k then holds ``zeta_i ** ((p_q - p_k) / scale_base)``: the farther the key, the less the fast
    pairs count. The centre cancels as long as all q and k have the same one. It is a fixed number,
    so keys of a cache stay right.

    Args:
        x: (..., D), a query or a key, any strides, usually (B, L, H, D).
        inv_freq: n frequencies in radians per position; dim = 2 n channels are rotated and scaled.
        position_ids, offset, seq_dim, interleaved, rotary_start: as in `rotary_embedding`, with
            positions of one axis.
        scale_base: positions in which the scale of pair i goes down by zeta_i; 512 in the paper.
        centre: the position of scale 1, the same for all calls of a model.
        gamma: 0.4 in the paper.
        is_key: x holds keys.

    Returns:
        x's shape and dtype.

    Raises:
        ValueError: a position farther from the centre than the scale can be held in x's dtype
            (`xpos_reach`); the message names position, limit and remedy. On a GPU, positions
            given as a tensor stop the program by torch's own device assertion instead.

    Source: Sun et al. 2022, arXiv:2212.10554.

    >>> inv_freq = P.rope_inv_freq(64)
    >>> q = P.xpos_embedding(torch.randn(2, 100, 8, 64), inv_freq)
    >>> k = P.xpos_embedding(torch.randn(2, 100, 2, 64), inv_freq, is_key=True)
    >>> q.shape, k.shape
    (torch.Size([2, 100, 8, 64]), torch.Size([2, 100, 2, 64]))
    """
    if not torch.jit.is_scripting():
        if type(offset) is not int:
            position_ids, offset = traced_offset(x, position_ids, offset, seq_dim)
    return torch.ops.posenc.xpos_embedding(
        x, inv_freq, position_ids, offset, seq_dim, interleaved, rotary_start, scale_base, centre,
        gamma, is_key,
    )  # fmt: skip


def xpos_reach(dtype: torch.dtype, scale_base: float = 512.0, gamma: float = 0.4) -> float:
    """The farthest distance from the centre that `xpos_embedding` serves in a dtype.

    There the scale of the fastest pair is 2^110 or 2^-110 (float32, bfloat16), 2^+-8 (float16),
    2^+-1000 (float64), which leaves a factor of 2^16 (float16: 2^6) either way to the values of x.
    It grows in proportion to ``scale_base``: 31161 positions in float32 at 512, 2266 in float16.

    >>> int(P.xpos_reach(torch.float16))
    2266
    """
    from .. import _C

    return _C.xpos_reach(dtype, scale_base, gamma)
