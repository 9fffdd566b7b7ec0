"""tests/soak.py: its order, its detectors with leaks planted for them, some rounds."""

import contextlib
import ctypes
import http.server
import itertools
import os
import re
import shutil
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import pytest
import soak
from processes import empty_course

from utils.base import files

MARK = "a test's"


@pytest.fixture
def folder(tmp_path):
    with empty_course(tmp_path):
        yield tmp_path


# --- The order ------------------------------------------------------------------------


def test_a_seed_has_always_the_same_rounds_and_another_seed_has_others():
    rounds = [soak.plan(3, number) for number in range(1, 60)]
    assert rounds == [soak.plan(3, number) for number in range(1, 60)]
    assert rounds != [soak.plan(4, number) for number in range(1, 60)]
    # Also for a Python that starts anew: nothing hangs on its hashes.
    code = "import soak; print([soak.plan(3, n) for n in range(1, 60)])"
    surroundings = {**os.environ, "PYTHONHASHSEED": "7"}
    again = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parent,
        env=surroundings,
        capture_output=True,
        text=True,
    )
    assert again.stdout.strip() == str(rounds)


def test_every_action_comes_before_any_comes_again():
    count = len(soak.ACTIONS)
    for block in range(3):
        numbers = range(1 + block * count, 1 + (block + 1) * count)
        assert {soak.plan(1, n).action for n in numbers} == set(soak.ACTIONS)


# --- The detectors --------------------------------------------------------------------


@contextlib.contextmanager
def a_process():
    surroundings = {**os.environ, soak.MARK: MARK}
    nap = [sys.executable, "-c", "import time; time.sleep(100)"]
    process = subprocess.Popen(nap, env=surroundings, start_new_session=True)
    try:
        yield f"process {process.pid}: .*sleep"
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def a_dead_process():
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    try:
        yield f"process {process.pid}"
    finally:
        process.wait()


@contextlib.contextmanager
def a_port_of_ours():
    handler = http.server.BaseHTTPRequestHandler
    with http.server.HTTPServer(("127.0.0.1", 0), handler) as server:
        yield f"port {server.server_port}, "


