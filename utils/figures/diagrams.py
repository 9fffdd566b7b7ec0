"""The drawings of lesson 02, and some of others: who sends what to whom, at what cost.

One function a drawing. Each returns a `Diagram`: a matplotlib Figure that also says
in words what it shows, for screen readers and for whoever compares two of them.
The words come from the numbers that are drawn.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch, Rectangle
from matplotlib.ticker import FuncFormatter

from utils.figures.style import BLUE, GREEN, GREY, INK, ORANGE, PALE, Figure

SHADES = ["#ffffff", "#e1eef7", "#b9d7ea", "#8abddb"]  # by how many are in a sum


class Diagram(Figure):
    """A Figure, `width` by `height` inches, that `words` describe.

    It has not the style of plots: where all is drawn, axes are seldom to be seen.
    """

    def __init__(self, width: float, height: float, words: str):
        super().__init__(figsize=(width, height), facecolor="white")
        self.words = words

    def __repr__(self) -> str:
        return self.words

    def in_words(self) -> str:
        return self.words


def model_and_data_parallel() -> Diagram:
    """One network on two GPUs: its layers shared out, or its images."""
    diagram, ax = paper(
        8,
        3.7,
        "Left, model parallel: GPU 0 holds layers 1 and 2, GPU 1 layers 3 and 4; one "
        "batch passes through both, and activations travel between them. Right, data "
        "parallel: both GPUs hold all four layers; each sees half of the batch, and "
        "gradients travel between them once per step.",
    )
    draw_text(ax, 2, 3.45, "Model parallel", size=12, weight="bold")
    draw_text(ax, 2, 3.17, "each GPU has half of the layers")
    draw_text(ax, 6, 3.45, "Data parallel", size=12, weight="bold")
    draw_text(ax, 6, 3.17, "each GPU has half of the batch")
    ax.plot([4, 4], [0.1, 3.6], color=PALE, lw=1.5)

    for gpu, (left, color) in enumerate([(0.25, BLUE), (2.35, ORANGE)]):
        draw_box(ax, left, 1.05, 1.4, 1.8, "", edge=color)
        draw_text(ax, left + 0.7, 2.65, f"GPU {gpu}", weight="bold")
        for row in range(2):
            y = 1.18 + 0.65 * row
            draw_box(ax, left + 0.2, y, 1.0, 0.5, f"layer {2 * gpu + row + 1}", PALE)
    draw_arrow(ax, (1.45, 2.08), (2.55, 1.43), both=True)
    draw_text(ax, 2, 0.75, "activations there, gradients back:")
    draw_text(ax, 2, 0.52, "in the middle of every step")
    draw_box(ax, 0.35, 0.08, 1.2, 0.3, "whole batch", PALE)
    draw_arrow(ax, (0.45, 0.38), (0.45, 1.05))

    for gpu, (left, color) in enumerate([(4.25, BLUE), (6.35, ORANGE)]):
        draw_box(ax, left, 1.05, 1.4, 1.8, "", edge=color)
        draw_text(ax, left + 0.7, 2.65, f"GPU {gpu}", weight="bold")
        for layer in range(4):
            y = 1.13 + 0.34 * layer
            draw_box(ax, left + 0.2, y, 1.0, 0.28, f"layer {layer + 1}", PALE)
        half = ("first", "second")[gpu]
        draw_box(ax, left + 0.05, 0.08, 1.3, 0.3, f"{half} half", PALE)
        edge = left + (0.15 if gpu == 0 else 1.25)
        draw_arrow(ax, (edge, 0.38), (edge, 1.05))
    draw_arrow(ax, (5.65, 1.75), (6.35, 1.75), both=True)
    draw_text(ax, 6, 0.75, "gradients both ways:")
    draw_text(ax, 6, 0.52, "once at the end of a step")
    return diagram


def synchronous_and_asynchronous(
    seconds_per_step: Sequence[float], seconds: float
) -> Diagram:
    """Who computes and who waits when worker i needs seconds_per_step[i] a step.

    A block of the asynchronous half carries its staleness: how many updates others
    made to the weights between this worker's fetching them and its own update.
    """
    rounds = int(seconds / max(seconds_per_step) + 1e-9)
    asynchronous = staleness(seconds_per_step, seconds)
    workers = len(seconds_per_step)
    used = sum(len(blocks) for blocks in asynchronous)
    stalest = max((late for blocks in asynchronous for _, late in blocks), default=0)
    height = 2.1 + 0.76 * workers
    diagram = Diagram(
        8,
        height,
        f"In {seconds:g} seconds, with steps of "
        f"{', '.join(f'{step:g}' for step in seconds_per_step)} seconds: synchronous "
        f"workers make {rounds} updates from {rounds * workers} gradients, and all "
        f"but the slowest wait; asynchronous workers use {used} gradients, one at a "
        f"time, the stalest {stalest} updates late.",
    )
    above, below = diagram.subplots(2, 1, sharex=True)
    diagram.subplots_adjust(
        left=0.1, right=0.98, top=1 - 0.35 / height, bottom=0.5 / height, hspace=0.5
    )
    above.set_title(
        f"Synchronous: all wait for the slowest. {rounds} updates (black lines) from "
        f"{rounds * workers} gradients",
        fontsize=10,
        loc="left",
    )
    below.set_title(
        f"Asynchronous: nobody waits. {used} updates from {used} gradients; "
        "each with its staleness",
        fontsize=10,
        loc="left",
    )
    slowest = max(seconds_per_step)
    for worker, step in enumerate(seconds_per_step):
        for turn in range(rounds):
            start = turn * slowest
            _block(above, worker, start, step, BLUE, "computes")
            if step < slowest:
                _block(above, worker, start + step, slowest - step, None, "waits")
        for end, late in asynchronous[worker]:
            _block(below, worker, end - step, step, ORANGE, str(late))
    for turn in range(1, rounds + 1):
        above.axvline(turn * slowest, color=INK, lw=3, clip_on=False)
    for ax in (above, below):
        ax.set(xlim=(0, seconds), ylim=(workers - 0.5, -0.5))
        ax.set_yticks(range(workers), [f"worker {i}" for i in range(workers)])
        ax.tick_params(axis="y", length=0)
        ax.spines[["top", "right", "left"]].set_visible(False)
    below.set_xlabel("seconds")
    return diagram


def staleness(
    seconds_per_step: Sequence[float], seconds: float
) -> list[list[tuple[float, int]]]:
    """For each worker, the (time, staleness) of its asynchronous updates until
    `seconds`. Simultaneous updates are made in the order of the workers' numbers.
    """
    updates = sorted(
        (turn * step, worker)
        for worker, step in enumerate(seconds_per_step)
        for turn in range(1, int(seconds / step + 1e-9) + 1)
    )
    by_worker = [[] for _ in seconds_per_step]
    fetched = [0 for _ in seconds_per_step]  # the version of the weights in use
    for version, (time, worker) in enumerate(updates):
        by_worker[worker].append((time, version - fetched[worker]))
        fetched[worker] = version + 1
    return by_worker


def lanes(calls: Mapping[str, Sequence[tuple[str, str]]]) -> Diagram:
    """Which collectives of two workers meet, and which wait: a lane for each worker.

    calls: worker -> its calls in order, each the name of a collective and what it
    takes, such as ("all-reduce", "its score"). As in Horovod, calls of the same name
    meet, whatever they take. A call that meets none waits; those after it are not made.
    """
    if len(calls) != 2:
        raise ValueError(f"this drawing is for 2 workers, not {len(calls)}")
    names = [[name for name, _ in own] for own in calls.values()]
    met = 0
    while met < min(map(len, names)) and names[0][met] == names[1][met]:
        met += 1
    waits = [len(own) > met for own in names]
    box, gap, high, left = 1.75, 0.45, 0.62, 1.05
    longest = max(len(own) + (not wait) for own, wait in zip(names, waits, strict=True))
    facts = _lanes_in_words(calls, met)
    diagram, ax = paper(left + longest * (box + gap), 2.9, facts)
    rows = (1.95, 0.33)  # the lower edge of each lane's boxes
    for lane, (worker, own) in enumerate(calls.items()):
        color, y = (BLUE, ORANGE)[lane], rows[lane]
        beside = y + high + 0.17 if lane == 0 else y - 0.17
        draw_text(ax, 0.5, y + high / 2, worker, size=10, weight="bold")
        for turn, (name, taken) in enumerate(own):
            x = left + turn * (box + gap)
            style = {"facecolor": "white", "edgecolor": color, "lw": 2.5}
            if turn > met:
                style |= {"edgecolor": GREY, "lw": 1.2, "ls": "--"}
                draw_text(ax, x + box / 2, beside, "never called", color=GREY)
            elif turn == met:
                style |= {"hatch": "..."}
                waiting = f"waits for {list(calls)[1 - lane]}"
                draw_text(ax, x + box / 2, beside, waiting, weight="bold")
            ax.add_patch(Rectangle((x, y), box, high, **style))
            words = f"{name}\nof {taken}"
            draw_text(ax, x + box / 2, y + high / 2, words, bbox=_ON_WHITE)
        if not waits[lane]:
            end = left + len(own) * (box + gap)
            draw_text(ax, end, y + high / 2, "has ended", align="left")
    between = rows[0], rows[1] + high
    for turn in range(met):
        x = left + turn * (box + gap) + box / 2
        draw_arrow(ax, (x, between[0]), (x, between[1]), both=True)
        draw_text(ax, x + 0.12, sum(between) / 2, "they meet", align="left")
    stuck = left + met * (box + gap) + box / 2
    for lane, wait in enumerate(waits):
        if wait:
            x = stuck + (-0.4, 0.4)[lane]
            ends = [(x, between[lane]), (x, between[1 - lane])]
            draw_arrow(ax, *ends, color=(BLUE, ORANGE)[lane])
    return diagram


def _lanes_in_words(calls: Mapping[str, Sequence[tuple[str, str]]], met: int) -> str:
    """What `lanes` draws, where the first `met` calls of both workers meet."""
    (one, first), (other, second) = calls.items()
    sentences = [
        f"{one}'s {name} of {taken} meets {other}'s of {its}."
        for (name, taken), (_, its) in zip(first[:met], second[:met], strict=True)
    ]
    for worker, own in calls.items():
        sentences += [
            f"{worker}'s {name} of {taken} waits." for name, taken in own[met:][:1]
        ]
        sentences += [
            f"{worker}'s {name} of {taken} is never called."
            for name, taken in own[met + 1 :]
        ]
        if len(own) == met:
            sentences.append(f"{worker} has ended.")
    return " ".join(sentences)


def descent(paths: Mapping[int, Sequence[float]]) -> Diagram:
    """The weight after each update, for gradients that come so many updates late."""
    ends = [
        f"{delay} updates late, the weight ends at {path[-1]:.2g}"
        for delay, path in paths.items()
    ]
    diagram = Diagram(
        8, 3.2, f"A weight whose best value is 0. With gradients {'; '.join(ends)}."
    )
    ax = diagram.subplots()
    diagram.subplots_adjust(left=0.09, right=0.76, top=0.96, bottom=0.16)
    styles = itertools.cycle([(BLUE, "-"), (GREEN, "--"), (ORANGE, "-."), (INK, ":")])
    for (delay, path), (color, dashes) in zip(paths.items(), styles, strict=False):
        ax.plot(path, color=color, ls=dashes, lw=2.5, label=f"{delay} updates late")
    ax.axhline(0, color=GREY, lw=1)
    ax.set(xlabel="updates", ylabel="weight (0 is best)", xlim=(0, len(path) - 1))
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    _open_axes(ax)
    return diagram


def average_of_two_slopes(places: tuple[float, float], rate: float = 0.5) -> Diagram:
    """Two workers at two places of the curve w²/2: the step that each one's gradient
    asks for, and the step that the average of both gradients makes each of them take.
    """
    average = sum(places) / 2  # the slope of w²/2 is w
    titles = ("Each takes its own gradient", "Both take the average gradient")
    steps = [[-rate * place for place in places], [-rate * average] * 2]
    said = [
        f"worker {worker} goes {_way(place, step)}"
        for own in steps
        for worker, (place, step) in enumerate(zip(places, own, strict=True))
    ]
    diagram = Diagram(
        8,
        3.0,
        f"A valley, w²/2, with worker 0 at {places[0]:g} and worker 1 at "
        f"{places[1]:g}. With its own gradient, {said[0]} and {said[1]}. With the "
        f"average of both gradients, {average:g}, {said[2]} and {said[3]}.",
    )
    axes = diagram.subplots(1, 2, sharex=True, sharey=True)
    diagram.subplots_adjust(left=0.07, right=0.98, top=0.88, bottom=0.17, wspace=0.1)
    reach = 1.4 * max(map(abs, places))
    curve = np.linspace(-reach, reach, 100)
    for ax, title, own in zip(axes, titles, steps, strict=True):
        ax.plot(curve, curve**2 / 2, color=GREY, lw=1.5)
        ax.set_title(title, fontsize=10)
        ax.set(xlabel="weight w", xlim=(-reach, reach), ylim=(-0.35, reach**2 / 2))
        for worker, (place, step) in enumerate(zip(places, own, strict=True)):
            color, height = (BLUE, ORANGE)[worker], place**2 / 2
            ax.plot(place, height, "o", color=color, ms=6)
            draw_arrow(
                ax, (place, height), (place + step, height + place * step), color
            )
            words = f"worker {worker}: {_way(place, step)}"
            side, gap = ("right", -0.07) if place > 0 else ("left", 0.07)
            up = height + 0.12 * reach  # above the point, on the valley's side
            draw_text(ax, place + gap * reach, up, words, align=side)
        _open_axes(ax)
    axes[0].set_ylabel("loss")
    return diagram


def _way(place: float, step: float) -> str:
    """Where a step leads on the curve w²/2."""
    if not step:
        return "nowhere"
    return "downhill" if place * step < 0 else "uphill"


def parameter_server(workers: int) -> Diagram:
    """Every worker's gradients to one machine, and their sum back. For 2 to 8."""
    _must_fit(workers, 8)
    width = max(5.5, 1.5 * workers)
    diagram, ax = paper(
        width,
        3.8,
        f"{workers} workers and a server on one network. Over each worker's wire its "
        f"gradients, S bytes, go out and the sum, S bytes, comes in: 2 S. Over the "
        f"server's wire all of it passes: {workers} S in and {workers} S out, "
        f"{2 * workers} S.",
    )
    middle = width / 2
    draw_box(ax, middle - 1, 3.05, 2, 0.6, "server\nadds them all up", edge=GREEN)
    draw_box(ax, 0.2, 1.55, width - 0.4, 0.3, "network", PALE)
    ax.plot([middle, middle], [1.85, 3.05], color=ORANGE, lw=12, solid_capstyle="butt")
    label = f"one wire for all:\n{workers} S in, {workers} S out"
    draw_text(ax, middle + 0.2, 2.45, label, align="left", weight="bold")
    for worker in range(workers):
        x = width * (worker + 0.5) / workers
        ax.plot([x, x], [0.75, 1.55], color=BLUE, lw=2.5)
        draw_text(ax, x + 0.08, 1.15, "S out,\nS in", align="left")
        draw_box(ax, x - 0.6, 0.2, 1.2, 0.55, f"worker {worker}", edge=BLUE)
    return diagram


