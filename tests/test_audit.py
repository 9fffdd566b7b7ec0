"""`course audit` finds what is wrong with programs in many styles, and nothing else.

tests/audited/ holds programs that are right, and faults.toml edits of them that aren't.
All are run for real, on two workers that are forked from one process; what a program
does on one worker is watched once, and its faults are compared with that. What was
reported is kept, for when only judges have changed.
"""

import contextlib
import functools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import audit_programs
import audit_server
import kept_evidence
import psutil
import pytest
import typer.testing
from ci_sample import drawn

from utils import cli
from utils.base import course
from utils.checking import audit
from utils.checking.judges import audit as judge

# Real workers; the time limits hold even where a core has much else to do.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
]

PROGRAM = "program.py"
LIMIT = 400.0

# What has to be seen to be right, beside that nothing is seen to be wrong.
SEEN = {
    "keras_fit": "together start gradients end different everything order pass "
    "validation metrics rate files waiting statistics random",
    "tape": "start gradients end different everything order pass rate",
    "summed": "start gradients end different everything pass",
    "torch_like": "start gradients end different everything pass",
    "own_step": "start gradients end different pass",
    "own_passes": "start gradients end different everything order pass rate",
    "own_callbacks": "start gradients end different validation metrics files",
    "epochs_shared": "start gradients end different everything pass files rate",
    "two_inputs": "start gradients end different pass rate",
    "by_hand": "start end",
    "augmented": "start gradients end files",
    "accumulated": "start end different everything pass metrics",
    "own_validation": "start gradients end different everything pass validation",
    "mirrored_fit": "together start gradients end different everything pass",
    "mirrored_loop": "together start gradients end different everything pass",
    "multi_worker": "together start gradients end different everything files",
    "all_of_it": "start gradients end different pass files rate",
}


# What runs an audited program and makes its reports, beside what that imports.
MODULES = (
    "utils.checking.observers.audit",
    "utils.checking.messenger",
    "utils.running.launchers",
    "utils.running.tasks",
)
FILES = tuple(
    map(Path, (audit.__file__, audit_programs.__file__, audit_server.__file__))
)


@pytest.fixture(scope="module")
def serve():
    """From its first call on, workers are forked."""
    with contextlib.ExitStack() as stack:
        yield functools.cache(lambda: stack.enter_context(audit_programs.served()))


@pytest.fixture
def watch(serve, tmp_path, monkeypatch):
    """A function that runs a program's text on so many workers, and watches.

    hangs: it waits for ever, which is found out sooner than in earnest. kept: what it
    reported before will do as well (see kept_evidence.py).
    """
    monkeypatch.chdir(tmp_path)
    in_earnest = audit.run

    def watch(
        text: str,
        workers: int,
        limit: float = LIMIT,
        hangs: bool = False,
        kept: bool = False,
    ) -> judge.Watched:
        if hangs:
            monkeypatch.setattr(audit, "STALL", 10.0)
            monkeypatch.setattr(audit, "WARNED", 3)
        facts = (text, workers, limit, hangs)
        place = kept_evidence.place(*facts, modules=MODULES, others=FILES)
        if kept and place.exists():
            monkeypatch.setattr(audit, "run", functools.partial(recall, place))
        else:
            serve()
            keeping = functools.partial(run_and_keep, in_earnest, place)
            monkeypatch.setattr(audit, "run", keeping)
        path = tmp_path / PROGRAM
        path.write_text(text)
        kind = audit.kind_of(path)
        run = audit.observe(path, [], kind, workers, limit)
        assert [p.name for p in tmp_path.iterdir()] == [PROGRAM]
        return run

    return watch


def run_and_keep(run, place: Path, kind, workers, command, variables, folder, limit):
    """`audit.run`, whose reports are kept."""
    seen = run(kind, workers, command, variables, folder, limit)
    end = {"outcome": seen.outcome, "output": seen.output, "seconds": seen.seconds}
    with kept_evidence.new_folder() as made:
        reports = shutil.copytree(folder, made / "reports")
        (reports / "end.json").write_text(json.dumps(end))
        kept_evidence.keep(reports, place)
    return seen


def recall(place: Path, kind, workers, *_) -> judge.Watched:
    """What `audit.run` gave, whose reports are kept."""
    return judge.read(
        place, kind, workers, **json.loads((place / "end.json").read_text())
    )


@pytest.fixture(scope="module")
def alone():
    """The runs of right programs on one worker, by name."""
    return {}


def report(watch, alone, base: str, text: str, hangs: bool = False) -> audit.Report:
    """What is found in a program that does on one worker what `base` does."""
    many = watch(text, 2, hangs=hangs, kept=True)
    if base not in alone:
        alone[base] = watch(audit_programs.edited(base, []), 1, kept=True)
    return audit.report(PROGRAM, [many, alone[base]], 0.0)


