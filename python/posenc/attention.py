"""Attention layers with rotary positions and with ALiBi, and the cache they decode with."""

import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import _C
from ._layer import (
    ALIBI_KEYS,
    ROTARY_KEYS,
    Layer,
    positive_int,
    positive_real,
    probability,
    real,
    split_heads,
)
from .functional import positions_from_offsets
from .rotary import RotaryPositionalEmbedding

__all__ = ["ALiBiAttention", "KVCache", "RoPEAttention"]


class KVCache(NamedTuple):
    """Keys and values of the tokens so far. All tensors have the batch as their first axis, so
    ``KVCache(*(t[rows] for t in cache))`` selects or reorders rows (beam search).

    Attributes:
        key: (B, Hkv, S, D), rotated where the layer rotates.
        value: (B, Hkv, S, D).
        positions: (B, S) int64 positions of the keys; (B, 0) while every row counts 0 ... S - 1.
        keep: (B, S) bool, False for padding; (B, 0) while there was none.
        lengths: (B) int64: the position of each row's next token.
        block_norms: (B, Hkv, S / 64 rounded up): the largest norm in each block of keys, by which
            ALiBi leaves far blocks unread; (B, Hkv, 0) where nothing needs it.

    >>> attention = posenc.RoPEAttention(64, 4, is_causal=True)
    >>> out, cache = attention.forward_cached(torch.randn(2, 10, 64))
    >>> cache.key.shape, cache.lengths
    (torch.Size([2, 4, 10, 16]), tensor([10, 10]))
    >>> best = posenc.KVCache(*(t[[1, 1]] for t in cache))  # the second row, twice
    """

    key: Tensor
    value: Tensor
    positions: Tensor
    keep: Tensor
    lengths: Tensor
    # Not key_norms: torch.export pastes field names into code and trips over one that begins with
    # another.
    block_norms: Tensor


# Exported programs are saved with the names of the containers that they return.
torch.utils._pytree._register_namedtuple(KVCache, serialized_type_name="posenc.KVCache")
# A tuple of tensors: torch.load may read it as it reads tensors.
torch.serialization.add_safe_globals([KVCache])


# ------------------------------------------------------------------------------ shared, scriptable
def _forward_mode() -> bool:
    """Forward-mode AD is active (torch.func.jvp as well): torch's fused attention has no such
    derivative."""
    return torch.autograd.forward_ad._current_level >= 0


def _check_broadcast(where: str, name: str, t: Tensor, B: int, H: int, L: int, S: int) -> None:
    if torch.jit.is_tracing():
        return
    full = [B, H, L, S]
    fits = t.dim() <= 4
    if fits:
        for i in range(t.dim()):
            size, want = t.size(t.dim() - 1 - i), full[3 - i]
            if size != 1 and size != want:
                fits = False
    if not fits:
        raise ValueError(
            f"{where}: expected {name} to broadcast to (batch, heads, length, keys) = "
            f"{full}, got shape {list(t.shape)}"
        )


def _dtype_name(dtype: torch.dtype) -> str:
    """The dtype as torch writes it; TorchScript writes a number."""
    if not torch.jit.is_scripting():
        return str(dtype)
    for known, name in [
        (torch.bool, "torch.bool"),
        (torch.uint8, "torch.uint8"),
        (torch.int8, "torch.int8"),
        (torch.int16, "torch.int16"),
        (torch.int32, "torch.int32"),
        (torch.int64, "torch.int64"),
        (torch.float16, "torch.float16"),
        (torch.bfloat16, "torch.bfloat16"),
        (torch.float32, "torch.float32"),
        (torch.float64, "torch.float64"),
    ]:
        if dtype == known:
            return name
    return "another one"


def _check_bias(where: str, bias: Tensor, B: int, H: int, L: int, S: int) -> None:
    if not bias.is_floating_point():
        raise TypeError(
            f"{where}: expected attn_bias of a floating dtype (it is added to the scores; to block "
            f"positions use mask), got {_dtype_name(bias.dtype)}"
        )
    _check_broadcast(where, "attn_bias", bias, B, H, L, S)


