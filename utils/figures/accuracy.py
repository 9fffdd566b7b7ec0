"""The figures of lessons 16 and 17: what the global batch does to accuracy, and to
time."""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import pandas
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, PercentFormatter

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
        color = marks.get_color()
        axis.plot(batches, np.sqrt(scale / batches), "--", color=color, alpha=0.6)
        axis.plot([scale, scale], [1, 0], ":", color=color)
        axis.annotate(f"noise scale: {scale:.0f}", (scale, 1), (-6, -13), **_LEFT)
    axis.axhline(1, color=GREY, linewidth=0.8)
    _doubling(axis, batches, "images in a batch")
    axis.set_ylabel("noise, against the signal")
    _log_y(axis)
    axis.legend(title="dashed: 1 / square root of the batch")
    return figure


def needed(by_seed: Sequence[Mapping[int, int]], scale: float) -> Figure:
    """Steps, and images, until a loss is reached, against the batch, of several seeds;
    and what a noise scale foretells, least steps x (1 + scale / batch), drawn through
    the mean of the largest batch."""
    batches = np.array(list(by_seed[0]))
    counted = np.array([[steps[batch] for batch in batches] for steps in by_seed])
    least = counted[:, -1].mean() / (1 + scale / batches[-1])
    foretold = least * (1 + scale / batches)
    figure, (left, right) = subplots(1, 2, figsize=(10, 3.4))
    for axis, name, factor in ((left, "steps", 1), (right, "images", batches)):
        _to_a_loss(axis, batches, counted * factor, name)
        label = f"the rule, through the mean at {batches[-1]}"
        axis.plot(batches, foretold * factor, "--", color=GREY, label=label)
        label = f"noise scale, {scale:.0f}"
        axis.axvline(scale, color=GREY, ls=":", lw=1.5, label=label)
    left.legend()
    return figure


def steps_and_seconds(record: Record) -> Figure:
    """Steps, and seconds of one core, to a loss in recorded runs, against the batch; of
    each seed. A batch is left out where a seed did not reach it."""
    rows = pandas.DataFrame(record.results["rows"])
    figure, axes = subplots(1, 2, figsize=(10, 3.4))
    for axis, name in zip(axes, ("steps", "seconds"), strict=True):
        by_batch = rows.pivot(index="seed", columns="batch", values=name)
        all_there = by_batch.dropna(axis="columns")
        _to_a_loss(axis, all_there.columns, all_there.to_numpy(), name)
    axes[0].legend()
    left_out = by_batch.columns.difference(all_there.columns)
    notes = [f"Batches of {batch}: not from every seed." for batch in left_out]
    return figure.with_origin(record.origin, *notes)


def _to_a_loss(
    axis: Axes, batches: Sequence[int], values: np.ndarray, name: str
) -> None:
    """A line through the means of values (seeds, batches), and a mark for each."""
    (line,) = axis.plot(batches, values.mean(axis=0), label="mean")
    marks = {"ls": "", "marker": "o", "ms": 4, "color": line.get_color()}
    each, *_ = axis.plot(batches, values.T, alpha=0.5, **marks)
    each.set_label("each seed")
    _doubling(axis, batches, "images in a batch")
    axis.set_ylabel(f"{name} to the same loss")
    _log_y(axis)


def by_workers(by_recipe: Mapping[str, Mapping[int, Sequence[float]]]) -> Figure:
    """Accuracies against workers: recipe -> workers -> one of each seed. A mark each,
    lines through the means, and a band where those of one worker are."""
    figure, axis = subplots(figsize=(8, 3.8))
    alone = next(iter(by_recipe.values()))[1]
    axis.axhspan(min(alone), max(alone), color=GREY, alpha=0.2, label="1 worker")
    for number, (recipe, accuracies) in enumerate(by_recipe.items()):
        workers = list(accuracies)
        _means_and_marks(axis, workers, list(accuracies.values()), recipe, number)
    _doubling(axis, workers, "workers")
    axis.set(ylabel="validation accuracy")
    axis.yaxis.set_major_formatter(PercentFormatter(1))
    axis.legend(title="mean, and each seed")
    return figure


def choices(by_name: Mapping[str, Sequence[float]]) -> Figure:
    """Accuracies of several choices: name -> one of each seed; a bar to the mean."""
    figure, axis = subplots(figsize=(8, 0.9 + 0.5 * len(by_name)))
    for place, values in enumerate(by_name.values()):
        axis.barh(place, np.mean(values), 0.6, color=BLUE, alpha=0.35)
        axis.plot(values, [place] * len(values), "o", color=BLUE, ms=4)
    axis.set_yticks(range(len(by_name)), list(by_name))
    axis.invert_yaxis()
    axis.set(xlabel="validation accuracy: mean, and each seed", xlim=(0, 1))
    axis.xaxis.set_major_formatter(PercentFormatter(1))
    return figure


def _means_and_marks(
    axis: Axes,
    workers: Sequence[int],
    values: Sequence[Sequence[float]],
    label: str,
    number: int,
) -> None:
    """A line through the means, and a mark for each value; number: of the line."""
    places = np.array(workers) * 1.04 ** (number - 1)  # or marks would hide others
    means = [np.mean(of_one) for of_one in values]
    # Hollow, so that the seeds' marks are seen inside.
    (line,) = axis.plot(places, means, ms=11, mfc="none", label=label)
    style = {"color": line.get_color(), "marker": line.get_marker(), "ls": "", "ms": 4}
    for place, of_one in zip(places, values, strict=True):
        axis.plot([place] * len(of_one), of_one, alpha=0.6, **style)


