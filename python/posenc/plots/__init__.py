"""Pictures of what the encodings do; each function returns a matplotlib ``Figure``.

>>> import posenc
>>> figure = posenc.plots.visualize_alibi(save="alibi.png")

No display is needed and no window opens: figures are drawn in memory, ``save=`` writes a .png, .svg
or .pdf. In a notebook a returned figure shows itself. Needed: ``pip install posenc[plots]``.

The pictures ask the layers and operators for their numbers; no formula is written here a second
time. `PICTURES` lists them all by name, as ``python -m posenc plot`` offers them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .absolute import (
    compare_positional_encodings,
    position_similarity,
    visualize_positional_encoding,
)
from .attention import alibi_blocks, compare_attention_patterns, score_decay, visualize_alibi
from .benchmark import benchmark_lines
from .rotary import grid_decay, query_temperature, rope_wavelengths, visualize_rope
from .training import loss_by_length


@dataclass(frozen=True)
class Picture:
    """One entry of `PICTURES`.

    Attributes:
        function: draws it; every argument has a default.
        summary: what it shows, one line.
        measures: it times this machine first, for a minute.
        reads: a file that something else has to write first, here by ``posenc train``.
    """

    function: Callable[..., Any]
    summary: str
    measures: bool = False
    reads: str | None = None


#: Every picture by its name.
PICTURES: dict[str, Picture] = {
    "table": Picture(visualize_positional_encoding, "curves and heatmap of a table of positions"),
    "similarity": Picture(position_similarity, "how alike the positions of a table are"),
    "encodings": Picture(compare_positional_encodings, "fixed and learned positions"),
    "rope": Picture(visualize_rope, "RoPE's sine components, angles and similarity"),
    "wavelengths": Picture(
        rope_wavelengths, "every RoPE scaling's wavelengths against the trained length"
    ),
    "grid": Picture(grid_decay, "RoPE on rows and columns: score by offset"),
    "temperature": Picture(query_temperature, "factor on the queries by position (Llama 4)"),
    "decay": Picture(score_decay, "expected score of a similar key by its distance"),
    "alibi": Picture(visualize_alibi, "ALiBi's slopes and biases"),
    "attention": Picture(compare_attention_patterns, "weights of RoPE and ALiBi attention"),
    "blocks": Picture(alibi_blocks, "which blocks of keys ALiBi attention computes"),
    "loss": Picture(loss_by_length, "loss of trained models by length", reads="results.json"),
    "benchmark": Picture(benchmark_lines, "times of the encodings by length", measures=True),
}

__all__ = [
    "PICTURES",
    "Picture",
    "alibi_blocks",
    "benchmark_lines",
    "compare_attention_patterns",
    "compare_positional_encodings",
    "grid_decay",
    "loss_by_length",
    "position_similarity",
    "query_temperature",
    "rope_wavelengths",
    "score_decay",
    "visualize_alibi",
    "visualize_positional_encoding",
    "visualize_rope",
]
