"""Pictures of what is added to the embeddings."""

import os
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..absolute import LearnedPositionalEncoding, get_positional_encoding
from ..analysis.comparison import as_text, trade_offs
from ..analysis.table import table_of
from ._figure import around_zero, finish, heatmap, line_style, new_figure, picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def _curves(axes: "Axes", table: Tensor, first: int, count: int) -> None:
    for number, channel in enumerate(range(first, min(first + count, table.size(1)))):
        axes.plot(table[:, channel].numpy(), label=f"{channel}", **line_style(number))
    axes.set_xlabel("position")
    axes.set_ylabel("value")
    axes.margins(x=0)
    axes.grid(axis="y")
    axes.legend(title="dimension", loc="center left", bbox_to_anchor=(1.0, 0.5))


@picture
def visualize_positional_encoding(
    pe: Tensor | nn.Module | None = None,
    *,
    title: str | None = None,
    save: str | os.PathLike[str] | None = None,
) -> "Figure":
    """Curves of the first 8 dimensions, curves of dimensions 60 to 68, and the whole table.

    Args:
        pe: (positions, d_model), or a layer with a table; None: the sinusoidal table (100, 128).
            A narrower table shows its last 9 dimensions in place of 60 to 68.
        title: above all; None: what is shown.
        save: file to write (.png, .svg, .pdf).
    """
    where = "visualize_positional_encoding"
    if title is None:
        title = "Sinusoidal encoding" if pe is None else "Table of positions"
    table = table_of(where, get_positional_encoding(100, 128) if pe is None else pe)
    width = table.size(1)
    later = 60 if width > 60 else max(0, width - 9)
    figure = new_figure(9.0, 10.2, f"{title}, {table.size(0)} positions × {width} dimensions")
    first, second, whole = figure.subplots(3, 1, height_ratios=(1.0, 1.0, 1.5))
    _curves(first, table, 0, 8)
    first.set_title(f"Dimensions 0–{min(7, width - 1)}")
    _curves(second, table, later, 9)
    second.set_title(f"Dimensions {later}–{min(later + 8, width - 1)}")
    heatmap(
        whole,
        table.numpy(),
        label="value",
        limits=around_zero(table),
        location="bottom",
        shrink=0.6,
        pad=0.02,
    )
    whole.set_title("Position × dimension")
    whole.set_xlabel("dimension")
    whole.set_ylabel("position")
    return finish(figure, save)


@picture
def position_similarity(
    pe: Tensor | nn.Module | None = None, *, save: str | os.PathLike[str] | None = None
) -> "Figure":
    """Cosine similarity of every two positions of a table, and its mean by distance.

    Args:
        pe: (positions, d_model), or a layer with a table; None: the sinusoidal table (100, 128).
        save: file to write (.png, .svg, .pdf).
    """
    source = get_positional_encoding(100, 128) if pe is None else pe
    table = F.normalize(table_of("position_similarity", source), dim=-1)
    similar = table @ table.T
    length = table.size(0)
    figure = new_figure(9.0, 4.0, "How alike the positions of a table are")
    left, right = figure.subplots(1, 2)
    heatmap(left, similar.numpy(), label="cosine similarity", aspect="equal")
    left.set_xlabel("position")
    left.set_ylabel("position")
    left.set_title("Every two positions")
    by_distance = [similar.diagonal(d) for d in range(length)]
    mean = torch.stack([values.mean() for values in by_distance])
    low = torch.stack([values.min() for values in by_distance])
    high = torch.stack([values.max() for values in by_distance])
    style = line_style(0)
    right.fill_between(range(length), low, high, color=style["color"], alpha=0.25, linewidth=0)
    right.plot(mean.numpy(), label="mean (band: smallest to largest)", **style)
    right.set_title("By their distance")
    right.set_xlabel("distance (positions)")
    right.set_ylabel("cosine similarity")
    right.margins(x=0)
    right.grid(axis="y")
    right.legend(loc="best")
    return finish(figure, save)


@picture
def compare_positional_encodings(
    seq_len: int = 100,
    d_model: int = 128,
    *,
    learned: Tensor | nn.Module | None = None,
    quiet: bool = False,
    save: str | os.PathLike[str] | None = None,
) -> "Figure":
    """Fixed against learned positions: prints shapes and the table of trade-offs, and draws the
    first 20 positions of both.

    Args:
        seq_len: positions of both tables.
        d_model: their width.
        learned: a trained table or its layer (`posenc.analysis.load_table`); None: a new
            `LearnedPositionalEncoding`, seed 0, as training starts from.
        quiet: print nothing.
        save: file to write (.png, .svg, .pdf).
    """
    where = "compare_positional_encodings"
    fixed = table_of(where, get_positional_encoding(seq_len, d_model))
    trained = learned is not None
    if learned is None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            learned = LearnedPositionalEncoding(seq_len, d_model)
    rows = table_of(where, learned)
    if not quiet:
        print(f"sinusoidal {tuple(fixed.shape)}, learned {tuple(rows.shape)}")
        print(as_text(trade_offs(d_model=rows.size(1), max_len=rows.size(0))))
    figure = new_figure(9.0, 5.6, "Fixed and learned positions, the first 20")
    names = ("sinusoidal", "learned, trained" if trained else "learned, before training")
    for axes, table, name in zip(figure.subplots(2, 1), (fixed, rows), names, strict=True):
        heatmap(axes, table[:20].numpy(), label="value", limits=around_zero(table))
        axes.set_title(name)
        axes.set_xlabel("dimension")
        axes.set_ylabel("position")
        axes.set_yticks(range(0, min(20, table.size(0)), 5))
    return finish(figure, save)
