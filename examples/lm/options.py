"""What the user may choose, checked before anything is computed."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

ENCODINGS = ("sinusoidal", "learned", "rope", "alibi", "none")
DTYPES = ("float32", "bfloat16")

DESCRIPTION = """\
Train a small byte-level Transformer language model once with each way of telling it about
position, then measure the validation loss at lengths that it was and was not trained on.
The text is the Python standard library's own sources, or files of your own (--text)."""

EPILOG = """\
examples:
  python examples/train_lm.py                               the whole comparison
  python examples/train_lm.py --encodings rope alibi        only these two
  python examples/train_lm.py --steps 20 --layers 2         a quick look
  python examples/train_lm.py --text book.txt --device cuda"""


class UserError(Exception):
    """Something the user can put right; shown as one line, without a traceback."""


@dataclass(frozen=True)
class Settings:
    encodings: tuple[str, ...]
    train_length: int
    eval_lengths: tuple[int, ...]
    steps: int
    batch_size: int
    d_model: int
    layers: int
    heads: int
    lr: float
    eval_bytes: int
    text: tuple[Path, ...]
    device: str
    dtype: str
    threads: int | None
    seed: int
    output: Path


def whole(least: int):
    """An argparse type: a whole number that is at least ``least``."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"expected a whole number, got {text!r}") from None
        if value < least:
            raise argparse.ArgumentTypeError(f"expected at least {least}, got {value}")
        return value

    return parse


def rate(text: str) -> float:
    """An argparse type: a learning rate, above 0 and finite."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number, got {text!r}") from None
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a finite number above 0, got {text}")
    return value


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="train_lm.py",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    positive = whole(1)
    add(
        "--encodings",
        nargs="+",
        choices=ENCODINGS,
        default=ENCODINGS,
        metavar="NAME",
        help=f"which to train, of: {' '.join(ENCODINGS)} (default: all)",
    )
    add(
        "--train-length",
        type=positive,
        default=128,
        metavar="N",
        help="bytes in a training window (default: %(default)s)",
    )
    add(
        "--eval-lengths",
        nargs="+",
        type=positive,
        default=[128, 256, 512, 1024],
        metavar="N",
        help="window lengths of the validation loss (default: 128 256 512 1024)",
    )
    add(
        "--steps",
        type=positive,
        default=300,
        metavar="N",
        help="training steps of each model (default: %(default)s)",
    )
    add(
        "--batch-size",
        type=positive,
        default=32,
        metavar="N",
        help="windows in a step (default: %(default)s)",
    )
    add(
        "--d-model",
        type=positive,
        default=128,
        metavar="N",
        help="width of the model (default: %(default)s)",
    )
    add(
        "--layers",
        type=positive,
        default=4,
        metavar="N",
        help="Transformer blocks (default: %(default)s)",
    )
    add(
        "--heads",
        type=positive,
        default=4,
        metavar="N",
        help="attention heads (default: %(default)s)",
    )
    add(
        "--lr",
        type=rate,
        default=3e-3,
        metavar="X",
        help="highest learning rate of AdamW (default: %(default)s)",
    )
    add(
        "--eval-bytes",
        type=positive,
        default=65536,
        metavar="N",
        help="validation bytes predicted at each length, roughly (default: %(default)s)",
    )
    add(
        "--text",
        nargs="+",
        type=Path,
        default=[],
        metavar="FILE",
        help="train on these files or folders instead of the standard library's sources",
    )
    add(
        "--device",
        default="cpu",
        metavar="NAME",
        help="cpu, cuda, cuda:1 or another torch device (default: %(default)s)",
    )
    add(
        "--dtype",
        choices=DTYPES,
        default="float32",
        help="bfloat16 runs the models under autocast (default: %(default)s)",
    )
    add(
        "--threads",
        type=positive,
        default=None,
        metavar="N",
        help="CPU threads (default: as torch chooses)",
    )
    add(
        "--seed",
        type=whole(0),
        default=0,
        metavar="N",
        help="seed of weights and batches (default: %(default)s)",
    )
    add(
        "--output",
        type=Path,
        default=Path("demo_out"),
        metavar="DIR",
        help="folder of the results, made where missing (default: %(default)s)",
    )
    return parser


def parse(argv: list[str] | None = None) -> Settings:
    """Read the command line. A bad one ends the program with status 2 and one line of reason."""
    parser = make_parser()
    given = vars(parser.parse_args(argv))
    for name in ("encodings", "eval_lengths", "text"):
        given[name] = tuple(dict.fromkeys(given[name]))  # once each, in the order given
    given["eval_lengths"] = tuple(sorted(given["eval_lengths"]))
    settings = Settings(**given)
    if settings.d_model % settings.heads:
        parser.error(f"--d-model {settings.d_model} is not a multiple of --heads {settings.heads}")
    width = settings.d_model // settings.heads
    if "rope" in settings.encodings and width % 2:
        parser.error(
            f"rope rotates pairs of channels: the head width --d-model / --heads must be even, "
            f"got {settings.d_model} / {settings.heads} = {width}"
        )
    return settings
