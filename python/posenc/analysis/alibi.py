"""ALiBi: how far its heads see, and which blocks of keys its attention leaves out."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

#: Keys a block, and query rows a tile, of the operator.
BLOCK = 64


@dataclass(frozen=True)
class AlibiFigures:
    """What `analyze_alibi` finds. Lists have one number a head.

    Attributes:
        slopes: score lost per position of distance.
        half: the distance at which a key of equal score has 1/2 of the weight.
        hundredth: the same for 1/100.
        length: of the sequence that the shares refer to.
        forward: share of the key blocks that the attention computes there, on random unit-normal q
            and k under a causal mask; the others cannot change the result.
        backward: the same share of its backward pass.
    """

    slopes: list[float]
    half: list[float]
    hundredth: list[float]
    length: int
    forward: list[float]
    backward: list[float]

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON; an infinite distance (slope 0) is None."""
        result = asdict(self)
        for name in ("half", "hundredth"):
            result[name] = [None if math.isinf(value) else value for value in result[name]]
        return result

    def __str__(self) -> str:
        lines = [
            f"Blocks of {BLOCK} keys computed of those under the causal mask, {self.length} "
            "random tokens:",
            f"{'head':>4} {'slope':>10} {'1/2 at':>9} {'1/100 at':>9} {'forward':>8} "
            f"{'backward':>9}",
        ]
        rows = zip(self.slopes, self.half, self.hundredth, self.forward, self.backward, strict=True)
        for head, (slope, half, hundredth, forward, backward) in enumerate(rows):
            lines.append(
                f"{head:4} {slope:10.6f} {half:9.1f} {hundredth:9.1f} {forward:8.1%} "
                f"{backward:9.1%}"
            )
        whole = sum(self.forward) / len(self.forward)
        back = sum(self.backward) / len(self.backward)
        lines.append(f"{'all':>4} {'':10} {'':9} {'':9} {whole:8.1%} {back:9.1%}")
        return "\n".join(lines)


def slopes_of(where: str, alibi: nn.Module | Sequence[float] | Tensor) -> list[float]:
    """The slopes of a layer, or those given."""
    slopes = getattr(alibi, "slopes", alibi)
    if isinstance(slopes, Tensor):
        slopes = slopes.tolist()
    if not isinstance(slopes, Sequence) or isinstance(slopes, str) or not len(slopes):
        raise TypeError(
            f"{where}: expected an ALiBiAttention or a list of slopes, got {type(alibi).__name__}"
        )
    if any(isinstance(slope, Sequence) for slope in slopes):
        raise TypeError(f"{where}: expected one slope a head, got a table of them")
    return [float(slope) for slope in slopes]


def _random(length: int, head_dim: int, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(1, 1, length, head_dim, generator=generator) for _ in range(3)]


def block_shares(
    alibi: nn.Module | Sequence[float] | Tensor,
    length: int,
    *,
    head_dim: int = 64,
    is_causal: bool = True,
    seed: int = 0,
    qkv: Sequence[Tensor] | None = None,
) -> list[tuple[float, float]]:
    """For each head the share of its key blocks that `alibi_attention` computes, as the operator
    itself counts them: (forward, backward).

    Args:
        alibi: an `ALiBiAttention`, or slopes (H), a list or a tensor.
        length: tokens L.
        head_dim, seed: of random unit-normal q, k, v, the same for every head.
        qkv: q, k, v (1, H, L, D) in their place: a model's own.
    """
    where = "block_shares"
    slopes = slopes_of(where, alibi)
    if length < 1:
        raise ValueError(f"{where}: expected length >= 1, got {length}")
    shares = []
    for head, slope in enumerate(slopes):
        q, k, v = _random(length, head_dim, seed) if qkv is None else _head(where, qkv, head)
        counts = torch.ops.posenc.alibi_attention_blocks(q, k, v, [slope], None, is_causal)
        forward, total, backward, total_backward = counts.tolist()
        shares.append((forward / total, backward / total_backward))
    return shares


