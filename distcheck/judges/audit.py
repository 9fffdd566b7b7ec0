"""What the reports of a watched program say about how it is distributed.

Workers are compared with each other, and with the same program on one worker. Each
judgement is a function from two runs, `parallel` on all workers and `single` on one, to
an Answer. Where the reports don't decide, it "can't tell": a false alarm costs more
than a miss.

A worker is whoever computes gradients: a process of Horovod, or a replica of
tf.distribute, by its pair of process and replica.
"""

import enum
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from distcheck import files
from distcheck.verdict import RIGHT, WRONG

UNKNOWN = "can't tell"

ENDED, FAILED, STALLED, TIME_UP = "ended", "failed", "stalled", "time is up"

# Relative differences: what is less apart is equal, and what is more apart isn't.
RTOL_EQUAL, RTOL_DIFFERENT = 1e-6, 1e-4
RTOL_FP16 = 0.02  # of gradients that were summed in another order, or in float16
MIN_COVERAGE = 0.99  # of the data
LEAST_CLIPPED = 2  # updates, from which a length can be told
FIRST = 6  # updates whose losses are compared
MOST_REPORT = 60_000_000  # bytes
DIGEST = 12  # characters of a sample's


@dataclass(frozen=True)
class Finding:
    """The answer to one question. where: FILE:LINE of the program, if known."""

    id: str
    question: str
    verdict: str
    seen: str
    where: str | None = None

    def as_json(self) -> dict:
        return asdict(self)

    @property
    def sentence(self) -> str:
        return f"{self.seen} ({self.where})" if self.where else self.seen


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

    def samples(self, mode: str) -> list[list[str] | None]:
        """The digests of the samples of each batch; None for one without."""
        model = self._main_model(mode)
        return [
            _split(event["digests"]) if event["digests"] is not None else None
            for event in self.all("samples")
            if event["mode"] == mode and event["model"] == model
        ]

    def draws(self, mode: str) -> int:
        """How many samples it took."""
        model = self._main_model(mode)
        return sum(
            event["count"]
            for event in self.all("samples")
            if event["mode"] == mode and event["model"] == model
        )

    def _main_model(self, mode: str) -> int:
        """The one that is called most, of those that are not always given the same."""
        given: dict[int, list] = {}
        for event in self.all("samples"):
            if event["mode"] == mode:
                given.setdefault(event["model"], []).append(event["digests"])

        def rank(model: int) -> tuple:
            return len(set(given[model])) == 1, -len(given[model]), model

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
                    parts[-1] += _split(event["digests"] or "")
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
        failures = sorted(self.all("failed"), key=lambda e: (_alone(e), e["time"]))
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


# ---------------------------------------------------------------- the judgements


class Combined(enum.Enum):
    """Which combination of the workers' own gradients was applied."""

    MEAN = enum.auto()
    SUM = enum.auto()
    MEAN_OVER_N = enum.auto()  # divided by the number of workers once more
    SUM_TWICE = enum.auto()  # by the program, and by the strategy
    OWN = enum.auto()  # none


Answer = tuple[str, str] | tuple[str, str, str | None]


def together(parallel: RecordedRun, single: RecordedRun | None) -> Answer:
    """Are they one team?"""
    if parallel.kind != "Horovod":
        return _one_strategy(parallel)
    sizes = [end["size"] for end in parallel.ends()]
    if sizes and all(size is None for size in sizes):
        return WRONG, (
            f"Horovod is never started, so {parallel.workers} programs run "
            "independently."
        )
    if sizes and any(size != parallel.workers for size in sizes):
        return (
            WRONG,
            f"hvd.size() is {_listed(map(str, sizes))}, not {parallel.workers}.",
        )
    if not sizes:
        return UNKNOWN, "No worker finished."
    return RIGHT, f"Horovod trains with {parallel.workers} workers."


def _one_strategy(parallel: RecordedRun) -> Answer:
    """Do all replicas of a strategy of tf.distribute train?"""
    made = parallel.strategies
    replicas = max([event["replicas"] for event in made], default=1)
    where = made[-1].get("where") if made else None
    if parallel.kind == "TF_CONFIG" and replicas < parallel.workers:
        text = (
            f"The strategy has only {_count(replicas, 'replica')} for "
            f"{parallel.workers} workers."
        )
        changed = _tf_config(parallel)
        return (
            WRONG,
            f"{text} {changed[0]}" if changed else text,
            (changed[1] if changed else where),
        )
    if parallel.kind == "TF_CONFIG" and (late := _tf_config_too_late(parallel)):
        return (
            WRONG,
            "The program sets TF_CONFIG after it has made its strategy, which doesn't "
            f"read it any more. The {parallel.workers} workers of this run are a team "
            "by the launcher's TF_CONFIG alone.",
            late.get("where"),
        )
    if replicas < 2:
        there = _devices_of_its_kind(parallel)
        if there > 1:
            return (
                WRONG,
                f"{parallel.strategy} is given one of the {there} devices that the "
                "program has listed, so one replica trains alone.",
                where,
            )
        if not made or made[-1]["kind"] == "OneDeviceStrategy":
            return UNKNOWN, (
                f"{'OneDeviceStrategy' if made else 'No strategy'} is made, so one "
                "replica trains. A program that counts GPUs may do so because there "
                "are too few of them here."
            )
        return UNKNOWN, (
            f"{parallel.strategy} has one replica here. To see more, give it no list "
            "of devices, or a list of all of them."
        )
    train = [e.get("replicas", replicas) for e in parallel.all("local")]
    if train and max(train) < 2:
        return (
            WRONG,
            f"{parallel.strategy} has {replicas} replicas, but the model is trained "
            "outside of it, by one replica alone. Build and compile it within "
            "`strategy.scope()`.",
            parallel.fit_line,
        )
    return RIGHT, f"{parallel.strategy} trains with {replicas} replicas."


def _devices_of_its_kind(parallel: RecordedRun) -> int:
    """How many devices the program has listed, of the kind that MirroredStrategy was
    given; 0 for another strategy, or where it has listed none."""
    made = parallel.strategies
    if not made or made[-1]["kind"] != "MirroredStrategy":
        return 0
    kind = made[-1].get("devices", [""])[0].partition(":")[0]
    return max([e["count"].get(kind, 0) for e in parallel.all("devices")], default=0)


def _tf_config(parallel: RecordedRun) -> tuple[str, str | None] | None:
    """Words for what the program did to TF_CONFIG before it made its strategy, and
    where; None if it left it as it was."""
    for events in parallel.processes:
        made = [e["time"] for e in events if e["what"] == "strategy"]
        changes = [
            event
            for event in events
            if event["what"] == "TF_CONFIG" and event["time"] <= min([*made, math.inf])
        ]
        if changes and not changes[-1]["same"]:
            what = "clears" if changes[-1]["cleared"] else "overwrites"
            return (
                f"The program {what} TF_CONFIG, by which the launcher tells each "
                "worker who it is, and where all of them are.",
                changes[-1].get("where"),
            )
    return None


def _tf_config_too_late(parallel: RecordedRun) -> dict | None:
    """Where the program sets TF_CONFIG to something else, between its strategy and its
    first gradient."""
    for events in parallel.processes:
        made = [e["time"] for e in events if e["what"] == "strategy"]
        trained = [e["time"] for e in events if e["what"] == "local"]
        for event in events if made and trained else ():
            if (
                event["what"] == "TF_CONFIG"
                and not (event["same"] or event["cleared"])
                and max(made) < event["time"] < min(trained)
            ):
                return event
    return None


def start(parallel: RecordedRun, single: RecordedRun | None) -> Answer:
    """Did all begin with the same weights?"""
    if len(parallel.each) < 2:
        return UNKNOWN, f"The gradients of only one {parallel.word} were seen."
    latest = 0
    for group in _groups(parallel):
        by_update = _weights(parallel, group)
        if not by_update:
            return UNKNOWN, "No update of all workers was seen."
        equal = [u for u, spread in by_update.items() if spread <= RTOL_EQUAL]
        if not equal:
            first = min(by_update)
            spread = by_update[first]
            if spread < RTOL_DIFFERENT:
                return UNKNOWN, (
                    "The weights differ, but not by more than rounding can explain."
                )
            if first == max(by_update) and not parallel.whole:
                return UNKNOWN, f"The weights differ before update {first}. {_CUT}"
            text = (
                f"The workers train from different weights: they differ by "
                f"{_percent(spread)} before update {first}, and are never equal."
            )
            empty = parallel.all("empty broadcast")
            if empty:
                return (
                    WRONG,
                    f"{text} A broadcast comes before the model has variables, so it "
                    "sends nothing.",
                    empty[0].get("where") or parallel.fit_line,
                )
            return WRONG, text, parallel.fit_line
        latest = max(latest, min(equal))
    if latest <= 1:
        return RIGHT, "The weights are equal before the first update."
    return RIGHT, f"The weights are equal from before update {latest}."


