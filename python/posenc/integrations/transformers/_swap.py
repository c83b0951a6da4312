"""A module's class exchanged for a subclass of it, and back."""

import copyreg
from collections.abc import Callable, Mapping
from types import FunctionType, MethodType
from typing import Any, NamedTuple

from torch import nn


class Note(NamedTuple):
    """One thing found in a class."""

    what: str  #: "rotation", "alibi" or "tables"
    function: str  #: the function of the model's file
    detail: str  #: the layout, or why it was left


class Exchange(NamedTuple):
    """What a subclass made here stands for; kept on it as ``_posenc_exchange``."""

    original: type
    kind: str
    notes: tuple[Note, ...]


#: By kind: makes, or finds, the subclass of a class; None where there is nothing to exchange. An
#: unpickled module gets its class from here.
MAKERS: dict[str, Callable[[type], type | None]] = {}


def exchange_of(cls: type) -> Exchange | None:
    """What ``cls`` itself stands for, None for a class that was not made here."""
    return vars(cls).get("_posenc_exchange")


def unwind(cls: type) -> tuple[type, tuple[Exchange, ...]]:
    """The class below our subclasses, and what was exchanged on the way up from it."""
    exchanges: list[Exchange] = []
    while (exchange := exchange_of(cls)) is not None:
        exchanges.insert(0, exchange)
        cls = exchange.original
    return cls, tuple(exchanges)


def subclass(
    original: type, kind: str, members: Mapping[str, Any], notes: tuple[Note, ...]
) -> type:
    """A class like ``original`` but for ``members``.

    It has the name of the original: transformers finds modules by the names of their classes
    (``_no_split_modules``), and writes the name of a model's class into its configuration.
    """
    namespace = {
        "__module__": original.__module__,
        "__qualname__": original.__qualname__,
        "__doc__": original.__doc__,
        "__reduce_ex__": _reduce_ex,
        "_posenc_exchange": Exchange(original, kind, notes),
        **members,
    }
    return type(original)(original.__name__, (original,), namespace)


def _reduce_ex(self: nn.Module, protocol: int) -> Any:
    """For copy and pickle: the original class by its name, and the kinds to exchange again."""
    reduced = object.__reduce_ex__(self, max(2, int(protocol)))
    if not isinstance(reduced, tuple) or reduced[0] is not copyreg.__newobj__:
        return reduced
    original, exchanges = unwind(type(self))
    kinds = tuple(exchange.kind for exchange in exchanges)
    return _new, (original, kinds, *reduced[1][1:]), *reduced[2:]


def _new(original: type, kinds: tuple[str, ...], *args: Any) -> nn.Module:
    """An empty instance, as pickle's own constructor makes it, of the exchanged class.

    Where this version of transformers leaves nothing to exchange, it is the original's.
    """
    made = original.__new__(original, *args)
    set_class(made, exchanged_class(original, kinds))
    return made


def exchanged_class(original: type, kinds: tuple[str, ...]) -> type:
    """The subclass of ``original`` with these kinds of exchange, those that it has room for."""
    cls = original
    for kind in kinds:
        cls = MAKERS[kind](cls) or cls
    return cls


def set_class(module: nn.Module, new: type) -> None:
    """Gives a module another class of the same family.

    Methods that a library keeps bound on the module itself (accelerate's hooks keep ``forward``)
    are bound to the new class's.
    """
    old = type(module)
    if old is new:
        return
    for name, value in list(vars(module).items()):
        if isinstance(value, MethodType) and value.__self__ is module:
            method = getattr(new, value.__func__.__name__, None)
            if getattr(old, value.__func__.__name__, None) is value.__func__ and isinstance(
                method, FunctionType
            ):
                vars(module)[name] = MethodType(method, module)
    object.__setattr__(module, "__class__", new)
