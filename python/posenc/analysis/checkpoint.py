"""A learned table out of a checkpoint file."""

import os
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .._command import one_line
from .._extras import need

_WHERE = "load_table"
#: What models name their learned positions; any of these inside a key, lower case.
_NAMES = (
    "positional_embedding",
    "position_embedding",
    "pos_embedding",
    "pos_embed",
    "embed_positions",
    "positional_encoding",
    "position_enc",
    "wpe",
)


def _safetensors(path: str) -> Mapping[str, Tensor]:
    library = need("safetensors.torch", "checkpoint", _WHERE)
    try:
        return library.load_file(path)
    except Exception as error:  # the library's own SafetensorError
        raise ValueError(f"{_WHERE}: cannot read {path}: {error}") from None


def _is_safetensors(path: str) -> bool:
    """By the content, which begins with the size of a JSON header: names are often others."""
    if path.lower().endswith(".safetensors"):
        return True
    with open(path, "rb") as file:
        start = file.read(9)
    size = int.from_bytes(start[:8], "little")
    return start[8:] == b"{" and size <= os.path.getsize(path) - 8


def _why_not(error: Exception) -> str:
    """What stands in the way, without torch's advice to run code that the file brings."""
    found = re.search(r"GLOBAL (\S+)", str(error))
    if found is not None:
        return f"an object, {one_line(found[1])}: save its state_dict() in place of it"
    if isinstance(error, RuntimeError) and str(error).strip():
        return one_line(str(error).strip().splitlines()[0])
    return "another format or a damaged file"


def _pickled(path: str) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:
        raise ValueError(
            f"{_WHERE}: expected {path} to be a file of tensors (.pt with a state dict, or "
            f".safetensors), got {_why_not(error)}"
        ) from None


def _flat(found: Any) -> dict[str, Tensor]:
    """Tensors by dotted name, through nested dictionaries and lists ({"model": {...}}).

    Each container is looked into once, under the first of its names: it may hold itself.
    """
    result: dict[str, Tensor] = {}
    seen: set[int] = set()
    left: list[tuple[str, Any]] = [("", found)]
    while left:
        name, value = left.pop()
        if isinstance(value, Tensor):
            result[name or "table"] = value
            continue
        if id(value) in seen:
            continue
        if isinstance(value, Mapping):
            inside = list(value.items())
        elif isinstance(value, (list, tuple)):
            inside = list(enumerate(value))
        else:
            continue
        seen.add(id(value))
        left += [(f"{name}.{key}" if name else str(key), item) for key, item in reversed(inside)]
    return result


def _is_table(tensor: Tensor) -> bool:
    wide = tensor.dim() == 2 or (tensor.dim() == 3 and tensor.size(0) == 1)
    dense = tensor.layout == torch.strided and not tensor.is_meta
    return wide and dense and tensor.is_floating_point() and tensor.numel() > 0


def _described(tensor: Tensor) -> str:
    """Type, shape, and what is unusual."""
    text = f"{str(tensor.dtype).removeprefix('torch.')} of shape {list(tensor.shape)}"
    if tensor.is_meta:
        return f"{text} without numbers (device meta)"
    if tensor.layout != torch.strided:
        return f"{text} in layout {str(tensor.layout).removeprefix('torch.')}"
    return text


def read_checkpoint(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Every tensor of a .pt, .pth, .bin or .safetensors file by its dotted name, on the CPU."""
    path = os.fsdecode(path)
    if not os.path.isfile(path):
        raise FileNotFoundError(f"{_WHERE}: no such file: {path}")
    tensors = _flat(_safetensors(path) if _is_safetensors(path) else _pickled(path))
    if not tensors:
        raise ValueError(f"{_WHERE}: expected tensors in {path}, got none")
    return tensors


def table_names(tensors: Mapping[str, Tensor]) -> list[str]:
    """Names of the tensors that look like learned positions.

    Args:
        tensors: of a checkpoint, by name. A table is real, (positions, d_model) or
            (1, positions, d_model), and its name says that it holds positions.
    """
    return [
        name
        for name, tensor in tensors.items()
        if _is_table(tensor) and any(word in name.lower() for word in _NAMES)
    ]


def load_table(path: str | os.PathLike[str], key: str | None = None) -> Tensor:
    """A learned table of positions from a checkpoint.

    Args:
        path: a ``torch.save`` file (read with ``weights_only=True``: no code of it runs) or a
            safetensors file of any name (``pip install posenc[checkpoint]``).
        key: name of the tensor in the state dict, dotted through nested dictionaries and lists;
            None: the one whose name says that it holds positions (``wpe.weight``,
            ``position_embeddings``, ``embed_positions``, ``pos_embed``, ...).

    Returns:
        (positions, d_model), as stored, on the CPU.

    Raises:
        FileNotFoundError: no such file.
        ValueError: no tensor of that name, several or none that look like positions (the message
            lists names), or a file that is no checkpoint.
    """
    tensors = read_checkpoint(path)
    if key is None:
        names = table_names(tensors)
        if not names and len(tensors) == 1:
            names = list(tensors)
        if len(names) != 1:
            shown = names or [name for name, tensor in tensors.items() if _is_table(tensor)]
            raise ValueError(
                f"{_WHERE}: expected one table of positions in {os.fspath(path)}, got "
                f"{len(names)}; give a key, one of: {_listed(shown)}"
            )
        key = names[0]
    if key not in tensors:
        raise ValueError(
            f"{_WHERE}: expected a tensor {key!r} in {os.fspath(path)}, got "
            f"{_listed(list(tensors))}"
        )
    table = tensors[key]
    if not _is_table(table):
        raise ValueError(
            f"{_WHERE}: expected {key!r} to be a real table (positions, d_model), got "
            f"{_described(table)}"
        )
    return table[0] if table.dim() == 3 else table


def _listed(names: list[str], most: int = 12) -> str:
    more = f", ... ({len(names) - most} more)" if len(names) > most else ""
    return (", ".join(names[:most]) or "none") + more
