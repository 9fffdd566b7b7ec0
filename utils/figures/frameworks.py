"""The figure of notebook 23."""

from collections.abc import Mapping

import numpy as np

from utils.figures.style import BLUE, ORANGE, Figure, subplots
from utils.measure import four_ways

LEAST = 1e-9  # what is drawn for no difference at all


def distances(
    ended: Mapping[str, Mapping[str, np.ndarray]], start: Mapping[str, np.ndarray]
) -> Figure:
    """How far training moved a weight, at most, and how far the programs are apart.

    ended: what each program left; they are compared with the first. start: the weights
    that all began with, under the same names.
    """
    (first, reference), *others = ended.items()
    rows = {f"moved in training ({first})": four_ways.apart(start, reference)}
    for name, left in others:
        rows[f"{name}, from {first}"] = four_ways.apart(reference, left)
    figure, axis = subplots(figsize=(8, 0.9 + 0.45 * len(rows)))
    names, values = list(rows), list(rows.values())
    colours = [ORANGE] + [BLUE] * len(others)
    axis.barh(names, [max(value, LEAST) for value in values], color=colours)
    for row, value in enumerate(values):
        axis.annotate(
            f" {value:.1e}" if value else " none", (max(value, LEAST), row), va="center"
        )
    axis.set(xscale="log", xlim=(LEAST, 30), xlabel="largest difference of a weight")
    axis.invert_yaxis()
    axis.grid(False)
    return figure
