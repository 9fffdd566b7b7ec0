"""Judge the tasks of exercises/zero.py, by what three workers handed in, received,
updated and had in the end.

Adam is computed here once more, from the gradients that were seen: that of Kingma and
Ba, 2015, arXiv:1412.6980, section 2, in the order of its last paragraph, as Keras has
it.
"""

from collections.abc import Iterator

import numpy as np

from distcheck import lab
from distcheck.judges.compare import classify
from distcheck.judges.registry import exercise
from distcheck.judges.runs import Missing, Problem, Rank, Run
from distcheck.scenarios import SCENARIOS

SCENARIO = "parts"
WORKERS = SCENARIOS[SCENARIO].size
STEPS, BATCH, HIDDEN, RATE = 3, 4, 1, 0.01
WEIGHTS = (784 + 1) * HIDDEN + (HIDDEN + 1) * 10  # of two layers, with their biases
FILLED = -(-WEIGHTS // WORKERS) * WORKERS
LENGTH = FILLED // WORKERS
BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-7  # Keras' own

# An update of Adam is no longer than the rate. Where workers' gradients nearly cancel,
# the rounding of their sum decides on some hundredths of it.
ATOL_WEIGHTS = 0.05 * RATE
RTOL_SUM = 1e-5  # of the largest gradient: another order of adding changes less

task = exercise(
    "zero",
    options=(
        f"--steps {STEPS} --batch-size {BATCH} --hidden {HIDDEN} --lr {RATE} --seed 1"
    ),
).part


def _phases(rank: Rank) -> Iterator[tuple[list[dict], dict | None]]:
    """For each gradient: the collectives after it, up to the update; and the update.
    None: there was none. Raises Missing where no gradient was taken."""
    rank.first("gradient")
    phase: list[dict] | None = None
    for event in rank.events:
        if event["what"] == "gradient":
            if phase is not None:
                yield phase, None
            phase = []
        elif phase is not None and event["what"] in ("collective_start", "received"):
            phase.append(event)
        elif phase is not None and event["what"] == "update":
            yield phase, event
            phase = None
    if phase is not None:
        yield phase, None


def _first(run: Run) -> list[tuple[list[dict], dict]]:
    """For each rank its first phase. Raises Missing where one has no update."""
    phases = [next(_phases(rank)) for rank in run.ranks]
    if any(update is None for _, update in phases):
        raise Missing
    return phases


def _received_after_update(rank: Rank) -> int:
    """How many numbers came between the first update and the next gradient."""
    received, updated = 0, False
    for event in rank.events:
        if event["what"] == "update":
            if updated:
                break
            updated = True
        elif updated and event["what"] == "gradient":
            break
        elif updated and event["what"] == "received":
            received += event["elements"]
    return received


def _weights(run: Run) -> int:
    """How many weights the network has."""
    return run.ranks[0].first("gradient")["elements"]


@task(
    "A",
    scenarios=("parts",),
    expected=(
        f"The check's model has {WEIGHTS} weights. Padded with zeros, the gradients "
        f"that a worker hands in are {FILLED} numbers, which divide evenly among the "
        f"{WORKERS} workers."
    ),
)
def is_divisible(runs: dict[str, Run]) -> None:
    """What is reduced are all numbers, and as many for each worker."""
    run = runs[SCENARIO]
    count = _weights(run)
    for rank in run.ranks:
        phase, _ = next(_phases(rank))
        handed = [event for event in phase if event["what"] == "collective_start"]
        # A single number is a loss, or the like.
        handed = [event for event in handed if event["elements"] > 1]
        if not handed:
            raise Missing
        elements, line = sum(event["elements"] for event in handed), handed[0]["line"]
        if elements < count:
            raise Problem(
                "too-few",
                f"Rank {rank.number} hands in {elements} numbers of its gradients, but "
                f"there are {count}.",
                line,
            )
        if elements % run.size:
            raise Problem(
                "indivisible",
                f"Rank {rank.number} hands in {elements} numbers of its gradients, "
                f"which can't be cut into {run.size} parts of equal length.",
                line,
            )


@task(
    "B",
    scenarios=("parts",),
    expected=(
        f"Each worker's optimizer updates {LENGTH} numbers of its own and keeps twice "
        f"as many numbers of state. Together the workers update all {WEIGHTS} weights."
    ),
)
def updates_a_part(runs: dict[str, Run]) -> None:
    """The optimizers have a part each, and together all weights."""
    run = runs[SCENARIO]
    updates = [update for _, update in _first(run)]
    line, count = updates[0]["line"], _weights(run)
    for rank, update in enumerate(updates):
        if update["optimizer"] != "Adam":
            raise Problem(
                "another-optimizer",
                f"Rank {rank} updates with {update['optimizer']}, but the check "
                "compares with Adam.",
                line,
            )
        most = -(-count // run.size)
        for what, elements, limit in (
            ("updates", update["elements"], most),
            ("keeps as its optimizer's state", update["state"], 2 * most),
        ):
            if elements > limit:
                raise Problem(
                    "more-than-a-part",
                    f"Rank {rank} {what} {elements} numbers, but one of {run.size} "
                    f"parts needs only {limit}.",
                    line,
                )
    start = run.ranks[0].array("weights.0")
    parts = [rank.array("before.0") for rank in run.ranks]
    if any(np.array_equal(parts[0], part) for part in parts[1:]):
        raise Problem(
            "same-part",
            "Several ranks update the same part of the weights, and no rank updates "
            "the rest.",
            line,
        )
    together = np.concatenate(parts)
    zeros = np.zeros(max(0, together.size - start.size), np.float32)
    wanted = np.concatenate([start, zeros])
    # Which rank has which numbers is the program's to say.
    if not np.array_equal(np.sort(together), np.sort(wanted)):
        raise Problem(
            "other-numbers",
            f"The parts together have {together.size} numbers, but these are not the "
            f"{count} weights, each once, and zeros.",
            line,
        )


@task(
    "C",
    scenarios=("parts",),
    expected=(
        "Each worker receives the mean over all workers of the gradients of its own "
        "part, and of no other part."
    ),
)
def reduces_and_scatters(runs: dict[str, Run]) -> None:
    """Each worker receives the mean of its own part, and not all of it."""
    run = runs[SCENARIO]
    count, phases = _weights(run), _first(run)
    line = phases[0][1]["line"]
    locals_ = run.arrays("local.0")
    mean, scale = locals_.mean(axis=0), RTOL_SUM * np.abs(locals_).max()
    given = [rank.array("given.0") for rank in run.ranks]
    _compare_gradients(np.concatenate(given), mean, locals_, scale, line)
    for rank, (phase, _) in enumerate(phases):
        # What all-to-all brings is still to be added up.
        came = [
            event
            for event in phase
            if event["what"] == "received" and event["op"] != "alltoall"
        ]
        elements = sum(event["elements"] for event in came)
        if elements >= count:
            raise Problem(
                "whole",
                f"Before its update, rank {rank} receives {elements} numbers, from "
                f"{came[0]['op']}, but it needs only {LENGTH} gradients.",
                came[0]["line"],
            )


def _compare_gradients(
    given: np.ndarray,
    mean: np.ndarray,
    locals_: np.ndarray,
    atol: float,
    line: int | None,
) -> None:
    """Raise the Problem of gradients that are not the mean of all workers'."""

    def same(given: np.ndarray, wanted: np.ndarray) -> bool:
        """In whichever order, and padded with zeros."""
        if wanted.size > given.size:
            return False
        padded = np.zeros(given.size)
        padded[: wanted.size] = wanted
        return bool(np.abs(np.sort(given) - np.sort(padded)).max() <= atol)

    workers = len(locals_)
    length = -(-mean.size // workers)
    own = [one[length * rank :][:length] for rank, one in enumerate(locals_)]
    known = {"mean": mean, "sum": workers * mean, "own-alone": np.concatenate(own)}
    fault = classify(given, known, same) or "other-gradient"
    if fault != "mean":
        words = GRADIENT_FAULTS[fault].format(workers=workers)
        raise Problem(fault, words, line)


GRADIENT_FAULTS = {
    "sum": (
        "The optimizers get the sum of {workers} workers' gradients. With Adam this "
        "hardly shows, because Adam divides by their size; with others it would."
    ),
    "own-alone": (
        "Each rank's optimizer gets the gradient of only its own images: nothing is "
        "averaged."
    ),
    "other-gradient": (
        "The gradients that the optimizers get are not the parts of the mean over all "
        "workers."
    ),
}


@task(
    "D",
    scenarios=("parts",),
    expected=(
        "After each training step all workers have the same weights. These are the "
        "weights that Adam computes on one worker, up to rounding."
    ),
)
def gathers_all(runs: dict[str, Run]) -> None:
    """All workers go on with the same weights, those of Adam on one worker."""
    run = runs[SCENARIO]
    line = _first(run)[0][1]["line"]
    if run.outcome != lab.ENDED:
        run.raise_if_in_trouble()
    for rank in run.ranks:
        received, count = _received_after_update(rank), _weights(run)
        if received < count:
            raise Problem(
                "not-gathered",
                f"After its update, rank {rank.number} receives {received} numbers, "
                f"but the parts of all workers have at least {count}.",
                line,
            )
    names = [*(f"weights.{step}" for step in range(1, STEPS)), "end"]
    adam = _Adam(run.ranks[0].array("weights.0"))
    for step, name in enumerate(names):
        found = run.arrays(name)
        wanted = adam.updated(run.arrays(f"local.{step}").mean(axis=0))
        before = run.arrays(f"weights.{step}")
        when = f"After step {step + 1}"
        if np.array_equal(found, before):
            raise Problem("unchanged", f"{when}, the weights have not changed.", line)
        apart = int((found != found[0]).any(axis=0).sum())
        if apart:
            raise Problem(
                "apart",
                f"{when}, the workers differ in {apart} of {found.shape[1]} weights.",
                line,
            )
        off = np.abs(found[0] - wanted) > ATOL_WEIGHTS
        if off.any():
            raise Problem(
                "other-weights",
                f"{when}, {off.sum()} of {off.size} weights are not those of Adam on "
                "one worker.",
                line,
            )


class _Adam:
    """The plain optimizer, with all weights."""

    def __init__(self, weights: np.ndarray):
        self.weights = weights.astype(float)
        self.mean = np.zeros_like(self.weights)
        self.square = np.zeros_like(self.weights)
        self.steps = 0

    def updated(self, gradient: np.ndarray) -> np.ndarray:
        """The weights after one more update."""
        self.steps += 1
        self.mean += (1 - BETA_1) * (gradient - self.mean)
        self.square += (1 - BETA_2) * (gradient.astype(float) ** 2 - self.square)
        rate = RATE * np.sqrt(1 - BETA_2**self.steps) / (1 - BETA_1**self.steps)
        self.weights -= rate * self.mean / (np.sqrt(self.square) + EPSILON)
        return self.weights.copy()
