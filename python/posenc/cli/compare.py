"""``posenc compare``: encodings, attention patterns or scalings side by side."""

import math
import sys
from typing import Any

from .._arguments import positive, whole
from ._common import add_command, add_json, add_output, print_json

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
    two.add_argument("--seed", type=whole(0), default=0, metavar="N", help="default: 0")
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
    for kind in (one, two, three, parser):
        add_json(kind)


def _written(given: Any) -> None:
    print(f"Written: {given.output}", file=sys.stderr if given.json else sys.stdout)


def _encodings(given: Any) -> None:
    from ..analysis.comparison import as_text, trade_offs

    names = ("sinusoidal", "learned", "rope", "alibi")
    rows = trade_offs(names, d_model=given.d_model, max_len=given.length)
    if given.json:
        print_json([row.to_dict() for row in rows])
    else:
        print(as_text(rows, 120))
    if given.output is not None:
        from ..plots import compare_positional_encodings

        compare_positional_encodings(given.length, given.d_model, quiet=True, save=given.output)
        _written(given)


def _weights(given: Any) -> None:
    import torch

    from ..analysis import attention_weights
    from ..analysis.weights import random_pair

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
    if given.json:
        print_json(rows)
    else:
        print(f"{'':8} {'head':>4} {'mean distance':>14} {'entropy (nats)':>15} {'largest':>9}")
        for row in rows:
            print(
                f"{row['encoding']:8} {row['head']:4} {row['mean_distance']:14.2f} "
                f"{row['entropy']:15.3f} {row['largest_weight']:9.3f}"
            )
        print(f"All keys alike: entropy {math.log(given.length):.3f}.")
    if given.output is not None:
        from ..plots import compare_attention_patterns

        compare_attention_patterns(layers=layers, x=x, save=given.output)
        _written(given)


def _scalings(given: Any) -> None:
    from ..analysis import analyze_rope, example_scalings
    from ..rotary import RotaryPositionalEmbedding

    length = int(given.factor * given.trained_length)
    examples = example_scalings(given.head_dim, given.factor, given.trained_length)
    ropes = {
        name: RotaryPositionalEmbedding(given.head_dim, base=given.base, scaling=scaling)
        for name, scaling in examples.items()
    }
    found = {
        name: analyze_rope(rope, given.trained_length, length, quiet=True)
        for name, rope in ropes.items()
    }
    if given.json:
        print_json({name: figures.to_dict() for name, figures in found.items()})
    else:
        far = length - 1
        print(
            f"At length {length}, {given.factor:g} times the trained one; {given.head_dim} channels"
        )
        print(
            f"{'scaling':14} {'slowed down by':>16} {'turn in training':>17} {'q, k factor':>12} "
            f"{f'score at {far}':>16}"
        )
        for name, figures in found.items():
            finite = [s for s in figures.stretch if math.isfinite(s)]
            slowed = f"{min(finite):.3g} ... {max(finite):.3g}"
            seen = f"{figures.seen_whole} of {len(figures.inv_freq)}"
            print(
                f"{name:14} {slowed:>16} {seen:>17} {figures.attention_factor:12.3f} "
                f"{figures.scores[far]:16.2f}"
            )
        print("score: of a similar key so far away, less that at distance 0")
    if given.output is not None:
        from ..plots import rope_wavelengths

        rope_wavelengths(
            ropes, factor=given.factor, trained_length=given.trained_length, save=given.output
        )
        _written(given)
