"""What is decided by metrics, the learning rate, and who writes which file."""

import math
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from distcheck.judges.audit.recorded import (
    ENDED,
    MIN_COVERAGE,
    NEEDS_ONE_WORKER,
    UNKNOWN,
    Answer,
    RecordedRun,
    batch_size,
)
from distcheck.judges.audit.words import count_of, listed
from distcheck.verdict import RIGHT, WRONG

# TensorFlow writes a file by another name first, and renames it.
_UNFINISHED = re.compile(r"\.tmp[0-9a-f]{32}$")
# A part of a checkpoint that was written and has gone.
_TAKEN_AWAY = re.compile(r"MergeV2Checkpoints.*?(\S*_temp/part-\S+)", re.DOTALL)


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
        names = listed(sorted(set(apart))[:3])
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
        return RIGHT, f"{listed(deciding)} {reads} the same metrics on all ranks."
    if parallel.outcome != ENDED:
        return UNKNOWN, "The program did not finish, and no callback has decided yet."
    return RIGHT, "No callback decides by a metric."


def _decided_alone(parallel: RecordedRun) -> Answer | None:
    """Does a callback decide by a metric on some ranks that others don't read?"""
    by_rank = [
        {
            (epoch, e["callback"]): e
            for epoch, e in _by_epochs(events)
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
        if len(ranks) == len(by_rank) or len({row[key[0][0]] for row in epochs}) > 1:
            continue  # all of them, or an epoch that not all of them have
        reader = by_rank[ranks[0]][key]
        name = reader["callback"]
        who = f"rank{'s' * (len(ranks) > 1)} {listed(map(str, ranks))} alone"
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
        chooses = [
            (epoch, e, metric)
            for epoch, e in _by_epochs(events)
            if e["what"] == "metrics" and e.get("chooses")
            for metric in e["read"]
        ]
        for epoch, reader, metric in chooses:
            value = reader["read"][metric]
            theirs = [_metric_of(o, epoch, metric) for o in others]
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


def _metric_of(events: list[dict], epoch: tuple[int, int], metric: str) -> float | None:
    """What a process has for a metric when its callbacks have done."""
    for number, event in _by_epochs(events):
        if event["what"] == "epoch metrics" and number == epoch:
            return event["metrics"].get(metric)
    return None


def _by_epochs(events: list[dict]) -> Iterator[tuple[tuple[int, int], dict]]:
    """What a process reports at the ends of epochs, each with the number of the epoch,
    and how often one of that number has ended before: each `fit` has a first one."""
    ended: Counter = Counter()
    for event in events:
        if event["what"] in ("metrics", "epoch metrics"):
            yield (event["epoch"], ended[event["epoch"]]), event
            ended[event["epoch"]] += event["what"] == "epoch metrics"


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
        return UNKNOWN, f"The learning rate is {ours:.4g} at most. {NEEDS_ONE_WORKER}"
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
    ours_at_once = (batch_size(parallel) or 0) * len(parallel.each)
    its = batch_size(single)
    if ratio > 0.95 and parallel.kind == "Horovod" and its and ours_at_once == its:
        return RIGHT, (
            f"{text}: the batches of all workers together are as large as one "
            f"worker's, {count_of(its, 'sample')}."
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
                path = _UNFINISHED.sub("", event["path"])
                writers.setdefault(path, {})[rank] = event
    for path, ranks in sorted(writers.items()):
        event = next(iter(ranks.values()))
        what = {
            "written": f"the file {Path(path).name}.",
            "board": f"TensorBoard's logs into the folder {_folder(path)}, which it "
            "takes for one run.",
        }.get(event["how"])
        if len(ranks) > 1 and what:
            who = listed(map(str, sorted(ranks)))
            return WRONG, f"Ranks {who} all write {what}", event["by"]
    failure = parallel.failure or {"error": ""}
    taken = _TAKEN_AWAY.search(str(failure["error"]))
    if taken and len(parallel.processes) > 1 and single and single.whole:
        return (
            WRONG,
            f"A part of a checkpoint, {taken[1]}, was written and has gone, as when "
            "another worker saves to the same place.",
            failure.get("where"),
        )
    if parallel.outcome != ENDED:
        return (
            UNKNOWN,
            "The program did not finish, and until then no file had two writers.",
        )
    if not writers:
        return RIGHT, "No file was seen to be written."
    for path, ranks in sorted(writers.items()):
        if len(ranks) > 1:
            return UNKNOWN, (
                f"Several ranks append to {Path(path).name}, so their lines may mix."
            )
    who = sorted({rank for ranks in writers.values() for rank in ranks})
    return RIGHT, (
        f"{len(writers)} file{'s were' if len(writers) > 1 else ' was'} written by "
        f"rank{'s' * (len(who) > 1)} {listed(map(str, who))}, and none by two ranks."
    )


def _folder(path: str) -> str:
    """The last two names of it."""
    return "/".join(Path(path).parts[-2:])


def _differ(values) -> bool:
    values = [float(value) for value in values]
    if any(map(math.isnan, values)):
        return not all(map(math.isnan, values))
    return max(values) - min(values) > 1e-6 * max(map(abs, [*values, 1e-12]))
