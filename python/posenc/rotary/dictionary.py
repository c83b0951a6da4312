"""Dictionaries of Python, as the C++ parser takes them."""

import numbers
from collections.abc import Iterable, Mapping
from typing import Any

from .. import _C


def _plain(value: Any) -> Any:
    """Plain bools, ints, floats, strings, lists and dicts; whatever else comes stays as it is."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, numbers.Integral):  # NumPy's, which the binding would take for flags
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


def read_scaling(where: str, scaling: Mapping[str, Any]) -> "_C.RopeScaling":
    """The dictionary as C++ reads it: strict, one place for both languages."""
    if not isinstance(scaling, Mapping):
        raise TypeError(f"{where}: expected scaling to be a dictionary or None, got {scaling!r}")
    values = _plain(scaling)
    try:
        return _C.RopeScaling.from_dict(values)
    except TypeError as error:  # a value that is no number, word, flag or list of numbers
        raise ValueError(
            f"{where}: expected scaling to hold numbers, words, flags and lists of numbers, "
            f"got {values}"
        ) from error


_GEOMETRY = ("head_dim", "num_attention_heads", "hidden_size", "qk_rope_head_dim")


def _by_layer_type(config: Any, settings: Any) -> dict[str, dict[str, Any]]:
    """Settings of single layers, gathered by the type of the layer (Gemma 4: head_dim).

    transformers keeps a view that answers to types of layers; a config.json numbers the layers.
    """
    types = config.get("layer_types") if isinstance(config, Mapping) else None
    types = types or getattr(config, "layer_types", None)
    result: dict[str, dict[str, Any]] = {}
    for layer_type in set(types or ()):
        if isinstance(settings, Mapping):
            own = [
                settings[number]
                for number in settings
                if str(number) == layer_type
                or (str(number).isdigit() and types[int(number)] == layer_type)
            ]
            result[layer_type] = dict(own[0]) if own else {}
        else:
            try:
                result[layer_type] = plain_config(settings[layer_type], _GEOMETRY)
            except ValueError:  # layers of one type that differ (NeoMME, in their windows)
                continue
    return {key: value for key, value in result.items() if value}


def plain_config(config: Any, keys: Iterable[str]) -> dict[str, Any]:
    """The keys of a configuration that the parser reads, as a dictionary.

    Args:
        config: a mapping, or an object with attributes (a Hugging Face configuration, whose
            attribute names stand for other spellings as well).
        keys: what to look for, also in nested configurations.
    """
    keys = list(keys)
    result = {}
    for key in keys:
        if isinstance(config, Mapping):
            value = config.get(key)
        else:
            try:
                value = getattr(config, key, None)
            except Exception:  # transformers: an attribute that differs between types of layers
                value = None
        if value is None or callable(value):
            continue
        if key == "per_layer_config":
            value = _by_layer_type(config, value)
        elif key.endswith("_config") and not isinstance(value, (str, int)):
            value = plain_config(value, keys)
        elif key == "default_theta" and not isinstance(value, numbers.Real):
            continue  # one a type of layer: then the dictionary has it
        result[key] = _plain(value)
    return result


def arguments_from_config(
    config: Any, layer_type: str | None, overrides: Mapping[str, Any]
) -> dict[str, Any]:
    """Constructor arguments of `RotaryPositionalEmbedding` for a model's configuration.

    Args:
        overrides: arguments that replace what the configuration gives.
    """
    keys = _C.RotaryPositionalEmbeddingOptions.dict_keys()
    options = _C.RotaryPositionalEmbeddingOptions.from_dict(plain_config(config, keys), layer_type)
    arguments: dict[str, Any] = {
        "d_model": options.d_model,
        "max_seq_len": options.max_seq_len,
        "base": options.theta(),
        "interleaved": options.reads_pairs(),
        "interleaved_out": options.interleaved_out,
        "rotary_dim": options.rotary_dim,
        "rotary_start": options.rotary_start,
        "axes": options.axes,
        "seq_dim": options.seq_dim,
        "scaling": options.scaling.to_dict(),
        "attention_factor": options.attention_factor,
        "inverse": options.inverse,
    }
    if "base" in overrides:
        arguments["scaling"].pop("rope_theta", None)
    if "interleaved" in overrides:
        arguments["scaling"].pop("interleaved", None)
        arguments["interleaved_out"] = None
    return {**arguments, **overrides}
