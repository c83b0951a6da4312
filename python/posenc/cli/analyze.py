"""``posenc analyze``: the figures of one encoding."""

from typing import Any

from .._arguments import positive, whole
from ._common import add_command, add_json, show
from ._sources import add_checkpoint, add_rope, rope_of, table_of

_EXAMPLES = """\
examples:
  posenc analyze                                    the sinusoidal table of 100 positions, width 128
  posenc analyze sinusoidal --length 500 --d-model 512
  posenc analyze learned --checkpoint gpt2.pt --key wpe.weight
  posenc analyze rope --scaling yarn --factor 4 --trained-length 4096
  posenc analyze rope --config ./llama-3.1-8b --length 131072 --json
  posenc analyze xpos --head-dim 64
  posenc analyze alibi --heads 12 --length 4096"""


def add(commands: Any) -> None:
    """Describes the command."""
    parser = add_command(
        commands, "analyze", "print the figures of an encoding", _EXAMPLES, run=_sinusoidal
    )
    parser.set_defaults(length=None, d_model=None, distances=None)
    kinds = parser.add_subparsers(dest="kind", metavar="ENCODING")

    fixed = add_command(kinds, "sinusoidal", "the sinusoidal table", _EXAMPLES, _sinusoidal)
    fixed.add_argument("--length", type=whole(1), metavar="N", help="positions (default: 100)")
    fixed.add_argument("--d-model", type=whole(1), metavar="N", help="width (default: 128)")
    fixed.add_argument("--base", type=positive, default=10000.0, metavar="X", help="theta")
    parser.set_defaults(base=10000.0)

    learned = add_command(kinds, "learned", "a learned table of a checkpoint", _EXAMPLES, _learned)
    add_checkpoint(learned, required=True)
    for table in (fixed, learned):
        table.add_argument(
            "--distances",
            nargs="+",
            type=whole(0),
            metavar="N",
            help="positions to compare with position 0 (default: 1 5 10 20 50)",
        )

    rope = add_command(kinds, "rope", "RoPE against the trained length", _EXAMPLES, _rope)
    add_rope(rope)
    rope.add_argument(
        "--length",
        type=whole(1),
        metavar="N",
        help="of the sequence, for dynamic NTK and LongRoPE (default: the trained length)",
    )

    xpos = add_command(kinds, "xpos", "xPos against the trained length", _EXAMPLES, _xpos)
    xpos.add_argument("--head-dim", type=whole(2), default=64, metavar="N", help="width of a head")
    xpos.add_argument("--base", type=positive, default=10000.0, metavar="X", help="theta")
    xpos.add_argument(
        "--scale-base", type=positive, default=512.0, metavar="X", help="512 in the paper"
    )
    xpos.add_argument("--trained-length", type=whole(1), metavar="N", help="default: 4096")

    alibi = add_command(kinds, "alibi", "ALiBi's reach, and what it skips", _EXAMPLES, _alibi)
    alibi.add_argument("--heads", type=whole(1), default=8, metavar="N", help="default: 8")
    alibi.add_argument(
        "--length", type=whole(1), default=2048, metavar="N", help="tokens (default: 2048)"
    )
    alibi.add_argument(
        "--head-dim", type=whole(1), default=64, metavar="N", help="of q and k (default: 64)"
    )
    for kind in (fixed, learned, rope, xpos, alibi):
        add_json(kind, inner=True)
    # After the kinds, so that `posenc analyze --json` is understood as well.
    add_json(parser)


def _show(given: Any, figures: Any) -> None:
    content = {"encoding": given.kind or "sinusoidal", **figures.to_dict()}
    show(given, content, figures.__str__, None)


def _table(given: Any, table: Any) -> None:
    from ..analysis import analyze_positional_encoding

    distances = (1, 5, 10, 20, 50) if given.distances is None else given.distances
    _show(given, analyze_positional_encoding(table, distances, quiet=True))


def _sinusoidal(given: Any) -> None:
    from ..absolute import get_positional_encoding

    _table(given, get_positional_encoding(given.length or 100, given.d_model or 128, given.base))


def _learned(given: Any) -> None:
    _table(given, table_of(given))


def _rope(given: Any) -> None:
    from ..analysis import analyze_rope

    rope, trained = rope_of(given)
    _show(given, analyze_rope(rope, trained, given.length, quiet=True))


def _xpos(given: Any) -> None:
    from ..analysis import analyze_rope
    from ..rotary import XPosRotaryEmbedding

    layer = XPosRotaryEmbedding(given.head_dim, given.base, given.scale_base)
    _show(given, analyze_rope(layer, given.trained_length, quiet=True))


def _alibi(given: Any) -> None:
    from ..analysis import analyze_alibi
    from ..functional import alibi_slopes

    slopes = alibi_slopes(given.heads)
    _show(given, analyze_alibi(slopes, given.length, head_dim=given.head_dim, quiet=True))
