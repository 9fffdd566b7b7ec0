"""What Horovod wrote down of a run: read, checked, and summed up.

With HOROVOD_TIMELINE (`run(..., timeline=True)`) rank 0 keeps a file in Chrome's trace
format: a "process" for each tensor, and in it what happened to that tensor:

    NEGOTIATE_ALLREDUCE    from the first worker that has it to the last, a tick each
    ALLREDUCE              the work itself, and in it, one after the other:
        MEMCPY_IN_FUSION_BUFFER, MPI_ALLREDUCE, MEMCPY_OUT_FUSION_BUFFER, ...

Ticks are there only while Horovod doesn't know a tensor yet. Afterwards its response
cache answers without asking rank by rank; HOROVOD_CACHE_CAPACITY=0 turns that off.

Read from files that Horovod 0.28 wrote on processors; with GPUs, several threads write,
and tensors that travelled together may be counted as several collectives.
"""

import json
import math
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas

from distcheck import errors, files

# At each moment the first of these that any tensor is in; else no gradient is there.
PHASES = ("transfer", "fusion", "processing", "negotiation")
IDLE = "nothing to do"
MEANING = {
    "transfer": "numbers travel between the workers",
    "fusion": "copied into and out of the fusion buffer",
    "processing": "agreed on, and waiting for its turn",
    "negotiation": "one worker has it, others don't yet",
    IDLE: "no gradient is ready: all compute, or wait for input",
}
TIE = 0.001  # seconds, Horovod's default cycle: who comes in the same one is not late
REGULAR = 3  # a step over so many median steps long held something else, too