def end(parallel: RecordedRun, single: RecordedRun | None) -> Answer:
    """Did all end with the same weights?"""
    if len(parallel.each) < 2:
        return UNKNOWN, f"The gradients of only one {parallel.word} were seen."
    ends = parallel.ends()
    if parallel.kind == "tf.distribute":
        if not ends:
            return UNKNOWN, "The program did not finish."
        apart = max(ends[0].get("copies") or [0.0])
        if apart > 0:
            return WRONG, f"Copies of a weight differ by up to {apart:.2g}."
        return RIGHT, "All copies of the weights are equal."
    if parallel.whole and all(e.get("weights") for e in ends):
        spread = max(
            _spread([e["weights"][group] for e in ends])
            for group in range(min(len(e["weights"]) for e in ends))
        )
        when = "in the end"
    else:
        last: dict[int, float] = {}
        for group in _groups(parallel):
            last |= _weights(parallel, group)
        if not last:
            return UNKNOWN, "Not all workers finished."
        if len(last) == 1:
            return UNKNOWN, _CUT
        spread, when = last[max(last)], f"before update {max(last)}, the last one seen"
    frozen = [e["frozen"] for e in ends if e.get("frozen")]
    if (
        len(frozen) == len(parallel.processes)
        and (rest := _spread(frozen)) > RTOL_DIFFERENT
    ):
        return (
            WRONG,
            f"In the end, the weights that are not trained differ by {_percent(rest)}.",
            parallel.fit_line,
        )
    if spread <= RTOL_EQUAL:
        return RIGHT, f"The weights are equal {when}."
    if spread < RTOL_DIFFERENT:
        return UNKNOWN, (
            f"The weights differ {when}, but not by more than rounding can explain."
        )
    return (
        WRONG,
        f"The weights differ by {_percent(spread)} {when}: there are "
        f"{parallel.workers} different models.",
        parallel.fit_line,
    )


def gradients(parallel: RecordedRun, single: RecordedRun | None) -> Answer:
    """Were the gradients averaged, once, over all?"""
    if len(parallel.each) < 2:
        return UNKNOWN, f"The gradients of only one {parallel.word} were seen."
    answers = [_gradients_of(parallel, single, group) for group in _groups(parallel)]
    for verdict in (WRONG, UNKNOWN):
        for answer in answers:
            if answer[0] == verdict:
                return answer
    return answers[0] if answers else (UNKNOWN, "No update of all workers was seen.")


def _gradients_of(
    parallel: RecordedRun, single: RecordedRun | None, group: int
) -> Answer:
    size = len(parallel.each)
    locals_ = [worker.updates("local", group) for worker in parallel.each]
    applied = [worker.updates("applied", group) for worker in parallel.each]
    if parallel.kind == "tf.distribute":  # one of its replicas may apply it for all
        applied = [found or next(filter(None, applied), {}) for found in applied]
    seen: dict[int, Combined] = {}  # by update
    reduced: list[float] = []
    where = None
    differing = alike = 0
    sums: list[bool] = []  # of equal gradients: are they summed?
    for update in sorted(set.intersection(*(set(found) for found in locals_))):
        if not all(update in found for found in applied):
            continue
        own = [
            np.sum([event["sketch"] for event in found[update]], axis=0)
            for found in locals_
        ]
        calls = len(locals_[0][update])
        used = [np.asarray(found[update][-1]["sketch"]) for found in applied]
        where = applied[0][update][-1]["where"] or where
        if not all(np.isfinite(a).all() for a in (*own, *used)):
            continue
        mean = np.mean(own, axis=0)
        if _spread(own) < 0.05:  # equal gradients are their own mean, but not their sum
            if mean.any():
                far = max(_distance(u, size * mean) for u in used)
                sums.append(far < RTOL_FP16)
            continue
        differing += 1
        reduced.append(applied[0][update][-1]["reduced"])
        factor = _combination(own, used, mean, calls, parallel.kind != "Horovod")
        if factor is not None:
            seen[update] = factor
        elif all(_distance(_unit(u), _unit(mean)) < RTOL_FP16 for u in used):
            alike += 1
    where = where or parallel.fit_line
    weights = _weights(parallel, group)
    if not differing and sums and all(sums):
        seen = {0: Combined.SUM}
    elif not differing:
        if not any(applied) and _spread_apart(parallel, group):
            return _by_weights(weights, where)
        if not sums:
            return UNKNOWN, f"No update was seen that every {parallel.word} applies."
        return UNKNOWN, "All gradients are equal, so averaging would not change them."
    if not seen and alike == differing:
        return _of_another_length(parallel, single, group, where)
    if not seen and (answer := _sum_of_clipped(parallel, single, group, where)):
        return answer
    if not seen:
        return _by_weights(weights, where)
    seen = _after_a_broadcast(seen, weights)
    kinds = set(seen.values())
    if Combined.OWN in kinds:
        return (
            WRONG,
            f"Each {parallel.word} applies its own gradients: they are not averaged"
            f"{'' if len(kinds) == 1 else ' in some updates'}.",
            where,
        )
    if len(kinds) > 1:
        return UNKNOWN, "The gradients are not combined in the same way in all updates."
    (kind,) = kinds
    # A loss that is averaged as well is a number more.
    times = int(np.median(reduced) + 0.1) if reduced else 0
    scaled = _scaled(single, group) if single else []
    # Clipping makes nothing longer, so it makes no sum of a mean.
    clipped = kind == Combined.SUM and not all(scaled)
    if kind != Combined.MEAN and any(scaled) and not clipped:
        if parallel.kind != "Horovod" and kind == Combined.SUM:
            return _of_another_length(parallel, single, group, where)
        return UNKNOWN, (
            "The gradients are scaled on one worker as well, so how they are combined "
            "can't be told from their size."
        )
    if kind == Combined.SUM:
        return _summed(parallel, single, group, where)
    if kind == Combined.MEAN_OVER_N:
        return (
            WRONG,
            f"The gradients are averaged, and divided by {size} once more.",
            where,
        )
    if kind == Combined.SUM_TWICE:
        return (
            WRONG,
            f"The gradients are summed over all {size} {parallel.word}s twice, by the "
            "program and by the strategy.",
            where,
        )
    if times > 1:
        return WRONG, f"The gradients are averaged {times} times at each update.", where
    weight = _weight_of_losses(parallel, single, group, alike=True)
    # What is divided before it is summed up shows in the losses alone.
    if (
        _is_near(weight, 1 / size)
        and _ratio_of_losses(parallel, single, group) < size**-0.5
    ):
        return (
            WRONG,
            f"The loss is divided by {size}, and the gradients are averaged as well, "
            f"so they are {size} times too small.",
            where,
        )
    return (
        RIGHT,
        f"The mean over all {size} {parallel.word}s is applied, as "
        f"{_count(len(seen), 'update')} show{'s' * (len(seen) == 1)}.",
    )


def _after_a_broadcast(
    seen: dict[int, Combined], weights: dict[int, float]
) -> dict[int, Combined]:
    """What counts of the updates: not those with the workers' own gradients of which
    nothing is left, because the weights were made equal after them, and stay equal."""
    last = max(
        (update for update, kind in seen.items() if kind == Combined.OWN), default=0
    )
    later = {update: kind for update, kind in seen.items() if update > last}
    spreads = [spread for update, spread in weights.items() if update > last]
    return later if later and max(spreads) <= RTOL_EQUAL else seen


def _scaled(single: RecordedRun, group: int) -> list[bool]:
    """Does a worker that is alone apply something else than its own gradients, at each
    update?"""
    found = []
    for worker in single.each:
        applied = worker.updates("applied", group)
        for update, events in worker.updates("local", group).items():
            if update in applied:
                own = [np.sum([event["sketch"] for event in events], axis=0)]
                used = [np.asarray(applied[update][-1]["sketch"])]
                how = _combination(own, used, own[0], len(events), False)
                found.append(how is None)
    return found


