"""When the lab takes a scenario for hung, and when not: with workers that are none; and
what a worker finds in its folder."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from distcheck import lab, supervise
from distcheck.lab import forked, server
from distcheck.recorder import interventions
from distcheck.recorder.files import files_in
from distcheck.recorder.horovod import HorovodRecorder
from distcheck.scenarios import SCENARIOS

MAY_COMPUTE = 25.0


class Workers:
    """Those of "two", by what is seen of them; time goes as it is told to.

    waits: for what each does. awake: the ranks that compute, or want to. computed:
    seconds of processor of each.
    """

    def __init__(self, folder):
        self.now, self.waits = 1000.0, [None, None]
        self.awake, self.computed = {0, 1}, [0.0, 0.0]
        self.lab = server.Server.__new__(server.Server)  # without a socket
        self.lab.may_compute = MAY_COMPUTE
        recorder = server.recorder_of(SCENARIOS["two"])
        assigned = forked.Assignment(
            *(SCENARIOS["two"], recorder, None, folder, folder, "x.py", [], True)
        )
        mpirun = SimpleNamespace(poll=lambda: None)
        self.running = server._Running(assigned, mpirun, [])
        for rank in (0, 1):
            self.report(rank)
            self.running.workers[rank] = server._Worker(rank, None)

    def report(self, rank: int) -> None:
        """Let a rank say what it waits for, if for anything."""
        event = {"what": "wrapped", "time": self.now, "line": 3}
        if self.waits[rank] is not None:
            facts = {"op": "allreduce", "root": None, "elements": 1, "given": None}
            event |= {"what": "collective_start", "name": self.waits[rank], **facts}
        path = self.running.assigned.folder / f"rank.{rank}.jsonl"
        with path.open("a") as file:
            file.write(json.dumps(event) + "\n")

    def outcome(self, seconds: float, at_work=(0.0, 0.0), reports=()) -> str | None:
        """How it ends within so many seconds, of which each rank computes a part."""
        end = self.now + seconds
        while self.now < end:
            self.now += server.LOOK_SECONDS
            for rank, share in enumerate(at_work):
                self.computed[rank] += share * server.LOOK_SECONDS
            for rank in reports:
                self.report(rank)
            if found := self.lab._outcome(self.running):
                return found
        return None


@pytest.fixture
def workers(tmp_path, monkeypatch):
    made = Workers(tmp_path)
    monkeypatch.setattr(server.time, "monotonic", lambda: made.now)
    monkeypatch.setattr(server, "_family", lambda pid: [pid])
    monkeypatch.setattr(server, "_computed", lambda pid: made.computed[pid])
    monkeypatch.setattr(supervise, "awake", lambda pid: pid in made.awake)
    made.running.started = made.running.silence.looked = made.now
    return made


def test_who_gets_nothing_of_the_machine_is_not_hung_but_its_time_is_up(workers):
    assert workers.outcome(lab.TIME_LIMIT - 10, at_work=(0.02, 0.02)) is None
    assert workers.outcome(20) == lab.TIME_UP


def test_who_computes_without_a_report_hangs(workers):
    assert workers.outcome(MAY_COMPUTE - 2, at_work=(1, 0)) is None
    assert workers.outcome(4, at_work=(1, 0)) == lab.HUNG


def test_who_sleeps_hangs_later(workers):
    workers.awake = set()
    sleeping = server.SLEEPING_FACTOR * MAY_COMPUTE
    assert workers.outcome(sleeping - 2) is None
    assert workers.outcome(4) == lab.HUNG


def test_who_reports_goes_on_until_it_has_computed_very_much(workers):
    limit = server.COMPUTING_LIMIT
    assert workers.outcome(limit - 2, at_work=(1, 0), reports=[0]) is None
    assert workers.outcome(4, at_work=(1, 0), reports=[0]) == lab.HUNG


def test_who_waits_is_not_what_hangs(workers):
    """MPI asks all the time while it waits for a worker that reads from a slow disk."""
    workers.waits[0] = "a"
    workers.report(0)
    assert workers.outcome(4 * MAY_COMPUTE, at_work=(1, 0)) is None
    workers.awake = {0}
    assert workers.outcome(4 * MAY_COMPUTE) == lab.HUNG


def test_who_waits_for_different_things_is_in_a_deadlock_once_all_sleep(workers):
    """Before, one of them may only not have come to say that it has got an answer."""
    workers.waits = ["a", "b"]
    for rank in (0, 1):
        workers.report(rank)
    assert workers.outcome(10 * server.DEADLOCK_AFTER) is None
    workers.awake = set()
    assert workers.outcome(server.DEADLOCK_AFTER) is None
    assert workers.outcome(2) == lab.DEADLOCK


def test_who_waits_for_the_same_is_in_none(workers):
    workers.waits, workers.awake = ["a", "a"], set()
    for rank in (0, 1):
        workers.report(rank)
    assert workers.outcome(5 * server.DEADLOCK_AFTER) is None


def test_an_mpirun_that_starts_too_few_is_no_program_that_hangs(workers):
    del workers.running.workers[1]
    workers.awake = set()
    assert workers.outcome(server.SLEEPING_FACTOR * MAY_COMPUTE + 2) == lab.FAILED


def test_a_worker_that_is_ended_with_its_messenger_was_not_killed_from_outside(workers):
    """Nor has it a status of its own, by which it would have failed."""
    ours, messenger = socket.socketpair()
    ours.setblocking(False)
    sleeper = subprocess.Popen(["sleep", "1000"])
    workers.running.workers = {0: server._Worker(sleeper.pid, ours)}
    server._tend(workers.running)
    assert workers.running.living()
    messenger.close()
    for _ in range(2):
        server._tend(workers.running)
        assert workers.running.workers[0].status is None
        assert not workers.running.living()
    assert not psutil.pid_exists(sleeper.pid)
    sleeper.wait()


def test_what_a_process_does_is_seen():
    (me,) = [one for one in server._family(os.getpid()) if one.pid == os.getpid()]
    before = server._computed(me)
    while server._computed(me) < before + 0.05:
        assert supervise.awake(me)
    assert server._family(2**22 + 1) == []


def test_who_waits_for_a_disk_is_awake_and_who_sleeps_is_not(tmp_path):
    """As on a disk, a process waits for its child, which opens a pipe before it is
    another program."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    waits = (
        "import os, sys; opens = [(os.POSIX_SPAWN_OPEN, 0, 'pipe', os.O_RDONLY, 0)]; "
        "os.posix_spawn('/bin/true', ['true'], {}, file_actions=opens); "
        "sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", waits], stdin=subprocess.PIPE, cwd=tmp_path
    ) as started:
        process = psutil.Process(started.pid)
        try:
            wait_until(lambda: process.status() == psutil.STATUS_DISK_SLEEP)
            assert supervise.awake(process)
            with pipe.open("r+b", buffering=0):  # which lets the child go on
                wait_until(lambda: process.status() == psutil.STATUS_SLEEPING)
                assert not supervise.awake(process)
        finally:
            for one in (process, *process.children()):
                one.kill()


