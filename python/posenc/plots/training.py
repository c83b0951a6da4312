"""The chart of the training comparison."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
        results = json.loads(path.read_text())
    try:
        trained = results["settings"]["train_length"]
        lengths = results["settings"]["eval_lengths"]
        losses = {name: model["losses"] for name, model in results["models"].items()}
    except (KeyError, TypeError, AttributeError):
        raise ValueError(
            f"{where}: expected the results of `python -m posenc train`, got something else"
        ) from None
    figure = new_figure(7.2, 4.2)
    axes = figure.add_subplot()
    mark_length(axes, trained, "trained at this length")
    for encoding, by_length in losses.items():
        name, colour, marker, dash = _STYLES[encoding]
        axes.plot(
            [int(n) for n in by_length],
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
