"""Judge step 3: do all ranks use the mean of their gradients?

Of each of its first three updates, a rank has kept two arrays: "local.0" is what
`tf.GradientTape.gradient` returned before the first update, and "applied.0" is what the
optimizer was to apply in it. Only those of the first update have to be there, in both
runs: so a program that fails, hangs or waits forever later may be right. (If it is, and
the graphs of "two" were not tried for that reason, the verdict says so.) Of several
gradients of the same variables that are taken before an update, "local" is the first;
"last", "mean" and "total" are the last one, their mean and their sum. The first of
these that explains what was applied, as its mean or itself, or else as a multiple of
the mean, is meant by "local" below. Two arrays are equal if their distance is less than
1 % of the first one's length, as vectors.

Horovod averages between the two: an optimizer that it wrapped does so in
`_compute_gradients`, and a tape in its own `gradient`, which calls the one that is
recorded.

What is decided of each of the two runs, in this order, unless a finding common to all
parts came first: killed and others, listed in `distcheck.judges.verdicts`. Where an
array is missing, the reason is looked for there, too: crashed, for example.

    wrapped-twice     (1 of 2) an optimizer was wrapped more than once, and a rank
                      failed with a RecursionError: the wrappers call each other
    too-large         an array has more numbers than are compared (`Rank.array`)
    not-finite        one of its numbers is infinite, or none (the same)
    tampered          undecided: an array can't be read (`Run.arrays`), or has another
                      shape on the other rank, or than what it is compared with in the
                      first update
    no-difference     undecided: local is the same on both ranks
    If applied is the mean in each update, clipped to one norm in two of them or more,
    by different factors, that is right, too:
    wrapped-twice     (2 of 2) as below; nothing else
    If applied is the mean in the first update:
    wrapped-twice     (2 of 2) since the last forward pass before it, rank 0 had
                      all-reduced more than 1.5 times as many numbers as it trains
    not-always        a later update, if it was kept, is not the mean
    loss-divided      all ranks have divided their first losses by the size, which is
                      known only where their images are known (not for "total")
    If applied is each rank's own local:
    applied-directly  on all ranks, a wrapped optimizer made the first update, and rank
                      0 had all-reduced nothing since the last forward pass before it
    not-used          an optimizer was wrapped, but another one made the update
    not-averaged      all else
    If it is something else:
    right             no multiple of the mean, but what was all-reduced was the mean,
                      and all ranks apply the same in this update, or in all later ones
    not-the-mean      no multiple of the mean, the same on both ranks
    differs           no multiple of the mean, another on each rank
    scaled            a multiple of the mean, but not by the size
    sum               by the size, and not all losses were divided by it before
    not-always        by the size, and all losses were divided by it, so that the first
                      update is right; but a later one is something else
    After both runs, see `must_compile`:
    tampered          undecided: not all graphs were reported that were to be built
    eager-only        the training step can't be compiled
    hung              to compile it takes forever
    right             with a sentence of its own, if that could not be tried
"""

from collections.abc import Iterator
from typing import NoReturn

import numpy as np

from distcheck.judges.compare import RTOL_GRADIENTS, classify, distance
from distcheck.judges.compiled import must_compile
from distcheck.judges.runs import Missing, Problem, Rank, Run, Unreadable, in_line
from distcheck.judges.steps.common import step, whatever_the_options
from distcheck.recorder.interventions import UPDATES
from distcheck.verdict import UNDECIDED

KINDS = ("local", "last", "mean", "total")  # of several gradients before an update


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
def averages_gradients(run: Run) -> None:
    _raise_if_wrapped_endlessly(run)
    computed = {kind: _computed(run, kind, 0) for kind in KINDS}
    applied = run.arrays("applied.0")
    kind = _kind_used(computed, applied)
    local = computed[kind]
    if local.shape != applied.shape:
        raise Unreadable("the gradients")
    if _same(local[0], local[1]):
        raise Problem(
            "no-difference",
            "All ranks computed the same gradient, so the check can't see whether it "
            "was averaged.",
            state=UNDECIDED,
        )
    firsts = [rank.first("update") for rank in run.ranks]
    used = _used(local, applied)
    if used != "own" and any(_is_clipped(run, kind) for kind in KINDS):
        _raise_if_averaged_again(run, firsts)
    elif used == "mean":
        _raise_if_averaged_again(run, firsts)
        _raise_if_not_always(run, firsts, kind)
        if kind != "total":  # each may be of a loss that was divided by their number
            _raise_if_divided_too(run)
    elif used == "own":
        _raise_own(run, firsts)
    else:
        _raise_if_wrong_otherwise(run, firsts, kind, applied)


