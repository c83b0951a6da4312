"""The benchmark's line plot."""

import os
from typing import TYPE_CHECKING, Any

from ._figure import MARKERS, finish, line_style, log_ticks, new_figure, picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..benchmark.encodings import EncodingTimes


@picture
def benchmark_lines(
    times: "EncodingTimes | None" = None,
    *,
    save: str | os.PathLike[str] | None = None,
    **options: Any,
) -> "Figure":
    """Time of a call against the length, one line an encoding, the limit and each peer.

    Args:
        times: of `posenc.benchmark_positional_encodings`; None: measured now, which takes a minute.
        options: of that function, where it is called.
        save: file to write (.png, .svg, .pdf).
    """
    if times is None:
        from ..benchmark.encodings import benchmark_positional_encodings

        times = benchmark_positional_encodings(**{"quiet": True, **options})
    settings, lengths = times.settings, times.lengths
    where = settings["device"]
    if where == "cpu":
        where = f"CPU threads: {times.machine['threads']}"
    figure = new_figure(
        9.6,
        4.8,
        f"Time of a call: batch {settings['batch_size']}, width {settings['d_model']}, "
        f"{settings['n_heads']} heads, {settings['dtype']}, {where}",
    )
    axes = figure.add_subplot()
    for number, (name, row) in enumerate(times.milliseconds.items()):
        axes.plot(
            lengths,
            [row[n] for n in lengths],
            marker=MARKERS[number % len(MARKERS)],
            markersize=5,
            label=name,
            **line_style(number),
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(lengths, [f"{n:,}" for n in lengths])
    ticks = log_ticks(*axes.get_ylim())
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("length (tokens)")
    axes.set_ylabel("time of a call (ms)")
    axes.grid()
    figure.legend(loc="outside right center", title="encoding")
    return finish(figure, save)
