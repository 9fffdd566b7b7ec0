"""The figures of the lessons on memory: what takes it, and how it is shared out."""

from collections.abc import Mapping

from matplotlib.patches import Rectangle

from utils.figures.diagrams import (
    Diagram,
    draw_arrow,
    draw_box,
    draw_text,
    human_bytes,
    paper,
)
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
    subplots,
)

COLOR = {
    "weights": BLUE,
    "gradients": ORANGE,
    "optimizer": GREEN,
    "activations": PURPLE,
}


def holdings(ways: Mapping[str, Mapping[str, float]]) -> Figure:
    """A bar for each way to train, of what a worker holds: bytes of weights, gradients,
    optimizer and activations, one after the other; and their sum.

    ways: name -> part (a name in COLOR) -> bytes.
    """
    figure, axis = subplots(figsize=(8, 1.2 + 0.5 * len(ways)))
    most = max(sum(parts.values()) for parts in ways.values())
    unit, name = (1e9, "GB") if most >= 1e9 else (1e6, "MB")
    for row, (way, parts) in enumerate(ways.items()):
        start = 0.0
        for part, size in parts.items():
            bar = axis.barh(row, size / unit, 0.6, start / unit, color=COLOR[part])
            bar.set_label(f"{way}, {part}")  # for those who don't see it
            start += size
        axis.text(start / unit, row, f"  {human_bytes(start)}", va="center")
    axis.set_yticks(range(len(ways)), ways)
    axis.invert_yaxis()
    axis.margins(x=0.15)
    axis.set_xlabel(f"{name} of a worker's memory, counted")
    named = [p for p in COLOR if any(p in parts for parts in ways.values())]
    marks = [Rectangle((0, 0), 1, 1, color=COLOR[part]) for part in named]
    above = {"loc": "lower left", "bbox_to_anchor": (0, 1), "frameon": False}
    axis.legend(marks, named, ncols=len(named), **above)
    return figure


def peaks(ways: Mapping[str, float], start: float) -> Figure:
    """A bar for each way to train: the bytes at its peak, above those at the start."""
    figure, axis = subplots(figsize=(8, 1.2 + 0.5 * len(ways)))
    above = {way: (peak - start) / 1e6 for way, peak in ways.items()}
    bars(axis, above, "%.0f", SKY)
    before = human_bytes(start)
    axis.set_xlabel(f"MB at the peak, above the {before} at the start")
    return figure


def by_batch(
    measured: Mapping[int, float], line: tuple[float, float], counted: float
) -> Figure:
    """Peak memory by the batch size, the line through it, and what was counted.

    measured: batch size -> bytes; line: bytes for each image, and with none; counted:
    bytes for each image.
    """
    figure, axis = subplots(figsize=(8, 3.4))
    batches = sorted(measured)
    ends = [0, max(batches)]
    slope, start = line
    for each, color, style, name in (
        (slope, BLUE, "-", "the line through them"),
        (counted, GREY, "--", "from the same start, as counted"),
    ):
        heights = [(start + each * batch) / 1e6 for batch in ends]
        label = f"{name}: {human_bytes(each)} an image"
        axis.plot(ends, heights, color=color, ls=style, marker="", label=label)
    peaks = [measured[batch] / 1e6 for batch in batches]
    axis.plot(batches, peaks, "o", color=ORANGE, label="measured", zorder=3)
    axis.set(xlabel="images in a batch", ylabel="MB at the peak", ylim=(0, None))
    axis.legend()
    return figure