def _kind_used(computed: dict[str, np.ndarray], applied: np.ndarray) -> str:
    """The first of KINDS of which the ranks have applied the mean, or each its own; or
    else a multiple of the mean. The first of all if that explains nothing."""
    for explain in (_used, _factors):
        for kind, local in computed.items():
            if local.shape == applied.shape and explain(local, applied):
                return kind
    return KINDS[0]


def _used(local: np.ndarray, applied: np.ndarray) -> str | None:
    """Is what the ranks have applied the "mean" of these gradients, or each one's
    "own"?"""
    mean = np.broadcast_to(local.mean(axis=0), local.shape)
    return classify(applied, {"mean": mean, "own": local}, _all_same)


def _factors(local: np.ndarray, applied: np.ndarray) -> list[float] | None:
    """By how much each rank has multiplied the mean of these gradients, if it has."""
    mean = local.mean(axis=0)
    factors = [float(gradient @ mean / (mean @ mean)) for gradient in applied]
    return factors if _all_same(applied, np.outer(factors, mean)) else None


def _computed(run: Run, kind: str, update: int) -> np.ndarray:
    """What the ranks computed before an update, of a kind: (ranks, numbers). A rank
    that took only one gradient has nothing else; one that took none, but a Jacobian
    perhaps, may have given something to be all-reduced."""
    names = [f"{kind}.{update}", f"local.{update}"]
    return run.arrays(*names, "given") if update == 0 else run.arrays(*names)


def _raise_if_wrapped_endlessly(run: Run) -> None:
    lines = _wrappings(run)
    if len(lines) > 1 and any("Recursion" in e["error"] for _, e in run.failures()):
        raise Problem(
            "wrapped-twice",
            "The wrapped optimizer was wrapped again, and the two wrappers call each "
            "other forever.",
            lines[1],
        )


def _wrappings(run: Run) -> list[int | None]:
    """A line for each time that an optimizer was wrapped, on the rank that came
    furthest: a rank that fails ends the others."""
    wrapped = [rank.all("wrapped") for rank in run.ranks]
    return [event["line"] for event in max(wrapped, key=len)]


def _raise_if_averaged_again(run: Run, firsts: list[dict]) -> None:
    """Raise the Problem of gradients that are averaged twice."""
    lines, reduced = _wrappings(run), _reduced_numbers(run.ranks[0])
    # The first gradient may be of a part of the weights.
    local, start = _computed(run, KINDS[0], 0), run.ranks[0].array("start")
    numbers = max(local[0].size, start.size)
    if reduced > 1.5 * numbers:
        raise Problem(
            "wrapped-twice",
            f"Every gradient was averaged {reduced / numbers:.0f} times over: the "
            "result is the same, but every time costs messages.",
            lines[-1] if lines else firsts[0]["line"],
        )


def _raise_own(run: Run, firsts: list[dict]) -> NoReturn:
    """Raise the Problem of ranks that use their own gradients each: why?"""
    line, lines = firsts[0]["line"], _wrappings(run)
    by_wrapped = [update["wrapped"] for update in firsts]
    if all(by_wrapped) and not _reduced_numbers(run.ranks[0]):
        raise Problem(
            "applied-directly",
            f"The wrapped optimizer applied each rank's own gradient{in_line(line)}, "
            "because its apply_gradients does not average. Only its minimize averages, "
            "which fit calls. In a loop of your own, use "
            "horovod.tensorflow.DistributedGradientTape.",
            line,
        )
    if lines and not any(by_wrapped):
        raise Problem(
            "not-used",
            f"The optimizer that was wrapped{in_line(lines[0])} didn't train the "
            "model: each rank used its own gradient.",
            lines[0],
        )
    raise Problem("not-averaged", "Each rank used its own gradient.", line)