def ring(workers: int) -> Diagram:
    """Each worker sends to the next, hears from the one before. For 2 to 8."""
    _must_fit(workers, 8)
    diagram, ax = paper(
        5.6,
        4.2,
        f"{workers} workers in a circle, an arrow from each to the next. All arrows "
        f"carry a chunk of S/{workers} bytes at the same time.",
    )
    middle, radii = np.array([2.8, 2.1]), np.array([1.95, 1.65])
    turns = np.pi / 2 - 2 * np.pi * np.arange(workers) / workers
    places = middle + radii * np.stack([np.cos(turns), np.sin(turns)], axis=1)
    boxes = [
        draw_box(ax, x - 0.6, y - 0.25, 1.2, 0.5, f"worker {worker}", edge=BLUE)
        for worker, (x, y) in enumerate(places)
    ]
    for worker in range(workers):
        to = (worker + 1) % workers
        between = {"patchA": boxes[worker], "patchB": boxes[to], "shrinkB": 5}
        draw_arrow(ax, places[worker], places[to], color=BLUE, bend=-0.25, **between)
    draw_text(
        ax, *middle, f"every arrow carries\none chunk: S/{workers} bytes", size=10
    )
    return diagram


def ring_in_steps(workers: int) -> Diagram:
    """What each worker holds after each step of a ring all-reduce. For 2 to 4.

    Worker w starts with 10**w in all of its chunks, so a number's digits tell whose
    gradients are in it.
    """
    _must_fit(workers, 4)
    states = ring_states(workers)
    steps = workers - 1
    complete = states[-1][0, 0]
    wide, high = 0.41, 0.32  # of a cell
    panel, gap, left = workers * wide, 0.32, 0.85
    row_height = 1.2 + workers * high
    diagram, ax = paper(
        max(4.5, left + workers * (panel + gap)),
        2 * row_height + 0.4,
        f"A ring all-reduce of {workers} workers in {2 * steps} steps. In the first "
        f"{steps}, scatter-reduce, every worker adds the chunk that arrives: then "
        f"each holds one complete chunk, {complete}. In the last {steps}, all-gather, "
        "it overwrites its own chunk with the one that arrives: then each holds all "
        f"{workers}.",
    )

    def corner(column, row, worker, chunk):
        """The lower left corner of a cell."""
        top = (2 - row) * row_height - 0.3
        return left + column * (panel + gap) + chunk * wide, top - (worker + 1) * high

    rows = [
        ("Scatter-reduce: the receiver adds", range(steps + 1)),
        ("All-gather: the receiver overwrites", range(steps, 2 * steps + 1)),
    ]
    for row, (title, columns) in enumerate(rows):
        y = corner(0, row, -1, 0)[1]
        draw_text(ax, 0.1, y + 0.52, title, size=11, align="left", weight="bold")
        for worker in range(workers):
            below = corner(0, row, worker, 0)[1] + high / 2
            draw_text(ax, left - 0.1, below, f"worker {worker}", align="right")
        for column, step in enumerate(columns):
            x = corner(column, row, 0, 0)[0] + panel / 2
            draw_text(ax, x, y + 0.17, f"after step {step}" if step else "start")
            for (worker, chunk), value in np.ndenumerate(states[step]):
                place = corner(column, row, worker, chunk)
                _cell(ax, place, wide, high, value, value == complete)
                if column and value != states[step - 1][worker, chunk]:
                    _frame(ax, place, wide, high)
    _cell(ax, (left, 0.12), wide, high, complete, True)
    draw_text(ax, left + wide + 0.08, 0.28, "dark: complete", align="left")
    _frame(ax, (left + 1.75, 0.12), wide, high)
    draw_text(ax, left + wide + 1.83, 0.28, "framed: just arrived", align="left")
    return diagram


