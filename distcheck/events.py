"""The events that recorders report, and how what workers of a check left is read.

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
import math
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


# -------------------------------------------------------------- what events are made of

Fits = Callable[[object], bool]  # is it such a value?

# Numbers that have to be finite; others are what a program computed, and if it has
# diverged they are not.
Finite = Annotated[float, lambda value: _is_number(value) and math.isfinite(value)]
# What tells a file from all others on its disk.
Inode = Annotated[int, lambda value: type(value) is int and 0 <= value < 2**64]
# What a program may have given for a number of steps, for example.
Argument = bool | float | str | None


class Event(TypedDict):
    """Something that a worker did or that happened to it.

    Floats may be whole numbers. Texts and lists are of bounded length.
    """

    what: str
    """The name of the event, in the schema of the recorder."""
    time: Finite
    """Seconds on a clock of the worker's machine, which never goes back."""
    line: int | None
    """The line of the program that led to it, if one did."""


# The kinds of events that a recorder writes, by their names.
Schema = Mapping[str, type[Event]]


def _is_number(value: object) -> bool:
    return _is_whole(value) or type(value) is float


def _is_whole(value: object) -> bool:
    # More than that a float can't tell from its neighbor.
    return type(value) is int and abs(value) <= 2**53


_FITS: Mapping[type, Fits] = {
    str: lambda value: isinstance(value, str) and len(value) <= MOST_TEXT,
    bool: lambda value: isinstance(value, bool),
    int: _is_whole,
    float: _is_number,
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
        isinstance(value, list) and len(value) <= MOST_ITEMS and all(map(fits, value))
    )


@functools.cache
def _fields(kind: type) -> dict[str, Fits]:
    """The fields of such a dictionary, with what tells whether a value fits."""
    hints = get_type_hints(kind, include_extras=True)
    return {name: _what_fits(hint) for name, hint in hints.items()}


# -------------------------------------------------------------- of every program


class Started(Event):
    """The worker is there, and its program is about to run."""

    pid: int


class Keras3(Event):
    """By an import, the program gets Keras 3, where it would have to choose Keras 2."""

    module: str
    """That it imports."""


class Tampered(Event):
    """At the end of the program, a function by which it is watched is another one."""

    replaced: str
    """Its name, with that of its owner."""


class Failed(Event):
    """The program ended with an error."""

    error: str
    """In words, with its type."""
    status: int
    """The exit status, as the system has it."""


class Ended(Event):
    """The program ended well, or with `devices_only` it has chosen its devices. Nothing
    comes after this."""

    cpu: list[Finite]
    """Seconds of processor that the worker has used: for itself, and in the kernel."""


OF_EVERY_PROGRAM: Schema = {
    "started": Started,
    "keras 3": Keras3,
    "tampered": Tampered,
    "failed": Failed,
    "ended": Ended,
}


class Strategy(Event):
    """A strategy of tf.distribute was made."""

    kind: str
    """Its class."""
    replicas: int
    """How many it keeps in step."""


# -------------------------------------------------------------- of Horovod programs


class Asked(Event):
    """Horovod was asked who a worker is or how many there are; from each line of the
    program, the first time."""

    name: str
    """The function, such as `rank`."""
    too_early: bool
    """Was it before `init`, so that there was no answer?"""
    answer: bool | int | None


class CollectiveStart(Event):
    """The worker begins what all workers have to call, and waits for them in it."""

    op: str
    """What it is: `allreduce`, `broadcast`, `init` ..."""
    name: str | None
    """The name by which Horovod knows that workers call the same."""
    root: int | None
    """The rank that a broadcast is from."""
    elements: int
    """How many numbers the worker hands in."""
    given: list[float] | None
    """These numbers, where they are few."""


class CollectiveEnd(Event):
    """It has met the others there."""

    op: str
    got: list[float] | None
    """The numbers that came out, where those that went in were few."""


class Wrapped(Event):
    """A distributed optimizer of Horovod's was made."""


class Devices(Event):
    """TensorFlow takes hold of its devices: now it's too late to choose others."""

    visible: list[int]
    """Numbers of the pretended GPUs that the program has made visible."""
    growth: list[int]
    """Numbers of those that take memory only as they need it."""