def _combination(own, used, mean, calls: int, strategy: bool) -> Combined | None:
    """Which combination of the local gradients was applied; None if that isn't clear.

    strategy: it is one of tf.distribute, whose optimizers sum by themselves.
    """
    size, all_passes = len(own), sorted({1, calls})
    # Of as many passes as workers, the mean looks like what is divided once more.
    factors = {Combined.MEAN: 1, Combined.SUM: size, Combined.MEAN_OVER_N: 1 / size}
    if strategy:
        factors[Combined.SUM_TWICE] = size**2
    for name, factor in factors.items():
        for passes in all_passes:
            target = mean * factor / passes
            if all(_distance(u, target) < RTOL_FP16 for u in used):
                return name
    for passes in all_passes:
        pairs = zip(own, used, strict=True)
        if all(_distance(u, o / passes) < RTOL_FP16 / 2 for o, u in pairs):
            return Combined.OWN
    return None


def _by_weights(weights: dict[int, float], where: str | None) -> Answer:
    """Whether gradients are combined, by what comes of it.

    weights: how far they are apart before each update.
    """
    later = [spread for update, spread in sorted(weights.items()) if update > 2]
    if not later:
        return UNKNOWN, "No optimizer's updates were seen."
    if max(later) <= RTOL_EQUAL:
        return UNKNOWN, (
            "The gradients differ, but the weights stay equal. So the gradients are "
            "combined, but the factor can't be told."
        )
    if min(weights.values()) > RTOL_EQUAL:
        return (
            UNKNOWN,
            "The weights are never equal, so they don't show what is applied.",
        )
    if min(later[-3:]) > RTOL_DIFFERENT:
        return (
            WRONG,
            "The gradients differ, and so do the weights after the updates.",
            where,
        )
    return UNKNOWN, "The weights are sometimes equal and sometimes not."


def _spread_apart(parallel: RecordedRun, group: int) -> bool:
    """Do the workers' own gradients differ at all?"""
    found = [worker.updates("local", group) for worker in parallel.each]
    common = set.intersection(*(set(f) for f in found))
    return any(_spread([f[u][0]["sketch"] for f in found]) > 0.05 for u in common)


def _of_another_length(
    parallel: RecordedRun, single: RecordedRun | None, group: int, where: str | None
) -> Answer:
    """Gradients that are clipped, or of a scaled loss. If a strategy sums them, it is
    their loss that tells whether the sum is a mean; but a program may have averaged
    them before it clipped them, and then applied them as they are."""
    text = (
        f"The applied gradients have the direction of the mean over all "
        f"{len(parallel.each)} {parallel.word}s, but another length, as they have when "
        "they are clipped or the loss is scaled."
    )
    if parallel.kind == "Horovod":
        return RIGHT, text
    summed = _summed(parallel, single, group, where)
    if summed[0] == RIGHT:
        return RIGHT, text
    if summed[0] == WRONG:
        return UNKNOWN, f"{text} Whether they were summed before can't be told."
    return UNKNOWN, f"{text} {summed[1]}"


def _sum_of_clipped(
    parallel: RecordedRun, single: RecordedRun | None, group: int, where: str | None
) -> Answer | None:
    """Are the gradients that a strategy applies too long to be clipped by a norm after
    they were combined?

    That would give them the same length on any number of workers. Where each of N clips
    its own first, the sum is as long as N at right angles, or longer. Ask this only of
    updates that leave the direction of the mean, or the sum may just be scaled.
    """
    if parallel.kind == "Horovod" or single is None:
        return None
    (ours, _), (its, factors) = (_clipped(r, group) for r in (parallel, single))
    if min(len(ours), len(its)) < LEAST_CLIPPED:
        return None
    # What a loss was scaled by is the same number in each update.
    varies = max(factors) > (1 + RTOL_FP16) * min(factors)
    # A sketch tells a length but for some percent.
    ratio = float(np.median(ours) / np.median(its))
    size = len(parallel.each)
    too_long = varies and ratio > 0.95 * size**0.5
    if not too_long or _summed(parallel, single, group, where)[0] != WRONG:
        return None
    return (
        WRONG,
        f"Each {parallel.word} clips its own gradients, and they are summed, not "
        f"averaged: no {parallel.word} divides its loss by {size}.",
        where,
    )


def _clipped(run: RecordedRun, group: int) -> tuple[list[float], list[float]]:
    """Of the updates whose gradients are shorter than all that were computed together,
    as clipped ones are: how long these are, absolute and relative."""
    locals_ = [worker.updates("local", group) for worker in run.each]
    applied = next(filter(None, (w.updates("applied", group) for w in run.each)), {})
    lengths, factors = [], []
    for update in sorted(set.intersection(set(applied), *map(set, locals_))):
        own = np.sum([e["sketch"] for f in locals_ for e in f[update]], axis=0)
        length, whole = (
            float(np.linalg.norm(sketch))
            for sketch in (applied[update][-1]["sketch"], own)
        )
        if 0 < length < (1 - RTOL_FP16) * whole:  # and no NaN
            lengths.append(length)
            factors.append(length / whole)
    return lengths, factors


def _summed(
    parallel: RecordedRun, single: RecordedRun | None, group: int, where: str | None
) -> Answer:
    size = len(parallel.each)
    weight = _weight_of_losses(parallel, single, group)
    if _is_near(weight, 1 / size):
        return RIGHT, (
            f"The sum over all {size} {parallel.word}s is applied, and each divides "
            f"its loss by {size}."
        )
    ratio = _ratio_of_losses(parallel, single, group)
    alike = _weight_of_losses(parallel, single, group, alike=True)
    if _is_near(alike, size**-2) and ratio < size**-1.5:
        return (
            WRONG,
            f"The loss is divided by {size} twice, as it is when both the program and "
            f"Keras divide it, so the gradients are {size} times too small.",
            where,
        )
    fits = parallel.all("fit") if parallel.kind != "Horovod" else []
    by_keras = bool(fits) and not any(event["own_step"] for event in fits)
    undivided = _is_near(weight, 1) and ratio > size**-0.5
    if by_keras and not (undivided and _is_mean(single, group)):
        return RIGHT, (
            f"The sum over all {size} {parallel.word}s is applied, and Keras divides "
            "the loss."
        )
    if undivided:
        why = (
            f"Keras 3 divides by {size} only a loss that has a number for each sample, "
            "and this one is their mean"
            if by_keras
            else f"no {parallel.word} divides its loss by {size}"
        )
        return (
            WRONG,
            f"The gradients are summed, not averaged: they are {size} times too large, "
            f"because {why}.",
            where,
        )
    return UNKNOWN, (
        f"The gradients are summed, which is right if each {parallel.word} divides its "
        f"loss by {size}."
    )


def _is_near(value: float | None, target: float) -> bool:
    return value is not None and abs(value / target - 1) < RTOL_FP16


def _is_mean(run: RecordedRun | None, group: int) -> bool:
    """Do a batch's losses count 1 together in the loss of a worker, as in a mean?"""
    totals = _totals(run, group)
    return totals is not None and bool((abs(totals[:, 0] - 1) < RTOL_FP16).all())


def _totals(run: RecordedRun | None, group: int) -> np.ndarray | None:
    """In a worker's first loss, how much all that was summed up counts together, how
    many numbers these are, and how much those that aren't 0 count; on average over the
    workers."""
    found = []
    for worker in run.each if run else ():
        events = _flat(worker.updates("local", group))
        totals = np.reshape(events[0]["totals"] if events else [], (-1, 3))
        totals = totals[np.isfinite(totals[:, 0])]  # others are masks, or have diverged
        several = totals[:, 1] > 1  # the sum of one number is that number
        found.append(totals[several] if several.any() else totals)
    shapes = {np.shape(totals) for totals in found}
    if len(shapes) != 1 or not np.size(found[0]):
        return None
    return np.mean(found, axis=0)


