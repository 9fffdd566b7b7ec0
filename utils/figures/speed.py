"""The figures of notebook 09."""

import statistics
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator, PercentFormatter

from utils.figures.style import COLOURS, MARKS, finished, new_axes
from utils.measure import cost_model, timeline
from utils.measure.table import TITLES, Section

# A colour, and a pattern for those who see no colour.
LOOK = {
    "transfer": (COLOURS[0], ""),
    "fusion": (COLOURS[1], "////"),
    "processing": (COLOURS[3], "xxxx"),
    "negotiation": (COLOURS[4], "...."),
    timeline.IDLE: ("#e8e8e8", ""),
}


def speed_up(
    speed: Mapping[int, float], prediction: float, most: float, origin: str = ""
) -> Figure:
    """Prediction, measurement, limit and ideal.

    speed: workers -> images per second, of one worker too; prediction: the speed-up
    that the learner expects of the most workers; most: images per second of as many
    that don't talk. origin: a line to stand below.
    """
    figure, axis = new_axes(width=8, height=4)
    counts = sorted(speed)
    last = counts[-1]
    axis.plot([1, last], [1, last], "--", color="#666666", label="ideal: N times one")
    axis.plot(
        [1, last],
        [1, most / speed[1]],
        ":",
        color=COLOURS[2],
        marker=MARKS[2],
        ms=9,
        label=f"limit, workers that don't talk: {most / speed[1]:.2f}",
    )
    measured = [speed[count] / speed[1] for count in counts]
    axis.plot(
        counts,
        measured,
        color=COLOURS[0],
        marker=MARKS[0],
        label=f"measured: {measured[-1]:.2f}",
    )
    axis.plot(
        last,
        prediction,
        "*",
        color=COLOURS[5],
        ms=17,
        label=f"your prediction: {prediction:.2f}",
    )
    axis.set(xlabel="workers", ylabel="speed-up", xlim=(0.9, last + 0.1))
    axis.set_ylim(bottom=0, top=1.1 * max(last, prediction, *measured))
    axis.xaxis.set_major_locator(FixedLocator(counts))
    axis.legend(loc="lower right" if last > 2 else "upper left")
    return _under(figure, origin)


def _under(figure: Figure, origin: str) -> Figure:
    if origin:
        figure.supxlabel(origin, fontsize=8, color="#444444", wrap=True)
    return finished(figure)


def strong_and_weak(
    strong: Mapping[int, float],
    weak: Mapping[int, float],
    silent: Mapping[int, float],
    cores: int,
    origin: str = "",
) -> Figure:
    """Images per second against workers: a step's images shared out (strong), as many
    for each (weak), and each as many without talking; a line where the cores end."""
    figure, axis = new_axes(width=8, height=3.6)
    curves = {
        "strong: 64 images for all": strong,
        "weak: 64 images each": weak,
        "weak, and nobody talks": silent,
    }
    for number, (label, speed) in enumerate(curves.items()):
        axis.plot(
            list(speed),
            list(speed.values()),
            color=COLOURS[number],
            marker=MARKS[number],
            ls=":" if number == 2 else "-",
            label=label,
        )
    counts = sorted({count for speed in curves.values() for count in speed})
    one = weak[1]
    axis.plot(counts, [one * n for n in counts], "--", color="#666666", label="ideal")
    if counts[-1] > cores:
        axis.axvline(cores + 0.5, color="#999999", lw=1)
        axis.text(cores + 0.53, 0, "more workers\nthan cores", fontsize=9, va="bottom")
    axis.set(xlabel="workers", ylabel="images per second", ylim=(0, None))
    axis.xaxis.set_major_locator(FixedLocator(counts))
    axis.legend()
    return _under(figure, origin)


def throughputs(speed: Mapping[str, float], origin: str = "") -> Figure:
    """Images per second of several ways to use a machine: label -> images/s."""
    figure, axis = new_axes(width=8, height=0.9 + 0.5 * len(speed))
    bars = axis.barh(
        range(len(speed)), speed.values(), 0.6, color=COLOURS[: len(speed)]
    )
    axis.bar_label(bars, [f"{value:,.0f}" for value in speed.values()], padding=3)
    axis.set_yticks(range(len(speed)), speed)
    axis.invert_yaxis()
    axis.set(xlabel="images per second")
    axis.margins(x=0.12)
    return _under(figure, origin)