def _doubling(axis: Axes, numbers: Sequence[int], label: str) -> None:
    """The x axis is for these numbers of `label`, each twice the one before."""
    axis.set_xscale("log", base=2)
    axis.set_xlabel(label)
    only_ticks(axis.xaxis, numbers)


def _log_y(axis: Axes) -> None:
    """A y axis with a log scale, and numbers to read at 1, 2, 5, 10, 20, ..."""
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.yaxis.set_ticks([], minor=True)


def estimates(random: np.ndarray, exact: float, images: int) -> Figure:
    """What three random rounds say of the accuracy, against one exact round."""
    figure, axis = subplots()
    label = f"three random rounds: {3 * images:,} images"
    # They are multiples of 1 / (3 images): as many of these fall into each bar.
    width = 2 / (3 * images)
    edges = np.arange(random.min() - width / 4, random.max() + width, width)
    axis.hist(random, edges, color=BLUE, alpha=0.6, label=label)
    axis.axvline(exact, color=VERMILION, lw=3, label=f"exact: {images:,} images")
    axis.set_xlabel("validation accuracy, as the workers see it")
    axis.set_ylabel(f"times, of {len(random)}")
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
        _means_and_marks(axis, workers, last, recipe, number)
    _doubling(axis, workers, "workers")
    axis.set(ylabel=f"accuracy after {record.results['epochs']} epochs")
    axis.yaxis.set_major_formatter(PercentFormatter(1))
    axis.legend(title="mean, and each seed")
    return figure.with_origin(record.origin, *record.notes)


def time_to_accuracy(record: Record, target: float) -> Figure:
    """Steps, and seconds of training, of recorded runs until an accuracy is reached,
    against workers: the mean over the seeds, from the fewest to the most. A number of
    workers is left out, and named below, where a seed did not reach it."""
    figure, axes = subplots(1, 2, figsize=(10, 3.8))
    groups = global_batch.grouped(record.results["runs"])
    ways = {"steps": global_batch.steps_to, "seconds": global_batch.seconds_to}
    notes = []
    for axis, (unit, needed_by) in zip(axes, ways.items(), strict=True):
        for number, (recipe, by_workers) in enumerate(groups.items()):
            counts = sorted(by_workers)
            needs = {
                n: [needed_by(run, target) for run in by_workers[n]] for n in counts
            }
            notes += [
                f"Not from every seed: {recipe}, {n} workers."
                for n in counts
                if None in needs[n]
            ]
            needs = {n: all_ for n, all_ in needs.items() if None not in all_}
            means = np.array([np.mean(values) for values in needs.values()])
            low = means - [min(values) for values in needs.values()]
            high = [max(values) for values in needs.values()] - means
            label = recipe if needs else f"{recipe}: never"
            places = [n * 1.04 ** (number - 1) for n in needs]
            axis.errorbar(places, means, np.array([low, high]), capsize=3, label=label)
        _doubling(axis, counts, f"workers, {global_batch.BATCH} images each")
        axis.set(ylabel=f"{unit} of training to {target:.0%}")
        axis.set_ylim(bottom=0)
    axes[0].legend(title="mean, fewest and most of the seeds")
    return figure.with_origin(record.origin, *record.notes, *dict.fromkeys(notes))


def pareto(attempts: Sequence[Attempt]) -> Figure:
    """Accuracy against time of several attempts, each with a mark of its own: filled on
    the front that none beats, hollow where another one is better. And the goal."""
    figure, axis = subplots(figsize=(8, 3.8))
    best = global_batch.front(list(attempts))
    seconds = [attempt.seconds for attempt in best]
    reached = [attempt.accuracy for attempt in best]
    axis.plot(seconds, reached, "-", color=GREY, lw=1, drawstyle="steps-post")
    for attempt, marker in zip(attempts, itertools.cycle("osD^vPX")):
        on_front = attempt in best
        color = GREEN if on_front else ORANGE
        team = f"{attempt.workers} worker{'s' * (attempt.workers > 1)}"
        place = "on the front" if on_front else "beaten"
        axis.plot(
            attempt.seconds,
            attempt.accuracy,
            marker=marker,
            ls="",
            ms=10,
            color=color,
            mfc=color if on_front else "none",
            label=f"{attempt.name}, {team}: {place}",
        )
    axis.axhline(global_batch.GOAL, color=VERMILION, linestyle="--", label="the goal")
    axis.set(xlabel="seconds from start to end", ylim=(0, 1))
    axis.set_ylabel("accuracy of the kept weights")
    axis.set_xlim(0, 1.2 * max(attempt.seconds for attempt in attempts))
    axis.yaxis.set_major_formatter(PercentFormatter(1))
    axis.legend(loc="lower left")
    return figure


def by_rate(
    panels: Mapping[str, Mapping[str, Mapping[float, Sequence[float]]]],
) -> Figure:
    """Accuracies against the learning rate: panel -> label -> learning rate -> one of
    each seed. A mark each, and lines through the means."""
    figure, axes = subplots(1, len(panels), figsize=(10, 3.6), sharey=True)
    for axis, (title, by_label) in zip(
        np.atleast_1d(axes), panels.items(), strict=True
    ):
        for number, (label, accuracies) in enumerate(by_label.items()):
            rates = list(accuracies)
            _means_and_marks(axis, rates, list(accuracies.values()), label, number)
        axis.set_xscale("log")
        only_ticks(axis.xaxis, rates)
        axis.set(xlabel="learning rate")
        axis.set_title(title, fontsize=10)
        axis.yaxis.set_major_formatter(PercentFormatter(1))
    np.atleast_1d(axes)[0].set_ylabel("validation accuracy")
    np.atleast_1d(axes)[0].legend(title="mean, and each seed", loc="lower center")
    return figure
