"""Report what the workers of exercises/bandwidth.py do: each collective, as of other
Horovod programs, and each look at a clock.

No check may depend on how fast a machine is. So the clocks that a program reads show
made-up seconds: only collectives take time, and how much is laid down here. It ends
for all when the last worker has come, and the first rounds of a size are the slowest.
In between, rank 0 comes late out of each warm-up round, and the last rank out of each
round that counts. So each way to measure gives a number of its own.
"""

import importlib
import time
import timeit
from collections import Counter

from distcheck.events import HOROVOD, Event, Finite
from distcheck.recorder.horovod import HorovodRecorder
from distcheck.recorder.tensors import elements_of
from distcheck.scenarios import Scenario, register

COUNTS = (64, 640)  # numbers in the messages
WARM_UP, ROUNDS = 6, 4
SECONDS = {64: 0.002, 640: 0.006}  # that an all-reduce takes, once it is warm
FIRST, EARLY = 200, 10  # times as long: the first of all rounds, the rest of warm-up
# So many rounds' times later a worker comes out of a round, where it is late.
LATE_IN_WARM_UP, LATE = 4, 2
OTHERS = 1e-5  # seconds of any other collective
BUSY = 0.1  # share of that time in which the processor works

# Names of clocks, and what they show at first on rank 0 and on each further one: those
# of several machines don't agree.
CLOCKS = {"time": (1.7e9, 5.0), "monotonic": (1e3, 1e3), "perf_counter": (1e3, 1e3)}


class Read(Event):
    """The program looks at a clock."""

    clock: str
    """Its name, in `time`."""
    at: Finite
    """How many of the made-up seconds have passed."""


class WiresRecorder(HorovodRecorder):
    """Reports a program that times collectives of Horovod."""

    schema = HOROVOD | {"read": Read}

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._now = 0.0  # made-up seconds, the same for all
        self._busy = 0.0  # those of the processor
        self._rounds: Counter[int] = Counter()  # of each size so far
        self._meetings = 0
        self._meeting = False

    def hook_training(self, tf) -> None:
        """Nothing is trained."""

    def hook_callbacks(self, tf) -> None:
        """Nor are there callbacks."""

    def intervene(self, tf) -> None:
        """Replace the clocks, as they are seen from a line of the program."""
        for name, (first, step) in CLOCKS.items():
            begins = first + step * self.rank
            self._replace_clock(name, lambda begins=begins: begins + self._now)
        for name in ("process_time", "thread_time"):
            self._replace_clock(name, lambda: self._busy)
        self.replace(
            tf,
            "timestamp",
            lambda original: (
                lambda name=None: tf.constant(CLOCKS["time"][0] + self._now, tf.float64)
            ),
        )
        importlib.reload(timeit)  # which knows the clock by a name of its own

    def _replace_clock(self, name: str, seconds) -> None:
        def make(original, scale=None):
            def read():
                if self.line() is None:  # a library's own business
                    return original()
                self.event("read", clock=name, at=self._now)
                return seconds() if scale is None else round(seconds() * scale)

            return read

        self.replace(time, name, make)
        self.replace(time, f"{name}_ns", lambda original: make(original, 1e9))

    def collective(self, kind: str, function):
        """As ever; and let made-up time pass."""
        if self._meeting or kind in ("init", "shutdown"):
            return function if self._meeting else super().collective(kind, function)
        original = super().collective(kind, function)

        def timed(*args, **kwargs):
            came = self._now
            result = original(*args, **kwargs)
            tensors = args[0] if args else None
            many = isinstance(tensors, list | tuple)
            count = sum(map(elements_of, tensors)) if many else elements_of(tensors)
            self._pass(count if "allreduce" in kind else 0, came)
            return result

        return timed

    def _pass(self, count: int, came: float) -> None:
        """Let the time of a collective of so many numbers pass, to which this worker
        came at that time."""
        last, size = self._last(came)
        takes, late = OTHERS, 0.0
        if count in SECONDS:
            turn, warm = self._rounds[count], SECONDS[count]
            self._rounds[count] += 1
            early = turn < WARM_UP
            takes = warm * (1 if not early else EARLY if turn else FIRST)
            if early and self.rank == 0:
                late = LATE_IN_WARM_UP * warm
            elif not early and self.rank == size - 1:
                late = LATE * warm
        self._now = last + takes + late
        self._busy += BUSY * takes

    def _last(self, came: float) -> tuple[float, int]:
        """When the last worker came to the collective that has just ended, and how many
        workers there are."""
        import horovod.tensorflow as hvd
        import tensorflow as tf

        self._meetings += 1
        self._meeting = True
        try:
            all_came = hvd.allgather(
                tf.constant([came], tf.float64), name=f"recorder.{self._meetings}"
            )
        finally:
            self._meeting = False
        return float(tf.reduce_max(all_came)), len(all_came)


def _machines(size: int) -> Scenario:
    recorder = WiresRecorder.dotted_name()
    return Scenario(size, recorder=recorder, local_ranks=(0,) * size)


register({"two wires": _machines(2), "three wires": _machines(3)})
