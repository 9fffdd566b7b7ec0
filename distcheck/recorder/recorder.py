"""What all recorders have in common: they hook into libraries, and write."""

import contextlib
import os
import pkgutil
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from distcheck import events, worker
from distcheck.recorder import patches
from distcheck.recorder.graphs import Graphs
from distcheck.recorder.source import Source
from distcheck.recorder.writer import Writer
from distcheck.scenarios import Scenario


class Recorder(Writer):
    """Records what a worker of a scenario does.

    source: of the images that the program trains on; without one, none is known again.
    """

    schema: ClassVar[events.Schema] = events.OF_EVERY_PROGRAM
    """The events that it writes."""

    graphs: Graphs | None = None
    """Those that are to be built in the end."""

    def __init__(
        self,
        folder: Path,
        rank: int,
        script: str,
        scenario: Scenario | None = None,
        source: Source | None = None,
    ):
        super().__init__(folder, rank, script)
        self.scenario, self.source = scenario or Scenario(1), source
        self.made_in_line: dict[int, Any] = {}  # by the id of a callback
        self.activities: list[str] = []  # what the program is doing, see `inside`
        self._replaced: list[tuple] = []  # methods as they were before
        self._relied_on = dict(patches.relied_on)

    @classmethod
    def dotted_name(cls) -> str:
        """What a scenario calls it."""
        return f"{cls.__module__}:{cls.__qualname__}"

    @classmethod
    def needs(cls) -> tuple[Path, ...]:
        """What its programs need beside this Python. Raises UserError where that is
        missing."""
        return ()

    @classmethod
    def set_up(cls, scenario: Scenario, reports: Path) -> None:
        """Prepare the working folder of a worker, before its program begins.

        reports: the folder of the scenario. sys.argv is the program's command line.
        """

    def at_work(self) -> AbstractContextManager[None]:
        """Record what the program does that runs in this block."""
        raise NotImplementedError

    def run(self, importing: AbstractContextManager | None = None) -> None:
        """Run the program while it is recorded. This process ends here if the program
        has failed, or if it is a child that the program has forked.

        importing: what of imports is watched meanwhile.
        """
        self.event("started", pid=os.getpid())
        with self.at_work(), importing or contextlib.nullcontext():
            failure = worker.run_program(self.script, self.line_of)
        self.report_replaced()
        sys.stdout.flush()
        sys.stderr.flush()
        if failure:
            failure["status"] = failure["status"] & 0xFF or 1  # as the system has it
            self.report_failure(failure)
        if failure or self.in_child:
            # Without the goodbyes in which it would wait for the others.
            os._exit(failure["status"] if failure else 0)

    def report_failure(self, failure: dict) -> None:
        """Report that the program has failed."""
        self.event("failed", **failure)

    @contextlib.contextmanager
    def inside(self, activity: str):
        """Note that the program is in an activity now, such as "forward" or "fit"."""
        self.activities.append(activity)
        try:
            yield
        finally:
            self.activities.remove(activity)

    def before(self, owner, name: str, tell: Callable) -> None:
        """Call `tell` before a method, with what the method is called with."""

        def make(original):
            def observed(*args, **kwargs):
                tell(*args, **kwargs)
                return original(*args, **kwargs)

            return observed

        self.replace(owner, name, make)

    def after(self, owner, name: str, tell: Callable) -> None:
        """Call `tell` after a method, with what the method has returned, and was called
        with."""

        def make(original):
            def observed(*args, **kwargs):
                result = original(*args, **kwargs)
                tell(result, *args, **kwargs)
                return result

            return observed

        self.replace(owner, name, make)

    def within(self, activity: str, original: Callable) -> Callable:
        """What has a function note that the program is inside of it."""

        def observed(*args, **kwargs):
            with self.inside(activity):
                return original(*args, **kwargs)

        return observed

    def note_makers(self, kind: type) -> None:
        """Note from now on from which line each object of a class is made."""

        def new(cls, *args, **kwargs):
            made = object.__new__(cls)
            self.made_in_line[id(made)] = self.line()
            return made

        kind.__new__ = staticmethod(new)

    def replace(self, owner, name: str, make: Callable) -> None:
        """Replace a method by `make(original)`."""
        original = getattr(owner, name)
        self._replaced.append((owner, name, original))
        # What is relied on is compared at the end, see `report_replaced`.
        hook = self._relied_on[owner, name] = patches.untranslated(make(original))
        setattr(owner, name, hook)

    def restore(self) -> None:
        """Let all methods be what they were before they were replaced."""
        for owner, name, original in reversed(self._replaced):
            setattr(owner, name, original)

    def report_replaced(self) -> None:
        """Report what the program has replaced of that by which it is observed."""
        for (owner, name), function in self._relied_on.items():
            if getattr(owner, name, None) is not function:
                owner_name = getattr(owner, "__name__", type(owner).__name__)
                self.event("tampered", replaced=f"{owner_name}.{name}")

    def wait_for_the_end(self) -> NoReturn:
        """Report that the program has ended; never returns.

        The goodbyes of Horovod and MPI would take a second; the lab ends the scenario
        when all workers are here.
        """
        self.event("ended", cpu=os.times()[:2])
        while True:
            signal.pause()


def recorder_of(scenario: Scenario) -> type[Recorder] | None:
    """What watches the workers of a scenario."""
    return pkgutil.resolve_name(scenario.recorder) if scenario.recorder else None


def schema_of(scenario: Scenario) -> events.Schema:
    """The events that are written in a scenario."""
    recorder = recorder_of(scenario)
    return recorder.schema if recorder else {}
