"""Samples that the program makes, beside those of its data.

A network that judges what another one makes is shown both in turn, or in the halves of
a batch. What is made never comes again, and says nothing about the data.
"""

import itertools
from collections import Counter
from dataclasses import replace

from distcheck.judges.audit.recorded import RecordedRun, Worker

MOST_IN_TURN = 24  # parts of the batches of one step
LEAST_IN_HALF = 4  # samples; fewer are augmented or not all together by chance


def without_what_is_made(*runs: RecordedRun) -> list[RecordedRun]:
    """The runs without the training samples that the program made, if it is seen that
    it shows these in turn with its data; else the runs themselves."""
    all_runs = list(runs)
    if any(None in w.samples("train") for run in runs for w in run.each):
        return all_runs
    for halves in (1, 2):
        shown = _of_the_data(all_runs, halves)
        if shown:
            pairs = zip(runs, shown, strict=True)
            return [_only(run, halves, data) for run, data in pairs]
    return all_runs


def _of_the_data(runs: list[RecordedRun], halves: int) -> list[list[list[bool]]]:
    """For each run, worker and part of a batch: is it of the data? Empty where that
    isn't clear, or nothing is made."""
    found: list[list[list[bool]]] = []
    everywhere: Counter[str] = Counter()
    once: list[str] = []
    for run in runs:
        found.append([])
        for worker in run.each:
            parts = _parts(worker, halves)
            if halves > 1 and min(map(len, parts), default=0) < LEAST_IN_HALF:
                return []
            own = Counter(itertools.chain.from_iterable(parts))
            flags = []
            for part in parts:
                again = {own[sample] > 1 for sample in part}
                if len(again) != 1:
                    return []
                flags += again
            if len(set(flags)) < 2 or not _in_turn(flags):
                return []
            everywhere += own
            made = (part for part, real in zip(parts, flags, strict=True) if not real)
            once += itertools.chain.from_iterable(made)
            found[-1].append(flags)
    return found if all(everywhere[sample] == 1 for sample in once) else []


def _in_turn(flags: list[bool]) -> bool:
    """Do they repeat, step by step? At least four steps show that."""
    longest = min(MOST_IN_TURN, len(flags) // 4)
    return any(flags[n:] == flags[:-n] for n in range(2, longest + 1))


def _parts(worker: Worker, halves: int) -> list[list[str]]:
    """Its training batches, whole or in halves."""
    found: list[list[str]] = []
    for batch in worker.samples("train"):
        batch = batch or []
        if len(batch) % halves:
            return [[]]
        length = len(batch) // halves
        found += [batch[i * length : (i + 1) * length] for i in range(halves)]
    return found


def _only(run: RecordedRun, halves: int, data: list[list[bool]]) -> RecordedRun:
    """The run with those parts of the main model's training batches that are of the
    data, and no other training batches."""
    kept: dict[int, dict] = {}  # by the event that it takes the place of
    for worker, flags in zip(run.each, data, strict=True):
        for i, event in enumerate(worker.batches("train")):
            of_it = flags[i * halves : (i + 1) * halves]
            digests, count = event["digests"], sum(of_it)
            length = len(digests) // halves
            wanted = [
                digests[k * length : (k + 1) * length]
                for k in range(halves)
                if of_it[k]
            ]
            rows = event["count"] // halves * count
            if count:
                kept[id(event)] = {**event, "digests": "".join(wanted), "count": rows}
    processes = [
        [kept.get(id(e), e) for e in events if id(e) in kept or not _trains(e)]
        for events in run.processes
    ]
    return replace(run, processes=processes)


def _trains(event: dict) -> bool:
    return event["what"] == "samples" and event["mode"] == "train"
