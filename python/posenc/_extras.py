"""Optional packages: found when they are used, and named when they are missing."""

import importlib
import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any


class MissingExtra(ImportError):
    """A package that posenc does without until this feature is used."""


def need(module: str, extra: str, what: str) -> ModuleType:
    """Imports ``module``, or says which extra of posenc brings it.

    Args:
        module: dotted name.
        extra: name in ``pip install posenc[extra]``.
        what: the feature that needs it, for the message.

    Raises:
        MissingExtra: (an ``ImportError``) where the package is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = module.split(".")[0]
        if error.name is None or error.name.split(".")[0] != package:
            raise  # the package is there, and something of its own is missing
        raise MissingExtra(
            f"{what}: expected the package {package}, which is not installed: "
            f"pip install posenc[{extra}]",
            name=package,
        ) from None


def progress(items: Iterable[Any], **options: Any) -> Any:
    """``items`` with tqdm's bar on standard error; without either, ``items`` as they are.

    Args:
        options: of ``tqdm``. Where standard error is no terminal the bar is redrawn rarely.
    """
    if sys.stderr is None:  # closed (2>&-): nobody sees a bar
        return items
    try:
        from tqdm import tqdm
    except ModuleNotFoundError:
        return items
    options.setdefault("dynamic_ncols", True)
    options.setdefault("mininterval", 0.2 if sys.stderr.isatty() else 10.0)
    return tqdm(items, **options)