def ring_states(workers: int) -> list[np.ndarray]:
    """The (worker, chunk) numbers of a ring all-reduce at the start and after each of
    its 2(N - 1) steps, when worker w starts with 10**w in all of its chunks.
    """
    ranks = np.arange(workers)
    states = [np.repeat(10**ranks, workers).reshape(workers, workers)]
    for step in range(2 * (workers - 1)):
        before, after = states[-1], states[-1].copy()
        chunk = (ranks - 1 - step) % workers  # the one that arrives at each worker
        if step < workers - 1:
            after[ranks, chunk] += before[ranks - 1, chunk]
        else:
            after[ranks, chunk] = before[ranks - 1, chunk]
        states.append(after)
    return states


def one_worker_stops() -> Diagram:
    """Two workers in time: one ends its training after an epoch, the other does not."""
    diagram = Diagram(
        8,
        1.9,
        "Two lanes of time. Both workers train and validate in epoch 1. Then rank 0, "
        "with 0.86, stops, and its program goes on to its end. Rank 1, with 0.84, "
        "begins epoch 2: it computes a gradient, and waits in the all-reduce for rank "
        "0's. When rank 0's program ends, rank 1 fails.",
    )
    ax = diagram.subplots()
    diagram.subplots_adjust(left=0.09, right=0.99, top=0.83, bottom=0.16)
    for worker, score in enumerate(("0.86", "0.84")):
        _block(ax, worker, 0, 3, BLUE, "trains epoch 1")
        _block(ax, worker, 3, 1.8, GREEN, f"validates: {score}")
    _block(ax, 0, 4.8, 2.9, GREY, "stops; tests, prints, ends")
    _block(ax, 1, 4.8, 0.95, BLUE, "gradient")
    _block(ax, 1, 5.75, 1.95, None, "waits for rank 0")
    _block(ax, 1, 7.7, 1.1, ORANGE, "fails")
    ax.axvline(7.7, color=INK, lw=2)
    ax.set(xlim=(0, 8.9), ylim=(1.5, -0.5), xlabel="time", xticks=[])
    ax.set_title("One worker stops, the other goes on", fontsize=10, loc="left")
    ax.set_yticks([0, 1], ["rank 0", "rank 1"])
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right", "left"]].set_visible(False)
    return diagram


