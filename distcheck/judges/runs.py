"""What the workers of a check left behind (see distcheck.lab), for judges to look at.

A judge is a function that compares what the workers did in some runs. It returns where
a part of the program is right, and raises a Problem where it isn't, or where more is to
be said; Missing or Unreadable where the evidence does not suffice.
"""

import contextlib
import itertools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from signal import SIGKILL, strsignal

import numpy as np

from distcheck import events, evidence, lab
from distcheck.evidence import Unreadable
from distcheck.recorder.recorder import schema_of
from distcheck.scenarios import SCENARIOS
from distcheck.verdict import OF_ANY_PART, WRONG

EVIDENCE_LINES = 6


class Missing(Exception):
    """The evidence for a part is not there: the program did not come so far."""


class Problem(Exception):
    """What is wrong with a part, or to be said of it instead of what was expected.

    name: the end of the verdict's id. state: that of the name in OF_ANY_PART, or else
    WRONG, where nothing is said. The others are as in Verdict.
    """

    def __init__(
        self,
        name: str,
        seen: str,
        line: int | None = None,
        evidence: Iterable[str] = (),
        state: str | None = None,
    ):
        super().__init__(seen)
        self.name, self.seen, self.line = name, seen, line
        self.evidence = tuple(evidence)
        self.state = state or OF_ANY_PART.get(name, WRONG)


@dataclass
class Rank:
    """The report of one worker.

    schema: of the events in it.
    """

    folder: Path
    number: int
    script: str = ""
    schema: events.Schema = field(default_factory=lambda: events.HOROVOD)

    @cached_property
    def events(self) -> list[dict]:
        """All that it reported. Raises Unreadable."""
        return evidence.read_all(self._file("jsonl"), self.schema)

    def _file(self, name: str) -> Path:
        return self.folder / f"rank.{self.number}.{name}"

    def all(self, what: str) -> list[dict]:
        return [event for event in self.events if event["what"] == what]

    def collectives(self, op: str) -> list[dict]:
        """The beginnings of all collectives of this kind, such as "broadcast"."""
        return [event for event in self.all("collective_start") if event["op"] == op]

    @property
    def last(self) -> dict:
        """The last event, or one that says that there was none."""
        return self.events[-1] if self.events else {"what": "nothing"}

    def first(self, what: str) -> dict:
        """The first such event. Raises Missing."""
        events = self.all(what)
        if not events:
            raise Missing
        return events[0]

    def array(self, name: str) -> np.ndarray:
        """float32, one axis. Raises Missing, Unreadable, and a Problem where its
        numbers can't be compared."""
        try:
            array = evidence.array(self._file(f"{name}.npy"))
        except FileNotFoundError:
            raise Missing from None
        except evidence.TooLarge:
            raise Problem(
                "too-large",
                "The network is too large for a check, which compares up to "
                f"{evidence.MOST_ARRAY // 4:,} weights. Leave the network as it was.",
            ) from None
        if not np.isfinite(array).all():
            raise Problem(
                "not-finite",
                f"Rank {self.number} computed weights or gradients that are infinite "
                "or not a number, because its training has diverged.",
            )
        return array

    def first_array(self, names: Iterable[str]) -> np.ndarray:
        """The first of these arrays that there is. Raises as `array` does."""
        for name in names:
            with contextlib.suppress(Missing):
                return self.array(name)
        raise Missing

    def text(self, name: str) -> str:
        """What it printed ("out", "err"), or where it was ("stack"). Raises
        Unreadable."""
        return evidence.text(self._file(name))

    @property
    def state(self) -> str:
        """What it was doing in the end."""
        last = self.last
        if last["what"] == "collective_start":
            at = in_line(last["line"])
            return f"rank {self.number} waits for the others in {last['op']}{at}"
        if last["what"] == "ended":
            return f"rank {self.number} has ended"
        if last["what"] == "failed":
            return f"rank {self.number} has failed"
        place = rf'File "{re.escape(self.script)}", line (\d+) in '
        match = re.search(place, self.text("stack"))
        line = int(match[1]) if match else last.get("line")
        return f"rank {self.number} is busy{in_line(line)}"


