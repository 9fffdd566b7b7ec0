"""The figures of notebook 20."""

from collections.abc import Sequence

import numpy as np
from matplotlib.ticker import MaxNLocator, PercentFormatter

from utils.cluster import elastic
from utils.cluster.elastic import Happened
from utils.figures.style import BLUE, ORANGE, VERMILION, WARNING, Figure, subplots
from utils.running.result import Run


def workers_and_loss(journal, happened: Sequence[Happened] = ()) -> Figure:
    """How many workers there were, and the loss, second by second.

    journal: of cluster/elastic.py, a row a batch; it may have no row yet. happened: the
    incidents, drawn as lines.
    """
    figure, (above, below) = subplots(1, 2, figsize=(9.2, 3))
    start = journal["time"].min() if len(journal) else 0.0
    seconds = journal["time"] - start
    above.step(seconds, journal["workers"], where="post", marker="")
    above.set(xlabel="seconds", ylabel="workers")
    above.set_ylim(0, max([2, *journal["workers"]]) + 0.5)
    above.yaxis.set_major_locator(MaxNLocator(integer=True))
    for epoch, rows in journal.groupby("epoch"):
        colour = (BLUE, ORANGE)[int(epoch) % 2]
        below.plot(seconds[rows.index], rows["loss"], ".", ms=4, color=colour)
        middle = seconds[rows.index].median()
        below.annotate(
            f"{epoch + 1}",
            (middle, 1),
            xycoords=("data", "axes fraction"),
            color=colour,
            ha="center",
        )
    below.set_title("epoch", loc="right", fontsize=10, pad=14)
    below.set(xlabel="seconds", ylabel="loss of rank 0's batch")
    for event in happened:
        for axis in (above, below):
            axis.axvline(event.time - start, color=WARNING, lw=1, ls=":")
        above.annotate(
            event.incident.what,
            (event.time - start, 0.02),
            xycoords=("data", "axes fraction"),
            color=WARNING,
            rotation=90,
            ha="right",
        )
    return figure


def lives(runs: Sequence[Run]) -> Figure:
    """The loss by epoch, of a training that was started again."""
    figure, axis = subplots()
    for number, run in enumerate(runs):
        journal = elastic.journal(run.folder)
        images = journal.groupby("epoch")["images"].transform("max")
        axis.plot(
            journal["epoch"] + journal["images"] / max(images),
            journal["loss"],
            ls="",
            fillstyle="none",  # a life's batches lie on those of the one before
            ms=9 - 4 * number,
            label=f"life {number + 1}",
        )
    axis.set(xlabel="epochs done", ylabel="loss of rank 0's batch")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.legend()
    return figure.with_notices(*runs)


def cost_of_saving(saving: float, failures: float) -> Figure:
    """The share of the time that is lost, by how often is saved; times in seconds."""
    figure, axis = subplots()
    best = elastic.best_interval(saving, failures)
    intervals = np.geomspace(best / 20, best * 20, 200)
    shares = elastic.share_lost(intervals, saving, failures)
    axis.plot(intervals / 60, shares, "-", label="both")
    axis.plot(intervals / 60, saving / intervals, "--", label="saving")
    axis.plot(intervals / 60, intervals / 2 / failures, ":", label="doing again")
    least = elastic.share_lost(best, saving, failures)
    axis.plot(best / 60, least, "o", color=VERMILION)
    axis.annotate(
        f"every {best / 60:.0f} minutes: {least:.1%} lost",
        (best / 60, least),
        xytext=(0, 30),
        textcoords="offset points",
        ha="center",
    )
    axis.set(xscale="log", ylim=(0, 6 * least), xlabel="minutes between checkpoints")
    axis.set_ylabel("share of the time lost")
    axis.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axis.legend()
    return figure
