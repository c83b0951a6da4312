"""What the pictures share: figures without a display, colours, saving."""

import functools
import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec

from .._extras import need
from .._output import check_picture, picture_ending

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, told apart with any kind of colour vision; its yellow is left out, which
# vanishes on white paper.
COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9",
    "#E69F00", "#000000", "#7F7F7F", "#7A4B00",
)  # fmt: skip
#: Dashes say the same once more, for print in grey.
DASHES: tuple[Any, ...] = (
    "-",
    (0, (5, 2)),
    (0, (1, 1.2)),
    (0, (5, 1.5, 1, 1.5)),
    (0, (8, 2)),
    (0, (3, 1)),
    (0, (5, 1.5, 1, 1.5, 1, 1.5)),
    (0, (2, 2)),
    (0, (8, 1.5, 1, 1.5)),
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "h")
#: Blue to yellow with lightness rising throughout: readable in grey and with any colour vision.
MAP = "cividis"
#: A line of reference, such as the trained length.
GREY = "#666666"

_STYLE = {
    "font.size": 10.0,
    "axes.titlesize": 10.5,
    "axes.labelsize": 10.0,
    "xtick.labelsize": 9.0,
    "ytick.labelsize": 9.0,
    "legend.fontsize": 9.0,
    "legend.frameon": False,
    "figure.titlesize": 12.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "#e5e5e5",
    "lines.linewidth": 1.6,
    "image.cmap": MAP,
    "savefig.dpi": 150,
    "svg.hashsalt": "posenc",  # equal pictures are equal files
}
# What is the user's to choose: where windows and files come from, not how a picture looks.
_KEPT = frozenset(("backend", "backend_fallback", "interactive", "toolbar", "timezone"))

_P = ParamSpec("_P")


def picture(draw: "Callable[_P, Figure]") -> "Callable[_P, Figure]":
    """Runs a plot function in the style of this package, and leaves the caller's alone. Whether
    ``save`` can be written is known before anything is computed."""

    @functools.wraps(draw)
    def styled(*args: _P.args, **kwargs: _P.kwargs) -> "Figure":
        matplotlib = need("matplotlib", "plots", draw.__name__)
        check_picture(kwargs.get("save"))
        defaults = {k: v for k, v in matplotlib.rcParamsDefault.items() if k not in _KEPT}
        with warnings.catch_warnings():
            # Some defaults are announced to go; setting them again says so once more.
            warnings.simplefilter("ignore", matplotlib.MatplotlibDeprecationWarning)
            context = matplotlib.rc_context({**defaults, **_STYLE})
        with context:
            return draw(*args, **kwargs)

    return styled


def new_figure(width: float, height: float, title: str | None = None) -> "Figure":
    """An empty figure in inches, drawn in memory: it never opens a window."""
    figure_module = need("matplotlib.figure", "plots", "posenc.plots")
    agg = need("matplotlib.backends.backend_agg", "plots", "posenc.plots")
    # Notebooks show a Figure by themselves only once pyplot has told them how.
    need("matplotlib.pyplot", "plots", "posenc.plots")
    figure = figure_module.Figure(figsize=(width, height), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.08, h_pad=0.08, wspace=0.03, hspace=0.03)
    agg.FigureCanvasAgg(figure)
    if title is not None:
        figure.suptitle(title)
    return figure


def finish(figure: "Figure", save: str | os.PathLike[str] | None) -> "Figure":
    """Writes the figure where ``save`` says, and returns it."""
    if save is not None:
        dates = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": {}}
        figure.savefig(os.fsdecode(save), metadata=dates[picture_ending(save)])
    return figure


def named_layers(where: str, layers: Any) -> Mapping[str, Any]:
    """``layers`` as given: a dictionary, name -> layer, with at least one."""
    if not isinstance(layers, Mapping):
        raise TypeError(
            f"{where}: expected a dictionary, name -> layer, got {type(layers).__name__}"
        )
    if not layers:
        raise ValueError(f"{where}: expected at least one layer, got none")
    return layers


def log_ticks(low: float, high: float) -> list[float]:
    """Numbers to write on a logarithmic axis from ``low`` to ``high``, at least two: powers of 10,
    with 2 and 5 between or every digit where those are few, else evenly spaced ones.

    >>> from posenc.plots._figure import log_ticks
    >>> log_ticks(0.05, 300.0), log_ticks(2.1, 7.7), log_ticks(3.1, 3.5)
    ([0.1, 1.0, 10.0, 100.0], [3.0, 4.0, 5.0, 6.0, 7.0], [3.1, 3.2, 3.3, 3.4, 3.5])
    """
    from matplotlib.ticker import MaxNLocator

    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1,), (1, 2, 5), range(1, 10)):
        # From text, so that 3 tenths are 0.3.
        ticks = [float(f"{digit}e{power}") for power in powers for digit in digits]
        shown = [tick for tick in ticks if low <= tick <= high]
        if len(shown) >= 3:
            return shown
    ticks = [
        float(f"{tick:.6g}") for tick in MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(low, high)
    ]
    return [tick for tick in ticks if low <= tick <= high]


def heatmap(
    axes: "Axes",
    values: Any,
    *,
    label: str | None = None,
    limits: tuple[float, float] | None = None,
    extent: Sequence[float] | None = None,
    aspect: str = "auto",
    colours: int | None = None,
    bar_on: Any = None,
    **bar: Any,
) -> Any:
    """Draws (rows, columns) with its colour bar.

    Args:
        label: what the colours mean; None: no colour bar (the caller gives one to several).
        limits: values at the ends of the colours; None: the smallest and the largest.
        colours: how many; None: a continuous series.
        bar_on: axes that the colour bar belongs to; None: these.
        bar: how the colour bar is placed (matplotlib's ``Figure.colorbar``).
    """
    matplotlib = need("matplotlib", "plots", "posenc.plots")
    low, high = limits if limits is not None else (None, None)
    image = axes.imshow(
        values,
        aspect=aspect,
        interpolation="nearest",
        origin="upper",
        vmin=low,
        vmax=high,
        extent=extent,
        cmap=matplotlib.colormaps[MAP].resampled(colours or 256),
    )
    axes.spines[["top", "right"]].set_visible(True)
    for axis in (axes.xaxis, axes.yaxis):
        axis.get_major_locator().set_params(integer=True)
    if label is not None:
        axes.figure.colorbar(image, ax=axes if bar_on is None else bar_on, label=label, **bar)
    return image


def around_zero(values: Any) -> tuple[float, float]:
    """Limits of the colours that put 0 in their middle."""
    largest = float(abs(values).max())
    return (-largest, largest) if largest else (-1.0, 1.0)


def line_style(number: int) -> dict[str, Any]:
    """Colour and dash of the curve with this number."""
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": DASHES[number % len(DASHES)]}


def mark_length(axes: "Axes", length: float, text: str, vertical: bool = True) -> None:
    """A dotted line at a length, with its name at the end."""
    line = {"color": GREY, "linewidth": 1.1, "linestyle": (0, (1, 2))}
    # The patch keeps grid lines from crossing the words.
    patch = {"facecolor": "white", "edgecolor": "none", "pad": 1}
    name = {"fontsize": 9, "color": GREY, "bbox": patch}
    if vertical:
        axes.axvline(length, **line)
        axes.annotate(
            text,
            (length, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(3, -3),
            textcoords="offset points",
            va="top",
            **name,
        )
    else:
        axes.axhline(length, **line)
        axes.annotate(
            text,
            (0.0, length),
            xycoords=("axes fraction", "data"),
            xytext=(3, 3),
            textcoords="offset points",
            va="bottom",
            **name,
        )
