"""Read what the workers of a check left behind.

A worker of a learner's program shares its process and its folder with the recorder
that reports on it. So all that lies there is read as if an enemy had written it:
regular files only, reached through no link, of bounded size; and every record passes
the recorder's schema before anything else sees it. What doesn't is Unreadable. So
nothing that lies there harms the process that reads it. That the recorder wrote what
can be read is taken on trust.
"""

import csv
import io
import json
import math
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from distcheck import files

# What a right program of the course leaves is a tenth of it, or less.
MOST_REPORT = 2_000_000  # bytes of the report of a worker
MOST_EVENTS = 10_000  # in a report
MOST_LINE = 50_000  # bytes of an event
MOST_ARRAY = 10_000_000  # bytes of a kept array, which is float32
MOST_OUTPUT = 2_000_000  # bytes of what a worker printed
MOST_OUTCOME = 100_000  # bytes
MOST_TEXT = 2_000  # characters of a name or a message in an event
MOST_ITEMS = 2_000  # of a list in an event


class Unreadable(Exception):
    """What was reported is not what a worker writes."""


class TooLarge(Unreadable):
    """A file is larger than what is read."""


# -------------------------------------------------------------- the schema

Check = Callable[[object], bool]


def string(value: object) -> bool:
    return isinstance(value, str) and len(value) <= MOST_TEXT


def flag(value: object) -> bool:
    return isinstance(value, bool)


def whole(value: object) -> bool:
    # More than that a float can't tell from its neighbor.
    return type(value) is int and abs(value) <= 2**53


def metric(value: object) -> bool:
    """A number that a program computed: if it diverged, not a finite one."""
    return whole(value) or type(value) is float


def number(value: object) -> bool:
    return metric(value) and math.isfinite(value)


def optional(check: Check) -> Check:
    return lambda value: value is None or check(value)


def either(*checks: Check) -> Check:
    return lambda value: any(check(value) for check in checks)


def list_of(check: Check) -> Check:
    return lambda value: (
        isinstance(value, list) and len(value) <= MOST_ITEMS and all(map(check, value))
    )


def table_of(check: Check) -> Check:
    """Of names, with something for each."""
    return lambda value: (
        isinstance(value, dict)
        and list_of(string)(list(value))
        and list_of(check)(list(value.values()))
    )


def inode(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**64


# Python lets a program ask for steps in any of these.
argument = optional(either(flag, metric, string))

Schema = Mapping[str, Mapping[str, Check]]

_OF_EVERY_EVENT = {"what": string, "time": number, "line": optional(whole)}
OF_EVERY_PROGRAM: Schema = {
    "started": {"pid": whole},
    "keras 3": {"module": string},
    "tampered": {"replaced": string},
    "failed": {"error": string, "status": whole},
    "ended": {"cpu": list_of(number)},
}
HOROVOD: Schema = OF_EVERY_PROGRAM | {
    "asked": {
        "name": string,
        "too_early": flag,
        "answer": optional(either(flag, whole)),
    },
    "enter": {
        "op": string,
        "name": optional(string),
        "root": optional(whole),
        "elements": whole,
        "given": optional(list_of(metric)),
    },
    "leave": {"op": string, "got": optional(list_of(metric))},
    "wrapped": {},
    "devices": {"visible": list_of(whole), "growth": list_of(whole)},
    "pinned": {},
    "fit": {
        "verbose": argument,
        "steps_per_epoch": argument,
        "validation_steps": argument,
        "epochs": argument,
        "modules": list_of(string),
    },
    "fitted": {},
    "output": {"sizes": list_of(whole)},
    "forward": {
        "training": flag,
        "fit": flag,
        "images": list_of(whole),
        "rate": optional(metric),
    },
    "loss": {"value": metric, "cross_entropy": metric, "penalty": metric},
    "update": {"wrapped": flag, "optimizer": string},
    "callback": {
        "name": string,
        "made": optional(whole),
        "before": table_of(metric),
        "after": table_of(metric),
        "read": list_of(string),
        "stops": flag,
    },
    "evaluated": {"fit": flag, "own": flag, "metrics": table_of(metric)},
    "left": {"files": list_of(string)},
    "graphs": {"count": whole},
    "graph": {
        "error": optional(string),
        "function": optional(string),
        "training": flag,
    },
}


def event(line: bytes, schema: Schema) -> dict:
    """The event that a line of a report stands for. Raises Unreadable."""
    if len(line) > MOST_LINE:
        raise Unreadable("an event is too long")
    try:
        facts = json.loads(line)
    except (ValueError, RecursionError):
        raise Unreadable("a line is no JSON") from None
    what = facts.get("what") if isinstance(facts, dict) else None
    fields = schema.get(what) if isinstance(what, str) else None
    if fields is None:
        raise Unreadable("it has an event that no worker reports")
    checks = {**_OF_EVERY_EVENT, **fields}
    if set(facts) != set(checks):
        raise Unreadable(f"an event `{what}` has other fields")
    for name, check in checks.items():
        if not check(facts[name]):
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


def read_all(path: Path, schema: Schema) -> list[dict]:
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


def outcome(path: Path) -> dict:
    """How a scenario ended, as the lab wrote it. Raises FileNotFoundError, and
    Unreadable."""
    try:
        facts = json.loads(read(path, MOST_OUTCOME))
    except (ValueError, RecursionError):
        raise Unreadable(f"{path.name} is no JSON") from None
    checks = {
        "outcome": string,
        "script": string,
        "seconds": number,
        "mpirun": optional(whole),
        "statuses": table_of(optional(whole)),
    }
    if (
        not isinstance(facts, dict)
        or set(facts) != set(checks)
        or not all(check(facts[name]) for name, check in checks.items())
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
