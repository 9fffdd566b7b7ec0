"""Judge step 6: do callbacks read the mean of the workers' validation metrics?"""

import itertools
from dataclasses import replace

import numpy as np

from distcheck import lab
from distcheck.judges.compare import RTOL_FP32, classify, near
from distcheck.judges.compiled import must_compile
from distcheck.judges.runs import Missing, Problem, Rank, Run, in_line
from distcheck.judges.steps.common import OPPOSITE, OTHER, step
from distcheck.verdict import UNDECIDED


@step(
    6,
    scenarios=("two", "other options", "opposite"),
    expected=(
        "Every callback that reads validation metrics sees their mean over all workers."
    ),
)
@must_compile("training", "validation")
def averages_metrics(runs: dict[str, Run]) -> None:
    try:
        _averages_in(runs["two"])
    except Problem as problem:
        if problem.name not in _OPEN or OPPOSITE not in runs:
            raise
        if problem.name == "gathered":
            _raise_if_went_on_alone(runs[OPPOSITE])
            if not _stop_together(runs):
                raise
        else:
            # A few images may give all ranks the same number by chance; not here.
            _averages_in(runs[OPPOSITE])
    if OTHER in runs:
        _raise_if_decided_alone(runs[OTHER])
        _raise_if_stopped_alone(runs[OTHER])
        _raise_if_rates_apart(runs[OTHER])
        last = _last_epoch(runs[OTHER])
        if last:
            try:
                _averages_in(last)
            except Problem as problem:
                problem.seen = (
                    f"In the first epoch this was right. Later, {problem.seen}"
                )
                raise
    if OPPOSITE in runs:
        _raise_if_went_on_alone(runs[OPPOSITE])


def _last_epoch(run: Run) -> Run | None:
    """What was observed from the last of several validations within fit on."""
    ranks = []
    for rank in run.ranks:
        starts = [
            number
            for number, event in enumerate(rank.events)
            if event["what"] == "evaluated" and event["fit"] and not event["own"]
        ]
        if len(starts) < 2:
            return None
        start = starts[-1]
        while _in_validation(rank.events[start - 1]):
            start -= 1
        ranks.append(replace(rank))
        ranks[-1].events = rank.all("fit") + rank.events[start:]
    return replace(run, ranks=ranks)


def _in_validation(event: dict) -> bool:
    """Can this event be one of the steps of a validation?"""
    if event["what"] == "forward":
        return not event["training"]
    return event["what"].startswith("collective")


def _averages_in(run: Run) -> None:
    """Raise the Problem of a callback that reads something else than the mean over the
    workers of what they evaluated first."""
    if not any(rank.all("fit") for rank in run.ranks):
        _averaged_by_hand(run)
        return
    calls = [rank.all("callback") for rank in run.ranks]
    if not all(calls):
        raise Missing
    evaluated = [[e for e in r.all("evaluated") if e["fit"]] for r in run.ranks]
    computed = [
        {k: v for k, v in _first_metrics(call, own).items() if k.startswith("val_")}
        for call, own in zip(calls, evaluated, strict=True)
    ]
    validated = [any(not e["training"] for e in r.all("forward")) for r in run.ranks]
    if not any(computed) and all(validated):
        _averaged_by_hand(run)
        return
    try:
        mean = _mean(computed)
    except Problem as problem:
        # Ranks that average in each validation step have the same metrics.
        if problem.name != "no-difference" or not any(_small_exchanges(run.ranks[0])):
            raise
        _averaged_by_hand(run)
        return
    for by_rank in _side_by_side(calls):
        _raise_if_combined(run, by_rank, computed)
    _raise_if_read_otherwise(run, calls, mean)
    averaged = any(_all_near(c["after"], mean) for call in calls for c in call)
    if not averaged and not any(
        _averages_for_itself(run, callback) for callback in calls[0]
    ):
        raise Missing


