"""A drawing of this machine: which worker gets which cores or GPUs."""

from distcheck import machine
from utils.checking.doctor import Report
from utils.figures.diagrams import Diagram, draw_arrow, draw_box, draw_text, paper
from utils.figures.style import COLORS, PALE


def show_machine(report: Report) -> Diagram:
    """A drawing of this machine: which worker gets which cores or GPUs.

    report: from `doctor()`; its profile says how many workers.
    """
    workers = report.profile.workers
    on_gpus = machine.gpus() >= workers
    kind = "GPU" if on_gpus else "core"
    devices = machine.gpus() if on_gpus else machine.cores()
    shares = share_out(workers, devices, on_gpus)
    drawn = min(workers, 4)
    rows = -(-workers // drawn)  # of so many each
    diagram, ax = paper(8, 0.3 + 1.9 * rows, in_words(shares, kind))
    gap = 1.1
    width = (7.6 - gap * (drawn - 1)) / drawn
    for rank, devices in enumerate(shares):
        row, place = divmod(rank, drawn)
        left = 0.2 + place * (width + gap)
        bottom = 0.4 + 1.9 * (rows - 1 - row)
        middle = left + width / 2
        draw_box(ax, left, bottom, width, 1.6, "", edge=COLORS[rank % len(COLORS)])
        name = f"worker {rank}"
        draw_text(ax, middle, bottom + 1.35, name, size=12, weight="bold")
        boxes = devices[:2]
        box_width = (width - 0.2) / len(boxes)
        for number, device in enumerate(boxes):
            x, words = left + 0.15 + number * box_width, f"{kind} {device}"
            draw_box(ax, x, bottom + 0.35, box_width - 0.1, 0.7, words, PALE)
        if len(devices) > len(boxes):
            more = f"and {len(devices) - len(boxes)} more {kind}s"
            draw_text(ax, middle, bottom + 0.16, more)
        if place:
            ends = (left - gap + 0.1, bottom + 0.7), (left - 0.1, bottom + 0.7)
            draw_arrow(ax, *ends, both=True)
            draw_text(ax, left - gap / 2, bottom + 0.95, "gradients")
        elif row:
            draw_arrow(ax, (middle, bottom + 1.9), (middle, bottom + 1.6), both=True)
    draw_text(ax, 4, 0.16, diagram.words)
    return diagram


def share_out(workers: int, devices: int, one_each: bool) -> list[list[int]]:
    """Which devices each worker gets: equal shares, or one each; where there are fewer
    devices than workers, they are shared in turns."""
    if workers >= devices:
        return [[rank % devices] for rank in range(workers)]
    share = 1 if one_each else machine.share(workers, of=devices)
    return [list(range(rank * share, (rank + 1) * share)) for rank in range(workers)]


def in_words(shares: list[list[int]], kind: str) -> str:
    """What `share_out` gave, as a sentence."""
    workers, devices = len(shares), len({d for share in shares for d in share})
    if devices < workers:
        return f"{workers} workers take turns on {devices} {kind}{'s' * (devices > 1)}."
    count = len(shares[0])
    share = f"{count} {kind}s each" if count > 1 else f"one {kind} each"
    plural = "s" * (workers > 1)
    system = "; the operating system picks which" if kind == "core" else ""
    return f"{workers} worker{plural}, {share}{system}."
