"""Open files that somebody else may have made, whatever they meant by it."""

import os
import stat
from pathlib import Path
from typing import BinaryIO


class Unfit(Exception):
    """A file is not of the kind that is read. The message says why, as in "is ..."."""


class TooLarge(Unfit):
    """A file has more bytes than are read."""


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading, never waiting for it.

    A link is not followed, and a pipe that nobody writes to is not waited for.
    Raises Unfit for all that is no regular file, and OSError.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC
    flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        number = os.open(path, flags)
    except OSError:
        # What can't be opened in this way: a link, a socket, a device without a driver.
        if os.path.lexists(path) and not stat.S_ISREG(os.lstat(path).st_mode):
            raise Unfit("is not a regular file") from None
        raise
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise Unfit("is not a regular file")
    return os.fdopen(number, "rb")


def read_regular(path: Path, most: int) -> bytes:
    """The bytes of a regular file, if there are no more than `most`.

    Raises TooLarge for more, Unfit for all that is no regular file; OSError.
    """
    with open_regular(path) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise TooLarge(f"is larger than {most / 1e6:g} MB")
    return content
