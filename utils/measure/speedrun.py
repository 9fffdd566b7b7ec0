"""The speedrun: how long a program takes to GOAL on Fashion-MNIST's test images.

`attempt` is behind `course speedrun`, and `of_bench` behind `course bench speedrun`,
which records the course's own, and what each ingredient of its recipe is worth.
"""

import statistics
from collections.abc import Callable
from pathlib import Path

import psutil

from distcheck import errors, machine, mpi
from utils.base import course
from utils.measure import global_batch
from utils.measure.global_batch import GOAL, Attempt
from utils.measure.table import Row, Section, recorded
from utils.training import data

PROGRAM = course.PACKAGE_ROOT / "solutions" / "speedrun.py"
CORES = 2
# The course's recipe with one thing changed: what -> workers, and options of PROGRAM.
RECORD = "our recipe"
CHANGES: dict[str, tuple[int, dict[str, object]]] = {
    RECORD: (2, {}),
    "without momentum, ten times the rate": (2, {"momentum": 0, "peak_lr": 4}),
    "without the warm-up": (2, {"warm_up": 0}),
    "without the fall": (2, {"fall": 0}),
    "without label smoothing": (2, {"label_smoothing": 0}),
    "with flips, of every other image": (2, {"flips": 0.5}),
    "without batch normalization": (2, {"normalize": 0}),
    "one worker with both cores": (1, {}),
}


def attempt(script: str | Path, workers: int = CORES, **options: object) -> Attempt:
    """Run a program on CORES cores, time it from its command to its end, and test the
    network that it kept on all 10,000 test images, when its processes have ended.

    It gets an empty folder as --checkpoint, and keeps its network there, whole, as a
    file *.keras. options: its other ones. Raises UserError where there is only a
    sample of the data, and as `global_batch.attempt` does.
    """
    data.load("real")  # or say that it is not here before anything is run
    threads = machine.share(workers, of=CORES)
    return global_batch.attempt(
        Path(script).stem,
        script,
        workers,
        width=None,
        environment=machine.HIDDEN | mpi.thread_variables(threads),
        **options,
    )


def of_bench(plan, tell: Callable[[str], None]) -> Section:
    """The section of `course bench`: how many test images the course's program gets
    wrong, and with one thing changed. Each round is of another seed.

    plan: of utils.measure.bench; of it only the rounds count. Raises UserError if
    the whole recipe missed the goal in a round.
    """
    wrong: dict[str, list[float]] = {name: [] for name in CHANGES}
    seconds: dict[str, list[float]] = {name: [] for name in CHANGES}
    busy = []
    for turn in range(plan.rounds):
        for name, (workers, options) in CHANGES.items():
            tell(f"round {turn + 1} of {plan.rounds}: {name}")
            busy.append(psutil.cpu_percent(interval=1))
            one = attempt(PROGRAM, workers, seed=turn + 1, quiet=True, **options)
            if name == RECORD and not one.meets_goal:
                raise errors.UserError(
                    f"with seed {turn + 1} it reached {one.accuracy:.2%}, not "
                    f"{GOAL:.0%}: there is no time to report."
                )
            wrong[name].append(100 * (1 - one.accuracy))
            seconds[name].append(one.seconds)
    percent = statistics.median(busy)
    rows = [
        Row(name, wrong[name], "%", facts={"seconds": seconds[name], "busy": percent})
        for name in CHANGES
    ]
    times = "; ".join(f"{n}, {statistics.median(seconds[n]):.1f}" for n in CHANGES)
    notes = [f"Seconds from the command to the end, the median: {times}."]
    section = Section("speedrun", rows, [*notes, *_disturbed(percent)])
    section.compare(RECORD)
    return section


def _disturbed(percent: float) -> list[str]:
    """That other programs were running, if they were; percent: of the cores, the median
    of looks before each run."""
    if percent <= 10:  # what a machine with nothing else to do may have
        return []
    return [
        f"Other programs kept the cores {percent:.0f} % busy meanwhile: without them "
        "it takes less time."
    ]


def sentence() -> str:
    """The course's own recorded time, for README and to compare another one with."""
    section, _ = recorded("speedrun")
    ours = next(row for row in section.rows if row.name == RECORD)
    times, most = ours.facts["seconds"], max(ours.values)
    words = (
        f"{GOAL:.2f} test accuracy on Fashion-MNIST takes "
        f"{statistics.median(times):.1f} s ({min(times):.1f} to {max(times):.1f}, "
        f"{len(times)} seeds, {1 - most / 100:.3f} or better), from the command to its "
        f"end, on {CORES} workers with a core each."
    )
    return " ".join([words, *_disturbed(ours.facts["busy"])])
