"""Judge step 4: do all ranks go on with rank 0's weights and optimizer's state?"""

from collections import Counter

import numpy as np

from distcheck import lab
from distcheck.judges.compare import RTOL_FP16, RTOL_GRADIENTS, classify, distance
from distcheck.judges.compiled import must_compile
from distcheck.judges.runs import Problem, Rank, Run, in_line
from distcheck.judges.steps.common import step, whatever_the_options
from distcheck.recorder.tensors import SMALL


@step(
    4,
    scenarios=("two", "other options"),
    expected=(
        "After the first batch, all ranks have the weights and the optimizer's state "
        "of rank 0, wherever they started."
    ),
)
@must_compile("training")
@whatever_the_options
def broadcasts(run: Run) -> None:
    start, updated = run.arrays("start"), run.arrays("updated")
    resumed, state = run.arrays("resumed"), [r.array("state") for r in run.ranks]
    sent = run.ranks[0].collectives("broadcast")
    line = _line_of_most(sent)
    started_alike = np.array_equal(start[0], start[1])
    if started_alike:
        _from_rank_0(run, start[0], run.arrays("initial"), "started")
    apart = distance(resumed[0], resumed[1])
    if apart > 0:
        if not sent:
            raise Problem(
                "not-broadcast",
                "No rank handed out its weights: after the first batch those of rank 0 "
                f"and rank 1 differ by {apart:.1%}. (A seed does not help, because the "
                "check gives each rank other weights to start from, as a checkpoint or "
                "another machine may.)",
            )
        raise Problem(
            "differs",
            f"There was a broadcast in line {line}, but after the first batch the "
            f"weights of rank 0 and rank 1 differ by {apart:.1%}.",
            line,
        )
    if not started_alike:
        _from_rank_0(run, resumed[0], updated, "update")
    if state[0].shape != state[1].shape or distance(state[0], state[1]) > 0:
        raise Problem(
            "optimizer-state",
            "All ranks have the same weights, but not all have rank 0's optimizer "
            "state.",
            line,
        )
    if run.outcome == lab.ENDED:
        apart = distance(*run.arrays("end"))
        if apart > RTOL_GRADIENTS:
            raise Problem(
                "apart-again",
                "After the first batch all ranks had the same weights, but in the end "
                f"those of rank 0 and rank 1 differed by {apart:.1%}.",
                line,
            )


def _line_of_most(sent: list[dict]) -> int | None:
    """The line whose broadcasts carried most numbers: the weights, not a counter."""
    numbers: Counter = Counter()
    for event in sent:
        numbers[event["line"]] += event["elements"]
    return numbers.most_common(1)[0][0] if numbers else None


def _from_rank_0(run: Run, weights: np.ndarray, before: np.ndarray, since: str) -> None:
    """Raise a Problem if `weights`, which all ranks have now, are not those of rank 0.

    before: what each rank had before that; since: the event since which they may have
    become the same.
    """
    owners = [n for n, start in enumerate(before) if _same(weights, start)]
    line = _first_exchange(run.ranks[0], since)
    combination = classify(
        weights,
        {
            "mean": before.mean(axis=0),
            "sum": before.sum(axis=0),
            "maximum": before.max(axis=0),
            "minimum": before.min(axis=0),
        },
        _same,
    )
    if combination and not owners:
        raise Problem(
            f"{combination}-of-starts",
            f"All ranks got the {combination} of the ranks' weights{in_line(line)}, "
            "not those of rank 0. If rank 0 had read a checkpoint, its weights would "
            "be mixed with the random weights of the others.",
            line,
        )
    foreign = _foreign_broadcasts(run.ranks[0], weights.size)
    if foreign:
        line = foreign[0]["line"]
    if len(owners) in (0, run.size):  # then only broadcasts tell whose they are
        roots = [event["root"] for event in foreign]
    else:
        roots = owners
    if roots and 0 not in roots:
        raise Problem(
            "wrong-root",
            f"All ranks got the weights of rank {roots[0]}, not those of rank 0.",
            line,
        )
    if not owners and since == "update":
        raise Problem(
            "another-start",
            "After the first batch all ranks have the same weights, but not those of "
            "rank 0.",
            line,
        )


def _foreign_broadcasts(rank: Rank, numbers: int) -> list[dict]:
    """The broadcasts from other ranks than 0, if they carried so many numbers in all:
    with fewer, they were about something else than the weights."""
    sent = [event for event in rank.collectives("broadcast") if event["root"]]
    return sent if sum(event["elements"] for event in sent) >= numbers else []


def _first_exchange(rank: Rank, since: str) -> int | None:
    """The line of the first collective, other than a broadcast, that carried more than
    a few numbers between the first such event and the next batch."""
    kinds = [event["what"] for event in rank.events]
    for event in rank.events[kinds.index(since) :]:
        if event["what"] == "forward":
            break
        large = event["what"] == "collective_start" and event["elements"] > SMALL
        if large and event["op"] != "broadcast":
            return event["line"]
    return None


def _same(weights: np.ndarray, expected: np.ndarray) -> bool:
    return distance(expected, weights) < RTOL_FP16
