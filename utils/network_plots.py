"""The figures of several hosts; as in utils.plots, each returns its Figure."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

from utils import cost_model, elastic, elastic_plots, namespaces
from utils.namespaces import CutOff, Lan, Speed
from utils.plots import COLOURS, MARKS, _axes, _finish


def picture(lan: Lan) -> Figure:
    """Which hosts there are, and what they are connected by."""
    figure, axis = _axes(width=8, height=2.6)
    axis.axis("off")
    places = np.linspace(0, 1, len(lan.addresses))
    middle = places.mean()
    box = {"boxstyle": "round,pad=0.6", "facecolor": "white"}
    for number, place in zip(lan.numbers, places, strict=True):
        axis.plot([place, middle], [0, 1], color=COLOURS[0], lw=2, zorder=0)
        text = f"{namespaces.name(number)}\n{namespaces.CARD}: "
        text += namespaces.address(number)
        axis.text(place, 0, text, ha="center", va="center", bbox=box)
    cable = namespaces.title(lan.mbit)
    axis.text(middle, 1, f"switch\n{cable}", ha="center", va="center", bbox=box)
    axis.set(xlim=(-0.3, 1.3), ylim=(-0.5, 1.5))
    return _finish(figure)


def speeds(found: Mapping[str, Speed], origin: str = "") -> Figure:
    """Speed-up of two hosts against one, by bandwidth: measured, and as predicted.

    found: of utils.namespaces.speeds. The band lies between the cost model with no
    byte hidden behind computing, and with all hidden that can be. origin: a line to
    stand below.
    """
    figure, axis = _axes(width=8, height=4)
    one = found[namespaces.ONE_HOST].images_per_second
    two = [row for row in found.values() if row.hosts > 1]
    hosts = two[0].hosts
    for shaped, colour, label in (
        (True, COLOURS[0], "measured"),
        (False, COLOURS[2], "measured, as fast as this machine can"),
    ):
        rows = [row for row in two if row.shaped == shaped]
        if rows:
            x = [row.throughput for row in rows]
            y = [row.images_per_second / one for row in rows]
            mark = MARKS[0 if shaped else 2]
            axis.plot(x, y, mark, ms=8, color=colour, label=label, zorder=3)
    reach = [row.throughput for row in two]
    across = np.geomspace(min(reach) / 2, max(reach) * 2, 200)
    silent = float(np.median([row.silent for row in two]))
    network, batch = cost_model.wide_resnet(1), two[0].batch
    bounds = [
        [
            namespaces.predicted(silent, hosts, batch, network, mbit, hidden) / one
            for mbit in across
        ]
        for hidden in (False, True)
    ]
    axis.fill_between(
        across,
        *bounds,
        color=COLOURS[1],
        alpha=0.3,
        label="predicted: nothing to all hidden behind computing",
    )
    axis.plot(across, bounds[0], color=COLOURS[1])
    axis.plot(across, bounds[1], "--", color=COLOURS[1])
    axis.axhline(1, color="#666666", lw=1, ls=":")
    axis.annotate("one host alone", (across[-1], 1), va="bottom", ha="right")
    axis.set(xscale="log", ylim=(0, 1.15 * hosts))
    axis.set(xlabel="megabits per second, measured", ylabel="speed-up")
    axis.xaxis.set_major_locator(FixedLocator(sorted(round(x, -1) or x for x in reach)))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(ScalarFormatter())
    axis.legend(loc="lower right")
    if origin:
        figure.supxlabel(origin, fontsize=8, color="#444444", wrap=True)
    return _finish(figure)


def lost_host(cut: CutOff | None) -> Figure:
    """Workers and loss, second by second, of an elastic run whose host was cut off.

    None: an empty figure that says that there was no such run.
    """
    if cut is None:
        figure, axis = _axes(width=8, height=1.2)
        axis.axis("off")
        axis.text(0.5, 0.5, "not run here: no hosts of their own", ha="center")
        return _finish(figure)
    incident = elastic.Incident("cut off", 0, "")
    happened = [elastic.Happened(incident, cut.time)]
    return elastic_plots.workers_and_loss(elastic.journal(cut.run.folder), happened)