def test_each_right_program_says_what_has_to_be_seen():
    assert {path.stem for path in audit_programs.RIGHT} == set(SEEN)
    assert len(SEEN) >= 15
    assert len(audit_programs.FAULTS) >= 20


@pytest.mark.parametrize("base", [path.stem for path in audit_programs.RIGHT])
def test_nothing_is_wrong_with_a_right_program(watch, alone, base):
    found = report(watch, alone, base, audit_programs.edited(base, []))
    assert found.ok, found
    right = {f.id for f in found.findings if f.verdict == "right"}
    assert set(SEEN[base].split()) <= right, found


@pytest.mark.parametrize(
    "fault", drawn(audit_programs.FAULTS), ids=lambda fault: fault["name"]
)
def test_a_fault_is_found_and_no_other(watch, alone, fault):
    text = audit_programs.edited(fault["base"], fault["edits"])
    hangs = "waiting" in fault["wrong"]
    found = report(watch, alone, fault["base"], text, hangs)
    assert sorted(f.id for f in found.wrong) == sorted(fault["wrong"]), found
    for finding in found.wrong:
        if finding.where:
            name, _, line = finding.where.rpartition(":")
            assert name == PROGRAM
            assert 1 <= int(line) <= len(text.splitlines())


def test_what_is_seen_until_the_time_is_up_is_judged(watch):
    text = audit_programs.edited("by_hand", [["range(8)", "range(10**9)"]])
    run = watch(text, 2, 15.0)
    assert run.outcome == judge.TIME_UP
    assert not [p for p in psutil.process_iter(["cmdline"]) if _is_of(p, PROGRAM)]
    if run.trained:
        found = audit.report(PROGRAM, [run], 0.0)
        assert found.ok, found
        assert "The time limit ended the program" in found.notes[0]
    else:  # on a very busy machine
        with pytest.raises(course.CourseError, match="when its time was over"):
            audit.report(PROGRAM, [run], 0.0)


def _is_of(process: psutil.Process, name: str) -> bool:
    return any(
        name in word and str(Path.cwd()) in word
        for word in process.info["cmdline"] or ()
    )


def test_a_program_that_fails_before_it_trains_can_not_be_judged(watch):
    text = audit_programs.edited("by_hand", [["rng.normal(size=(80, 4))", "(1 / 0)"]])
    with pytest.raises(course.CourseError, match=r"ZeroDivisionError.*program\.py:1\d"):
        audit.report(PROGRAM, [watch(text, 2)], 0.0)


# ------------------------------------------------------------ without running anything


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("print(1)", "neither Horovod nor a strategy"),
        ("import tensorflow as tf\ntf.distribute.TPUStrategy()", "can't watch"),
        ("def", "not valid Python"),
    ],
)
def test_what_is_not_distributed_is_refused(tmp_path, text, says):
    path = tmp_path / PROGRAM
    path.write_text(text)
    with pytest.raises(course.CourseError, match=says):
        audit.audit(path)


def test_one_worker_is_refused(tmp_path):
    with pytest.raises(course.CourseError, match="2 or more"):
        audit.audit(tmp_path / PROGRAM, workers=1)


def test_a_program_may_have_its_distribution_in_a_module(tmp_path):
    (tmp_path / "team.py").write_text("import horovod.tensorflow as hvd")
    (tmp_path / PROGRAM).write_text("from team import hvd")
    assert audit.kind_of(tmp_path / PROGRAM) == audit.HOROVOD


def test_of_very_much_output_both_ends_are_kept():
    flood = [sys.executable, "-c", "print('a' + 'x' * 10**7 + 'z')"]
    with subprocess.Popen(flood, stdout=subprocess.PIPE) as process:
        output = audit._Output(process.stdout)
        output.join(60)
    assert len(output.text) == 2 * audit.MOST_OUTPUT
    assert re.fullmatch("ax+z", output.text.strip())


# ------------------------------------------------------------ what is told of reports


def of_reports(*processes: list[dict], kind: str = audit.HOROVOD) -> judge.Watched:
    """A run of which each process has reported these events."""
    events = [
        [{"time": float(i), **event} for i, event in enumerate(reports)]
        for reports in processes
    ]
    stacks = [""] * len(processes)
    return judge.Watched(kind, len(processes), judge.ENDED, "", 1.0, events, stacks)


def answer(name: str, *processes: list[dict]) -> tuple:
    return judge.QUESTIONS[name][1](of_reports(*processes), None)


