"""Encodings side by side: what each costs and what it is good for."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

#: What the columns of the table of trade-offs ask.
ASPECTS = ("parameters", "extrapolation", "flexibility", "cost", "expressiveness")


@dataclass(frozen=True)
class TradeOffs:
    """One encoding's row: the number of its parameters, and a sentence for each other aspect."""

    encoding: str
    parameters: int
    extrapolation: str
    flexibility: str
    cost: str
    expressiveness: str

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


_TEXTS: dict[str, tuple[str, str, str, str]] = {
    "sinusoidal": (
        "defined at any position; models rarely use the unseen ones well",
        "any length and real-valued positions; nothing adapts to the data",
        "one pass over the embeddings",
        "fixed waves, absolute position",
    ),
    "learned": (
        "none: an error past max_len",
        "adapts to the data; the length is fixed when it is made",
        "one pass, and a table to store and to train",
        "any pattern of absolute positions",
    ),
    "rope": (
        "defined at any position; far ones want a scaling (YaRN, Llama 3, ...)",
        "any length; scalings, partial rotation, several axes",
        "one pass over q and k in every layer",
        "relative distance, inside the score",
    ),
    "alibi": (
        "built for it: the penalty goes on with distance",
        "any length and any number of heads; one slope a head",
        "no table; far keys are skipped",
        "recency alone, of a strength fixed for each head",
    ),
}


def trade_offs(
    encodings: Sequence[str] = ("sinusoidal", "learned"), *, d_model: int = 128, max_len: int = 100
) -> list[TradeOffs]:
    """The table of trade-offs, one row an encoding.

    Args:
        encodings: of sinusoidal, learned, rope, alibi.
        d_model, max_len: of the layers whose parameters are counted (the position's own: an
            attention layer's projections are not its encoding's).
    """
    unknown = [name for name in encodings if name not in _TEXTS]
    if unknown:
        raise ValueError(
            f"trade_offs: expected encodings among {', '.join(_TEXTS)}, got {', '.join(unknown)}"
        )
    return [
        TradeOffs(name, _parameters(name, d_model, max_len), *_TEXTS[name]) for name in encodings
    ]


def _parameters(name: str, d_model: int, max_len: int) -> int:
    from ..absolute import LearnedPositionalEncoding, SinusoidalPositionalEncoding
    from ..attention import ALiBiAttention
    from ..rotary import RotaryPositionalEmbedding

    # On the meta device nothing is drawn from the caller's generator, and no table is stored.
    layer = {
        "sinusoidal": lambda: SinusoidalPositionalEncoding(d_model),
        "learned": lambda: LearnedPositionalEncoding(max_len, d_model, device="meta"),
        # Heads have an even width, whatever the model's.
        "rope": lambda: RotaryPositionalEmbedding(d_model + d_model % 2),
        "alibi": lambda: ALiBiAttention(d_model, 1, device="meta"),
    }[name]()
    projections = sum(
        p.numel()
        for child in layer.children()
        if isinstance(child, nn.Linear)
        for p in child.parameters()
    )
    return sum(p.numel() for p in layer.parameters()) - projections


def as_text(rows: Sequence[TradeOffs], width: int = 100) -> str:
    """The table as text, an aspect a line and an encoding a column, wrapped to ``width``."""
    import textwrap

    first = max(len(aspect) for aspect in ASPECTS) + 2
    each = max(16, (width - first) // len(rows) - 2)
    lines = [(" " * first + "  ".join(row.encoding.ljust(each) for row in rows)).rstrip()]
    for aspect in ASPECTS:
        cells = []
        for row in rows:
            value = getattr(row, aspect)
            text = f"{value:,}" if isinstance(value, int) else value
            cells.append(textwrap.wrap(text, each))
        for i in range(max(map(len, cells))):
            name = aspect if i == 0 else ""
            parts = [(cell[i] if i < len(cell) else "").ljust(each) for cell in cells]
            lines.append((name.ljust(first) + "  ".join(parts)).rstrip())
    return "\n".join(lines)
