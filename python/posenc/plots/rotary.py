"""Pictures of rotations."""

import math
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..analysis.decay import expected_scores, expected_scores_on_grid, on_each_axis
from ..analysis.frequencies import analyze_rope, example_scalings, stretched_length
from ..rotary import (
    AxialRotaryEmbedding,
    MixedRotaryEmbedding,
    QueryTemperature,
    RotaryPositionalEmbedding,
)
from ._figure import (
    finish,
    heatmap,
    line_style,
    mark_length,
    named_layers,
    new_figure,
    picture,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _pair_planes(rope: nn.Module, positions: Tensor, shown: Sequence[int]) -> tuple[Tensor, Tensor]:
    """cos and sin (pairs, L) of the angles of the pairs shown, as the layer turns the first unit
    vector of each: its two channels afterwards, without the attention factor."""
    n = len(rope.inv_freq)
    width = getattr(rope, "head_dim", None) or rope.d_model
    start = getattr(rope, "rotary_start", 0)
    pairs = torch.tensor(shown, device="cpu")
    rows = torch.arange(len(shown), device="cpu")
    first = start + (2 * pairs if rope.interleaved else pairs)
    written = getattr(rope, "interleaved_out", None)
    paired = rope.interleaved if written is None else written
    cos_at = start + (2 * pairs if paired else pairs)
    sin_at = cos_at + (1 if paired else n)
    units = torch.zeros(len(shown), positions.numel(), 1, width, dtype=torch.float64, device="cpu")
    units[rows, :, 0, first] = 1.0
    positions = on_each_axis(rope, positions)
    if getattr(rope, "seq_dim", 1) in (2, -2):
        out = rope(units.transpose(1, 2), positions).transpose(1, 2)[:, :, 0]
    else:
        out = rope(units, positions)[:, :, 0]
    out = out / getattr(rope, "attention_factor", 1.0)
    return out[rows, :, cos_at], out[rows, :, sin_at]


@picture
def visualize_rope(
    rope: nn.Module | None = None,
    *,
    seq_len: int = 100,
    save: str | os.PathLike[str] | None = None,
) -> "Figure":
    """Sine components of 4 frequencies, rotation angles of 4 pairs, and the similarity of a
    vector with itself at relative positions -10 to 10.

    All of it is read off the layer: it rotates unit vectors.

    Args:
        rope: `RotaryPositionalEmbedding` or `RoPEAttention`; None: width 64. With several position
            axes (M-RoPE) the positions are those of text, where the axes agree.
        seq_len: positions of the first two pictures.
        save: file to write (.png, .svg, .pdf).
    """
    where = "visualize_rope"
    rope = RotaryPositionalEmbedding(64) if rope is None else getattr(rope, "rope", rope)
    if not isinstance(rope, RotaryPositionalEmbedding):
        raise TypeError(f"{where}: expected a RotaryPositionalEmbedding, got {type(rope).__name__}")
    if seq_len < 2:
        raise ValueError(f"{where}: expected seq_len >= 2, got {seq_len}")
    n = len(rope.inv_freq)
    # Enough for smooth curves; past some thousand positions no picture has the room for more.
    samples = min(12 * (seq_len - 1), 50_000) + 1
    positions = torch.linspace(0, seq_len - 1, samples, dtype=torch.float64, device="cpu")
    frequencies = rope.inv_freq_at(seq_len)
    shown = sorted({0, n // 8, n // 4, n // 2}) if n >= 8 else list(range(min(4, n)))
    with torch.no_grad():
        cos, sin = _pair_planes(rope, positions, shown)
    figure = new_figure(12.5, 4.4, f"RoPE of {2 * n} channels, θ = {rope.base:g}")
    waves, angles, similarity = figure.subplots(1, 3)
    for number, pair in enumerate(shown):
        name = f"{pair} ({frequencies[pair]:.3g})"
        waves.plot(positions, sin[number], label=name, **line_style(number))
        turned = torch.atan2(sin[number], cos[number]).remainder(2 * math.pi)
        turned[1:][turned.diff().abs() > math.pi] = math.nan  # no stroke where a turn is full
        angles.plot(positions, turned, label=name, **line_style(number))
    waves.set_title("Sine component")
    waves.set_ylabel("sin(position × frequency)")
    angles.set_title("Rotation angle")
    angles.set_ylabel("angle (radians, modulo 2π)")
    angles.set_yticks([0, math.pi, 2 * math.pi], ["0", "π", "2π"])
    for axes in (waves, angles):
        axes.set_xlabel("position")
        axes.margins(x=0)
        axes.grid(axis="y")
    handles, labels = waves.get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        title="pair of channels (frequency in radians per position)",
        loc="outside lower center",
        ncols=4,
    )
    relative = torch.arange(-10, 11, device="cpu")
    scores, _ = expected_scores(rope, relative.abs())
    # Cosine similarity: the expected product over that at distance 0.
    similarity.plot(relative, (scores / expected_scores(rope, [0])[0])[0], marker="o", ms=4,
                    **line_style(0))  # fmt: skip
    similarity.set_title("Similarity of q and k, equal vectors")
    similarity.set_xlabel("relative position (key − query)")
    similarity.set_ylabel("mean cosine similarity")
    similarity.set_xticks(range(-10, 11, 5))
    similarity.grid()
    return finish(figure, save)


@picture
def rope_wavelengths(
    ropes: Mapping[str, nn.Module] | None = None,
    *,
    head_dim: int = 128,
    factor: float = 8.0,
    trained_length: int = 4096,
    save: str | os.PathLike[str] | None = None,
) -> "Figure":
    """Wavelength of every pair of channels against the trained length, and by how much each type
    of scaling slows the pairs down.

    Args:
        ropes: name -> RoPE layer; None: one of each type of scaling
            (`posenc.analysis.example_scalings`), stretched ``factor`` times.
        head_dim, factor: of those.
        trained_length: positions seen in training.
        save: file to write (.png, .svg, .pdf).
    """
    where = "rope_wavelengths"
    if ropes is None:
        examples = example_scalings(head_dim, factor, trained_length)
        examples.pop("deepseek_yarn")  # YaRN's frequencies, another attention factor
        ropes = {
            name: RotaryPositionalEmbedding(head_dim, scaling=scaling)
            for name, scaling in examples.items()
        }
    named_layers(where, ropes)
    length = stretched_length(where, factor, trained_length)
    figure = new_figure(12.0, 4.9, f"RoPE's scalings, frequencies at length {length:,}")
    left, right = figure.subplots(1, 2)
    reach = 1.0
    for number, (name, rope) in enumerate(ropes.items()):
        figures = analyze_rope(rope, trained_length, length, quiet=True)
        waves = [w if math.isfinite(w) else math.nan for w in figures.wavelengths]
        stretch = [s if math.isfinite(s) else math.nan for s in figures.stretch]
        finite = [s for s in stretch if not math.isnan(s)]
        reach = max([reach, *finite])
        still = len(waves) - len(finite)
        label = f"{name}\n({still} pairs do not turn)" if still else name
        # Earlier curves are wider: where several coincide, each still shows.
        style = {**line_style(number), "linewidth": max(1.4, 3.8 - 0.4 * number)}
        left.plot(waves, label=label, **style)
        plain = [w / s for w, s in zip(waves, stretch, strict=True)]
        right.plot(plain, stretch, **style)
    mark_length(left, trained_length, f"trained length {trained_length:,}", vertical=False)
    left.set_yscale("log")
    left.set_title("Wavelength of each pair")
    left.set_xlabel("pair of channels (fastest first)")
    left.set_ylabel("wavelength (positions per turn)")
    mark_length(right, trained_length, "trained length")
    right.set_xscale("log")
    right.set_yscale("log", base=2)
    ticks = [2.0**k for k in range(int(math.log2(reach) + 1e-6) + 1)]
    right.set_yticks(ticks, [f"{t:g}" for t in ticks])
    right.set_title("How much slower than without scaling")
    right.set_xlabel("wavelength without scaling (positions per turn)")
    right.set_ylabel("slowed down by (factor)")
    for axes in (left, right):
        axes.margins(x=0, y=0.09)
        axes.grid()
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, title="scaling", loc="outside right center")
    return finish(figure, save)


@picture
def grid_decay(
    layers: Mapping[str, nn.Module] | None = None,
    *,
    reach: int = 16,
    save: str | os.PathLike[str] | None = None,
) -> "Figure":
    """Expected score of a similar patch by its offset in rows and columns, for RoPE on grids.

    Args:
        layers: name -> `AxialRotaryEmbedding` or `MixedRotaryEmbedding` (its first head); None:
            the arrangements of Qwen2-VL and Pixtral, and RoPE-Mixed before training.
        reach: largest offset.
        save: file to write (.png, .svg, .pdf).
    """
    if layers is None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(2)
            mixed = MixedRotaryEmbedding(64, 1)
        layers = {
            "half_hw (Qwen2-VL)": AxialRotaryEmbedding(64),
            "half_parity_hw (Pixtral)": AxialRotaryEmbedding(64, "half_parity_hw"),
            "RoPE-Mixed, before training": mixed,
        }
    named_layers("grid_decay", layers)
    grids: list[tuple[str, Any]] = []
    for name, layer in layers.items():
        scores, plain = expected_scores_on_grid(layer, reach)
        grids.append((name, (scores[0] - plain).numpy()))
    low = min(values.min() for _, values in grids)
    figure = new_figure(
        3.6 * len(grids) + 1.2, 4.0, "RoPE on a grid: score of a similar patch by its offset"
    )
    row = figure.subplots(1, len(grids), squeeze=False)[0]
    extent = (-reach - 0.5, reach + 0.5, reach + 0.5, -reach - 0.5)
    for number, (axes, (name, values)) in enumerate(zip(row, grids, strict=True)):
        last = number == len(grids) - 1
        heatmap(
            axes,
            values,
            label="score less that at offset 0" if last else None,
            limits=(low, 0.0),
            extent=extent,
            aspect="equal",
            bar_on=list(row),
        )
        axes.set_title(name)
        axes.set_xlabel("columns from the query")
        axes.set_ylabel("rows from the query")
    return finish(figure, save)


@picture
def query_temperature(
    layers: Mapping[str, nn.Module] | None = None,
    *,
    reach: int = 131072,
    save: str | os.PathLike[str] | None = None,
) -> "Figure":
    """By how much queries are scaled at each position, where a model does that.

    Args:
        layers: name -> `QueryTemperature`; None: those of Llama 4 and of Ministral 3.
        reach: positions.
        save: file to write (.png, .svg, .pdf).
    """
    where = "query_temperature"
    if not 2 <= reach <= 2**53:  # past that, float64 has no number for every position
        raise ValueError(f"{where}: expected reach from 2 to 2^53, got {reach}")
    if layers is None:
        layers = {
            "Llama 4": QueryTemperature(),
            "Ministral 3": QueryTemperature(0.1, 16384, 0),
        }
    named_layers(where, layers)
    at = torch.linspace(0, reach - 1, 4097, dtype=torch.float64, device="cpu")
    positions = at.round().long()
    figure = new_figure(7.2, 4.2)
    axes = figure.add_subplot()
    for number, (name, layer) in enumerate(layers.items()):
        ones = torch.ones(1, positions.numel(), 1, 1, dtype=torch.float64, device="cpu")
        if getattr(layer, "seq_dim", 1) in (2, -2):
            ones = ones.transpose(1, 2)
        with torch.no_grad():
            factor = layer(ones, positions).flatten()
        axes.plot(positions, factor, label=name, drawstyle="steps-post", **line_style(number))
    axes.set_title("Temperature of the queries")
    axes.set_xlabel("position")
    axes.set_ylabel("factor on the query")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.margins(x=0)
    axes.grid()
    axes.legend(loc="lower right")
    return finish(figure, save)