def busiest_wire(
    server: Callable[[int, float], float],
    ring: Callable[[int, float], float],
    sizes: Mapping[str, float],
) -> Diagram:
    """Bytes in and out over the busiest wire for 2 to 64 workers, on log scales.

    server(workers, size), ring(workers, size): those bytes for gradients of `size`.
    """
    workers = np.arange(2, 65)
    ends = [
        f"for {name}, {human_bytes(server(64, size))} with a parameter server and "
        f"{human_bytes(ring(64, size))} with a ring"
        for name, size in sizes.items()
    ]
    diagram = Diagram(
        8,
        3.8,
        "Bytes over the busiest wire for 2 to 64 workers: it grows with the number of "
        "workers for a parameter server and hardly for a ring. At 64 workers: "
        f"{'; '.join(ends)}.",
    )
    ax = diagram.subplots()
    diagram.subplots_adjust(left=0.11, right=0.66, top=0.95, bottom=0.14)
    for name, size in sizes.items():
        for cost, kind, color, dashes in (
            (server, "server", ORANGE, "-"),
            (ring, "ring", BLUE, "--"),
        ):
            line = [cost(n, size) for n in workers]
            ax.plot(workers, line, color=color, ls=dashes, lw=2.5)
            ax.annotate(
                f"{kind}, {name}: {human_bytes(line[-1])}",
                (64, line[-1]),
                xytext=(8, 0),
                textcoords="offset points",
                va="center",
                annotation_clip=False,
            )
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set(xlabel="workers", ylabel="bytes in and out per step", xlim=(2, 64))
    ax.set_xticks([2, 4, 8, 16, 32, 64], ["2", "4", "8", "16", "32", "64"])
    ax.yaxis.set_major_formatter(FuncFormatter(lambda size, _: human_bytes(size)))
    ax.grid(axis="y", color=PALE)
    _open_axes(ax)
    return diagram


