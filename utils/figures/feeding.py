"""The figures of the lessons on input: which worker reads what, and who waits."""

from collections.abc import Mapping, Sequence

import pandas
from matplotlib.lines import Line2D

from utils.figures.diagrams import Diagram, draw_box, draw_text, paper
from utils.figures.style import (
    BLUE,
    GREY,
    ORANGE,
    PALE,
    PURPLE,
    SKY,
    VERMILION,
    Figure,
    bars,
    subplots,
)
from utils.measure import step_profile

COLOR = {
    step_profile.COMPUTES: BLUE,
    step_profile.WAITS: VERMILION,
    step_profile.MAKES: ORANGE,
}


def parts(ways: Mapping[str, Mapping[str, Sequence[int]]], images: int) -> Figure:
    """Which image is in which part: a panel for each way, in it a row for each part
    with a mark for each image; below, those in no part.

    ways: name -> part (a worker's, say) -> numbers of images, from 0 on; images: how
    many there are.
    """
    rows = max(len(own) for own in ways.values())
    size = (8, 0.8 + len(ways) * (0.55 + 0.25 * rows))
    figure, axes = subplots(len(ways), 1, figsize=size, sharex=True, squeeze=False)
    for axis, (way, own) in zip(axes[:, 0], ways.items(), strict=True):
        counts = [
            sum(image in part for part in own.values()) for image in range(images)
        ]
        for row, part in enumerate(own.values()):
            colors = [VERMILION if counts[image] > 1 else BLUE for image in part]
            axis.scatter(part, [row] * len(part), marker="s", s=22, color=colors)
        none = [image for image in range(images) if not counts[image]]
        axis.scatter(none, [rows] * len(none), marker="x", s=22, color=GREY)
        several = sum(count > 1 for count in counts)
        axis.set_title(f"{way}: {len(none)} in no row, {several} in several")
        axis.set_yticks([*range(len(own)), rows], [*own, "none"])
        axis.set_ylim(rows + 0.6, -0.6)
        axis.grid(False)
    axes[-1, 0].set_xlabel("number of the image")
    looks = {"one row": ("s", BLUE), "several rows": ("s", VERMILION)}
    looks["no row"] = ("x", GREY)
    words = [
        Line2D([], [], ls="", marker=marker, color=color, label=f"in {where}")
        for where, (marker, color) in looks.items()
    ]
    figure.legend(handles=words, loc="outside lower center", ncols=3, fontsize=9)
    return figure


def step_times(milliseconds: Mapping[str, float], computing: str) -> Figure:
    """A bar for each way to feed a step; a line where it has nothing to wait for.

    computing: which of the ways repeats one batch.
    """
    figure, axis = subplots(figsize=(8, 0.9 + 0.5 * len(milliseconds)))
    colors = [BLUE if way == computing else ORANGE for way in milliseconds]
    bars(axis, milliseconds, "{:.1f}", colors)
    label = f"{computing}: computing only"
    axis.axvline(milliseconds[computing], color=BLUE, ls="--", label=label)
    axis.set(xlabel="milliseconds for a step")
    figure.legend(loc="outside lower center", fontsize=9)
    return figure


def profiles(tables: Mapping[str, pandas.DataFrame]) -> Figure:
    """The steps of some profiles (`step_profile.read`), a panel for each, in one scale:
    what was on when, in each lane; a line where a step begins, and where the last one
    ends."""
    size = (8, 0.6 + 1.5 * len(tables))
    figure, axes = subplots(len(tables), 1, figsize=size, sharex=True, squeeze=False)
    longest = 0.0
    for axis, (name, table) in zip(axes[:, 0], tables.items(), strict=True):
        steps = table[table["lane"] == step_profile.STEP]
        end = steps["end"].max()
        longest = max(longest, end)
        for row, lane in enumerate(step_profile.LANES):
            own = table[(table["lane"] == lane) & (table["start"] < end)]
            spans = [
                (1000 * start, 1000 * (min(stop, end) - start))
                for start, stop in zip(own["start"], own["end"], strict=True)
            ]
            axis.broken_barh(spans, (row - 0.35, 0.7), color=COLOR[lane], lw=0)
        for edge in [*steps["start"], end]:
            axis.axvline(1000 * edge, color=PURPLE, lw=1)
        axis.set_yticks(range(len(step_profile.LANES)), step_profile.LANES)
        axis.set_ylim(len(step_profile.LANES) - 0.4, -0.6)
        axis.set_title(name)
        axis.grid(False)
    axes[-1, 0].set_xlim(0, 1010 * longest)
    axes[-1, 0].set_xlabel("milliseconds; lines where a step begins or ends")
    return figure


def unequal_steps() -> Diagram:
    """Two workers, of which one has images for two training steps only: each waits in
    an all-reduce that the other never joins."""
    diagram, ax = paper(
        8,
        2.5,
        "Two workers as two lanes. In steps 1 and 2 both average their gradients "
        "together. Then rank 0 has images left and waits in the average of the "
        "gradients of step 3; rank 1 has none left and waits in the average of the "
        "metrics. Neither joins the other's all-reduce: both wait forever.",
    )
    lanes = (
        ("rank 0", "18 steps", "gradients of step 3", "needs rank 1"),
        ("rank 1", "2 steps", "metrics of the epoch", "needs rank 0"),
    )
    for lane, (rank, has, waits_in, needs) in enumerate(lanes):
        y = 1.35 - 1.0 * lane
        draw_text(ax, 0.6, y + 0.43, rank, weight="bold")
        draw_text(ax, 0.6, y + 0.17, f"images for {has}", 8)
        for step in range(2):
            draw_box(ax, 1.4 + 1.15 * step, y, 0.95, 0.6, f"step {step + 1}", SKY)
        draw_box(ax, 3.75, y, 1.95, 0.6, waits_in, PALE, VERMILION)
        draw_text(ax, 6.75, y + 0.43, f"waits: {needs},", color=VERMILION)
        draw_text(ax, 6.75, y + 0.17, "which never comes", color=VERMILION)
    for step in range(2):
        x = 2.43 + 1.15 * step
        ax.plot([x, x], [0.2, 2.1], color=GREY, lw=2, ls=":")
    draw_text(ax, 2.43, 2.25, "both average gradients here", 8, "center")
    draw_text(ax, 4.72, 2.25, "two different all-reduces", 8, "center")
    return diagram
