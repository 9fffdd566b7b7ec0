"""The figures of lesson 15, some of which other lessons show, too."""

import statistics
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, PercentFormatter

from utils.figures.style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PALE,
    PURPLE,
    SKY,
    VERMILION,
    Figure,
    bars,
    only_ticks,
    subplots,
)
from utils.measure import cost_model, timeline
from utils.measure.table import TITLES, Section

# A color, and a pattern for those who see no color.
LOOK = {
    phase: {
        "facecolor": color,
        "hatch": hatch,
        "edgecolor": "white" if hatch else color,
        "lw": 0,
    }
    for phase, color, hatch in (
        ("transfer", BLUE, ""),
        ("fusion", ORANGE, "////"),
        ("processing", PURPLE, "xxxx"),
        ("negotiation", SKY, "...."),
        (timeline.IDLE, PALE, ""),
    )
}


def speed_up(
    speed: Mapping[int, float], prediction: float | None, most: float
) -> Figure:
    """Prediction, measurement, limit and ideal.

    speed: workers -> images per second, of one worker too; prediction: the speed-up
    that the learner expects of the most workers, if any; most: images per second of as
    many that don't talk.
    """
    figure, axis = subplots(figsize=(8, 4))
    counts = sorted(speed)
    last = counts[-1]
    limit = most / speed[1]
    measured = [speed[count] / speed[1] for count in counts]
    axis.plot([1, last], [1, last], "--", color=GREY, label="ideal: N times one")
    label = f"limit, workers that don't talk: {limit:.2f}"
    axis.plot([1, last], [1, limit], "^:", color=GREEN, ms=9, label=label)
    axis.plot(counts, measured, label=f"measured: {measured[-1]:.2f}")
    if prediction is not None:
        label = f"your prediction: {prediction:.2f}"
        axis.plot(last, prediction, "*", color=VERMILION, ms=17, label=label)
    axis.set(xlabel="workers", ylabel="speed-up", xlim=(0.9, last + 0.1))
    highest = 1.1 * max(last, prediction or 0, limit, *measured)
    axis.set(ylim=(0, highest), xticks=counts)
    axis.legend(loc="lower right" if last > 2 else "upper left")
    return figure


def strong_and_weak(
    strong: Mapping[int, float],
    weak: Mapping[int, float],
    silent: Mapping[int, float],
    cores: int,
    origin: str = "",
) -> Figure:
    """Images per second against workers: a step's images shared out (strong), as many
    for each (weak), and each as many without talking; a line where the cores end."""
    figure, axis = subplots(figsize=(8, 3.6))
    curves = {
        "strong: 64 images for all": strong,
        "weak: 64 images each": weak,
        "weak, and nobody talks": silent,
    }
    for dashes, (label, speed) in zip("--:", curves.items(), strict=True):
        axis.plot(list(speed), list(speed.values()), ls=dashes, label=label)
    counts = sorted({count for speed in curves.values() for count in speed})
    ideal = [weak[1] * count for count in counts]
    axis.plot(counts, ideal, "--", color=GREY, label="ideal")
    if counts[-1] > cores:
        axis.axvline(cores + 0.5, color=GREY, lw=1)
        axis.text(cores + 0.53, 0, "more workers\nthan cores", fontsize=9, va="bottom")
    axis.set(xlabel="workers", ylabel="images per second", xticks=counts)
    axis.set_ylim(bottom=0)
    axis.legend()
    return figure.with_origin(origin)


def throughputs(speed: Mapping[str, float]) -> Figure:
    """Images per second of several ways to use a machine: label -> images/s."""
    figure, axis = subplots(figsize=(8, 0.9 + 0.5 * len(speed)))
    bars(axis, speed, "{:,.0f}")
    axis.set(xlabel="images per second")
    return figure


def by_batch_size(speed: Mapping[int, float]) -> Figure:
    """Images per second for each size of a batch."""
    figure, axis = subplots(figsize=(7, 3))
    axis.plot([str(size) for size in speed], list(speed.values()))
    axis.set(xlabel="images in a batch", ylabel="images per second", ylim=(0, None))
    return figure


