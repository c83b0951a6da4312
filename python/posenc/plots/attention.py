"""Pictures of scores and weights."""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..absolute import SinusoidalPositionalEncoding
from ..analysis.alibi import BLOCK, block_map, block_shares, slopes_of
from ..analysis.decay import expected_scores
from ..analysis.weights import attention_weights, check_attention, random_pair
from ..attention import ALiBiAttention
from ..functional import alibi_bias, xpos_reach
from ..rotary import RotaryPositionalEmbedding, XPosRotaryEmbedding
from ._figure import (
    COLOURS,
    finish,
    heatmap,
    line_style,
    named_layers,
    new_figure,
    picture,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _heads(where: str, heads: Sequence[int] | None, of: int, default: Sequence[int]) -> list[int]:
    chosen = [h for h in default if h < of] if heads is None else [int(h) for h in heads]
    if not chosen or not all(0 <= h < of for h in chosen):
        raise ValueError(f"{where}: expected heads from 0 to {of - 1}, got {chosen}")
    return chosen


def _names(axes, n_heads: int) -> None:
    axes.set_xlabel("head")
    # More than some ten numbers of two or three digits run into each other.
    axes.set_xticks(range(0, n_heads, -(-n_heads // 10)))


@picture
def visualize_alibi(
    alibi: nn.Module | Sequence[float] | None = None,
    *,
    n_heads: int = 8,
    seq_len: int = 20,
    heads: Sequence[int] | None = None,
    is_causal: bool = False,
    save: str | os.PathLike[str] | None = None,
) -> "Figure":
    """ALiBi's slopes as bars and its bias for three heads.

    Args:
        alibi: an `ALiBiAttention` or slopes; None: those of ``n_heads`` heads.
        n_heads: heads where ``alibi`` is None.
        seq_len: queries and keys of the heatmaps.
        heads: the heads drawn; None: 0, 3 and 7, those that there are.
        is_causal: leave out keys after the query.
        save: file to write (.png, .svg, .pdf).
    """
    where = "visualize_alibi"
    if alibi is None:
        alibi = ALiBiAttention(n_heads, n_heads, device="meta")
    slopes = slopes_of(where, alibi)
    if seq_len < 1:
        raise ValueError(f"{where}: expected seq_len >= 1, got {seq_len}")
    chosen = _heads(where, heads, len(slopes), (0, 3, 7))
    bias = alibi_bias(slopes, seq_len, seq_len, is_causal=is_causal, dtype=torch.float32)
    figure = new_figure(4.1 * (1 + len(chosen)), 3.8, f"ALiBi, {len(slopes)} heads")
    bars, *maps = figure.subplots(1, 1 + len(chosen))
    bars.bar(range(len(slopes)), slopes, color=COLOURS[0])
    bars.set_title("Slopes")
    bars.set_ylabel("slope (score lost per position)")
    bars.grid(axis="y")
    _names(bars, len(slopes))
    for axes, head in zip(maps, chosen, strict=True):
        values = bias[head].masked_fill(bias[head] == -torch.inf, torch.nan)
        heatmap(axes, values.numpy(), label="bias (added to the score)", aspect="equal")
        axes.set_title(f"Bias of head {head}, slope {slopes[head]:.4g}")
        axes.set_xlabel("key position")
        axes.set_ylabel("query position")
    return finish(figure, save)


@picture
def compare_attention_patterns(
    seq_len: int = 30,
    d_model: int = 64,
    n_heads: int = 4,
    *,
    layers: Mapping[str, nn.Module] | None = None,
    x: Tensor | None = None,
    heads: Sequence[int] | None = None,
    is_causal: bool = False,
    seed: int = 0,
    save: str | os.PathLike[str] | None = None,
) -> "Figure":
    """The weights of RoPE attention and of ALiBi attention on one input, three heads each.

    Both layers have the same projections, so that they differ in nothing but position. The
    weights are the layers' own (`posenc.analysis.attention_weights`).

    Args:
        seq_len, d_model, n_heads: of input and layers.
        layers: name -> `RoPEAttention` or `ALiBiAttention`, a model's own, of any dtype and
            device; None: new ones.
        x: their input (1, L, d_model), finite; None: random, unit normal. Each layer gets it in
            its own dtype and on its own device.
        heads: the heads drawn; None: the first three.
        is_causal: of new layers.
        seed: of weights and input.
        save: file to write (.png, .svg, .pdf).
    """
    where = "compare_attention_patterns"
    if seq_len < 1:
        raise ValueError(f"{where}: expected seq_len >= 1, got {seq_len}")
    if layers is None:
        layers, example = random_pair(seq_len, d_model, n_heads, is_causal, seed)
        x = example if x is None else x
    for layer in named_layers(where, layers).values():
        check_attention(where, layer)
    if x is None:
        first = next(iter(layers.values()))
        x = random_pair(seq_len, first.d_model, first.n_heads, seed=seed)[1]
    if not isinstance(x, Tensor):
        raise TypeError(f"{where}: expected x to be a tensor, got {type(x).__name__}")
    if x.dim() != 3 or x.numel() == 0 or not x.isfinite().all():
        raise ValueError(
            f"{where}: expected x to be finite numbers of shape (1, L, d_model), got "
            f"{'NaN or infinity' if x.dim() == 3 and x.numel() else list(x.shape)}"
        )
    fewest = min(layer.n_heads for layer in layers.values())
    chosen = _heads(where, heads, fewest, (0, 1, 2))
    figure = new_figure(
        3.3 * len(chosen) + 1.2, 3.2 * len(layers) + 0.4, f"Attention weights, {x.size(1)} tokens"
    )
    grid = figure.subplots(len(layers), len(chosen), squeeze=False)
    for row, (name, layer) in zip(grid, layers.items(), strict=True):
        weight = layer.query_proj.weight
        weights = attention_weights(layer, x.to(weight.device, weight.dtype))[0].float().cpu()
        limits = (0.0, weights[chosen].max().item())
        for number, (axes, head) in enumerate(zip(row, chosen, strict=True)):
            slopes = getattr(layer, "slopes", None)
            extra = "" if slopes is None else f", slope {slopes[head]:.3g}"
            heatmap(
                axes,
                weights[head].numpy(),
                label="weight" if number == len(chosen) - 1 else None,
                limits=limits,
                aspect="equal",
                bar_on=list(row),
            )
            axes.set_title(f"{name}, head {head}{extra}")
            axes.set_xlabel("key position")
            axes.set_ylabel("query position")
    return finish(figure, save)


def _served(encoding: nn.Module, distances: list[int]) -> list[int]:
    """The distances that the encoding serves in float64: xPos ends where its scale does."""
    if not isinstance(encoding, XPosRotaryEmbedding):
        return distances
    end = xpos_reach(torch.float64, encoding.scale_base, encoding.gamma)
    return [distance for distance in distances if distance <= end]


@picture
def score_decay(
    encodings: Mapping[str, nn.Module | Tensor] | None = None,
    *,
    head_dim: int = 64,
    reach: int = 1024,
    save: str | os.PathLike[str] | None = None,
) -> "Figure":
    """How the expected score of a similar key changes with its distance, encoding by encoding.

    A difference of -1 leaves a key exp(-1) = 37 % of its weight. The numbers are those of
    `posenc.analysis.expected_scores`.

    Args:
        encodings: name -> layer or table; None: RoPE, RoPE with a large base, partial RoPE, xPos
            (as far as it goes, `posenc.functional.xpos_reach`), three heads of ALiBi, the
            sinusoidal table.
        head_dim: of those.
        reach: largest distance.
        save: file to write (.png, .svg, .pdf).
    """
    where = "score_decay"
    if reach < 2:
        raise ValueError(f"{where}: expected reach >= 2, got {reach}")
    ours = encodings is None
    if encodings is None:
        alibi = ALiBiAttention(8 * head_dim, 8, device="meta")
        encodings = {
            "RoPE, θ = 10⁴": RotaryPositionalEmbedding(head_dim),
            "RoPE, θ = 10⁶": RotaryPositionalEmbedding(head_dim, base=1e6),
            "RoPE, half the channels": RotaryPositionalEmbedding(
                head_dim, rotary_dim=head_dim // 4 * 2
            ),
            "xPos": XPosRotaryEmbedding(head_dim),
            "sinusoidal table": SinusoidalPositionalEncoding(head_dim),
            "ALiBi": alibi,
        }
    # Every distance near by, then a few per octave: enough for a logarithmic axis.
    distances = sorted(
        {*range(min(64, reach + 1)), *(round(2 ** (k / 48)) for k in range(288, 1700))}
    )
    distances = [d for d in distances if d < reach] + [reach]
    figure = new_figure(9.6, 4.8, "Score of a similar key by its distance")
    axes = figure.add_subplot()
    number = 0
    lowest = deepest = 0.0  # without ALiBi, and of all
    for name, encoding in named_layers(where, encodings).items():
        reached = _served(encoding, distances) if ours else distances
        scores, _ = expected_scores(encoding, reached)
        change = scores - expected_scores(encoding, [0])[0]
        slopes = getattr(encoding, "slopes", None)
        deepest = min(deepest, change.min().item())
        if slopes is None:
            lowest = min(lowest, change.min().item())
        chosen = range(len(change)) if slopes is None else (0, len(slopes) // 2, len(slopes) - 1)
        for head in dict.fromkeys(chosen):
            label = name
            if slopes is not None:
                label = f"{name}, head {head} (slope {slopes[head]:.3g})"
            elif len(change) > 1:
                label = f"{name}, head {head}"
            axes.plot(reached, change[head], label=label, lw=1.3, **line_style(number))
            number += 1
    axes.set_xscale("symlog", linthresh=1, base=10)
    powers = [10**k for k in range(len(str(reach)))]
    axes.set_xticks([0, *powers], ["0", *(f"{p:,}" for p in powers)])
    axes.set_xlim(0, reach)
    # ALiBi would fall out of every frame: the others decide how far down it is followed.
    room = 1.05 if lowest == deepest else 1.25
    axes.set_ylim(room * (lowest or deepest) - 0.1, 0.4)
    axes.set_xlabel("distance of the key (positions)")
    axes.set_ylabel("expected score less that at distance 0\n(before the softmax)")
    axes.grid()
    figure.legend(loc="outside right center", title="encoding")
    return finish(figure, save)


@picture
def alibi_blocks(
    alibi: nn.Module | Sequence[float] | None = None,
    *,
    n_heads: int = 8,
    length: int = 2048,
    heads: Sequence[int] | None = None,
    head_dim: int = 64,
    save: str | os.PathLike[str] | None = None,
) -> "Figure":
    """Which blocks of keys ALiBi attention computes under a causal mask, and the share a head.

    What is skipped could not change the result. Random unit-normal q, k and v; the operator says
    what it did (`posenc.analysis.block_map`).

    Args:
        alibi: an `ALiBiAttention` or slopes; None: those of ``n_heads`` heads.
        n_heads: heads where ``alibi`` is None.
        length: tokens.
        heads: the heads whose blocks are drawn; None: 0, 3 and 7, those that there are.
        head_dim: of q, k and v.
        save: file to write (.png, .svg, .pdf).
    """
    where = "alibi_blocks"
    if alibi is None:
        alibi = ALiBiAttention(n_heads, n_heads, device="meta")
    slopes = slopes_of(where, alibi)
    chosen = _heads(where, heads, len(slopes), (0, 3, 7))
    shares = block_shares(alibi, length, head_dim=head_dim)
    figure = new_figure(
        3.5 * (1 + len(chosen)) + 0.8,
        4.0,
        f"ALiBi attention, {length:,} tokens under a causal mask: what is computed",
    )
    bars, *maps = figure.subplots(1, 1 + len(chosen))
    bars.bar(range(len(slopes)), [100 * forward for forward, _ in shares], color=COLOURS[0])
    bars.set_title("Blocks computed, by head")
    bars.set_ylabel("share of the blocks (%)")
    bars.set_ylim(0, 105)
    bars.grid(axis="y")
    _names(bars, len(slopes))
    for axes, head in zip(maps, chosen, strict=True):
        blocks = block_map(slopes[head], length, head_dim=head_dim).float()
        values = blocks.masked_fill(blocks < 0, torch.nan)
        image = heatmap(
            axes,
            values.numpy(),
            limits=(0.0, 1.0),
            colours=2,
            aspect="equal",
            extent=(0, values.size(1) * BLOCK, values.size(0) * BLOCK, 0),
        )
        axes.set_title(f"Head {head}, slope {slopes[head]:.4g}")
        axes.set_xlabel("key position")
        axes.set_ylabel("query position")
    bar = figure.colorbar(image, ax=list(maps), shrink=0.5)
    bar.set_label(f"block of {BLOCK} × {BLOCK}", labelpad=10)
    bar.set_ticks([0.25, 0.75], labels=["skipped", "computed"])
    bar.ax.tick_params(length=0)
    return finish(figure, save)
