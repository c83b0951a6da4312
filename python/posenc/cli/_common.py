"""What the subcommands share: parsers, JSON, errors."""

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any


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


def add_json(parser: argparse.ArgumentParser) -> None:
    """--json."""
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document in place of text"
    )


def add_output(parser: argparse.ArgumentParser, text: str) -> None:
    """-o FILE."""
    parser.add_argument("-o", "--output", metavar="FILE", help=text)


def print_json(content: Any) -> None:
    """Plain JSON: no NaN, no Infinity."""
    print(json.dumps(content, indent=1, allow_nan=False))


def fail(name: str, reason: str, code: int) -> int:
    """One line on standard error; returns the exit code."""
    print(f"{name}: error: {' '.join(reason.split())}", file=sys.stderr)
    return code
