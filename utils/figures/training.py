"""The figures of training: data, networks, curves, and what workers recorded."""

import itertools
import re
from collections import Counter
from collections.abc import Mapping

import numpy as np
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator, PercentFormatter

from utils.figures.style import COLORS, Figure, bars, legend, subplots
from utils.running.result import Run
from utils.running.watch import UNSEEN
from utils.training.data import SHIFT, Dataset, flip_and_shift
from utils.training.devices import grow_memory


def garments(dataset: Dataset, examples: int = 8) -> Figure:
    """Each class of a data set: its name and its first training images.

    The title names the data set, and says so if it is a sample.
    """
    figure, axes = subplots(5, 2, figsize=(10, 4.6))
    for label, (axis, name) in enumerate(zip(axes.flat, dataset.classes, strict=True)):
        images = dataset.x_train[dataset.y_train == label][:examples]
        axis.set_title(name, loc="left", fontsize=10)
        axis.axis("off")
        if len(images):  # a very small training set may lack a class
            axis.imshow(np.hstack(images), cmap="gray")
    figure.suptitle(dataset.name[0].upper() + dataset.name[1:], fontweight="bold")
    return figure


def augmented(dataset: Dataset, versions: int = 8) -> Figure:
    """A few training images, and what flips and shifts make of them."""
    import tensorflow as tf

    grow_memory()  # the program that the notebook starts next needs it, too
    originals = dataset.x_train[:3]
    random = np.random.default_rng(1)
    figure, axes = subplots(3, 1, figsize=(9, 3.6))
    for axis, original in zip(axes, originals, strict=True):
        copies = tf.repeat(original[None], versions, axis=0)
        flips = tf.constant(random.random(versions) < 0.5)
        moves = random.integers(-SHIFT, SHIFT + 1, (versions, 2), dtype=np.int32)
        changed = flip_and_shift(copies, flips, tf.constant(moves)).numpy()
        row = [original, np.full((28, 6), 255), *changed]
        axis.imshow(np.hstack(row), cmap="gray")
        axis.axis("off")
    axes[0].set_title("the image, and eight times what the network may see", loc="left")
    return figure


def network(width: int) -> Figure:
    """The WideResNet of the course from left to right, with the shape after each part.

    width: the network's k; its groups have 16k, 32k and 64k channels.
    """
    parts = [("image", 28, 1), ("cbr", 28, 16)]
    for group, size in enumerate((28, 14, 7)):
        parts.append((f"group {group + 1}\n2 blocks", size, 16 * 2**group * width))
    figure, axis = subplots(figsize=(8.5, 2.9))
    x = 0.0
    for number, (name, size, channels) in enumerate(parts):
        height = size / 28 * 2
        corner, color = (x, -height / 2), COLORS[number]
        axis.add_patch(Rectangle(corner, 1.1, height, color=color, alpha=0.35))
        axis.text(x + 0.55, 0, name, ha="center", va="center")
        shape = f"{size} x {size}\n{channels} channel{'s' * (channels > 1)}"
        axis.text(x + 0.55, -1.15, shape, ha="center", va="top", fontsize=9)
        arrow = "2x2\npool" if name.startswith(("group 1", "group 2")) else ""
        axis.text(x + 1.4, 0.12, arrow, ha="center", va="bottom", fontsize=8)
        axis.annotate("", (x + 1.65, 0), (x + 1.15, 0), arrowprops={"arrowstyle": "->"})
        x += 1.7
    axis.text(x, 0, "average over\nthe image,\nsoftmax over\n10 classes", va="center")
    axis.set(xlim=(-0.1, x + 1.6), ylim=(-1.8, 1.2), title=f"WRN-16-{width}")
    axis.axis("off")
    return figure


def curves(run: Run) -> Figure:
    """Loss and accuracy of a run by epoch: in training, and in validation."""
    figure, axes = subplots(1, 2, figsize=(10, 3.4))
    epochs = run.history["epoch"] + 1
    for axis, name in zip(axes, ("loss", "accuracy"), strict=True):
        for column, label in ((name, "training"), (f"val_{name}", "validation")):
            axis.plot(epochs, run.history[column], label=label)
        axis.set(xlabel="epoch", ylabel=name)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.legend()
    axes[1].set_ylim(0, 1)
    return figure.with_notices(run)


