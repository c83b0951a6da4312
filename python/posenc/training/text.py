"""Text as bytes: which files, which of them are for validation, and windows cut from them."""

from __future__ import annotations

import hashlib
import os
import sysconfig
import zlib
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from .options import UserError

# Folders that distributors leave out, add to or fill with generated files; without them the text
# is the same wherever the same Python comes from.
SKIPPED_FOLDERS = frozenset(
    (
        "__pycache__",
        "site-packages",
        "dist-packages",
        "distutils",
        "encodings",
        "ensurepip",
        "idlelib",
        "lib2to3",
        "pydoc_data",
        "test",
        "tests",
        "tkinter",
        "turtledemo",
        "venv",
    )
)
SKIPPED_PREFIXES = (
    "_distutils",
    "_sysconfigdata",
    "config-",
    "site.",
    "sitecustomize",
    "sysconfig",
)

FILE_END = b"\0"
VALIDATION_SHARE = 10  # one file in so many


@dataclass(frozen=True)
class Corpus:
    """Bytes as int64 tensors on the CPU."""

    name: str
    train: Tensor
    validation: Tensor
    train_files: int
    validation_files: int
    sha256: str


def load(paths: tuple[Path, ...]) -> Corpus:
    """The user's files, or the standard library's sources where no path is given."""
    if paths:
        return split("own text", own_files(paths))
    root = Path(sysconfig.get_paths()["stdlib"])
    files = library_files(root)
    if not files:
        raise UserError(f"no Python sources under {root}: give text files with --text")
    return split("Python standard library", files)


def library_files(root: Path) -> list[tuple[str, Path]]:
    """(name, path) of every source of the standard library, in one order on every machine."""
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [n for n in folders if keep(n)]
        for name in names:
            if name.endswith(".py") and keep(name):
                path = Path(folder, name)
                found.append((path.relative_to(root).as_posix(), path))
    return sorted(found)


def keep(name: str) -> bool:
    return name not in SKIPPED_FOLDERS and not name.startswith(SKIPPED_PREFIXES)


def own_files(paths: tuple[Path, ...]) -> list[tuple[str, Path]]:
    """(name, path) of the given files and of all files in the given folders."""
    found = []
    for path in paths:
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*") if p.is_file())
            if not inside:
                raise UserError(f"no files in the folder {path}")
            found += [(p.relative_to(path).as_posix(), p) for p in inside]
        elif path.is_file():
            found.append((path.name, path))
        else:
            raise UserError(f"no such file: {path}")
    return found


def read(path: Path) -> bytes:
    try:
        return path.read_bytes().replace(b"\r\n", b"\n")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None


def split(name: str, files: list[tuple[str, Path]]) -> Corpus:
    """Whole files go to validation, chosen by their names. Few files are cut instead: the last
    tenth of each."""
    train, validation = [], []
    for label, path in files:
        chosen = zlib.crc32(label.encode()) % VALIDATION_SHARE == 0
        (validation if chosen else train).append(read(path) + FILE_END)
    if len(files) < 2 * VALIDATION_SHARE or not validation:
        texts = [read(path) + FILE_END for _, path in files]
        cuts = [len(t) - len(t) // VALIDATION_SHARE for t in texts]
        train = [t[:c] for t, c in zip(texts, cuts, strict=True)]
        validation = [t[c:] for t, c in zip(texts, cuts, strict=True)]
    parts = b"".join(train), b"".join(validation)
    return Corpus(
        name,
        *(as_tensor(part) for part in parts),
        len(train),
        len(validation),
        hashlib.sha256(b"".join(parts)).hexdigest(),
    )


def as_tensor(text: bytes) -> Tensor:
    if not text:
        return torch.empty(0, dtype=torch.int64)
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).long()


def batches(text: Tensor, length: int, batch_size: int, steps: int, seed: int):
    """Random windows (batch_size, length + 1), the same for every model with this seed."""
    if len(text) <= length:
        raise UserError(
            f"the training text has {len(text):,} bytes, a window needs {length + 1:,}: "
            "give more text or a smaller --train-length"
        )
    generator = torch.Generator().manual_seed(seed)
    reach = torch.arange(length + 1)
    for _ in range(steps):
        starts = torch.randint(len(text) - length, (batch_size, 1), generator=generator)
        yield text[starts + reach]


def segments(text: Tensor, longest: int, total: int) -> Tensor:
    """Stretches (n, longest + 1), spread evenly over the text, about ``total`` bytes in all."""
    room = len(text) - 1
    if room < longest:
        raise UserError(
            f"the validation text has {len(text):,} bytes, a window needs {longest + 1:,}: "
            "give more text or smaller --eval-lengths"
        )
    count = min(max(1, total // longest), room // longest)
    starts = torch.arange(count) * (room - longest) // max(1, count - 1)
    return text[starts[:, None] + torch.arange(longest + 1)]


def windows(stretches: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets (n, length) cut from the stretches side by side. Lengths that divide the
    longest one predict exactly the same bytes, so that only the context differs."""
    per = (stretches.shape[1] - 1) // length
    used = per * length
    inputs = stretches[:, :used].reshape(-1, length)
    targets = stretches[:, 1 : used + 1].reshape(-1, length)
    return inputs, targets
