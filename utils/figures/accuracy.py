"""The figures of notebook 10: what the global batch does to accuracy, and to time."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, PercentFormatter

from utils.figures.style import COLOURS, MARKS, new_axes
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
    figure, axis = new_axes(width=8)
    for number, (label, way) in enumerate(ways.items()):
        axis.step(
            updates,
            way,
            where="post",
            color=COLOURS[number],
            label=label,
            linestyle=("-", "--", "-.")[number],
        )
    axis.axhline(full, color="#888888", linewidth=0.8)
    axis.annotate(f"base rate x {workers}", (0, full), (0, -12), **_POINTS)
    axis.set(xlabel="update", ylabel="learning rate", ylim=(0, full * 1.1))
    axis.legend(loc="lower right")
    plt.close(figure)
    return figure


_POINTS = {"textcoords": "offset points", "fontsize": 9}
_LEFT = _POINTS | {"ha": "right"}


def noise(found: Mapping[str, Mapping[int, float]]) -> Figure:
    """Deviations of the gradients of batches (see global_batch.deviations) at several
    times: label -> batch -> deviation. With the line that falls as the square root of
    the batch grows, to the noise scale, where it meets 1."""
    figure, axis = new_axes(width=8)
    for number, (label, deviations) in enumerate(found.items()):
        scale = global_batch.noise_scale(deviations)
        batches, colour = np.array(list(deviations)), COLOURS[number]
        axis.plot(
            batches, deviations.values(), MARKS[number], color=colour, label=label
        )
        axis.plot(batches, np.sqrt(scale / batches), "--", color=colour, alpha=0.6)
        axis.plot([scale, scale], [1, 0], ":", color=colour)
        axis.annotate(f"noise scale: {scale:.0f}", (scale, 1), (-6, -13), **_LEFT)
    axis.axhline(1, color="#888888", linewidth=0.8)
    _log_batches(axis, batches)
    axis.set(yscale="log", ylabel="noise, against the signal")
    axis.legend(title="dashed: 1 / square root of the batch")
    plt.close(figure)
    return figure


def needed(steps: Mapping[int, int]) -> Figure:
    """Steps, and images, until a loss is reached, against the batch."""
    batches = np.array(list(steps))
    counted = np.array(list(steps.values()))
    figure, axes = new_axes(2)
    for axis, values, name, way in (
        (axes[0], counted, "steps", counted[0] * batches[0] / batches),
        (axes[1], counted * batches, "images", np.full(len(batches), np.nan)),
    ):
        axis.plot(batches, values, f"{MARKS[0]}-", color=COLOURS[0], label="measured")
        if name == "steps":
            axis.plot(
                batches,
                way,
                "--",
                color=COLOURS[1],
                label="twice the batch, half of it",
            )
            axis.legend()
        _log_batches(axis, batches)
        axis.set(yscale="log", ylabel=f"{name} to the same loss")
    plt.close(figure)
    return figure


def _log_batches(axis, batches) -> None:
    axis.set_xscale("log", base=2)
    axis.set_xticks(batches, [str(batch) for batch in batches])
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set(xlabel="images in a batch")


def estimates(random: np.ndarray, exact: float, images: int) -> Figure:
    """What three random rounds say of the accuracy, against one exact round."""
    figure, axis = new_axes(width=8)
    axis.hist(
        *(random, 25),
        color=COLOURS[0],
        alpha=0.6,
        label=f"three random rounds: {3 * images:,} images",
    )
    axis.axvline(
        exact, color=COLOURS[5], linewidth=3, label=f"exact: {images:,} images"
    )
    axis.set(xlabel="validation accuracy, as the workers see it", ylabel="times")
    axis.xaxis.set_major_formatter(PercentFormatter(1, decimals=1))
    axis.set_ylim(top=axis.get_ylim()[1] * 1.3)
    axis.legend(loc="upper right")
    plt.close(figure)
    return figure


def accuracy_by_workers(record: Record) -> Figure:
    """The last accuracy of recorded runs against workers: each seed a mark, the line
    through the means."""
    figure, axis = new_axes(width=8, height=3.8)
    groups = global_batch.grouped(record.results["runs"])
    for number, (recipe, by_workers) in enumerate(groups.items()):
        workers = sorted(by_workers)
        last = [[run["accuracy"][-1] for run in by_workers[n]] for n in workers]
        apart = 1.04 ** (number - 1)  # or marks would hide others
        for n, values in zip(workers, last, strict=True):
            axis.plot(
                *([n * apart] * len(values), values, MARKS[number]),
                color=COLOURS[number],
                alpha=0.5,
            )
        axis.plot(
            *([n * apart for n in workers], [np.mean(v) for v in last], "-"),
            color=COLOURS[number],
            marker=MARKS[number],
            markersize=9,
            label=recipe,
        )
    _workers(axis, workers)
    axis.set(ylabel=f"accuracy after {record.results['epochs']} epochs")
    axis.yaxis.set_major_formatter(PercentFormatter(1))
    axis.legend(title="mean, and each seed")
    return _recorded(figure, record)


def time_to_accuracy(record: Record, target: float) -> Figure:
    """Seconds of training of recorded runs until an accuracy is reached, against
    workers: the mean over the seeds, from the fastest to the slowest. A number of
    workers is left out where a seed did not reach it."""
    figure, axis = new_axes(width=8, height=3.8)
    groups = global_batch.grouped(record.results["runs"])
    for number, (recipe, by_workers) in enumerate(groups.items()):
        found = {
            n: [global_batch.seconds_to(run, target) for run in by_workers[n]]
            for n in sorted(by_workers)
        }
        found = {n: values for n, values in found.items() if None not in values}
        means = np.array([np.mean(values) for values in found.values()])
        low = means - [min(values) for values in found.values()]
        high = [max(values) for values in found.values()] - means
        label = recipe if found else f"{recipe}: never"
        axis.errorbar(
            *([n * 1.04 ** (number - 1) for n in found], means, np.array([low, high])),
            color=COLOURS[number],
            marker=MARKS[number],
            capsize=3,
            label=label,
        )
    _workers(axis, sorted(next(iter(groups.values()))))
    axis.set(ylabel=f"seconds of training to {target:.0%}")
    axis.set_ylim(bottom=0)
    axis.legend(title="mean, fastest and slowest seed")
    return _recorded(figure, record)


def _workers(axis, workers: Sequence[int]) -> None:
    axis.set_xscale("log", base=2)
    axis.set_xticks(workers, [str(n) for n in workers])
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set(xlabel="workers")


def _recorded(figure: Figure, record: Record) -> Figure:
    lines = [record.origin, *record.notes]
    figure.supxlabel("\n".join(lines), fontsize=7, wrap=True)
    plt.close(figure)
    return figure


def pareto(attempts: Sequence[Attempt]) -> Figure:
    """Accuracy against time of several attempts, the front that none beats, and the
    goal."""
    figure, axis = new_axes(width=8, height=3.8)
    best = global_batch.front(list(attempts))
    axis.step(
        [one.seconds for one in best],
        [one.accuracy for one in best],
        where="post",
        color=COLOURS[2],
        label="the front",
    )
    for one in attempts:
        number = 2 if one in best else 1
        axis.plot(
            *(one.seconds, one.accuracy, MARKS[number]),
            color=COLOURS[number],
            markersize=9,
        )
        words = f"{one.name}\n({one.workers} worker{'s' * (one.workers > 1)})"
        axis.annotate(words, (one.seconds, one.accuracy), (8, -6), va="top", **_POINTS)
    axis.axhline(global_batch.GOAL, color=COLOURS[5], linestyle="--", label="the goal")
    axis.set(xlabel="seconds from start to end", ylim=(0, 1))
    axis.set_ylabel("accuracy of the kept weights")
    axis.set_xlim(0, 1.35 * max(one.seconds for one in attempts))
    axis.yaxis.set_major_formatter(PercentFormatter(1))
    axis.legend(loc="lower left")
    plt.close(figure)
    return figure
