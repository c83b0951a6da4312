"""A function made again from its own code, with some of the functions that it calls exchanged."""

from collections.abc import Callable, Iterator
from types import CellType, CodeType, FunctionType
from typing import Any

#: Says what to call in place of a value, or None to leave it.
Substitute = Callable[[Any], Any]


def called_names(code: CodeType) -> Iterator[str]:
    """The names that a piece of code, and the functions inside it, may look up globally."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from called_names(constant)


class Rebuilder:
    """Makes functions again with ``substitute`` applied to the globals that their code names.

    Decorators stay: a wrapper is made again around the new inner function, whichever of its
    variables holds it. Helpers of the same module that call an exchanged function are made again
    too, so the exchange reaches through them.
    """

    def __init__(self, substitute: Substitute) -> None:
        self._substitute = substitute
        self._values: dict[Any, Any] = {}
        self._functions: dict[FunctionType, FunctionType | None] = {}
        #: Functions in which an exchange would have no effect, since a decorator hides them.
        self.hidden: list[FunctionType] = []

    def value(self, value: Any) -> Any:
        """What to use in place of ``value``, or None to keep it."""
        try:
            if value not in self._values:
                self._values[value] = self._substitute(value)
            return self._values[value]
        except TypeError:  # not hashable, so no function
            return None

    def attribute(self, value: Any) -> Any:
        """`function` for what a class holds: a static or class method keeps its kind."""
        if isinstance(value, (staticmethod, classmethod)):
            new = self.function(value.__func__)
            return None if new is None else type(value)(new)
        return self.function(value)

    def function(self, function: Any) -> FunctionType | None:
        """The new function, or None where nothing in it changes."""
        if not isinstance(function, FunctionType):
            return None
        if function in self._functions:
            return self._functions[function]
        self._functions[function] = None  # ends the search in one that calls itself
        inner = function.__dict__.get("__wrapped__")
        cells = self._cells(function)
        names = self._globals(function)
        changed = cells is not None and any(
            a is not b for a, b in zip(cells, function.__closure__ or (), strict=True)
        )
        new_inner = self.function(inner)
        if new_inner is not None and not any(
            cell.cell_contents is new_inner for cell in cells or () if _filled(cell)
        ):
            self.hidden.append(function)
            return None
        if not changed and not names:
            return None
        scope = function.__globals__
        if names:
            # A scope of its own. Without a name torch.compile does not mistake it for the module
            # whose functions it no longer has (it would guard on the module's).
            scope = {**scope, **names}
            scope.pop("__name__", None)
        new = FunctionType(
            function.__code__, scope, function.__name__, function.__defaults__, cells
        )
        if names and scope.get(function.__name__) is function:
            scope[function.__name__] = new  # it may call itself
        new.__kwdefaults__ = function.__kwdefaults__
        new.__dict__.update(function.__dict__)
        for name in ("__module__", "__qualname__", "__doc__", "__annotations__"):
            setattr(new, name, getattr(function, name))
        if new_inner is not None:
            new.__dict__["__wrapped__"] = new_inner
        self._functions[function] = new
        return new

    def _cells(self, function: FunctionType) -> tuple[CellType, ...] | None:
        """The variables that a function closes over: what a decorator keeps of its function."""
        if function.__closure__ is None:
            return None
        cells = []
        for cell in function.__closure__:
            new = self.function(cell.cell_contents) if _filled(cell) else None
            cells.append(cell if new is None else CellType(new))
        return tuple(cells)

    def _globals(self, function: FunctionType) -> dict[str, Any]:
        scope = function.__globals__
        names = {}
        for name in called_names(function.__code__):
            if name not in scope or name in names:
                continue
            old = scope[name]
            new = self.value(old)
            if new is None and isinstance(old, FunctionType) and old.__globals__ is scope:
                new = self.function(old)
            if new is not None:
                names[name] = new
        return names


def _filled(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
