"""What users have today: the formulas written out in eager torch, the same compiled, and packages.

Each maker returns a callable, or raises ImportError where a package is not installed.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from .._extras import need


# ------------------------------------------------------------------------------------- rotation
def cos_sin(width: int, length: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Tables as transformers makes them: (1, L, width), each frequency twice."""
    inv_freq = 1.0 / 10000.0 ** (torch.arange(0, width, 2, dtype=torch.float) / width)
    phase = torch.outer(torch.arange(length, dtype=torch.float), inv_freq)
    both = torch.cat((phase, phase), -1)[None]
    return both.cos().to(dtype), both.sin().to(dtype)


def _turned_half(x: Tensor) -> Tensor:
    half = x.size(-1) // 2
    return torch.cat((-x[..., half:], x[..., :half]), -1)


def _turned_pairs(x: Tensor) -> Tensor:
    return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)


def _eager(
    x: Tensor, seq_dim: int, interleaved: bool
) -> tuple[Callable[..., Tensor], Tensor, Tensor]:
    """x cos + turned(x) sin as a function of (x, cos, sin), and tables that fit x."""
    cos, sin = cos_sin(x.size(-1), x.size(seq_dim), x.dtype)
    if interleaved:
        half = x.size(-1) // 2
        cos, sin = (t[..., :half].repeat_interleave(2, -1) for t in (cos, sin))
    head_axis = 3 - seq_dim
    turned = _turned_pairs if interleaved else _turned_half
    return (
        lambda x, cos, sin: x * cos + turned(x) * sin,
        cos.unsqueeze(head_axis),
        sin.unsqueeze(head_axis),
    )


def eager_rotation(x: Tensor, seq_dim: int, interleaved: bool) -> Callable[[], Tensor]:
    """Rotation by ready tables."""
    function, cos, sin = _eager(x, seq_dim, interleaved)
    return lambda: function(x, cos, sin)


def compiled_rotation(x: Tensor, seq_dim: int, interleaved: bool) -> Callable[[], Tensor]:
    """The same under torch.compile."""
    function, cos, sin = _eager(x, seq_dim, interleaved)
    torch.compiler.reset()
    compiled = torch.compile(function, dynamic=False)
    return lambda: compiled(x, cos, sin)


def rotary_embedding_torch(x: Tensor, seq_dim: int) -> Callable[[], Tensor]:
    """The package of that name (pairs)."""
    package = need("rotary_embedding_torch", "bench", "benchmark")
    layer = package.RotaryEmbedding(dim=x.size(-1))
    return lambda: layer.rotate_queries_or_keys(x, seq_dim=seq_dim - x.dim())


def x_transformers(x: Tensor) -> Callable[[], Tensor]:
    """The package of that name, for x (B, H, L, D)."""
    package = need("x_transformers.x_transformers", "bench", "benchmark")
    apply_rotary_pos_emb = package.apply_rotary_pos_emb
    freqs, scale = package.RotaryEmbedding(x.size(-1))(torch.arange(x.size(2)))
    return lambda: apply_rotary_pos_emb(x, freqs, scale)


def liger(q: Tensor, k: Tensor) -> Callable[[], object]:
    """Liger-Kernel's Triton rotation (halves) of q and k (B, H, L, D), by ready tables."""
    from liger_kernel.transformers.rope import liger_rotary_pos_emb

    cos, sin = cos_sin(q.size(-1), q.size(2), q.dtype)
    return lambda: liger_rotary_pos_emb(q, k, cos, sin)


# ------------------------------------------------------------------------------------ attention
def alibi_mask(slopes: list[float], length: int, dtype: torch.dtype) -> Tensor:
    """(1, H, L, L): the bias with the causal mask, as eager code builds it."""
    distance = torch.arange(length)[None] - torch.arange(length)[:, None]
    bias = torch.tensor(slopes)[:, None, None] * distance
    return bias.masked_fill(distance > 0, float("-inf"))[None].to(dtype)


def dense_mask_attention(
    q: Tensor, k: Tensor, v: Tensor, slopes: list[float]
) -> Callable[[], Tensor]:
    """torch's attention with that mask."""
    mask = alibi_mask(slopes, q.size(2), q.dtype)
    return lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def flex_function(slopes: list[float], length: int) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """FlexAttention with the bias and a causal block mask, compiled, for the default device."""
    from torch.nn.attention.flex_attention import create_block_mask
    from torch.nn.attention.flex_attention import flex_attention as flex

    table = torch.tensor(slopes)

    def bias(score, b, h, i, j):
        return score + table[h] * (j - i)

    def causal(b, h, i, j):
        return i >= j

    blocks = create_block_mask(causal, None, None, length, length, device=table.device.type)
    torch.compiler.reset()
    compiled = torch.compile(flex, dynamic=False)
    return lambda q, k, v: compiled(q, k, v, score_mod=bias, block_mask=blocks)


def flex_attention(q: Tensor, k: Tensor, v: Tensor, slopes: list[float]) -> Callable[[], Tensor]:
    """The same on given tensors."""
    function = flex_function(slopes, q.size(2))
    return lambda: function(q, k, v)


def eager_softmax(scores: Tensor, slopes: list[float], scale: float) -> Callable[[], Tensor]:
    """softmax(scores scale + mask) with the mask of `alibi_mask`."""
    mask = alibi_mask(slopes, scores.size(-1), scores.dtype)
    return lambda: torch.softmax(scores * scale + mask, -1)


def compiled_softmax(scores: Tensor, slopes: list[float], scale: float) -> Callable[[], Tensor]:
    """The same under torch.compile, the bias computed inside."""
    table = torch.tensor(slopes)[:, None, None]
    index = torch.arange(scores.size(-1))

    def function(scores: Tensor, table: Tensor, index: Tensor) -> Tensor:
        distance = index[None] - index[:, None]
        biased = scores.float() * scale + table * distance
        biased = biased.masked_fill(distance > 0, float("-inf"))
        return torch.softmax(biased, -1).to(scores.dtype)

    torch.compiler.reset()
    compiled = torch.compile(function, dynamic=False)
    return lambda: compiled(scores, table, index)