def devices(run: Run) -> Figure:
    """Which processor core, or which GPU, each worker of a watched run was on.

    A bar a worker; its parts are the shares of its busy time on each core or, as soon
    as it has any, of its memory on each GPU: a busy core says nothing of a GPU. Where
    the workers' GPUs can't be told apart, as in many containers, a bar for each GPU
    shows the most memory that was in use there. Raises ValueError when the run was not
    watched.
    """
    if not run.samples:
        raise ValueError("this run was not watched: start it with watch=True.")
    ranks = sorted({sample["rank"] for sample in run.samples})
    busy = {rank: Counter() for rank in ranks}
    held = {rank: Counter() for rank in ranks}
    in_use: dict[str, float] = {}
    for sample in run.samples:
        busy[sample["rank"]][sample["core"]] += sample["percent"]
        held[sample["rank"]].update(sample["gpus"])
        for name, mib in sample["in_use"].items():
            in_use[name] = max(mib, in_use.get(name, 0.0))
    if in_use and not any(held.values()):
        return _memory_in_use(in_use).with_notices(run)
    parts = {rank: held[rank] or busy[rank] for rank in ranks}
    figure, axis = subplots(figsize=(8, 0.8 + 0.6 * len(ranks)))
    names = sorted({device for shares in parts.values() for device in shares})
    left = np.zeros(len(ranks))
    for color, name in zip(itertools.cycle(COLORS), names, strict=False):
        totals = [max(sum(parts[rank].values()), 1e-9) for rank in ranks]
        shares = np.array(
            [parts[r][name] / t for r, t in zip(ranks, totals, strict=True)]
        )
        drawn = axis.barh(ranks, shares, 0.6, left, color=color, alpha=0.8)
        words = [f"{name}\n{share:.0%}" if share > 0.08 else "" for share in shares]
        axis.bar_label(drawn, words, label_type="center", fontsize=9)
        left += shares
    axis.set_yticks(ranks, [f"rank {rank}" for rank in ranks])
    axis.invert_yaxis()
    axis.xaxis.set_major_formatter(PercentFormatter(1))
    wholes = ["memory on GPUs"] * any(held.values())
    wholes += ["busy time"] * (not all(held.values()))
    axis.set(xlabel=f"share of the worker's {' or '.join(wholes)}", xlim=(0, 1))
    axis.grid(visible=False)
    return figure.with_notices(run)


def _memory_in_use(in_use: Mapping[str, float]) -> Figure:
    """The most MiB that were in use on each GPU, whosever they were."""
    figure, axis = subplots(figsize=(8, 1.2 + 0.4 * len(in_use)))
    bars(axis, {name: mib / 1024 for name, mib in in_use.items()}, "{:.1f} GiB")
    axis.set(xlabel="most memory in use, GiB")
    axis.set_title(UNSEEN, fontsize=9, loc="left")
    return figure


def distances(run: Run) -> dict[int, np.ndarray]:
    """How far each worker's weights are from rank 0's, batch by batch.

    rank -> float (batches + 1,): the root mean square of the difference over that of
    rank 0's weights; index 0 is before the first batch. Needs a recorded run.
    """
    return _from_rank_0([run.recording(n).weights for n in range(run.workers)])


def update_distances(run: Run) -> dict[int, np.ndarray]:
    """How far each worker's updates are from rank 0's, batch by batch.

    rank -> float (batches,): as `distances`, for the change of the weights in each
    batch. Needs a recorded run.
    """
    weights = [run.recording(rank).weights for rank in range(run.workers)]
    return _from_rank_0([np.diff(rows, axis=0) for rows in weights])


def _from_rank_0(numbers: list[np.ndarray]) -> dict[int, np.ndarray]:
    size = np.sqrt(np.mean(numbers[0] ** 2, axis=1))
    return {
        rank: np.sqrt(np.mean((other - numbers[0]) ** 2, axis=1)) / size
        for rank, other in enumerate(numbers)
        if rank
    }


