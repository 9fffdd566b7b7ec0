"""What is said of a scenario that did not end well, or whose reports can't be read."""

import json
import shutil

import numpy as np
import pytest
from test_evidence import OUTCOME

from distcheck import lab
from distcheck.judges import compare
from distcheck.judges.runs import Missing, _own_frames, read, short
from distcheck.judges.steps.common import OTHER, whatever_the_options
from distcheck.judges.verdicts import Check
from distcheck.verdict import UNDECIDED, WRONG
from utils.checking import exercises


@pytest.fixture
def job(tmp_path):
    """The folder of a job in which "two" has ended, with empty reports."""
    scenario = tmp_path / "two"
    scenario.mkdir()
    (scenario / "outcome.json").write_text(json.dumps(OUTCOME))
    for rank in (0, 1):
        (scenario / f"rank.{rank}.jsonl").write_text("")
    return tmp_path


def verdict(job, step):
    return exercises.find("fashion_mnist").checks[step].verdict(read(job))


@pytest.mark.parametrize("step", exercises.find("fashion_mnist").parts)
def test_a_spoilt_report_is_called_so(job, step):
    """However it is spoilt: see tests/test_evidence.py."""
    (job / "two" / "rank.1.jsonl").write_text("[1]\n")
    judged = verdict(job, step)
    assert (judged.id, judged.state) == (f"step-{step}.tampered", UNDECIDED)


def test_an_array_that_no_worker_keeps_is_not_taken(job):
    for rank in (0, 1):
        np.save(job / "two" / f"rank.{rank}.local.0.npy", np.zeros(3))
    assert verdict(job, 3).id == "step-3.tampered"


def test_who_replaces_what_it_is_watched_with_is_not_judged(job):
    event = {"what": "tampered", "line": None, "time": 1.0, "replaced": "json.dumps"}
    (job / "two" / "rank.1.jsonl").write_text(json.dumps(event) + "\n")
    judged = verdict(job, 3)
    assert (judged.id, judged.state) == ("step-3.tampered", UNDECIDED)
    assert "Rank 1 replaced json.dumps" in judged.seen


def test_who_refuses_the_options_of_a_check_is_not_judged(job):
    event = {"what": "failed", "line": 3, "time": 1.0, "status": 2, "error": "exit"}
    (job / "two" / "rank.1.jsonl").write_text(json.dumps(event) + "\n")
    words = "train.py: error: unrecognized arguments: --width 1"
    (job / "two" / "rank.1.err").write_text(words)
    judged = verdict(job, 3)
    assert (judged.id, judged.state) == ("step-3.options", UNDECIDED)
    assert "unrecognized arguments: --width 1" in judged.seen


@pytest.mark.parametrize(
    ("error", "caught"),
    [
        (
            "tf.gradients is not supported when eager execution is enabled",
            "compiled-only",
        ),
        ("compute the jacobian with eager execution enabled and", "compiled-only"),
        ("persistent=True is missing", "crashed"),
    ],
)
def test_what_can_only_be_compiled_is_not_blamed(job, error, caught):
    """The check runs functions eagerly."""
    event = {"what": "failed", "line": 3, "time": 1.0, "status": 1, "error": error}
    (job / "two" / "rank.0.jsonl").write_text(json.dumps(event) + "\n")
    assert failed(job, {"0": 1, "1": None}).id == f"step-3.{caught}"


def test_a_silent_program_has_not_trained(job):
    for step in (3, 4, 6):
        assert verdict(job, step).id == f"step-{step}.never-trained"
    assert verdict(job, 1).id == "step-1.not-started"


def failed(job, statuses):
    outcome = OUTCOME | {"outcome": lab.FAILED, "statuses": statuses}
    (job / "two" / "outcome.json").write_text(json.dumps(outcome))
    (job / "two" / "mpirun.txt").write_text("no room for me\n")
    return verdict(job, 3)


