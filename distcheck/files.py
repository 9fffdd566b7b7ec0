"""Read what somebody else may have made; write files whole; folders for a while."""

import contextlib
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

HALVES = "*.half"  # what a file is called that is not whole yet
SCRATCH = "distcheck-"  # how the name of a scratch folder begins; then, whose it is


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


def read_regular(path: Path, limit: int) -> bytes:
    """The bytes of a regular file, if there are no more than `limit`.

    Raises TooLarge for more, Unfit for all that is no regular file; OSError.
    """
    with open_regular(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise TooLarge(f"is larger than {limit / 1e6:g} MB")
    return content


def shown(path: Path | str) -> str:
    """`path` as a person would type it: relative to the working directory."""
    return os.path.relpath(path)


@contextlib.contextmanager
def whole(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Write a file that is at `path` once the block has ended well, all of it.

    Until then it has a name of its own in the same folder, so that others see the
    former file or none, and may write at the same time: the last one stays. When the
    block raises, nothing is left of it.

    mode: its permissions from the first byte on, less the umask, as for any new file;
    those of a former file are not kept. Raises OSError.
    """
    # Hidden, and independent of the name, which may be as long as names can be.
    half = path.with_name(f".{os.urandom(8).hex()}{HALVES[1:]}")
    try:
        with open(
            half, "xb", opener=lambda name, flags: os.open(name, flags, mode)
        ) as file:
            yield file
        half.replace(path)
    finally:
        half.unlink(missing_ok=True)


def write_whole(path: Path, content: str | bytes, mode: int = 0o666) -> None:
    """Write a file in one go, text as UTF-8: nobody ever finds half of it.

    mode: its permissions, see `whole`. Raises OSError, and UnicodeEncodeError for text
    that has no form in UTF-8; what was there is then still there.
    """
    with whole(path, mode) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def scratch(parent: str | None = None) -> Iterator[Path]:
    """A temporary folder for this user alone, gone after the block.

    By its name, `supervise.sweep` removes it once this process is no more, killed or
    not, should it still be there. parent: where; by default where temporary files go.
    Raises OSError if it can't be made.
    """
    # No TemporaryDirectory: it may follow links that are in it, and would be tidied up
    # by a forked child, too.
    name = tempfile.mkdtemp(prefix=f"{SCRATCH}{os.getpid()}-", dir=parent)
    try:
        yield Path(name)
    finally:
        shutil.rmtree(name, ignore_errors=True)


def owner(folder: Path) -> int | None:
    """The process whose scratch folder this is, by its number; None if it is none."""
    # No number is longer; anybody may have made a folder that is called so.
    match = re.match(rf"{SCRATCH}(\d{{1,9}})-", folder.name)
    return int(match[1]) if match else None