def paths(runs: Mapping[str, Run]) -> Figure:
    """The way that each worker's weights went, in several recorded runs.

    runs: label -> run. Weights have many dimensions; drawn are the two in which the
    workers of a run moved most, each from its own weights after the first batch, its
    star (the first principal components, not centred), in units of the size of rank
    0's weights then. Workers that set out together share a star. The star of one that
    set out elsewhere stands to the right, as far off as its weights are from rank 0's:
    that is a third direction, laid along the first.
    """
    figsize = (min(10, 5 * len(runs)), 4.1)
    figure, axes = subplots(1, len(runs), figsize=figsize, squeeze=False)
    for axis, (label, run) in zip(axes.flat, runs.items(), strict=True):
        weights = [run.recording(rank).weights[1:] for rank in range(run.workers)]
        moves = np.concatenate([series - series[0] for series in weights])
        moves /= np.linalg.norm(weights[0][0])
        # The few moves' inner products hold what the SVD of the long vectors would.
        values, vectors = np.linalg.eigh(moves @ moves.T)
        plane = vectors[:, :-3:-1] * np.sqrt(np.maximum(values[:-3:-1], 0))
        apart = {rank: distance[1:] for rank, distance in distances(run).items()}
        star = 0.0
        for rank, path in enumerate(np.split(plane, run.workers)):
            name = f"rank {rank}"
            if rank and apart[rank][0] > 0:
                gap = [star, star := star + apart[rank][0]]
                axis.plot(gap, [0, 0], "k:", marker="")
                distance = f"{apart[rank][0]:.0%} apart"
                if run.workers < 4:
                    words = {"xytext": (0, 4), "textcoords": "offset points"}
                    words |= {"ha": "center", "fontsize": 9}
                    axis.annotate(distance, (np.mean(gap), 0), **words)
                else:  # there is no room for them
                    name += f": {distance}"
            size = 9 if rank == 0 else 4
            axis.plot(path[:, 0] + star, path[:, 1], ms=size, label=name)
            axis.plot(star, 0, "k*", markersize=12)
        end = max(distance[-1] for distance in apart.values())
        axis.set_title(f"{label}\nweights at the end: {end:.0%} apart", fontsize=10)
        axis.set_xlabel("direction of most movement", fontsize=9)
        axis.set_ylabel("direction of next most", fontsize=9)
        axis.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axis.yaxis.set_major_formatter(PercentFormatter(1, decimals=1))
        axis.tick_params(labelsize=8)
        axis.locator_params(axis="x", nbins=5)
        legend(axis)
    return figure.with_notices(*runs.values())


def drift(run: Run) -> Figure:
    """How far the workers' weights are apart, batch by batch."""
    figure, axis = subplots()
    axis.plot([], [])  # rank 0 has the first color in all figures
    for rank, distance in distances(run).items():
        axis.plot(distance, label=f"rank {rank} against rank 0")
    axis.set(xlabel="batch", ylabel="difference of the weights")
    axis.margins(y=0.15)
    axis.set_ylim(bottom=-0.05)
    axis.yaxis.set_major_formatter(PercentFormatter(1))
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend(axis)
    return figure.with_notices(run)


def lines_by_rank(run: Run) -> dict[int, int]:
    """How many lines each worker of a run printed: rank -> lines.

    What TensorFlow itself logs, on machines with GPUs above all, is not counted, nor
    are the course's notices: without a download each worker says that it has a sample.
    """
    ranks = [re.match(r"\[(\d+)\] (?!NOTICE: )", line) for line in run.lines()]
    counted = Counter(int(rank[1]) for rank in ranks if rank)
    return {rank: counted[rank] for rank in range(run.workers)}


def voices(runs: Mapping[str, Run]) -> Figure:
    """How many lines each worker printed in several runs: label -> run."""
    max_workers = max(run.workers for run in runs.values())
    figure, axis = subplots(figsize=(8, 0.9 + 0.35 * max_workers * len(runs)))
    for number, (label, run) in enumerate(runs.items()):
        counted = lines_by_rank(run)
        places = [rank + 0.8 * number / len(runs) for rank in counted]
        lines = axis.barh(places, counted.values(), 0.7 / len(runs), label=label)
        axis.bar_label(lines, padding=3)
    offset = 0.4 * (len(runs) - 1) / len(runs)
    axis.set_yticks(
        np.arange(max_workers) + offset, [f"rank {rank}" for rank in range(max_workers)]
    )
    axis.invert_yaxis()
    axis.set(xlabel="lines printed")
    axis.legend()
    return figure.with_notices(*runs.values())


def epoch_times(runs: Mapping[str, Run]) -> Figure:
    """Seconds of training in an epoch of several runs: label -> run."""
    figure, axis = subplots(figsize=(8, 0.9 + 0.5 * len(runs)))
    seconds = {label: run.seconds_per_epoch for label, run in runs.items()}
    bars(axis, seconds, "{:.1f} s")
    axis.set(xlabel="seconds of training in an epoch")
    return figure.with_notices(*runs.values())


def losses(runs: Mapping[str, Run]) -> Figure:
    """Training and validation loss by epoch of several runs: label -> run."""
    figure, axes = subplots(1, 2, figsize=(10, 3.4))
    columns = {"loss": "training loss", "val_loss": "validation loss"}
    for axis, (column, name) in zip(axes, columns.items(), strict=True):
        for number, (label, run) in enumerate(runs.items()):
            epochs = range(1, len(run.history) + 1)
            size = 11 - 5 * (number % 2)  # lines that coincide are still seen
            axis.plot(epochs, run.history[column], ms=size, label=label)
        axis.set(xlabel="epoch", ylabel=name)
        axis.margins(y=0.1)
        axis.set_ylim(bottom=0)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.legend()
    return figure.with_notices(*runs.values())


