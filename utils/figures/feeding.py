"""The figures of notebook 20."""

from collections.abc import Mapping, Sequence

import pandas

from utils.figures.style import (
    BLUE,
    GREY,
    ORANGE,
    PURPLE,
    VERMILION,
    Figure,
    bars,
    subplots,
)
from utils.measure import step_profile

COLOUR = {
    step_profile.COMPUTES: BLUE,
    step_profile.WAITS: VERMILION,
    step_profile.MAKES: ORANGE,
}


def parts(ways: Mapping[str, Mapping[str, Sequence[int]]], images: int) -> Figure:
    """Who got which image: a panel for each way, in it a row for each worker with a
    mark for each image that it got. Images in grey belong to nobody, those in red to
    several.

    ways: name -> worker -> numbers of images, from 0 on; images: how many there are.
    """
    rows = max(len(workers) for workers in ways.values())
    size = (8, 0.5 + len(ways) * (0.55 + 0.25 * rows))
    figure, axes = subplots(len(ways), 1, figsize=size, sharex=True, squeeze=False)
    for axis, (way, workers) in zip(axes[:, 0], ways.items(), strict=True):
        owners = [
            sum(image in own for own in workers.values()) for image in range(images)
        ]
        for row, own in enumerate(workers.values()):
            colours = [VERMILION if owners[image] > 1 else BLUE for image in own]
            axis.scatter(own, [row] * len(own), marker="s", s=22, color=colours)
        nobody = [image for image in range(images) if not owners[image]]
        axis.scatter(nobody, [rows] * len(nobody), marker="x", s=22, color=GREY)
        twice = sum(count > 1 for count in owners)
        axis.set_title(f"{way}: {len(nobody)} in nobody's part, {twice} in several")
        axis.set_yticks([*range(len(workers)), rows], [*workers, "nobody"])
        axis.set_ylim(rows + 0.6, -0.6)
        axis.grid(False)
    axes[-1, 0].set_xlabel("number of the image")
    return figure


def step_times(milliseconds: Mapping[str, float], computing: str) -> Figure:
    """A bar for each way to feed a step; a line where it has nothing to wait for.

    computing: which of the ways repeats one batch.
    """
    figure, axis = subplots(figsize=(8, 0.9 + 0.5 * len(milliseconds)))
    colours = [BLUE if way == computing else ORANGE for way in milliseconds]
    bars(axis, milliseconds, "{:.1f}", colours)
    axis.axvline(milliseconds[computing], color=BLUE, ls="--")
    axis.set(xlabel="milliseconds for a step")
    return figure


def profiles(tables: Mapping[str, pandas.DataFrame], steps: int = 3) -> Figure:
    """The first steps of some profiles (`step_profile.read`), a panel for each: what
    was on when, in each lane; a line where a step begins."""
    size = (8, 0.6 + 1.5 * len(tables))
    figure, axes = subplots(len(tables), 1, figsize=size, squeeze=False)
    for axis, (name, table) in zip(axes[:, 0], tables.items(), strict=True):
        begun = table[table["lane"] == step_profile.STEP].head(steps)
        end = begun["end"].max()
        for row, lane in enumerate(step_profile.LANES):
            own = table[(table["lane"] == lane) & (table["start"] < end)]
            spans = [
                (1000 * start, 1000 * (min(stop, end) - start))
                for start, stop in zip(own["start"], own["end"], strict=True)
            ]
            axis.broken_barh(spans, (row - 0.35, 0.7), color=COLOUR[lane], lw=0)
        for start in begun["start"]:
            axis.axvline(1000 * start, color=PURPLE, lw=1)
        axis.set_yticks(range(len(step_profile.LANES)), step_profile.LANES)
        axis.set_ylim(len(step_profile.LANES) - 0.4, -0.6)
        axis.set_xlim(0, 1000 * end)
        axis.set_title(name)
        axis.grid(False)
    axes[-1, 0].set_xlabel("milliseconds; a line where a step begins")
    return figure