@dataclass
class Run:
    """What was recorded of a program in one scenario.

    name: the scenario's. outcome: a word of the lab's. statuses: rank -> exit status of
    each that was started, None if the lab ended it; None where that can't be read.
    """

    folder: Path
    name: str
    outcome: str
    ranks: list[Rank] = field(default_factory=list)
    statuses: dict[str, int | None] | None = None

    @property
    def size(self) -> int:
        return len(self.ranks)

    @property
    def fit_line(self) -> int | None:
        """The line that trains. Raises Missing where none was reached."""
        return self.ranks[0].first("fit")["line"]

    def arrays(self, *names: str) -> np.ndarray:
        """(size, numbers): of each rank, the first of these that it has. Raises Missing
        if a rank has none, Unreadable."""
        arrays = [rank.first_array(names) for rank in self.ranks]
        if len({array.shape for array in arrays}) != 1 or not arrays[0].size:
            raise Unreadable(f"{names[0]}: the ranks differ in size")
        return np.stack(arrays)

    def failures(self) -> list[tuple[Rank, dict]]:
        pairs = [(rank, event) for rank in self.ranks for event in rank.all("failed")]
        # A rank that another one left alone complains, too, but later.
        return sorted(pairs, key=lambda pair: _left_alone(pair[1]))

    def raise_if_interrupted(self) -> None:
        """Raise the Problem of a run that was cut for no fault of the program's that is
        known: what it would have done, nobody has seen."""
        statuses = self.statuses or {}
        killed = [rank for rank, status in statuses.items() if status == -SIGKILL]
        if killed:
            raise Problem(
                "killed",
                f"Rank {killed[0]} was killed from outside of the program, as systems "
                "do that have no memory left. Close other programs, and check again.",
            )
        if self.outcome == lab.TIME_UP:
            raise Problem(
                "time-up",
                f"The program was ended after {lab.TIME_LIMIT:.0f} s, but was not seen "
                f"to hang: {'; '.join(rank.state for rank in self.ranks)}. This "
                "machine may be too slow for a check at present.",
            )
        by_itself = [status for status in statuses.values() if status is not None]
        known = self.statuses is not None
        if (
            self.outcome == lab.FAILED
            and known
            and not by_itself
            and not self.failures()
        ):
            output = evidence.text(self.folder / "mpirun.txt")
            raise Problem(
                "no-mpirun",
                "mpirun ended before any worker had, or did not start all of them. It "
                f"printed: {short(output)}",
            )

    def raise_if_in_trouble(self) -> None:
        """Raise the Problem of a program that did not end well by its own fault."""
        states = [rank.state for rank in self.ranks]
        waiting = [r for r in self.ranks if r.last["what"] == "collective_start"]
        if self.outcome == lab.DEADLOCK:
            raise Problem(
                "deadlock",
                f"The workers wait for each other forever: {'; '.join(states)}. All "
                "of them have to make the same calls, in the same order.",
                waiting[0].last["line"],
            )
        failures = self.failures()
        if failures and _left_alone(failures[0][1]):
            rank, failure = failures[0]
            others = [r.state for r in self.ranks if r is not rank]
            raise Problem(
                "deadlock",
                f"Rank {rank.number} still made a call that needs the others"
                f"{in_line(failure['line'])}, but {'; '.join(others)}. All of them "
                "have to make the same calls.",
                failure["line"],
            )
        if failures:
            rank, failure = failures[0]
            raise Problem(
                "crashed",
                f"Rank {rank.number} of {self.size} failed"
                f"{in_line(failure['line'])}: {short(failure['error'])}",
                failure["line"],
                _own_frames(rank.text("err"), rank.script),
            )
        if self.outcome == lab.FLOOD:
            raise Problem("flood", f"A worker printed more than {lab.OUTPUT:,} bytes.")
        if self.outcome == lab.HUNG:
            busy = [r for r in self.ranks if r not in waiting]
            line = busy[0].last.get("line") if busy else None
            raise Problem(
                "hung",
                f"The program did not come to its end: {'; '.join(states)}.",
                line,
            )
        if self.outcome == lab.FAILED:
            vanished = [
                f"rank {r.number}"
                for r in self.ranks
                if r.last["what"] not in ("ended", "failed")
            ]
            raise Problem(
                "crashed",
                f"{' and '.join(vanished) or 'A worker'} of {self.size} ended in the "
                f"middle of the program, without an error{self._signals()}.",
            )

    def _signals(self) -> str:
        """Words for the signals that ended workers; none without one."""
        statuses = [status or 0 for status in (self.statuses or {}).values()]
        numbers = sorted({-status for status in statuses if status < 0})
        if not numbers:
            return ""
        return f" (by {' and '.join(f'signal {n}, {strsignal(n)}' for n in numbers)})"


Judge = Callable[[dict[str, Run]], None]  # runs by scenario


def read(folder: Path) -> dict[str, Run]:
    """The runs of one job of the lab, by scenario. folder: resolved."""
    runs = {}
    for name, scenario in SCENARIOS.items():
        place = folder / name
        try:
            facts = evidence.outcome(place / "outcome.json")
        except FileNotFoundError:
            continue
        except Unreadable:
            facts = {"outcome": lab.FAILED, "script": "", "statuses": None}
        ranks = [
            Rank(place, number, facts["script"], schema_of(scenario))
            for number in range(scenario.size)
        ]
        runs[name] = Run(place, name, facts["outcome"], ranks, facts["statuses"])
    return runs


# ------------------------------------------------------------ small things


def in_line(line: int | None) -> str:
    """Words for a line of the program; none without one."""
    return f" in line {line}" if line else ""


# What TensorFlow calls the operation that failed.
_NODE_OF_HOROVOD = r"\{\{function_node __wrapped__Horovod(\w+?)_device_[^}]*\}\}"
_OTHER_NODE = r"\{\{\w*node [^}]*\}\}|\[Op:\w+\](\s*name:\s*$)?"


def short(text: str, limit: int = 300) -> str:
    """On one line, of at most so many characters, in words that a person knows."""
    text = re.sub(_NODE_OF_HOROVOD, r"Horovod's \1:", str(text))
    text = re.sub(_OTHER_NODE, "", text)
    text = " ".join(text.split())
    if len(text) <= limit:
        return text
    start = text[: limit - 3]
    whole_words = start.rpartition(" ")[0]
    # A word that would be most of it is cut itself.
    return f"{whole_words if 2 * len(whole_words) > len(start) else start}..."


def _own_frames(traceback: str, script: str) -> list[str]:
    """The lines of the program in the traceback of its error, innermost last."""
    lines = traceback.splitlines()
    frames = [
        f"{Path(script).name}, line {frame[1]}: {below.strip()}"
        for line, below in itertools.pairwise(lines)
        if (frame := re.match(rf'  File "{re.escape(script)}", line (\d+)', line))
    ]
    return frames[-EVIDENCE_LINES:]


def _left_alone(failure: dict) -> bool:
    """Did Horovod complain that another worker has gone?"""
    return "Horovod has been shut down" in str(failure["error"])
