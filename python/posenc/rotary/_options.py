"""What layers over the C++ RoPE options share: filling them in, and showing them."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from .. import _C
from .._layer import any_int, real
from .dictionary import read_scaling


class _Rotary(Protocol):
    interleaved_out: bool | None
    inverse: bool
    rotary_start: int
    seq_dim: int
    rotary_dim: int
    axes: list[int] | None
    scaling: dict[str, Any] | None
    attention_factor: float


def fill_options(
    where: str,
    layer: _Rotary,
    options: "_C.RotaryPositionalEmbeddingOptions",
    *,
    interleaved: bool,
    interleaved_out: bool | None,
    inverse: bool,
    rotary_dim: int | None,
    rotary_start: int,
    axes: Sequence[int] | None,
    seq_dim: int,
    scaling: Mapping[str, Any] | None,
    attention_factor: float | None,
) -> "_C.RopeFrequencies":
    """Puts a layer's arguments into its C++ options, which check them and give the frequencies.

    The layer gets what is derived from them: theta, layout, width, axes, frequencies, factor.
    """
    layer.inverse = bool(inverse)
    layer.interleaved_out = None if interleaved_out is None else bool(interleaved_out)
    layer.rotary_start = any_int(where, "rotary_start", rotary_start)
    layer.seq_dim = any_int(where, "seq_dim", seq_dim)
    layer.scaling = None if scaling is None else dict(scaling)
    options.interleaved = bool(interleaved)
    options.interleaved_out = layer.interleaved_out
    options.inverse = layer.inverse
    if rotary_dim is not None:
        options.rotary_dim = any_int(where, "rotary_dim", rotary_dim)
    options.rotary_start = layer.rotary_start
    if axes is not None:
        options.axes = [any_int(where, "axes", axis) for axis in axes]
    options.seq_dim = layer.seq_dim
    if attention_factor is not None:
        options.attention_factor = real(where, "attention_factor", attention_factor)
    options.scaling = read_scaling(where, {} if scaling is None else scaling)
    options.check()
    frequencies = options.frequencies()
    layer.base = options.theta()
    layer.interleaved = options.reads_pairs()
    layer.axes = options.resolved_axes() or None
    layer.rotary_dim = options.width()
    layer.inv_freq = list(frequencies.inv_freq)
    layer.attention_factor = frequencies.attention_factor
    return frequencies


def shown(layer: _Rotary, width: int) -> str:
    """The options of a layer that are not the usual ones, for its ``extra_repr``."""
    text = ""
    if layer.interleaved_out is not None:
        text += f", interleaved_out={layer.interleaved_out}"
    if layer.rotary_dim != width:
        text += f", rotary_dim={layer.rotary_dim}, rotary_start={layer.rotary_start}"
    if layer.axes is not None:
        text += f", axes={layer.axes}"
    if layer.inverse:
        text += ", inverse=True"
    if layer.seq_dim != 1:
        text += f", seq_dim={layer.seq_dim}"
    if layer.scaling is not None:
        text += f", scaling={layer.scaling}"
    if layer.attention_factor != 1.0:
        text += f", attention_factor={layer.attention_factor:g}"
    return text
