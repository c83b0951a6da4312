"""``posenc compare``: encodings, attention patterns or scalings side by side."""

import math
from collections.abc import Callable
from typing import Any

from .._arguments import positive, seed, whole
from .._output import check_picture
from ._common import add_command, add_json, add_output, show

_EXAMPLES = """\
examples:
  posenc compare                                       the trade-offs of the encodings
  posenc compare encodings -o tables.png
  posenc compare attention --length 64 --heads 8 -o weights.png
  posenc compare scalings --factor 4 --trained-length 8192 --json"""


def add(commands: Any) -> None:
    """Describes the command."""
    parser = add_command(commands, "compare", "put encodings side by side", _EXAMPLES, _encodings)
    parser.set_defaults(d_model=128, length=100, output=None)
    kinds = parser.add_subparsers(dest="what", metavar="WHAT")

    one = add_command(kinds, "encodings", "trade-offs of the encodings", _EXAMPLES, _encodings)
    one.add_argument("--length", type=whole(1), default=100, metavar="N", help="default: 100")
    one.add_argument("--d-model", type=whole(2), default=128, metavar="N", help="default: 128")
    add_output(one, "draw the first 20 positions of both tables (.png, .svg, .pdf)")

    two = add_command(
        kinds, "attention", "weights of RoPE and ALiBi attention", _EXAMPLES, _weights
    )
    two.add_argument("--length", type=whole(2), default=30, metavar="N", help="tokens (30)")
    two.add_argument("--d-model", type=whole(2), default=64, metavar="N", help="width (64)")
    two.add_argument("--heads", type=whole(1), default=4, metavar="N", help="heads (4)")
    two.add_argument("--causal", action="store_true", help="hide later tokens")
    two.add_argument("--seed", type=seed, default=0, metavar="N", help="default: 0")
    add_output(two, "draw three heads of each (.png, .svg, .pdf)")

    three = add_command(kinds, "scalings", "the types of RoPE scaling", _EXAMPLES, _scalings)
    three.add_argument("--head-dim", type=whole(2), default=128, metavar="N", help="default: 128")
    three.add_argument("--base", type=positive, default=10000.0, metavar="X", help="theta (10000)")
    three.add_argument(
        "--factor", type=positive, default=8.0, metavar="X", help="times the trained length (8)"
    )
    three.add_argument(
        "--trained-length", type=whole(2), default=4096, metavar="N", help="positions (4096)"
    )
    add_output(three, "draw their wavelengths (.png, .svg, .pdf)")
    for kind in (one, two, three):
        add_json(kind, inner=True)
    add_json(parser)


def _encodings(given: Any) -> None:
    from ..analysis.comparison import as_text, trade_offs
    from ..plots import compare_positional_encodings

    check_picture(given.output)
    names = ("sinusoidal", "learned", "rope", "alibi")
    rows = trade_offs(names, d_model=given.d_model, max_len=given.length)

    def draw() -> None:
        compare_positional_encodings(given.length, given.d_model, quiet=True, save=given.output)

    show(given, [row.to_dict() for row in rows], lambda: as_text(rows, 120), draw)


def _weights(given: Any) -> None:
    import torch

    from ..analysis import attention_weights
    from ..analysis.weights import random_pair
    from ..plots import compare_attention_patterns

    check_picture(given.output)
    layers, x = random_pair(given.length, given.d_model, given.heads, given.causal, given.seed)
    i = torch.arange(given.length)
    distance = (i[:, None] - i[None]).abs().double()
    rows = []
    for name, layer in layers.items():
        weights = attention_weights(layer, x)[0].double()
        mean = (weights * distance).sum(-1).mean(-1)
        entropy = -torch.special.xlogy(weights, weights).sum(-1).mean(-1)
        for head in range(given.heads):
            rows.append(
                {
                    "encoding": name,
                    "head": head,
                    "mean_distance": mean[head].item(),
                    "entropy": entropy[head].item(),
                    "largest_weight": weights[head].max().item(),
                }
            )

    def text() -> str:
        lines = [f"{'':8} {'head':>4} {'mean distance':>14} {'entropy (nats)':>15} {'largest':>9}"]
        lines += [
            f"{row['encoding']:8} {row['head']:4} {row['mean_distance']:14.2f} "
            f"{row['entropy']:15.3f} {row['largest_weight']:9.3f}"
            for row in rows
        ]
        return "\n".join([*lines, f"All keys alike: entropy {math.log(given.length):.3f}."])

    def draw() -> None:
        compare_attention_patterns(layers=layers, x=x, save=given.output)

    show(given, rows, text, draw)


def _scalings(given: Any) -> None:
    from ..analysis import analyze_rope, example_scalings
    from ..analysis.frequencies import stretched_length
    from ..plots import rope_wavelengths
    from ..rotary import RotaryPositionalEmbedding

    check_picture(given.output)
    length = stretched_length("compare scalings", given.factor, given.trained_length)
    examples = example_scalings(given.head_dim, given.factor, given.trained_length)
    ropes = {
        name: RotaryPositionalEmbedding(given.head_dim, base=given.base, scaling=scaling)
        for name, scaling in examples.items()
    }
    found = {
        name: analyze_rope(rope, given.trained_length, length, quiet=True)
        for name, rope in ropes.items()
    }

    def draw() -> None:
        rope_wavelengths(
            ropes, factor=given.factor, trained_length=given.trained_length, save=given.output
        )

    content = {name: figures.to_dict() for name, figures in found.items()}
    show(given, content, _scalings_text(given, found, length), draw)


def _scalings_text(given: Any, found: dict[str, Any], length: int) -> Callable[[], str]:
    def text() -> str:
        far = length - 1
        lines = [
            f"At length {length}, {given.factor:g} times the trained one; "
            f"{given.head_dim} channels",
            f"{'scaling':14} {'slowed down by':>16} {'turn in training':>17} {'q, k factor':>12} "
            f"{f'score at {far}':>16}",
        ]
        for name, figures in found.items():
            seen = f"{figures.seen_whole} of {len(figures.inv_freq)}"
            lines.append(
                f"{name:14} {figures.slowed:>16} {seen:>17} {figures.attention_factor:12.3f} "
                f"{figures.scores[far]:16.2f}"
            )
        return "\n".join([*lines, "score: of a similar key so far away, less that at distance 0"])

    return text