def points_apart(run: Run) -> float:
    """By how many percentage points the validation accuracies that the workers of a
    recorded run took for true differed, in the epoch in which they did so most."""
    return 100 * float(np.ptp(_accuracies_seen(run), axis=0).max())


def _accuracies_seen(run: Run) -> np.ndarray:
    """What each worker's last callback saw as val_accuracy: (workers, epochs)."""
    return np.array(
        [
            [metrics["val_accuracy"] for metrics in run.recording(rank).metrics_after]
            for rank in range(run.workers)
        ]
    )


def accuracies(runs: Mapping[str, Run]) -> Figure:
    """What each worker takes the validation accuracy for, by epoch, in several runs.

    runs: label -> recorded run. Shown is what the last callback of each worker saw;
    the title says by how much they differed in the epoch in which they did so most.
    """
    figure, axes = subplots(1, len(runs), figsize=(5 * len(runs), 3.4), squeeze=False)
    for axis, (label, run) in zip(axes.flat, runs.items(), strict=True):
        for rank, values in enumerate(_accuracies_seen(run)):
            size = 11 - 5 * (rank % 2)
            axis.plot(range(1, len(values) + 1), values, ms=size, label=f"rank {rank}")
        apart = points_apart(run)
        axis.set_title(f"{label}\nat most {apart:.2f} percentage points apart")
        axis.set(xlabel="epoch", ylabel="validation accuracy")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        legend(axis)
    return figure.with_notices(*runs.values())


def waves() -> Figure:
    """One wave of each shape that exercises/waves.py tells apart, with and without the
    noise in which it is hidden."""
    time = np.linspace(0, 1, 64, endpoint=False)
    turns = 3 * time + 0.1
    shapes = {
        "sine": np.sin(2 * np.pi * turns),
        "square": np.sign(np.sin(2 * np.pi * turns)),
        "saw tooth": 2 * turns % 2 - 1,
    }
    noise = np.random.default_rng(7)
    figure, axes = subplots(1, 3, figsize=(10, 2.6), sharey=True)
    for axis, (name, wave) in zip(axes, shapes.items(), strict=True):
        axis.plot(time, wave + noise.normal(0, 0.7, 64), ms=3, label="with noise")
        axis.plot(time, wave, marker="", label="shape")
        axis.set(title=name, xlabel="time")
    axes[0].legend()
    return figure


def ranks(machines: int, gpus: int) -> Figure:
    """Machines with GPUs, and rank and local rank of the worker on each GPU."""
    figure, axis = subplots(figsize=(1.8 * gpus, 1.5 * machines))
    for machine in range(machines):
        y = -1.5 * machine
        frame = Rectangle((-0.15, y - 0.15), gpus + 0.1, 1.25, fill=False)
        axis.add_patch(frame)
        axis.text(-0.3, y + 0.45, f"machine {machine}", ha="right", va="center")
        for gpu in range(gpus):
            color = COLORS[gpu % len(COLORS)]
            box = Rectangle((gpu, y), 0.8, 0.95, color=color, alpha=0.25)
            axis.add_patch(box)
            words = f"GPU {gpu}\nrank {machine * gpus + gpu}\nlocal rank {gpu}"
            axis.text(gpu + 0.4, y + 0.47, words, ha="center", va="center")
    axis.set_xlim(-1.3, gpus + 0.1)
    axis.set_ylim(-1.5 * machines + 1.2, 1.25)
    axis.axis("off")
    axis.set_title(f"size {machines * gpus}: {machines} machines with {gpus} GPUs each")
    return figure


def unseen(rounds: int, workers: range = range(1, 33)) -> Figure:
    """The share of validation images that no worker looks at, against workers.

    Each of N workers draws rounds/N of the images without repeating one, on its own:
    an image is missed by all with probability (1 - rounds/N)^N, 0 where N <= rounds.
    Both one round and `rounds` rounds are shown.
    """
    figure, axis = subplots()
    for r in sorted({1, rounds}):
        missed = [max(0.0, 1 - r / n) ** n for n in workers]
        axis.plot(workers, missed, label="1 round" if r == 1 else f"{r} rounds")
    axis.set(xlabel="workers", ylabel="images nobody looks at", ylim=(-0.01, 0.45))
    axis.yaxis.set_major_formatter(PercentFormatter(1))
    axis.legend(title="of validation, shared by all")
    return figure