def _raise_if_wrong_otherwise(
    run: Run, firsts: list[dict], kind: str, applied: np.ndarray
) -> None:
    """Raise the Problem of gradients that are neither the mean nor the ranks' own;
    unless they are the sum, of losses that were divided before, or all ranks have
    changed the mean in the same way."""
    local = _computed(run, kind, 0)
    lines = _wrappings(run)
    by_wrapped = lines and all(update["wrapped"] for update in firsts)
    line = lines[-1] if by_wrapped else firsts[0]["line"]
    factors = _factors(local, applied)
    if factors is None:
        alike = _same(applied[0], applied[1])
        if _got_the_mean(run) and (alike or _use_the_same_later(run)):
            return
        if alike:
            seen = "All ranks used the same gradient, but not the mean."
            raise Problem("not-the-mean", seen, line)
        raise Problem("differs", "The ranks used different gradients.", line)
    if not np.allclose(factors, run.size, rtol=RTOL_GRADIENTS):
        multiples = " and ".join(f"{factor:.2f}" for factor in factors)
        raise Problem("scaled", f"The ranks used {multiples} times the mean.", line)
    if not all(_divided_loss(rank, run.size) for rank in run.ranks):
        seen = "All ranks used the sum of the gradients, not the mean."
        raise Problem("sum", seen, line)
    _raise_if_not_always(run, firsts, kind, run.size)


def _got_the_mean(run: Run) -> bool:
    """Has each rank got the mean of some kind of gradients, in whatever order, from
    what was all-reduced between the last batch and the first update?"""
    try:
        reduced = np.sort(run.arrays("reduced"))
    except Missing:
        return False
    means = (np.sort(_computed(run, kind, 0).mean(axis=0)) for kind in KINDS)
    return any(
        mean.shape == reduced[0].shape
        and _all_same(reduced, np.broadcast_to(mean, reduced.shape))
        for mean in means
    )


def _use_the_same_later(run: Run) -> bool:
    """Do all ranks apply the same in each later update? In the first one, what they
    add to the mean may depend on weights that are not the same yet."""
    later = [applied for _, applied in _updates(run, KINDS[0])][1:]
    return bool(later) and all(_all_same(one, one[::-1]) for one in later)


def _is_clipped(run: Run, kind: str) -> bool:
    """Do all ranks use the mean, clipped to one norm, as far as it is longer than that?

    It has to be longer in several updates, by different factors: a single factor would
    not tell it from a mean that is scaled.
    """
    means, used = zip(*_updates(run, kind), strict=True)
    limit = max(float(np.linalg.norm(gradients[0])) for gradients in used)
    lengths = [float(np.linalg.norm(mean)) for mean in means]
    factors = [min(1.0, limit / length) if length else 1.0 for length in lengths]
    clipped = [factor for factor in factors if factor < 1 - RTOL_GRADIENTS]
    if len(clipped) < 2 or max(clipped) < min(clipped) * (1 + RTOL_GRADIENTS):
        return False
    return all(
        _all_same(gradients, np.broadcast_to(factor * mean, gradients.shape))
        for gradients, factor, mean in zip(used, factors, means, strict=True)
    )


def _raise_if_divided_too(run: Run) -> None:
    """Raise the Problem of gradients that are averaged, of a loss that each rank has
    divided by their number before."""
    loss, *others = (_divided_loss(rank, run.size) for rank in run.ranks)
    if loss and all(others):
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


def _raise_if_not_always(
    run: Run, firsts: list[dict], kind: str, factor: int = 1
) -> None:
    """Raise the Problem of gradients that are averaged for the first update, but not
    for a later one, as far as there were more.

    factor: so many times the mean is what the ranks should use."""
    word = "mean" if factor == 1 else "sum"
    for update, (mean, applied) in enumerate(_updates(run, kind)):
        expected = np.broadcast_to(factor * mean, applied.shape)
        if update and not _all_same(applied, expected):
            raise Problem(
                "not-always",
                f"In the first batch all ranks used the {word} of their gradients, but "
                f"in batch {update + 1} they did not.",
                firsts[0]["line"],
            )


def _updates(run: Run, kind: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Of each update that was kept, the mean of all ranks' gradients of a kind, and
    what each rank applied; until one applies only a part, as that isn't compared."""
    for update in range(UPDATES):
        try:
            local = _computed(run, kind, update)
            applied = run.arrays(f"applied.{update}")
        except Missing:
            return
        if local.shape != applied.shape:
            return
        yield local.mean(axis=0), applied


def _reduced_numbers(rank: Rank) -> int:
    """How many numbers were all-reduced between the last forward pass before the first
    update and that update, which is reported before it is made."""
    total = 0
    for event in rank.events:
        if event["what"] == "forward":
            total = 0
        if event["what"] == "collective_start" and "allreduce" in event["op"]:
            total += event["elements"]
        if event["what"] == "update":
            break
    return total


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return distance(a, b) < RTOL_GRADIENTS


def _all_same(gradients: np.ndarray, expected: np.ndarray) -> bool:
    return all(map(_same, gradients, expected))
