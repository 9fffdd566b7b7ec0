"""Judge the tasks of exercises/scaled.py: learning rate, warm-up and validation.

Every worker is on a machine of its own, so its local rank is 0, and
what it writes can't be taken for another's.
"""

import math
from collections import Counter

import numpy as np

from distcheck import lab
from distcheck.judges.compare import classify
from distcheck.judges.compiled import must_compile
from distcheck.judges.registry import exercise
from distcheck.judges.runs import Missing, Problem, Rank, Run

BASE_LR, WARMUP_EPOCHS, EPOCHS, VAL_BATCH = 0.01, 2, 3, 3
TRAIN_IMAGES = 54  # four batches in an epoch; and nine images to validate on ...
IMAGES = TRAIN_IMAGES // 6  # ... whose shards on two workers differ in size
RTOL = 1e-3  # of learning rates and metrics

task = exercise(
    "scaled",
    options=(
        f"--epochs {EPOCHS} --warmup-epochs {WARMUP_EPOCHS} --base-lr {BASE_LR} "
        f"--batch-size 13 --val-batch-size {VAL_BATCH} --train-images {TRAIN_IMAGES} "
        "--width 1 --seed 1 --checkpoint kept"
    ),
).part


# ------------------------------------------------------------ the learning rate


def _rates(rank: Rank) -> list[list[float]]:
    """The learning rates of the updates of each epoch. Raises Missing without all."""
    updates = rank.all("update")
    rates = [[u["rate"] for u in updates if u["epoch"] == e] for e in range(EPOCHS)]
    if not all(rates):
        raise Missing
    return rates


def _all_epochs(run: Run) -> None:
    """Raises a Problem if training ended early, Missing without all epochs."""
    done = _epochs(run)
    if 0 < done < EPOCHS and run.outcome == lab.ENDED:
        raise Problem(
            "stopped-early",
            f"On {run.size} worker{'s' * (run.size > 1)}, training ended after "
            f"{done} of {EPOCHS} epochs. A callback stops training by a metric: is "
            "this metric right?",
            run.fit_line,
        )
    if done < EPOCHS:
        raise Missing


def _epochs(run: Run) -> int:
    """How many epochs all ranks have finished."""
    return min(len({e["epoch"] for e in rank.all("epoch")}) for rank in run.ranks)


def _near(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=RTOL)


@task(
    "A",
    scenarios=("machine", "two machines", "three machines"),
    expected=(
        "After the warm-up, the learning rate of every rank is --base-lr, "
        f"{BASE_LR:g}, times the number of workers."
    ),
)
@must_compile("training")
def scales_the_rate(runs: dict[str, Run]) -> None:
    for run in runs.values():
        _all_epochs(run)
        full, line = run.size * BASE_LR, run.fit_line
        last = [_rates(rank)[-1][-1] for rank in run.ranks]
        if all(_near(rate, full) for rate in last):
            continue
        where = f"On {run.size} worker{'s' * (run.size > 1)}, after the warm-up,"
        if not all(_near(rate, last[0]) for rate in last):
            listing = " and ".join(f"{rate:.4g}" for rate in last)
            raise Problem("differs", f"{where} the ranks trained with {listing}.", line)
        size, rate = run.size, last[0]
        seen = f"{where} the learning rate is {rate:.4g}, not {full:.4g}"
        known = {
            "not-scaled": BASE_LR,
            "scaled-twice": size * full,
            "divided": BASE_LR / size,
            "square-root": math.sqrt(size) * BASE_LR,
        }
        fault = classify(rate, known, _near)
        asked = {event["name"] for rank in run.ranks for event in rank.all("asked")}
        if fault == "not-scaled" and "local_size" in asked:
            fault = "local-size"
        if fault:
            raise Problem(fault, f"{seen}: {RATE_FAULTS[fault]}.", line)
        raise Problem("another-rate", f"{seen}.", line)


RATE_FAULTS = {
    "not-scaled": "the rate does not depend on the number of workers",
    "local-size": "hvd.local_size() counts the workers of one machine, here 1",
    "scaled-twice": "it was multiplied by the number of workers twice",
    "divided": "it was divided, not multiplied",
    "square-root": "it grows with the square root of the number of workers",
}


