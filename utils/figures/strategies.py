"""The drawings of lessons 12 to 14: where variables are, and who computes what."""

import functools
from collections.abc import Callable

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from utils.figures.diagrams import Diagram, draw_arrow, draw_box, draw_text, paper
from utils.figures.style import BLUE, GREEN, GREY, ORANGE, PALE

WIDE, HIGH = 3.9, 2.75  # a panel, in inches
OF_WORKERS = (BLUE, ORANGE)


def shard_policies() -> Diagram:
    """The parts of their batches that two workers keep by the policies DATA, OFF."""
    images, workers, batch = 8, 2, 2
    parts = [range(first, first + batch) for first in range(0, images, batch)]
    kept = {
        "DATA": [parts[worker::workers] for worker in range(workers)],
        "OFF": [parts] * workers,
    }
    sentences = [
        f"With {policy}, worker {worker} keeps images "
        f"{', '.join(str(image) for part in own for image in part)}."
        for policy, rows in kept.items()
        for worker, own in enumerate(rows)
    ]
    cell, gap, left = 0.42, 0.12, 1.0
    row = 0.5
    width = left + images * cell + (len(parts) + 1) * gap + 0.3
    height = 2 * (workers + 0.75) * row + 1.15
    words = f"{images} images in global batches of {workers * batch}. "
    diagram, ax = paper(max(width, 5), height, words + " ".join(sentences))

    def draw_part(part, y, color):
        x = left + part[0] * cell + part[0] // batch * gap
        x += part[0] // (workers * batch) * gap  # between two global batches
        for place, image in enumerate(part):
            corner = (x + place * cell, y - 0.17)
            look = {"facecolor": color or "white", "edgecolor": GREY}
            ax.add_patch(Rectangle(corner, cell, 0.34, **look))
            ink = "white" if color == BLUE else ("black" if color else GREY)
            middle = x + (place + 0.5) * cell
            draw_text(ax, middle, y, str(image), size=10, color=ink)

    y = height - 0.25
    across = workers * batch * cell + (workers - 1) * gap
    for number in range(images // (workers * batch)):
        x = left + number * (across + 2 * gap)
        draw_text(ax, x + across / 2, y, f"global batch {number}", weight="bold")
    y -= 0.35
    for policy, says in {
        "DATA": "of each global batch, a worker keeps its own part",
        "OFF": "every worker keeps every part",
    }.items():
        draw_text(ax, 0.1, y, policy, size=11, align="left", weight="bold")
        draw_text(ax, left, y, says, size=10, align="left")
        for worker in range(workers):
            y -= row
            draw_text(ax, left - 0.1, y, f"worker {worker}", align="right")
            for part in parts:
                keeps = part in kept[policy][worker]
                draw_part(part, y, OF_WORKERS[worker] if keeps else None)
        y -= row * 0.85
    words = "colored: kept by this worker; white: thrown away"
    draw_text(ax, left, y + 0.08, words, align="left", color=GREY)
    return diagram


# ------------------------------------------------------------- a strategy as boxes


def boxes(*names: str) -> Diagram:
    """Strategies side by side, each as boxes: its processes, its devices, where the
    variables are, and what travels. At most three, by their names in `PANELS`."""
    if not 1 <= len(names) <= 3:
        raise ValueError(f"one to three strategies fit side by side, not {len(names)}")
    for name in names:
        if name not in PANELS:
            raise ValueError(f"no strategy {name!r}: there are {', '.join(PANELS)}")
    words = " ".join(PANELS[name][1] for name in names)
    diagram, ax = paper(WIDE * len(names), HIGH, words)
    for place, name in enumerate(names):
        title, _, draw = PANELS[name]
        left = place * WIDE
        draw_text(ax, left + WIDE / 2, HIGH - 0.17, title, size=11, weight="bold")
        draw(ax, left)
        if place:
            ax.plot([left, left], [0.1, HIGH - 0.1], color=PALE, lw=1.5)
    return diagram


def _process(ax: Axes, x: float, y: float, width: float, height: float, name: str):
    draw_box(ax, x, y, width, height, "")
    draw_text(ax, x + 0.1, y + height - 0.15, name, align="left", color=GREY)


def _device(ax: Axes, x: float, y: float, name: str, *inside: str) -> None:
    """A device, 1.3 inches wide, with a box for each thing that is in it."""
    height = 0.35 + 0.4 * len(inside)
    draw_box(ax, x, y, 1.3, height, "", edge=BLUE)
    draw_text(ax, x + 0.65, y + height - 0.17, name, weight="bold")
    for row, what in enumerate(reversed(inside)):
        fill = PALE if "variables" in what else "white"
        draw_box(ax, x + 0.1, y + 0.07 + 0.4 * row, 1.1, 0.33, what, fill)


def _default(ax: Axes, left: float) -> None:
    _process(ax, left + 0.5, 0.3, 2.9, 2.05, "one process")
    _device(ax, left + 1.3, 0.75, "a device", "variables", "replica 0")
    draw_text(ax, left + 1.95, 0.52, "TensorFlow chooses the device")


def _one_device(ax: Axes, left: float) -> None:
    _process(ax, left + 0.5, 0.3, 2.9, 2.05, "one process")
    _device(ax, left + 1.9, 0.75, "GPU 0", "variables", "replica 0")
    draw_box(ax, left + 0.65, 0.98, 0.7, 0.33, "batch", PALE)
    draw_arrow(ax, (left + 1.35, 1.145), (left + 1.9, 1.145), color=GREEN)
    draw_text(ax, left + 1.95, 0.52, "you name the device; input goes there")


def _copies(ax: Axes, left: float, kind: str = "GPU") -> None:
    _process(ax, left + 0.15, 0.3, 3.6, 2.05, "one process")
    for number in range(2):
        x = left + 0.3 + 2.0 * number
        inside = ("variables", f"replica {number}")
        _device(ax, x, 0.75, f"{kind} {number}", *inside)
    draw_arrow(ax, (left + 1.6, 1.3), (left + 2.3, 1.3), color=GREEN, both=True)
    draw_text(ax, left + 1.95, 0.52, "a copy on each device, kept equal by all-reduces")


def _central_storage(ax: Axes, left: float) -> None:
    _process(ax, left + 0.15, 0.1, 3.6, 2.3, "one process")
    _device(ax, left + 1.3, 1.5, "CPU", "variables")
    for number in range(2):
        x = left + 0.3 + 2.0 * number
        _device(ax, x, 0.18, f"GPU {number}", f"replica {number}")
        ends = (left + 1.3 + 1.3 * number, 1.6), (x + 0.65, 0.93)
        draw_arrow(ax, *ends, color=GREEN, both=True)
    draw_text(ax, left + 1.95, 1.15, "weights out,\ngradients in")


def _multi_worker(ax: Axes, left: float) -> None:
    for number in range(2):
        x = left + 0.1 + 2.1 * number
        _process(ax, x, 0.3, 1.6, 2.05, f"worker {number}, a process")
        _device(ax, x + 0.15, 0.75, "GPU 0", "variables", f"replica {number}")
    draw_arrow(ax, (left + 1.7, 1.3), (left + 2.2, 1.3), color=GREEN, both=True)
    draw_text(ax, left + 1.95, 0.14, "a copy on each device, kept equal by all-reduces")


def _parameter_server(ax: Axes, left: float) -> None:
    draw_box(ax, left + 0.1, 1.02, 0.85, 0.62, "chief:\nhands out\nsteps", edge=ORANGE)
    for number in range(2):
        y = 1.62 - 1.2 * number
        name = f"worker {number}:\nreplica {number}"
        draw_box(ax, left + 1.4, y, 0.95, 0.55, name, edge=BLUE)
        text = f"ps {number}:\nvariables"
        draw_box(ax, left + 2.9, y, 0.9, 0.55, text, PALE, edge=GREEN)
        end = (left + 1.4, y + 0.27)
        draw_arrow(ax, (left + 0.95, 1.33), end, color=ORANGE)
    for start in (1.89, 0.69):
        for end in (1.89, 0.69):
            line = (left + 2.35, start), (left + 2.9, end)
            draw_arrow(ax, *line, color=GREEN, both=True)
    draw_text(ax, left + 1.95, 0.16, "weights out, gradients in; each box a process")


# name -> title, in words, what draws it.
PANELS: dict[str, tuple[str, str, Callable[[Axes, float], None]]] = {
    "default": (
        "The default strategy",
        "The default strategy: one process, whose variables and one replica are on the "
        "device that TensorFlow chooses.",
        _default,
    ),
    "one_device": (
        "OneDeviceStrategy",
        "OneDeviceStrategy: one process; variables and one replica are on the device "
        "that you name, and batches are sent there.",
        _one_device,
    ),
    "mirrored": (
        "MirroredStrategy",
        "MirroredStrategy: one process with two GPUs, each with a copy of the "
        "variables and a replica; all-reduces keep the copies equal.",
        _copies,
    ),
    "central_storage": (
        "CentralStorageStrategy",
        "CentralStorageStrategy: one process; the variables are on the CPU, a replica "
        "on each of two GPUs; weights go out to them, gradients come in.",
        _central_storage,
    ),
    "multi_worker": (
        "MultiWorkerMirroredStrategy",
        "MultiWorkerMirroredStrategy: two processes, each with a GPU, a copy of the "
        "variables and a replica; all-reduces between them keep the copies equal.",
        _multi_worker,
    ),
    "parameter_server": (
        "ParameterServerStrategy",
        "ParameterServerStrategy: a chief hands out steps to two workers, each with a "
        "replica; two servers, ps 0 and ps 1, have the variables. Weights go from both "
        "servers to both workers, gradients back.",
        _parameter_server,
    ),
    "tpu": (
        "TPUStrategy",
        "TPUStrategy: one process with two TPU cores, each with a copy of the "
        "variables and a replica; all-reduces keep the copies equal.",
        functools.partial(_copies, kind="TPU core"),
    ),
}
