"""Which modules rotate, found in the code of their classes."""

from collections.abc import Iterator
from types import FunctionType
from typing import Any, NamedTuple

from torch import nn

from ._rebuild import Rebuilder
from ._rotation import Rotation, describe, probe, python_function, replacement, signature_of
from ._swap import MAKERS, Note, subclass


class Scan(NamedTuple):
    """What the methods of a class call."""

    members: dict[str, Any]  #: the methods made again
    notes: tuple[Note, ...]  #: what is exchanged in them
    left: tuple[Note, ...]  #: rotary functions that stay


_SCANS: dict[type, Scan] = {}
_SUBCLASSES: dict[type, type | None] = {}
_ROTATIONS: dict[Any, Rotation | None] = {}
_REPLACEMENTS: dict[Any, Any] = {}


def scan(cls: type) -> Scan:
    """The rotary functions that the methods of ``cls`` call, each probed once a process."""
    if cls not in _SCANS:
        _SCANS[cls] = _scan(cls)
    return _SCANS[cls]


def rotating_class(cls: type) -> type | None:
    """The subclass of ``cls`` whose rotary functions are ours; None where it calls none."""
    if cls not in _SUBCLASSES:
        found = scan(cls)
        _SUBCLASSES[cls] = (
            subclass(cls, "rotation", found.members, found.notes) if found.members else None
        )
    return _SUBCLASSES[cls]


MAKERS["rotation"] = rotating_class


def _scan(cls: type) -> Scan:
    notes: dict[str, Note] = {}
    left: dict[str, Note] = {}
    unknown: dict[str, Any] = {}

    def substitute(value: Any) -> Any:
        function = python_function(value)
        if function is None or signature_of(value) is None:
            return None
        name = function.__name__
        rotation = _rotation_of(value)
        if rotation is None:
            left[name] = Note("rotation", name, "no layout that the operator has")
            unknown[name] = value
            return None
        notes[name] = Note("rotation", name, describe(rotation))
        if value not in _REPLACEMENTS:
            _REPLACEMENTS[value] = replacement(rotation)
        return _REPLACEMENTS[value]

    rebuilder = Rebuilder(substitute)
    members = {}
    for name, method in _methods(cls):
        new = rebuilder.attribute(method)
        if new is not None:
            members[name] = new
    for name in [name for name, value in unknown.items() if rebuilder.function(value) is not None]:
        del left[name]  # a helper around a function that is exchanged
    for function in rebuilder.hidden:
        left[function.__name__] = Note(
            "rotation", function.__name__, "a decorator hides the function that rotates"
        )
    if not members:
        notes.clear()
    return Scan(members, tuple(notes.values()), tuple(left.values()))


def _rotation_of(value: Any) -> Rotation | None:
    if value not in _ROTATIONS:
        _ROTATIONS[value] = probe(value)
    return _ROTATIONS[value]


def _methods(cls: type) -> Iterator[tuple[str, Any]]:
    """The functions of a class and its bases, as looked up; those of torch call no rotation."""
    seen: set[str] = set()
    for base in cls.__mro__:
        if base in (object, nn.Module) or base.__module__.partition(".")[0] == "torch":
            continue
        for name, value in vars(base).items():
            if name not in seen and isinstance(value, (FunctionType, staticmethod, classmethod)):
                yield name, value
            seen.add(name)
