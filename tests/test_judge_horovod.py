"""Verdicts on the six Horovod steps, from reports that no program has to be run for:
what real programs show only now and then, and cases that lie close together.
"""

import json

import numpy as np
import pytest

from utils import exercises, judge, lab
from utils.verdict import UNDECIDED, WRONG


@pytest.fixture
def report(tmp_path):
    """Writes down what the ranks of a world did, as lists of events and arrays."""

    def write(ranks, world="two", **arrays):
        folder = tmp_path / world
        folder.mkdir()
        outcome = {"outcome": lab.ENDED, "script": "x", "statuses": {}}
        (folder / "outcome.json").write_text(json.dumps(outcome))
        for rank, events in enumerate(ranks):
            events = [{"what": "started"}, *events, {"what": "ended"}]
            lines = [json.dumps({"line": None} | event) for event in events]
            (folder / f"rank.{rank}.jsonl").write_text("\n".join(lines) + "\n")
        for name, values in arrays.items():
            for rank, value in enumerate(values):
                np.save(folder / f"rank.{rank}.{name}.npy", np.float32(value))

    write.folder = tmp_path
    return write


def verdict(report, step):
    return exercises.HOROVOD.judge(step, judge.read(report.folder))


def forward(training, fit=False):
    return {"what": "forward", "training": training, "fit": fit}


def update(wrapped=True):
    return {"what": "update", "wrapped": wrapped, "line": 5}


def exchange(op, given, got, line=7, elements=None, root=None):
    """The two events of a collective."""
    numbers = elements or len(given)
    entered = {"op": op, "given": given, "elements": numbers, "root": root}
    return [
        {"what": "enter", "name": None, "line": line, **entered},
        {"what": "leave", "op": op, "got": got},
    ]


# ------------------------------------------------------------ step 3

GRADIENTS = np.array([[1.0, 2.0, 3.0], [3.0, 2.0, -1.0]])


@pytest.mark.parametrize(
    ("wrapped", "reduced", "caught"),
    [
        (True, [], "applied-directly"),
        (True, exchange("allreduce", None, None, elements=3), "not-averaged"),
        (False, [], "not-used"),
    ],
    ids=["nothing averaged", "averaged in vain", "another optimizer"],
)
def test_which_optimizer_trained_decides_what_is_said(report, wrapped, reduced, caught):
    events = [{"what": "wrapped", "line": 3}, forward(True), *reduced, update(wrapped)]
    report([events] * 2, local=GRADIENTS, applied=GRADIENTS)
    assert verdict(report, 3).id == f"step-3.{caught}"


# ------------------------------------------------------------ step 5


def steps(report, world, counts, more=()):
    """Each rank does so many training and validation steps in fit, and then more."""
    fit = {"what": "fit", "line": 4, "steps_per_epoch": 1, "validation_steps": 1}
    ranks = []
    for train, val in counts:
        forwards = [forward(True, True)] * train + [forward(False, True)] * val
        ranks.append([fit, *forwards, {"what": "fitted"}, *more])
    report(ranks, world)


TOTAL, ROUNDS = lab.STEPS, 3 * lab.VAL_STEPS
RIGHT_STEPS = {n: (TOTAL // n, ROUNDS // n) for n in (1, 2, 3)}


def test_the_ranks_that_validate_differently_are_named(report):
    steps(report, "pair", [(3, 4), (3, 0)])
    found = verdict(report, 5)
    assert found.id == "step-5.validation-steps"
    assert "rank 0 did 4, rank 1 did 0 validation steps" in found.seen
    assert found.evidence == (
        "2 workers: 3 training, 4 (rank 0) and 0 (rank 1) validation steps",
    )


def test_different_numbers_of_training_steps_are_a_deadlock(report):
    # Each number alone is right: 7 / 2 may be rounded up or down, but not both.
    steps(report, "pair", [(3, 4), (4, 4)])
    found = verdict(report, 5)
    assert found.id == "step-5.deadlock"
    assert "On 2 workers rank 0 did 3, rank 1 did 4 training steps" in found.seen
    assert "this is a deadlock: rank 1, which does more, waits for ever" in found.seen


def test_with_three_workers_all_of_them_are_named(report):
    steps(report, "pair", [RIGHT_STEPS[2]] * 2)
    steps(report, "three", [(3, 3), (2, 3), (2, 3)])
    assert "rank 0 did 3, rank 1 did 2, rank 2 did 2" in verdict(report, 5).seen


def test_who_joins_does_not_wait_for_ever(report):
    steps(report, "pair", [(4, 4), (3, 4)], exchange("join", None, None, elements=1))
    assert verdict(report, 5).id == "step-5.right"


def test_training_steps_are_not_taken_for_the_test_at_the_end(report):
    # A loop of its own, without fit and without a test.
    report([[forward(True)] * 3, [forward(True)] * 3], "pair")
    assert verdict(report, 5).id == "step-5.validation-steps"
