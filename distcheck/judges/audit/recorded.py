"""What a watched run has reported: its workers, their updates, samples and ends.

A worker is whoever computes gradients: a process of Horovod, or a replica of
tf.distribute, by its pair of process and replica.
"""

import itertools
import json
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from distcheck import files

UNKNOWN = "can't tell"
ENDED, FAILED, STALLED, TIME_UP = "ended", "failed", "stalled", "time is up"
MIN_COVERAGE = 0.99  # of the data
MOST_REPORT = 60_000_000  # bytes
DIGEST = 12  # characters of a sample's
Answer = tuple[str, str] | tuple[str, str, str | None]
NEEDS_ONE_WORKER = "Only a run on one worker would tell."


class Worker:
    """What one worker reported. events: of its process and replica."""

    def __init__(self, name: str, events: list[dict]):
        self.name, self.events = name, events

    def all(self, what: str) -> list[dict]:
        return [event for event in self.events if event["what"] == what]

    def updates(self, what: str, group: int) -> dict[int, list[dict]]:
        """The events "local" or "applied" of a group of variables, by update."""
        found: dict[int, list[dict]] = {}
        for event in self.all(what):
            if event["group"] == group:
                found.setdefault(event["update"], []).append(event)
        return found

    @cached_property
    def epochs(self) -> int:
        """Of `fit`, how many began; 0 if there were none."""
        return len(self.all("epoch"))

    def batches(self, mode: str) -> list[dict]:
        """The reports of the batches that go into the model, or into the main one."""
        model = self._main_model(mode)
        return [
            event
            for event in self.all("samples")
            if event["mode"] == mode and event["model"] == model
        ]

    def samples(self, mode: str) -> list[list[str] | None]:
        """The digests of the samples of each batch; None for one without."""
        return [
            split_digests(event["digests"]) if event["digests"] is not None else None
            for event in self.batches(mode)
        ]

    def draws(self, mode: str) -> int:
        """How many samples it took."""
        return sum(event["count"] for event in self.batches(mode))

    def _main_model(self, mode: str) -> int:
        """The one that is called most, of those that are not always given the same; and
        rather not one whose batches hold few different samples, as a decoder's do that
        is called for each word anew."""
        given: dict[int, list] = {}
        for event in self.all("samples"):
            if event["mode"] == mode:
                given.setdefault(event["model"], []).append(event["digests"])

        if len(given) == 1:
            return next(iter(given))

        def rank(model: int) -> tuple:
            batches = [split_digests(digests) for digests in given[model] if digests]
            same = len(set(given[model])) == 1
            return same, are_alike(batches), -len(given[model]), model

        return min(given, key=rank, default=0)

    @cached_property
    def passes(self) -> list[list[str]]:
        """The training samples of each epoch, in order: as `fit` has epochs, else as
        the data come again. Empty where that isn't known."""
        model = self._main_model("train")
        if self.epochs:
            parts: list[list[str]] = []
            for event in self.events:
                if event["what"] == "epoch":
                    parts.append([])
                elif (
                    event["what"] == "samples"
                    and event["mode"] == "train"
                    and event["model"] == model
                    and parts
                ):
                    parts[-1] += split_digests(event["digests"] or "")
            return parts
        drawn = [d for batch in self.samples("train") for d in batch or ()]
        length = len(set(drawn))
        if not length or len(drawn) < 2 * length:
            return [drawn] if drawn else []
        parts = [drawn[i : i + length] for i in range(0, len(drawn), length)]
        if set(parts[0]) != set(parts[1]):
            return []
        return parts

    @cached_property
    def validations(self) -> list[set[str]]:
        """The samples of each validation: between two trainings, or of one epoch."""
        model, parts = self._main_model("validate"), [set()]
        for event in self.events:
            if event["what"] == "samples" and event["mode"] == "validate":
                if event["model"] == model:
                    parts[-1].update(split_digests(event["digests"] or ""))
            elif parts[-1] and event["what"] in ("samples", "epoch metrics"):
                parts.append(set())
        return list(filter(None, parts))

    @cached_property
    def repeats(self) -> bool:
        """Do its training samples come in one order, over and over? An epoch may begin
        anywhere in it."""
        if self.passes[0] == self.passes[1]:
            return True
        drawn = [digest for part in self.passes for digest in part]
        least = math.ceil(0.75 * len(self.passes[0]))  # less may be alike by chance
        lengths = range(1, len(drawn) - least + 1)
        return any(
            drawn[length] == drawn[0] and drawn[length:] == drawn[:-length]
            for length in lengths
        )

    @cached_property
    def distinct(self) -> set[str]:
        """Its training samples."""
        return {d for batch in self.samples("train") for d in batch or ()}