@dataclass(frozen=True)
class Timeline:
    """spans: a row for each finished phase of each tensor: tensor, operation (such as
    ALLREDUCE), name (as Horovod has it), phase (of PHASES), start and end (seconds
    since Horovod started), collective (a number; -1 in negotiation) and bytes (of the
    tensor; 0 but in the rows of whole operations).

    arrivals: a row for each tick: tensor, negotiation (a number), rank, time.
    """

    spans: pandas.DataFrame
    arrivals: pandas.DataFrame

    @cached_property
    def collectives(self) -> pandas.DataFrame:
        """A row for each message that the workers exchanged together: operation,
        tensors (how many it held), bytes, start, end."""
        operations = self.spans[self.spans["name"] == self.spans["operation"]]
        return operations.groupby("collective").agg(
            operation=("operation", "first"),
            tensors=("tensor", "size"),
            bytes=("bytes", "sum"),
            start=("start", "min"),
            end=("end", "max"),
        )

    @cached_property
    def gradients(self) -> dict[str, int]:
        """The tensors that are all-reduced in every step: name -> bytes.

        Averaged metrics, which may come as often or more, are told from them by when
        they come: most tensors are gradients, each is there once in every step.
        """
        rows = self._reduced
        counts = rows["tensor"].value_counts()
        often = 0 if counts.empty else counts.mode().max()
        # Of a single step, a metric that is averaged several times comes most often.
        if often < 2:
            raise errors.UserError(
                "the timeline holds no two steps: let the program train for more."
            )
        # The last events of a run may be lost: then some came once less than others.
        similar = counts.index[(counts - often).abs() <= 1]
        rows = rows[rows["tensor"].isin(similar)]
        turn = rows.groupby("tensor").cumcount()
        usual = rows["start"].groupby(turn).median()
        after_last = rows["start"] > turn.map(usual.shift(1, fill_value=-np.inf))
        before_next = rows["start"] < turn.map(usual.shift(-1, fill_value=np.inf))
        in_turn = (after_last & before_next).groupby(rows["tensor"]).all()
        sizes = rows.groupby("tensor")["bytes"].max()
        return sizes[in_turn].sort_index().to_dict()

    @property
    def bytes_per_step(self) -> int:
        """Bytes of gradients that each worker contributes to a step."""
        return sum(self.gradients.values())

    @cached_property
    def steps(self) -> pandas.DataFrame:
        """A row for each step but the first: start and end, from when one step's last
        gradient was all-reduced to when the next one's was; collectives that carried
        gradients; regular (False: it held more than a step, such as validation); and
        the seconds of each phase.
        """
        rows = self._reduced[self._reduced["tensor"].isin(self.gradients)]
        rows = rows.assign(step=rows.groupby("tensor").cumcount())
        complete = rows["tensor"].value_counts().min()
        ends = rows[rows["step"] < complete].groupby("step")["end"].max().to_numpy()
        steps = pandas.DataFrame({"start": ends[:-1], "end": ends[1:]})
        lengths = steps["end"] - steps["start"]
        starts = np.sort(rows.groupby("collective")["start"].min())
        edges = np.searchsorted(starts, ends)
        steps["collectives"] = np.diff(edges)
        steps["regular"] = lengths <= REGULAR * lengths.median()
        strips = [self.strip(step.start, step.end) for step in steps.itertuples()]
        for phase in (*PHASES, IDLE):
            steps[phase] = [_seconds(strip, phase) for strip in strips]
        return steps

    def strip(self, start: float, end: float) -> pandas.DataFrame:
        """What Horovod did from start to end (seconds), moment by moment: rows of
        phase, start, end without a gap. Of several phases the first in PHASES."""
        rows = self.spans[(self.spans["end"] > start) & (self.spans["start"] < end)]
        edges = np.unique(
            np.clip([*rows["start"], *rows["end"], start, end], start, end)
        )
        phase = np.full(len(edges) - 1, IDLE, dtype=object)
        for name in reversed(PHASES):
            changes = np.zeros(len(edges), int)
            spans = rows[rows["phase"] == name]
            np.add.at(
                changes, np.searchsorted(edges, spans["start"].clip(start, end)), 1
            )
            np.add.at(
                changes, np.searchsorted(edges, spans["end"].clip(start, end)), -1
            )
            phase[np.cumsum(changes)[:-1] > 0] = name
        first = np.flatnonzero(np.append(True, phase[1:] != phase[:-1]))
        return pandas.DataFrame(
            {
                "phase": phase[first],
                "start": edges[first],
                "end": edges[np.append(first[1:], len(edges) - 1)],
            }
        )

    def summary(self) -> pandas.DataFrame:
        """Milliseconds and share of a regular step, on average, by phase."""
        regular = self.steps[self.steps["regular"]]
        seconds = regular[[*PHASES, IDLE]].mean()
        return pandas.DataFrame(
            {
                "ms per step": (1000 * seconds).round(2),
                "share": (seconds / seconds.sum()).map("{:.1%}".format),
            }
        )

    @property
    def communication(self) -> float:
        """The share of a regular step in which numbers were copied or travelled."""
        regular = self.steps[self.steps["regular"]]
        busy = regular[["transfer", "fusion", "processing"]].sum().sum()
        return float(busy / (regular["end"] - regular["start"]).sum())

    @property
    def collectives_per_step(self) -> float:
        """In how many messages the gradients of a regular step travelled: the mean."""
        return float(self.steps.loc[self.steps["regular"], "collectives"].mean())

    def last(self, tie: float = TIE) -> pandas.DataFrame:
        """Who came last to the gradients: a row for each rank that did, and one for
        `together` (all within `tie` seconds); columns times, and seconds of waiting.

        Only negotiations with ticks count. Raises UserError if there are none but
        the first step's, where workers come as they get done building their graphs.
        """
        arrivals = self.arrivals[self.arrivals["tensor"].isin(self.gradients)]
        rows = []
        first_step = self.steps["start"].iloc[0]
        for _, ticks in arrivals.groupby("negotiation"):
            begun, ended = ticks["time"].iloc[0], ticks["time"].iloc[-1]
            if begun > first_step:
                late = ended - begun > tie
                who = f"rank {ticks['rank'].iloc[-1]}" if late else "together"
                rows.append((who, ended - begun))
        if not rows:
            raise errors.UserError(
                "the timeline doesn't say who came last: Horovod's cache answered. "
                'Run it with environment={"HOROVOD_CACHE_CAPACITY": "0"}.'
            )
        frame = pandas.DataFrame(rows, columns=["last to come", "seconds"])
        return frame.groupby("last to come")["seconds"].agg(times="size", seconds="sum")

    @property
    def _reduced(self) -> pandas.DataFrame:
        return self.spans[self.spans["name"] == "ALLREDUCE"]