def step(trace: timeline.Timeline, number: int | None = None) -> Figure:
    """One step of a timeline: above what happened altogether, below by tensor.

    number: of the step; by default the regular one of the middle length.
    """
    steps = trace.steps
    if number is None:
        regular = steps[steps["regular"]]
        lengths = (regular["end"] - regular["start"]).sort_values()
        number = lengths.index[len(lengths) // 2]
    begin, end = steps.loc[number, ["start", "end"]]
    spans = trace.spans[trace.spans["tensor"].isin(trace.gradients)]
    spans = spans[(spans["end"] > begin) & (spans["start"] < end)]
    order = spans.groupby("tensor")["start"].min().sort_values().index
    rows = {tensor: row for row, tensor in enumerate(order)}

    figure, (above, below) = subplots(
        2, 1, figsize=(9, 4.8), sharex=True, height_ratios=[1, 6]
    )

    def bar(axis, row, start, stop, phase):
        start, stop = (1000 * (np.clip(t, begin, end) - begin) for t in (start, stop))
        axis.barh(row, stop - start, 0.9, start, **LOOK[phase])

    strip = trace.strip(begin, end)
    for piece in strip.itertuples():
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
        axis.grid(visible=False)
    drawn = {*strip["phase"], *spans["phase"]}
    words = [
        Patch(**look, label=f"{phase}: {timeline.MEANING[phase]}")
        for phase, look in LOOK.items()
        if phase in drawn
    ]
    figure.legend(handles=words, loc="outside lower center", ncols=2, fontsize=8)
    return figure


def fusion(traces: Mapping[str, timeline.Timeline]) -> Figure:
    """Messages in a step, and where a step's time goes, in several runs: label ->
    timeline."""
    figure, (left, right) = subplots(
        1, 2, figsize=(10, 1.6 + 0.45 * len(traces)), sharey=True
    )
    counts = {label: trace.collectives_per_step for label, trace in traces.items()}
    bars(left, counts, "{:.1f}", color=BLUE)
    left.set(xlabel="all-reduces in a step")
    offset = np.zeros(len(traces))
    for phase, look in LOOK.items():
        means = 1000 * np.array(
            [
                trace.steps.loc[trace.steps["regular"], phase].mean()
                for trace in traces.values()
            ]
        )
        right.barh(range(len(traces)), means, 0.6, offset, label=phase, **look)
        offset += means
    right.set(xlabel="milliseconds of a step")
    for axis in (left, right):
        axis.grid(visible=False)
    figure.legend(loc="outside lower center", ncols=5, fontsize=8)
    return figure


def predicted(
    fits: Sequence[cost_model.Fit],
    networks: Sequence[cost_model.Network],
    batch: int,
    workers: Sequence[int] = (2, 4, 8, 64, 1000),
    origin: str = "",
) -> Figure:
    """The efficiency that the model expects on many workers, a panel a network: bands
    that hold 90 % of the draws, one for each fit's law, and measured steps."""
    figsize = (min(10, 5 * len(networks)), 3.8)
    figure, axes = subplots(1, len(networks), figsize=figsize, squeeze=False)
    curve_workers = np.unique(np.geomspace(1, max(workers), 60))
    for axis, network in zip(axes.flat, networks, strict=True):
        for number, fit in enumerate(fits):
            low, middle, high = np.array(
                [fit.efficiency(n, batch, network) for n in curve_workers]
            ).T
            efficiencies = [fit.model.efficiency(n, batch, network) for n in workers]
            (marks,) = axis.plot(
                workers, efficiencies, ls="", label=f"if {fit.model.law}"
            )
            color = marks.get_color()
            axis.fill_between(curve_workers, low, high, color=color, alpha=0.2)
            axis.plot(curve_workers, middle, ("-", "--")[number % 2], color=color)
        axis.set(title=network.name, xlabel="workers", xscale="log", ylim=(0, 1.25))
        if not all(fit.trusted for fit in fits):
            error = max(fit.spread for fit in fits)
            words = f"typical error {error:.0%}:\ndon't trust these curves"
            corner = {"transform": axis.transAxes, "ha": "right", "va": "top"}
            axis.text(0.97, 0.95, words, color=VERMILION, **corner)
        only_ticks(axis.xaxis, [1, *workers])
        axis.tick_params(axis="x", labelsize=8)
        axis.yaxis.set_major_formatter(PercentFormatter(1))
    axes[0, 0].set_ylabel("efficiency")
    axes[0, 0].legend(fontsize=8, title="all-reduce", loc="lower left")
    return figure.with_origin(origin)


def reported(rows: Sequence[cost_model.Reported]) -> Figure:
    """Efficiencies from the literature beside what the model says for those networks:
    from nothing hidden behind the backward pass to all that can be."""
    figure, axis = subplots(figsize=(8, 1.2 + 0.6 * len(rows)))
    for place, row in enumerate(rows):
        low, high = row.explained()
        axis.plot([low, high], [place, place], "-", color=BLUE, lw=9, alpha=0.35)
        words = f"{row.efficiency:.0%}"
        axis.text(row.efficiency, place - 0.22, words, ha="center", va="bottom")
    places = range(len(rows))
    low, high = zip(*(row.explained() for row in rows), strict=True)
    reported = [row.efficiency for row in rows]
    star = {"marker": "*", "ms": 15, "zorder": 3}
    axis.plot(reported, places, ls="", color=VERMILION, label="reported", **star)
    axis.plot(low, places, "o", color=BLUE, label="model, nothing hidden")
    axis.plot(high, places, "s", color=BLUE, label="model, all hidden that can be")
    names = [
        f"{r.network.name}\n{r.network.parameters / 1e6:.0f} million" for r in rows
    ]
    axis.set_yticks(places, names)
    axis.set(xlim=(0.4, 1.05), ylim=(len(rows) - 0.5, -0.7))
    axis.set_xlabel(f"efficiency on {rows[0].workers} GPUs")
    axis.xaxis.set_major_formatter(PercentFormatter(1))
    figure.legend(loc="outside lower center", ncols=3, fontsize=9)
    return figure


def amdahl(serial: float, speed: Mapping[int, float], most: int = 1000) -> Figure:
    """Amdahl's and Gustafson's laws for a serial share, and what was measured. The
    title of its legend says so where the share rests on a single speed-up, or where the
    law would need one that is none.
    """
    figure, axis = subplots(figsize=(8, 3.6))
    workers = np.geomspace(1, most, 100)
    grows = cost_model.gustafson(workers, serial)
    stays = cost_model.amdahl(workers, serial)
    axis.plot(workers, workers, "--", color=GREY, label="ideal")
    axis.plot(workers, grows, "-.", color=ORANGE, label="Gustafson: the work grows")
    axis.plot(workers, stays, "-", color=BLUE, label="Amdahl: it stays")
    counts = sorted(speed)
    measured = [speed[count] / speed[1] for count in counts]
    axis.plot(counts, measured, "^", color=VERMILION, ms=9, label="measured")
    axis.set(xscale="log", yscale="log", xlabel="workers", ylabel="speed-up")
    for side in (axis.xaxis, axis.yaxis):
        only_ticks(side, [n for n in (1, 2, 4, 8, 64, 1000) if n <= most])
    several = [count for count in counts if count > 1]
    title = f"{serial:.1%} can't be shared"
    if len(several) < 2:
        title += ",\nfrom one speed-up: nothing checks it"
    shares = [cost_model.serial_share(n, speed[n] / speed[1]) for n in several]
    outside = [share for share in shares if not 0 <= share <= 1]
    if outside:
        title += f",\nthe law would need {outside[0]:.0%}, which is no share"
    axis.legend(title=title)
    return figure


def of_section(section: Section, origin: str = "") -> Figure:
    """A bar for each row, to its median; every round is a dot, and the lowest and the
    highest are written behind the median.

    Where there are ratios they are drawn, and a line stands at 1. origin: where
    recorded numbers come from, to stand below.
    """
    compared = [row for row in section.rows if row.ratios]
    rows = compared or section.rows
    figure, axis = subplots(figsize=(9, 1.2 + 0.42 * len(rows)))
    for place, row in enumerate(rows):
        values = row.ratios if compared else row.values
        middle = statistics.median(values)
        axis.barh(place, middle, 0.6, color=BLUE, alpha=0.35)
        axis.plot(values, [place] * len(values), "o", color=BLUE, ms=4)
        bound = "more than " if row.at_least else ""
        form = ".2f" if compared else ".3g"
        spread = f" ({min(values):{form}} to {max(values):{form}})"
        axis.annotate(
            f"{bound}{middle:{form}}{spread * (len(values) > 1)}",
            (max(values), place),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
        )
    axis.set_yticks(range(len(rows)), [row.name.replace("`", "") for row in rows])
    axis.invert_yaxis()
    several = any(len(row.values) > 1 for row in rows)
    axis.margins(x=0.32 if several or any(row.at_least for row in rows) else 0.1)
    axis.set_xlim(left=0)
    axis.grid(visible=False)
    if compared:
        axis.axvline(1, color=INK, lw=1, ls="--")
    shown = f"ratio to: {rows[0].base}" if compared else rows[0].unit
    axis.set_xlabel(f"{shown} (median, and each round)" if several else shown)
    axis.set_title(TITLES[section.name], loc="left")
    return figure.with_origin(origin.replace("`", ""))
