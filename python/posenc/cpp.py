"""The C++ modules, as ``nn.Module``: forward runs wholly in C++, training is an ordinary loop.

>>> m = posenc.cpp.ALiBiAttention(64, 4)
>>> optimizer = torch.optim.AdamW(m.parameters())

Names of parameters, constructor arguments and results are those of the layers (``posenc.X``), so a
state dict moves between the two. ``.to``, ``.double()``, deepcopy, pickle, ``requires_grad_`` and
``load_state_dict`` work, alone or inside other modules. What a C++ object cannot have is source
code: for ``torch.jit.script``, ``torch.compile`` and ``torch.export`` there are the layers.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from . import _C
from ._layer import (
    ALIBI_KEYS,
    INDEX_KEYS,
    ROTARY_KEYS,
    TABLE_KEYS,
    KeepsFloat32,
    Layer,
    at_least_float32,
)
from ._tracing import is_traced_size
from .rotary import LearnedRotaryEmbedding as _LearnedLayer
from .rotary import XPosRotaryEmbedding as _XPosLayer
from .rotary.dictionary import arguments_from_config, read_scaling

__all__ = [
    "ALiBiAttention",
    "AxialRotaryEmbedding",
    "KVCache",
    "LearnedPositionalEncoding",
    "LearnedRotaryEmbedding",
    "LongSequenceRoPE",
    "MixedRotaryEmbedding",
    "QueryTemperature",
    "RoPEAttention",
    "RotaryPositionalEmbedding",
    "SinusoidalPositionalEncoding",
    "TransformerEmbedding",
    "XPosRotaryEmbedding",
]


KVCache = _C.KVCache
KVCache.__doc__ = """Keys and values (B, Hkv, S, D) of the tokens so far, as C++ keeps them.

