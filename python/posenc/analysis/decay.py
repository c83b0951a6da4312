"""How much a key's score changes, on average, with its distance from the query."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..functional import alibi_bias
from .table import table_of

_WHERE = "expected_scores"


def _distances(distances: Sequence[float] | Tensor) -> Tensor:
    result = torch.as_tensor(distances, device="cpu").detach()
    if result.dtype == torch.bool:
        raise ValueError(f"{_WHERE}: expected distances to be a list of numbers, got bool")
    if result.dim() != 1 or result.numel() == 0 or result.is_complex():
        raise ValueError(
            f"{_WHERE}: expected distances to be a list of numbers, got shape {list(result.shape)}"
        )
    if result.is_floating_point() and not result.isfinite().all():
        raise ValueError(f"{_WHERE}: expected finite distances, got NaN or infinity")
    if (result < 0).any():
        raise ValueError(f"{_WHERE}: expected distances >= 0, got {result.min().item()}")
    return result


def _basis(layer: nn.Module, width: int, length: int) -> Tensor:
    """(width, length, H, width), or with time on the layer's axis: every unit vector at every
    position, for as many heads as the layer tells apart, where the layer's parameters are."""
    heads = getattr(layer, "n_heads", None) or 1
    parameter = next(layer.parameters(), None)
    unit = torch.eye(
        width, dtype=torch.float64, device="cpu" if parameter is None else parameter.device
    )
    units = unit[:, None, None, :].expand(-1, length, heads, -1)
    seq_dim = getattr(layer, "seq_dim", 1)
    return units if seq_dim in (1, -3) else units.transpose(1, 2)


def _heads_first(x: Tensor, layer: nn.Module) -> Tensor:
    """(H, width of the basis, length, channels)."""
    seq_dim = getattr(layer, "seq_dim", 1)
    return x.permute(2, 0, 1, 3) if seq_dim in (1, -3) else x.permute(1, 0, 2, 3)


def _rotated_scores(layer: nn.Module, width: int, distances: Tensor) -> Tensor:
    """(H, n): sum over the unit vectors e of (R_distance e) . (R_0 e), with the layer's own R."""
    units = _basis(layer, width, distances.numel())
    distances = on_each_axis(layer, distances.to(units.device))
    zeros = torch.zeros_like(distances)
    if type(layer).__name__ == "XPosRotaryEmbedding":
        q = layer(units, distances)
        k = layer(units, zeros, 0, True)
    elif type(layer).__name__ == "LongSequenceRoPE":
        q, k = layer(units, True, distances), layer(units, True, zeros)
    else:
        q, k = layer(units, distances), layer(units, zeros)
    q, k = _heads_first(q, layer), _heads_first(k, layer)
    return (q * k).sum(dim=(1, 3)).cpu()


def on_each_axis(layer: nn.Module, positions: Tensor) -> Tensor:
    """Positions (L) as the layer takes them: with several axes (M-RoPE) those of text, where all
    axes agree."""
    axes = getattr(layer, "axes", None)
    return positions if axes is None else positions.expand(max(axes) + 1, 1, -1)


def _width_of(layer: nn.Module) -> int:
    for name in ("head_dim", "d_model"):
        if hasattr(layer, name):
            return getattr(layer, name)
    raise TypeError(f"{_WHERE}: expected a posenc layer, got {type(layer).__name__}")


