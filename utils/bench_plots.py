"""The figures of the benchmark: one for each section."""

import statistics
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from utils.plots import COLOURS, MARKS

if TYPE_CHECKING:
    from utils.bench import Section


def of_section(section: "Section", origin: str = "") -> Figure:
    """A bar for each row, to its median; every round is a dot.

    Where there are ratios they are drawn, and a line stands at 1. origin: where
    recorded numbers come from, to stand below.
    """
    from utils.bench import TITLES

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
