"""The figures on clusters of tasks; as in utils.plots, each returns its Figure."""

from collections.abc import Mapping

import numpy as np
import pandas
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from utils.launch import Run
from utils.plots import COLOURS, MARKS, _axes, _finish


def seen(run: Run) -> dict[int, np.ndarray]:
    """The numbers of the images that each worker got in a pass: rank -> int (images,).

    Of a run of solutions/multi_worker.py with --keep-seen.
    """
    paths = sorted(run.folder.glob("seen-*.npy"))
    return {int(path.stem.partition("-")[2]): np.load(path) for path in paths}


def shards(runs: Mapping[str, Run], images: int = 60) -> Figure:
    """Which of the first so many images each worker got, in several runs."""
    figure, axes = _axes(len(runs), width=10 / len(runs), height=2.4)
    for axis, (label, run) in zip(np.atleast_1d(axes), runs.items(), strict=True):
        for rank, numbers in seen(run).items():
            shown = numbers[numbers < images]
            rows = np.full(len(shown), rank)
            axis.plot(shown, rows, "|", color=COLOURS[rank % 6], ms=22, mew=2)
        axis.set_yticks(list(seen(run)), [f"worker {rank}" for rank in seen(run)])
        axis.set(title=label, xlabel="number of the image", ylim=(1.6, -0.6))
        axis.grid(visible=False)
    return _finish(figure, *runs.values())


def lives(run: Run) -> Figure:
    """Training accuracy by epoch, of a run that was started again on the way."""
    figure, axis = _axes(width=8)
    for number, history in enumerate(run.histories):
        axis.plot(
            history["epoch"] + 1,
            history["accuracy"],
            color=COLOURS[number],
            marker=MARKS[number],
            markersize=9,
            label=f"life {number + 1}",
        )
        if number:
            axis.axvline(history["epoch"][0] + 0.5, color="#b00000", ls="--")
    axis.set(xlabel="epoch", ylabel="training accuracy", ylim=(0, 1))
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.legend(title="dashed: a worker was killed", loc="lower right")
    return _finish(figure, run)


def variables(run: Run) -> pandas.DataFrame:
    """Where a parameter-server run keeps its weights: columns name, ps, bytes."""
    return pandas.read_csv(run.folder / "variables.csv")


def steps(run: Run) -> pandas.DataFrame:
    """What the steps of a parameter-server run reported, in the order they ended.

    Columns: epoch; worker, "A", "B", ... by first appearance, where a process that was
    started again is a new one; read and wrote, versions of the weights; stale, how many
    updates of others came between the two; loss; seconds, since the first.
    """
    table = pandas.read_csv(run.folder / "steps.csv").sort_values("time")
    names = {tag: chr(ord("A") + n) for n, tag in enumerate(table["worker"].unique())}
    return table.assign(
        worker=table["worker"].map(names),
        stale=table["wrote"] - table["read"] - 1,
        seconds=table["time"] - table["time"].min(),
    ).reset_index(drop=True)


def placement(run: Run) -> Figure:
    """How many bytes of which variable are on which parameter server."""
    table = variables(run)
    servers = sorted(table["ps"].unique())
    figure, axis = _axes(width=9, height=0.9 + 0.7 * len(servers))
    left = dict.fromkeys(servers, 0.0)
    for number, (name, ps, size) in enumerate(table.itertuples(index=False)):
        kilobytes = size / 1000
        bars = axis.barh(
            ps, kilobytes, 0.6, left[ps], color=COLOURS[number % 6], alpha=0.6
        )
        if kilobytes > table["bytes"].sum() / 10_000:
            words = f"{name.partition(':')[0]}\n{kilobytes:,.0f} kB"
            axis.bar_label(bars, [words], label_type="center", fontsize=9)
        left[ps] += kilobytes
    axis.set_yticks(servers, [f"ps {ps}" for ps in servers])
    axis.set(xlabel="kB of weights")
    axis.invert_yaxis()
    axis.grid(visible=False)
    return _finish(figure, run)


def staleness(runs: Mapping[str, Run]) -> Figure:
    """How many steps came by how many updates too late, in several runs."""
    figure, axis = _axes(width=8)
    tables = {label: steps(run)["stale"] for label, run in runs.items()}
    most = max(stale.max() for stale in tables.values())
    width = 0.8 / len(runs)
    for number, (label, stale) in enumerate(tables.items()):
        counted = np.bincount(stale, minlength=most + 1)
        places = np.arange(most + 1) + number * width
        bars = axis.bar(places, counted, width, color=COLOURS[number], label=label)
        axis.bar_label(bars, fontsize=9)
    axis.set_xticks(np.arange(most + 1) + 0.4 - width / 2, range(most + 1))
    axis.set(xlabel="updates by others between reading and writing", ylabel="steps")
    axis.legend()
    return _finish(figure, *runs.values())


def timeline(run: Run) -> Figure:
    """When each worker finished its steps; one that came back is a new row."""
    table = steps(run)
    names = sorted(table["worker"].unique())
    figure, axis = _axes(width=9, height=1.0 + 0.5 * len(names))
    for number, name in enumerate(names):
        times = table.loc[table["worker"] == name, "seconds"]
        axis.plot(
            times, np.full(len(times), number), "|", color=COLOURS[number % 6], ms=18
        )
    labels = [f"{name}: {(table['worker'] == name).sum()} steps" for name in names]
    axis.set_yticks(range(len(names)), labels)
    axis.set(xlabel="seconds since the first step ended", ylim=(len(names) - 0.4, -0.6))
    return _finish(figure, run)
