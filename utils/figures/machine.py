"""A drawing of this machine: which worker gets which cores or GPUs."""

from utils.base.machine import cores, gpus
from utils.checking.doctor import Report


def show_machine(report: Report):
    """A drawing of this machine: which worker gets which cores or GPUs.

    Returns a Diagram. report: from `doctor()`; its profile says how many workers.
    """
    from matplotlib.patches import FancyBboxPatch

    from utils.figures.diagrams import BLUE, GREEN, GREY, INK, ORANGE, PALE, Diagram

    workers, kind = report.profile.workers, "GPU" if gpus() else "core"
    shares = share_out(workers, gpus() or cores(), bool(gpus()))
    shown = min(workers, 4)
    diagram = Diagram(8, 2.2, in_words(shares, kind))
    ax = diagram.add_axes((0, 0, 1, 1))
    ax.set(xlim=(0, 8), ylim=(0, 2.2))
    ax.set_axis_off()

    def box(x, y, width, height, edge, fill="white"):
        style = "round,pad=0,rounding_size=0.08"
        ax.add_patch(
            FancyBboxPatch(
                (x, y), width, height, style, facecolor=fill, edgecolor=edge, lw=2.5
            )
        )

    def text(x, y, words, **style):
        ax.text(x, y, words, ha="center", va="center", color=INK, **style)

    gap = 1.1
    width = (7.6 - gap * (shown - 1)) / shown
    for rank, colour in zip(range(shown), (BLUE, ORANGE, GREEN, INK), strict=False):
        left = 0.2 + rank * (width + gap)
        box(left, 0.4, width, 1.6, colour)
        text(left + width / 2, 1.75, f"worker {rank}", weight="bold", fontsize=12)
        mine = shares[rank]
        some = mine[:2]
        each = (width - 0.2) / len(some)
        for place, device in enumerate(some):
            box(left + 0.15 + place * each, 0.75, each - 0.1, 0.7, GREY, PALE)
            text(left + 0.1 + (place + 0.5) * each, 1.1, f"{kind} {device}")
        if len(mine) > len(some):
            text(left + width / 2, 0.56, f"and {len(mine) - len(some)} more {kind}s")
        if rank:
            ends = {"arrowstyle": "<|-|>", "color": INK, "lw": 1.8}
            ax.annotate("", (left - 0.1, 1.1), (left - gap + 0.1, 1.1), arrowprops=ends)
            text(left - gap / 2, 1.35, "gradients", fontsize=9)
    text(4, 0.16, diagram.words, fontsize=9)
    return diagram


def share_out(workers: int, devices: int, one_each: bool) -> list[list[int]]:
    """Which devices each worker gets: equal shares, or one each; where there are fewer
    devices than workers, they are shared in turns."""
    if workers >= devices:
        return [[rank % devices] for rank in range(workers)]
    each = 1 if one_each else devices // workers
    return [list(range(rank * each, (rank + 1) * each)) for rank in range(workers)]


def in_words(shares: list[list[int]], kind: str) -> str:
    """What `share_out` gave, as a sentence."""
    workers, devices = len(shares), len({d for share in shares for d in share})
    if devices < workers:
        return f"{workers} workers take turns on {devices} {kind}{'s' * (devices > 1)}."
    each = len(shares[0])
    share = f"{each} {kind}s each" if each > 1 else f"one {kind} each"
    many = "s" * (workers > 1)
    system = "; the operating system picks which" if kind == "core" else ""
    return f"{workers} worker{many}, {share}{system}."
