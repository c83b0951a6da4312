"""RoPE's frequencies against the length that a model was trained on."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from ..functional import rope_inv_freq
from .decay import expected_scores


@dataclass(frozen=True)
class RopeFigures:
    """What `analyze_rope` finds. Lists have one number a pair of channels, fastest first.

    Attributes:
        rope_type: of the scaling; "default" without one.
        base: theta.
        rotary_dim: rotated channels.
        attention_factor: scales q and k.
        trained_length: positions seen in training, that the figures refer to.
        length: the length that the frequencies are those of (dynamic NTK and LongRoPE depend on
            it).
        inv_freq: radians per position.
        wavelengths: positions per turn, 2 pi / f; infinite where f = 0.
        turns: full turns within the trained length.
        stretch: wavelength over that of the plain series of the same base and width, the factor
            by which the scaling slows a pair down.
        seen_whole: pairs that turn at least once within the trained length, so that training has
            seen every angle of theirs.
        scores: distance -> expected score of a similar key less that at distance 0
            (`expected_scores`).
    """

    rope_type: str
    base: float
    rotary_dim: int
    attention_factor: float
    trained_length: int
    length: int
    inv_freq: list[float]
    wavelengths: list[float]
    turns: list[float]
    stretch: list[float]
    seen_whole: int
    scores: dict[int, float]

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON; an infinite wavelength is None."""
        result = asdict(self)
        for name in ("wavelengths", "stretch"):
            result[name] = [None if math.isinf(value) else value for value in result[name]]
        return result

    @property
    def slowed(self) -> str:
        """The smallest and the largest stretch as text, of the pairs that turn."""
        return _span(self.stretch, ".3g")

    def __str__(self) -> str:
        n = len(self.inv_freq)
        still = sum(not math.isfinite(w) for w in self.wavelengths)
        lines = [
            f"{'scaling':34} {self.rope_type}, theta {self.base:g}",
            f"{'rotated channels':34} {self.rotary_dim} ({n} pairs)",
            f"{'attention factor':34} {self.attention_factor:.4f}",
            f"{'wavelengths (positions)':34} {_span(self.wavelengths, '.4g')}",
        ]
        if still:
            lines.append(f"{'pairs that do not turn':34} {still}")
        lines += [
            f"{'trained length':34} {self.trained_length}",
            f"{'pairs that turn wholly within it':34} {self.seen_whole} of {n}",
        ]
        if self.length != self.trained_length:
            lines.append(f"{'frequencies at length':34} {self.length}")
        lines.append(f"{'slowed down by':34} {self.slowed}")
        lines.append("score of a similar key, less that at distance 0")
        wide = max((len(str(d)) for d in self.scores), default=0)
        for distance, value in self.scores.items():
            name = f"  distance {distance:{wide}}"
            lines.append(f"{name:34} {value:+.3f}")
        return "\n".join(lines)


def _span(values: list[float], form: str) -> str:
    """The smallest and the largest of the finite values; a RoPE may have no pair that turns."""
    finite = [value for value in values if math.isfinite(value)]
    return f"{min(finite):{form}} ... {max(finite):{form}}" if finite else "no pair turns"


def stretched_length(where: str, factor: float, trained_length: int) -> int:
    """``factor`` times the trained length, in whole positions.

    Raises:
        ValueError: it is below 1, or past 2^53, where float64 positions have gaps.
    """
    length = factor * trained_length
    if not 1 <= length <= 2**53:
        raise ValueError(
            f"{where}: expected factor x trained_length from 1 to 2^53, got {factor:g} x "
            f"{trained_length}"
        )
    return int(length)


def _frequencies(rope: nn.Module, length: int) -> list[float]:
    if hasattr(rope, "inv_freq_at"):
        return list(rope.inv_freq_at(length))
    if hasattr(rope, "frequencies"):  # trained ones
        current = rope.frequencies().detach().flatten(0, -2) if rope.n_heads else None
        if current is None:
            return rope.frequencies().tolist()
        return current.mean(0).tolist()
    return list(rope.inv_freq)


def known_length(rope: nn.Module) -> int | None:
    """The trained length that a layer's scaling names, else None."""
    scaling = getattr(rope, "scaling", None) or {}
    named = scaling.get("original_max_position_embeddings")
    if named is None and getattr(rope, "depends_on_length", False):
        named = rope.trained_length
    return None if named is None else int(named)