def read(path: Path | str) -> Timeline:
    """Read the timeline that Horovod wrote to `path`.

    Horovod closes the list after every event, so that the file of a run that was
    stopped is whole; a missing last bracket is forgiven all the same. Raises
    UserError for a file that is missing, empty, of something else, or cut off.
    """
    path, name = Path(path), files.shown(path)
    try:
        text = path.read_text(encoding="utf-8", errors="replace").strip()
    except FileNotFoundError:
        raise errors.UserError(
            f"there is no timeline {name}: start the run with timeline=True."
        ) from None
    if not text:
        raise errors.UserError(f"{name} is empty: its run had no collective.")
    try:
        closed = text if text.endswith("]") else text.rstrip(",") + "]"
        events = json.loads(closed)
        if "start_time_since_epoch_in_micros" not in events[0]["args"]:
            raise ValueError("it is another program's")
        return _timeline(events)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise errors.UserError(
            f"{name} is no whole timeline of Horovod's ({type(error).__name__}: "
            f"{error}): was it copied while its run went on? Record it anew."
        ) from None


def _timeline(events: list[dict]) -> Timeline:
    names: dict[int, str] = {}
    open_spans = defaultdict(list)  # tensor's number -> rows that have begun
    negotiations = collective = 0
    spans, arrivals = [], []
    previous = None  # the name of the event before, if that began an operation
    for event in events:
        kind, number = event["ph"], event.get("pid")
        if kind == "M" and event["name"] == "process_name":
            names[number] = event["args"].get("name", "")
            continue
        if kind not in "BEX":  # sort orders, and the marks of cycles
            continue
        tensor, time = names[number], event["ts"] / 1e6
        stack = open_spans[number]
        if kind == "X":
            arrivals.append(
                (tensor, stack[-1]["negotiation"], int(event["name"]), time)
            )
        elif kind == "E":
            span = stack.pop()
            span["end"] = time
            span["bytes"] = _bytes(event.get("args", {}))
            spans.append(span)
        else:
            name = event["name"]
            operation = name.removeprefix("NEGOTIATE_")
            span = {"tensor": tensor, "name": name, "start": time, "collective": -1}
            if stack:
                operation = stack[0]["operation"]
                span["collective"] = stack[0]["collective"]
            elif operation == name:
                # Tensors that travel together begin together, one after the other.
                collective += previous != name
                span["collective"] = collective
            else:
                negotiations += 1
                span["negotiation"] = negotiations
            span |= {"operation": operation, "phase": _phase(name, bool(stack))}
            stack.append(span)
        previous = event["name"] if kind == "B" and len(stack) == 1 else None
    columns = ["tensor", "operation", "name", "phase", "start", "end"]
    columns += ["collective", "bytes"]
    ticks = pandas.DataFrame(
        arrivals, columns=["tensor", "negotiation", "rank", "time"]
    )
    return Timeline(pandas.DataFrame(spans, columns=columns), ticks)


def _phase(name: str, within: bool) -> str:
    if name.startswith("NEGOTIATE_"):
        return "negotiation"
    if "FUSION_BUFFER" in name:
        return "fusion"
    waiting = name.startswith(("WAIT_", "QUEUE", "INIT_", "SCHEDULE"))
    return "transfer" if within and not waiting else "processing"


def _bytes(facts: dict) -> int:
    """Of {"dtype": "float32", "shape": "[3, 3, 16, 16]"}; 0 if nothing is said."""
    if "shape" not in facts:
        return 0
    size = 2 if facts["dtype"] == "bfloat16" else np.dtype(facts["dtype"]).itemsize
    return size * math.prod(json.loads(facts["shape"]))


def _seconds(strip: pandas.DataFrame, phase: str) -> float:
    rows = strip[strip["phase"] == phase]
    return float((rows["end"] - rows["start"]).sum())
