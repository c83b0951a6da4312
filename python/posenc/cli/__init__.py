"""The command: ``python -m posenc``, and ``posenc`` where the package is installed.

Each subcommand has a module here with ``add(subcommands)``, which describes it and names the
function that runs it. Exit codes: 0, done; 1, it could not be done (one line says why); 2, the
command line is wrong; 130, stopped by the user.
"""

import argparse
from collections.abc import Sequence

from .._command import HELP, run_command
from . import analyze, bench, compare, listing, plot, train
from ._common import parser_of

_EXAMPLES = f"""\
examples:
  posenc list                                        every encoding, its options, what it runs on
  posenc analyze                                     the figures of the sinusoidal table
  posenc analyze rope --scaling yarn --factor 4      which wavelengths a scaling moves
  posenc plot alibi -o alibi.png                     a picture; `posenc list pictures` names all
  posenc compare scalings --trained-length 8192      the types of RoPE scaling side by side
  posenc bench                                       times, against a copy and against peers
  posenc train --encodings rope alibi                train small models and compare them

`posenc COMMAND --help` has more. With --json a command prints one JSON document, nothing else.
{HELP}"""


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    from .. import __version__

    parser = parser_of(
        "posenc",
        "Positional encodings: what there is, what they do, how fast they are, how they train.",
        _EXAMPLES,
    )
    parser.add_argument("--version", action="version", version=f"posenc {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for module in (listing, analyze, plot, compare, bench, train):
        module.add(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line (None: the process's own) and returns its exit code."""
    name = "posenc"

    def work() -> None:
        nonlocal name
        given = build_parser().parse_args(arguments)
        name = f"posenc {given.command}"
        given.run(given)

    return run_command(lambda: name, work)
