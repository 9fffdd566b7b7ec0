"""Write down what a worker does: events as lines of JSON, arrays as files beside them.

Nothing of a program's is decided here, and it can have several threads that write.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar

import numpy as np

from distcheck import worker
from distcheck.events import MOST_TEXT, Arrays

# As they are now: what a program replaces later is neither silenced nor misled by that.
_dumps, _write, _clock = json.dumps, os.write, time.monotonic

Place = tuple[str, int | None]  # a file, and a line of it


def frames() -> Iterator[FrameType]:
    """What is being executed, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def places() -> Iterator[Place]:
    """The lines that are being executed, the innermost first."""
    return ((frame.f_code.co_filename, frame.f_lineno) for frame in frames())


class Writer:
    """Writes events to `folder/rank.N.jsonl`, and arrays to `folder/rank.N.NAME.npy`.

    script: the program whose lines are named.
    """

    arrays: ClassVar[Arrays] = {}
    """What it keeps, by name, in words."""

    def __init__(self, folder: Path, rank: int, script: str):
        self.folder, self.rank, self.script = folder, rank, script
        self._file = os.open(
            folder / f"rank.{rank}.jsonl", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600
        )
        self._process = os.getpid()
        self._keeping = threading.Lock()
        self._beaten = 0.0

    @property
    def in_child(self) -> bool:
        """Is this a child that the program has forked? It is no worker: nothing is
        written of it."""
        return os.getpid() != self._process

    def event(self, what: str, **facts) -> None:
        """Report that something happened, with the line of the program, if any."""
        facts = {"line": self.line(), **facts}
        for name, fact in facts.items():
            facts[name] = fact[:MOST_TEXT] if isinstance(fact, str) else fact
        self.write(what, facts)

    def write(self, what: str, facts: dict) -> None:
        """Write an event with these facts and the time."""
        if self.in_child:
            return
        facts = {"what": what, "time": _clock(), **facts}
        _write(self._file, (_dumps(facts, default=_as_json) + "\n").encode())

    def line(self) -> Any:
        """The innermost line of the program that is being executed."""
        return self.line_of(places())

    def line_of(self, places: Iterable[Place]) -> Any:
        """The first of these places that is in the program: its line there."""
        return worker.line_in(self.script, places)

    def beat(self) -> None:
        """Show that the program gets on."""
        now = _clock()
        if now - self._beaten > 0.5:
            self._beaten = now
            (self.folder / f"rank.{self.rank}.beat").touch()

    def keep(self, name: str, arrays) -> None:
        """Keep arrays, flattened and joined, as float32.

        name: of what is kept, with a part after a dot that tells it from others of the
        kind. Raises ValueError for a kind that is not declared in `arrays`.
        """
        if name.partition(".")[0] not in self.arrays:
            raise ValueError(f"{type(self).__name__} declares no array {name!r}")
        if self.in_child:
            return
        flat = [np.asarray(a, np.float32).ravel() for a in arrays]
        joined = np.concatenate(flat) if flat else np.zeros(0, np.float32)
        # If the process is killed here, the previous file survives.
        path = self.folder / f"rank.{self.rank}.{name}.npy"
        unfinished = path.with_name(f"half.{path.name}")  # which nobody reads
        with self._keeping:
            np.save(unfinished, joined)
            unfinished.replace(path)


def _as_json(value):
    """What stands for a value that JSON has no form for."""
    if hasattr(value, "item") and getattr(value, "ndim", 1) == 0:  # of NumPy
        return value.item()
    return repr(value)[:MOST_TEXT]
