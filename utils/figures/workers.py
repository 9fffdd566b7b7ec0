"""Two devices train one model: as two processes, or as two replicas in one process."""

from matplotlib.axes import Axes

from utils.figures.diagrams import Diagram, draw_arrow, draw_box, draw_text, paper
from utils.figures.style import BLUE, GREEN, GREY, ORANGE, PALE

FRAMES = ((0.35, BLUE), (4.85, ORANGE))  # the left edge of each, and its color
WIDTH, MIDDLE = 2.8, 4.0


def two_workers() -> Diagram:
    """Two processes, each with a copy of the model and half of the batch."""
    diagram, ax = paper(
        8,
        3.7,
        "Two workers, each of them a process. Each one has a copy of the model and "
        "half of the batch, and computes gradients from them. The workers exchange "
        "their gradients and average them, and each applies the average to its copy.",
    )
    for number, (left, color) in enumerate(FRAMES):
        draw_box(ax, left, 0.5, WIDTH, 3.05, "", edge=color)
        name = f"worker {number}: a process"
        draw_text(ax, left + WIDTH / 2, 3.3, name, size=11, weight="bold")
        half = ("first", "second")[number]
        _draw_stack(ax, left, 0.65, f"{half} half of the batch", "a copy of the model")
    draw_arrow(ax, (3.0, 2.8), (5.0, 2.8), both=True)
    draw_text(ax, MIDDLE, 3.02, "messages:")
    draw_text(ax, MIDDLE, 2.55, "exchange,")
    draw_text(ax, MIDDLE, 2.35, "then average")
    words = "Each worker applies the same average, so the two copies stay equal."
    draw_text(ax, MIDDLE, 0.25, words, size=10)
    return diagram


def mirrored() -> Diagram:
    """MirroredStrategy: one process, a replica on each of two devices."""
    diagram, ax = paper(
        8,
        4.2,
        "MirroredStrategy: one process with two devices. The strategy splits the "
        "global batch into two halves. Each device holds a replica: a copy of every "
        "variable, which computes gradients from its half. The strategy adds up the "
        "gradients, and both copies change by the sum.",
    )
    draw_box(ax, 0.12, 0.12, 7.76, 3.96, "", edge=GREEN)
    draw_text(ax, MIDDLE, 3.88, "one process", size=11, weight="bold")
    draw_box(ax, MIDDLE - 0.85, 0.28, 1.7, 0.4, "global batch", PALE)
    for number, (left, color) in enumerate(FRAMES):
        draw_box(ax, left, 0.9, WIDTH, 2.8, "", edge=color)
        name = f"device {number}: replica {number}"
        draw_text(ax, left + WIDTH / 2, 3.47, name, size=11, weight="bold")
        half = ("first", "second")[number]
        _draw_stack(ax, left, 1.02, f"{half} half", "a copy of each variable", 0.75)
        side = (MIDDLE - 0.85, MIDDLE + 0.85)[number]
        draw_arrow(ax, (side, 0.48), (left + WIDTH / 2, 1.02), color=GREY)
    draw_arrow(ax, (3.0, 2.75), (5.0, 2.75), both=True)
    draw_text(ax, MIDDLE, 2.97, "all-reduce:")
    draw_text(ax, MIDDLE, 2.52, "the sum")
    return diagram


def _draw_stack(
    ax: Axes, left: float, bottom: float, images: str, model: str, step: float = 0.95
) -> None:
    """Images below, the model above them, its gradients on top, in a frame."""
    middle = left + WIDTH / 2
    for row, words in enumerate((images, model, "its gradients")):
        y = bottom + row * step
        draw_box(ax, left + 0.2, y, WIDTH - 0.4, 0.48, words, PALE)
        if row:
            draw_arrow(ax, (middle, y - step + 0.48), (middle, y))