def loss_scale_around_horovod() -> Diagram:
    """One update in mixed precision: what the loss scale does, outside, and what
    Horovod's optimizer does, inside."""
    diagram, ax = paper(
        8,
        3.9,
        "Three optimizers, one inside the other: the loss scale outside, Horovod's "
        "optimizer in it, SGD innermost. In an update, each worker multiplies its loss "
        "by the scale and computes gradients; Horovod averages them over the workers; "
        "the loss scale divides the average by the scale and asks whether it is "
        "finite; if so SGD updates the weights, else all skip and halve the scale. "
        "The average has an infinity of worker 1 in it, so both workers skip.",
    )
    draw_box(ax, 0.2, 2.75, 7.6, 0.95, "", edge=GREEN)
    draw_text(ax, 0.35, 3.5, "loss scale: LossScaleOptimizer", 9, "left", "bold", GREEN)
    draw_box(ax, 3.2, 2.85, 4.45, 0.7, "", edge=ORANGE)
    words = "average: hvd.DistributedOptimizer"
    draw_text(ax, 3.3, 3.35, words, 9, "left", "bold", ORANGE)
    draw_box(ax, 5.9, 2.92, 1.6, 0.32, "update: SGD", edge=BLUE)
    columns = (
        (1.02, "loss\nx scale", GREEN),
        (2.15, "way back\nin float16", GREY),
        (4.85, "÷ scale", GREEN),
        (6.0, "finite?", GREEN),
        (7.15, "update,\nor skip", BLUE),
    )
    for worker in range(2):
        y = 1.55 - 1.15 * worker
        draw_text(ax, 0.27, y + 0.32, f"worker\n{worker}", 8.5, weight="bold")
        for x, label, color in columns:
            draw_box(ax, x - 0.42, y, 0.9, 0.62, label, edge=color)
        for start, end in ((1.5, 1.73), (5.33, 5.58), (6.48, 6.73)):
            draw_arrow(ax, (start, y + 0.31), (end, y + 0.31))
        draw_arrow(ax, (2.63, y + 0.31), (3.05, 1.3))
        draw_arrow(ax, (3.95, 1.3), (4.43, y + 0.31))
        value = ("2.0", "inf")[worker]
        draw_text(ax, 2.2, y - 0.17, value, 9, color=VERMILION if worker else INK)
        draw_text(ax, 4.9, y - 0.17, "inf", color=VERMILION)
        draw_text(ax, 6.05, y - 0.17, "no", color=VERMILION)
        draw_text(ax, 7.2, y - 0.17, "skip, halve", 8.5, color=VERMILION)
    draw_box(ax, 3.05, 0.9, 0.9, 0.8, "average\nof all\nworkers", PALE, ORANGE)
    return diagram


def zero_step() -> Diagram:
    """A training step of ZeRO's stage 1 with three workers: an all-reduce in two
    halves, and the update between them."""
    diagram, ax = paper(
        8,
        3.4,
        "A step of ZeRO, stage 1, with three workers. Each has a gradient for all "
        "three parts of the weights. A reduce-scatter gives worker r the average of "
        "part r only; there Adam, which keeps its state for part r, updates part r of "
        "the weights; an all-gather gives all new parts to every worker.",
    )

    def row(x, y, parts, alpha=1.0):
        for part in range(3):
            shade = alpha if part in parts else None
            _third(ax, part, (x + 0.4 * part, y), (0.4, 0.4), shade)

    for x, words in (
        (1.4, "own gradient"),
        (3.4, "averaged part"),
        (5.05, "update"),
        (7.1, "new weights"),
    ):
        draw_text(ax, x, 3.0, words, weight="bold")
    for worker in range(3):
        y = 2.2 - 0.85 * worker
        draw_text(ax, 0.4, y + 0.2, f"worker {worker}", 9, weight="bold")
        row(0.8, y, (0, 1, 2), 0.4)
        row(2.8, y, (worker,))
        draw_box(ax, 4.45, y - 0.06, 1.2, 0.52, "Adam, state\nof its part", PALE)
        row(6.5, y, (0, 1, 2))
        draw_arrow(ax, (4.05, y + 0.2), (4.42, y + 0.2))
    for x, words in ((2.4, "reduce-\nscatter"), (6.08, "all-\ngather")):
        ax.add_patch(
            Rectangle((x - 0.3, 0.45), 0.6, 2.2, facecolor=PALE, edgecolor=GREY)
        )
        ax.text(x, 1.55, words, ha="center", va="center", rotation=90, fontsize=10)
    draw_text(ax, 4, 0.15, "the two halves of an all-reduce, as many bytes as one", 9)
    return diagram


def _third(ax, part, corner, size, shade) -> None:
    """One of three parts of something, as strong as `shade`; None: it isn't there."""
    color = "white" if shade is None else (BLUE, ORANGE, GREEN)[part]
    look = {"facecolor": color, "edgecolor": GREY, "alpha": shade or 1.0}
    ax.add_patch(Rectangle(corner, *size, **look))


# ------------------------------------------------------- beyond data parallelism