def the_end(**facts) -> dict:
    return {"what": "end", "size": 2, "gpus": [], "all_gpus": 0, "cuda": None, **facts}


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        ({"size": None}, {"size": None}, "wrong"),
        ({"size": 1}, {"size": 1}, "wrong"),
        ({"size": 2}, {"size": 2}, "right"),
    ],
)
def test_who_is_no_team_is_told(first, second, verdict):
    ends = [the_end(**first)], [the_end(**second)]
    assert answer("together", *ends)[0] == verdict


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        ({"all_gpus": 2, "gpus": ["GPU:0", "GPU:1"]}, {"gpus": ["GPU:1"]}, "wrong"),
        ({"all_gpus": 2, "gpus": ["GPU:0"]}, {"gpus": ["GPU:1"]}, "right"),
        (
            {"all_gpus": 1, "gpus": ["GPU:0"], "cuda": "0"},
            {"gpus": ["GPU:0"], "cuda": "1"},
            "right",
        ),
        ({}, {}, "can't be seen"),
    ],
)
def test_who_shares_a_gpu_is_told(first, second, verdict):
    ends = [the_end(**first)], [the_end(**second)]
    assert answer("devices", *ends)[0] == verdict


@pytest.mark.parametrize(
    ("own_step", "alone", "verdict"),
    [
        (False, 1.0, "right"),  # Keras divides its own loss
        (True, 2.0, "right"),  # a train_step has divided it by two
        (True, 1.0, "wrong"),
        (True, 1.4, "can't be seen"),
    ],
)
def test_a_strategy_s_sum_is_of_a_loss_that_somebody_divides(own_step, alone, verdict):
    """alone: the loss on one worker, where it is 1 on each of two."""

    def trains(own: list[float], loss: float) -> list[dict]:
        common = {"group": 0, "update": 1, "replica": 0, "where": None}
        local = {"what": "local", "loss": loss, "sketch": own, "weights": [1.0, 1.0]}
        applied = {"what": "applied", "rate": 0.1, "reduced": 1.0, "sketch": [1.0, 1.0]}
        fit = {"what": "fit", "own_step": own_step, "where": None}
        return [fit, local | common, applied | common]

    many = of_reports(
        trains([1.0, 0.0], 1.0), trains([0.0, 1.0], 1.0), kind=audit.TASKS
    )
    one = of_reports(trains([1.0, 1.0], alone), kind=audit.TASKS)
    assert judge.gradients(many, one)[0] == verdict


@pytest.mark.parametrize(
    ("second", "asks", "verdict"),
    [(0.5, False, "right"), (0.6, False, "wrong"), (0.6, True, "right")],
)
def test_who_asks_the_others_may_read_what_is_its_own(second, asks, verdict):
    def reads(value: float) -> dict:
        return {
            "what": "metrics",
            "epoch": 0,
            "callback": "Stop",
            "made": None,
            "read": {"loss": value},
            "decides": True,
            "asks": asks,
        }

    assert answer("metrics", [reads(0.5)], [reads(second)])[0] == verdict


@pytest.mark.parametrize(
    ("hows", "verdict"),
    [
        (("written", None), "right"),
        (("written", "written"), "wrong"),
        (("appended", "appended"), "can't be seen"),
    ],
)
def test_who_writes_what_others_write_is_told(hows, verdict):
    reports = [
        [{"what": "file", "path": "/a/b", "how": how, "by": "p.py:1"}] if how else []
        for how in hows
    ]
    assert answer("files", *reports)[0] == verdict


# ------------------------------------------------------------ the command, in earnest


def test_the_command_runs_a_program_as_it_is(tmp_path, monkeypatch):
    """In a folder with a module `utils` of its own, without the server."""
    (tmp_path / "utils.py").write_text("import horovod.tensorflow as hvd\n")
    old = "import horovod.tensorflow as hvd\n"
    text = audit_programs.edited("by_hand", [[old, "from utils import hvd\n"]])
    (tmp_path / PROGRAM).write_text(text)
    command = [sys.executable, "-m", "utils.cli", "audit", "--quick", "--json"]
    command = [str(Path(sys.executable).with_name("course")), *command[3:]]
    result = subprocess.run(
        [*command, PROGRAM], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result
    found = json.loads(result.stdout)
    assert found["ok"]
    verdicts = {finding["id"]: finding["verdict"] for finding in found["findings"]}
    assert verdicts["start"] == verdicts["end"] == "right"
    assert sorted(os.listdir(tmp_path)) == [PROGRAM, "utils.py"]


def test_the_command_refuses_with_status_2(tmp_path, monkeypatch):
    (tmp_path / PROGRAM).write_text("print(1)")
    runner = typer.testing.CliRunner()
    result = runner.invoke(cli.app, ["audit", str(tmp_path / PROGRAM)])
    assert isinstance(result.exception, course.CourseError)
