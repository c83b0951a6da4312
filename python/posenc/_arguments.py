"""Types of numbers on a command line, for argparse."""

import argparse
import math
from collections.abc import Callable

#: The largest count or length: what torch and the operators below take as a size everywhere.
MOST = 2**31 - 1
#: The largest seed that torch takes.
MOST_SEED = 2**64 - 1
#: More threads than any machine has cores; far more of them would end the process.
MOST_THREADS = 1024


def whole(least: int, most: int = MOST) -> Callable[[str], int]:
    """An argparse type: a whole number from ``least`` to ``most``.

    >>> from posenc._arguments import whole
    >>> whole(1)("12")
    12
    >>> whole(1, 8)("9")
    Traceback (most recent call last):
        ...
    argparse.ArgumentTypeError: expected at most 8, got 9
    """

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"expected a whole number, got {text!r}") from None
        if value < least:
            raise argparse.ArgumentTypeError(f"expected at least {least}, got {value}")
        if value > most:
            raise argparse.ArgumentTypeError(f"expected at most {most}, got {value}")
        return value

    return parse


#: Threads of torch.
threads = whole(1, MOST_THREADS)
#: A seed of torch's generators.
seed = whole(0, MOST_SEED)


def positive(text: str) -> float:
    """An argparse type: a finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number, got {text!r}") from None
    if not (value > 0 and math.isfinite(value)):
        raise argparse.ArgumentTypeError(f"expected a finite number above 0, got {text}")
    return value
