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
from distcheck.lab import forked, outcomes, running
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

    def __init__(self, recorded: bool = True, served: bool = False):
        self.now = 1000.0
        self.waits: dict[int, str | None] = {0: None, 1: None}
        self.awake, self.computed = {0, 1}, {0: 0.0, 1: 0.0}
        self.mpirun, self.gone, self.printed, self.reported = None, 0, 0, 0
        self.watch = outcomes.Watch(2, recorded, served, MAY_COMPUTE, self.now)
        self.watch.looked = self.now

    def outcome(self, seconds: float, at_work=(0.0, 0.0), reports=False) -> str | None:
        """How it ends within so many seconds, of which each rank computes a part."""
        end = self.now + seconds
        while self.now < end:
            self.now += outcomes.LOOK_SECONDS
            for rank, share in enumerate(at_work):
                self.computed[rank] += share * outcomes.LOOK_SECONDS
            self.reported += 100 * reports
            seen = self.mpirun, self.gone, self.printed
            found = self.watch.ended(self.now, self.waits, *seen)
            assert self.watch.is_due(self.now)
            did = self.reported, self.computed.copy(), self.awake
            found = found or self.watch.gets_nowhere(self.now, self.waits, *did)
            if found:
                return found
        return None


@pytest.fixture
def workers():
    return Workers()


def test_who_gets_nothing_of_the_machine_is_not_hung_but_its_time_is_up(workers):
    assert workers.outcome(lab.TIME_LIMIT - 10, at_work=(0.02, 0.02)) is None
    assert workers.outcome(20) == lab.TIME_UP


def test_who_computes_without_a_report_hangs(workers):
    assert workers.outcome(MAY_COMPUTE - 2, at_work=(1, 0)) is None
    assert workers.outcome(4, at_work=(1, 0)) == lab.HUNG


def test_who_sleeps_hangs_later(workers):
    workers.awake = set()
    sleeping = outcomes.SLEEPING_FACTOR * MAY_COMPUTE
    assert workers.outcome(sleeping - 2) is None
    assert workers.outcome(4) == lab.HUNG


def test_who_reports_goes_on_until_it_has_computed_very_much(workers):
    limit = outcomes.COMPUTING_LIMIT
    assert workers.outcome(limit - 2, at_work=(1, 0), reports=True) is None
    assert workers.outcome(4, at_work=(1, 0), reports=True) == lab.HUNG


def test_who_waits_is_not_what_hangs(workers):
    """MPI asks all the time while it waits for a worker that reads from a slow disk."""
    workers.waits[0] = "a"
    assert workers.outcome(4 * MAY_COMPUTE, at_work=(1, 0)) is None
    workers.awake = {0}
    assert workers.outcome(4 * MAY_COMPUTE) == lab.HUNG


def test_who_waits_for_different_things_is_in_a_deadlock_once_all_sleep(workers):
    """Before, one of them may only not have come to say that it has got an answer."""
    workers.waits = {0: "a", 1: "b"}
    assert workers.outcome(10 * outcomes.DEADLOCK_AFTER) is None
    workers.awake = set()
    assert workers.outcome(outcomes.DEADLOCK_AFTER) is None
    assert workers.outcome(2) == lab.DEADLOCK


def test_who_waits_for_the_same_is_in_none(workers):
    workers.waits, workers.awake = {0: "a", 1: "a"}, set()
    assert workers.outcome(5 * outcomes.DEADLOCK_AFTER) is None


def test_an_mpirun_that_starts_too_few_is_no_program_that_hangs(workers):
    del workers.waits[1], workers.computed[1]
    workers.awake = set()
    sleeping = outcomes.SLEEPING_FACTOR * MAY_COMPUTE
    assert workers.outcome(sleeping + 2, at_work=(0.0,)) == lab.FAILED


def test_all_have_to_come_to_the_end(workers):
    workers.waits[0] = outcomes.AT_THE_END
    assert workers.outcome(2) is None
    workers.waits[1] = outcomes.AT_THE_END
    assert workers.outcome(1) == lab.ENDED


def test_beside_servers_rank_0_alone_has_to_end():
    workers = Workers(served=True)
    workers.waits[1] = outcomes.AT_THE_END
    assert workers.outcome(2) is None
    workers.waits = {0: outcomes.AT_THE_END, 1: None}
    assert workers.outcome(1) == lab.ENDED


@pytest.mark.parametrize(("mpirun", "gone"), [(None, 1), (0, 0), (1, 0)])
def test_who_is_left_when_a_worker_fails_has_a_second_to_say_why(workers, mpirun, gone):
    workers.mpirun, workers.gone = mpirun, gone
    assert workers.outcome(outcomes.FAILING) is None
    assert workers.outcome(1) == lab.FAILED


def test_when_no_worker_is_left_nobody_is_waited_for(workers):
    workers.gone = 2
    assert workers.outcome(outcomes.LOOK_SECONDS) == lab.FAILED


