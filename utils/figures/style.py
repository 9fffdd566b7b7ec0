"""What all figures look like."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from utils.running.result import Run

# Okabe and Ito's colours, told apart with any colour vision, and a mark for each.
COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00"]
MARKS = ["o", "s", "^", "D", "v", "P"]


def new_axes(columns: int = 1, width: float = 5.0, height: float = 3.4) -> tuple:
    figure, axes = plt.subplots(
        1, columns, figsize=(width * columns, height), layout="constrained"
    )
    for axis in np.atleast_1d(axes):
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def finished(figure: Figure, *runs: Run) -> Figure:
    """Put under the figure what the user must know of the runs that it shows."""
    notices = list(dict.fromkeys(text for run in runs for text in run.notices))
    if notices:
        figure.supxlabel("\n".join(notices), fontsize=8, color="#b00000", wrap=True)
    plt.close(figure)
    return figure