@contextlib.contextmanager
def a_port_of_another():
    code = (
        "import socket, time; s = socket.create_server(('127.0.0.1', 0)); "
        "print(s.getsockname()[1], flush=True); time.sleep(100)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, soak.MARK: MARK},
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            port = int(process.stdout.readline())
            yield f"port {port}, on which process {process.pid} listens"
        finally:
            process.kill()


def a_file(parent, name):
    @contextlib.contextmanager
    def plant():
        if not Path(parent).is_dir():
            pytest.skip(f"there is no {parent} here")
        path = Path(parent, name.format(uuid.uuid4().hex))
        path.touch()
        try:
            yield f"file {path}"
        finally:
            path.unlink()

    return plant


@contextlib.contextmanager
def a_segment():
    if not Path("/proc/sysvipc/shm").exists():
        pytest.skip("the System V segments are not listed here")
    libc = ctypes.CDLL(None, use_errno=True)
    number = libc.shmget(0, 4096, 0o600)  # IPC_PRIVATE
    assert number >= 0
    try:
        yield f"System V shm segment {number}"
    finally:
        libc.shmctl(number, 0, None)  # IPC_RMID


@contextlib.contextmanager
def a_thread():
    over = threading.Event()
    thread = threading.Thread(target=over.wait, name="left over")
    thread.start()
    try:
        yield "thread left over"
    finally:
        over.set()
        thread.join()


@contextlib.contextmanager
def an_open_file():
    if not Path("/proc/self/fd").exists():
        pytest.skip("the open files are not listed here")
    with Path(__file__).open():
        yield f"open file {__file__}"


LEAKS = {
    "process": a_process,
    "dead process": a_dead_process,
    "port": a_port_of_ours,
    "port of another": a_port_of_another,
    "shared memory": a_file("/dev/shm", "soak-{}"),
    "scratch folder": a_file("/tmp", "course-0-{}"),
    "Open MPI's files": a_file("/tmp", "ompi.{}"),
    "TensorFlow's files": a_file("/tmp", "__autograph_generated_file{}.py"),
    "segment": a_segment,
    "thread": a_thread,
    "open file": an_open_file,
}


@pytest.mark.parametrize("leak", LEAKS)
def test_a_leak_is_seen_and_is_not_there_before_and_after(leak):
    def seen(sentence):
        return any(re.match(sentence, trace) for trace in soak.traces(MARK))

    with LEAKS[leak]() as sentence:
        assert seen(sentence)
    assert not seen(sentence)


def test_what_is_there_before_is_not_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(soak, "SETTLE", 0)
    (tmp_path / "old").touch()
    before = soak.traces(MARK, tmp_path)
    (tmp_path / "new").touch()
    traces = soak.left_behind(before, MARK, tmp_path / "place", tmp_path)
    assert traces == [f"file {tmp_path / 'new'}"]


def test_what_goes_while_one_looks_is_not_an_error(tmp_path):
    looked = threading.Event()

    def come_and_go():
        while not looked.is_set():
            (tmp_path / "a" / "b" / "c").mkdir(parents=True)
            shutil.rmtree(tmp_path / "a")

    other = threading.Thread(target=come_and_go)
    other.start()
    try:
        for _ in range(2000):
            assert soak.halves(tmp_path) == set()
    finally:
        looked.set()
        other.join()


@pytest.mark.parametrize("name", ["weights", "deep/x_train.gz"])
def test_a_half_written_file_is_left_behind(tmp_path, monkeypatch, name):
    monkeypatch.setattr(soak, "SETTLE", 0)
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    before = soak.traces(MARK)
    with files.whole(path):
        (half,) = path.parent.iterdir()
        assert f"file {half}" in soak.left_behind(before, MARK, tmp_path)
    assert soak.left_behind(before, MARK, tmp_path) == []


def test_another_report_than_expected_is_wrong():
    report = {"status": 1, "why": "rank 1 of 2 failed"}
    assert soak.expect(report, 1, "rank 1") == "rank 1"
    assert soak.expect(report, None) == "status 1"
    for status, word in ((0, "rank 1"), (1, "rank 0"), (124, "rank 1")):
        with pytest.raises(soak.Wrong, match="rank 1 of 2 failed"):
            soak.expect(report, status, word)
    with pytest.raises(soak.Wrong):
        soak.expect({"status": 0, "why": ""}, None)


# --- Rounds ---------------------------------------------------------------------------


def test_a_fault_is_told_with_the_round_that_brings_it_back(folder, alone, monkeypatch):
    marks = []

    def leak(place, turn):
        marks.append(os.environ[soak.MARK])
        Path(os.environ["TMPDIR"], "forgotten").touch()
        subprocess.Popen(["sleep", "100"], start_new_session=True)
        raise soak.Wrong(f"rank {turn.victim} was not named")

    monkeypatch.setattr(soak, "ACTIONS", {"leak": leak})
    monkeypatch.setattr(soak, "SETTLE", 1)
    messages = []
    report = soak.soak(minutes=1, seed=8, only=5, say=messages.append)
    assert not report.ok
    assert report.rounds == [soak.plan(8, 5)]
    assert "WRONG; LEFT BEHIND" in messages[1]
    lines = (report.folder / "faults.txt").read_text().splitlines()
    assert len(lines) == 3
    command = "python tests/soak.py --seed 8 --round 5   # "
    assert all(line.startswith(command) for line in lines)
    for what in ("was not named", "process .*sleep 100", "forgotten"):
        assert any(re.search(what, line) for line in lines)
    assert (report.folder / "5" / "program.py").exists()
    assert not soak.marked(marks[0])


def test_the_time_is_up_between_two_rounds(folder, monkeypatch):
    monkeypatch.setattr(soak, "ACTIONS", {"nothing": lambda place, turn: "done"})
    # Seconds that pass by looks at the clock: a busy machine is no reason to fail.
    looks = itertools.count()
    monkeypatch.setattr(soak.time, "monotonic", lambda: next(looks) / 10)
    messages = []
    report = soak.soak(minutes=0.05, seed=1, say=messages.append)
    assert report.ok
    assert len(messages) == len(report.rounds) + 1 > 1
    assert [turn.number for turn in report.rounds] == list(range(1, len(messages)))
    assert not report.folder.exists()
    assert not soak.soak(minutes=0, say=messages.append).ok


def test_ctrl_c_ends_all_and_the_verdict_is_on_what_was_done(folder, monkeypatch):
    started = []

    def stop(place, turn):
        if turn.number == 2:
            subprocess.Popen(["sleep", "100"], start_new_session=True)
            started.extend(soak.marked(os.environ[soak.MARK]))
            raise KeyboardInterrupt
        return "done"

    monkeypatch.setattr(soak, "ACTIONS", {"stop": stop})
    report = soak.soak(minutes=1, seed=8, say=lambda line: None)
    assert report.ok
    assert len(report.rounds) == 1
    assert len(started) == 1
    assert not started[0].is_running()


def round_of(action, fits=lambda turn: True):
    """The first round of seed 1 that does this."""
    rounds = (soak.plan(1, number) for number in range(1, 1_000))
    return next(turn for turn in rounds if turn.action == action and fits(turn))


@pytest.fixture
def alone(monkeypatch):
    """Other tests may run at the same time, and have files in the shared folders; the
    detectors of those are tested above, and `make soak` uses them."""
    monkeypatch.setattr(soak, "SHARED", {})


@pytest.mark.slow
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("action", "twice"),
    [
        ("interrupt", True),
        ("stop in the kernel", False),
        ("kill a worker", False),
        ("kill the owner", False),
        ("fill the disk", True),
    ],
)
def test_a_round_for_real(folder, action, twice):
    turn = round_of(action, lambda turn: turn.twice == twice)
    report = soak.soak(minutes=2, seed=1, only=turn.number, say=lambda line: None)
    assert report.ok, str(report)


@pytest.mark.slow
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("fault", ["full disk", "killed", "silence"])
def test_a_download_for_real(folder, fault):
    place = sorted(soak.FAULTS).index(fault)
    turn = round_of(
        "download", lambda turn: int(turn.moment * len(soak.FAULTS)) == place
    )
    report = soak.soak(minutes=2, seed=1, only=turn.number, say=lambda line: None)
    assert report.ok, str(report)
