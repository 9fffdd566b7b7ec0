"""Does training on several devices end where training on one does? Train, and subtract.

    python -m utils.measure.equality

`programs/ten_steps.py` trains in each way; a `Comparison` holds by how much the
weights then differ from the single device's.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from distcheck import errors, machine, show
from utils.measure import records
from utils.running import launch

PROGRAM = records.PROGRAMS / "ten_steps.py"
TOLERANCE = 1e-5
TIME_LIMIT = 240.0  # seconds for a single run; on an idle machine it takes about ten


@dataclass(frozen=True)
class Case:
    """A way to train; the names are those of the options of programs/ten_steps.py."""

    way: str
    workers: int = 2
    network: str = "small"
    batch_norm: str = "own"
    precision: str = "float32"
    fault: str | None = None

    def alone(self) -> "Case":
        """What it is compared with: the same network on a single device."""
        return Case("single", 1, self.network, self.batch_norm, self.precision)

    def processes(self) -> tuple:
        """What starts its processes, how many, and to do what: cases that agree in
        this can share them."""
        launcher = LAUNCHERS.get(self.way)
        count = self.workers if launcher else 1
        same = (self.network, self.batch_norm, self.precision, self.fault)
        return launcher, count, *same

    def __str__(self) -> str:
        return TITLES[self.way] + (f", fault: {self.fault}" if self.fault else "")


TITLES = {
    "single": "one device",
    "horovod": "Horovod",
    "ring": "our own ring",
    "mirrored": "Mirrored, `fit`",
    "custom_loop": "Mirrored, own loop",
    "multi_worker": "Multi-worker",
}
# Of the ways with a process for each worker; the others have one process in all.
LAUNCHERS = {"horovod": "mpirun", "ring": "mpirun", "multi_worker": "tasks"}
# The small network has no batch normalization; what that of the other does is said.
NETWORKS = {
    ("small", "own"): "small",
    ("wide_resnet", "own"): "WideResNet",
    ("wide_resnet", "synchronised"): "WideResNet, synced",
    ("wide_resnet", "frozen"): "WideResNet, frozen",
}

SMALL = (
    Case("horovod"),
    Case("horovod", workers=3),
    Case("ring"),
    Case("ring", workers=3),
    Case("mirrored"),
    Case("custom_loop"),
    Case("multi_worker"),
)
# Batch norm takes mean and variance of a replica's own part of the batch: that is not
# the single device's training. Synchronised it is, as float64 shows; in float32 this
# deep a network makes much of rounding, as it also does of other orders of the images.
BATCH_NORM = (
    Case("horovod", network="wide_resnet"),
    Case("mirrored", network="wide_resnet"),
    Case("mirrored", network="wide_resnet", batch_norm="synchronised"),
    Case("mirrored", 2, "wide_resnet", "synchronised", "float64"),
    Case("mirrored", network="wide_resnet", batch_norm="frozen"),
)


@dataclass(frozen=True)
class Row:
    """How far a way of training led away from the single device's weights.

    weights: the largest difference of a trained weight, on any worker. moving: likewise
    of the moving averages of batch normalization; None without. apart: the largest
    difference between two workers' moving averages. moved: how far ten steps moved a
    weight at most, on the single device.
    """

    case: Case
    weights: float
    moving: float | None
    apart: float | None
    moved: float

    @property
    def same(self) -> bool:
        """Are the weights the same within the tolerance? NaN never is."""
        return self.weights <= TOLERANCE


@dataclass(repr=False)
class Comparison(show.Page):
    """The rows of a comparison. Shows itself in a notebook and in a terminal."""

    rows: list[Row] = field(default_factory=list)

    HEADER = (
        "Network",
        "Way",
        "Workers",
        "Weights differ by",
        "Moving averages by",
        f"Same within {TOLERANCE:.0e}?",
    )

    @property
    def all_same(self) -> bool:
        return all(row.same for row in self.rows)

    def _cells(self) -> list[tuple[str, ...]]:
        return [
            (
                _network(row.case),
                str(row.case),
                str(row.case.workers),
                f"{row.weights:.1e}",
                "none" if row.moving is None else f"{row.moving:.1e}",
                "yes" if row.same else "no",
            )
            for row in self.rows
        ]

    def _remark(self) -> str:
        moved = {_network(row.case): row.moved for row in self.rows}
        each = ", ".join(f"{name}: {move:.1e}" for name, move in moved.items())
        return f"How far ten steps on one device moved a weight, at most: {each}."

    @property
    def parts(self) -> tuple[show.Table, str]:
        return show.Table(self.HEADER, self._cells()), self._remark()


def compare(
    cases: Sequence[Case] = SMALL, tell: Callable[[str], None] = lambda text: None
) -> Comparison:
    """Train in all these ways and, once for each network, on a single device.

    tell: is told of each run before it starts. Raises UserError when two did not
    start from the same weights, or ten steps did not move them, as then a comparison
    would say nothing; and RunFailed as `launch.run` does.
    """
    # All on the same kind of device: a GPU adds up in another order than a processor.
    most = max((case.workers for case in cases), default=1)
    environment = machine.HIDDEN if 0 < machine.gpus() < most else {}
    groups: dict[tuple, list[Case]] = {}
    for case in dict.fromkeys([c.alone() for c in cases] + list(cases)):
        groups.setdefault(case.processes(), []).append(case)
    trained: dict[Case, list[dict]] = {}
    for group in groups.values():
        tell(f"{_network(group[0])}: {', '.join(map(str, group))} ({group[0].workers})")
        trained |= train(group, environment)
    return Comparison([_row(c, trained[c], *trained[c.alone()]) for c in cases])


def train(
    cases: Sequence[Case], environment: Mapping[str, str] | None = None
) -> dict[Case, list[dict[str, np.ndarray]]]:
    """Run programs/ten_steps.py once, for cases that can share their processes.

    environment: variables for them.
    Returns what each process kept: its arrays `start`, `end` and `moving`.
    """
    first = cases[0]
    launcher, processes, *_ = first.processes()
    words = ["--with", *(case.way for case in cases)]
    words += ["--network", first.network, "--batch-norm", first.batch_norm]
    words += ["--precision", first.precision]
    run = launch.run(
        PROGRAM,
        *words,
        *(["--fault", first.fault] if first.fault else []),
        workers=processes,
        tasks={"worker": processes} if launcher == "tasks" else None,
        time_limit=TIME_LIMIT,
        quiet=True,
        environment=environment,
    )
    arrays = {}
    for case in cases:
        paths = [run.folder / f"{case.way}-{rank}.npz" for rank in range(processes)]
        arrays[case] = [dict(np.load(path)) for path in paths]
    return arrays


def _network(case: Case) -> str:
    name = NETWORKS[case.network, case.batch_norm]
    return name if case.precision == "float32" else f"{name}, {case.precision}"


def _row(case: Case, workers: list[dict], alone: dict) -> Row:
    if any(not np.array_equal(worker["start"], alone["start"]) for worker in workers):
        raise errors.UserError(
            f"{case} did not start from the single device's weights."
        )
    moved = _furthest([alone["end"]], alone["start"])
    if not moved > 100 * TOLERANCE:
        raise errors.UserError(
            f"ten steps on one device moved no weight further than {moved:.1e}: that "
            "all ways end there would say nothing."
        )
    averages = (
        [worker["moving"] for worker in workers] if alone["moving"].size else None
    )
    return Row(
        case,
        weights=_furthest([worker["end"] for worker in workers], alone["end"]),
        moving=_furthest(averages, alone["moving"]) if averages else None,
        apart=_furthest(averages, averages[0]) if averages else None,
        moved=moved,
    )


def _furthest(arrays: list[np.ndarray], reference: np.ndarray) -> float:
    """The largest absolute difference of an element; NaN if there is a NaN."""
    # numpy's max, as Python's loses a NaN that does not come first.
    return float(np.max([np.abs(array - reference).max() for array in arrays]))


def main() -> int:
    """Compare everything, show the table. Returns 0 if the small network's weights are
    the same in all ways, else 1."""
    from rich.console import Console

    console = Console()
    table = compare(SMALL + BATCH_NORM, tell=lambda text: console.print(text, "..."))
    console.print(table)
    return 0 if Comparison(table.rows[: len(SMALL)]).all_same else 1


if __name__ == "__main__":
    raise SystemExit(main())
