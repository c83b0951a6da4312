"""``posenc plot``: a picture, into a file."""

import inspect
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any

from .._arguments import positive, seed, whole
from ._common import add_command, add_json, print_json
from ._sources import add_checkpoint, add_rope, is_rope_given, rope_name, rope_of, table_of

_EXAMPLES = """\
examples:
  posenc plot table                                    table.png in this folder
  posenc plot table --checkpoint gpt2.safetensors -o wpe.png
  posenc plot alibi --n-heads 12 --heads 0 5 11 -o alibi.svg
  posenc plot wavelengths --config ./llama-3.1-8b -o wavelengths.pdf
  posenc plot decay --scaling yarn --factor 4 --reach 8192
  posenc plot all -o pictures                          every picture, into a folder

File names end with .png, .svg or .pdf. `posenc list pictures` says what each shows."""

#: Arguments that take a RoPE.
_ROPE = frozenset(("rope", "ropes", "encodings"))
#: Arguments that are layers or tensors, or that another option stands for.
_LEFT_OUT = _ROPE | {
    *("alibi", "dtype", "layers", "learned", "options", "pe", "quiet", "save", "times", "x")
}
#: What a picture and the description of a RoPE both name: one option serves both.
_SHARED = frozenset(("head_dim", "factor", "trained_length"))


def add(commands: Any) -> None:
    """Describes the command, with the options of each picture out of its function."""
    from ..plots import PICTURES

    parser = add_command(commands, "plot", "draw a picture into a file", _EXAMPLES)
    names = parser.add_subparsers(dest="picture", metavar="PICTURE", required=True)
    for name, picture in PICTURES.items():
        one = add_command(names, name, picture.summary, _EXAMPLES, _draw)
        one.add_argument("-o", "--output", metavar="FILE", help=f"default: {name}.png")
        _add_parameters(one, picture.function)
        if name == "benchmark":
            _add_parameters(one, _benchmark())
        add_json(one)
    every = add_command(names, "all", "every picture that needs no file", _EXAMPLES, _draw_all)
    every.add_argument(
        "-o", "--output", default="pictures", metavar="DIR", help="folder (default: pictures)"
    )
    every.add_argument(
        "--format", choices=("png", "svg", "pdf"), default="png", help="default: png"
    )
    add_json(every)


def _benchmark() -> Callable[..., Any]:
    from ..benchmark import benchmark_positional_encodings

    return benchmark_positional_encodings


def _explained(function: Callable[..., Any]) -> dict[str, str]:
    """Argument -> its text in the docstring."""
    result: dict[str, str] = {}
    lines = inspect.cleandoc(function.__doc__ or "").splitlines()
    if "Args:" not in lines:
        return result
    names: list[str] = []
    for line in lines[lines.index("Args:") + 1 :]:
        if line and not line.startswith(" "):
            break
        head, colon, rest = line.strip().partition(": ")
        if line.startswith("    ") and not line.startswith("     ") and colon:
            names = [name.strip() for name in head.split(",")]
            result.update(dict.fromkeys(names, rest))
        else:
            for name in names:
                result[name] = f"{result[name]} {line.strip()}".strip()
    return result


def _add_parameters(parser: Any, function: Callable[..., Any]) -> None:
    texts = _explained(function)
    parameters = inspect.signature(function).parameters
    takes_rope = bool(_ROPE & set(parameters))
    for name, parameter in parameters.items():
        if name in _LEFT_OUT or (takes_rope and name in _SHARED):
            continue
        option: dict[str, Any] = {"dest": f"option_{name}", "default": None}
        kind, several = _kind(parameter.annotation)
        if kind is bool:
            option["action"] = "store_false" if parameter.default is True else "store_true"
            flag = f"--no-{name}" if parameter.default is True else f"--{name}"
        else:
            flag = f"--{name}"
            option["type"] = {int: whole(0), float: positive}.get(kind, kind)
            if name == "seed":
                option["type"] = seed
            option["metavar"] = {int: "N", float: "X", str: "TEXT"}[kind]
            if several:
                option["nargs"] = "+"
        text = texts.get(name, "").rstrip(".").replace("``", "").replace("%", "%%")
        if parameter.default is True:  # the flag undoes what the text describes
            text = f"switches off: {text}"
        if parameter.default not in (None, True, False) and "default" not in text:
            shown = parameter.default
            shown = " ".join(map(str, shown)) if isinstance(shown, tuple) else shown
            text += f" (default: {shown})"
        parser.add_argument(flag.replace("_", "-"), help=text, **option)
    if "pe" in parameters or "learned" in parameters:
        add_checkpoint(parser)
    if takes_rope:
        own = parameters.get("head_dim")
        add_rope(parser, 64 if own is None else own.default)