def human_bytes(size: float) -> str:
    """`size` bytes to three digits, in powers of 1,000: 1.4e6 is "1.4 MB"."""
    units = ["bytes", "kB", "MB", "GB", "TB"]
    while size >= 999.5 and len(units) > 1:
        size, units = size / 1000, units[1:]
    return f"{size:.3g} {units[0]}"


def _must_fit(workers: int, maximum: int) -> None:
    if not 2 <= workers <= maximum:
        raise ValueError(f"this drawing is for 2 to {maximum} workers, not {workers}")


def short_and_long_steps(workers: int = 4) -> Diagram:
    """The updates of one worker, one update of several workers with one worker's
    learning rate, and one with that many times the rate: where the slope hardly turns
    from one update to the next, and where it turns quickly.

    All workers together step in the direction of the first of the short steps.
    """
    diagram, ax = paper(
        9,
        3.4,
        f"Left, later in training: one worker's {workers} short steps lie nearly on a "
        f"line. One step of {workers} workers with the base learning rate ends where "
        f"the first of these ends; with {workers} times the rate it ends close to the "
        f"last. Right, new weights: the {workers} short steps turn away, and the long "
        "step, which goes straight on, ends far from them.",
    )
    sides = {"later in training: the slope hardly turns": (0.3, 12)}
    sides["new weights: the slope turns quickly"] = (4.8, 72)
    for title, (left, turn) in sides.items():
        angles = np.radians(np.linspace(0, turn, workers))
        steps = 3.6 / workers * np.array([np.cos(angles), np.sin(angles)])
        path = np.hstack([np.zeros((2, 1)), np.cumsum(steps, axis=1)])
        path += np.array([[left], [1.1]])
        for begin, end in zip(path.T[:-1], path.T[1:], strict=True):
            draw_arrow(ax, begin, end, BLUE)
        draw_arrow(ax, (left, 0.8), (left + 3.6 / workers, 0.8), ORANGE)
        draw_arrow(ax, (left, 0.5), (left + 3.6, 0.5), GREEN)
        ax.plot(*path[:, -1], "o", color=BLUE, ms=7)
        # Where the long step would end, if it began where the short ones do.
        ax.plot([left + 3.6] * 2, [0.5, 1.1], ":", color=GREEN, lw=1)
        ax.plot(left + 3.6, 1.1, "o", color=GREEN, ms=7, mfc="white")
        draw_text(ax, left, 3.2, title, size=11, align="left")
    legend = {
        f"1 worker: {workers} updates": (0.6, BLUE),
        f"{workers} workers, base learning rate: 1 update": (2.7, ORANGE),
        f"{workers} workers, {workers} times the rate: 1 update": (6.0, GREEN),
    }
    for label, (left, color) in legend.items():
        draw_arrow(ax, (left - 0.45, 0.15), (left - 0.08, 0.15), color)
        draw_text(ax, left, 0.15, label, align="left")
    return diagram