@dataclass
class RecordedRun:
    """A run. processes: the events of each; stacks: where each was, if it was asked."""

    kind: str
    workers: int
    outcome: str
    output: str
    seconds: float
    processes: list[list[dict]]
    stacks: list[str]
    crashed: str = ""  # how it ended as several tasks, before it was run as one process

    @cached_property
    def each(self) -> list[Worker]:
        """The workers, by rank and replica."""
        found: dict[tuple[int, int], list[dict]] = {}
        common: dict[int, list[dict]] = {}
        for rank, events in enumerate(self.processes):
            for event in events:
                replica = event.get("replica")
                if replica is None:
                    common.setdefault(rank, []).append(event)
                elif replica >= 0:
                    found.setdefault((rank, replica), []).append(event)
        workers = []
        for rank, replica in sorted(found):
            events = [*found[rank, replica], *common.get(rank, [])]
            events.sort(key=lambda event: event["time"])
            alone = self.kind != "tf.distribute"
            name = f"rank {rank}" if alone else f"replica {replica}"
            workers.append(Worker(name, events))
        return [w for w in workers if w.all("local") or w.all("applied")]

    @cached_property
    def readers(self) -> list[Worker]:
        """Whose samples have an order: the workers; in a loop of one's own the replicas
        together, to which the batches of one data set are dealt out."""
        if self.kind != "tf.distribute" or any(w.epochs for w in self.each):
            return self.each
        batches = [
            [e for e in w.all("samples") if e["mode"] == "train"] for w in self.each
        ]
        rows = itertools.zip_longest(*batches)
        merged = [event for row in rows for event in row if event is not None]
        return [Worker("all replicas", merged)] if merged else []

    @property
    def word(self) -> str:
        """What its workers are called."""
        return "replica" if self.kind == "tf.distribute" else "worker"

    @property
    def trained(self) -> bool:
        return bool(self.each)

    def all(self, what: str) -> list[dict]:
        return [e for events in self.processes for e in events if e["what"] == what]

    def ends(self) -> list[dict]:
        """The last report of each process that came to its end."""
        return self.all("end")

    @property
    def failure(self) -> dict | None:
        """The first error; of those who were left alone, only if there is no other."""
        failures = sorted(self.all("failed"), key=lambda e: (left_alone(e), e["time"]))
        return failures[0] if failures else None

    @property
    def whole(self) -> bool:
        """Did all of it come to its end?"""
        return self.outcome == ENDED and len(self.ends()) == len(self.processes)

    @property
    def fit_line(self) -> str | None:
        """Where it trains."""
        for what in ("fit", "local", "applied"):
            for event in self.all(what):
                if event.get("where"):
                    return event["where"]
        return None

    @cached_property
    def strategies(self) -> list[dict]:
        """Those that it made; of several, those that it trains with."""
        made = self.all("strategy")
        used = {event.get("strategy") for event in self.all("local")}
        return [event for event in made if event["kind"] in used] or made

    @property
    def strategy(self) -> str:
        """The kind of the last one."""
        kind = self.strategies[-1]["kind"] if self.strategies else self.kind
        return kind.replace("CollectiveAllReduce", "MultiWorkerMirrored")


def read(
    folder: Path, kind: str, workers: int, outcome: str, output: str, seconds: float
) -> RecordedRun:
    """The reports in a folder."""
    processes, stacks = [], []
    for rank in range(1 if kind == "tf.distribute" else workers):
        path = folder / f"rank.{rank}.jsonl"
        try:
            lines = files.read_regular(path, MOST_REPORT).split(b"\n")[:-1]
        except (FileNotFoundError, files.TooLarge):
            lines = []
        processes.append([json.loads(line) for line in lines])
        stack = folder / f"rank.{rank}.stack"
        stacks.append(stack.read_text(errors="replace") if stack.exists() else "")
    return RecordedRun(kind, workers, outcome, output, seconds, processes, stacks)


def batch_size(run: RecordedRun | None) -> int | None:
    """Samples in the first training batch of a worker; None if none was seen."""
    for worker in run.each if run else ():
        for event in worker.all("samples"):
            if event["mode"] == "train":
                return event["count"]
    return None


def split_digests(digests: str) -> list[str]:
    """One for each sample."""
    return [digests[i : i + DIGEST] for i in range(0, len(digests), DIGEST)]


def are_alike(batches: list[list[str]]) -> bool:
    """Have batches fewer different samples than half of what they hold?"""
    return 2 * sum(len(set(b)) for b in batches) < sum(map(len, batches))


def left_alone(failure: dict) -> bool:
    """Did Horovod, or a cluster, complain that another worker has gone?"""
    gone = "Horovod has been shut down", "stopped sending heartbeats"
    return any(words in str(failure["error"]) for words in gone)
