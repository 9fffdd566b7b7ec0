"""What all figures look like, and how one is made: `figure, axis = subplots()`."""

import base64
import io
import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.figure
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.container import BarContainer
from matplotlib.text import Annotation

from utils.running.result import Run

STYLE = matplotlib.rc_params_from_file(
    Path(__file__).with_name("course.mplstyle"), use_default_template=False
)
# The style's cycle by name, for what has its color whatever stands beside it.
COLORS = list(dict.fromkeys(STYLE["axes.prop_cycle"].by_key()["color"]))
BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION = COLORS
INK, GREY, PALE, WARNING = "#1a1a1a", "#595959", "#e6e6e6", "#b00000"

DOTS_PER_INCH = 96
SHARPER = 1.5  # times as many dots are stored as are shown, for dense screens


class Figure(matplotlib.figure.Figure):
    """A matplotlib Figure that a cell shows by ending with it, once.

    It is not one of pyplot's figures: nobody needs to close it.
    """

    def _repr_mimebundle_(self, include=None, exclude=None) -> tuple[dict, dict]:
        """What Jupyter shows, whether or not pyplot is at hand: the picture, and its
        words for those who don't see it."""
        png = io.BytesIO()
        dots = DOTS_PER_INCH * SHARPER
        self.savefig(png, dpi=dots, pil_kwargs={"optimize": True})  # a smaller file
        picture = base64.b64encode(png.getvalue()).decode()
        width, height = (
            round(DOTS_PER_INCH * inches) for inches in self.get_size_inches()
        )
        metadata = {"width": width, "height": height, "alt": self.in_words()}
        return {"image/png": picture, "text/plain": repr(self)}, {"image/png": metadata}

    def in_words(self) -> str:
        """What the figure shows, from what is drawn: titles, axes, each line with its
        ends, each bar with its length, what is written."""
        parts = [self.get_suptitle(), *map(_in_words, self.axes), self.get_supxlabel()]
        words = []
        for part, equal in itertools.groupby(_one_line(part) for part in parts if part):
            times = len(list(equal))
            words.append(part.rstrip(".") + (f", {times} times." if times > 1 else "."))
        return " ".join(words)

    def with_notices(self, *runs: Run) -> "Figure":
        """Put under it what the user must know of the runs that it shows."""
        notices = dict.fromkeys(text for run in runs for text in run.notices)
        return self._under(notices, WARNING)

    def with_origin(self, *lines: str) -> "Figure":
        """Put under it where recorded numbers come from, and what limits them."""
        return self._under(filter(None, lines), GREY)

    def _under(self, lines: Iterable[str], color: str) -> "Figure":
        if text := "\n".join(lines):
            self.supxlabel(text, fontsize=8, color=color, wrap=True)
        return self


def _in_words(axis: Axes) -> str:
    """What one part of a figure shows."""
    across, up = axis.get_xlabel(), axis.get_ylabel()
    shown = [axis.get_title(), f"{up} by {across}" if across and up else across or up]
    shown += ["a picture"] if axis.images else []
    legend = axis.get_legend_handles_labels()[1]
    for line in axis.get_lines():
        points = line.get_xydata()
        name = "a line" if line.get_label().startswith("_") else line.get_label()
        if len(points) and (name in legend or not legend):
            shown.append(f"{name}: {_ends(points)}")
    for bars in axis.containers:
        if isinstance(bars, BarContainer):
            shown.append(_lengths(axis, bars))
    named = " ".join(shown)
    # What is written at bars, and with arrows, says again what has been said.
    written = [text for text in axis.texts if not isinstance(text, Annotation)]
    others = [*legend, *(text.get_text() for text in written)]
    shown += dict.fromkeys(text for text in others if text not in named)
    return "; ".join(_some(filter(None, shown)))


def _ends(points: np.ndarray) -> str:
    """Where a line begins and ends."""
    begin, end = (f"{_number(y)} at {_number(x)}" for x, y in points[[0, -1]])
    return begin if len(points) == 1 else f"from {begin} to {end}"


def _lengths(axis: Axes, bars: BarContainer) -> str:
    """How long each bar is, by its name where it has one."""
    horizontal = bars.orientation == "horizontal"
    ticks = (axis.yaxis if horizontal else axis.xaxis).get_ticklabels()
    names = [tick.get_text() for tick in ticks]
    lengths = [_number(length) for length in bars.datavalues]
    if len(names) == len(lengths):
        lengths = [
            f"{name} {length}" for name, length in zip(names, lengths, strict=True)
        ]
    name = "" if bars.get_label().startswith("_") else f" {bars.get_label()}"
    return f"bars{name}: {', '.join(_some(lengths))}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _some(items: Iterable[str], most: int = 12) -> list[str]:
    """The first of many, and how many more there are."""
    items = list(items)
    more = len(items) - most
    return [*items[:most], f"and {more} more"] if more > 0 else items


def _one_line(text: str) -> str:
    return " ".join(text.split())


def subplots(
    nrows: int = 1,
    ncols: int = 1,
    *,
    figsize: tuple[float, float] = (8, 3.4),
    **options,
) -> tuple[Figure, Any]:
    """As pyplot's, in the course's style, which is on for this figure alone."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=figsize)
        return figure, figure.subplots(nrows, ncols, **options)


def legend(axis: Axes) -> None:
    """A legend of workers: where there are many, beside the axes, or it would hide
    some."""
    count = len(axis.get_legend_handles_labels()[1])
    beside = {"loc": "upper left", "bbox_to_anchor": (1, 1), "fontsize": 8}
    axis.legend(**beside | {"ncols": 1 + count // 17} if count > 4 else {})


def only_ticks(axis: Axis, numbers: Sequence[float]) -> None:
    """Ticks of a log axis at these numbers, written out, and nowhere between."""
    axis.set_ticks(numbers, [f"{number:,g}" for number in numbers])
    axis.set_ticks([], minor=True)


def bars(axis: Axes, lengths: Mapping[str, float], form: str, color=COLORS) -> None:
    """A horizontal bar for each name from the top down, and its length in this form."""
    places = range(len(lengths))
    drawn = axis.barh(places, lengths.values(), 0.6, color=color)
    axis.set_yticks(places, lengths)
    axis.bar_label(drawn, fmt=form, padding=3)
    axis.invert_yaxis()
    axis.margins(x=0.12)
