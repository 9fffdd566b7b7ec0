"""Devices, the end of each worker, speed, and what differs by chance."""

import re

from distcheck.judges.audit.recorded import (
    FAILED,
    NEEDS_ONE_WORKER,
    STALLED,
    TIME_UP,
    UNKNOWN,
    Answer,
    RecordedRun,
    Worker,
    left_alone,
)
from distcheck.judges.audit.sketches import RTOL_EQUAL, spread_of
from distcheck.judges.audit.team import tf_config_fault
from distcheck.judges.audit.words import listed, percent, shortened
from distcheck.verdict import RIGHT, WRONG

_OF_GRAPHS = (
    r"Detected at node .*?\(most recent call last\):|<stack traces unavailable>"
    r"|\[\[\{\{node .*?\}\}\]\]|\[Op:\w+\]|in user code:"
)


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
                names = listed(sorted(name for _, name in first & second)[:2])
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
        said = (
            f" Horovod says: stalled ranks: {shortened(warning[1])}" if warning else ""
        )
        text = f"The workers wait forever: {'; '.join(states)}.{said}"
        cause = _unequal_steps(parallel) or _unequal_metrics(parallel)
        return WRONG, f"{text}{cause}", where
    failure = parallel.failure
    if failure and left_alone(failure):
        return (
            WRONG,
            "A worker waited for another worker that had ended."
            f"{_unequal_steps(parallel)} All have to make the same calls, equally "
            "often.",
            failure.get("where"),
        )
    if _fails_likewise(parallel, single):
        said = _words(failure["error"]) if failure else parallel.output[-300:]
        return UNKNOWN, f"The program fails, on one worker as well: {shortened(said)}"
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
            f"The program ended with an error: {shortened(parallel.output[-300:])}",
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
        f" Only {listed(who)} validate{'s' * (len(who) == 1)}, so the others have no "
        "such metrics, and MetricAverageCallback waits for them."
    )


def why(parallel: RecordedRun, failure: dict) -> str:
    """The first error in words, and its cause, if that is a known one."""
    text = shortened(_words(failure["error"]))
    changed = tf_config_fault(parallel)
    if changed:
        at = f" ({changed[1]})" if changed[1] else ""
        return f"{text} {changed[0]}{at}"
    keras_3 = any(event.get("keras") == 3 for event in parallel.all("fit"))
    if parallel.kind == "TF_CONFIG" and keras_3:
        return (
            f"{shortened(text, 150)} In Keras 3, `fit` fails with {parallel.strategy}. "
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
        return UNKNOWN, NEEDS_ONE_WORKER
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
    if not any(found) and not parallel.all("samples"):
        return UNKNOWN, "No Keras model was seen, so its layers are not known."
    if not any(found):
        return RIGHT, "The model has no batch normalization."
    if parallel.kind == "tf.distribute":
        return RIGHT, "The strategy averages the running means when they are read."
    spread = spread_of([f for f in found if f])
    if spread <= RTOL_EQUAL:
        return RIGHT, "The running means are equal."
    return UNKNOWN, (
        f"The running means differ by {percent(spread)}, because each worker has its "
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