def analyze_rope(
    rope: nn.Module,
    trained_length: int | None = None,
    length: int | None = None,
    *,
    quiet: bool = False,
) -> RopeFigures:
    """Prints and returns what a RoPE does, pair by pair, against the trained length.

    Args:
        rope: `RotaryPositionalEmbedding` of any scaling, `RoPEAttention`, `XPosRotaryEmbedding`,
            `LearnedRotaryEmbedding` (its current frequencies, the mean over heads),
            `LongSequenceRoPE`.
        trained_length: positions that the model was trained on; None: what the scaling says, else
            4096.
        length: for frequencies that depend on it; None: the trained length.
        quiet: print nothing.

    Raises:
        ValueError: a length below 1, or frequencies that are not finite.
        TypeError: no RoPE.

    Example:
        >>> scaling = {"rope_type": "linear", "factor": 4.0}
        >>> rope = posenc.RotaryPositionalEmbedding(64, scaling=scaling)
        >>> posenc.analysis.analyze_rope(rope, 2048, quiet=True).stretch[:2]
        [4.0, 4.0]
    """
    where = "analyze_rope"
    rope = getattr(rope, "rope", rope)
    if (
        not hasattr(rope, "inv_freq")
        or not hasattr(rope, "forward")
        or hasattr(rope, "spacing")
        or hasattr(rope, "n_axes")
    ):
        raise TypeError(f"{where}: expected a RoPE layer, got {type(rope).__name__}")
    if trained_length is None:
        trained_length = known_length(rope) or 4096
    for name, value in (("trained_length", trained_length), ("length", length)):
        if value is not None and value < 1:
            raise ValueError(f"{where}: expected {name} >= 1, got {value}")
    length = trained_length if length is None else length
    inv_freq = _frequencies(rope, length)
    if not all(map(math.isfinite, inv_freq)):
        raise ValueError(
            f"{where}: expected finite frequencies, got NaN or infinity from theta {rope.base:g} "
            f"and the scaling {getattr(rope, 'rope_type', 'default')}"
        )
    rotary_dim = getattr(rope, "rotary_dim", 2 * len(inv_freq))
    plain = rope_inv_freq(rotary_dim + rotary_dim % 2, rope.base)
    waves = [2 * math.pi / f if f else math.inf for f in inv_freq]
    distances = [d for d in (1, 10, 100, 1000, 10000, 100000) if d < length]
    reached = [0, *distances, length - 1]
    scores = expected_scores(rope, reached)[0].mean(0)
    decay = {d: (scores[i] - scores[0]).item() for i, d in enumerate(reached) if i}
    figures = RopeFigures(
        rope_type=getattr(rope, "rope_type", "default"),
        base=float(rope.base),
        rotary_dim=rotary_dim,
        attention_factor=float(getattr(rope, "attention_factor", 1.0)),
        trained_length=trained_length,
        length=length,
        inv_freq=inv_freq,
        wavelengths=waves,
        turns=[trained_length / w for w in waves],
        stretch=[p / f if f else math.inf for p, f in zip(plain, inv_freq, strict=True)],
        seen_whole=sum(w <= trained_length for w in waves),
        scores=decay,
    )
    if not quiet:
        print(figures)
    return figures


def example_scalings(
    head_dim: int = 128, factor: float = 8.0, trained_length: int = 4096
) -> dict[str, dict[str, Any]]:
    """One dictionary for each type of RoPE scaling, all from ``trained_length`` to ``factor`` times
    that, with the usual values of the other keys.

    Dynamic NTK follows the length by itself, so its own factor is 1. The factors of LongRoPE, which
    are searched for each model, rise evenly from 1 to ``factor`` here. ``proportional`` leaves
    three quarters of the pairs unturned (Gemma 4).
    """
    n = head_dim // 2
    trained = {"original_max_position_embeddings": trained_length}
    ramp = [1.0 + (factor - 1.0) * i / max(1, n - 1) for i in range(n)]
    return {
        "default": {"rope_type": "default"},
        "linear": {"rope_type": "linear", "factor": factor},
        "ntk": {"rope_type": "ntk", "factor": factor},
        "dynamic": {"rope_type": "dynamic", "factor": 1.0, **trained},
        "yarn": {"rope_type": "yarn", "factor": factor, **trained},
        "deepseek_yarn": {"rope_type": "deepseek_yarn", "factor": factor, **trained},
        "longrope": {
            "rope_type": "longrope",
            "factor": factor,
            "short_factor": [1.0] * n,
            "long_factor": ramp,
            **trained,
        },
        "llama3": {
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            **trained,
        },
        "proportional": {"rope_type": "proportional", "partial_rotary_factor": 0.25},
    }
