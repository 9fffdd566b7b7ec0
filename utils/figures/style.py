"""What all figures look like, and how one is made: `figure, axis = subplots()`."""

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.figure
from matplotlib.axes import Axes
from matplotlib.axis import Axis

from utils.running.result import Run

STYLE = matplotlib.rc_params_from_file(
    Path(__file__).with_name("course.mplstyle"), use_default_template=False
)
# The style's cycle by name, for what has its colour whatever stands beside it.
COLOURS = STYLE["axes.prop_cycle"].by_key()["color"]
BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION = COLOURS
INK, GREY, PALE, WARNING = "#1a1a1a", "#595959", "#e6e6e6", "#b00000"

DOTS_PER_INCH = 96
SHARPER = 1.5  # times as many dots are stored as are shown, for dense screens


class Figure(matplotlib.figure.Figure):
    """A matplotlib Figure that a cell shows by ending with it, once.

    It is not one of pyplot's figures: nobody needs to close it.
    """

    def _repr_mimebundle_(self, include=None, exclude=None) -> tuple[dict, dict]:
        """What Jupyter shows, whether or not pyplot is at hand."""
        png = io.BytesIO()
        dots = DOTS_PER_INCH * SHARPER
        self.savefig(png, dpi=dots, pil_kwargs={"optimize": True})  # a smaller file
        picture = base64.b64encode(png.getvalue()).decode()
        width, height = (
            round(DOTS_PER_INCH * inches) for inches in self.get_size_inches()
        )
        metadata = {"width": width, "height": height}
        return {"image/png": picture, "text/plain": repr(self)}, {"image/png": metadata}

    def with_notices(self, *runs: Run) -> "Figure":
        """Put under it what the user must know of the runs that it shows."""
        notices = dict.fromkeys(text for run in runs for text in run.notices)
        return self._under(notices, WARNING)

    def with_origin(self, *lines: str) -> "Figure":
        """Put under it where recorded numbers come from, and what limits them."""
        return self._under(filter(None, lines), GREY)

    def _under(self, lines: Iterable[str], colour: str) -> "Figure":
        if text := "\n".join(lines):
            self.supxlabel(text, fontsize=8, color=colour, wrap=True)
        return self


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


def only_ticks(axis: Axis, numbers: Sequence[float]) -> None:
    """Ticks of a log axis at these numbers, written out, and nowhere between."""
    axis.set_ticks(numbers, [f"{number:,g}" for number in numbers])
    axis.set_ticks([], minor=True)


def bars(axis: Axes, lengths: Mapping[str, float], form: str, color=COLOURS) -> None:
    """A horizontal bar for each name from the top down, and its length in this form."""
    places = range(len(lengths))
    drawn = axis.barh(places, lengths.values(), 0.6, color=color)
    axis.set_yticks(places, lengths)
    axis.bar_label(drawn, fmt=form, padding=3)
    axis.invert_yaxis()
    axis.margins(x=0.12)
