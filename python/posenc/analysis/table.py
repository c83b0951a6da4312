"""A table of positions, sinusoidal or learned: range, similarity of positions."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class TableFigures:
    """What `analyze_positional_encoding` finds.

    Attributes:
        shape: (positions, channels).
        minimum: the smallest number.
        maximum: the largest.
        mean_norm: mean Euclidean norm of a row.
        neighbours: mean cosine similarity of positions p and p + 1; None for a single row.
        similarity: distance -> cosine similarity of position 0 with the position so far away.
    """

    shape: tuple[int, int]
    minimum: float
    maximum: float
    mean_norm: float
    neighbours: float | None
    similarity: dict[int, float]

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [
            f"{'shape':34} {self.shape}",
            f"{'range':34} [{self.minimum:.3f}, {self.maximum:.3f}]",
        ]
        if self.neighbours is not None:
            lines.append(f"{'mean cosine similarity, neighbours':34} {self.neighbours:.3f}")
        if self.similarity:
            lines.append("cosine similarity of position 0 with")
            wide = max(len(str(d)) for d in self.similarity)
            for distance, value in self.similarity.items():
                name = f"  position {distance:{wide}}"
                lines.append(f"{name:34} {value:.3f}")
        return "\n".join(lines)


def table_of(where: str, pe: Tensor | nn.Module) -> Tensor:
    """The (positions, channels) of a table or of a layer that holds one, float64 on the CPU."""
    given = pe
    if isinstance(pe, nn.Module):
        embedding = getattr(pe, "positional_embeddings", pe)
        pe = getattr(embedding, "weight", None)
    if not isinstance(pe, Tensor):
        raise TypeError(
            f"{where}: expected a tensor (positions, d_model) or a layer with a table, got "
            f"{type(given).__name__}"
        )
    # Rows that stand before position 0 belong to no position.
    pe = pe[getattr(given, "position_offset", 0) :] if isinstance(given, nn.Module) else pe
    if pe.layout != torch.strided or pe.is_meta:
        kind = "a meta tensor, which has none" if pe.is_meta else f"layout {pe.layout}"
        raise ValueError(f"{where}: expected a dense table with numbers, got {kind}")
    if pe.dim() == 3 and pe.size(0) == 1:
        pe = pe[0]
    if pe.dim() != 2 or pe.numel() == 0 or pe.is_complex() or pe.dtype == torch.bool:
        raise ValueError(
            f"{where}: expected a real table of shape (positions, d_model), got "
            f"{str(pe.dtype).removeprefix('torch.')} of shape {list(pe.shape)}"
        )
    table = pe.detach().to("cpu", torch.float64)
    if not torch.isfinite(table).all():
        raise ValueError(f"{where}: expected finite numbers in the table, got NaN or infinity")
    return table


def _positions(distances: Sequence[int]) -> list[int]:
    """Whole numbers >= 0, also where NumPy, torch or JSON made floats of them."""
    try:
        numbers = [float(d) for d in distances]
    except (TypeError, ValueError, OverflowError):
        numbers = [-1.0]
    if any(d < 0 or not d.is_integer() for d in numbers):
        raise ValueError(
            "analyze_positional_encoding: expected distances to be whole numbers >= 0, got "
            f"{distances}"
        )
    return [int(d) for d in numbers]


def analyze_positional_encoding(
    pe: Tensor | nn.Module,
    distances: Sequence[int] = (1, 5, 10, 20, 50),
    *,
    quiet: bool = False,
) -> TableFigures:
    """Prints and returns the figures of a table of positions.

    Args:
        pe: (positions, d_model) or (1, positions, d_model): what `get_positional_encoding` gives,
            a trained table (`posenc.analysis.load_table`), or a layer that holds one
            (`LearnedPositionalEncoding`, ``nn.Embedding``).
        distances: positions that are compared with position 0, whole numbers >= 0; those past the
            end are left out.
        quiet: print nothing.

    Raises:
        ValueError: another shape, numbers that are not finite, or distances that are no positions.
        TypeError: no tensor, and no layer with a table.

    >>> table = posenc.get_positional_encoding(100, 128)
    >>> posenc.analyze_positional_encoding(table, [1], quiet=True).shape
    (100, 128)
    """
    table = table_of("analyze_positional_encoding", pe)
    similar = F.cosine_similarity
    reached = [d for d in _positions(distances) if d < table.size(0)]
    figures = TableFigures(
        shape=(table.size(0), table.size(1)),
        minimum=table.min().item(),
        maximum=table.max().item(),
        mean_norm=table.norm(dim=-1).mean().item(),
        neighbours=(
            similar(table[:-1], table[1:], dim=-1).mean().item() if table.size(0) > 1 else None
        ),
        similarity={d: similar(table[0], table[d], dim=0).item() for d in reached},
    )
    if not quiet:
        print(figures)
    return figures
