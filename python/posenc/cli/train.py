"""``posenc train``: the main job."""

import functools
import sys
from typing import Any

from ..training.options import DESCRIPTION, EPILOG, add_arguments, settings_of
from ._common import add_command, add_json, print_json


def add(commands: Any) -> None:
    """Describes the command."""
    summary = "train a small language model with each encoding and compare them on longer inputs"
    parser = add_command(commands, "train", summary, EPILOG)
    parser.description = DESCRIPTION
    add_arguments(parser)
    add_json(parser)
    parser.set_defaults(run=functools.partial(_run, parser))


def _run(parser: Any, given: Any) -> None:
    settings = settings_of(given, parser.error)
    from ..training.job import run

    text_to = sys.stderr if given.json else sys.stdout
    results = run(settings, functools.partial(print, file=text_to, flush=True))
    if given.json:
        print_json(results)