def _keep_mask(
    where: str,
    mask: Tensor | None,
    padding: Tensor | None,
    B: int,
    H: int,
    L: int,
    S: int,
) -> Tensor | None:
    """Both masks as one bool mask, True where attention is allowed; None without any.

    mask: ``mask == 0`` blocks. padding: (B, S) bool, True for real tokens.
    """
    keep: Tensor | None = None
    if mask is not None:
        _check_broadcast(where, "mask", mask, B, H, L, S)
        keep = mask if mask.dtype == torch.bool else mask != 0
    if padding is not None:
        real_keys = padding[:, None, None, :]
        keep = real_keys if keep is None else keep & real_keys
    return keep


def _causal(L: int, S: int, device: torch.device) -> Tensor:
    """(L, S), True where a key is not later than the query; the last query is the last key."""
    i = torch.arange(L, device=device)[:, None] + (S - L)
    return torch.arange(S, device=device)[None, :] <= i


def _with_bias_blocks(keep: Tensor | None, bias: Tensor | None) -> Tensor | None:
    """A bias of -inf blocks like a mask."""
    if bias is None:
        return keep
    allowed = bias != -math.inf
    return allowed if keep is None else keep & allowed


def _broken_keys(k: Tensor, v: Tensor) -> Tensor:
    """(B, 1, 1, S): keys with a NaN or infinity in any head (the output mixes the heads)."""
    # The largest magnitude tells both (amax hands NaN on) and costs a tenth of a norm over rows.
    sound = torch.isfinite(k.detach().abs().amax([1, 3])) & torch.isfinite(
        v.detach().abs().amax([1, 3])
    )
    return ~sound[:, None, None, :]


def _dense_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    groups: int,
    bias: Tensor | None,
    keep: Tensor | None,
    dropout: float,
) -> Tensor:
    """softmax(q k' / sqrt(D) + bias) v with all scores in memory, float32 (float64) inside.

    groups: query heads that share a key head.

    For what the fused paths cannot do. Plain differentiable calls: any order, any mode.
    """
    dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    if groups > 1:
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = torch.matmul(q, k.transpose(-2, -1)).to(dtype) / math.sqrt(q.size(-1))
    if bias is not None:
        scores = scores + bias.to(dtype)
    if keep is None:
        weights = torch.softmax(scores, -1)
    else:
        live = keep.any(dim=-1, keepdim=True)
        scores = scores.masked_fill(~(keep | ~live), -math.inf)
        weights = torch.softmax(scores, -1).masked_fill(~(keep & live), 0.0)
        # A broken value must not reach the queries that may not see it (0 * NaN is NaN).
        broken = _broken_keys(k, v)
        v = v.masked_fill(broken.transpose(-2, -1), 0.0)
        weights = weights.masked_fill(keep & broken, math.nan)
    weights = F.dropout(weights, dropout, True)
    return torch.matmul(weights.to(v.dtype), v).to(q.dtype)


def _fused_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    groups: int,
    bias: Tensor | None,
    keep: Tensor | None,
    is_causal: bool,
    dropout: float,
) -> Tensor:
    """torch's scaled_dot_product_attention, with a meaning for rows and keys that it leaves open.

    A row without an allowed key is 0 (not NaN, not the mean of v) with zero gradients, and a NaN
    in a blocked key or value stays there. is_causal only without bias and keep.
    """
    keep = _with_bias_blocks(keep, bias)
    if keep is None and not is_causal:
        return F.scaled_dot_product_attention(q, k, v, None, dropout, False, enable_gqa=groups > 1)
    if keep is None:
        broken = _broken_keys(k, v)
        k = k.masked_fill(broken.transpose(-2, -1), 0.0)
        v = v.masked_fill(broken.transpose(-2, -1), 0.0)
        out = F.scaled_dot_product_attention(q, k, v, None, dropout, True, enable_gqa=groups > 1)
        # The first broken key and every later query: they may see it.
        poisoned = broken.to(torch.int32).cumsum(-1).transpose(-2, -1) > 0
        return out.masked_fill(poisoned, math.nan)
    live = keep.any(dim=-1, keepdim=True)
    broken = _broken_keys(k, v)
    poisoned = (keep & broken).any(dim=-1, keepdim=True)
    k = k.masked_fill(broken.transpose(-2, -1), 0.0)
    v = v.masked_fill(broken.transpose(-2, -1), 0.0)
    if bias is None:
        attn_mask = keep | ~live
    else:
        blocked = torch.zeros_like(live, dtype=q.dtype).masked_fill(live, -math.inf)
        attn_mask = torch.where(keep, bias.to(q.dtype), blocked)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask, dropout, False, enable_gqa=groups > 1)
    return out.masked_fill(~live, 0.0).masked_fill(poisoned, math.nan)


