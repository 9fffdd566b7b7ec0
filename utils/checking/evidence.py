"""Read what the workers of a check left behind.

A worker of a learner's program shares its process and its folder with the observer
that reports on it. So all that lies there is read as if an enemy had written it:
regular files only, reached through no link, of bounded size; and every record passes
the schema below before anything else sees it. What doesn't is Unreadable. So nothing
that lies there harms the process that reads it. That the observer wrote what can be
read is taken on trust.
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


def _text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= MOST_TEXT


def _flag(value: object) -> bool:
    return isinstance(value, bool)


def _whole(value: object) -> bool:
    # More than that a float can't tell from its neighbor.
    return type(value) is int and abs(value) <= 2**53


def _metric(value: object) -> bool:
    """A number that a program computed: if it diverged, not a finite one."""
    return _whole(value) or type(value) is float


def _number(value: object) -> bool:
    return _metric(value) and math.isfinite(value)


def _optional(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _either(*checks: Check) -> Check:
    return lambda value: any(check(value) for check in checks)


def _list(check: Check) -> Check:
    return lambda value: (
        isinstance(value, list) and len(value) <= MOST_ITEMS and all(map(check, value))
    )


def _table(check: Check) -> Check:
    """Of names, with something for each."""
    return lambda value: (
        isinstance(value, dict)
        and _list(_text)(list(value))
        and _list(check)(list(value.values()))
    )


def _inode(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**64


# Python lets a program ask for steps in any of these.
_argument = _optional(_either(_flag, _metric, _text))

Schema = Mapping[str, Mapping[str, Check]]

_OF_EVERY_EVENT = {"what": _text, "time": _number, "line": _optional(_whole)}
_OF_EVERY_PROGRAM: Schema = {
    "started": {"pid": _whole},
    "keras 3": {"module": _text},
    "tampered": {"replaced": _text},
    "failed": {"error": _text, "status": _whole},
    "ended": {"cpu": _list(_number)},
}
_HOROVOD: Schema = _OF_EVERY_PROGRAM | {
    "asked": {
        "name": _text,
        "too_early": _flag,
        "answer": _optional(_either(_flag, _whole)),
    },
    "enter": {
        "op": _text,
        "name": _optional(_text),
        "root": _optional(_whole),
        "elements": _whole,
        "given": _optional(_list(_metric)),
    },
    "leave": {"op": _text, "got": _optional(_list(_metric))},
    "wrapped": {},
    "devices": {"visible": _list(_whole), "growth": _list(_whole)},
    "pinned": {},
    "fit": {
        "verbose": _argument,
        "steps_per_epoch": _argument,
        "validation_steps": _argument,
        "epochs": _argument,
        "modules": _list(_text),
    },
    "fitted": {},
    "output": {"sizes": _list(_whole)},
    "forward": {
        "training": _flag,
        "fit": _flag,
        "images": _list(_whole),
        "rate": _optional(_metric),
    },
    "loss": {"value": _metric, "cross_entropy": _metric, "penalty": _metric},
    "update": {"wrapped": _flag, "optimizer": _text},
    "callback": {
        "name": _text,
        "made": _optional(_whole),
        "before": _table(_metric),
        "after": _table(_metric),
        "read": _list(_text),
        "stops": _flag,
    },
    "evaluated": {"fit": _flag, "own": _flag, "metrics": _table(_metric)},
    "left": {"files": _list(_text)},
    "graphs": {"count": _whole},
    "graph": {
        "error": _optional(_text),
        "function": _optional(_text),
        "training": _flag,
    },
}
_SCALED: Schema = _HOROVOD | {
    "fit": {},
    "update": {"epoch": _whole, "rate": _metric},
    "validated": {
        "epoch": _whole,
        "images": _list(_whole),
        "right": _list(_flag),
    },
    "epoch": {"epoch": _whole, "files": _table(_list(_inode))},
    "kept": {
        "files": _list(_text),
        "weights": _number,
        "state": _number,
        "epoch": _whole,
    },
}
_FILES: Schema = _SCALED | {
    "trained": {"epoch": _whole, "images": _list(_whole), "down": _list(_whole)},
    "mapped": {"calls": _list(_whole)},
}
_ZERO: Schema = _HOROVOD | {
    "gradient": {"elements": _whole},
    "received": {"op": _text, "elements": _whole},
    "update": {"optimizer": _text, "elements": _whole, "state": _whole},
}
_WIRES: Schema = _HOROVOD | {"read": {"clock": _text, "at": _number}}
_PLACE = {"weights": _text, "state": _text}
_SURVIVE: Schema = _SCALED | {
    "reset": {"files": _list(_text)},
    "lost": {},
    "rest": {
        "epoch": _whole,
        "done": _whole,
        "size": _whole,
        "rank": _whole,
        "seed": _argument,
    },
    "begins": {"epoch": _whole, "statistics": _text, **_PLACE},
    "before": {"epoch": _whole, **_PLACE},
    "after": _PLACE,
}
_REPLICAS: Schema = _OF_EVERY_PROGRAM | {
    "strategy": {"kind": _text, "replicas": _whole},
    "fit": {"kind": _text, "replicas": _whole},
    "places": {"lines": _table(_whole)},
    "makes": {"scoped": _flag},
    "trains": {
        "replica": _whole,
        "step": _whole,
        "images": _list(_text),
        "rate": _optional(_metric),
    },
    "validates": {"replica": _whole, "step": _whole, "images": _list(_text)},
    "model": {
        "weights": _whole,
        "state": _whole,
        "apart": _metric,
    },
    "truth": {"loss": _metric, "accuracy": _metric},
}
_TASKS: Schema = _OF_EVERY_PROGRAM | {
    **{what: _HOROVOD[what] for what in ("enter", "leave")},
    "strategy": _REPLICAS["strategy"],
    "trains": {"workers": _whole, "step": _whole, "images": _list(_text)},
    "serves": {"job": _text, "index": _whole},
    "orders": {"name": _text},
    "placed": {"names": _list(_text), "servers": _list(_whole), "updates": _whole},
    "left": {"files": _list(_text), "weights": _number},
}
_DEVICES: Schema = _OF_EVERY_PROGRAM | {
    "keras": {"chosen": _optional(_text)},
    "fit": {"devices": _whole, "asked": _whole},
    "trains": {"rows": _whole, "parts": _list(_whole), "rate": _metric},
    "model": {"copies": _whole, "apart": _metric, "off": _metric},
}
# By what is observed; see `World.kind` in utils.checking.lab.
SCHEMAS: Mapping[str, Schema] = {
    "horovod": _HOROVOD,
    "scaled": _SCALED,
    "files": _FILES,
    "zero": _ZERO,
    "wires": _WIRES,
    "survive": _SURVIVE,
    "replicas": _REPLICAS,
    "tasks": _TASKS,
    "devices": _DEVICES,
}


def event(line: bytes, kind: str) -> dict:
    """The event that a line of a report stands for. Raises Unreadable."""
    if len(line) > MOST_LINE:
        raise Unreadable("an event is too long")
    try:
        facts = json.loads(line)
    except (ValueError, RecursionError):
        raise Unreadable("a line is no JSON") from None
    what = facts.get("what") if isinstance(facts, dict) else None
    fields = SCHEMAS[kind].get(what) if isinstance(what, str) else None
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


def events(path: Path, kind: str) -> list[dict]:
    """All events of a report; none without one. Raises Unreadable."""
    try:
        # The last line is whole only if a newline follows it.
        *lines, _ = read(path, MOST_REPORT).split(b"\n")
    except FileNotFoundError:
        return []
    if len(lines) > MOST_EVENTS:
        raise Unreadable(f"{path.name} has more than {MOST_EVENTS} events")
    try:
        return [event(line, kind) for line in lines]
    except Unreadable as error:
        raise Unreadable(f"{path.name}: {error}") from None


# Of a .npy file, as NumPy writes it for what observers keep. NumPy's own reader makes
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
    """How a world ended, as the lab wrote it. Raises FileNotFoundError, Unreadable."""
    try:
        facts = json.loads(read(path, MOST_OUTCOME))
    except (ValueError, RecursionError):
        raise Unreadable(f"{path.name} is no JSON") from None
    checks = {
        "outcome": _text,
        "script": _text,
        "seconds": _number,
        "mpirun": _optional(_whole),
        "statuses": _table(_optional(_whole)),
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
