"""The figures on tasks and hosts."""

from collections.abc import Mapping

import numpy as np
import pandas
from matplotlib.ticker import MaxNLocator

from utils.cluster import elastic, namespaces
from utils.cluster.namespaces import CutOff, Lan
from utils.figures import elastic as elastic_plots
from utils.figures.style import (
    BLUE,
    COLORS,
    GREEN,
    GREY,
    ORANGE,
    WARNING,
    Figure,
    only_ticks,
    subplots,
)
from utils.measure import cost_model, network_speed
from utils.measure.network_speed import Speed
from utils.running.result import Run


def seen(run: Run) -> dict[int, np.ndarray]:
    """The numbers of the images that each worker got in a pass: rank -> int (images,).

    Of a run of solutions/multi_worker.py with --keep-seen.
    """
    paths = sorted(run.folder.glob("seen-*.npy"))
    return {int(path.stem.partition("-")[2]): np.load(path) for path in paths}


def shards(runs: Mapping[str, Run], images: int = 60) -> Figure:
    """Which of the first so many images each worker got, in several runs."""
    parts = {label: seen(run) for label, run in runs.items()}
    workers = max(map(len, parts.values()))
    size = (10, 1.4 + 0.5 * workers)
    figure, axes = subplots(1, len(runs), figsize=size, squeeze=False)
    for axis, (label, part) in zip(axes.flat, parts.items(), strict=True):
        for rank, numbers in part.items():
            shown = numbers[numbers < images]
            rows = np.full(len(shown), rank)
            axis.plot(shown, rows, "|", ms=22, mew=2)
        axis.set_yticks(list(part), [f"worker {rank}" for rank in part])
        axis.set(title=label, xlabel="number of the image", ylim=(workers - 0.4, -0.6))
        axis.grid(visible=False)
    return figure.with_notices(*runs.values())


def lives(run: Run) -> Figure:
    """Training accuracy by epoch, of a run that was started again on the way."""
    figure, axis = subplots()
    for life, history in enumerate(run.histories, 1):
        epochs = history["epoch"] + 1
        axis.plot(epochs, history["accuracy"], ms=9, label=f"life {life}")
        if life > 1:
            axis.axvline(epochs[0] - 0.5, color=WARNING, ls="--")
    axis.set(xlabel="epoch", ylabel="training accuracy", ylim=(0, 1))
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.legend(title="dashed: a worker was killed", loc="lower right")
    return figure.with_notices(run)


def variables(run: Run) -> pandas.DataFrame:
    """Where a parameter-server run keeps its weights: columns name, ps, bytes."""
    return pandas.read_csv(run.folder / "variables.csv")