def _kind(annotation: Any) -> tuple[type, bool]:
    """The plain type of a parameter, and whether it is a list of them."""
    options = [annotation]
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        options = [a for a in typing.get_args(annotation) if a is not type(None)]
    for option in options:
        if option in (bool, int, float, str):
            return option, False
        if typing.get_origin(option) is Sequence and typing.get_args(option)[0] in (int, float):
            return typing.get_args(option)[0], True
    raise TypeError(f"posenc plot: no command line option for {annotation}")


def _source(given: Any, function: Callable[..., Any]) -> dict[str, Any]:
    """The encoding that the options describe, under the function's name for it."""
    parameters = inspect.signature(function).parameters
    for name in ("pe", "learned"):
        if name in parameters and (table := table_of(given)) is not None:
            return {name: table}
    if not _ROPE & set(parameters):
        return {}
    _refuse_unused(given, set(parameters))
    if is_rope_given(given, _SHARED & set(parameters)):
        from ..rotary import RotaryPositionalEmbedding

        rope, trained = rope_of(given)
        if "rope" in parameters:
            return {"rope": rope}
        lengths: dict[str, Any] = {}
        if "trained_length" in parameters and trained is not None:
            lengths["trained_length"] = trained
        if "factor" in parameters and given.factor is None and rope.factor > 1:
            lengths["factor"] = rope.factor
        plain = RotaryPositionalEmbedding(
            rope.d_model, base=rope.base, rotary_dim=rope.rotary_dim, rotary_start=rope.rotary_start
        )
        compared = {} if rope.rope_type == "default" else {"without scaling": plain}
        name = "ropes" if "ropes" in parameters else "encodings"
        return {name: {**compared, rope_name(rope): rope}, **lengths}
    return {}


def _refuse_unused(given: Any, parameters: set[str]) -> None:
    """--trained-length says something only to a picture that shows it or to a type of scaling."""
    from ..analysis import example_scalings

    if given.trained_length is None or "trained_length" in parameters:
        return
    if given.scaling not in example_scalings():
        raise ValueError(
            "--trained-length: expected --scaling with a type here, got "
            f"{'none' if given.scaling is None else given.scaling}"
        )


def _options(given: Any, function: Callable[..., Any]) -> dict[str, Any]:
    found = {
        name.removeprefix("option_"): value
        for name, value in vars(given).items()
        if name.startswith("option_") and value is not None
    }
    for name in _SHARED & set(inspect.signature(function).parameters):
        if getattr(given, name, None) is not None:
            found[name] = getattr(given, name)
    return found


def _draw(given: Any) -> None:
    from ..plots import PICTURES

    function = PICTURES[given.picture].function
    path = given.output or f"{given.picture}.png"
    options = {**_options(given, function), **_source(given, function), **_quietly(function)}
    function(**options, save=path)
    _tell(given, {given.picture: path})


def _quietly(function: Callable[..., Any]) -> dict[str, Any]:
    return {"quiet": True} if "quiet" in inspect.signature(function).parameters else {}


def _draw_all(given: Any) -> None:
    from pathlib import Path

    from .._extras import progress
    from ..plots import PICTURES

    folder = Path(given.output)
    folder.mkdir(parents=True, exist_ok=True)
    names = [name for name, picture in PICTURES.items() if not (picture.measures or picture.reads)]
    files = {}
    for name in progress(names, desc="plot", unit="picture"):
        function = PICTURES[name].function
        path = folder / f"{name}.{given.format}"
        function(**_quietly(function), save=path)
        files[name] = str(path)
    _tell(given, files)


def _tell(given: Any, files: dict[str, str]) -> None:
    if given.json:
        print_json({"files": files})
    else:
        print("\n".join(f"Written: {path}" for path in files.values()))
