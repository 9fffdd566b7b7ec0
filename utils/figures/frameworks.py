"""The figure of lesson 30."""

from collections.abc import Mapping

import numpy as np

from utils.figures.style import BLUE, ORANGE, Figure, subplots
from utils.measure import four_ways

LEAST = 1e-9  # where "none" is written, as a log axis has no place for 0


def distances(
    ended: Mapping[str, Mapping[str, np.ndarray]], start: Mapping[str, np.ndarray]
) -> Figure:
    """How far training moved a weight, at most, and how far the programs are apart.

    ended: what each program left; they are compared with the first, as far as they left
    the same arrays. start: the weights that all began with, under the same names.
    """
    (first, reference), *others = ended.items()
    rows = {f"moved in training ({first})": four_ways.apart(start, reference)}
    for name, left in others:
        partly = "" if reference.keys() <= left.keys() else " (recorded, in part)"
        rows[f"{name}{partly}, from {first}"] = four_ways.apart(reference, left)
    figure, axis = subplots(figsize=(8, 0.9 + 0.45 * len(rows)))
    for row, (name, value) in enumerate(rows.items()):
        color = BLUE if row else ORANGE
        place = value or LEAST
        if value:
            axis.plot(value, row, "o", color=color, ms=9, label=name)
        axis.annotate(
            f"{value:.1e}" if value else "none",
            (place, row),
            (9, 0),
            textcoords="offset points",
            va="center",
        )
    axis.set_yticks(range(len(rows)), list(rows))
    axis.set(xscale="log", xlim=(LEAST, 30), xlabel="largest difference of a weight")
    axis.invert_yaxis()
    axis.grid(visible=False, axis="x")
    axis.margins(y=0.15)
    return figure