``forward_cached`` fills it in place: hand in the same object call after call.
"""


class _Weights(nn.Module):
    """Holds the learned tensors of one C++ child under their names; computes nothing."""

    def extra_repr(self) -> str:
        return ", ".join(f"{name} {list(p.shape)}" for name, p in self._parameters.items())


class _CppModule(Layer):
    """A C++ module whose learned tensors are owned by Python.

    torch's own wrapper lets the C++ object own them, which breaks the parent's state_dict, deepcopy
    and pickle. Here they are Parameters of plain nn.Modules, and before each call the C++ object is
    pointed at the current ones: whatever replaced them, it computes with what Python shows. A copy
    or an unpickled object builds its own C++ object from the constructor's arguments.
    """

    def __init__(
        self,
        required: tuple[Any, ...],
        optional: dict[str, Any],
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self._arguments = (required, optional)
        self._build()
        if device is None:
            device = torch.get_default_device()
        for name, tensor in zip(self._slots.names, self._slots.tensors(), strict=True):
            *path, leaf = name.split(".")
            holder: nn.Module = self
            for part in path:
                if part not in holder._modules:
                    holder.add_module(part, _Weights())
                holder = holder._modules[part]
            tensor = tensor.detach().to(device=device, dtype=dtype)
            holder.register_parameter(leaf, nn.Parameter(tensor))
        self._slots.release()

    def _build(self) -> None:
        """Makes the C++ object, without disturbing its later owner's random numbers."""
        required, optional = self._arguments
        name = type(self).__name__
        options = getattr(_C, name + "Options")(*required)
        for key, value in optional.items():
            if key == "scaling" and value is not None:
                options.scaling = read_scaling(name, value)
            elif value is not None:  # None is what C++ has already
                setattr(options, key, value)
        self.__dict__["_cpp"] = getattr(_C.cpp, name)(options)
        self.__dict__["_slots"] = _C.TensorSlots(self._cpp)

    def _call(self, method: str, *args: Any) -> Any:
        """Calls the C++ object on the current tensors and in the current mode."""
        if torch.jit.is_tracing() and any(is_traced_size(value) for value in args):
            raise TypeError(
                f"{type(self).__name__}.{method}: expected ints, got a size that torch.jit.trace "
                "follows: a trace would keep the number of this call; trace the layer "
                f"posenc.{type(self).__name__}, or hand over int(size) where that number is meant"
            )
        tensors = []
        for name in self._slots.names:
            owner: Any = self
            for part in name.split("."):
                owner = getattr(owner, part)
            tensors.append(owner)
        self._slots.set(tensors)
        if self._cpp.training != self.training:
            self._cpp.train(self.training)
        return getattr(self._cpp, method)(*args)

    # torch may swap a Parameter for a converted or loaded one, and refuses while C++ refers to it.
    def _apply(self, *args: Any, **kwargs: Any) -> "_CppModule":
        self._slots.clear()
        return super()._apply(*args, **kwargs)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._slots.clear()
        super()._load_from_state_dict(*args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        del state["_cpp"], state["_slots"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        with torch.random.fork_rng(devices=[]):
            self._build()
        self._slots.release()

    def extra_repr(self) -> str:
        required, optional = self._arguments
        return ", ".join([*map(str, required), *(f"{k}={v}" for k, v in optional.items())])


class RotaryPositionalEmbedding(_CppModule):
    """``posenc::nn::RotaryPositionalEmbedding``; see `posenc.RotaryPositionalEmbedding`."""

    _legacy_keys = ROTARY_KEYS

    def __init__(
        self,
        d_model: int,
        max_seq_len: int = 5000,
        base: float = 10000.0,
        *,
        interleaved: bool = True,
        rotary_dim: int | None = None,
        rotary_start: int = 0,
        axes: list[int] | None = None,
        seq_dim: int = 1,
        scaling: Mapping[str, Any] | None = None,
        attention_factor: float | None = None,
        interleaved_out: bool | None = None,
        inverse: bool = False,
    ) -> None:
        super().__init__(
            (d_model,),
            {
                "scaling": None if scaling is None else dict(scaling),
                "max_seq_len": max_seq_len,
                "base": base,
                "interleaved": interleaved,
                "rotary_dim": rotary_dim,
                "rotary_start": rotary_start,
                "axes": axes,
                "seq_dim": seq_dim,
                "attention_factor": attention_factor,
                "interleaved_out": interleaved_out,
                "inverse": inverse,
            },
        )

    @classmethod
    def from_config(
        cls, config: Any, layer_type: str | None = None, **overrides: Any
    ) -> "RotaryPositionalEmbedding":
        """See `posenc.RotaryPositionalEmbedding.from_config`."""
        return cls(**arguments_from_config(config, layer_type, overrides))

    @property
    def inv_freq(self) -> list[float]:
        """The frequencies, radians per position."""
        return list(self._cpp.inv_freq)

    def forward(self, x: Tensor, position_ids: Tensor | None = None, offset: int = 0) -> Tensor:
        """Rotates x; see `posenc.RotaryPositionalEmbedding.forward`."""
        return self._call("forward", x, position_ids, offset)

    def rotate(
        self, q: Tensor, k: Tensor, position_ids: Tensor | None = None, offset: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Rotates q and k by the same positions."""
        return self._call("rotate", q, k, position_ids, offset)

    @property
    def attention_factor(self) -> float:
        """Scales the rotated channels."""
        return self._cpp.attention_factor

    def rotate_packed(
        self,
        qkv: Tensor,
        n_kv_heads: int | None = None,
        position_ids: Tensor | None = None,
        offset: int = 0,
    ) -> Tensor:
        """Rotates q and k in qkv; see `posenc.RotaryPositionalEmbedding.rotate_packed`."""
        return self._call("rotate_packed", qkv, n_kv_heads, position_ids, offset)

    def inv_freq_at(self, length: int | Tensor) -> list[float] | Tensor:
        """The frequencies at a length; see `posenc.RotaryPositionalEmbedding.inv_freq_at`."""
        return self._call("inv_freq_at", length)

    def shift(
        self, keys: Tensor, delta: int | Tensor, inv_freq: list[float] | Tensor | None = None
    ) -> Tensor:
        """Moves cached keys; see `posenc.RotaryPositionalEmbedding.shift`."""
        return self._call("shift", keys, delta, inv_freq)

    def re_rotate(
        self,
        keys: Tensor,
        old: list[float] | Tensor,
        new: list[float] | Tensor | None = None,
        position_ids: Tensor | None = None,
        offset: int = 0,
        old_attention_factor: float | None = None,
    ) -> Tensor:
        """Moves cached keys to other frequencies; see
        `posenc.RotaryPositionalEmbedding.re_rotate`."""
        return self._call("re_rotate", keys, old, new, position_ids, offset, old_attention_factor)

    def apply_rotary_pos_emb(
        self, x: Tensor, seq_len: int | None = None, offset: int = 0
    ) -> Tensor:
        """The article's method; see `posenc.RotaryPositionalEmbedding.apply_rotary_pos_emb`."""
        return self._call("apply_rotary_pos_emb", x, seq_len, offset)


class LongSequenceRoPE(_CppModule):
    """``posenc::nn::LongSequenceRoPE``; see `posenc.LongSequenceRoPE`."""

    _legacy_keys = ROTARY_KEYS

    def __init__(
        self,
        head_dim: int,
        chunk_size: int = 1024,
        base: float = 10000.0,
        *,
        interleaved: bool = True,
    ) -> None:
        super().__init__(
            (head_dim,), {"chunk_size": chunk_size, "base": base, "interleaved": interleaved}
        )

    @property
    def inv_freq(self) -> list[float]:
        """The frequencies, radians per position."""
        return list(self._cpp.inv_freq)

    def forward(self, x: Tensor, use_chunking: bool = True) -> Tensor:
        """Rotates x (B, L, H, D); chunked or whole, the bits are the same."""
        return self._call("forward", x, use_chunking)


class AxialRotaryEmbedding(_CppModule):
    """``posenc::nn::AxialRotaryEmbedding``; see `posenc.AxialRotaryEmbedding`."""

    _legacy_keys = ROTARY_KEYS

    def __init__(
        self,
        head_dim: int,
        arrangement: str = "half_hw",
        base: float = 10000.0,
        *,
        scale: float = 1.0,
        offset: int = 0,
        n_prefix: int = 0,
        n_suffix: int = 0,
        seq_dim: int = 1,
    ) -> None:
        super().__init__(
            (head_dim,),
            {
                "arrangement": arrangement,
                "base": base,
                "scale": scale,
                "offset": offset,
                "n_prefix": n_prefix,
                "n_suffix": n_suffix,
                "seq_dim": seq_dim,
            },
        )

    @property
    def inv_freq(self) -> list[float]:
        """The frequencies, radians per position."""
        return list(self._cpp.frequencies.inv_freq)

    def forward(self, x: Tensor, position_ids: Tensor) -> Tensor:
        """Rotates x; see `posenc.AxialRotaryEmbedding.forward`."""
        return self._call("forward", x, position_ids)

    def rotate(self, q: Tensor, k: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Rotates q and k by the same positions."""
        return self._call("rotate", q, k, position_ids)


class MixedRotaryEmbedding(_CppModule):
    """``posenc::nn::MixedRotaryEmbedding``; see `posenc.MixedRotaryEmbedding`."""

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
        super().__init__(
            (head_dim, n_heads),
            {
                "base": base,
                "per_head": per_head,
                "interleaved": interleaved,
                "n_prefix": n_prefix,
                "n_suffix": n_suffix,
                "seq_dim": seq_dim,
            },
            device,
            dtype,
        )

    def forward(self, x: Tensor, position_ids: Tensor) -> Tensor:
        """Rotates x; see `posenc.MixedRotaryEmbedding.forward`."""
        return self._call("forward", x, position_ids)

    def rotate(self, q: Tensor, k: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Rotates q and k by the same positions."""
        return self._call("rotate", q, k, position_ids)


class XPosRotaryEmbedding(_CppModule):
    """``posenc::nn::XPosRotaryEmbedding``; see `posenc.XPosRotaryEmbedding`."""

    _legacy_keys = _XPosLayer._legacy_keys

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
        super().__init__(
            (head_dim,),
            {
                "base": base,
                "scale_base": scale_base,
                "centre": centre,
                "interleaved": interleaved,
                "seq_dim": seq_dim,
                "gamma": gamma,
                "rotary_dim": rotary_dim,
                "rotary_start": rotary_start,
            },
        )

    @property
    def inv_freq(self) -> list[float]:
        """The frequencies, radians per position."""
        return list(self._cpp.inv_freq)

    def forward(
        self,
        x: Tensor,
        position_ids: Tensor | None = None,
        offset: int = 0,
        is_key: bool = False,
    ) -> Tensor:
        """Rotates and scales queries, or keys; see `posenc.XPosRotaryEmbedding.forward`."""
        return self._call("forward", x, position_ids, offset, is_key)

    def rotate(
        self, q: Tensor, k: Tensor, position_ids: Tensor | None = None, offset: int = 0
    ) -> tuple[Tensor, Tensor]:
        """q and k at the same positions."""
        return self._call("rotate", q, k, position_ids, offset)


class QueryTemperature(_CppModule):
    """``posenc::nn::QueryTemperature``; see `posenc.QueryTemperature`."""

    def __init__(
        self,
        scale: float = 0.1,
        floor_scale: float = 8192.0,
        shift: float = 1.0,
        *,
        seq_dim: int = 1,
    ) -> None:
        super().__init__(
            (),
            {"scale": scale, "floor_scale": floor_scale, "shift": shift, "seq_dim": seq_dim},
        )

    def forward(self, x: Tensor, position_ids: Tensor | None = None, offset: int = 0) -> Tensor:
        """Scales queries; see `posenc.QueryTemperature.forward`."""
        return self._call("forward", x, position_ids, offset)


class LearnedRotaryEmbedding(KeepsFloat32, _CppModule):
    """``posenc::nn::LearnedRotaryEmbedding``; see `posenc.LearnedRotaryEmbedding`."""

    _legacy_keys = _LearnedLayer._legacy_keys

    def __init__(
        self,
        head_dim: int,
        base: float = 10000.0,
        n_heads: int | None = None,
        parametrisation: str = "log",
        max_seq_len: int = 5000,
        *,
        interleaved: bool = True,
        rotary_dim: int | None = None,
        rotary_start: int = 0,
        axes: list[int] | None = None,
        seq_dim: int = 1,
        scaling: Mapping[str, Any] | None = None,
        attention_factor: float | None = None,
        interleaved_out: bool | None = None,
        inverse: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            (head_dim,),
            {
                "scaling": None if scaling is None else dict(scaling),
                "base": base,
                "n_heads": n_heads,
                "parametrisation": parametrisation,
                "max_seq_len": max_seq_len,
                "interleaved": interleaved,
                "rotary_dim": rotary_dim,
                "rotary_start": rotary_start,
                "axes": axes,
                "seq_dim": seq_dim,
                "attention_factor": attention_factor,
                "interleaved_out": interleaved_out,
                "inverse": inverse,
            },
            device,
            None if dtype is None else at_least_float32(dtype),
        )

    @property
    def inv_freq(self) -> list[float]:
        """The initial frequencies, radians per position."""
        return list(self._cpp.inv_freq)

    def frequencies(self) -> Tensor:
        """The current frequencies, float64; see `posenc.LearnedRotaryEmbedding.frequencies`."""
        return self._call("frequencies")

    def forward(self, x: Tensor, position_ids: Tensor | None = None, offset: int = 0) -> Tensor:
        """Rotates x; see `posenc.RotaryPositionalEmbedding.forward`."""
        return self._call("forward", x, position_ids, offset)

    def rotate(
        self, q: Tensor, k: Tensor, position_ids: Tensor | None = None, offset: int = 0
    ) -> tuple[Tensor, Tensor]:
        """Rotates q and k by the same positions."""
        return self._call("rotate", q, k, position_ids, offset)


class SinusoidalPositionalEncoding(_CppModule):
    """``posenc::nn::SinusoidalPositionalEncoding``; see `posenc.SinusoidalPositionalEncoding`."""

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
        del max_seq_len  # no limit in either language
        super().__init__(
            (d_model,),
            {
                "base": base,
                "interleaved": interleaved,
                "scale": scale,
                "seq_dim": seq_dim,
                "spacing": spacing,
            },
        )

    @property
    def inv_freq(self) -> list[float]:
        """The frequencies, radians per position."""
        return list(self._cpp.inv_freq)

    def forward(self, x: Tensor, position_ids: Tensor | None = None, offset: int = 0) -> Tensor:
        """Adds the encoding; see `posenc.SinusoidalPositionalEncoding.forward`."""
        return self._call("forward", x, position_ids, offset)


class LearnedPositionalEncoding(_CppModule):
    """``posenc::nn::LearnedPositionalEncoding``; see `posenc.LearnedPositionalEncoding`."""

    _legacy_keys = INDEX_KEYS

    def __init__(
        self,
        max_len: int,
        d_model: int,
        *,
        seq_dim: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__((max_len, d_model), {"seq_dim": seq_dim}, device, dtype)

    def forward(self, x: Tensor, position_ids: Tensor | None = None, offset: int = 0) -> Tensor:
        """Adds the rows; see `posenc.LearnedPositionalEncoding.forward`."""
        return self._call("forward", x, position_ids, offset)


class TransformerEmbedding(_CppModule):
    """``posenc::nn::TransformerEmbedding``; see `posenc.TransformerEmbedding`."""

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
        if isinstance(scale, bool):  # as the layer: whether to multiply by sqrt(d_model)
            scale = None if scale else 1.0
        super().__init__(
            (vocab_size, d_model),
            {
                "max_len": max_len,
                "padding_idx": padding_idx,
                "scale": scale,
                "base": base,
                "interleaved": interleaved,
                "spacing": spacing,
            },
            device,
            dtype,
        )

    @property
    def scale(self) -> float:
        """What multiplies the embedding."""
        return self._cpp.scale

    def forward(
        self, input_ids: Tensor, position_ids: Tensor | None = None, offset: int = 0
    ) -> Tensor:
        """Embeds tokens; see `posenc.TransformerEmbedding.forward`."""
        return self._call("forward", input_ids, position_ids, offset)


class _CppAttention(_CppModule):
    """The calls of both attention modules."""

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        attn_bias: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        offset: int = 0,
    ) -> Tensor:
        """Self-attention over x; arguments as for the layer of the same name."""
        return self._call("forward", x, mask, attn_bias, key_padding_mask, position_ids, offset)

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

        Args:
            x, mask, attn_bias, position_ids: as for the layer of the same name.
            cache: of the call before, None for the first. It is filled in place.
            key_padding_mask: (B, S), of all keys: the cached and the new ones.

        Returns:
            (B, L, d_model) and the cache.
        """
        if cache is None:
            cache = KVCache()
        out = self._call(
            "forward_cached", x, cache, mask, attn_bias, key_padding_mask, position_ids
        )
        return out, cache


class RoPEAttention(_CppAttention):
    """``posenc::nn::RoPEAttention``; see `posenc.RoPEAttention`."""

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
        base: float = 10000.0,
        interleaved: bool = True,
        rotary_dim: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            (d_model, n_heads),
            {
                "n_kv_heads": n_kv_heads,
                "is_causal": is_causal,
                "bias": bias,
                "dropout": dropout,
                "base": base,
                "interleaved": interleaved,
                "rotary_dim": rotary_dim,
            },
            device,
            dtype,
        )

    @property
    def inv_freq(self) -> list[float]:
        """The frequencies, radians per position."""
        return list(self._cpp.inv_freq)


class ALiBiAttention(_CppAttention):
    """``posenc::nn::ALiBiAttention``; see `posenc.ALiBiAttention`."""

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
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            (d_model, n_heads),
            {
                "max_seq_len": max_seq_len,
                "n_kv_heads": n_kv_heads,
                "is_causal": is_causal,
                "bias": bias,
                "dropout": dropout,
            },
            device,
            dtype,
        )

    @property
    def slopes(self) -> list[float]:
        """One slope a head."""
        return list(self._cpp.slopes)
