"""Judge step 3: do all ranks use the mean of their gradients?"""

import numpy as np

from distcheck.verdict import UNDECIDED
from utils.checking.judges.compare import RTOL_COMPRESSED, distance
from utils.checking.judges.compiled import must_compile
from utils.checking.judges.runs import (
    Missing,
    Problem,
    Rank,
    Run,
    Unreadable,
    in_line,
)
from utils.checking.judges.steps.common import step, whatever_the_options
from utils.checking.observers.observe import UPDATES, numbered


@step(
    3,
    scenarios=("two", "other options"),
    expected=(
        "All ranks update their weights with the same gradient: the mean of the "
        "gradients that they computed."
    ),
)
@must_compile("training")
@whatever_the_options
def averages_gradients(runs: dict[str, Run]) -> None:
    run = runs["two"]
    wrapped = [event["line"] for event in run.ranks[0].all("wrapped")]
    if len(wrapped) > 1 and any("Recursion" in e["error"] for _, e in run.failures()):
        raise Problem(
            "wrapped-twice",
            "The wrapped optimizer was wrapped again, and the two wrappers call each "
            "other forever.",
            wrapped[1],
        )
    local, applied = run.arrays("local"), run.arrays("applied")
    if local.shape != applied.shape:
        raise Unreadable("the gradients")
    if _same(local[0], local[1]):
        raise Problem(
            "no-difference",
            "All ranks computed the same gradient, so the check can't see whether it "
            "was averaged.",
            state=UNDECIDED,
        )
    updates = [rank.first("update") for rank in run.ranks]
    line = updates[0]["line"]
    mean = local.mean(axis=0)
    made = wrapped[-1] if wrapped and all(u["wrapped"] for u in updates) else line
    if all(_same(gradient, mean) for gradient in applied):
        reduced = _reduced_elements(run.ranks[0])
        if reduced > 1.5 * mean.size:
            raise Problem(
                "wrapped-twice",
                f"Every gradient was averaged {reduced / mean.size:.0f} times over: "
                "the result is the same, but every time costs messages.",
                wrapped[-1] if wrapped else line,
            )
        _raise_not_always(run, line)
        _raise_divided_too(run)
        return
    if all(
        _same(gradient, computed)
        for gradient, computed in zip(applied, local, strict=True)
    ):
        by_wrapped = [update["wrapped"] for update in updates]
        if all(by_wrapped) and not _reduced_elements(run.ranks[0]):
            raise Problem(
                "applied-directly",
                "The wrapped optimizer applied each rank's own "
                f"gradient{in_line(line)}, because its apply_gradients does not "
                "average. Only its minimize averages, which fit calls. In a loop of "
                "your own, use horovod.tensorflow.DistributedGradientTape.",
                line,
            )
        if wrapped and not any(by_wrapped):
            raise Problem(
                "not-used",
                f"The optimizer that was wrapped in line {wrapped[0]} didn't train the "
                "model: each rank used its own gradient.",
                wrapped[0],
            )
        raise Problem("not-averaged", "Each rank used its own gradient.", line)
    factors = [float(g @ mean / (mean @ mean)) for g in applied]
    if all(_same(g, f * mean) for g, f in zip(applied, factors, strict=True)):
        if np.allclose(factors, run.size, rtol=RTOL_COMPRESSED):
            if all(_divided_loss(rank, run.size) for rank in run.ranks):
                _raise_not_always(run, line, run.size)
                return
            raise Problem(
                "sum", "All ranks used the sum of the gradients, not the mean.", made
            )
        multiples = " and ".join(f"{factor:.2f}" for factor in factors)
        raise Problem("scaled", f"The ranks used {multiples} times the mean.", made)
    if _same(applied[0], applied[1]):
        raise Problem(
            "not-the-mean", "All ranks used the same gradient, but not the mean.", made
        )
    raise Problem("differs", "The ranks used different gradients.", made)


def _raise_divided_too(run: Run) -> None:
    """Raise the Problem of gradients that are averaged, of a loss that each rank has
    divided by their number before."""
    losses = [_divided_loss(rank, run.size) for rank in run.ranks]
    if all(losses):
        loss = losses[0]
        raise Problem(
            "loss-divided",
            f"Rank 0's loss in the first batch was {loss['value']:.3f}, with a mean "
            f"cross-entropy of {loss['cross_entropy']:.3f} over its images: it was "
            f"divided by {run.size}, and then the gradients were averaged as well. "
            f"So the update is {run.size} times too small.",
            loss["line"],
        )


def _divided_loss(rank: Rank, size: int) -> dict | None:
    """The loss of the first batch, if that is the cross-entropy divided by so many,
    with or without the penalty for large weights."""
    for loss in rank.all("loss")[:1]:
        entropy, penalty = loss["cross_entropy"], loss["penalty"]
        divided = entropy / size + penalty, (entropy + penalty) / size
        if any(np.isclose(loss["value"], value, rtol=1e-3) for value in divided):
            return loss
    return None


def _raise_not_always(run: Run, line: int | None, factor: int = 1) -> None:
    """Raise the Problem of gradients that are averaged in the first batch alone.

    factor: so many times the mean is what the ranks should use."""
    for update in range(1, UPDATES):
        try:
            local = run.arrays(numbered("local", update))
            applied = run.arrays(numbered("applied", update))
        except Missing:
            return
        mean = factor * local.mean(axis=0)
        if not all(_same(gradient, mean) for gradient in applied):
            raise Problem(
                "not-always",
                "In the first batch all ranks used the mean of their gradients, but in "
                f"batch {update + 1} they did not.",
                line,
            )


def _reduced_elements(rank: Rank) -> int:
    """How many numbers went through allreduce before the first update."""
    total = 0
    for event in rank.events:
        if event["what"] == "forward":
            total = 0
        if event["what"] == "enter" and "allreduce" in event["op"]:
            total += event["elements"]
        if event["what"] == "update":
            break
    return total


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return distance(a, b) < RTOL_COMPRESSED
