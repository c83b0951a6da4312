"""``posenc list``: what there is."""

import textwrap
from typing import Any

from ._common import add_command, add_json, print_json

_EXAMPLES = """\
examples:
  posenc list                     every encoding, its options, what it runs on
  posenc list scalings            the types of RoPE scaling
  posenc list pictures            what `posenc plot` draws
  posenc list operators           torch.ops.posenc, with their schemas
  posenc list encodings --json"""


def add(commands: Any) -> None:
    """Describes the command."""
    parser = add_command(
        commands, "list", "name the encodings, scalings, pictures or operators", _EXAMPLES, _run
    )
    parser.add_argument(
        "what",
        nargs="?",
        choices=("encodings", "scalings", "pictures", "operators"),
        default="encodings",
        metavar="WHAT",
        help="encodings (the default), scalings, pictures or operators",
    )
    add_json(parser)


def _run(given: Any) -> None:
    {
        "encodings": _encodings,
        "scalings": _scalings,
        "pictures": _pictures,
        "operators": _operators,
    }[given.what](given.json)


def _encodings(as_json: bool) -> None:
    from ..analysis.library import catalogue

    rows = catalogue()
    if as_json:
        print_json([row.to_dict() for row in rows])
        return
    for row in rows:
        where = ", ".join(f"{device}: {kind}" for device, kind in row.runs_on.items())
        options = ", ".join(
            name if value == "required" else f"{name}={value}"
            for name, value in row.options.items()
        )
        print(f"{row.layer}  [{row.room}; {where}]")
        print(_indented(row.summary.replace("``", "")))
        print(_indented(f"({options})"))


def _indented(text: str) -> str:
    return textwrap.fill(text, 100, initial_indent="    ", subsequent_indent="     ")


def _named(rows: dict[str, str], as_json: bool) -> None:
    if as_json:
        print_json(rows)
        return
    wide = max(map(len, rows))
    for name, text in rows.items():
        print(f"{name:{wide}}  {text}")


def _scalings(as_json: bool) -> None:
    from ..analysis.library import scaling_types

    _named(scaling_types(), as_json)


def _pictures(as_json: bool) -> None:
    from ..plots import PICTURES

    _named({name: picture.summary for name, picture in PICTURES.items()}, as_json)


def _operators(as_json: bool) -> None:
    import torch

    schemas = [s for s in torch._C._jit_get_all_schemas() if s.name.startswith("posenc::")]
    public = [s for s in schemas if not s.name.startswith("posenc::_")]
    rows = {}
    for schema in sorted(public, key=lambda s: (s.name, s.overload_name)):
        name = schema.name.removeprefix("posenc::")
        rows[f"{name}.{schema.overload_name}" if schema.overload_name else name] = str(schema)
    if as_json:
        print_json(rows)
    else:
        print("\n".join(rows.values()))