def _mean(computed: list[dict[str, float]]) -> dict[str, float]:
    """The mean over the workers of the metrics that each computed. Raises the Problem
    of metrics of which there is none, or none that shows anything."""
    if not all(computed):
        raise Problem("no-validation", "The program did not validate.")
    for rank, metrics in enumerate(computed):
        if set(metrics) != set(computed[0]):
            raise Problem(
                "other-metrics",
                f"Rank 0 computed {', '.join(sorted(computed[0]))}, but rank {rank} "
                f"{', '.join(sorted(metrics))}. Only metrics that all ranks have can "
                "be averaged.",
            )
    mean = {k: float(np.mean([values[k] for values in computed])) for k in computed[0]}
    if all(near(computed[0][k], computed[1][k]) for k in mean):
        raise Problem(
            "no-difference",
            "All ranks computed the same validation metrics, so the check can't see "
            "whether they were averaged.",
            state=UNDECIDED,
        )
    return mean


def _raise_if_read_otherwise(
    run: Run, calls: list[list[dict]], mean: dict[str, float]
) -> None:
    """Raise the Problem of a callback that reads other metrics than the mean, unless it
    is the one that changes them."""
    for rank, call in enumerate(calls):
        for place, callback in enumerate(call):
            before, after = callback["before"], callback["after"]
            changes = any(after.get(k) != before.get(k) for k in mean)
            reads = set(callback["read"]) & set(mean)
            wrong = sorted(k for k in reads if not near(before[k], mean[k]))
            if changes or not wrong or _averages_for_itself(run, callback):
                continue
            if run.outcome != lab.ENDED:
                raise Missing
            message = (
                f"{callback['name']} read {wrong[0]} = {before[wrong[0]]:.4f} on rank "
                f"{rank}; the mean over the workers is {mean[wrong[0]]:.4f}"
            )
            if any(_all_near(later["after"], mean) for later in call[place:]):
                raise Problem(
                    "too-late",
                    f"{message}. The metric is averaged only after that, because "
                    "callbacks run in the order of the list.",
                    callback["made"],
                )
            raise Problem("not-averaged", f"{message}.", callback["made"])


def _first_metrics(calls: list[dict], evaluated: list[dict]) -> dict[str, float]:
    """The metrics that a rank computed first, before anybody changed them."""
    return evaluated[0]["metrics"] if evaluated else calls[0]["before"]


def _averages_for_itself(run: Run, callback: dict) -> bool:
    """Does a callback of rank 0, or its like on another rank, let reduce what it reads,
    and leave the metrics as they are?"""
    (rank,) = (r for r in run.ranks if any(e is callback for e in r.events))
    number = next(n for n, e in enumerate(rank.events) if e is callback)
    given = []
    for event in reversed(rank.events[:number]):
        if event["what"] in ("callback", "forward"):
            break
        if event["what"] == "collective_start" and event["op"].endswith(_EXCHANGES):
            given += event["given"] or []
    read = [callback["before"][k] for k in callback["read"] if k.startswith("val_")]
    return any(near(number, value) for number in given for value in read)


def _raise_if_decided_alone(run: Run) -> None:
    """Raise the Problem of a callback that ends the training by what its rank has
    evaluated for it, and has exchanged with nobody."""
    for rank in run.ranks:
        callbacks = [n for n, e in enumerate(rank.events) if e["what"] == "callback"]
        end = next((n for n in callbacks if rank.events[n]["stops"]), None)
        if end is None:
            continue
        begin = max((n for n in callbacks if n < end), default=0)
        own = list(itertools.dropwhile(_not_own, rank.events[begin:end]))
        exchanged = any(event["what"] == "collective_start" for event in own)
        callback = rank.events[end]
        reads = any(name.startswith("val_") for name in callback["read"])
        if own and not exchanged and not reads:
            name, score = max(own[0]["metrics"].items())
            raise Problem(
                "not-averaged",
                f"{callback['name']} ended the training of rank {rank.number} because "
                f"of {name} = {score:.4f}, which only this rank had "
                f"evaluated{in_line(own[0]['line'])}.",
                own[0]["line"],
            )


def _raise_if_stopped_alone(run: Run) -> None:
    """Raise the Problem of a training that ends on some ranks only."""
    stops = [[e for e in r.all("callback") if e["stops"]] for r in run.ranks]
    if any(stops) and not all(stops) and run.outcome != lab.ENDED:
        rank = next(n for n, events in enumerate(stops) if events)
        others = ", ".join(str(n) for n, events in enumerate(stops) if not events)
        callback = stops[rank][0]
        raise Problem(
            "stopped-alone",
            f"{callback['name']} ended the training of rank {rank}, but not that of "
            f"rank {others}, which then waits forever.",
            callback["made"],
        )