def steps(run: Run) -> pandas.DataFrame:
    """What the steps of a parameter-server run reported, in the order they ended.

    Columns: epoch; worker, "A", "B", ... by first appearance, where a process that was
    started again is a new one; read and wrote, the count of updates when it began and
    after its own; stale, how many updates of others came between the two; loss;
    seconds, since the first.
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
    figure, axis = subplots(figsize=(9, 0.9 + 0.7 * len(servers)))
    left = dict.fromkeys(servers, 0.0)
    for number, (name, ps, size) in enumerate(table.itertuples(index=False)):
        kilobytes = size / 1000
        color = COLORS[number % len(COLORS)]
        bars = axis.barh(ps, kilobytes, 0.6, left[ps], color=color, alpha=0.6)
        if kilobytes > table["bytes"].sum() / 10_000:
            words = f"{name.partition(':')[0]}\n{kilobytes:,.0f} kB"
            axis.bar_label(bars, [words], label_type="center", fontsize=9)
        left[ps] += kilobytes
    axis.set_yticks(servers, [f"ps {ps}" for ps in servers])
    axis.set(xlabel="kB of weights")
    axis.invert_yaxis()
    axis.grid(visible=False)
    return figure.with_notices(run)


def staleness(runs: Mapping[str, Run]) -> Figure:
    """How many steps came by how many updates too late, in several runs."""
    figure, axis = subplots()
    tables = {label: steps(run)["stale"] for label, run in runs.items()}
    stalest = max(stale.max() for stale in tables.values())
    width = 0.8 / len(runs)
    for number, (label, stale) in enumerate(tables.items()):
        counted = np.bincount(stale, minlength=stalest + 1)
        places = np.arange(stalest + 1) + number * width
        bars = axis.bar(places, counted, width, label=label)
        axis.bar_label(bars, fontsize=9)
    axis.set_xticks(np.arange(stalest + 1) + 0.4 - width / 2, range(stalest + 1))
    axis.set(xlabel="updates by others between reading and writing", ylabel="steps")
    axis.legend()
    return figure.with_notices(*runs.values())


def timeline(run: Run) -> Figure:
    """When each worker finished its steps; one that came back is a new row."""
    table = steps(run)
    names = sorted(table["worker"].unique())
    figure, axis = subplots(figsize=(9, 1 + 0.5 * len(names)))
    for number, name in enumerate(names):
        times = table.loc[table["worker"] == name, "seconds"]
        axis.plot(times, np.full(len(times), number), "|", ms=18)
    labels = [f"{name}: {(table['worker'] == name).sum()} steps" for name in names]
    axis.set_yticks(range(len(names)), labels)
    axis.set(xlabel="seconds since the first step ended", ylim=(len(names) - 0.4, -0.6))
    return figure.with_notices(run)


def picture(lan: Lan) -> Figure:
    """Which hosts there are, and what they are connected by."""
    figure, axis = subplots(figsize=(8, 2.6))
    axis.axis("off")
    places = np.linspace(0, 1, len(lan.addresses))
    middle = places.mean()
    box = {"boxstyle": "round,pad=0.6", "facecolor": "white"}
    for number, place in zip(lan.numbers, places, strict=True):
        axis.plot([place, middle], [0, 1], "-", color=BLUE, lw=2, zorder=0)
        text = f"{namespaces.name(number)}\n{namespaces.CARD}: "
        text += namespaces.address(number)
        axis.text(place, 0, text, ha="center", va="center", bbox=box)
    cable = namespaces.title(lan.mbit)
    axis.text(middle, 1, f"switch\n{cable}", ha="center", va="center", bbox=box)
    axis.set(xlim=(-0.3, 1.3), ylim=(-0.5, 1.5))
    return figure


def speeds(measured: Mapping[str, Speed], origin: str = "") -> Figure:
    """Speed-up of two hosts against one, by bandwidth: measured, and as predicted.

    measured: of measure/network_speed.py. The band lies between the cost model with no
    byte hidden behind computing, and with all hidden that can be. origin: a line to
    stand below.
    """
    figure, axis = subplots(figsize=(8, 4))
    one_host = measured[network_speed.ONE_HOST].images_per_second
    two_hosts = [row for row in measured.values() if row.hosts > 1]
    hosts = two_hosts[0].hosts
    for shaped, mark, color, label in (
        (True, "o", BLUE, "measured"),
        (False, "^", GREEN, "measured, as fast as this machine can"),
    ):
        rows = [row for row in two_hosts if row.shaped == shaped]
        if rows:
            x = [row.throughput for row in rows]
            y = [row.images_per_second / one_host for row in rows]
            axis.plot(x, y, mark, ms=8, color=color, label=label, zorder=3)
    reach = [row.throughput for row in two_hosts]
    across = np.geomspace(min(reach) / 2, max(reach) * 2, 200)
    silent = float(np.median([row.silent for row in two_hosts]))
    network, batch = cost_model.wide_resnet(1), two_hosts[0].batch
    bounds = [
        [
            network_speed.predicted(silent, hosts, batch, network, mbit, hidden)
            / one_host
            for mbit in across
        ]
        for hidden in (False, True)
    ]
    label = "predicted: nothing to all hidden behind computing"
    axis.fill_between(across, *bounds, color=ORANGE, alpha=0.3, label=label)
    for bound, dashes in zip(bounds, ("-", "--"), strict=True):
        axis.plot(across, bound, dashes, color=ORANGE)
    axis.axhline(1, color=GREY, lw=1, ls=":")
    axis.annotate("one host alone", (across[-1], 1), va="bottom", ha="right")
    axis.set(xscale="log", ylim=(0, 1.15 * hosts))
    axis.set(xlabel="megabits per second, measured", ylabel="speed-up")
    only_ticks(axis.xaxis, sorted(round(x, -1) or x for x in reach))
    axis.legend(loc="lower right")
    return figure.with_origin(origin)


def lost_host(cut: CutOff, origin: str = "") -> Figure:
    """Workers and loss, second by second, of an elastic run whose host was cut off.

    origin: where a recorded one comes from, to stand below.
    """
    incident = elastic.Incident("cut off", 0, "")
    happened = [elastic.Happened(incident, cut.time)]
    journal = elastic.journal(cut.run.folder)
    return elastic_plots.workers_and_loss(journal, happened).with_origin(origin)