def wait_until(holds) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_whatever_a_program_leaves_the_next_scenario_has_its_files(
    tmp_path, monkeypatch
):
    """A link that leads nowhere, or a pipe, is no fault of the program's."""
    left = tmp_path / "two" / "rank.0.home"
    (left / "logs").mkdir(parents=True)
    (left / "logs" / "log.csv").write_text("loss")
    (left / "latest").symlink_to("logs/log.csv")
    (left / "whole").symlink_to(left / "logs" / "log.csv")
    (left / "gone").symlink_to("deleted.h5")
    (left / "around").symlink_to(".")
    os.mkfifo(left / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        monkeypatch.chdir(left)  # such a path has to be short
        listener.bind("socket")
    folder = tmp_path / "other options"
    folder.mkdir()
    scenario = SCENARIOS["other options"]
    places = folder, tmp_path / "two", "x.py", [], True
    assigned = forked.Assignment(scenario, None, None, *places)
    forked._enter_home(assigned, 1)
    home = folder / "rank.1.home"
    assert Path.cwd() == home
    assert files_in(home).keys() == {"logs/log.csv", "latest", "whole"}
    names = {path.name for path in home.iterdir()}
    assert names == {"logs", "latest", "whole", "gone", "around"}
    (home / "whole").write_text("other")  # its own, and not the earlier scenario's
    assert (home / "logs" / "log.csv").read_text() == "other"
    assert (left / "logs" / "log.csv").read_text() == "loss"


def test_who_is_given_what_another_rank_wrote_has_not_written(tmp_path):
    """Neither where there was a link, nor where nothing can be given."""
    homes = [tmp_path / f"rank.{rank}.home" for rank in (0, 1)]
    for home in homes:
        home.mkdir()
        (home / "1.h5").write_text("first")
        os.utime(home / "1.h5", ns=(10**18, 10**18))
        (home / "latest").symlink_to("1.h5")
    recorder = HorovodRecorder.__new__(HorovodRecorder)  # without a program
    recorder.folder, recorder.rank, recorder._files = tmp_path, 1, set()
    recorder._before = recorder._there()
    (homes[0] / "2.h5").write_text("second")
    (homes[0] / "latest").unlink()
    (homes[0] / "latest").symlink_to("2.h5")
    (homes[0] / "gone").symlink_to("0.h5")
    os.mkfifo(homes[0] / "pipe")
    interventions.share_files(homes[1], recorder._before)
    recorder.after_epoch()
    assert not recorder._files
    found = {path.name: path.read_text() for path in homes[1].iterdir()}
    assert found == {"1.h5": "first", "2.h5": "second", "latest": "second"}
