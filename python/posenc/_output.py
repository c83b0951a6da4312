"""Files that are to be written, looked at before the work whose results they will hold."""

import errno
import os

from ._extras import need

#: Endings of pictures.
FORMATS = (".png", ".svg", ".pdf")


def check_writable(path: str | os.PathLike[str]) -> None:
    """Whether a file can be written; what is there stays as it is.

    Raises:
        OSError: it cannot: the folder is absent or closed, or the name is that of a folder.
    """
    path = os.fsdecode(path)
    if os.path.isdir(path):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    there = os.path.lexists(path)
    if there and not os.path.isfile(path):
        return  # opening a pipe would wait for its reader
    # Asking for permissions is not enough: root has them all, and some file systems take no file.
    with open(path, "ab"):
        pass
    if not there:
        os.remove(path)


def picture_ending(path: str | os.PathLike[str]) -> str:
    """The ending of a picture's name, in lower case.

    Raises:
        ValueError: it is none of `FORMATS`.
    """
    path = os.fsdecode(path)
    ending = os.path.splitext(path)[1].lower()
    if ending not in FORMATS:
        raise ValueError(
            f"save: expected a file name ending with {', '.join(FORMATS)}, got {path!r}"
        )
    return ending


def check_picture(
    save: str | os.PathLike[str] | None, extra: str = "plots", what: str = "posenc.plots"
) -> None:
    """Whether a picture can be drawn and written there; None: none is wanted.

    Args:
        save: its file.
        extra, what: see `posenc._extras.need`.

    Raises:
        MissingExtra: matplotlib is not installed.
        ValueError: another ending.
        OSError: the file cannot be written.
    """
    if save is None:
        return
    need("matplotlib", extra, what)
    picture_ending(save)
    check_writable(save)