def fully_sharded() -> Diagram:
    """Fully sharded data parallelism: a layer's parts come together to be used."""
    diagram, ax = paper(
        8,
        3.3,
        "Fully sharded data parallelism. Three workers keep a third of each of three "
        "layers. When layer 2 is computed, all three gather all of layer 2, and drop "
        "the parts of the others after it. Each worker has a batch of its own.",
    )
    for worker in range(3):
        left = 0.2 + 2.6 * worker
        color = (BLUE, ORANGE, GREEN)[worker]
        draw_text(ax, left + 1.2, 3.08, f"worker {worker}: own images", weight="bold")
        for layer in range(3):
            y = 2.3 - 0.75 * layer
            draw_text(ax, left + 0.32, y + 0.24, f"layer {layer + 1}", size=8)
            for part in range(3):
                shade = 1.0 if part == worker else 0.4 if layer == 1 else None
                _third(ax, part, (left + 0.65 + 0.52 * part, y), (0.5, 0.48), shade)
        ax.plot([left] * 2, [0.75, 2.85], color=color, lw=2.5)
        if worker:
            draw_arrow(ax, (left - 0.36, 1.79), (left - 0.04, 1.79), both=True)
    draw_text(
        ax, 4, 0.48, "strong color: kept; pale: gathered, only while layer 2 is used"
    )
    draw_text(ax, 4, 0.2, "weights travel twice a step, gradients once", color=GREY)
    return diagram


MICRO_BATCHES, STAGES = 4, 3


def pipeline() -> Diagram:
    """Pipeline parallelism: layers shared out, micro-batches on their way through."""
    slots = 2 * (STAGES + MICRO_BATCHES - 1)
    idle = STAGES - 1
    diagram, ax = paper(
        8,
        2.7,
        f"Pipeline parallelism. {STAGES} workers have a third of the layers each, and "
        f"{MICRO_BATCHES} micro-batches go forward through them one after the other, "
        f"then backward. Of {slots} slots of time each worker waits for {2 * idle}: "
        "the bubble.",
    )
    width = 6.3 / slots
    for stage in range(STAGES):
        y = 1.75 - 0.6 * stage
        layers = ("first", "middle", "last")[stage]
        draw_text(ax, 0.7, y + 0.25, f"worker {stage}:\n{layers} layers", size=8.5)
        busy = {stage + n: (n, SKY) for n in range(MICRO_BATCHES)}
        first = STAGES + MICRO_BATCHES - 1 + STAGES - 1 - stage
        busy |= {first + n: (n, ORANGE) for n in range(MICRO_BATCHES)}
        for slot in range(slots):
            number, color = busy.get(slot, ("", "white"))
            look = {"facecolor": color, "edgecolor": GREY}
            hatch = None if slot in busy else "///"
            corner = (1.4 + width * slot, y)
            ax.add_patch(Rectangle(corner, width, 0.5, hatch=hatch, **look))
            draw_text(ax, corner[0] + width / 2, y + 0.25, str(number))
    draw_text(ax, 4.55, 2.48, "numbers: micro-batches; blue: forward; orange: backward")
    draw_text(ax, 4.55, 0.3, "time, to the right; hatched: waiting (the bubble)", 9)
    return diagram


def tensor_parallel() -> Diagram:
    """Tensor parallelism: one matrix cut up, and an all-reduce in each layer."""
    diagram, ax = paper(
        8,
        2.9,
        "Tensor parallelism. Two workers get the same images. Each has half of the "
        "columns of a first matrix and half of the rows of a second, computes half of "
        "the activations in between, and a partial sum; an all-reduce adds the two up, "
        "for both, in each pair of layers.",
    )
    for worker, color in enumerate((BLUE, ORANGE)):
        y = 1.55 - 1.2 * worker
        draw_text(ax, 0.65, y + 0.5, f"worker {worker}", weight="bold")
        draw_box(ax, 1.25, y + 0.2, 0.9, 0.6, "the same\nimages", PALE)
        draw_box(ax, 2.55, y, 0.8, 1.0, "half of\nthe\ncolumns", edge=color)
        draw_box(ax, 3.75, y + 0.2, 0.9, 0.6, "half of the\nactivations", PALE)
        draw_box(ax, 5.15, y + 0.2, 1.0, 0.6, "half of\nthe rows", edge=color)
        for start, end in ((2.15, 2.55), (3.35, 3.75), (4.65, 5.15)):
            draw_arrow(ax, (start, y + 0.5), (end, y + 0.5))
        draw_arrow(ax, (6.15, y + 0.5), (6.75, 1.45), both=True)
    draw_box(ax, 6.75, 1.1, 1.1, 0.7, "all-reduce", edge=GREEN)
    draw_text(ax, 2.95, 2.72, "first matrix")
    draw_text(ax, 5.65, 2.72, "second matrix")
    draw_text(ax, 7.3, 0.75, "the sum comes back;\non the way back\nlikewise", 8.5)
    return diagram
