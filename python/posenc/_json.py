"""JSON as every reader takes it: no NaN, no Infinity, UTF-8; and errors that name the file."""

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def plain(content: Any) -> Any:
    """Dictionaries, lists and scalars, with None for what JSON has no number for.

    >>> from posenc._json import plain
    >>> plain({"loss": [1.5, float("nan")]})
    {'loss': [1.5, None]}
    """
    if isinstance(content, float):
        return content if math.isfinite(content) else None
    if isinstance(content, Mapping):
        return {key: plain(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [plain(value) for value in content]
    return content


def as_json(content: Any) -> str:
    """``content`` as JSON text; NaN and infinities are null."""
    return json.dumps(plain(content), indent=1, allow_nan=False)


def write_json(path: str | os.PathLike[str], content: Any) -> None:
    """Writes `as_json` into a file."""
    Path(path).write_text(as_json(content) + "\n", encoding="utf-8")


def parse_json(where: str, text: str) -> Any:
    """What a JSON text holds.

    Raises:
        ValueError: it is no JSON, or too deeply nested; ``where`` begins the message.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError(f"{where}: expected JSON, got one too deeply nested") from None
    except ValueError as error:
        raise ValueError(f"{where}: expected JSON, got {error}") from None


def read_json(where: str, path: str | os.PathLike[str]) -> Any:
    """What a JSON file holds.

    Raises:
        ValueError: it cannot be read or is no JSON; ``where`` and the path begin the message.
    """
    name = f"{where} {os.fspath(path)}"
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{name}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: expected JSON, got {error}") from None
    return parse_json(name, text)
