"""What the layers share: a base class without derived state, and checks of arguments."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

# Where other codes keep derived tensors. Such keys are found in checkpoints, mean nothing to
# layers that keep none, and must neither fail a strict load nor change anything.
_ROTARY_NAMES = frozenset(
    [
        "inv_freq",
        "original_inv_freq",
        "freqs",
        "freqs_cis",
        "freqs_cos",
        "freqs_sin",
        "cos",
        "sin",
        "cos_cached",
        "sin_cached",
        "cos_cache",
        "sin_cache",
        "cos_sin_cache",
        "_cos_cached",
        "_sin_cached",
        "cached_freqs",
        "cached_scales",
    ]
)
_ROTARY_HOMES = [
    "rope",
    "rotary",
    "rotary_emb",
    "rotary_embedding",
    "rotary_pos_emb",
    "pos_emb",
    "position_embedding",
]
ROTARY_KEYS: frozenset[str] = _ROTARY_NAMES | frozenset(
    f"{home}.{name}" for home in _ROTARY_HOMES for name in _ROTARY_NAMES
)
_TABLE_NAMES = frozenset(
    [
        "pe",
        "pos_table",
        "pos_encoding",
        "positional_encoding",
        "position_encoding",
        "div_term",
        "inv_freq",
        "_float_tensor",
        "position_ids",
        "positions",
    ]
)
_TABLE_HOMES = ["pos_encoding", "positional_encoding", "position_encoding", "pos_encoder", "pe"]
TABLE_KEYS: frozenset[str] = _TABLE_NAMES | frozenset(
    f"{home}.{name}" for home in _TABLE_HOMES for name in _TABLE_NAMES
)
INDEX_KEYS: frozenset[str] = frozenset(("position_ids", "positions"))
ALIBI_KEYS: frozenset[str] = frozenset(
    [
        "slopes",
        "alibi",
        "alibi_slopes",
        "alibi_bias",
        "bias_matrix",
        "relative_positions",
        "relative_position",
        "distances",
        "causal_mask",
        "alibi.slopes",
        "alibi.bias",
        "alibi.alibi",
    ]
)


class Layer(nn.Module):
    """An ``nn.Module`` that ignores the derived tensors of other codes when it is loaded.

    Only the names in ``_legacy_keys``, directly under this layer's own prefix, are ignored;
    every other unexpected key is reported by ``load_state_dict`` as usual.
    """

    _legacy_keys = frozenset()  # type: FrozenSet[str]

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: Mapping[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        own = {name for name, _ in self.named_parameters()}
        for name in self._legacy_keys - own:
            state_dict.pop(prefix + name, None)  # load_state_dict hands over a copy
        super()._load_from_state_dict(
            state_dict,
            prefix,
            local_metadata,
            strict,
            missing_keys,
            unexpected_keys,
            error_msgs,
        )


_HALF_TYPES = (torch.bfloat16, torch.float16)


def at_least_float32(dtype: torch.dtype | None) -> torch.dtype:
    """``dtype``, torch's default one for None, with float32 in place of a half type."""
    dtype = torch.get_default_dtype() if dtype is None else dtype
    return torch.float32 if dtype in _HALF_TYPES else dtype


class KeepsFloat32:
    """Mixed into a module whose parameters a half type would ruin: casts to one pass them by.

    ``.to``, ``.half()``, ``.bfloat16()`` of the module or of a parent move such a parameter to
    the device that they name and leave its dtype.
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        def keep(t: Tensor) -> Tensor:
            made = fn(t)
            narrowed = made.dtype in _HALF_TYPES and t.dtype not in _HALF_TYPES
            return t.to(made.device) if narrowed else made

        return super()._apply(keep, recurse)  # type: ignore[misc]


def positive_int(where: str, name: str, value: Any) -> int:
    """``value`` as an int of at least 1, or an error that names layer, argument and value."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{where}: expected {name} to be an int, got {value!r}")
    value = value.__index__()
    if value < 1:
        raise ValueError(f"{where}: expected {name} >= 1, got {value}")
    return value


def any_int(where: str, name: str, value: Any) -> int:
    """``value`` as an int, or an error that names layer, argument and value."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{where}: expected {name} to be an int, got {value!r}")
    return value.__index__()


def real(where: str, name: str, value: Any) -> float:
    """``value`` as a finite float, or an error that names layer, argument and value."""
    if isinstance(value, (bool, str)) or not (
        hasattr(value, "__float__") or hasattr(value, "__index__")
    ):
        raise TypeError(f"{where}: expected {name} to be a number, got {value!r}")
    value = float(value)
    if value != value or value in (float("inf"), float("-inf")):
        raise ValueError(f"{where}: expected {name} to be finite, got {value}")
    return value


def positive_real(where: str, name: str, value: Any) -> float:
    """``value`` as a finite float above 0, or an error that names layer, argument and value."""
    value = real(where, name, value)
    if value <= 0:
        raise ValueError(f"{where}: expected {name} > 0, got {value}")
    return value


def probability(where: str, name: str, value: Any) -> float:
    """``value`` as a float in [0, 1), or an error that names layer, argument and value."""
    value = real(where, name, value)
    if not 0 <= value < 1:
        raise ValueError(f"{where}: expected 0 <= {name} < 1, got {value}")
    return value


def split_heads(
    where: str, d_model: int, n_heads: int, n_kv_heads: int | None
) -> "tuple[int, int]":
    """Head width and number of key/value heads, checked."""
    if d_model % n_heads:
        raise ValueError(
            f"{where}: expected d_model to be a multiple of n_heads, "
            f"got d_model {d_model} and n_heads {n_heads}"
        )
    n_kv = n_heads if n_kv_heads is None else positive_int(where, "n_kv_heads", n_kv_heads)
    if n_heads % n_kv:
        raise ValueError(
            f"{where}: expected n_heads to be a multiple of n_kv_heads, "
            f"got n_heads {n_heads} and n_kv_heads {n_kv}"
        )
    return d_model // n_heads, n_kv