def test_a_signal_that_ended_a_worker_is_named(job):
    judged = failed(job, {"0": None, "1": -11})
    assert (judged.id, judged.state) == ("step-3.crashed", WRONG)
    assert "(by signal 11, Segmentation fault)" in judged.seen


@pytest.mark.parametrize("statuses", [{}, {"0": None}, {"0": None, "1": None}])
def test_that_mpirun_ends_before_any_worker_is_not_the_program_s_fault(job, statuses):
    judged = failed(job, statuses)
    assert (judged.id, judged.state) == ("step-3.no-mpirun", UNDECIDED)
    assert "no room for me" in judged.seen


def test_who_is_killed_from_outside_is_not_judged(job):
    """Whatever the other one says of it then."""
    left = {"what": "failed", "line": 3, "time": 1.0, "status": 1}
    left["error"] = "Horovod has been shut down."
    (job / "two" / "rank.0.jsonl").write_text(json.dumps(left) + "\n")
    judged = failed(job, {"0": 1, "1": -9})
    assert (judged.id, judged.state) == ("step-3.killed", UNDECIDED)
    assert "Rank 1 was killed" in judged.seen


def test_who_gets_on_until_the_time_is_up_is_not_judged(job):
    outcome = OUTCOME | {"outcome": lab.TIME_UP}
    (job / "two" / "outcome.json").write_text(json.dumps(outcome))
    judged = verdict(job, 3)
    assert (judged.id, judged.state) == ("step-3.time-up", UNDECIDED)


def test_who_ends_before_it_trains_with_other_options_alone_is_told_with_which(job):
    """Of the run without them, all is known that the judge asks for."""
    shutil.copytree(job / "two", job / OTHER)
    (job / OTHER / "outcome.json").write_text(json.dumps(OUTCOME | {"outcome": "hung"}))

    def judge(run):
        if run.name == OTHER:
            raise Missing

    check = Check(3, "All is well.", ("two", OTHER), whatever_the_options(judge))
    judged = check.verdict(read(job))
    assert judged.id == "step-3.hung"
    assert "This was seen with --seed 1" in judged.seen


def test_an_outcome_that_can_not_be_read_is_a_failure(job):
    (job / "two" / "outcome.json").write_text("[]")
    assert read(job)["two"].outcome == lab.FAILED
    assert verdict(job, 3).id == "step-3.crashed"


def test_what_tensorflow_calls_an_operation_is_left_out():
    node = "{{function_node __wrapped__HorovodBroadcast_device_/job:localhost/"
    node += "replica:0/task:0/device:CPU:0}}"
    error = f"InvalidArgumentError: {node} Mismatched ranks: one has 0, one 1. "
    error += "[Op:HorovodBroadcast] name: "
    words = short(error)
    said = "Mismatched ranks: one has 0, one 1."
    assert words == f"InvalidArgumentError: Horovod's Broadcast: {said}"
    assert short("No. [Op:Sum] name: total") == "No. name: total"


def test_a_long_message_is_cut_between_two_words():
    assert short("one two three", 100) == "one two three"
    assert short("one two three", 11) == "one two..."
    assert short(f"why: {'x' * 20}", 14) == "why: xxxxxx..."


def test_the_evidence_of_a_crash_is_in_the_learner_s_file():
    frames = ["/home/me/x.py", "/usr/lib/python3/functools.py", "/home/me/x.py"]
    text = "".join(
        f'  File "{path}", line {number}, in f\n    call({number})\n'
        for number, path in enumerate(frames, 7)
    )
    expected = ["x.py, line 7: call(7)", "x.py, line 9: call(9)"]
    assert _own_frames(text, "/home/me/x.py") == expected


def test_the_first_known_fault_that_gives_a_number_is_named():
    known = {"mean": 1.5, "sum": 3.0, "also the sum": 3.0}
    assert compare.classify(3.0, known) == "sum"
    assert compare.classify(1.5 + 1e-7, known) == "mean"
    assert compare.classify(2.0, known) is None
    assert compare.classify(2.0, known, lambda a, b: abs(a - b) < 1) == "mean"