@task(
    "B",
    scenarios=("machine", "two machines"),
    expected=(
        "In the first --warmup-epochs epochs, the learning rate of every rank grows "
        "evenly from --base-lr to the full learning rate, from batch to batch or from "
        "epoch to epoch."
    ),
)
@must_compile("training")
def warms_up(runs: dict[str, Run]) -> None:
    for run in runs.values():
        _all_epochs(run)
        full, line = run.size * BASE_LR, run.fit_line
        by_epoch = [_rates(rank) for rank in run.ranks]
        rates = [[r for epoch in epochs for r in epoch] for epochs in by_epoch]
        where = f"On {run.size} worker{'s' * (run.size > 1)}"
        for rank, series in enumerate(rates):
            if not np.allclose(series, rates[0][: len(series)], rtol=RTOL):
                raise Problem(
                    "differs",
                    f"{where}, the first two learning rates of rank 0 were "
                    f"{rates[0][0]:.4g} and {rates[0][1]:.4g}, and those of rank "
                    f"{rank} {series[0]:.4g} and {series[1]:.4g}.",
                    line,
                )
        series, steps = rates[0], len(by_epoch[0][0])
        name, seen = _wrong_warm_up(series, steps, full)
        if name:
            beginnings = ", ".join(f"{epoch[0]:.4g}" for epoch in by_epoch[0])
            raise Problem(
                name, f"{where}, {seen}. Its epochs began with {beginnings}.", line
            )


def _wrong_warm_up(rates: list[float], steps: int, full: float) -> tuple[str, str]:
    """What is wrong with the rates of one rank, with so many steps an epoch; ("", "")
    if nothing is.

    A right rate is on the line from the base rate to the full one, or behind it by
    less than an epoch, as a schedule is that acts once an epoch, or ahead by a batch.
    """
    batches = WARMUP_EPOCHS * steps

    def line(batch: float) -> float:
        return BASE_LR + (full - BASE_LR) * min(1.0, max(0.0, batch / batches))

    slack = RTOL * full
    warm, after = np.array(rates[:batches]), np.array(rates[batches:])
    if full > BASE_LR and np.allclose(warm, full, rtol=RTOL):
        return "no-warm-up", f"all updates have the full learning rate, {full:.4g}"
    if warm[0] < BASE_LR - slack:
        return "starts-too-low", f"the first learning rate is {warm[0]:.4g}"
    if warm[0] > line(1) + slack:
        return "starts-too-high", f"the first learning rate is {warm[0]:.4g}"
    if np.any(np.diff(rates[: batches + 1]) < -slack):
        return "falls", "the learning rate falls during the warm-up"
    if full > BASE_LR and np.allclose(warm, warm[0], rtol=RTOL):
        return "jumps", f"the learning rate stays at {warm[0]:.4g}, and then jumps"
    for batch, rate in enumerate(warm):
        if rate > line(batch + 1) + slack:
            return (
                "too-fast",
                f"update {batch} has the learning rate {rate:.4g} already",
            )
        if rate < line(batch - steps) - slack:
            return "too-slow", f"update {batch} still has the learning rate {rate:.4g}"
    if not np.allclose(after, full, rtol=RTOL):
        furthest = max(after, key=lambda rate: abs(rate - full))
        return (
            "never-full",
            f"after the warm-up the rate is {furthest:.4g}, not {full:.4g}",
        )
    return "", ""


# ------------------------------------------------------------ validation


@task(
    "C",
    scenarios=("two machines",),
    expected=(
        f"In each epoch, the ranks share the {IMAGES} validation images, and each "
        "image is seen once. Every callback that reads the metrics sees the metrics "
        "over all images."
    ),
)
@must_compile("training", "validation")
def validates_exactly(runs: dict[str, Run]) -> None:
    for run in runs.values():
        line = run.fit_line
        _all_epochs(run)
        for epoch in range(EPOCHS):
            _shared(run, epoch, line)
        for epoch in range(EPOCHS):
            _known(run, epoch)


def _seen(rank: Rank, epoch: int) -> tuple[list[int], list[bool]]:
    """The images that a rank validated on in an epoch, and which it recognized."""
    events = [e for e in rank.all("validated") if e["epoch"] == epoch]
    images = [number for event in events for number in event["images"]]
    return images, [right for event in events for right in event["right"]]


