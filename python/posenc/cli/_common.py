"""What the subcommands share: parsers, JSON, files."""

import argparse
import sys
from collections.abc import Callable
from typing import Any

from .._json import as_json


def parser_of(prog: str, description: str, examples: str) -> argparse.ArgumentParser:
    """A parser whose help ends with examples, as they are written."""
    return argparse.ArgumentParser(
        prog=prog,
        description=description,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def add_command(
    commands: Any, name: str, summary: str, examples: str, run: Callable[[Any], None] | None = None
) -> argparse.ArgumentParser:
    """A subcommand.

    Args:
        summary: a line for the list of commands, and what its own help begins with.
        run: called with the parsed command line.
    """
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if run is not None:
        parser.set_defaults(run=run)
    return parser


def add_json(parser: argparse.ArgumentParser, *, inner: bool = False) -> None:
    """--json.

    Args:
        inner: of a subcommand whose parent has --json too: one that is not given must not undo
            the parent's.
    """
    parser.add_argument(
        "--json",
        action="store_true",
        default=argparse.SUPPRESS if inner else False,
        help="print one JSON document in place of text",
    )


def add_output(parser: argparse.ArgumentParser, text: str) -> None:
    """-o FILE."""
    parser.add_argument("-o", "--output", metavar="FILE", help=text)


def print_json(content: Any) -> None:
    """Plain JSON: no NaN, no Infinity."""
    print(as_json(content))


def show(
    given: argparse.Namespace, content: Any, text: Callable[[], str], draw: Callable[[], Any] | None
) -> None:
    """Prints ``content`` as JSON, or the text; where -o names a file, the picture is drawn first.

    `check_picture` comes before the work; ``draw`` None: this command draws nothing.
    """
    try:
        if draw is not None and given.output is not None:
            draw()
    finally:  # figures that took long are shown even where the disk is full
        if given.json:
            print_json(content)
        else:
            print(text())
    if draw is not None and given.output is not None:
        print(f"Written: {given.output}", file=sys.stderr if given.json else sys.stdout)
