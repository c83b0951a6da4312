"""What the user may choose, checked before anything is computed."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import NoReturn

from .._arguments import positive, seed, threads, whole

ENCODINGS = ("sinusoidal", "learned", "rope", "alibi", "none")
DTYPES = ("float32", "bfloat16")

DESCRIPTION = """\
Train a small byte-level Transformer language model once with each way of telling it about
position, then measure the validation loss at lengths that it was and was not trained on.
The text is the Python standard library's own sources, or files of your own (--text)."""

EPILOG = """\
examples:
  posenc train                                 the whole comparison, minutes on two cores
  posenc train --encodings rope alibi          only these two
  posenc train --steps 20 --layers 2           a quick look
  posenc train --text book.txt --device cuda   another text, on a GPU"""


class UserError(ValueError):
    """Something the user can put right; shown as one line, without a traceback."""


@dataclass(frozen=True)
class Settings:
    """What a run does; ``posenc train --help`` has the defaults.

    Attributes:
        encodings: names of those to train.
        train_length: bytes of a training window.
        eval_lengths: lengths at which the loss is measured.
        steps: of training, each on ``batch_size`` windows.
        batch_size: windows of a step.
        d_model: width of the model.
        layers: its layers.
        heads: its heads.
        lr: highest learning rate of AdamW.
        eval_bytes: validation bytes predicted at each length, roughly.
        text: files or folders to learn from; empty: the sources of Python's standard library.
        device: as torch names it.
        dtype: of the computation.
        threads: of torch; None: its own choice.
        seed: of weights and windows.
        output: folder for the results.
    """

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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Puts every choice on a command line."""
    add = parser.add_argument
    count = whole(1)
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
        type=count,
        default=128,
        metavar="N",
        help="bytes in a training window (default: %(default)s)",
    )
    add(
        "--eval-lengths",
        nargs="+",
        type=count,
        default=[128, 256, 512, 1024],
        metavar="N",
        help="window lengths of the validation loss (default: 128 256 512 1024)",
    )
    add(
        "--steps",
        type=count,
        default=300,
        metavar="N",
        help="training steps of each model (default: %(default)s)",
    )
    add(
        "--batch-size",
        type=count,
        default=32,
        metavar="N",
        help="windows in a step (default: %(default)s)",
    )
    add(
        "--d-model",
        type=count,
        default=128,
        metavar="N",
        help="width of the model (default: %(default)s)",
    )
    add(
        "--layers",
        type=count,
        default=4,
        metavar="N",
        help="Transformer blocks (default: %(default)s)",
    )
    add(
        "--heads",
        type=count,
        default=4,
        metavar="N",
        help="attention heads (default: %(default)s)",
    )
    add(
        "--lr",
        type=positive,
        default=3e-3,
        metavar="X",
        help="highest learning rate of AdamW (default: %(default)s)",
    )
    add(
        "--eval-bytes",
        type=count,
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
        type=threads,
        default=None,
        metavar="N",
        help="CPU threads (default: as torch chooses)",
    )
    add(
        "--seed",
        type=seed,
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


def settings_of(given: argparse.Namespace, refuse: Callable[[str], NoReturn]) -> Settings:
    """The settings of a parsed command line.

    Args:
        refuse: ends the program, saying why (``parser.error``).
    """
    values = {field.name: getattr(given, field.name) for field in fields(Settings)}
    for name in ("encodings", "eval_lengths", "text"):
        values[name] = tuple(dict.fromkeys(values[name]))  # once each, in the order given
    values["eval_lengths"] = tuple(sorted(values["eval_lengths"]))
    settings = Settings(**values)
    if settings.d_model % settings.heads:
        refuse(f"--d-model {settings.d_model} is not a multiple of --heads {settings.heads}")
    width = settings.d_model // settings.heads
    if "rope" in settings.encodings and width % 2:
        refuse(
            f"rope rotates pairs of channels: the head width --d-model / --heads must be even, "
            f"got {settings.d_model} / {settings.heads} = {width}"
        )
    return settings
