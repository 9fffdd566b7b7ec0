"""Write down what a worker does: events as lines of JSON, arrays as files beside them.

Nothing of a program's is decided here, and it can have several threads that write.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path

import numpy as np

from distcheck.events import MOST_TEXT

# As they are now: what a program replaces later is neither silenced nor misled by that.
_dumps, _write, _clock = json.dumps, os.write, time.monotonic


class Writer:
    """Writes events to `folder/rank.N.jsonl`, and arrays to `folder/rank.N.NAME.npy`.

    script: the program whose lines are named.
    """

    def __init__(self, folder: Path, rank: int, script: str):
        self.folder, self.rank, self.script = folder, rank, script
        self._file = os.open(
            folder / f"rank.{rank}.jsonl", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600
        )
        self._process = os.getpid()
        self._keeping = threading.Lock()

    def event(self, what: str, **facts) -> None:
        """Report that something happened, with the line of the program, if any.

        A child that the program has forked is no worker: it reports nothing.
        """
        if os.getpid() != self._process:
            return
        facts = {"what": what, "time": _clock(), "line": self.line(), **facts}
        facts = {
            name: fact[:MOST_TEXT] if isinstance(fact, str) else fact
            for name, fact in facts.items()
        }
        _write(self._file, (_dumps(facts, default=_as_json) + "\n").encode())

    def line(self) -> int | None:
        """The innermost line of the program that is being executed."""
        frame = sys._getframe(1)
        while frame is not None:
            if frame.f_code.co_filename == self.script:
                return frame.f_lineno
            frame = frame.f_back
        return None

    def keep(self, name: str, arrays) -> None:
        """Keep arrays, flattened and joined, as float32; of a forked child, none."""
        if os.getpid() != self._process:
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