def paper(width: float, height: float, words: str) -> tuple[Diagram, Axes]:
    """A Diagram without axes, to draw on in inches from its lower left corner."""
    diagram = Diagram(width, height, words)
    ax = diagram.add_axes((0, 0, 1, 1))
    ax.set(xlim=(0, width), ylim=(0, height))
    ax.set_axis_off()
    return diagram, ax


def _open_axes(ax: Axes) -> None:
    ax.spines[["top", "right"]].set_visible(False)


# Behind words that are to be read on a hatched ground.
_ON_WHITE = {"facecolor": "white", "edgecolor": "none", "pad": 1}


def draw_text(
    ax, x, y, words, size=9, align="center", weight="normal", color=INK, **look
):
    """Words whose middle, or other end as `align` says, is at (x, y)."""
    look |= {"fontsize": size, "ha": align, "weight": weight, "color": color}
    ax.text(x, y, words, va="center", **look)


def draw_box(ax, x, y, width, height, words, fill="white", edge=GREY):
    """A rounded box around words, with its lower left corner at (x, y)."""
    box = FancyBboxPatch(
        (x, y),
        width,
        height,
        boxstyle="round,pad=0,rounding_size=0.06",
        facecolor=fill,
        edgecolor=edge,
        linewidth=1 if edge == GREY else 2.5,
    )
    ax.add_patch(box)
    draw_text(ax, x + width / 2, y + height / 2, words)
    return box


