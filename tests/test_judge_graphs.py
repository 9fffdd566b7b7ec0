"""What was not compiled, or can't be, is not right: reports of rank 0, made by hand."""

import json

import pytest
from test_evidence import OUTCOME

from distcheck import lab
from distcheck.judges.compiled import must_compile
from distcheck.judges.runs import Problem, Unreadable, read
from distcheck.judges.verdicts import Check

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


def said_of(runs):
    """The verdict of a check whose judge found all right, but for what is compiled."""
    return Check(3, "All is well.", ("two",), TRAINING(passes)).verdict(runs)


@pytest.mark.parametrize("outcome", [lab.FAILED, lab.DEADLOCK, lab.HUNG])
def test_what_was_not_compiled_before_the_end_is_said(job, outcome):
    judged = said_of(read(ends(job, outcome)))
    assert (judged.id, judged.ok) == ("step-3.right", True)
    assert "Whether it can be compiled was not tried" in judged.seen
    assert said_of(built(job, (True, None), count=1)).seen == "All is well."


def test_who_hangs_while_it_is_compiled_is_not_right(job):
    runs = built(ends(job, lab.HUNG), (True, None), count=2)
    assert said_of(runs).id == "step-3.hung"


def test_a_fault_in_a_later_run_comes_before_what_was_not_tried(job):
    """Here both are the same run: what matters is that all of them are looked at."""
    runs = built(job, (True, "TypeError: no value"), count=1)
    cut = read(ends(job, lab.FAILED))["two"]
    cut.ranks[0].events = []
    assert said_of({"cut": cut, **runs}).id == "step-3.eager-only"