def _trained(run: Run) -> list[int]:
    """On how many batches each rank trained."""
    return [sum(e["training"] for e in r.all("forward")) for r in run.ranks]


def _stop_together(runs: dict[str, Run]) -> bool:
    """In OPPOSITE, do all ranks stop after the first epoch, the only one of "two"? By
    the mean they do, but rank 0 doesn't by what it has validated."""
    first, opposite = _trained(runs["two"]), runs[OPPOSITE]
    stop = opposite.outcome == lab.ENDED and _trained(opposite) == first
    # Others have a further epoch, if their program trains as many as it is told.
    return stop and OTHER in runs and min(_trained(runs[OTHER])) > max(first)


def _raise_if_went_on_alone(run: Run) -> None:
    """Raise the Problem of ranks that decide to stop by what each has validated."""
    trained = _trained(run)
    if run.outcome == lab.DEADLOCK and max(trained) > min(trained):
        raise Problem(
            "went-on-alone",
            "In this run rank 0 is right on none of its validation images, and rank 1 "
            "on all of them. One rank stopped training, and the other went on and "
            "waits forever: each rank decides by its own validation, not by the mean.",
        )


def _raise_if_rates_apart(run: Run) -> None:
    """Raise the Problem of ranks that train with different learning rates."""
    trained = [[e for e in r.all("forward") if e["training"]] for r in run.ranks]
    for number, events in enumerate(zip(*trained, strict=False), 1):
        rates = [event["rate"] for event in events]
        if None not in rates and not np.allclose(
            rates, rates[0], rtol=RTOL_FP32, atol=0
        ):
            other = next(n for n, rate in enumerate(rates) if rate != rates[0])
            raise Problem(
                "rates-apart",
                f"In training step {number}, rank 0's learning rate was {rates[0]:g} "
                f"and that of rank {other} {rates[other]:g}. It was set by something "
                "that differs between ranks, so the weights drift apart.",
            )


def _not_own(event: dict) -> bool:
    """Is it anything but an evaluation that a callback has asked for?"""
    return event["what"] != "evaluated" or not event["own"]


def _side_by_side(calls: list[list[dict]]):
    """Each callback that all ranks have, as what it did on each; in rank 0's order."""
    rest = [list(call) for call in calls[1:]]
    for callback in calls[0]:
        likes = [
            [c for c in remaining if c["name"] == callback["name"]]
            for remaining in rest
        ]
        if all(likes):
            for remaining, (like, *_) in zip(rest, likes, strict=True):
                remaining.remove(like)
            yield callback, *(like for like, *_ in likes)


def _raise_if_combined(run: Run, by_rank: tuple, computed: list[dict]) -> None:
    """Raise the Problem of a callback that replaces metrics by something known.

    by_rank: what it did on each rank; computed: the metrics that each computed.
    """
    changed = sorted(
        k
        for k in computed[0]
        if any(c["after"].get(k) != c["before"].get(k) for c in by_rank)
    )
    if not changed or not all(set(changed) <= set(c["after"]) for c in by_rank):
        return
    handed_out = _broadcasts_in(run.ranks[0], by_rank[0])
    for keys in (changed, *([key] for key in changed)):
        given = np.array([[metrics[k] for k in keys] for metrics in computed])
        got = np.array([[c["after"][k] for k in keys] for c in by_rank])
        name, words = _combination(given, got, handed_out)
        if name not in ("", "mean"):
            raise Problem(
                name,
                f"{by_rank[0]['name']} replaces {' and '.join(keys)} by {words}, not "
                "by the mean.",
                by_rank[0]["made"],
            )


def _broadcasts_in(rank: Rank, callback: dict) -> bool:
    """Did a broadcast take place in this callback, at the end of the epoch?"""
    for event in reversed(rank.events[: rank.events.index(callback)]):
        if event["what"] in ("callback", "forward"):
            break
        if event["what"] == "collective_start" and event["op"] == "broadcast":
            return True
    return False