def draw_arrow(ax, start, end, color=INK, bend=0.0, both=False, **ends):
    """An arrow with a head at its end, or at both; `bend` is 0 for a straight one."""
    style = "<|-|>" if both else "-|>"
    look = {"arrowstyle": style, "color": color, "lw": 1.8, "shrinkA": 0, "shrinkB": 0}
    look["connectionstyle"] = f"arc3,rad={bend}"
    ax.annotate("", xy=end, xytext=start, arrowprops=look | ends)


def _block(ax, worker, start, length, color, text):
    """A stretch of a worker's time; without a color it is one of waiting."""
    style = {"facecolor": color, "edgecolor": "white"}
    if color is None:
        style = {"facecolor": "white", "edgecolor": GREY, "hatch": "///"}
    ax.add_patch(Rectangle((start, worker - 0.36), length, 0.72, lw=1.2, **style))
    ink = INK if color in (None, ORANGE) else "white"
    backing = _ON_WHITE | {"pad": 1.5} if color is None else None
    look = {"color": ink, "bbox": backing, "clip_on": True}
    draw_text(ax, start + length / 2, worker, text, **look)


def _cell(ax, corner, width, height, value, complete):
    fill = BLUE if complete else SHADES[str(value).count("1")]
    ax.add_patch(Rectangle(corner, width, height, facecolor=fill, edgecolor=GREY))
    middle = corner[0] + width / 2, corner[1] + height / 2
    style = {"weight": "bold", "color": "white"} if complete else {}
    draw_text(ax, *middle, str(value), **style)