def _shared(run: Run, epoch: int, line: int | None) -> None:
    """Are the images shared out, each seen once?"""
    images = [_seen(rank, epoch)[0] for rank in run.ranks]
    evidence = [
        f"rank {n}: {' '.join(map(str, sorted(shard))) or 'none'}"
        for n, shard in enumerate(images)
    ]
    where = f"In epoch {epoch + 1} on {run.size} workers"

    def problem(name: str, seen: str) -> Problem:
        return Problem(name, f"{where}, {seen}.", line, evidence)

    if not any(images):
        raise problem("no-validation", "no rank validated")
    idle = [str(n) for n, shard in enumerate(images) if not shard]
    if idle:
        raise problem("some-idle", f"rank {' and '.join(idle)} validated on no image")
    if any(-1 in shard for shard in images):
        raise problem("other-images", "the images were not those to validate on")
    everything = set(range(IMAGES))
    if run.size > 1 and all(set(shard) == everything for shard in images):
        raise problem("not-shared", f"every rank validated on all {IMAGES} images")
    counted = Counter(number for shard in images for number in shard)
    missing = len(everything - set(counted))
    repeated = sum(count > 1 for count in counted.values())
    message = (
        f"{missing} of {IMAGES} images were never seen, and {repeated} more than once"
    )
    if missing and repeated:
        raise problem("at-random", message)
    if missing:
        raise problem("left-out", message)
    if repeated:
        raise problem("repeated", message)
    if max(map(len, images)) >= -(-IMAGES // run.size) + VAL_BATCH:
        raise problem("unequal", "the shards differ by a batch or more")


def _known(run: Run, epoch: int) -> None:
    """Do all that read the metrics read those of all images?"""
    calls = [
        [c for c in rank.all("callback")][_slice(rank, epoch)] for rank in run.ranks
    ]
    validated = [_seen(rank, epoch) for rank in run.ranks]
    counts = np.array([len(images) for images, _ in validated])
    right = np.array([sum(recognized) for _, recognized in validated])
    exact = {"val_accuracy": right.sum() / counts.sum()}
    plain = {"val_accuracy": float(np.mean(right / counts))}
    losses = [rank_calls[0]["before"].get("val_loss") for rank_calls in calls]
    if None not in losses:
        exact["val_loss"] = float(np.array(losses) @ counts / counts.sum())
        plain["val_loss"] = float(np.mean(losses))
    for number, rank_calls in enumerate(calls):
        last = rank_calls[-1]["after"]
        for name in exact:
            if name not in last:
                raise Problem("no-metric", f"In the end, rank {number} has no {name}.")
        for call in rank_calls:
            changed = any(call["before"].get(n) != call["after"].get(n) for n in exact)
            wrong = [
                n
                for n in exact
                if n in call["read"] and not _same(call["before"].get(n), exact[n])
            ]
            if changed or not wrong:
                continue
            name, read = wrong[0], call["before"].get(wrong[0])
            message = f"{call['name']} read {name} = {_shown(read)} on rank {number}"
            message += f", but over all {counts.sum()} images it is {exact[name]:.4f}"
            if all(_same(last[n], exact[n]) for n in exact):
                raise Problem(
                    "too-late",
                    f"{message}, as a later callback makes it.",
                    call["made"],
                )
            if all(_same(last[n], plain[n]) for n in exact):
                shards = " and ".join(map(str, counts))
                raise Problem(
                    "unweighted",
                    f"{message}. The callback read the mean over the workers, whose "
                    f"shards have {shards} images. Weight each by its number of "
                    "images.",
                    call["made"],
                )
            raise Problem("wrong-metric", f"{message}.", call["made"])


def _slice(rank: Rank, epoch: int) -> slice:
    """Which of the rank's callback events are those of an epoch."""
    count, bounds = 0, [0]
    for event in rank.events:
        count += event["what"] == "callback"
        if event["what"] == "epoch":
            bounds.append(count)
    return slice(bounds[epoch], bounds[epoch + 1])


def _same(a: float | None, b: float) -> bool:
    return a is not None and math.isclose(a, b, rel_tol=RTOL, abs_tol=1e-6)


def _shown(value: float | None) -> str:
    return "nothing" if value is None else f"{value:.4f}"