@pytest.mark.parametrize(("status", "outcome"), [(0, lab.ENDED), (3, lab.FAILED)])
def test_of_a_program_that_is_not_recorded_mpirun_tells_the_end(status, outcome):
    workers = Workers(recorded=False)
    workers.gone = 2  # the last worker ends a little before mpirun
    assert workers.outcome(2) is None
    workers.mpirun = status
    assert workers.outcome(1) == outcome


def test_who_prints_too_much_is_ended(workers):
    workers.printed = lab.OUTPUT
    assert workers.outcome(2) is None
    workers.printed += 1
    assert workers.outcome(1) == lab.FLOOD


# ------------------------------------------------------------ what is seen


@pytest.fixture
def two(tmp_path):
    """The scenario "two", without workers yet."""
    assigned = forked.Assignment(
        *(SCENARIOS["two"], HorovodRecorder, None, tmp_path, tmp_path, "x.py", [], True)
    )
    watch = outcomes.Watch(2, recorded=True, served=False, may_compute=MAY_COMPUTE)
    return running.Running(assigned, SimpleNamespace(poll=lambda: None), [], watch)


def report(folder: Path, rank: int, **facts) -> None:
    """Let the last event of a rank have these facts."""
    event = {"what": "wrapped", "time": 1.0, "line": 3} | facts
    with (folder / f"rank.{rank}.jsonl").open("a") as file:
        file.write(json.dumps(event) + "\n")


def test_what_a_worker_waits_for_is_in_its_last_event(two, tmp_path):
    two.workers = {rank: running.Worker(os.getpid(), None) for rank in range(3)}
    report(tmp_path, 0)
    facts = {"op": "allreduce", "root": None, "elements": 1, "given": None}
    report(tmp_path, 1)
    report(tmp_path, 1, what="collective_start", name="a", **facts)
    report(tmp_path, 2, what="ended", cpu=[1.0, 0.0])
    waits = {0: None, 1: "allreduce a 1", 2: outcomes.AT_THE_END}
    assert two.waits() == waits


def test_what_the_workers_do_decides_how_a_scenario_ends(two, tmp_path, monkeypatch):
    two.workers = {rank: running.Worker(os.getpid(), None) for rank in (0, 1)}
    for rank in (0, 1):
        report(tmp_path, rank)
    now = two.watch.started
    computed = {"seconds": 0.0}
    monkeypatch.setattr(running, "family", lambda pid: [pid])
    monkeypatch.setattr(supervise, "awake", lambda pid: True)
    monkeypatch.setattr(running, "computed_by", lambda pid: computed["seconds"])
    for seconds, found in ((1, None), (MAY_COMPUTE, None), (MAY_COMPUTE + 2, lab.HUNG)):
        now += 1
        monkeypatch.setattr(running.time, "monotonic", lambda now=now: now)
        computed["seconds"] = float(seconds)
        assert two.outcome() == found
    (tmp_path / "rank.1.err").write_bytes(bytes(lab.OUTPUT + 1))
    assert two.outcome() == lab.FLOOD


@pytest.mark.parametrize("awake", [True, False])
def test_who_sleeps_is_seen_to_sleep(two, monkeypatch, awake):
    two.workers = {rank: running.Worker(os.getpid(), None) for rank in (0, 1)}
    # This process has run other tests before, and may have computed for minutes.
    monkeypatch.setattr(running, "computed_by", lambda process: 0.0)
    monkeypatch.setattr(supervise, "awake", lambda process: awake)
    two.watch.looked -= 1
    assert two.outcome() is None
    assert two.watch.asleep == (0.0 if awake else outcomes.LOOK_SECONDS)


def test_a_worker_that_is_ended_with_its_messenger_was_not_killed_from_outside(two):
    """Nor has it a status of its own, by which it would have failed."""
    ours, messenger = socket.socketpair()
    ours.setblocking(False)
    sleeper = subprocess.Popen(["sleep", "1000"])
    two.workers = {0: running.Worker(sleeper.pid, ours)}
    two.tend()
    assert two.living()
    messenger.close()
    for _ in range(2):
        two.tend()
        assert two.workers[0].status is None
        assert not two.living()
    assert not psutil.pid_exists(sleeper.pid)
    sleeper.wait()


def test_what_a_process_does_is_seen():
    (me,) = [one for one in running.family(os.getpid()) if one.pid == os.getpid()]
    before = running.computed_by(me)
    while running.computed_by(me) < before + 0.05:
        assert supervise.awake(me)
    assert running.family(2**22 + 1) == []


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


def test_a_folder_that_goes_while_it_is_looked_at_is_no_failure(tmp_path, monkeypatch):
    """As that of a checkpoint's parts, which another worker removes at the end."""
    (tmp_path / "parts").mkdir()
    (tmp_path / "log.csv").write_text("loss")
    really = os.scandir

    def scandir(path):
        if Path(path).name == "parts":
            os.rmdir(path)
        return really(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert files_in(tmp_path).keys() == {"log.csv"}
    assert not (tmp_path / "parts").exists()


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
