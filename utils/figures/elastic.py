"""The figures of the lessons on crashes and on elastic training."""

from collections.abc import Sequence

import numpy as np
from matplotlib.ticker import MaxNLocator, PercentFormatter

from utils.cluster import elastic
from utils.cluster.elastic import Happened
from utils.figures.diagrams import Diagram, draw_arrow, draw_box, draw_text, paper
from utils.figures.style import (
    BLUE,
    GREEN,
    ORANGE,
    PALE,
    VERMILION,
    WARNING,
    Figure,
    subplots,
)
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
        color = (BLUE, ORANGE)[int(epoch) % 2]
        below.plot(seconds[rows.index], rows["loss"], ".", ms=4, color=color)
        middle = seconds[rows.index].median()
        below.annotate(
            f"{epoch + 1}",
            (middle, 1),
            xycoords=("data", "axes fraction"),
            color=color,
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
            fillstyle="none",  # a run's batches lie on those of the one before
            ms=9 - 4 * number,
            label=f"run {number + 1}",
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
    axis.plot(intervals / 60, intervals / 2 / failures, ":", label="repeating work")
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
    axis.xaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axis.legend()
    return figure


def commits(every: int, dies_in: int, batches: int) -> Diagram:
    """The batches of a worker that commits after every so many of them, where another
    worker dies while one of them is on."""
    last = (dies_in - 1) // every * every
    diagram, ax = paper(
        8.6,
        2.35,
        f"Before the death: batches 1 to {dies_in}, with a commit after every {every}; "
        f"in batch {dies_in} another worker dies. After it: back to the commit after "
        f"batch {last}, then batches {last + 1} to {batches}, so {last + 1} to "
        f"{dies_in - 1} are done twice, and {dies_in} is begun twice.",
    )
    width, left = 7.0 / batches, 1.4

    def row(y: float, name: str, first: int, end: int) -> None:
        draw_text(ax, 0.1, y + 0.2, name, align="left")
        for batch in range(first, end + 1):
            x = left + (batch - 1) * width
            dead = name == "before" and batch == dies_in
            twice = last < batch <= dies_in
            fill = "white" if dead else ORANGE if twice else PALE
            edge = {"edge": WARNING} if dead else {}
            draw_box(ax, x + 0.02, y, width - 0.04, 0.4, str(batch), fill, **edge)
            if batch % every == 0:
                committed = x + width
                ax.plot([committed] * 2, [y - 0.08, y + 0.48], color=GREEN, lw=3)

    row(1.35, "before", 1, dies_in)
    row(0.35, "after", last + 1, batches)
    edge = left + last * width
    draw_text(ax, edge, 2.1, "commit", color=GREEN, weight="bold")
    dead = left + (dies_in - 0.5) * width
    draw_text(ax, dead + 0.25, 1.98, "another worker dies", align="left", color=WARNING)
    draw_arrow(ax, (dead, 1.33), (edge + 0.05, 0.85), color=WARNING)
    draw_text(ax, dead + 0.2, 1.08, "back to the last commit", align="left")
    return diagram