def _weight_of_losses(
    parallel: RecordedRun, single: RecordedRun | None, group: int, alike: bool = False
) -> float | None:
    """How much a batch's losses count in the loss of one of many workers, where they
    count 1 on a worker that is alone; None if that can't be told. It hangs on neither
    weights nor samples.

    alike: only where both have as many of them.
    """
    ours, its = _totals(parallel, group), _totals(single, group)
    if ours is None or its is None or ours.shape != its.shape:
        return None
    if alike and (ours[:, 1] != its[:, 1]).any():
        return None
    found = []
    for column in (0, 2):  # all of them, or those that aren't masked
        if its[:, column].all():
            weights = ours[:, column] / its[:, column]
            if np.ptp(weights) < RTOL_FP16 * abs(weights[0]):
                found.append(float(weights[0]))
    size = len(parallel.each)
    told = (w for w in found if any(_is_near(w, 1 / n) for n in (1, size, size**2)))
    return next(told, next(iter(found), None))


def _ratio_of_losses(
    parallel: RecordedRun, single: RecordedRun | None, group: int
) -> float:
    """A worker's losses over those of one that is alone; NaN if they say nothing."""
    means = [
        np.mean(
            [
                event["loss"]
                for worker in run.each
                for event in _flat(worker.updates("local", group))
                if event["update"] <= FIRST
            ]
            or [math.nan]
        )
        for run in (parallel, single)
        if run
    ]
    return float(means[0] / means[1]) if len(means) == 2 and means[1] else math.nan


def _batch(run: RecordedRun | None) -> int | None:
    for worker in run.each if run else ():
        for event in worker.all("samples"):
            if event["mode"] == "train":
                return event["count"]
    return None


# ---------------------------------------------------------------- data


def different(parallel: RecordedRun, single: RecordedRun | None) -> Answer:
    """Did workers see different data?"""
    workers = parallel.each
    batches = [worker.samples("train") for worker in workers]
    if len(workers) < 2 or not all(batches):
        return UNKNOWN, "The samples that go into the model were not seen."
    length = min(map(len, batches))
    pairs = [[set(b[i] or ()) for b in batches] for i in range(length)]
    pairs = [row for row in pairs if all(row)]
    if not pairs:
        return UNKNOWN, (
            "There were too many samples, or too large ones, to tell them apart."
        )
    same = sum(all(s == row[0] for s in row) for row in pairs)
    if same and _alike([batch for worker in batches for batch in worker if batch]):
        return UNKNOWN, (
            "Most samples of a batch are equal, so whether two workers have the same "
            "ones can't be told."
        )
    if same >= max(1, 0.9 * len(pairs)):
        return (
            WRONG,
            f"All {parallel.word}s train on the same samples in {same} of {len(pairs)} "
            "batches.",
            parallel.fit_line,
        )
    shared = [
        sum(bool(set.intersection(*row)) for row in pairs),
        len(pairs),
    ]
    first = workers[0].distinct
    common = first.intersection(*(w.distinct for w in workers[1:]))
    labels = _different_labels(parallel, single)
    # Augmented samples may come out the same by chance.
    if not common or (labels[0] != RIGHT and len(common) < 0.1 * len(first)):
        return labels
    if same:
        return (
            UNKNOWN,
            f"{same} of {len(pairs)} batches are the same on all {parallel.word}s.",
        )
    if not shared[0]:
        return (
            RIGHT,
            f"No sample is trained on by two {parallel.word}s in the same step.",
        )
    parts = [set(w.passes[0]) for w in workers if w.passes]
    if parallel.kind == "TF_CONFIG" and len(parts) == len(workers):
        twice = len(set.intersection(*parts))
        return UNKNOWN, (
            f"The batches differ, but all {parallel.word}s train on the same {twice} "
            "samples in the first epoch. Does each shuffle in its own order before it "
            "takes its part?"
        )
    return RIGHT, (
        f"The batches differ, but in {shared[0]} of {shared[1]} steps all "
        f"{parallel.word}s have a sample in common."
    )


def _alike(batches: list[list[str]]) -> bool:
    """Have batches fewer different samples than half of what they hold?"""
    return 2 * sum(len(set(b)) for b in batches) < sum(map(len, batches))


def _different_labels(parallel: RecordedRun, single: RecordedRun | None) -> Answer:
    """Are samples of which no worker has another's the same but for augmentation?"""
    labels = [
        [_split(event["digests"]) for event in worker.all("labels")]
        for worker in parallel.each
    ]
    pairs = list(zip(*labels, strict=False))
    same = sum(all(batch == row[0] for batch in row) for row in pairs)
    equal = pairs and same >= 0.9 * len(pairs) and not _are_regular(labels[0])
    if equal and not _come_again(parallel):
        text = (
            f"All {parallel.word}s train on the same labels in {same} of {len(pairs)} "
            "batches"
        )
        if _are_made_anew(parallel, single):
            return (
                WRONG,
                f"{text}, so their samples are the same, but for what is random in "
                "them.",
                parallel.fit_line,
            )
        return UNKNOWN, (
            f"{text}. Whether their samples are the same, but for what is random in "
            "them, can't be told."
        )
    if _never_twice(parallel) and (not pairs or same > 0.1 * len(pairs)):
        return UNKNOWN, (
            f"No sample comes twice on one {parallel.word}, so whether two have the "
            "same ones can't be told."
        )
    return RIGHT, f"No sample is trained on by two {parallel.word}s."


def _come_again(run: RecordedRun) -> bool:
    """Do samples come again unchanged on their own worker? Nothing in these is random,
    so they aren't the samples of another worker, whatever their labels are."""
    for worker in run.each:
        drawn = sum(len(batch or ()) for batch in worker.samples("train"))
        if len(worker.distinct) <= 0.75 * drawn:
            return True
    return False


def _are_made_anew(parallel: RecordedRun, single: RecordedRun | None) -> bool:
    """Are most samples other ones each time, as far as is known? A single pass doesn't
    show it; but one worker would have some of the same, if nothing in them is random.
    """
    if single is None:
        return _never_twice(parallel)
    alone = set().union(*(worker.distinct for worker in single.each))
    return bool(alone) and all(
        len(worker.distinct & alone) < 0.25 * len(worker.distinct)
        for worker in parallel.each
    )


