"""The figures of notebook 27."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas
from matplotlib.axes import Axes

from utils.figures.diagrams import human_bytes
from utils.figures.style import (
    BLUE,
    COLOURS,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PURPLE,
    VERMILION,
    Figure,
    only_ticks,
    subplots,
)

OWNERS = (BLUE, ORANGE, GREEN, PURPLE)
MARKS = "os^Dv"
LINES = ("-", "--", ":", "-.")


def times(
    tables: Mapping[str, pandas.DataFrame],
    lines: Mapping[str, tuple[float, float]] | None = None,
    origin: str = "",
) -> Figure:
    """Time of a round by the bytes of its message, both logarithmic.

    tables: name -> as of utils.measure.wires.table. lines: name of a table -> latency
    in seconds and bandwidth in bytes a second, whose sum of times is drawn as a line.
    """
    figure, axis = subplots(figsize=(8, 4))
    for number, (name, rows) in enumerate(tables.items()):
        colour, mark = COLOURS[number], MARKS[number % len(MARKS)]
        look = {"color": colour, "ms": 7, "mew": 2, "fillstyle": "none"}  # none hides
        axis.plot(rows.bytes, rows.us / 1e3, mark, label=name, **look)
        if lines and name in lines:
            latency, bandwidth = lines[name]
            size = np.geomspace(rows.bytes.min(), rows.bytes.max(), 100)
            label = f"{name}: latency + bytes / bandwidth"
            axis.plot(
                size,
                1e3 * (latency + size / bandwidth),
                color=colour,
                marker="",
                label=label,
            )
    _by_message(axis)
    axis.set_ylabel("milliseconds a round")
    axis.legend()
    return figure.with_origin(origin) if origin else figure


def _by_message(axis: Axes) -> None:
    """Milliseconds by the bytes of a message, both logarithmic, in whole decades; three
    of time at least, lest a little more looks like much more."""
    axis.set(xscale="log", yscale="log", xlabel="size of a message")
    low, high = (np.log10(end) for end in axis.get_ylim())
    low, high = int(np.floor(low)), int(np.ceil(high))
    low = min(low, high - 3)
    only_ticks(axis.yaxis, 10.0 ** np.arange(low, high + 1))
    axis.set_ylim(10.0**low, 10.0**high)
    first, last = (np.log10(end) for end in axis.get_xlim())
    sizes = 10.0 ** np.arange(np.ceil(first), np.floor(last) + 1)
    axis.set_xticks(sizes, [human_bytes(size) for size in sizes])
    axis.set_xticks([], minor=True)


def laws(costs: Mapping[str, Callable[[float], float]], title: str) -> Figure:
    """Time of an all-reduce by the bytes of its message, for each way to do it.

    costs: name -> a function from bytes to seconds. title: of how many workers, and on
    what network.
    """
    figure, axis = subplots(figsize=(8, 3.6))
    size = np.geomspace(1e2, 1e9, 200)
    for number, (name, cost) in enumerate(costs.items()):
        took = [1e3 * cost(each) for each in size]
        axis.plot(
            size,
            took,
            ls=LINES[number % len(LINES)],
            color=COLOURS[number],
            marker="",
            label=name,
        )
    _by_message(axis)
    axis.set(ylabel="milliseconds", title=title)
    axis.legend()
    return figure


def collectives(results: Mapping[str, Sequence[tuple[list, list]]]) -> Figure:
    """What each collective makes of what the workers give: a panel each, a row for a
    worker, on the left what it gave, on the right what it got.

    results: of utils.measure.wires.results. Tens say whose a number was, and so does
    its colour; sums are grey.
    """
    workers = len(next(iter(results.values())))
    size = (8, 0.3 + len(results) * (0.5 + 0.3 * workers))
    figure, axes = subplots(len(results), 1, figsize=size, squeeze=False)
    for axis, (name, ranks) in zip(axes[:, 0], results.items(), strict=True):
        sums = {number for given, _ in ranks for number in given}
        for row, (given, got) in enumerate(ranks):
            _numbers(axis, 0, row, given, sums)
            _numbers(axis, workers + 1.5, row, got, sums)
            axis.annotate(
                "",
                (workers + 1.3, row),
                (workers + 0.2, row),
                arrowprops={"arrowstyle": "->", "color": GREY},
            )
        axis.set_title(name)
        axis.set_yticks(range(workers), [f"worker {rank}" for rank in range(workers)])
        axis.set_xticks([])
        axis.set_xlim(-0.2, workers + 1.7 + workers**2)
        axis.set_ylim(workers - 0.4, -0.6)
        axis.grid(False)
    axes[-1, 0].set_xlabel(
        "left: what each worker gives; right: what it gets; grey: sums", loc="left"
    )
    return figure


def _numbers(axis, left: float, row: int, numbers: Sequence[int], given: set) -> None:
    """Numbers in a row of cells, each in the colour of the worker that gave it."""
    for place, number in enumerate(numbers):
        colour = OWNERS[number // 10 % len(OWNERS)] if number in given else GREY
        axis.text(
            left + place + 0.5,
            row,
            str(number),
            ha="center",
            va="center",
            color="white" if colour != ORANGE else INK,
            bbox={"boxstyle": "square,pad=0.25", "fc": colour, "ec": "white"},
        )


def combined(first, second, result: Sequence[float], name: str = "Adasum") -> Figure:
    """Two gradients of two numbers as arrows, their sum, their mean, and what was made
    of them."""
    figure, axis = subplots(figsize=(7, 3.6))
    first, second = np.asarray(first), np.asarray(second)
    drawn = {
        "worker 0": (first, BLUE, "-"),
        "worker 1": (second, GREEN, "--"),
        "sum": (first + second, ORANGE, ":"),
        "mean": ((first + second) / 2, GREY, "none"),  # on the sum's line
        name: (np.asarray(result), VERMILION, "-."),
    }
    for label, ((x, y), colour, line) in drawn.items():
        axis.plot([0, x], [0, y], ls=line, color=colour, marker="o", label=label)
    axis.axhline(0, color=GREY, lw=0.5)
    axis.axvline(0, color=GREY, lw=0.5)
    axis.set_aspect("equal")
    axis.set(xlabel="first number", ylabel="second number")
    axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    return figure
