"""How what the workers of a check left is read.

A worker of a learner's program shares its process and its folder with the recorder
that reports on it. So the server and the judges read it as if an enemy had written it:
regular files only, reached through no link, of bounded size; and every record passes
the recorder's schema before anything else sees it. What doesn't is Unreadable. So
nothing that lies there harms the process that reads it. That the recorder wrote what
can be read is taken on trust.
"""

import csv
import functools
import io
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import UnionType
from typing import (
    Annotated,
    Any,
    TypedDict,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np

from distcheck import events, files

# What a right program of the course leaves is a tenth of it, or less.
MOST_REPORT = 2_000_000  # bytes of the report of a worker
MOST_EVENTS = 10_000  # in a report
MOST_LINE = 50_000  # bytes of an event
MOST_ARRAY = 10_000_000  # bytes of a kept array, which is float32
MOST_OUTPUT = 2_000_000  # bytes of what a worker printed
MOST_OUTCOME = 100_000  # bytes


class Unreadable(Exception):
    """What was reported is not what a worker writes."""


class TooLarge(Unreadable):
    """A file is larger than what is read."""


# -------------------------------------------------------------- does it fit?

Fits = Callable[[object], bool]  # is it such a value?

_FITS: Mapping[type, Fits] = {
    str: lambda value: isinstance(value, str) and len(value) <= events.MOST_TEXT,
    bool: lambda value: isinstance(value, bool),
    int: events.is_whole,
    float: events.is_number,
    type(None): lambda value: value is None,
}


def _what_fits(kind: Any) -> Fits:
    """What tells whether a value is of a kind that a field is declared with."""
    parts = get_args(kind)
    if get_origin(kind) is Annotated:
        return parts[1]
    if get_origin(kind) in (Union, UnionType):
        each = [_what_fits(part) for part in parts]
        return lambda value: any(fits(value) for fits in each)
    if get_origin(kind) is list:
        return functools.partial(_is_list, _what_fits(parts[0]))
    if get_origin(kind) is dict:
        name, fact = (functools.partial(_is_list, _what_fits(part)) for part in parts)
        return lambda value: (
            isinstance(value, dict) and name([*value]) and fact([*value.values()])
        )
    return _FITS[kind]


def _is_list(fits: Fits, value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= events.MOST_ITEMS
        and all(map(fits, value))
    )


@functools.cache
def _fields(kind: type) -> dict[str, Fits]:
    """The fields of such a dictionary, with what tells whether a value fits."""
    hints = get_type_hints(kind, include_extras=True)
    return {name: _what_fits(hint) for name, hint in hints.items()}


# -------------------------------------------------------------- reading them


def event(line: bytes, schema: events.Schema) -> dict:
    """The event that a line of a report stands for. Raises Unreadable."""
    if len(line) > MOST_LINE:
        raise Unreadable("an event is too long")
    try:
        facts = json.loads(line)
    except (ValueError, RecursionError):
        raise Unreadable("a line is no JSON") from None
    what = facts.get("what") if isinstance(facts, dict) else None
    kind = schema.get(what) if isinstance(what, str) else None
    if kind is None:
        raise Unreadable("it has an event that no worker reports")
    fields = _fields(kind)
    if set(facts) != set(fields):
        raise Unreadable(f"an event `{what}` has other fields")
    for name, fits in fields.items():
        if not fits(facts[name]):
            raise Unreadable(f"{name} of an event `{what}` can't be what it says")
    return facts


# -------------------------------------------------------------- the files


def read(path: Path, limit: int) -> bytes:
    """The bytes of a file that a worker left. Raises FileNotFoundError, Unreadable;
    TooLarge for more than `limit`.

    path: below a folder that is resolved, so that a link on the way is seen.
    """
    return _read(path, lambda path: files.read_regular(path, limit))


def _read(path: Path, read_file: Callable[[Path], bytes]) -> bytes:
    if os.path.realpath(path.parent) != str(path.parent):
        raise Unreadable(f"{path.name} lies behind a link")
    try:
        return read_file(path)
    except FileNotFoundError:
        raise
    except files.TooLarge as error:
        raise TooLarge(f"{path.name} {error}") from None
    except files.Unfit as error:
        raise Unreadable(f"{path.name} {error}") from None
    except OSError as error:
        raise Unreadable(f"{path.name}: {error.strerror}") from None


def read_all(path: Path, schema: events.Schema) -> list[dict]:
    """All events of a report; none without one. Raises Unreadable."""
    try:
        # The last line is whole only if a newline follows it.
        *lines, _ = read(path, MOST_REPORT).split(b"\n")
    except FileNotFoundError:
        return []
    if len(lines) > MOST_EVENTS:
        raise Unreadable(f"{path.name} has more than {MOST_EVENTS} events")
    try:
        return [event(line, schema) for line in lines]
    except Unreadable as error:
        raise Unreadable(f"{path.name}: {error}") from None


# Of a .npy file, as NumPy writes it for what recorders keep. NumPy's own reader makes
# an array of any size that a header claims, and parses it as Python.
_ARRAY = re.compile(
    rb"\x93NUMPY\x01\x00..\{'descr': '<f4', 'fortran_order': False, "
    rb"'shape': \((\d{1,9}),\), \} *\n",
    re.DOTALL,
)


def array(path: Path) -> np.ndarray:
    """A kept array: float32, with one axis. Raises FileNotFoundError, Unreadable."""
    content = read(path, MOST_ARRAY)
    header = _ARRAY.match(content)
    if not header or len(content) - header.end() != 4 * int(header[1]):
        raise Unreadable(f"{path.name} is no array that a worker keeps")
    return np.frombuffer(content, np.float32, offset=header.end())


def text(path: Path) -> str:
    """What was printed; "" without a file. Of very much, both ends. Raises
    Unreadable."""
    try:
        return _read(path, _both_ends).decode("utf-8", errors="replace")
    except FileNotFoundError:
        return ""


def _both_ends(path: Path) -> bytes:
    half = MOST_OUTPUT // 2
    with files.open_regular(path) as file:
        start = file.read(half)
        size = os.fstat(file.fileno()).st_size
        file.seek(max(half, size - half))
        return start + file.read(half)


class Outcome(TypedDict):
    """How a scenario ended."""

    outcome: str
    """In a word of the lab's."""
    script: str
    """The path of the program."""
    seconds: events.Finite
    """That it took."""
    mpirun: int | None
    """The exit status of mpirun; None if the lab ended it."""
    statuses: dict[str, int | None]
    """Rank -> exit status; None for a worker that was ended."""


def outcome(path: Path) -> dict:
    """How a scenario ended, as the lab wrote it. Raises FileNotFoundError, and
    Unreadable."""
    try:
        facts = json.loads(read(path, MOST_OUTCOME))
    except (ValueError, RecursionError):
        raise Unreadable(f"{path.name} is no JSON") from None
    fields = _fields(Outcome)
    if (
        not isinstance(facts, dict)
        or set(facts) != set(fields)
        or not all(fits(facts[name]) for name, fits in fields.items())
    ):
        raise Unreadable(f"{path.name} is no outcome")
    return facts


def last_row(path: Path) -> dict[str, str]:
    """The last row of a CSV file with a header; {} without one. Raises
    FileNotFoundError, Unreadable."""
    content = read(path, MOST_OUTPUT).decode("utf-8", errors="replace")
    row: dict[str, str] = {}
    try:
        for row in csv.DictReader(io.StringIO(content, newline="")):
            if None in row or None in row.values():
                raise Unreadable(f"{path.name} has rows of different lengths")
    except csv.Error:
        raise Unreadable(f"{path.name} is no CSV") from None
    return row
