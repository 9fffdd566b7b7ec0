"""Asking living workers where they are (running/stacks.py), and comparing what they
had (running/fingerprint.py). tests/test_clinic.py sees both in trainings.
"""

import contextlib
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from processes import assert_none_is_left, empty_course

from distcheck import errors
from utils.running import fingerprint, launch, stacks, watch
from utils.running.stacks import Frame, Stack

# Rank 0 waits in a function, rank 1 below another one; then all end by themselves, and
# are asked once more while they do.
PROGRAM = """\
import os, sys, time
from pathlib import Path
rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
def waits():
    while not Path("end").exists():
        time.sleep(0.02)
def works():
    waits()
Path(f"ready-{rank}").touch()
waits() if rank == 0 else works()
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "still.py").write_text(PROGRAM)
    with empty_course(tmp_path):
        yield tmp_path
    assert_none_is_left(tmp_path)


def test_all_workers_say_where_they_are_and_go_on(folder):
    by_rank, tables = [], []

    def attend(run):
        if len(list(folder.glob("ready-*"))) == 2 and not by_rank:
            by_rank.extend(stacks.of_run(run.folder))
            tables.append(repr(stacks.newest()))
            (folder / "end").touch()

    run = launch.run("still.py", workers=2, quiet=True, time_limit=60, attend=attend)
    assert run.status == 0
    assert [at_rank.rank for at_rank in by_rank] == [0, 1]
    functions = [[f.function for f in at_rank.frames] for at_rank in by_rank]
    assert functions[0][:2] == ["waits", "<module>"]
    assert functions[1][:3] == ["waits", "works", "<module>"]
    lines = tables[0].splitlines()[1:]
    assert len(lines) == 2
    for rank, line in enumerate(lines):
        assert line.startswith(f"{rank} | still.py, line 6 | waits")
    with pytest.raises(errors.UserError, match="no worker of this run is alive"):
        stacks.of_run(run.folder)
    with pytest.raises(errors.UserError, match="no run is on now"):
        stacks.newest()


def test_the_signal_ends_nobody_who_is_about_to_end(folder):
    (folder / "still.py").write_text(
        "import atexit, os\n"
        f"atexit.register(os.kill, os.getpid(), {int(signal.SIGUSR1)})\n"
    )
    assert launch.run("still.py", quiet=True, time_limit=60).status == 0


@pytest.mark.slow
def test_asking_again_and_again_harms_nobody(folder):
    """A program that calls and returns all the time, imports, and fails in between."""
    (folder / "still.py").write_text(
        "import importlib, json, time\n"
        "def deep(n):\n"
        "    return deep(n - 1) + 1 if n else int('no')\n"
        "end = time.monotonic() + 4\n"
        "while time.monotonic() < end:\n"
        "    importlib.reload(json)\n"
        "    exec('def made(): return deep(30)')\n"
        "    try: made()\n"
        "    except ValueError: pass\n"
    )
    answers = []

    def attend(run):
        with contextlib.suppress(errors.UserError):  # not there yet, or not any more
            for _ in range(5):
                answers.append(stacks.of_run(run.folder))

    run = launch.run("still.py", workers=2, quiet=True, time_limit=60, attend=attend)
    assert run.status == 0
    assert len(answers) >= 3
    assert any(at_rank.frames for at_rank in answers[0])


def stack(*calls):
    """Calls, innermost first, as FILE:FUNCTION."""
    frames = (call.split(":") for call in calls)
    return Stack(0, tuple(Frame(file, 1, function) for file, function in frames), 0.0)


@pytest.mark.parametrize(
    ("name", "script"),
    [
        ("still", "still.py"),
        ("still_2", "still.py"),
        ("clinic_13", "clinic_13.py"),
        ("clinic_13_2", "clinic_13.py"),
    ],
)
def test_the_program_is_found_by_the_name_of_the_folder(name, script, monkeypatch):
    folder = Path(f"2026-01-01_00-00-00_{name}")
    monkeypatch.setattr(watch, "newest_run", lambda: folder)
    monkeypatch.setattr(stacks, "of_run", lambda _: [stack(f"/e/{script}:<module>")])
    assert f"{script}, line 1" in repr(stacks.newest())


KERAS = "/lib/tf_keras/src/engine/training.py"


@pytest.mark.parametrize(
    ("calls", "doing"),
    [
        (["/lib/horovod/ops.py:_allreduce", "/lib/horovod/a.py:allreduce"], "Horovod"),
        (["/lib/tensorflow/execute.py:quick_execute", f"{KERAS}:fit"], "fit > in a g"),
        (
            [
                "/lib/horovod/keras/callbacks.py:on_epoch_end",
                f"{KERAS}:on_epoch_end",
                f"{KERAS}:fit",
            ],
            "fit > on_epoch_end > in Horovod",
        ),
        ([f"{KERAS}:_get_iterator", f"{KERAS}:evaluate", f"{KERAS}:fit"], "fit > eval"),
        ([], "no answer"),
        (["/somewhere.py:sleeps"], "sleeps"),
    ],
)
def test_what_it_does_is_told_in_few_words(calls, doing):
    end = ["/home/mine.py:<module>", "/lib/tf_keras/x.py:fit"] if calls else []
    assert doing in stack(*calls, *end).doing("mine.py")


# ------------------------------------------------------------ fingerprints


def noted(folder, *weights, epoch=1):
    (folder / "workers").mkdir(exist_ok=True)
    facts = {"epoch": epoch, "pixels": 1.0, "rate": 0.1, "steps": 3, "seconds": 1.0}
    for rank, digest in enumerate(weights):
        with (folder / "workers" / f"{rank}.prints").open("a") as file:
            file.write(json.dumps({"rank": rank, "weights": digest, **facts}) + "\n")


def test_the_first_epoch_with_different_weights_is_named(tmp_path):
    noted(tmp_path, "a", "b", epoch=0)  # before the broadcast they may differ
    noted(tmp_path, "c", "c", epoch=1)
    assert fingerprint.drifted(fingerprint.of_run(tmp_path)) is None
    noted(tmp_path, "d", "e", epoch=2)
    noted(tmp_path, "f", "f", epoch=3)
    prints = fingerprint.of_run(tmp_path)
    assert fingerprint.drifted(prints) == 2
    lines = repr(fingerprint.table(prints)).splitlines()
    assert lines[1:] == [
        "before | a | b | different",
        "1 | c | c | the same",
        "2 | d | e | different",
        "3 | f | f | the same",
    ]


def test_who_is_behind_is_not_called_the_same(tmp_path):
    noted(tmp_path, "a", "a", epoch=1)
    noted(tmp_path, "b", epoch=2)
    assert "2 | b | not there yet | different" in repr(
        fingerprint.table(fingerprint.of_run(tmp_path))
    )


def test_a_run_without_fingerprints_is_told(folder):
    with pytest.raises(errors.UserError, match="has no fingerprints"):
        fingerprint.of_run(folder)
    with pytest.raises(errors.UserError, match="no run has fingerprints"):
        fingerprint.newest()


def test_a_stranger_with_the_number_of_a_worker_is_left_alone(folder):
    """The signal would end it."""
    run = folder / "logs" / "2026-01-01_00-00-00_still"
    (run / "workers").mkdir(parents=True)
    stranger = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE
    )
    with stranger:
        facts = json.dumps({"pid": stranger.pid})
        (run / "workers" / "0.json").write_text(facts)
        with pytest.raises(errors.UserError, match="no worker of this run is alive"):
            stacks.of_run(run)
        stranger.communicate(b"\n")
    assert stranger.returncode == 0