def step(told: timeline.Timeline, number: int | None = None) -> Figure:
    """One step of a timeline: above what happened altogether, below by tensor.

    number: of the step; by default the regular one of the middle length.
    """
    steps = told.steps
    if number is None:
        regular = steps[steps["regular"]]
        lengths = (regular["end"] - regular["start"]).sort_values()
        number = lengths.index[len(lengths) // 2]
    begin, end = steps.loc[number, ["start", "end"]]
    spans = told.spans[told.spans["tensor"].isin(told.gradients)]
    spans = spans[(spans["end"] > begin) & (spans["start"] < end)]
    order = spans.groupby("tensor")["start"].min().sort_values().index
    rows = {tensor: row for row, tensor in enumerate(order)}

    figure, _ = new_axes(width=9, height=4.8)
    figure.clear()
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[1, 6])

    def bar(axis, row, start, stop, phase):
        colour, hatch = LOOK[phase]
        start, stop = (1000 * (np.clip(t, begin, end) - begin) for t in (start, stop))
        axis.barh(
            row,
            stop - start,
            0.9,
            start,
            color=colour,
            hatch=hatch,
            edgecolor="white" if hatch else colour,
            lw=0,
        )

    for piece in told.strip(begin, end).itertuples():
        bar(above, 0, piece.start, piece.end, piece.phase)
    # Whole operations first: what they consist of is drawn over them.
    spans = spans.sort_values("phase", key=lambda phase: phase != "processing")
    for span in spans.itertuples():
        bar(below, rows[span.tensor], span.start, span.end, span.phase)
    above.set_yticks([])
    above.set_title(
        f"one step of {1000 * (end - begin):.0f} ms: {len(rows)} tensors in "
        f"{steps.loc[number, 'collectives']} all-reduces",
        fontsize=10,
    )
    below.set(xlabel="milliseconds", ylabel="tensor, by arrival")
    below.yaxis.set_major_locator(MaxNLocator(integer=True))
    below.invert_yaxis()
    below.set_xlim(0, 1000 * (end - begin))
    for axis in (above, below):
        axis.spines[["top", "right"]].set_visible(False)
    words = [
        Patch(
            facecolor=colour,
            hatch=hatch,
            edgecolor="white" if hatch else colour,
            label=f"{phase}: {timeline.MEANING[phase]}",
        )
        for phase, (colour, hatch) in LOOK.items()
    ]
    figure.legend(handles=words, loc="outside lower center", ncols=2, fontsize=8)
    return finished(figure)


def fusion(told: Mapping[str, timeline.Timeline]) -> Figure:
    """Messages in a step, and where a step's time goes, in several runs: label ->
    timeline."""
    figure, (left, right) = new_axes(2, height=1.6 + 0.45 * len(told))
    places = np.arange(len(told))
    counts = [one.collectives_per_step for one in told.values()]
    bars = left.barh(places, counts, 0.6, color=COLOURS[0])
    left.bar_label(bars, [f"{count:.1f}" for count in counts], padding=3)
    left.set(xlabel="all-reduces in a step")
    left.margins(x=0.15)
    offset = np.zeros(len(told))
    for phase, (colour, hatch) in LOOK.items():
        means = [
            one.steps.loc[one.steps["regular"], phase].mean() for one in told.values()
        ]
        right.barh(
            places,
            1000 * np.array(means),
            0.6,
            offset,
            color=colour,
            hatch=hatch,
            edgecolor="white" if hatch else colour,
            lw=0,
            label=phase,
        )
        offset += 1000 * np.array(means)
    right.set(xlabel="milliseconds of a step")
    left.set_yticks(places, told)
    right.set_yticks(places, [""] * len(told))
    for axis in (left, right):
        axis.invert_yaxis()
        axis.grid(visible=False)
    figure.legend(loc="outside lower center", ncols=5, fontsize=8)
    return finished(figure)


def predicted(
    fits: Sequence[cost_model.Fit],
    networks: Sequence[cost_model.Network],
    batch: int,
    workers: Sequence[int] = (2, 4, 8, 64, 1000),
    origin: str = "",
) -> Figure:
    """The efficiency that the model expects on many workers, a panel a network: bands
    that hold 90 % of the draws, one for each fit's law, and measured steps."""
    figure, axes = new_axes(len(networks), width=10 / max(2, len(networks)), height=3.8)
    many = np.unique(np.geomspace(1, max(workers), 60))
    for axis, network in zip(np.atleast_1d(axes), networks, strict=True):
        for number, fit in enumerate(fits):
            low, middle, high = np.array(
                [fit.efficiency(n, batch, network) for n in many]
            ).T
            law = fit.model.law
            axis.fill_between(many, low, high, color=COLOURS[number], alpha=0.2)
            axis.plot(many, middle, color=COLOURS[number], ls=["-", "--"][number % 2])
            at = [fit.model.efficiency(n, batch, network) for n in workers]
            axis.plot(
                workers, at, MARKS[number], color=COLOURS[number], label=f"if {law}"
            )
        axis.set(title=network.name, xlabel="workers", xscale="log", ylim=(0, 1.25))
        axis.xaxis.set_major_locator(FixedLocator([1, *workers]))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.set_xticks([1, *workers], [f"{n:,}" for n in (1, *workers)], fontsize=8)
        axis.yaxis.set_major_formatter(PercentFormatter(1))
    np.atleast_1d(axes)[0].set_ylabel("efficiency")
    np.atleast_1d(axes)[0].legend(fontsize=8, title="all-reduce", loc="lower left")
    return _under(figure, origin)


