"""Loss against length, one line an encoding; drawn without a display."""

from __future__ import annotations

from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from .options import Settings
from .report import NAMES
from .train import Outcome

# Okabe and Ito's palette, told apart with any kind of colour vision; markers and dashes say the
# same once more for print in grey.
STYLES = {
    "sinusoidal": ("#0072B2", "o", "-"),
    "learned": ("#CC79A7", "D", "-"),
    "rope": ("#D55E00", "s", "--"),
    "alibi": ("#009E73", "^", "-"),
    "none": ("#666666", "v", ":"),
}


def draw(path: Path, outcomes: list[Outcome], settings: Settings) -> None:
    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.axvline(settings.train_length, color="#999999", linewidth=1, linestyle=(0, (1, 2)))
    axes.annotate(
        "trained at this length",
        (settings.train_length, 0.98),
        xycoords=("data", "axes fraction"),
        xytext=(4, 0),
        textcoords="offset points",
        va="top",
        fontsize=8,
        color="#555555",
    )
    for outcome in outcomes:
        color, marker, dash = STYLES[outcome.encoding]
        axes.plot(
            list(outcome.losses),
            list(outcome.losses.values()),
            color=color,
            marker=marker,
            linestyle=dash,
            label=NAMES[outcome.encoding],
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks(settings.eval_lengths, [str(n) for n in settings.eval_lengths])
    axes.minorticks_off()
    axes.margins(x=0.06, y=0.12)
    axes.set_xlabel("length of the validation windows (bytes)")
    axes.set_ylabel("validation loss (nats per byte)")
    axes.grid(axis="y", color="#e5e5e5")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5), title="encoding")
    canvas.print_png(str(path))
