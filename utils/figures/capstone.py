"""The figures of the capstone."""

from collections.abc import Mapping

from matplotlib.ticker import PercentFormatter

from utils.figures.style import PALE, Figure, subplots
from utils.running.result import Run
from utils.training import doodles, leaderboard


def strokes_and_pixels(
    name: str, by_class: Mapping[str, list[doodles.Drawing]]
) -> Figure:
    """One doodle of each class: its strokes, numbered by color and mark in the order
    in which they were drawn, above the pixels that a network sees.

    `name` and `by_class` are what utils.training.doodles.drawings returns.
    """
    figure, axes = subplots(2, len(by_class), figsize=(1.15 * len(by_class), 2.9))
    for (word, drawings), (above, below) in zip(by_class.items(), axes.T, strict=True):
        for x, y in drawings[0]:
            above.plot(x, y, markersize=3, markevery=[0], linewidth=1.2)
        above.invert_yaxis()
        above.set_aspect("equal", "datalim")
        above.set_title(word, fontsize=9)
        below.imshow(doodles.render(drawings[0]), cmap="gray")
        for axis in (above, below):
            axis.axis("off")
    figure.suptitle(name[0].upper() + name[1:], fontweight="bold")
    return figure


def against_time(runs: Mapping[str, Run]) -> Figure:
    """Validation accuracy after so many seconds of training; the goal's is shaded."""
    figure, axis = subplots(figsize=(7.5, 3.4))
    for name, run in runs.items():
        axis.plot(run.history["seconds"], run.history["val_accuracy"], label=name)
    axis.axhspan(leaderboard.GOAL_ACCURACY, 1, color=PALE, zorder=0)
    axis.annotate("the goal", (0, 1), (4, -4), textcoords="offset points", va="top")
    axis.set(xlabel="seconds of training", ylabel="validation accuracy", ylim=(0, 1))
    axis.set_xlim(left=0)
    axis.yaxis.set_major_formatter(PercentFormatter(1, 0))
    axis.legend(loc="lower right", frameon=False)
    return figure.with_notices(*runs.values())