class Pinned(Event):
    """The program chose which devices are visible."""


class Fit(Event):
    """`Model.fit` begins, with these arguments."""

    verbose: Argument
    steps_per_epoch: Argument
    validation_steps: Argument
    epochs: Argument
    modules: list[str]
    """Horovod's modules that the program has names for."""


class Fitted(Event):
    """`Model.fit` has ended, by an error perhaps."""


class Output(Event):
    """How much the program has printed: before it trains, and after each `fit`."""

    sizes: list[int]
    """Bytes on the standard output, and on the standard error."""


class Forward(Event):
    """A model was given a batch, or the batch was only counted."""

    training: bool
    fit: bool
    """Was it inside `Model.fit`?"""
    images: list[int]
    """Which images: their numbers in the source; -1 for one that is none of these."""
    rate: float | None
    """The learning rate, in training, once it is known which optimizer updates."""


class Loss(Event):
    """A gradient is taken of a loss, for a batch of images that are known: the first
    after each of the first updates."""

    value: float
    """The loss, summed up if it is several numbers."""
    cross_entropy: float
    """The mean cross-entropy of the batch, as computed from what the model answered."""
    penalty: float
    """For large weights."""


class Update(Event):
    """An optimizer updates the weights."""

    wrapped: bool
    """Is it a distributed one of Horovod's?"""
    optimizer: str
    """Its class."""


class Callback(Event):
    """A callback was told that an epoch, or a validation in `fit`, has ended."""

    name: str
    """Its class."""
    made: int | None
    """The line of the program that made it."""
    before: dict[str, float]
    """The metrics that it was given."""
    after: dict[str, float]
    """The same when it had done."""
    read: list[str]
    """Those of them that it looked at."""
    stops: bool
    """Has anything told the training to stop by then?"""


class Evaluated(Event):
    """The metrics of a validation were computed, and set apart on each rank."""

    fit: bool
    """Was it inside `Model.fit`?"""
    own: bool
    """Was it a callback that validated?"""
    metrics: dict[str, float]
    """As the program sees them; their names begin with `val_`."""


class FilesWritten(Event):
    """At the end of the program: what it has written."""

    files: list[str]
    """Paths from the folder in which it ran; also of files that are gone by now."""


class Graphs(Event):
    """The worker is about to build what would have been compiled."""

    count: int
    """How many functions."""


class Graph(Event):
    """One of them was built, or can't be."""

    error: str | None
    function: str | None
    """Its name, if it is one of the program's own."""
    training: bool
    """Does it train?"""


HOROVOD: Schema = OF_EVERY_PROGRAM | {
    "asked": Asked,
    "collective_start": CollectiveStart,
    "collective_end": CollectiveEnd,
    "wrapped": Wrapped,
    "devices": Devices,
    "pinned": Pinned,
    "fit": Fit,
    "fitted": Fitted,
    "output": Output,
    "forward": Forward,
    "loss": Loss,
    "update": Update,
    "callback": Callback,
    "evaluated": Evaluated,
    "files_written": FilesWritten,
    "graphs": Graphs,
    "graph": Graph,
}

# The names of arrays that a worker keeps beside its report, each in a file of its own.
Arrays = Mapping[str, str]

# "local" and "applied" are kept for several updates, as NAME.0, NAME.1, ...
HOROVOD_ARRAYS: Arrays = {
    "initial": "The weights that are trained, before any collective has carried some.",
    "start": "The same at the last training batch before the first update.",
    "local": "The gradient that `tf.GradientTape.gradient` has returned, before it.",
    "applied": "The gradient that the optimizer is to apply in it.",
    "updated": "The weights right after the first update.",
    "resumed": "The weights at the first batch after that.",
    "state": "The optimizer's variables at the same time.",
    "end": "The weights at the end of the program.",
}


# -------------------------------------------------------------- reading them


def event(line: bytes, schema: Schema) -> dict:
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


class Outcome(TypedDict):
    """How a scenario ended."""

    outcome: str
    """In a word of the lab's."""
    script: str
    """The path of the program."""
    seconds: Finite
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