def _head(where: str, qkv: Sequence[Tensor], head: int) -> list[Tensor]:
    if len(qkv) != 3 or any(t.dim() != 4 for t in qkv) or qkv[0].size(1) <= head:
        raise ValueError(
            f"{where}: expected q, k, v of shape (1, H, L, D) with a head for each slope, got "
            f"{[list(t.shape) for t in qkv]}"
        )
    q, k, v = (t.detach().to("cpu")[:1] for t in qkv)
    groups = q.size(1) // k.size(1)
    return [q[:, head : head + 1], *(t[:, head // groups : head // groups + 1] for t in (k, v))]


def block_map(
    slope: float,
    length: int,
    *,
    head_dim: int = 64,
    seed: int = 0,
    qkv: Sequence[Tensor] | None = None,
) -> Tensor:
    """Which key blocks `alibi_attention` computes for one head under a causal mask.

    The operator only counts. It visits blocks from near to far and decides on each by the nearer
    ones, so the count grows by one with the block that a mask newly allows, or stays.

    Args:
        slope: of the head.
        length: tokens L, a multiple of 64, so that every tile has 64 rows; the work grows with the
            cube of it (2048: a second).
        head_dim, seed: of random unit-normal q, k, v; at most 128 (wider heads have other tiles).
        qkv: q, k, v (1, 1, L, D) in their place.

    Returns:
        int8 (L / 64 tiles of queries, L / 64 blocks of keys): 1 computed, 0 skipped, -1 after the
        query.
    """
    where = "block_map"
    q, k, v = _random(max(length, 0), head_dim, seed) if qkv is None else _head(where, qkv, 0)
    if length < 1 or length % BLOCK or q.size(2) != length or k.size(2) != length:
        raise ValueError(
            f"{where}: expected length to be a multiple of {BLOCK}, that of q and k, got {length} "
            f"for {q.size(2)} queries and {k.size(2)} keys"
        )
    if max(q.size(3), v.size(3)) > 128:
        raise ValueError(f"{where}: expected head_dim <= 128, got {max(q.size(3), v.size(3))}")
    n = length // BLOCK
    position = torch.arange(length)
    result = torch.full((n, n), -1, dtype=torch.int8)
    for tile in range(n):
        rows = q[:, :, tile * BLOCK : (tile + 1) * BLOCK]
        before = 0
        for block in range(tile, -1, -1):
            keep = (position >= block * BLOCK)[None, None, None]
            count = torch.ops.posenc.alibi_attention_blocks(
                rows, k, v, [slope], keep, True, None, tile * BLOCK
            )[0].item()
            result[tile, block] = count - before
            before = count
    return result


def analyze_alibi(
    alibi: nn.Module | Sequence[float] | Tensor,
    length: int = 2048,
    *,
    head_dim: int | None = None,
    quiet: bool = False,
) -> AlibiFigures:
    """Prints and returns how far each head of ALiBi sees, and how much of the work that saves.

    Args:
        alibi: an `ALiBiAttention`, or slopes (H), a list or a tensor (`alibi_slopes`).
        length: tokens of the random sequence.
        head_dim: of its q and k; None: the layer's, 64 for slopes.
        quiet: print nothing.
    """
    slopes = slopes_of("analyze_alibi", alibi)
    width = head_dim or getattr(alibi, "head_dim", 64)
    shares = block_shares(alibi, length, head_dim=width)

    def at(share: float) -> list[float]:
        return [math.log(share) / m if m > 0 else math.inf for m in slopes]

    figures = AlibiFigures(
        slopes=slopes,
        half=at(2),
        hundredth=at(100),
        length=length,
        forward=[forward for forward, _ in shares],
        backward=[backward for _, backward in shares],
    )
    if not quiet:
        print(figures)
    return figures
