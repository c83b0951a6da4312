"""What `accelerate` did to a model."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """One function of one module."""

    module: str  #: path from the model, as in ``named_modules``
    cls: str  #: name of the module's class
    what: str  #: "rotation", "alibi" or "tables"
    function: str  #: name in the model's own file
    detail: str  #: the layout, or why it was left

    def __str__(self) -> str:
        name = self.module or "the model"
        return f"{name} ({self.cls}): {self.what}, {self.function}: {self.detail}"


@dataclass(frozen=True)
class Report:
    """What was exchanged in a model and what was not."""

    swapped: tuple[Entry, ...] = ()
    left: tuple[Entry, ...] = ()
    exact: bool = False  #: cos and sin, or slopes, are ours

    def __bool__(self) -> bool:
        return bool(self.swapped)

    def __str__(self) -> str:
        lines = [f"{len(self.swapped)} exchanged" + (", exact" if self.exact else "")]
        lines += [f"  {line}" for line in _grouped(self.swapped)]
        if self.left:
            lines += [f"{len(self.left)} left", *(f"  {line}" for line in _grouped(self.left))]
        return "\n".join(lines)


def _grouped(entries: tuple[Entry, ...]) -> list[str]:
    """One line for the layers of a model that have the same class."""
    groups: dict[tuple[str, str, str, str], int] = {}
    for entry in entries:
        key = (entry.cls, entry.what, entry.function, entry.detail)
        groups[key] = groups.get(key, 0) + 1
    return [
        f"{count} x {cls}: {what}, {function}: {detail}"
        for (cls, what, function, detail), count in groups.items()
    ]