class _Attention(Layer):
    """Projections, checks and cache bookkeeping of both attention layers."""

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        n_kv_heads: int | None,
        is_causal: bool,
        bias: bool,
        dropout: float,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        self.name = type(self).__name__
        self.d_model = positive_int(self.name, "d_model", d_model)
        self.n_heads = positive_int(self.name, "n_heads", n_heads)
        self.head_dim, self.n_kv_heads = split_heads(
            self.name, self.d_model, self.n_heads, n_kv_heads
        )
        self.groups = self.n_heads // self.n_kv_heads
        self.is_causal = bool(is_causal)
        self.dropout = probability(self.name, "dropout", dropout)
        kv = self.n_kv_heads * self.head_dim
        self.query_proj = nn.Linear(d_model, d_model, bias=bias, device=device, dtype=dtype)
        self.key_proj = nn.Linear(d_model, kv, bias=bias, device=device, dtype=dtype)
        self.value_proj = nn.Linear(d_model, kv, bias=bias, device=device, dtype=dtype)
        self.out_proj = nn.Linear(d_model, d_model, bias=bias, device=device, dtype=dtype)

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q (B, L, H, D), k and v (B, L, Hkv, D)."""
        if not torch.jit.is_tracing() and (x.dim() != 3 or x.size(-1) != self.d_model):
            raise ValueError(
                f"{self.name}: expected x of shape (batch, length, {self.d_model}), "
                f"got {list(x.shape)}"
            )
        q = self.query_proj(x).unflatten(-1, [self.n_heads, self.head_dim])
        k = self.key_proj(x).unflatten(-1, [self.n_kv_heads, self.head_dim])
        v = self.value_proj(x).unflatten(-1, [self.n_kv_heads, self.head_dim])
        return q, k, v

    def _padding(self, key_padding_mask: Tensor | None, x: Tensor, past: int) -> Tensor | None:
        """key_padding_mask as bool, True for real tokens: (B, L), or (B, past + L)."""
        if key_padding_mask is None:
            return None
        if not torch.jit.is_tracing() and (
            key_padding_mask.dim() != 2
            or key_padding_mask.size(0) != x.size(0)
            or (
                key_padding_mask.size(1) != x.size(1)
                and key_padding_mask.size(1) != past + x.size(1)
            )
        ):
            also = f" or with the cached ones {[x.size(0), past + x.size(1)]}" if past > 0 else ""
            raise ValueError(
                f"{self.name}: expected key_padding_mask of shape (batch, length) = "
                f"{[x.size(0), x.size(1)]}{also}, True or nonzero for real tokens, got "
                f"{list(key_padding_mask.shape)}"
            )
        return key_padding_mask if key_padding_mask.dtype == torch.bool else key_padding_mask != 0

    def _cached_padding(
        self, key_padding_mask: Tensor | None, x: Tensor, cache: KVCache | None
    ) -> tuple[Tensor | None, KVCache | None]:
        """Padding (B, L) of the new tokens; and the cache, told about its own keys where the mask
        covers those as well."""
        past = 0
        if cache is not None:
            past = cache.key.size(2)
        padding = self._padding(key_padding_mask, x, past)
        if padding is not None and cache is not None and past > 0 and padding.size(1) != x.size(1):
            cache = KVCache(
                cache.key,
                cache.value,
                cache.positions,
                padding[:, :past],
                cache.lengths,
                cache.block_norms,
            )
            padding = padding[:, past:]
        return padding, cache

    def _output(self, out: Tensor) -> Tensor:
        """(B, H, L, D) to (B, L, d_model), projected."""
        return self.out_proj(out.transpose(1, 2).flatten(2))

    def _row_positions(self, position_ids: Tensor, x: Tensor) -> Tensor:
        """position_ids as (B, L)."""
        if not torch.jit.is_tracing() and (
            position_ids.dim() < 1
            or position_ids.dim() > 2
            or position_ids.size(-1) != x.size(1)
            or (
                position_ids.dim() == 2
                and position_ids.size(0) != 1
                and position_ids.size(0) != x.size(0)
            )
        ):
            raise ValueError(
                f"{self.name}: expected position_ids of shape (length), (1, length) or "
                f"(batch, length) for x of shape {list(x.shape)}, got "
                f"{list(position_ids.shape)}"
            )
        return position_ids.expand(x.size(0), x.size(1))

    @torch.jit.export
    def empty_cache(self, batch_size: int) -> KVCache:
        """A cache without tokens, of the weights' dtype and device."""
        weight = self.key_proj.weight
        shape = [batch_size, self.n_kv_heads, 0, self.head_dim]
        return KVCache(
            torch.zeros(shape, dtype=weight.dtype, device=weight.device),
            torch.zeros(shape, dtype=weight.dtype, device=weight.device),
            torch.zeros([batch_size, 0], dtype=torch.int64, device=weight.device),
            torch.zeros([batch_size, 0], dtype=torch.bool, device=weight.device),
            torch.zeros([batch_size], dtype=torch.int64, device=weight.device),
            torch.zeros(shape[:3], device=weight.device),
        )

    def _check_cache(self, cache: KVCache | None, k: Tensor) -> None:
        """k (B, L, Hkv, D): the new keys."""
        if cache is None or torch.jit.is_tracing():
            return
        for name, cached in [("key", cache.key), ("value", cache.value)]:
            if (
                cached.dim() != 4
                or cached.size(0) != k.size(0)
                or cached.size(1) != self.n_kv_heads
                or cached.size(2) != cache.key.size(2)
                or cached.size(3) != self.head_dim
            ):
                keys = str(cache.key.size(2)) if cache.key.dim() == 4 else "keys"
                raise ValueError(
                    f"{self.name}: expected a cache whose {name} has the shape (batch, n_kv_heads, "
                    f"keys, head_dim) = ({k.size(0)}, {self.n_kv_heads}, {keys}, "
                    f"{self.head_dim}), got {list(cached.shape)}"
                )
            # Autocast makes keys of another dtype than the weights have; caches of both serve.
            weight = self.key_proj.weight
            if cached.dtype != k.dtype and cached.dtype != weight.dtype:
                raise TypeError(
                    f"{self.name}: expected a cache whose {name} is {_dtype_name(k.dtype)}, as "
                    f"the new keys are, got {_dtype_name(cached.dtype)}"
                )

    def _append(
        self,
        cache: KVCache | None,
        k: Tensor,
        v: Tensor,
        padding: Tensor | None,
        positions: Tensor,
        lengths: Tensor,
        consecutive: bool,
    ) -> KVCache:
        """The cache with k and v (B, Hkv, L, D) at positions (B, L) added."""
        B, L = k.size(0), k.size(2)
        past = 0
        row_positions = torch.zeros([B, 0], dtype=torch.int64, device=k.device)
        keep = torch.zeros([B, 0], dtype=torch.bool, device=k.device)
        if cache is not None:
            past = cache.key.size(2)
            if torch.jit.is_tracing() or past > 0:  # what is traced with an empty cache takes any
                k = torch.cat([cache.key, k], 2)
                v = torch.cat([cache.value, v], 2)
                row_positions, keep = cache.positions, cache.keep
        if padding is not None or keep.size(1) > 0:
            if keep.size(1) == 0:
                keep = torch.ones([B, past], dtype=torch.bool, device=k.device)
            if padding is None:
                padding = torch.ones([B, L], dtype=torch.bool, device=k.device)
            keep = torch.cat([keep, padding], 1)
        if not consecutive or row_positions.size(1) > 0:
            if row_positions.size(1) == 0:
                row_positions = torch.arange(past, device=k.device).expand(B, past)
            row_positions = torch.cat([row_positions, positions], 1)
        key_norms = torch.zeros([B, self.n_kv_heads, 0], device=k.device)
        return KVCache(k, v, row_positions, keep, lengths, key_norms)

    def _next_positions(
        self,
        cache: KVCache | None,
        x: Tensor,
        padding: Tensor | None,
        position_ids: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Positions (B, L) of the new tokens, and (B) of the token after them."""
        B, L = x.size(0), x.size(1)
        if cache is None:
            lengths = torch.zeros([B], dtype=torch.int64, device=x.device)
        else:
            lengths = cache.lengths
        if position_ids is not None:
            positions = self._row_positions(position_ids, x)
            last = positions
            if padding is not None:
                last = last.masked_fill(~padding, -1)
            after = last.amax(-1).floor().to(torch.int64) + 1 if L > 0 else lengths
            return positions, torch.maximum(after, lengths)
        if padding is None:
            return positions_from_offsets(lengths, L), lengths + L
        positions = torch.ops.posenc.positions_from_mask(padding) + lengths[:, None]
        return positions, lengths + padding.sum(-1)

    def extra_repr(self) -> str:
        text = f"{self.d_model}, {self.n_heads}"
        if self.n_kv_heads != self.n_heads:
            text += f", n_kv_heads={self.n_kv_heads}"
        text += f", is_causal={self.is_causal}"
        if self.dropout:
            text += f", dropout={self.dropout:g}"
        return text


_ATTENTION_ARGS = """Args:
    x: (B, L, d_model).
    mask: broadcastable to (B, H, L, S), bool, int or float: ``mask == 0`` blocks, anything
        else keeps. (An additive mask, where 0.0 keeps, is an ``attn_bias``.)
    attn_bias: broadcastable to (B, H, L, S), floating (``TypeError`` for another dtype), added
        to the scaled scores; -inf blocks.
    key_padding_mask: (B, L), True or nonzero for real tokens. Padding is never attended
        to, and positions are counted from real tokens: [0, 0, 1, 1, 1] is at
        [0, 0, 0, 1, 2].
    position_ids: (L), (1, L) or (B, L), in place of counted positions."""


class RoPEAttention(_Attention):
    """Multi-head attention whose q and k are rotated (RoPE).

    Args:
        d_model: width of x.
        n_heads: query heads H; the head width D is d_model / n_heads, even.
        n_kv_heads: key and value heads, a divisor of H (grouped-query attention); None: H.
        is_causal: a token attends to itself and earlier tokens only.
        bias: whether the projections have one.
        dropout: probability of dropping an attention weight in training.
        max_seq_len: no limit: any length works.
        base, interleaved, rotary_dim, rotary_start, scaling: see `RotaryPositionalEmbedding`.
        device, dtype: of the projections.

    Children: ``query_proj, key_proj, value_proj, out_proj`` (nn.Linear). A row without an allowed
    key is 0 before ``out_proj``. Attention is torch's ``scaled_dot_product_attention``; its fused
    backward has no second derivative, so for one use ``sdpa_kernel(SDPBackend.MATH)``.

    Source: Su et al. 2021, arXiv:2104.09864.

    >>> attention = posenc.RoPEAttention(256, 8, n_kv_heads=2, is_causal=True)
    >>> attention(torch.randn(4, 100, 256)).shape
    torch.Size([4, 100, 256])
    """

    _legacy_keys = ROTARY_KEYS

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        n_kv_heads: int | None = None,
        is_causal: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
        max_seq_len: int = 5000,
        base: float = 10000.0,
        interleaved: bool = True,
        rotary_dim: int | None = None,
        rotary_start: int = 0,
        scaling: Mapping[str, Any] | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(d_model, n_heads, n_kv_heads, is_causal, bias, dropout, device, dtype)
        self.rope = RotaryPositionalEmbedding(
            self.head_dim,
            max_seq_len,
            base,
            interleaved=interleaved,
            rotary_dim=rotary_dim,
            rotary_start=rotary_start,
            scaling=scaling,
        )

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Tensor | None,
        keep: Tensor | None,
        whole: bool,
    ) -> Tensor:
        """q (B, H, L, D), k and v (B, Hkv, S, D); causality is added here. whole: L = S."""
        L, S = q.size(2), k.size(2)
        if bias is not None:
            _check_bias(self.name, bias, q.size(0), q.size(1), L, S)
        dropout = self.dropout if self.training else 0.0
        # torch's flag counts from the first key, so it serves where there is no past; a single
        # new token sees everything; and flag and mask are never given together.
        flag = self.is_causal and whole and keep is None and bias is None
        if self.is_causal and not flag and (torch.jit.is_tracing() or whole or L != 1):
            causal = _causal(L, S, q.device)
            keep = causal if keep is None else keep & causal
        if not torch.jit.is_scripting() and not torch.compiler.is_compiling() and _forward_mode():
            if flag:
                keep = _causal(L, S, q.device)
            keep = _with_bias_blocks(keep, bias)
            if bias is not None:
                bias = bias.masked_fill(bias == -math.inf, 0.0)
            return _dense_attention(q, k, v, self.groups, bias, keep, dropout)
        return _fused_attention(q, k, v, self.groups, bias, keep, flag, dropout)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        attn_bias: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        offset: int = 0,
    ) -> Tensor:
        """Self-attention over x.

        {args}
            offset: added to every position.

        Returns:
            (B, L, d_model).
        """
        q, k, v = self._project(x)
        padding = self._padding(key_padding_mask, x, 0)
        if padding is not None and position_ids is None:
            position_ids = torch.ops.posenc.positions_from_mask(padding)
        q, k = self.rope.rotate(q, k, position_ids, offset)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        keep = _keep_mask(self.name, mask, padding, q.size(0), self.n_heads, q.size(2), k.size(2))
        return self._output(self._attend(q, k, v, attn_bias, keep, True))

    @torch.jit.export
    def forward_cached(
        self,
        x: Tensor,
        cache: KVCache | None = None,
        mask: Tensor | None = None,
        attn_bias: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> tuple[Tensor, KVCache]:
        """Attention of new tokens over the cache and themselves: prefill and decoding.

        With ``is_causal`` a prefill and any number of steps give what one pass gives. Every row
        goes on at its own next position, so left- and right-padded batches both decode rightly.
        S counts the cached keys and the new ones.

        {args}
            cache: of the call before; None for the first. It remembers which of
                its keys are padding, so that ``key_padding_mask`` need cover the new tokens only;
                one of all keys, (B, S), as in transformers, is taken as well.

        Returns:
            (B, L, d_model) and the new cache (the given one is not changed).

        Raises:
            ValueError: with a scaling whose frequencies change as the sequence grows; for a cache
                of another batch size or of other heads.
            TypeError: for a cache of another dtype.
        """
        if self.rope.depends_on_length:
            raise ValueError(
                f"{self.name}: expected a scaling with fixed frequencies for a cache of rotated "
                f"keys, got {self.rope.rope_type}, whose frequencies change with the length"
            )
        q, k, v = self._project(x)
        self._check_cache(cache, k)
        padding, cache = self._cached_padding(key_padding_mask, x, cache)
        positions, lengths = self._next_positions(cache, x, padding, position_ids)
        q, k = self.rope.rotate(q, k, positions, 0)
        # The keys are rotated, so nothing needs their positions again.
        grown = self._append(
            cache, k.transpose(1, 2), v.transpose(1, 2), padding, positions, lengths, True
        )
        q, k, v = q.transpose(1, 2), grown.key, grown.value
        real_keys: Tensor | None = None
        if grown.keep.size(1) > 0:
            real_keys = grown.keep
        keep = _keep_mask(self.name, mask, real_keys, q.size(0), self.n_heads, q.size(2), k.size(2))
        whole = cache is None
        if cache is not None and not torch.jit.is_tracing() and cache.key.size(2) == 0:
            whole = True
        return self._output(self._attend(q, k, v, attn_bias, keep, whole)), grown


class ALiBiAttention(_Attention):
    """Multi-head attention with ALiBi's bias ``-slope_h |i - j|`` on the scores.

    Args:
        d_model: width of x.
        n_heads: query heads H, any number.
        max_seq_len: no limit: kept for the article's signature. Any length works.
        n_kv_heads: key and value heads, a divisor of H (grouped-query attention); None: H.
        is_causal: a token attends to itself and earlier tokens only (key position <= query
            position).
        bias: whether the projections have one.
        dropout: probability of dropping an attention weight in training.
        bias_max: exponent of the last slope, see `alibi_slopes`.
        alibi_heads: heads that carry a bias, the first ones; the others have slope 0. None: all.
        head_start, total_heads: where these heads stand in the whole model (tensor parallelism).
        slopes: H floats in place of computed ones.
        device, dtype: of the projections.

    ``slopes`` is a list of H floats, not a tensor: no cast rounds it. Children: ``query_proj,
    key_proj, value_proj, out_proj`` (nn.Linear). A row without an allowed key is 0 before
    ``out_proj``.

    Attention is the fused operator with O(L) memory. Two cases hold all scores in memory instead:
    an ``attn_bias``, and ``dropout`` in training.

    Source: Press et al. 2021, arXiv:2108.12409 (symmetric without a causal mask).

    >>> attention = posenc.ALiBiAttention(256, 8, is_causal=True)
    >>> attention(torch.randn(4, 100, 256)).shape
    torch.Size([4, 100, 256])
    >>> attention.slopes[:3]
    [0.5, 0.25, 0.125]
    """

    slopes: list[float]

    _legacy_keys = ALIBI_KEYS

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        max_seq_len: int = 2048,
        *,
        n_kv_heads: int | None = None,
        is_causal: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
        bias_max: float = 8.0,
        alibi_heads: int | None = None,
        head_start: int = 0,
        total_heads: int | None = None,
        slopes: Sequence[float] | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(d_model, n_heads, n_kv_heads, is_causal, bias, dropout, device, dtype)
        self.max_seq_len = positive_int(self.name, "max_seq_len", max_seq_len)
        if slopes is None:
            biased = self.n_heads
            if alibi_heads is not None:
                biased = positive_int(self.name, "alibi_heads", alibi_heads)
                if biased > self.n_heads:
                    raise ValueError(
                        f"{self.name}: expected alibi_heads <= n_heads = {self.n_heads}, "
                        f"got {biased}"
                    )
            self.slopes = list(
                _C.alibi_slopes(
                    biased,
                    positive_real(self.name, "bias_max", bias_max),
                    head_start,
                    total_heads,
                    False,
                )
            ) + [0.0] * (self.n_heads - biased)
        else:
            self.slopes = [real(self.name, "slopes", slope) for slope in slopes]
            if len(self.slopes) != self.n_heads:
                raise ValueError(
                    f"{self.name}: expected slopes to have n_heads = {self.n_heads} numbers, "
                    f"got {len(self.slopes)}"
                )

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Tensor | None,
        keep: Tensor | None,
        q_positions: Tensor | None,
        k_positions: Tensor | None,
        key_norms: Tensor | None,
    ) -> Tensor:
        """q (B, H, L, D), k and v (B, Hkv, S, D); positions are given where not consecutive."""
        dropout = self.dropout if self.training else 0.0
        if bias is None and dropout == 0.0:
            return torch.ops.posenc.alibi_attention(
                q,
                k,
                v,
                self.slopes,
                keep,
                self.is_causal,
                None,
                None,
                q_positions,
                k_positions,
                key_norms,
            )[0]
        L, S = q.size(2), k.size(2)
        if bias is not None:
            _check_bias(self.name, bias, q.size(0), q.size(1), L, S)
            keep = _with_bias_blocks(keep, bias)
            bias = bias.masked_fill(bias == -math.inf, 0.0)
        if q_positions is None or k_positions is None:
            behind = _behind(
                torch.arange(L, device=q.device)[None] + (S - L),
                torch.arange(S, device=q.device)[None],
            )
        else:
            behind = _behind(q_positions, k_positions)
        if self.is_causal:
            causal = behind >= 0
            keep = causal if keep is None else keep & causal
        dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
        slopes = torch.tensor(self.slopes, dtype=dtype, device=q.device)
        alibi = -slopes[:, None, None] * behind.abs().to(dtype)
        total = alibi if bias is None else alibi + bias.to(dtype)
        return _dense_attention(q, k, v, self.groups, total, keep, dropout)

    def _grown_norms(self, cache: KVCache | None, grown: KVCache) -> Tensor:
        """key_norms of the grown cache: only blocks with a new key are looked at."""
        block = 64  # keys a block in alibi_key_norms
        whole = 0
        if cache is not None:
            whole = cache.key.size(2) // block
            if cache.block_norms.size(2) < whole:
                whole = 0
        start = whole * block
        norms = torch.ops.posenc.alibi_key_norms(
            grown.key[:, :, start:].detach(), grown.value[:, :, start:].detach()
        )
        if cache is None:
            return norms
        return torch.cat([cache.block_norms[:, :, :whole].to(norms.dtype), norms], 2)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        attn_bias: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        offset: int = 0,
    ) -> Tensor:
        """Self-attention over x.

        {args}
            offset: changes nothing here, since only distances count; kept so that
                both attention layers are called alike.

        Returns:
            (B, L, d_model).
        """
        q, k, v = self._project(x)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        padding = self._padding(key_padding_mask, x, 0)
        positions: Tensor | None = None
        if position_ids is not None:
            positions = self._row_positions(position_ids, x)
        elif padding is not None:
            positions = torch.ops.posenc.positions_from_mask(padding)
        keep = _keep_mask(self.name, mask, padding, q.size(0), self.n_heads, q.size(2), k.size(2))
        return self._output(self._attend(q, k, v, attn_bias, keep, positions, positions, None))

    @torch.jit.export
    def forward_cached(
        self,
        x: Tensor,
        cache: KVCache | None = None,
        mask: Tensor | None = None,
        attn_bias: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> tuple[Tensor, KVCache]:
        """Attention of new tokens over the cache and themselves: prefill and decoding.

        With ``is_causal`` a prefill and any number of steps give what one pass gives. Every row
        goes on at its own next position, so left- and right-padded batches both decode rightly.
        S counts the cached keys and the new ones.

        {args}
            cache: of the call before; None for the first. It remembers which of
                its keys are padding, so that ``key_padding_mask`` need cover the new tokens only;
                one of all keys, (B, S), as in transformers, is taken as well.

        Returns:
            (B, L, d_model) and the new cache (the given one is not changed).

        Raises:
            ValueError: for a cache of another batch size or of other heads.
            TypeError: for a cache of another dtype.
        """
        q, k, v = self._project(x)
        self._check_cache(cache, k)
        padding, cache = self._cached_padding(key_padding_mask, x, cache)
        positions, lengths = self._next_positions(cache, x, padding, position_ids)
        consecutive = padding is None and position_ids is None
        grown = self._append(
            cache, k.transpose(1, 2), v.transpose(1, 2), padding, positions, lengths, consecutive
        )
        q, k, v = q.transpose(1, 2), grown.key, grown.value
        real_keys: Tensor | None = None
        if grown.keep.size(1) > 0:
            real_keys = grown.keep
        keep = _keep_mask(self.name, mask, real_keys, q.size(0), self.n_heads, q.size(2), k.size(2))
        q_positions: Tensor | None = None
        k_positions: Tensor | None = None
        if grown.positions.size(1) > 0:
            q_positions, k_positions = positions, grown.positions
        key_norms = self._grown_norms(cache, grown)
        grown = KVCache(
            grown.key, grown.value, grown.positions, grown.keep, grown.lengths, key_norms
        )
        out = self._attend(q, k, v, attn_bias, keep, q_positions, k_positions, key_norms)
        return self._output(out), grown


def _behind(q_positions: Tensor, k_positions: Tensor) -> Tensor:
    """(B, 1, L, S): how far each key lies behind the query."""
    return (q_positions[:, :, None] - k_positions[:, None, :])[:, None]


for _layer in (RoPEAttention, ALiBiAttention):
    for _method in (_layer.forward, _layer.forward_cached):
        if _method.__doc__ is not None:  # python -OO
            _method.__doc__ = inspect.cleandoc(_method.__doc__).replace("{args}", _ATTENTION_ARGS)
