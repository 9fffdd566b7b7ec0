"""What was not compiled, or can't be, is not right: reports of rank 0, made by hand."""

import json

import pytest
from test_evidence import OUTCOME

from distcheck import lab
from distcheck.judges.compiled import must_compile
from distcheck.judges.runs import Problem, Unreadable, read

TIME = {"time": 1.5}
TRAINING = must_compile("training")
BOTH = must_compile("training", "validation")


@pytest.fixture
def job(tmp_path):
    """The folder of a job in which "two" has ended, with empty reports."""
    (tmp_path / "two").mkdir()
    for rank in (0, 1):
        (tmp_path / "two" / f"rank.{rank}.jsonl").write_text("")
    return ends(tmp_path, lab.ENDED)


def ends(job, outcome):
    facts = OUTCOME | {"outcome": outcome}
    (job / "two" / "outcome.json").write_text(json.dumps(facts))
    return job


def built(job, *graphs, count):
    """The runs once rank 0 has built graphs: each for training?, with this error."""
    events = [{"what": "graphs", "line": None, "count": count, **TIME}]
    for training, error in graphs:
        facts = {"function": None, "training": training, "error": error}
        events.append({"what": "graph", "line": 7, **facts, **TIME})
    text = "".join(json.dumps(event) + "\n" for event in events)
    (job / "two" / "rank.0.jsonl").write_text(text)
    return read(job)


def passes(runs):
    """A judge that finds all right."""


def test_what_fails_in_training_is_wrong(job):
    runs = built(job, (True, "TypeError: no value"), (False, None), count=2)
    for decorate in (TRAINING, BOTH):
        with pytest.raises(Problem) as problem:
            decorate(passes)(runs)
        assert (problem.value.name, problem.value.line) == ("eager-only", 7)
        assert "training step" in problem.value.seen
        assert "rank 0 in line 7: TypeError: no value" in problem.value.seen


def test_what_fails_in_validation_is_wrong_where_that_matters(job):
    runs = built(job, (True, None), (False, "TypeError: no value"), count=2)
    TRAINING(passes)(runs)
    with pytest.raises(Problem, match="validation step"):
        BOTH(passes)(runs)


def test_what_the_evidence_says_comes_first(job):
    def finds_fault(runs):
        raise Problem("sum", "They are added up.")

    runs = built(job, (True, "TypeError: no value"), count=1)
    with pytest.raises(Problem, match="added up"):
        TRAINING(finds_fault)(runs)


def test_graphs_that_were_not_all_built_prove_nothing(job):
    for runs in (read(job), built(job, (True, None), count=2)):
        with pytest.raises(Unreadable):
            TRAINING(passes)(runs)


def test_a_program_that_does_not_end_has_built_none(job):
    TRAINING(passes)(read(ends(job, lab.FAILED)))
