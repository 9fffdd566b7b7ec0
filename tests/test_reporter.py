"""What a worker reports, whichever thread it is in, and whatever is replaced."""

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from distcheck import evidence
from distcheck.recorder.audit.auditor import Auditor
from utils.checking.recorders.tasks import TaskRecorder


class Library:
    def call(self):
        return "library"


@pytest.fixture
def library(monkeypatch):
    """A class whose method is as it was, after the test."""
    monkeypatch.setattr(Library, "call", Library.call)
    return Library


@pytest.fixture
def recorder(tmp_path, library):
    """One that has replaced a method of the library twice, as some recorders do."""
    recorder = TaskRecorder(tmp_path, 0, "program.py")
    for _ in range(2):
        recorder.replace(library, "call", lambda original: lambda own: original(own))
    return recorder


def reports_of(recorder) -> list[dict]:
    return evidence.read_all(recorder.folder / "rank.0.jsonl", TaskRecorder.schema)


def replaced(recorder) -> list[str]:
    """What its report says at the end of the program that has been replaced."""
    recorder.report_replaced()
    reported = reports_of(recorder)
    return [event["replaced"] for event in reported if event["what"] == "tampered"]


def test_a_program_that_uses_and_subclasses_a_library_has_replaced_nothing(
    recorder, library
):
    class Own(library):
        def call(self):
            return f"own {super().call()}"

    assert Own().call() == "own library"
    assert json.loads(json.dumps(1)) == 1
    assert replaced(recorder) == []


def test_a_function_that_a_program_replaces_is_reported(recorder, library):
    original = library.call
    library.call = lambda own: original(own)
    assert replaced(recorder) == ["Library.call"]


def test_a_function_that_a_program_deletes_is_reported(recorder, library):
    del library.call
    assert replaced(recorder) == ["Library.call"]


@pytest.mark.parametrize(("owner", "name"), [(json, "dumps"), (os, "write")])
def test_what_a_report_is_written_with_can_be_replaced_and_it_says_so(
    recorder, monkeypatch, owner, name
):
    monkeypatch.setattr(owner, name, lambda *args, **kwargs: "{}")
    assert replaced(recorder) == [f"{owner.__name__}.{name}"]


def test_a_clock_that_a_program_turns_back_is_its_own(recorder, monkeypatch):
    monkeypatch.setattr(time, "monotonic", lambda: -1.0)
    recorder.event("orders", name="join")
    assert replaced(recorder) == []
    (event,) = reports_of(recorder)
    assert event["time"] > 0


def test_several_threads_report_at_once(tmp_path):
    """As those of a chief do, one for each of its workers."""
    recorder = TaskRecorder(tmp_path, 0, "program.py")
    images, weights = np.zeros((4, 28, 28), np.uint8), np.ones(10_000, np.float32)

    def train(_) -> None:
        recorder._trains(1, images, weights)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(train, range(200)))
    assert replaced(recorder) == []
    assert [event["what"] for event in reports_of(recorder)] == ["trains"] * 200
    for when in ("first", "last"):
        kept = evidence.array(tmp_path / f"rank.0.weights.{when}.npy")
        assert np.array_equal(kept, weights)


def in_a_child(what) -> int:
    """Call `what` in a forked process; return the status with which that ends."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            what()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_child_that_the_program_forks_reports_nothing(recorder):
    recorder.event("started", pid=1)
    recorder.keep("weights.first", [np.ones(3)])

    def report():
        recorder.event("started", pid=2)
        recorder.keep("weights.first", [np.zeros(3)])

    with recorder._keeping:  # which another thread may hold when the program forks
        assert in_a_child(report) == 0
    assert [event["pid"] for event in reports_of(recorder)] == [1]
    assert np.load(recorder.folder / "rank.0.weights.first.npy").tolist() == [1, 1, 1]


@pytest.fixture
def auditor(tmp_path, monkeypatch):
    """An audit's, for a program in `tmp_path`, which is where the test is, too."""
    (tmp_path / "reports").mkdir()
    monkeypatch.chdir(tmp_path)
    made = Auditor(tmp_path / "reports", 0, str(tmp_path / "train.py"))
    monkeypatch.setattr(made, "line", lambda: "train.py:1")
    return made


def files_of(auditor) -> list[str]:
    lines = Path(auditor.folder, "rank.0.jsonl").read_text().splitlines()
    return [json.loads(line)["path"] for line in lines]


def test_an_audit_hears_nothing_of_a_child_either(auditor):
    assert in_a_child(lambda: auditor.files.written("child.txt", "written")) == 0
    auditor.files.written("parent.txt", "written")
    assert files_of(auditor) == [os.path.abspath("parent.txt")]


def test_an_audit_knows_files_by_any_kind_of_path(auditor, tmp_path, monkeypatch):
    paths = ["a", b"b", tmp_path / "c", "dev/d", "/dev/shm/e"]
    for path in (*paths, "/dev/null", "/proc/self/comm"):
        auditor.files.written(path, "written")
    found = [os.path.realpath(os.fsdecode(path)) for path in paths]
    assert files_of(auditor) == found


def test_an_audit_stands_a_working_directory_that_is_gone(auditor, tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    auditor.files.written("a", "written")
    auditor.files.written(tmp_path / "b", "written")
    assert files_of(auditor) == [str(tmp_path.resolve() / "b")]


def test_an_array_that_nobody_declares_is_not_kept(recorder):
    with pytest.raises(ValueError, match=r"TaskRecorder declares no array 'start\.0'"):
        recorder.keep("start.0", [np.ones(3)])
    assert list(recorder.folder.glob("*.npy")) == []
