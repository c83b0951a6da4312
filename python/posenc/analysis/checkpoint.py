"""A learned table out of a checkpoint file."""

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

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


def _pickled(path: str) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise ValueError(
            f"{_WHERE}: expected {path} to be a file of tensors (.pt with a state dict, or "
            f".safetensors), got: {reason}"
        ) from None


def _flat(found: Any, prefix: str = "") -> dict[str, Tensor]:
    """Tensors by dotted name, through nested dictionaries ({"model": {...}})."""
    if isinstance(found, Tensor):
        return {prefix or "table": found}
    result: dict[str, Tensor] = {}
    if isinstance(found, Mapping):
        for key, value in found.items():
            result.update(_flat(value, f"{prefix}.{key}" if prefix else str(key)))
    return result


def _is_table(tensor: Tensor) -> bool:
    wide = tensor.dim() == 2 or (tensor.dim() == 3 and tensor.size(0) == 1)
    return wide and tensor.is_floating_point() and tensor.numel() > 0


def read_checkpoint(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Every tensor of a .pt, .pth, .bin or .safetensors file by its dotted name, on the CPU."""
    path = os.fspath(path)
    if not os.path.isfile(path):
        raise FileNotFoundError(f"{_WHERE}: no such file: {path}")
    tensors = _flat(_safetensors(path) if path.endswith(".safetensors") else _pickled(path))
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
            .safetensors file (``pip install posenc[checkpoint]``).
        key: name of the tensor in the state dict, dotted through nested dictionaries; None: the
            one whose name says that it holds positions (``wpe.weight``, ``position_embeddings``,
            ``embed_positions``, ``pos_embed``, ...).

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
            f"{str(table.dtype).removeprefix('torch.')} of shape {list(table.shape)}"
        )
    return table[0] if table.dim() == 3 else table


def _listed(names: list[str], most: int = 12) -> str:
    more = f", ... ({len(names) - most} more)" if len(names) > most else ""
    return (", ".join(names[:most]) or "none") + more
