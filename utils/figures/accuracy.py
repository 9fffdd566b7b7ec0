"""The figures of notebook 10: what the global batch does to accuracy, and to time."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from utils.figures.style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    VERMILION,
    Figure,
    only_ticks,
    subplots,
)
from utils.measure import global_batch
from utils.measure.global_batch import Attempt
from utils.measure.records import Record


def rates(base: float, workers: int, warmup_epochs: int, steps: int) -> Figure:
    """The learning rate of each update, in three ways of warming up."""
    updates = np.arange((warmup_epochs + 1) * steps)
    full, batches = base * workers, warmup_epochs * steps

    def line(update):
        return base + (full - base) * np.clip(update / batches, 0, 1)

    ways = {
        "from batch to batch": line(updates),
        "LearningRateWarmupCallback": line(updates + 1),
        "once an epoch": line(updates // steps * steps),
    }
    figure, axis = subplots()
    for dashes, (label, series) in zip(("-", "--", "-."), ways.items(), strict=True):
        axis.step(updates, series, dashes, where="post", label=label)
    axis.axhline(full, color=GREY, linewidth=0.8)
    axis.annotate(f"base rate x {workers}", (0, full), (0, -12), **_POINTS)
    axis.set(xlabel="update", ylabel="learning rate", ylim=(0, full * 1.1))
    axis.legend(loc="lower right")
    return figure


_POINTS = {"textcoords": "offset points", "fontsize": 9}
_LEFT = _POINTS | {"ha": "right"}


def noise(by_label: Mapping[str, Mapping[int, float]]) -> Figure:
    """Deviations of the gradients of batches (see global_batch.deviations) at several
    times: label -> batch -> deviation. With the line that falls as the square root of
    the batch grows, to the noise scale, where it meets 1."""
    figure, axis = subplots()
    for label, deviations in by_label.items():
        scale = global_batch.noise_scale(deviations)
        batches = np.array(list(deviations))
        (marks,) = axis.plot(batches, deviations.values(), ls="", label=label)
        colour = marks.get_color()
        axis.plot(batches, np.sqrt(scale / batches), "--", color=colour, alpha=0.6)
        axis.plot([scale, scale], [1, 0], ":", color=colour)
        axis.annotate(f"noise scale: {scale:.0f}", (scale, 1), (-6, -13), **_LEFT)
    axis.axhline(1, color=GREY, linewidth=0.8)
    _doubling(axis, batches, "images in a batch")
    axis.set(yscale="log", ylabel="noise, against the signal")
    axis.legend(title="dashed: 1 / square root of the batch")
    return figure


def needed(steps: Mapping[int, int]) -> Figure:
    """Steps, and images, until a loss is reached, against the batch."""
    batches = np.array(list(steps))
    counted = np.array(list(steps.values()))
    shared = counted[0] * batches[0] / batches
    figure, (left, right) = subplots(1, 2, figsize=(10, 3.4))
    left.plot(batches, counted, label="measured")
    left.plot(batches, shared, "--", label="twice the batch, half of it")
    left.legend()
    right.plot(batches, counted * batches)
    for axis, name in ((left, "steps"), (right, "images")):
        _doubling(axis, batches, "images in a batch")
        axis.set(yscale="log", ylabel=f"{name} to the same loss")
    return figure


def _doubling(axis: Axes, numbers: Sequence[int], label: str) -> None:
    """The x axis is for these numbers of `label`, each twice the one before."""
    axis.set_xscale("log", base=2)
    axis.set_xlabel(label)
    only_ticks(axis.xaxis, numbers)


def estimates(random: np.ndarray, exact: float, images: int) -> Figure:
    """What three random rounds say of the accuracy, against one exact round."""
    figure, axis = subplots()
    label = f"three random rounds: {3 * images:,} images"
    axis.hist(random, 25, color=BLUE, alpha=0.6, label=label)
    axis.axvline(exact, color=VERMILION, lw=3, label=f"exact: {images:,} images")
    axis.set(xlabel="validation accuracy, as the workers see it", ylabel="times")
    axis.xaxis.set_major_formatter(PercentFormatter(1, decimals=1))
    axis.set_ylim(top=axis.get_ylim()[1] * 1.3)
    axis.legend(loc="upper right")
    return figure


def accuracy_by_workers(record: Record) -> Figure:
    """The last accuracy of recorded runs against workers: each seed a mark, the line
    through the means."""
    figure, axis = subplots(figsize=(8, 3.8))
    groups = global_batch.grouped(record.results["runs"])
    for number, (recipe, by_workers) in enumerate(groups.items()):
        workers = sorted(by_workers)
        last = [[run["accuracy"][-1] for run in by_workers[n]] for n in workers]
        places = np.array(workers) * 1.04 ** (number - 1)  # or marks would hide others
        means = [np.mean(values) for values in last]
        (line,) = axis.plot(places, means, ms=9, label=recipe)
        style = {"color": line.get_color(), "marker": line.get_marker(), "ls": ""}
        for place, values in zip(places, last, strict=True):
            axis.plot([place] * len(values), values, alpha=0.5, **style)
    _doubling(axis, workers, "workers")
    axis.set(ylabel=f"accuracy after {record.results['epochs']} epochs")
    axis.yaxis.set_major_formatter(PercentFormatter(1))
    axis.legend(title="mean, and each seed")
    return figure.with_origin(record.origin, *record.notes)


def time_to_accuracy(record: Record, target: float) -> Figure:
    """Seconds of training of recorded runs until an accuracy is reached, against
    workers: the mean over the seeds, from the fastest to the slowest. A number of
    workers is left out where a seed did not reach it."""
    figure, axis = subplots(figsize=(8, 3.8))
    groups = global_batch.grouped(record.results["runs"])
    for number, (recipe, by_workers) in enumerate(groups.items()):
        seconds = {
            n: [global_batch.seconds_to(run, target) for run in by_workers[n]]
            for n in sorted(by_workers)
        }
        seconds = {n: values for n, values in seconds.items() if None not in values}
        means = np.array([np.mean(values) for values in seconds.values()])
        low = means - [min(values) for values in seconds.values()]
        high = [max(values) for values in seconds.values()] - means
        label = recipe if seconds else f"{recipe}: never"
        places = [n * 1.04 ** (number - 1) for n in seconds]
        axis.errorbar(places, means, np.array([low, high]), capsize=3, label=label)
    _doubling(axis, sorted(by_workers), "workers")
    axis.set(ylabel=f"seconds of training to {target:.0%}")
    axis.set_ylim(bottom=0)
    axis.legend(title="mean, fastest and slowest seed")
    return figure.with_origin(record.origin, *record.notes)


def pareto(attempts: Sequence[Attempt]) -> Figure:
    """Accuracy against time of several attempts, the front that none beats, and the
    goal."""
    figure, axis = subplots(figsize=(8, 3.8))
    best = global_batch.front(list(attempts))
    steps = zip(*((attempt.seconds, attempt.accuracy) for attempt in best), strict=True)
    axis.step(*steps, "-", where="post", color=GREEN, label="the front")
    for attempt in attempts:
        mark, colour = ("^", GREEN) if attempt in best else ("s", ORANGE)
        axis.plot(attempt.seconds, attempt.accuracy, mark, color=colour, ms=9)
        words = (
            f"{attempt.name}\n({attempt.workers} worker{'s' * (attempt.workers > 1)})"
        )
        axis.annotate(
            words, (attempt.seconds, attempt.accuracy), (8, -6), va="top", **_POINTS
        )
    axis.axhline(global_batch.GOAL, color=VERMILION, linestyle="--", label="the goal")
    axis.set(xlabel="seconds from start to end", ylim=(0, 1))
    axis.set_ylabel("accuracy of the kept weights")
    axis.set_xlim(0, 1.35 * max(attempt.seconds for attempt in attempts))
    axis.yaxis.set_major_formatter(PercentFormatter(1))
    axis.legend(loc="lower left")
    return figure