def _frame(ax, corner, width, height):
    ax.add_patch(
        Rectangle(corner, width, height, fill=False, edgecolor=ORANGE, lw=3, zorder=3)
    )


# Asked from the top; a yes leads to what stands beside it, a no to the next question.
QUESTIONS = {
    "Only one device?": "the default strategy,\nor OneDeviceStrategy to name it",
    "TPU cores?": "TPUStrategy",
    "All in one machine?": "MirroredStrategy or Horovod",
    "Must nobody wait\nfor the slowest?": "ParameterServerStrategy",
    "May workers\ncome and go?": "elastic Horovod",
}
LAST = "MultiWorkerMirroredStrategy\nor Horovod"


def decision_chart() -> Diagram:
    """Five questions, from the top to the bottom; the first yes decides."""
    lines = [f"{question} Yes: {where}." for question, where in QUESTIONS.items()]
    words = ["Questions in order; the first yes decides.", *lines, f"All no: {LAST}."]
    row, box = 0.95, 0.6  # inches
    height = row * (len(QUESTIONS) + 1) + 0.1
    diagram, ax = paper(7.5, height, " ".join(" ".join(words).split()))
    y = height - row + 0.15
    for question, where in QUESTIONS.items():
        draw_box(ax, 0.3, y, 2.3, box, question, edge=BLUE)
        draw_arrow(ax, (2.6, y + box / 2), (4.0, y + box / 2))
        draw_text(ax, 3.2, y + box / 2 + 0.14, "yes")
        draw_box(ax, 4.0, y, 3.2, box, where, edge=GREEN)
        draw_arrow(ax, (1.45, y), (1.45, y - row + box), color=GREY)
        draw_text(ax, 1.72, y - (row - box) / 2, "no")
        y -= row
    draw_box(ax, 0.3, y, 2.3, box, LAST, edge=GREEN)
    return diagram
