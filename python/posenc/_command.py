"""How a command ends: an exit code, and one line that says why where something failed."""

import contextlib
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import TextIO

#: Set to anything, this variable has the traceback of an error printed as well.
TRACEBACK = "POSENC_TRACEBACK"
HELP = f"With {TRACEBACK}=1 in the environment an error also prints where it was raised."

#: Errors whose message was written for the user. Others name their type.
_TOLD = (ValueError, IndexError, OSError, ImportError)
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_NO_MEMORY = re.compile(r"you tried to allocate (\d+) bytes")


def one_line(text: str) -> str:
    """``text`` without line ends and without what would steer a terminal."""
    text = " ".join(_COLOURS.sub("", text).split())
    return "".join(c if c.isprintable() else "?" for c in text)


def reason_of(error: Exception) -> str:
    """What went wrong, for a line of text.

    >>> from posenc._command import reason_of
    >>> reason_of(ValueError("length: expected 1, got 0")), reason_of(KeyError("x"))
    ('length: expected 1, got 0', "KeyError: 'x'")
    """
    text = str(error)
    if (size := _NO_MEMORY.search(text)) is not None:
        return f"not enough memory: expected {int(size[1]):,} bytes more"
    if isinstance(error, MemoryError):
        return "not enough memory"
    if isinstance(error, _TOLD) and text:
        return text
    # torch and pybind11 go on with stacks and signatures.
    first = next(iter(text.strip().splitlines()), "")
    return f"{type(error).__name__}: {first[:300]}" if first else repr(error)


def fail(name: str, reason: str, code: int) -> int:
    """One line on standard error; returns the exit code."""
    if sys.stderr is not None:  # 2>&-
        with contextlib.suppress(OSError):
            print(f"{name}: error: {one_line(reason)}", file=sys.stderr)
    return code


def _flush(stream: TextIO | None) -> None:
    """Writes what is in the buffer, here and not at Python's end, where a full disk could no longer
    be told. What cannot be written is dropped, or it would fail there once more."""
    if stream is None:  # closed: >&-
        return
    try:
        stream.flush()
    except OSError:
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        raise


@contextlib.contextmanager
def _every_letter() -> Iterator[None]:
    """A letter that standard output's encoding lacks is printed as a question mark: results are
    not lost over an arrow."""
    stream = sys.stdout
    if getattr(stream, "errors", None) != "strict" or not hasattr(stream, "reconfigure"):
        yield
        return
    stream.reconfigure(errors="replace")
    try:
        yield
    finally:
        with contextlib.suppress(OSError, ValueError):  # closed, or nobody reads
            stream.reconfigure(errors="strict")


def run_command(name: Callable[[], str], work: Callable[[], int | None]) -> int:
    """Runs a command so that no failure leaves it as a traceback.

    Args:
        name: what begins the line of an error, asked for when there is one.
        work: does it, prints, and returns the exit code (None: 0).

    Returns:
        that code; 0 where the reader of a pipe had enough (posenc list | head); 1, with a line on
        standard error, after an error; 130 where the user stopped it.
    """
    try:
        try:
            with _every_letter():
                code = work()
                _flush(sys.stdout)
        except SystemExit:  # argparse: help, or a command line that is wrong
            _flush(sys.stdout)
            raise
        return code or 0
    except KeyboardInterrupt:
        return fail(name(), "stopped", 130)
    except BrokenPipeError:
        return 0
    except Exception as error:
        if os.environ.get(TRACEBACK):
            traceback.print_exc()
        return fail(name(), reason_of(error), 1)
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                _flush(stream)
