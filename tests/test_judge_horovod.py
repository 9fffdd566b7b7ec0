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
