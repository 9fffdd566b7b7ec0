"""The figures of lesson 27."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from utils.figures.diagrams import Diagram, draw_arrow, draw_text, human_bytes, paper
from utils.figures.style import (
    BLUE,
    COLORS,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PALE,
    PURPLE,
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
        color, mark = COLORS[number], MARKS[number % len(MARKS)]
        look = {"color": color, "ms": 7, "mew": 2, "fillstyle": "none"}  # none hides
        axis.plot(rows.bytes, rows.us / 1e3, mark, label=name, **look)
        if lines and name in lines:
            latency, bandwidth = lines[name]
            size = np.geomspace(rows.bytes.min(), rows.bytes.max(), 100)
            label = f"{name}: latency + bytes / bandwidth"
            axis.plot(
                size,
                1e3 * (latency + size / bandwidth),
                color=color,
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
            color=COLORS[number],
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
    its color; sums are grey.
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
    """Numbers in a row of cells, each in the color of the worker that gave it."""
    for place, number in enumerate(numbers):
        color = OWNERS[number // 10 % len(OWNERS)] if number in given else GREY
        axis.text(
            left + place + 0.5,
            row,
            str(number),
            ha="center",
            va="center",
            color="white" if color != ORANGE else INK,
            bbox={"boxstyle": "square,pad=0.25", "fc": color, "ec": "white"},
        )


# ------------------------------------------------------------------ drawings


def two_starts(came: Sequence[float], takes: float) -> Diagram:
    """Workers that come to an all-reduce at different times, and what each measures.

    came: when each worker comes, in milliseconds. takes: of the all-reduce, once the
    last one is there.
    """
    end = max(came) + takes
    measured = [end - start for start in came]
    each = ", ".join(f"worker {n} {ms:g} ms" for n, ms in enumerate(measured))
    words = (
        f"Workers come to an all-reduce after {', '.join(f'{ms:g}' for ms in came)} "
        f"ms. It takes {takes:g} ms once all are there. Measured: {each}."
    )
    height = 0.9 + 0.7 * len(came)
    diagram, ax = paper(8, height, words)
    left, wide = 1.0, 5.2
    scale = wide / end
    for worker, start in enumerate(came):
        y = height - 0.65 - 0.7 * worker
        draw_text(ax, left - 0.15, y, f"worker {worker}", align="right")
        waits = left + start * scale, (max(came) - start) * scale
        if waits[1]:
            look = {"facecolor": "white", "edgecolor": GREY, "hatch": "///"}
            ax.add_patch(Rectangle((waits[0], y - 0.2), waits[1], 0.4, **look))
        adds = left + max(came) * scale, takes * scale
        ax.add_patch(Rectangle((adds[0], y - 0.2), adds[1], 0.4, facecolor=BLUE))
        words = f"measures {measured[worker]:g} ms"
        draw_text(ax, left + wide + 0.15, y, words, align="left", weight="bold")
    legend = "hatched: waits inside the call; blue: the all-reduce itself"
    draw_text(ax, left, 0.2, legend, align="left", color=GREY)
    return diagram


def patterns() -> Diagram:
    """An all-reduce on four workers as a ring, a tree and recursive doubling: a row for
    each of the messages that follow each other, and an arrow for each that is sent."""
    ring = [(0, 1), (1, 2), (2, 3), (3, 0)]
    up = [[(1, 0), (3, 2)], [(2, 0)]]
    down = [[(to, sender) for sender, to in row] for row in reversed(up)]
    ways = {
        "ring": ("a quarter", [ring] * 6),
        "tree": ("all", [*up, *down]),
        "doubling": (
            "all",
            [[(0, 1), (1, 0), (2, 3), (3, 2)], [(0, 2), (2, 0), (1, 3), (3, 1)]],
        ),
    }
    sentences = [
        f"By a {name}, {len(rows)} messages follow each other, each of {share} of the "
        f"bytes."
        for name, (share, rows) in ways.items()
    ]
    panel, lane, row_high = 2.75, 0.62, 0.42
    height = 1.1 + 6 * row_high
    diagram, ax = paper(3 * panel, height, "Four workers. " + " ".join(sentences))
    for number, (name, (share, rows)) in enumerate(ways.items()):
        left = number * panel + 0.5
        middle = left + 1.5 * lane
        draw_text(ax, middle, height - 0.17, name, size=11, weight="bold")
        draw_text(ax, middle, height - 0.42, f"{len(rows)} rows, each sends {share}")
        bottom = height - 0.9 - row_high * len(rows)
        for worker in range(4):
            x = left + worker * lane
            draw_text(ax, x, height - 0.68, str(worker), weight="bold")
            ax.plot([x, x], [height - 0.8, bottom], color=PALE, lw=2, zorder=0)
        for row, arrows in enumerate(rows):
            y = height - 1.0 - row_high * row
            for sender, to in arrows:
                ends = [(left + worker * lane, y) for worker in (sender, to)]
                bend = 0.22 if abs(to - sender) > 1 else 0.0
                if (to, sender) in arrows:
                    bend = 0.22 if abs(to - sender) == 1 else 0.3
                draw_arrow(ax, *ends, color=BLUE, bend=bend)
    return diagram