def _combination(
    given: np.ndarray, got: np.ndarray, handed_out: bool
) -> tuple[str, str]:
    """What was made of the numbers that the ranks gave: its name, "mean" or that of a
    Problem, and words for it; both empty for nothing known.

    given, got: (ranks, numbers). handed_out: by a broadcast; the numbers alone do not
    always tell what rank 0 gave from a maximum or minimum.
    """
    mean = given.mean(axis=0)
    computed = {
        ("mean", "the mean"): mean,
        ("sum", "the sum over the workers"): given.sum(axis=0),
        (
            "divided-twice",
            "the mean divided by the number of workers once more",
        ): mean / len(given),
        ("maximum", "the maximum over the workers"): given.max(axis=0),
        ("minimum", "the minimum over the workers"): given.min(axis=0),
    }
    from_one_rank = {
        ("broadcast", f"what rank {rank} computed"): numbers
        for rank, numbers in enumerate(given)
    }
    known = from_one_rank | computed if handed_out else computed | from_one_rank
    return classify(got, known) or ("", "")


def _averaged_by_hand(run: Run) -> None:
    """A training loop of its own has no callbacks: look at what it lets reduce."""
    if run.outcome != lab.ENDED or not all(r.all("forward") for r in run.ranks):
        raise Missing
    if not run.ranks[0].all("fit") and not run.ranks[0].all("update"):
        raise Missing
    exchanges = zip(*(_small_exchanges(rank) for rank in run.ranks), strict=False)
    outcomes = [(*_outcome(by_rank), by_rank[0]["line"]) for by_rank in exchanges]
    if any(name == "mean" for name, _, _ in outcomes):
        return
    # What leaves it open comes first: a rank may exchange more than metrics.
    for name, words, line in sorted(outcomes, key=lambda o: o[0] not in _OPEN):
        if name in _OPEN:
            raise Problem(name, _OPEN[name], line, state=UNDECIDED)
        if name:
            raise Problem(
                name,
                "No number that the ranks computed in validation was averaged: they "
                f"get {words}{in_line(line)}.",
                line,
            )
    raise Problem(
        "not-averaged", "No number that the ranks computed in validation was averaged."
    )


_EXCHANGES = ("allreduce", "allgather", "broadcast")  # and the grouped ones
_OPEN = {
    "no-difference": "All ranks reduced the same numbers, so the check can't see "
    "whether they were averaged.",
    "gathered": "All ranks gathered their numbers, and the check can't see whether "
    "each then took the mean.",
}


def _outcome(by_rank: tuple[dict, ...]) -> tuple[str, str]:
    """What a collective made of a few numbers of each rank: as _combination, or a name
    in _OPEN."""
    op = by_rank[0]["op"]
    if "allgather" in op:
        return "gathered", ""
    given = np.array([exchange["given"] for exchange in by_rank])
    got = np.array([exchange["got"] for exchange in by_rank])
    name, words = _combination(given, got, handed_out=op == "broadcast")
    # Numbers as good as equal are their mean, their maximum, what rank 0 gave.
    if np.allclose(given, given[0], rtol=3 * RTOL_FP32) and name != "divided-twice":
        return ("", "") if op == "broadcast" else ("no-difference", "")
    # The program may divide the sum by itself.
    return ("mean", "") if name == "sum" else (name, words)


def _small_exchanges(rank: Rank):
    """The collectives that exchanged a few numbers after validating, or gathered any,
    as dicts with what the rank gave and got.

    What comes before the validation, such as the mean of the training loss, does not
    tell whether its metrics are averaged.
    """
    kinds = [event["what"] for event in rank.events]
    last = len(kinds) - kinds[::-1].index("update") if "update" in kinds else 0
    validated = next(
        (
            i
            for i, event in enumerate(rank.events[last:], last)
            if event["what"] == "forward" and not event["training"]
        ),
        last,
    )
    entered = None
    for event in rank.events[validated:]:
        if event["what"] == "collective_start":
            entered = event if event["op"].endswith(_EXCHANGES) else None
        elif event["what"] == "collective_end" and entered:
            few = entered["given"] and event["got"]
            if few or entered["op"].endswith("allgather"):
                yield {**entered, "got": event["got"]}


def _all_near(metrics: dict, wanted: dict) -> bool:
    return all(k in metrics and near(metrics[k], v) for k, v in wanted.items())
