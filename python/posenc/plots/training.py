"""The chart of the training comparison."""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._json import read_json
from ._figure import COLOURS, finish, mark_length, new_figure, picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Encoding: its name, and colour, marker and dash that stay its own whichever others are drawn.
_STYLES: dict[str, tuple[str, str, str, str]] = {
    "sinusoidal": ("sinusoidal", COLOURS[0], "o", "-"),
    "learned": ("learned", COLOURS[3], "D", "-"),
    "rope": ("RoPE", COLOURS[1], "s", "--"),
    "alibi": ("ALiBi", COLOURS[2], "^", "-"),
    "none": ("none", "#666666", "v", ":"),
}


def _number(loss: float | None) -> float:
    """A loss for matplotlib; null stands for the loss of a model that diverged."""
    return math.nan if loss is None else float(loss)


def _figures(
    where: str, results: Mapping[str, Any]
) -> tuple[float, list[int], dict[str, dict[int, float]]]:
    """The trained length, the lengths measured, and encoding -> length -> loss."""
    try:
        trained = float(results["settings"]["train_length"])
        lengths = [int(n) for n in results["settings"]["eval_lengths"]]
        losses = {
            name: {int(n): _number(loss) for n, loss in model["losses"].items()}
            for name, model in results["models"].items()
        }
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError):
        raise ValueError(
            f"{where}: expected the results of `python -m posenc train`, got something else"
        ) from None
    unknown = [name for name in losses if name not in _STYLES]
    if unknown:
        raise ValueError(
            f"{where}: expected encodings among {', '.join(_STYLES)}, got {', '.join(unknown)}"
        )
    shortest = min([trained, *lengths, *(n for row in losses.values() for n in row)])
    if shortest < 1:
        raise ValueError(f"{where}: expected lengths >= 1, got {shortest:g}")
    return trained, lengths, losses


@picture
def loss_by_length(
    results: Mapping[str, Any] | str | os.PathLike[str] = "demo_out/results.json",
    *,
    save: str | os.PathLike[str] | None = None,
) -> "Figure":
    """Validation loss against the length of the window, one line an encoding.

    Args:
        results: what `posenc.training.run` returns, or the ``results.json`` that it wrote.
        save: file to write (.png, .svg, .pdf).
    """
    where = "loss_by_length"
    if not isinstance(results, Mapping):
        path = Path(results)
        if not path.is_file():
            raise FileNotFoundError(
                f"{where}: no such file: {path} (`python -m posenc train` writes it)"
            )
        results = read_json(f"{where}: results", path)
    trained, lengths, losses = _figures(where, results)
    figure = new_figure(7.2, 4.2)
    axes = figure.add_subplot()
    mark_length(axes, trained, "trained at this length")
    for encoding, by_length in losses.items():
        name, colour, marker, dash = _STYLES[encoding]
        axes.plot(
            list(by_length),
            list(by_length.values()),
            color=colour,
            marker=marker,
            linestyle=dash,
            label=name,
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [str(n) for n in lengths])
    axes.minorticks_off()
    axes.margins(x=0.06, y=0.12)
    axes.set_title("Validation loss beyond the trained length")
    axes.set_xlabel("length of the validation windows (bytes)")
    axes.set_ylabel("validation loss (nats per byte)")
    axes.grid(axis="y")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), title="encoding")
    return finish(figure, save)