def _are_regular(batches: list[list[str]]) -> bool:
    """Are labels so few or so regular that those of other samples may be the same?"""
    cycles = (n for n in range(1, len(batches)) if batches[n:] == batches[:-n])
    # The whole data, over and over, say as much as once.
    batches = batches[: next(cycles, None)]
    flat = [label for batch in batches for label in batch]
    if len(flat) < 32:
        return True
    if len({tuple(batch) for batch in batches}) < 0.9 * len(batches):
        return True
    # Labels that are sorted follow labels of their own class more often than by chance.
    by_chance = sum(n**2 for n in Counter(flat).values()) / len(flat) ** 2
    alike = np.mean([a == b for a, b in itertools.pairwise(flat)])
    if alike > (1 + by_chance) / 2:
        return True
    return any(flat[n:] == flat[:-n] for n in range(1, len(flat) // 2 + 1))


def everything(parallel: RecordedRun, single: RecordedRun | None) -> Answer:
    """Is all of the data seen?"""
    if single is None:
        return UNKNOWN, _ALONE
    if not (parallel.whole and single.whole):
        return UNKNOWN, "The program did not finish."
    union = set().union(*(w.distinct for w in parallel.each))
    alone = set().union(*(w.distinct for w in single.each))
    if not union or not alone:
        return UNKNOWN, "The samples that go into the model were not seen."
    if _too_many(parallel) or _too_many(single):
        return UNKNOWN, "There are too many samples to tell them apart."
    if _never_twice(single):
        return UNKNOWN, (
            "No sample comes twice, because samples are augmented or drawn anew."
        )
    part = len(union & alone) / len(alone)
    # One worker leaves out what fills no batch, if it has other samples at all.
    slack = parallel.workers * (_batch(parallel) or 0)
    if len(union - alone) > min(slack, len(union & alone)):
        return UNKNOWN, (
            f"The workers train on {len(union & alone)} of the {len(alone)} samples "
            f"that one worker trains on, and on {len(union - alone)} others: each has "
            "data of its own, some are made anew, or an epoch is less than one pass."
        )
    if part >= MIN_COVERAGE:
        return RIGHT, (
            f"The workers train on all {len(alone)} samples that one worker trains on."
        )
    text = (
        f"The workers train on {len(union & alone)} of the {len(alone)} samples that "
        "one worker trains on"
    )
    drawn = sum(w.draws("train") for w in parallel.each)
    if len(alone) - len(union & alone) < slack and part > 0.8:
        return RIGHT, f"{text}: fewer are left out than fit in a batch of each."
    sets = [w.distinct for w in parallel.each]
    if all(s == sets[0] for s in sets) and drawn >= len(alone) * 0.9:
        return WRONG, f"{text}, and no worker sees the others.", parallel.fit_line
    passes = [w.passes for w in parallel.each]
    counts = {len(p) for p in passes}
    if len(counts) == 1 and min(counts) > 1:
        by_epoch = [set().union(*(p[k] for p in passes)) for k in range(counts.pop())]
        # Samples that are drawn anew would bring many of those left out before.
        found = len(set().union(*by_epoch) - by_epoch[0])
        later = drawn * (1 - 1 / len(by_epoch))
        expected = later * len(alone - union) / len(alone)
        same = all(seen == by_epoch[0] for seen in by_epoch)
        if same or (found <= slack and expected > 4 * slack):
            text = (
                f"{text}, the same ones in every epoch, and no worker sees the others"
            )
            if set.intersection(*sets):
                text += (
                    ": each shuffles in an order of its own before it takes its part"
                )
            return WRONG, f"{text}.", parallel.fit_line
    return UNKNOWN, f"{text}. More epochs may show the rest."


def _too_many(run: RecordedRun) -> bool:
    """Were there samples that were only counted?"""
    return any(None in worker.samples("train") for worker in run.each)


def _never_twice(run: RecordedRun) -> bool:
    """Did no sample come again in another epoch?"""
    for worker in run.each:
        if len(worker.passes) > 1:
            first, second = map(set, worker.passes[:2])
            return bool(first) and bool(second) and not first & second
    return False


def order(parallel: RecordedRun, single: RecordedRun | None) -> Answer:
    """Is the order of the samples another in each epoch?"""
    for worker in parallel.readers:
        if len(worker.passes) < 2 or len(worker.passes[0]) < 2:
            return UNKNOWN, "No two epochs were seen."
    if any(_never_twice(run) for run in (parallel, single) if run):
        return UNKNOWN, (
            "No sample comes again in the next epoch: the samples are augmented or "
            "drawn anew, or an epoch is less than one pass."
        )
    if any(_too_many(run) for run in (parallel, single) if run):
        return UNKNOWN, "There are too many samples to tell them apart."
    fixed = [w.name for w in parallel.readers if w.repeats]
    if not fixed:
        return RIGHT, "The order is different in each epoch."
    text = f"The order is the same in each epoch on {_listed(fixed)}"
    if single is None:
        return UNKNOWN, f"{text}. {_ALONE}"
    alone = single.readers[0] if single.readers else None
    if alone is None or len(alone.passes) < 2 or alone.repeats:
        return UNKNOWN, f"{text}, as it is on one worker: the program does not shuffle."
    return WRONG, f"{text}, but it changes on one worker.", parallel.fit_line


def one_pass(parallel: RecordedRun, single: RecordedRun | None) -> Answer:
    """Is one epoch one pass over the data?"""
    if single is None:
        return UNKNOWN, _ALONE
    if not (parallel.whole and single.whole):
        return UNKNOWN, "The program did not finish."
    drawn = sum(w.draws("train") for w in parallel.each)
    alone = sum(w.draws("train") for w in single.each)
    if not drawn or not alone:
        return UNKNOWN, "The samples that go into the model were not seen."
    size = len(parallel.each)
    ours = max([w.epochs for w in parallel.each], default=0) or 1
    its = max([w.epochs for w in single.each], default=0) or 1
    slack = size * (_batch(parallel) or 0)
    whole = abs(drawn - alone) <= 0.1 * alone + slack * its
    epoch = abs(drawn / ours - alone / its) <= 0.1 * alone / its + slack
    if whole or epoch:
        return RIGHT, (
            f"All {parallel.word}s together train on {drawn} "
            f"samples{_epochs(parallel)}, and one worker trains on "
            f"{alone}{_epochs(single)}."
        )
    ratio = (drawn / ours) / (alone / its)
    text = (
        f"An epoch of {size} {parallel.word}s has {drawn / ours:.0f} samples, and an "
        f"epoch of one worker has {alone / its:.0f}"
    )
    if ours != its:
        return UNKNOWN, f"{text}, but there are {ours} epochs, not {its}."
    if (
        not _is_a_pass(alone / its, parallel, single)
        and different(parallel, single)[0] != WRONG
    ):
        return UNKNOWN, (
            f"{text}, but an epoch of one worker is no pass over all of the samples "
            "that were seen."
        )
    if ratio > 0.75 * size and _grown(parallel, single):
        return WRONG, f"{text}: {_grown(parallel, single)}", parallel.fit_line
    if ratio > 0.75 * size:
        return (
            WRONG,
            f"{text}: each {parallel.word} does as much as one that is alone.",
            parallel.fit_line,
        )
    if ratio < 1.25 / size:
        return (
            WRONG,
            f"{text}: the work is divided by {size} more than once.",
            parallel.fit_line,
        )
    return UNKNOWN, f"{text}."


def _grown(parallel: RecordedRun, single: RecordedRun) -> str:
    """Words for batches that are larger on each worker than on one that is alone."""
    ours, its = _batch(parallel) or 0, _batch(single) or 0
    if parallel.kind != "Horovod" or ours < 1.5 * its:
        return ""
    text = f"there are {ours} samples in each worker's batch, and {its} in one worker's"
    if any(event.get("by_steps") for event in parallel.all("fit")):
        text += ", because without a batch_size `fit` divides them by steps_per_epoch"
    return f"{text}."


def _is_a_pass(drawn: float, parallel: RecordedRun, single: RecordedRun) -> bool:
    """Does one worker go once over all samples that were seen in both runs, in so many
    draws; or, in a loop of its own, whose epochs are not seen, several times?"""
    if _too_many(parallel) or _too_many(single):
        return False
    batch = _batch(single) or 0
    samples = len(
        set().union(*(w.distinct for run in (parallel, single) for w in run.each))
    )
    if samples <= batch:  # one batch, over and over
        return False
    # Where each has data of its own, one worker goes over its own part again and again.
    alone = len(set().union(*(w.distinct for w in single.each)))
    if samples - alone > max(batch, samples / 10):
        return False
    passes = 1 if single.each[0].epochs else max(1, math.ceil(drawn / samples))
    if passes > 1:  # what fills no batch may be missing from each
        left = passes * samples - drawn
        return left == 0 or left < passes * batch <= samples / 4
    return abs(drawn - samples) <= max(batch, samples / 10)


def validation(parallel: RecordedRun, single: RecordedRun | None) -> Answer:
    """Who validates what?"""
    sets = [
        {d for batch in worker.samples("validate") for d in batch or ()}
        for worker in parallel.each
    ]
    who = [w.name for w, s in zip(parallel.each, sets, strict=True) if s]
    if not who:
        return UNKNOWN, "No Keras model was seen to validate."
    union = set().union(*sets)
    alone = set()
    for worker in single.each if single else ():
        alone |= {d for batch in worker.samples("validate") for d in batch or ()}
    if len(who) < len(parallel.each):
        how = f"only {_listed(who)} validate{'s' * (len(who) == 1)}"
    elif all(s == sets[0] for s in sets):
        how = f"all {parallel.word}s validate on the same samples"
    elif not set.intersection(*sets):
        how = f"each {parallel.word} validates on its own samples"
    else:
        how = f"each {parallel.word} validates on samples that others have, too"
    text = f"{how}, {len(union)} in all"
    text = text[0].upper() + text[1:]
    if not alone:
        return (
            UNKNOWN,
            f"{text}. {_ALONE if single is None else 'A single worker has none.'}",
        )
    part = len(union & alone) / len(alone)
    if part >= MIN_COVERAGE:
        return RIGHT, f"{text}, which are all that one worker has."
    if union <= alone:
        text = f"{text}, of {len(alone)} that one worker has"
    else:
        found = len(union & alone)
        text += f", among them {found} of the {len(alone)} that one worker has"
    batches = [e["count"] for e in parallel.all("samples") if e["mode"] == "validate"]
    if part > 0.8 and len(alone - union) < len(who) * max(batches, default=0):
        return RIGHT, f"{text}: fewer are left out than fit in a batch of each."
    # Dealt out to all, and only one looks at its part. The process of several replicas
    # has all of it, and may look at an example.
    shared = len(who) == 1 and part <= 1.25 / len(parallel.each)
    shared = shared and parallel.kind != "tf.distribute"
    same = len(who) == len(parallel.each) and all(s == sets[0] for s in sets)
    if not parallel.whole:
        return UNKNOWN, f"{text}. The program did not finish."
    # Other samples than one worker has are no part of what it has.
    if len(parallel.each) > 1 and union <= alone and (shared or same):
        return (
            WRONG,
            f"{text}, and no {parallel.word} looks at the others.",
            _validation_line(parallel),
        )
    return UNKNOWN, f"{text}."


def _validation_line(parallel: RecordedRun) -> str | None:
    lines = [e.get("where") for e in parallel.all("samples") if e["mode"] == "validate"]
    return next((line for line in lines if line), parallel.fit_line)


# ---------------------------------------------------------------- decisions


def metrics(parallel: RecordedRun, single: RecordedRun | None) -> Answer:
    """Are the metrics that callbacks read equal on all workers?"""
    if parallel.kind == "tf.distribute":
        return RIGHT, "One process reads the metrics, so they are the same for all."
    table: dict[tuple, list[dict]] = {}
    for events in parallel.processes:
        count: Counter = Counter()
        for event in events:
            if event["what"] == "metrics":
                key = event["epoch"], event["callback"]
                count[key] += 1
                table.setdefault((*key, count[key]), []).append(event)
    if not table:
        return UNKNOWN, "No callback read a metric at the end of an epoch."
    alone = _decided_alone(parallel)
    if alone and alone[0] == WRONG:
        return alone
    apart: list[str] = []
    for (epoch, name, _), readers in table.items():
        if len(readers) < 2 or any(r["asks"] for r in readers):
            continue  # nobody to differ from, or it asks the others itself
        for metric in readers[0]["read"]:
            values = [r["read"].get(metric) for r in readers]
            if None in values or not _differ(values):
                continue
            if readers[0]["decides"] and not readers[0].get("chooses"):
                shown = " and ".join(f"{value:.4g}" for value in values[:4])
                return (
                    WRONG,
                    f"{name} decides by {metric}, which is not the same on all ranks: "
                    f"{shown} in epoch {epoch + 1}.",
                    readers[0]["made"] or parallel.fit_line,
                )
            if not readers[0].get("only_tells", name == "History"):
                apart.append(f"{name} ({metric})")
    chosen = _chosen_by_a_part(parallel)
    if chosen and chosen[0] == WRONG:
        return chosen
    if undecided := alone or chosen:
        return undecided
    if apart:
        names = _listed(sorted(set(apart))[:3])
        return UNKNOWN, (
            f"The metrics differ for {names}, but whether a decision depends on them "
            "can't be told."
        )
    deciding = sorted(
        {
            key[1]
            for key, readers in table.items()
            if readers[0]["decides"] and not readers[0].get("chooses")
        }
    )
    if deciding:
        reads = f"read{'s' * (len(deciding) == 1)}"
        return RIGHT, f"{_listed(deciding)} {reads} the same metrics on all ranks."
    if parallel.outcome != ENDED:
        return UNKNOWN, "The program did not finish, and no callback has decided yet."
    return RIGHT, "No callback decides by a metric."


def _decided_alone(parallel: RecordedRun) -> Answer | None:
    """Does a callback decide by a metric on some ranks that others don't read?"""
    by_rank = [
        {
            (e["epoch"], e["callback"]): e
            for e in events
            if e["what"] == "metrics" and e["decides"] and not e.get("chooses")
        }
        for events in parallel.processes
    ]
    ends = [e for events in parallel.processes for e in events if "own_asks" in e]
    learn = any(e["own_asks"] for e in ends)  # of it in the same moment, perhaps
    epochs = [
        Counter(e["epoch"] for e in events if e["what"] == "epoch metrics")
        for events in parallel.processes
    ]
    undecided = None
    for key in sorted(set().union(*by_rank)):
        ranks = [n for n, readers in enumerate(by_rank) if key in readers]
        if len(ranks) == len(by_rank) or len({row[key[0]] for row in epochs}) > 1:
            continue  # all of them, or an epoch that not all of them have
        reader = by_rank[ranks[0]][key]
        name = reader["callback"]
        who = f"rank{'s' * (len(ranks) > 1)} {_listed(map(str, ranks))} alone"
        if name == "EarlyStopping" and not learn:
            return (
                WRONG,
                f"{name} decides on {who}: when it stops, the others wait for ever.",
                reader["made"] or parallel.fit_line,
            )
        undecided = (
            UNKNOWN,
            f"{name} decides on {who}. Whether the others learn of it can't be told.",
        )
    return undecided


def _chosen_by_a_part(parallel: RecordedRun) -> Answer | None:
    """Is it one worker's own part of the data by which weights are kept as the best?"""
    looked_at = [
        set().union(*filter(None, w.samples("validate"))) for w in parallel.each
    ]
    union = set().union(*looked_at)
    if len(looked_at) != len(parallel.processes):
        return None
    undecided = None
    for rank, events in enumerate(parallel.processes):
        others = [e for n, e in enumerate(parallel.processes) if n != rank]
        chooses = [e for e in events if e["what"] == "metrics" and e.get("chooses")]
        for reader, metric in ((e, name) for e in chooses for name in e["read"]):
            value = reader["read"][metric]
            theirs = [_metric_of(o, reader["epoch"], metric) for o in others]
            if None in theirs or not _differ([value, *theirs]):
                continue
            shown = " and ".join(f"{number:.4g}" for number in theirs[:3])
            text = (
                f"{reader['callback']} on rank {rank} keeps the best weights by "
                f"{metric} = {value:.4g}, where the others have {shown}"
            )
            if metric.startswith("val_") and len(looked_at[rank]) < MIN_COVERAGE * len(
                union
            ):
                return (
                    WRONG,
                    f"{text}: it is of its own part of the validation data.",
                    reader["made"] or parallel.fit_line,
                )
            undecided = UNKNOWN, f"{text}. Is it averaged before?"
    return undecided


def _metric_of(events: list[dict], epoch: int, metric: str) -> float | None:
    """What a process has for a metric when its callbacks have done."""
    for event in events:
        if event["what"] == "epoch metrics" and event["epoch"] == epoch:
            return event["metrics"].get(metric)
    return None


def rate(parallel: RecordedRun, single: RecordedRun | None) -> Answer:
    """Does the learning rate account for the number of workers?"""
    # The replicas of a process share an optimizer, and read its schedule before or
    # after another one has made it count.
    processes = {w.name: w for w in parallel.each}.values()
    if parallel.kind == "tf.distribute":
        processes = parallel.each[:1]
    rates = [
        {
            (e["group"], e["update"]): e["rate"]
            for e in worker.all("applied")
            if math.isfinite(e["rate"])
        }
        for worker in processes
    ]
    if not rates or not all(rates):
        return UNKNOWN, "No optimizer's learning rate was seen."
    ends = [e["rate"] for e in parallel.ends() if e.get("rate")]
    ends = [[r for r in row if r is not None] for row in ends]
    last = [row[-1] for row in ends if row]
    common = sorted(set.intersection(*map(set, rates)))
    for values in [*([row[key] for row in rates] for key in common), last]:
        if len(values) > 1 and _differ(values):
            shown = " and ".join(f"{value:.4g}" for value in values[:4])
            return (
                WRONG,
                f"The learning rate is not the same on all {parallel.word}s: {shown}.",
                parallel.fit_line,
            )
    ours = max([*rates[0].values(), *last[:1]])
    if single is None:
        return UNKNOWN, f"The learning rate is {ours:.4g} at most. {_ALONE}"
    alone = [e["rate"] for w in single.each for e in w.all("applied")]
    alone = [r for r in alone if math.isfinite(r)]
    if not alone:
        return UNKNOWN, f"The learning rate is {ours:.4g} at most."
    ratio = ours / max(alone) if max(alone) else 1.0
    text = (
        f"The learning rate is {ours:.4g} at most, and {max(alone):.4g} on one worker"
    )
    if ratio > 1.05:
        return RIGHT, f"{text}: {ratio:.3g} times as much."
    if parallel.whole and _begins_scaled(parallel, single):
        return (
            WRONG,
            f"{text}, although the optimizer is made with a larger one. Something sets "
            "it back, such as a warm-up whose initial_lr is not multiplied.",
            parallel.fit_line,
        )
    ours_at_once, its = (_batch(parallel) or 0) * len(parallel.each), _batch(single)
    if ratio > 0.95 and parallel.kind == "Horovod" and its and ours_at_once == its:
        return RIGHT, (
            f"{text}: the batches of all workers together are as large as one "
            f"worker's, {_count(its, 'sample')}."
        )
    return UNKNOWN, (
        f"{text}. Whether the larger global batch needs a larger rate, only the "
        "accuracy tells."
    )


def _begins_scaled(parallel: RecordedRun, single: RecordedRun) -> bool:
    """Is the rate larger than on one worker when `fit` is called?"""
    ours, its = (
        [event["rate"] for event in run.all("fit")[:1] if event.get("rate")]
        for run in (parallel, single)
    )
    return bool(ours and its) and ours[0] > 1.05 * its[0]


def written(parallel: RecordedRun, single: RecordedRun | None) -> Answer:
    """Who writes which files?"""
    if parallel.kind == "tf.distribute":
        return RIGHT, "Only one process writes files."
    writers: dict[str, dict[int, dict]] = {}
    for rank, events in enumerate(parallel.processes):
        for event in events:
            if event["what"] == "file":
                writers.setdefault(event["path"], {})[rank] = event
    if not writers:
        return RIGHT, "No file was seen to be written."
    for path, ranks in sorted(writers.items()):
        event = next(iter(ranks.values()))
        what = {
            "written": f"the file {Path(path).name}.",
            "board": f"TensorBoard's logs into the folder {_folder(path)}, which it "
            "takes for one run.",
        }.get(event["how"])
        if len(ranks) > 1 and what:
            who = _listed(map(str, sorted(ranks)))
            return WRONG, f"Ranks {who} all write {what}", event["by"]
    for path, ranks in sorted(writers.items()):
        if len(ranks) > 1:
            return UNKNOWN, (
                f"Several ranks append to {Path(path).name}, so their lines may mix."
            )
    who = sorted({rank for ranks in writers.values() for rank in ranks})
    return RIGHT, (
        f"{len(writers)} file{'s were' if len(writers) > 1 else ' was'} written by "
        f"rank{'s' * (len(who) > 1)} {_listed(map(str, who))}, and none by two ranks."
    )


def _folder(path: str) -> str:
    """The last two names of it."""
    return "/".join(Path(path).parts[-2:])


def devices(parallel: RecordedRun, single: RecordedRun | None) -> Answer:
    """Which device did each use?"""
    ends = parallel.ends()
    if not ends:
        return UNKNOWN, "No worker finished."
    if not max(e.get("all_gpus", 0) for e in ends):
        return UNKNOWN, (
            "There are not enough GPUs here, so all workers compute on the processor."
        )
    if parallel.kind == "tf.distribute":
        return RIGHT, f"One process uses {len(ends[0]['gpus'])} GPUs."
    used = [(e["cuda"], tuple(e["gpus"])) for e in ends]
    taken = [{(cuda, gpu) for gpu in gpus} for cuda, gpus in used]
    for i, first in enumerate(taken):
        for j, second in enumerate(taken[:i]):
            if first & second:
                names = _listed(sorted(name for _, name in first & second)[:2])
                return WRONG, f"Ranks {j} and {i} share {names}: no GPU is pinned."
    return RIGHT, "Each worker has its own GPU."


def waiting(parallel: RecordedRun, single: RecordedRun | None) -> Answer:
    """Did anyone wait for anyone forever?"""
    places = [_last_place(parallel, rank) for rank in range(len(parallel.processes))]
    if parallel.outcome == STALLED:
        states = []
        for rank, events in enumerate(parallel.processes):
            if any(e["what"] == "end" for e in events):
                states.append(f"rank {rank} has ended")
            else:
                at = f" in {places[rank]}" if places[rank] else ""
                states.append(f"rank {rank} is{at}")
        where = next((place for place in places if place), None)
        warning = re.search(r"(?s)Stalled ranks:(.*?)(\n\n|\Z)", parallel.output)
        said = f" Horovod says: stalled ranks: {_short(warning[1])}" if warning else ""
        text = f"The workers wait forever: {'; '.join(states)}.{said}"
        cause = _unequal_steps(parallel) or _unequal_metrics(parallel)
        return WRONG, f"{text}{cause}", where
    failure = parallel.failure
    if failure and _alone(failure):
        return (
            WRONG,
            "A worker waited for another worker that had ended."
            f"{_unequal_steps(parallel)} All have to make the same calls, equally "
            "often.",
            failure.get("where"),
        )
    if _fails_likewise(parallel, single):
        said = _words(failure["error"]) if failure else parallel.output[-300:]
        return UNKNOWN, f"The program fails, on one worker as well: {_short(said)}"
    if failure:
        return (
            WRONG,
            f"The program fails on {parallel.workers} {parallel.word}s: "
            f"{why(parallel, failure)}",
            failure.get("where"),
        )
    if parallel.outcome == FAILED:
        return (
            WRONG,
            f"The program ended with an error: {_short(parallel.output[-300:])}",
        )
    if parallel.outcome == TIME_UP:
        return UNKNOWN, "The time limit ended the program first."
    return RIGHT, "All workers finished."


def _unequal_steps(parallel: RecordedRun) -> str:
    """Words for how many steps each process trained, where one ended after fewer."""
    made: dict[int, int] = {}
    for rank, events in enumerate(parallel.processes):
        worker = Worker("", events)
        updates = [e["update"] for e in events if e["what"] in ("local", "applied")]
        made[rank] = len(worker.samples("train")) or max(updates, default=0)
    ended = [
        rank
        for rank, events in enumerate(parallel.processes)
        if any(event["what"] == "end" for event in events)
    ]
    if not any(0 < made[rank] < max(made.values()) for rank in ended):
        return ""
    first, *others = (f"rank {rank} made {count}" for rank, count in made.items())
    return f" Training steps: {', '.join([first, *others])}."


def _unequal_metrics(parallel: RecordedRun) -> str:
    """Words for who averages metrics of a validation that others don't have."""
    who = [w.name for w in parallel.each if w.samples("validate")]
    if not 0 < len(who) < len(parallel.each):
        return ""
    if not any("_average_metrics_in_place" in stack for stack in parallel.stacks):
        return ""
    return (
        f" Only {_listed(who)} validate{'s' * (len(who) == 1)}, so the others have no "
        "such metrics, and MetricAverageCallback waits for them."
    )


def why(parallel: RecordedRun, failure: dict) -> str:
    """The first error in words, and its cause, if that is a known one."""
    text = _short(_words(failure["error"]))
    changed = _tf_config(parallel)
    if changed:
        at = f" ({changed[1]})" if changed[1] else ""
        return f"{text} {changed[0]}{at}"
    keras_3 = any(event.get("keras") == 3 for event in parallel.all("fit"))
    if parallel.kind == "TF_CONFIG" and keras_3:
        return (
            f"{_short(text, 150)} In Keras 3, `fit` fails with {parallel.strategy}. "
            "Choose Keras 2: set TF_USE_LEGACY_KERAS=1 before TensorFlow is imported."
        )
    return text


def _words(error: str) -> str:
    """An error without the frames in which TensorFlow shows where a graph was built."""
    kept: list[str] = []
    depth: int | None = None  # of the frame whose code may follow
    for line in error.splitlines():
        indent = len(line) - len(line.lstrip())
        if re.match(r'\s*File "[^"]*", line \d+, in ', line):
            depth = indent
        elif depth is not None and indent > depth:
            continue
        elif line.strip():
            depth = None
            kept.append(line)
    return re.sub(_OF_GRAPHS, "", "\n".join(kept))


_OF_GRAPHS = (
    r"Detected at node .*?\(most recent call last\):|<stack traces unavailable>"
    r"|\[\[\{\{node .*?\}\}\]\]|\[Op:\w+\]|in user code:"
)


def _fails_likewise(parallel: RecordedRun, single: RecordedRun | None) -> bool:
    """Does it fail for a reason that it has on one worker, too?"""
    if single is None or not parallel.outcome == single.outcome == FAILED:
        return False
    kinds = [
        (run.failure["error"].split(":")[0], run.failure["where"])
        if run.failure
        else None
        for run in (parallel, single)
    ]
    return kinds[0] == kinds[1]


def _last_place(parallel: RecordedRun, rank: int) -> str | None:
    """FILE:LINE of the program in the stack that a worker left."""
    script = ""
    for event in parallel.processes[rank]:
        script = event.get("where") or event.get("by") or script
    name = script.rpartition(":")[0]
    if not name:
        return None
    match = re.search(
        rf'File "[^"]*{re.escape(name)}", line (\d+)', parallel.stacks[rank]
    )
    return f"{name}:{match[1]}" if match else None


def speed(parallel: RecordedRun, single: RecordedRun | None) -> Answer:
    """How much faster is it than one worker?"""
    if single is None:
        return UNKNOWN, _ALONE
    ours, its = _pace(parallel), _pace(single)
    if not ours or not its:
        return UNKNOWN, "The run was too short, or did not finish."
    text = (
        f"{parallel.workers} {parallel.word}s process {ours:.0f} samples/s, and one "
        f"worker {its:.0f}: {ours / its:.2f} times as many"
    )
    if ours / its > 1.1:
        return RIGHT, f"{text}."
    return UNKNOWN, f"{text}. A small model may be too small to gain from more workers."


def _pace(run: RecordedRun) -> float | None:
    """Samples per second, of all together."""
    ends = [e for e in run.ends() if e["began"] and e["ended"] and e["updates"] > 2]
    if not run.whole or len(ends) < len(run.processes):
        return None
    seconds = max(e["ended"] - e["began"] for e in ends)
    # The clock starts with the first update, which waits for compilers.
    samples = sum(e["samples"] * (1 - 1 / e["updates"]) for e in ends)
    return samples / seconds if samples and seconds > 1 else None


def statistics(parallel: RecordedRun, single: RecordedRun | None) -> Answer:
    """Are the statistics of batch normalization equal?"""
    found = [e.get("statistics") for e in parallel.ends()]
    if not found:
        return UNKNOWN, "No worker finished."
    if not any(found):
        return RIGHT, "The model has no batch normalization."
    if parallel.kind == "tf.distribute":
        return RIGHT, "The strategy averages the running means when they are read."
    spread = _spread([f for f in found if f])
    if spread <= RTOL_EQUAL:
        return RIGHT, "The running means are equal."
    return UNKNOWN, (
        f"The running means differ by {_percent(spread)}, because each worker has its "
        "own. Those of the worker that validates or saves count."
    )


def randomness(parallel: RecordedRun, single: RecordedRun | None) -> Answer:
    """Do workers draw different random numbers?"""
    ends = parallel.ends()
    if parallel.kind == "tf.distribute":
        return RIGHT, "Only one process draws random numbers."
    if len(ends) < 2:
        return UNKNOWN, "Not all workers finished."
    seeds = [e.get("seed") for e in ends]
    if seeds[0] is not None and len(set(seeds)) == 1:
        return UNKNOWN, (
            f"TensorFlow's seed is {seeds[0]} on all workers, so dropout and "
            "augmentation draw the same numbers. This does no harm if the data differ."
        )
    for key, name in (("numpy", "NumPy"), ("python", "Python")):
        states = {e.get(key) for e in ends}
        if len(states) == 1 and states != {None}:
            return UNKNOWN, (
                f"{name}'s generator was seeded, and is in the same state on all "
                "workers, so what is drawn from it is the same. This does no harm if "
                "the data differ."
            )
    return RIGHT, "The workers don't have the same seed."


QUESTIONS: dict[
    str, tuple[str, Callable[[RecordedRun, RecordedRun | None], Answer]]
] = {
    "together": ("Do the workers form one team?", together),
    "start": ("Do all workers start with the same weights?", start),
    "gradients": ("Are the gradients averaged?", gradients),
    "end": ("Do all workers end with the same weights?", end),
    "different": ("Does each worker train on data of its own?", different),
    "everything": ("Is all of the data seen?", everything),
    "order": ("Is the data in a new order in each epoch?", order),
    "pass": ("Is one epoch one pass over the data?", one_pass),
    "validation": ("Are all validation samples looked at?", validation),
    "metrics": ("Are decisions based on equal metrics?", metrics),
    "rate": ("Is the learning rate scaled with the number of workers?", rate),
    "files": ("Is each file written by one worker?", written),
    "devices": ("Does each worker have a device of its own?", devices),
    "waiting": ("Did every worker finish?", waiting),
    "speed": ("Is it faster than one worker?", speed),
    "statistics": ("Are the statistics of batch normalization equal?", statistics),
    "random": ("Do workers draw different random numbers?", randomness),
}

_ALONE = "Only a run on one worker would tell."
# Horovod's callback for Keras acts at the end of the first batch.
_CUT = "No later update was seen, and some programs broadcast after the first."


def findings(
    parallel: RecordedRun, single: RecordedRun | None, quick: bool = False
) -> list[Finding]:
    """The answers to all questions. single: the run on one worker, if there was one.

    quick: it was left out on purpose.
    """
    if single is not None and not single.trained:
        single = None
    found = []
    for name, (question, judgement) in QUESTIONS.items():
        if not (quick and name == "speed"):
            verdict, seen, *where = judgement(parallel, single)
            found.append(Finding(name, question, verdict, seen, *where))
    return found


# ---------------------------------------------------------------- small things


def _split(digests: str) -> list[str]:
    return [digests[i : i + DIGEST] for i in range(0, len(digests), DIGEST)]


def _distance(a, b) -> float:
    """Relative; 0 for equal ones."""
    a, b = np.asarray(a), np.asarray(b)
    scale = max(float(np.linalg.norm(a)), float(np.linalg.norm(b)))
    return float(np.linalg.norm(a - b)) / scale if scale else 0.0


def _unit(sketch) -> np.ndarray:
    """Of length 1, in the same direction."""
    length = float(np.linalg.norm(sketch))
    return np.asarray(sketch) / length if length else np.asarray(sketch)


def _spread(sketches) -> float:
    """The largest relative distance to the first of them."""
    if any(len(s) != len(sketches[0]) for s in sketches):
        return math.inf
    distances = [_distance(s, sketches[0]) for s in sketches[1:]]
    if any(math.isnan(d) for d in distances):
        return 0.0 if all(np.isnan(s).any() for s in sketches) else math.inf
    return max(distances, default=0.0)


def _groups(parallel: RecordedRun) -> list[int]:
    """The groups of variables that all workers train, the first first."""
    found = [
        {e["group"] for e in w.events if e["what"] in ("local", "applied")}
        for w in parallel.each
    ]
    return sorted(set.intersection(*found)) if found else []


def _weights(parallel: RecordedRun, group: int) -> dict[int, float]:
    """How far the weights are apart before each update that was looked at."""
    found = [worker.updates("local", group) for worker in parallel.each]
    if not any(w.all("applied") for w in parallel.each):
        # Its own updates: by the number of times that gradients were computed.
        found = [
            {i: [e] for i, e in enumerate(_flat(f), 1) if "weights" in e} for f in found
        ]
    common = sorted(set.intersection(*(set(f) for f in found)))
    return {u: _spread([f[u][0]["weights"] for f in found]) for u in common}


def _flat(found: dict[int, list[dict]]) -> list[dict]:
    return [event for update in sorted(found) for event in found[update]]


def _differ(values) -> bool:
    values = [float(value) for value in values]
    if any(map(math.isnan, values)):
        return not all(map(math.isnan, values))
    return max(values) - min(values) > 1e-6 * max(map(abs, [*values, 1e-12]))


def _percent(part: float) -> str:
    return f"{100 * part:.2g} %" if part < 0.995 else f"{100 * part:.0f} %"


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'s' * (number != 1)}"


def _epochs(run: RecordedRun) -> str:
    """Words for the epochs of `fit`, if there were any."""
    count = max([worker.epochs for worker in run.each], default=0)
    return f" in {count} epoch{'s' * (count != 1)}" if count else ""


def _listed(names) -> str:
    *most, last = list(names)
    return f"{', '.join(most)} and {last}" if most else last


def _alone(failure: dict) -> bool:
    """Did Horovod, or a cluster, complain that another worker has gone?"""
    gone = "Horovod has been shut down", "stopped sending heartbeats"
    return any(words in str(failure["error"]) for words in gone)


def _short(text: str, limit: int = 300) -> str:
    text = " ".join(text.split())
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