def reported(rows: Sequence[cost_model.Reported]) -> Figure:
    """Efficiencies from the literature beside what the model says for those networks:
    from nothing hidden behind the backward pass to all that can be."""
    figure, axis = new_axes(width=8, height=1.2 + 0.6 * len(rows))
    for place, row in enumerate(rows):
        low, high = row.explained()
        axis.plot([low, high], [place, place], color=COLOURS[0], lw=9, alpha=0.35)
        axis.plot(low, place, MARKS[0], color=COLOURS[0])
        axis.plot(high, place, MARKS[1], color=COLOURS[0])
        axis.plot(row.efficiency, place, "*", color=COLOURS[5], ms=15)
        axis.text(
            row.efficiency,
            place - 0.22,
            f"{row.efficiency:.0%}",
            ha="center",
            va="bottom",
        )
    names = [
        f"{r.network.name}\n{r.network.parameters / 1e6:.0f} million" for r in rows
    ]
    axis.set_yticks(range(len(rows)), names)
    axis.set(
        xlabel=f"efficiency on {rows[0].workers} GPUs", ylim=(len(rows) - 0.5, -0.7)
    )
    axis.set_xlim(0.4, 1.05)
    axis.xaxis.set_major_formatter(PercentFormatter(1))
    for mark, colour, label in (
        ("*", COLOURS[5], "reported"),
        (MARKS[0], COLOURS[0], "model, nothing hidden"),
        (MARKS[1], COLOURS[0], "model, all hidden that can be"),
    ):
        axis.plot([], [], mark, color=colour, label=label)
    figure.legend(loc="outside lower center", ncols=3, fontsize=9)
    return finished(figure)


def amdahl(serial: float, speed: Mapping[int, float], most: int = 1000) -> Figure:
    """Amdahl's and Gustafson's laws for a serial share, and what was measured."""
    figure, axis = new_axes(width=8, height=3.6)
    many = np.geomspace(1, most, 100)
    axis.plot(many, many, "--", color="#666666", label="ideal")
    axis.plot(
        many,
        cost_model.gustafson(many, serial),
        color=COLOURS[1],
        ls="-.",
        label="Gustafson: the work grows",
    )
    axis.plot(
        many,
        cost_model.amdahl(many, serial),
        color=COLOURS[0],
        label="Amdahl: it stays",
    )
    counts = sorted(speed)
    axis.plot(
        counts,
        [speed[count] / speed[1] for count in counts],
        MARKS[2],
        color=COLOURS[5],
        ms=9,
        label="measured",
    )
    axis.set(xscale="log", yscale="log", xlabel="workers", ylabel="speed-up")
    ticks = [n for n in (1, 2, 4, 8, 64, 1000) if n <= most]
    for set_ticks in (axis.set_xticks, axis.set_yticks):
        set_ticks(ticks, [f"{n:,}" for n in ticks])
        set_ticks([], minor=True)
    axis.legend(title=f"{serial:.1%} can't be shared")
    return finished(figure)


def of_section(section: Section, origin: str = "") -> Figure:
    """A bar for each row, to its median; every round is a dot.

    Where there are ratios they are drawn, and a line stands at 1. origin: where
    recorded numbers come from, to stand below.
    """
    compared = [row for row in section.rows if row.ratios]
    rows = compared or section.rows
    figure, axis = plt.subplots(
        figsize=(9, 1.2 + 0.42 * len(rows)), layout="constrained"
    )
    for place, row in enumerate(rows):
        values = row.ratios if compared else row.values
        middle = statistics.median(values)
        axis.barh(place, middle, color=COLOURS[0], alpha=0.35, height=0.6)
        axis.plot(values, [place] * len(values), MARKS[0], color=COLOURS[0], ms=4)
        bound = "more than " if row.at_least else ""
        axis.annotate(
            f"{bound}{middle:.2f}" if compared else f"{bound}{middle:.3g}",
            (max(values), place),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
        )
    axis.set_yticks(range(len(rows)), [row.name.replace("`", "") for row in rows])
    axis.invert_yaxis()
    axis.margins(x=0.25 if any(row.at_least for row in rows) else 0.1)
    axis.set_xlim(left=0)
    axis.spines[["top", "right"]].set_visible(False)
    if compared:
        axis.axvline(1, color="black", linewidth=1, linestyle="--")
        axis.set_xlabel(f"ratio to: {rows[0].base}")
    else:
        axis.set_xlabel(rows[0].unit)
    axis.set_title(TITLES[section.name], loc="left")
    if origin:
        figure.supxlabel(origin.replace("`", ""), fontsize=8, wrap=True)
    plt.close(figure)
    return figure