def expected_scores(
    encoding: nn.Module | Tensor, distances: Sequence[float] | Tensor
) -> tuple[Tensor, Tensor]:
    """The expected attention score of a key that resembles the query, by its distance.

    Query and key are the same vector of independent components of variance 1, so that without
    positions every distance would have the score sqrt(D). What position makes of it:

    * RoPE and its relatives: ``E[(R_d q) . q] / sqrt(D)``, from the layer's own rotation of every
      unit vector (for plain RoPE ``2 sum_i cos(d f_i) / sqrt(D)``). A layer whose frequencies
      depend on the length has those of a sequence as long as the largest distance; one of several
      axes (M-RoPE) has the positions of text, where the axes agree.
    * ALiBi: ``sqrt(D) - slope d``, from the operator's bias (between whole distances, which are
      all that it has, on the line through both neighbours: the bias is linear).
    * Tables that are added to the embeddings: ``(D + PE_p . PE_(p+d)) / sqrt(D)`` with D = d_model,
      the mean over all p that the table has.

    Args:
        encoding: `RotaryPositionalEmbedding`, `XPosRotaryEmbedding`, `LearnedRotaryEmbedding`,
            `LongSequenceRoPE`, `RoPEAttention`, `ALiBiAttention`, `SinusoidalPositionalEncoding`,
            `LearnedPositionalEncoding`, ``nn.Identity`` (no positions), or a table
            (positions, d_model).
        distances: n numbers >= 0 (whole ones for tables).

    Returns:
        scores float64 (H, n), H = 1 where the heads do not differ, and the score without
        positions, sqrt(D), as float64 (). Their difference is what position adds to a score
        before the softmax; its exponential is the factor on the key's weight.

    Raises:
        ValueError: distances that are negative, not finite, past a table's end or, for a table,
            not whole; an encoding without positions or of several axes.
        TypeError: no encoding of posenc.

    >>> rope = posenc.RotaryPositionalEmbedding(64)
    >>> scores, plain = posenc.analysis.expected_scores(rope, [0, 10, 100])
    >>> scores.shape, plain.item()
    (torch.Size([1, 3]), 8.0)

    Source: the decay of Su et al. 2021, arXiv:2104.09864, section 3.3, as the mean over similar
    keys in place of a bound (Men et al. 2024, arXiv:2405.14591).
    """
    where = _distances(distances)
    if hasattr(encoding, "rope"):
        encoding = encoding.rope
    if isinstance(encoding, Tensor) or hasattr(encoding, "positional_embeddings"):
        table = table_of(_WHERE, encoding)
        return _table_scores(table, where), _plain(table.size(1))
    if isinstance(encoding, nn.Identity):
        raise ValueError(f"{_WHERE}: expected an encoding with positions, got nn.Identity")
    with torch.no_grad():
        if hasattr(encoding, "slopes"):
            plain = _plain(encoding.head_dim)
            nearer = where.floor().long() if where.is_floating_point() else where.long()
            part = where.double() - nearer
            reach = int(nearer.max().item()) + 2
            bias = alibi_bias(encoding.slopes, 1, reach, reach - 1, dtype=torch.float64)[:, 0]
            # The query is the last of `reach` positions.
            near, far = bias[:, reach - 1 - nearer], bias[:, reach - 2 - nearer]
            return plain + near + part * (far - near), plain
        width = _width_of(encoding)
        if hasattr(encoding, "spacing"):
            rows = encoding(
                torch.zeros(1, where.numel() + 1, width, dtype=torch.float64),
                torch.cat([torch.zeros(1, dtype=where.dtype), where]),
            )[0]
            return (width + rows[1:] @ rows[0])[None] / math.sqrt(width), _plain(width)
        if hasattr(encoding, "n_axes") or not hasattr(encoding, "inv_freq"):
            raise ValueError(
                f"{_WHERE}: expected an encoding of one position axis, got "
                f"{type(encoding).__name__}; expected_scores_on_grid serves two"
            )
        return _rotated_scores(encoding, width, where) / math.sqrt(width), _plain(width)


def _plain(width: int) -> Tensor:
    return torch.tensor(math.sqrt(width), dtype=torch.float64)


def _table_scores(table: Tensor, distances: Tensor) -> Tensor:
    """(1, n): the mean over all pairs of rows so far apart."""
    length, width = table.shape
    if distances.is_floating_point() and (distances != distances.round()).any():
        raise ValueError(f"{_WHERE}: expected whole distances for a table, got {distances}")
    if distances.max() >= length:
        raise ValueError(
            f"{_WHERE}: expected distances below the table's {length} positions, got "
            f"{int(distances.max())}"
        )
    products = [(table[: length - d] * table[d:]).sum(-1).mean() for d in distances.long().tolist()]
    return (width + torch.stack(products))[None] / math.sqrt(width)


def expected_scores_on_grid(layer: nn.Module, reach: int = 16) -> tuple[Tensor, Tensor]:
    """`expected_scores` for RoPE over rows and columns, by the offset of the key's patch.

    Args:
        layer: `AxialRotaryEmbedding` of two axes or `MixedRotaryEmbedding`.
        reach: offsets go from -reach to reach on each axis.

    Returns:
        float64 (H, 2 reach + 1, 2 reach + 1), rows down, columns across, and sqrt(D).
    """
    where = "expected_scores_on_grid"
    if reach < 1:
        raise ValueError(f"{where}: expected reach >= 1, got {reach}")
    axes = getattr(layer, "n_axes", 2 if hasattr(layer, "freqs") else 0)
    if axes != 2:
        raise ValueError(
            f"{where}: expected a layer with two position axes, got {type(layer).__name__}"
            + (f" with {axes}" if axes else "")
        )
    width, side = layer.head_dim, 2 * reach + 1
    steps = torch.arange(side)
    y, x = steps.repeat_interleave(side), steps.repeat(side)
    extra = layer.n_prefix + layer.n_suffix
    units = _basis(layer, width, side * side + extra)
    with torch.no_grad():
        grid = torch.stack([y, x]).to(units.device)
        rows = _heads_first(layer(units, grid), layer).cpu()
    rows = rows[:, :, layer.n_prefix : rows.size(2) - layer.n_suffix]
    middle = rows[:, :, (side * side) // 2]
    scores = torch.einsum("hbld,hbd->hl", rows, middle)
    return scores.view(-1, side, side) / math.sqrt(width), _plain(width)
