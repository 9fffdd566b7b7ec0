"""The process of the lab that has TensorFlow imported, and forks the workers.

    python -m distcheck.lab.server FOLDER

does every job in FOLDER/jobs.json, in each scenario that it asks for. With the name of
a source after it, FOLDER is instead a file that comes to name one folder after the
other: the server prepares the source, does the jobs of each folder, and never ends.

A scenario ends when all workers have come to the end of the program, when one of them
or mpirun has ended before, when one prints too much, when they get nowhere, or when its
time is up. A machine may be slow, and time that passes says little; so what counts is
what the workers do without a report: they compute, or sleep, or would like to compute
and get no processor, which is no fault.
"""

import contextlib
import functools
import gc
import importlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import psutil

from distcheck import events, files, lab, machine, mpi, supervise, tasks, worker
from distcheck.lab import forked
from distcheck.recorder import horovod
from distcheck.recorder.recorder import recorder_of, schema_of
from distcheck.recorder.source import Source
from distcheck.scenarios import Scenario

FAILING = 1.0  # seconds that the other workers have left when one has failed
REQUEST_SECONDS = 60.0  # for a messenger to say what it wants
# Workers that all wait, for different things, are in a deadlock when they have slept
# for so many seconds since the last report.
DEADLOCK_AFTER = 4.0
# Workers hang that have slept for so many times the seconds that they may compute.
SLEEPING_FACTOR = 3
COMPUTING_LIMIT = 150.0  # seconds of processor for a worker, whatever it reports
LOOK_SECONDS = 0.5  # between two looks at what the workers do
END_SECONDS = 5.0  # for what was killed to be gone

# What a worker waits for whose last event is "ended", see `Recorder.wait_for_the_end`.
AT_THE_END = "the end"


@dataclass
class _Worker:
    """A process that was forked. status: None if it lives, or was ended by the lab."""

    pid: int
    messenger: socket.socket
    alive: bool = True
    status: int | None = None


@dataclass
class _Silence:
    """What the workers of a scenario have done since one of them last reported.

    reported: bytes by then. computed: rank -> its seconds of processor by then. asleep:
    seconds for which no worker computed, or wanted to. looked: when that was counted.
    """

    reported: int = -1
    computed: dict[int, float] = field(default_factory=dict)
    asleep: float = 0.0
    looked: float = field(default_factory=time.monotonic)


@dataclass
class _Running:
    """A scenario that is on. scratch: folders that go with it."""

    assigned: forked.Assignment
    mpirun: subprocess.Popen
    scratch: list[str]
    workers: dict[int, _Worker] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)
    failed: float | None = None  # when it was seen that a worker has ended
    silence: _Silence = field(default_factory=_Silence)

    @property
    def size(self) -> int:
        return self.assigned.scenario.size

    def living(self) -> dict[int, _Worker]:
        return {rank: one for rank, one in self.workers.items() if one.alive}

    def waits(self) -> dict[int, str | None]:
        """What each worker waits for, AT_THE_END for nothing more; None: it works."""
        waits: dict[int, str | None] = {}
        for rank in self.workers:
            report = self.assigned.folder / f"rank.{rank}.jsonl"
            last = last_event(report, schema_of(self.assigned.scenario))
            waits[rank] = None
            if last.get("what") == "collective_start":
                waits[rank] = f"{last['op']} {last['name']} {last['elements']}"
            elif last.get("what") == "ended":
                waits[rank] = AT_THE_END
        return waits


class Server:
    """Starts the scenarios, forks their workers, and ends them."""

    def __init__(self, place: Path):
        self.place = place  # the path of a Unix socket has to be short
        self.withdrawn: Path | None = None
        self.door = socket.socket(socket.AF_UNIX)
        self.door.bind(f"{self.place}/door")
        self.door.listen()
        self.door.setblocking(False)
        self.running: dict[str, _Running] = {}
        self.begun = False

    def serve(self, folder: Path) -> None:
        """Do all jobs in `folder`, in order; as many scenarios at a time as the cores
        bear."""
        wanted = json.loads((folder / "jobs.json").read_text())
        self.may_compute = wanted["may_compute"]
        for number, job in enumerate(wanted["jobs"]):
            for name, facts in job["scenarios"].items():
                scenario, place = Scenario(**facts), folder / str(number) / name
                before = place.with_name(scenario.after) if scenario.after else None
                while self._busy(scenario.size) or self._may_write(before):
                    self._poll()
                place.mkdir(parents=True)
                self._start(scenario, place, job)
        while self.running:
            self._poll()

    def stay(self, request: Path) -> None:
        """Do the jobs of each folder that the file `request` names, as it comes."""
        while True:
            self._poll()
            if not request.exists():
                continue
            folder = Path(request.read_text())
            request.unlink()
            self.withdrawn = folder / lab.WITHDRAWN
            with contextlib.suppress(lab.Withdrawn):
                self.serve(folder)
            for running in self.running.values():
                self._end(running, lab.WITHDRAWN)
            self.running.clear()
            self.withdrawn = None
            (folder / lab.SERVED).touch()

    def _may_write(self, folder: Path | None) -> bool:
        """May the programs of the scenario in this folder still write their files?"""
        if folder is None or str(folder) not in self.running:
            return False
        ran = [*folder.glob(f"rank.*.{forked.RAN}")]
        return len(ran) < self.running[str(folder)].size

    def _busy(self, workers: int) -> bool:
        """Would more than two workers have to share a core?

        Two may: half of the time, a worker waits for mpirun or for another worker. But
        not on a crowded machine, where those who wait take time from those who work.
        """
        working = sum(
            running.size - [*running.waits().values()].count(AT_THE_END)
            for running in self.running.values()
        )
        crowded = os.getloadavg()[0] > 3 * machine.cores()
        most = (1 if crowded else 2) * machine.cores()
        return bool(working) and working + workers > most

    def _start(self, scenario: Scenario, folder: Path, job: dict) -> None:
        source = _prepared(job["source"])
        asks = [sys.executable, "-I", "-S"]
        asks += [str(Path(__file__).with_name("messenger.py"))]
        asks += [f"{self.place}/door", str(folder)]
        command = mpi.mpirun_line(scenario.size, asks, threads=1)
        command[1:1] = ["--oversubscribe"]
        # Of two that make Open MPI's folder in the same place at once, one may fail.
        scratch = {"TMPDIR": tempfile.mkdtemp(dir=self.place)}
        if shared := os.environ.get(supervise.SHARED_MEMORY):
            scratch[supervise.SHARED_MEMORY] = tempfile.mkdtemp(dir=shared)
        environment = {**os.environ, "COURSE_RUN": str(folder), **scratch}
        with (folder / "mpirun.txt").open("wb") as output:
            mpirun = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
            )
        counts = dict(scenario.cluster)
        assigned = forked.Assignment(
            scenario,
            recorder_of(scenario),
            source,
            folder,
            Path(job["earlier"] or folder.parent / scenario.after),
            job["reference"] if scenario.reference else job["script"],
            [*job["options"], *scenario.options],
            job["graphs_wanted"],
            tasks.free_cluster(counts) if counts else {},
        )
        self.running[str(folder)] = _Running(assigned, mpirun, [*scratch.values()])

    def _poll(self) -> None:
        if self.withdrawn and self.withdrawn.exists():
            raise lab.Withdrawn
        with contextlib.suppress(BlockingIOError):
            while True:
                self._fork(self.door.accept()[0])
        for key, running in list(self.running.items()):
            _tend(running)
            outcome = self._outcome(running)
            if outcome:
                self._end(running, outcome)
                del self.running[key]
        time.sleep(lab.POLL_SECONDS)

    def _fork(self, messenger: socket.socket) -> None:
        """Start the worker that a messenger asks for."""
        messenger.settimeout(REQUEST_SECONDS)
        with messenger.makefile("rb") as stream:
            line = stream.readline()
        if not line.endswith(b"\n"):
            line = b'{"key": ""}'  # it was ended before it had said all
        request = json.loads(line)
        running = self.running.get(request["key"])
        if running is None:  # ended while mpirun was still starting workers
            messenger.close()
            return
        if not self.begun:
            print(lab.BEGINS, flush=True)
            self.begun = True
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                for other in self.running.values():
                    for sibling in other.workers.values():
                        sibling.messenger.close()
                self.door.close()
                messenger.close()
                status = forked.become_worker(running.assigned, request["environment"])
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        messenger.setblocking(False)
        rank = worker.rank(request["environment"])
        running.workers[rank] = _Worker(pid, messenger)

    def _outcome(self, running: _Running) -> str | None:
        """How the scenario has ended; None while it goes on."""
        now, waits = time.monotonic(), running.waits()
        mpirun = running.mpirun.poll()
        if not running.assigned.recorder:
            if mpirun is not None:
                return lab.FAILED if mpirun else lab.ENDED
        else:
            # Beside servers, the end of the chief, who has rank 0, is the end of all.
            served = tasks.has_servers(running.assigned.cluster)
            awaited = {waits.get(n) for n in range(1 if served else len(waits))}
            if len(waits) == running.size and awaited == {AT_THE_END}:
                return lab.ENDED
            gone = len(running.workers) - len(running.living())
            if gone or mpirun is not None:
                running.failed = running.failed or now
                # The others may be about to say why they fail, too.
                if now - running.failed > FAILING or gone == running.size:
                    return lab.FAILED
        for path in running.assigned.folder.glob("rank.*"):
            if path.suffix in (".out", ".err") and path.lstat().st_size > lab.OUTPUT:
                return lab.FLOOD
        if now - running.started > lab.TIME_LIMIT:
            return lab.TIME_UP
        return self._gets_nowhere(running, waits)

    def _gets_nowhere(self, running: _Running, waits: dict) -> str | None:
        """Do the workers wait for each other, or compute or sleep without end?"""
        silence, now = running.silence, time.monotonic()
        if now - silence.looked < LOOK_SECONDS:
            return None
        silence.looked = now
        families = {rank: _family(one.pid) for rank, one in running.living().items()}
        computed = {rank: sum(map(_computed, all_)) for rank, all_ in families.items()}
        reported = _reported(running)
        if reported != silence.reported:
            silence.reported, silence.computed, silence.asleep = reported, computed, 0.0
        # Who waits for another worker need not sleep meanwhile: MPI asks all the time.
        working = [r for r in families if waits.get(r) is None] or [*families]
        if not any(
            supervise.awake(process) for r in working for process in families[r]
        ):
            silence.asleep += LOOK_SECONDS
        all_there = len(waits) == running.size
        all_wait = all_there and None not in waits.values()
        if all_wait and len(set(waits.values())) > 1:
            if silence.asleep > DEADLOCK_AFTER:
                return lab.DEADLOCK
        hangs = silence.asleep > SLEEPING_FACTOR * self.may_compute or any(
            computed[rank] > COMPUTING_LIMIT
            or computed[rank] - silence.computed.get(rank, 0.0) > self.may_compute
            for rank in working
        )
        if hangs and not all_there:  # mpirun has started too few
            return lab.FAILED
        return lab.HUNG if hangs else None

    def _end(self, running: _Running, outcome: str) -> None:
        """End mpirun, the workers, and all that these have started; write down how the
        scenario ended."""
        living = running.living()
        if outcome in (lab.HUNG, lab.DEADLOCK, lab.TIME_UP):
            for process in living.values():  # they write down where they are
                os.kill(process.pid, signal.SIGUSR1)
            time.sleep(0.3)
        # Asking mpirun nicely would take a second, and it would remove its files.
        mpirun = running.mpirun.poll()
        running.mpirun.kill()
        # First all are told, as each takes a while to give its memory back.
        for process in living.values():
            os.kill(process.pid, signal.SIGKILL)
        running.mpirun.wait()
        for process in living.values():
            _gone(process)
        self._end_orphans()
        facts = {
            "outcome": outcome,
            "script": running.assigned.script,
            "seconds": round(time.monotonic() - running.started, 2),
            "mpirun": mpirun,
            "statuses": {rank: one.status for rank, one in running.workers.items()},
        }
        # Not into what somebody else may have made there, a pipe for example.
        path = running.assigned.folder / "outcome.json"
        files.write_whole(path, json.dumps(facts), mode=0o600)
        for scratch in running.scratch:
            shutil.rmtree(scratch, ignore_errors=True)

    def _end_orphans(self) -> None:
        """End what workers have left behind: while a worker lives, all that it has
        started is below it, and then below this process, see `adopt_orphans`. What
        can't be ended is left to the supervisor, which says so."""
        own = {running.mpirun.pid for running in self.running.values()}
        own |= {one.pid for r in self.running.values() for one in r.living().values()}
        deadline = time.monotonic() + END_SECONDS
        while orphans := {p.pid for p in psutil.Process().children()} - own:
            for process in (one for pid in orphans for one in _family(pid)):
                with contextlib.suppress(psutil.Error):
                    process.kill()
            for pid in orphans:
                os.waitpid(pid, os.WNOHANG)
            if time.monotonic() > deadline:
                return
            time.sleep(0.01)


# ------------------------------------------------------------ processes


def _tend(running: _Running) -> None:
    """Pass on how workers ended; end those whose messenger was ended."""
    for process in running.living().values():
        ended, status = os.waitpid(process.pid, os.WNOHANG)
        if ended:
            process.alive, process.status = False, os.waitstatus_to_exitcode(status)
            with contextlib.suppress(OSError):
                process.messenger.sendall(json.dumps(process.status).encode() + b"\n")
            process.messenger.close()
            continue
        with contextlib.suppress(BlockingIOError):
            if not process.messenger.recv(1):
                os.kill(process.pid, signal.SIGKILL)
                _gone(process)


def _gone(process: _Worker) -> None:
    """Wait for the end of a worker that was killed."""
    os.waitpid(process.pid, 0)
    process.alive = False
    process.messenger.close()


def _family(pid: int) -> list[psutil.Process]:
    """A process, and all that it has started; none if it has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    return []


def _computed(process: psutil.Process) -> float:
    """Seconds of processor that it has used, and its children that have ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return sum(process.cpu_times()[:4])
    return 0.0


# ------------------------------------------------------------ reports


def _reported(running: _Running) -> int:
    """Bytes of what the workers have reported, or of what they have printed, where
    nothing watches them."""
    kinds = ("jsonl",) if running.assigned.recorder else ("out", "err")
    paths = (
        p for kind in kinds for p in running.assigned.folder.glob(f"rank.*.{kind}")
    )
    return sum(path.lstat().st_size for path in paths)


def last_event(path: Path, schema: events.Schema) -> dict:
    """The last whole line of a report; {} if there is none, or none that a worker
    reports."""
    try:
        with files.open_regular(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - events.MOST_LINE))
            lines = file.read(events.MOST_LINE).split(b"\n")
        return events.event(lines[-2], schema) if len(lines) > 1 else {}
    except (OSError, files.Unfit, events.Unreadable):
        return {}


@functools.cache
def _prepared(source: str) -> Source:
    """A source, ready for the workers that this process forks."""
    module = cast(Source, importlib.import_module(source))
    module.prepare()
    # What is imported stays: workers need not look through it for garbage, and copy
    # its pages by that.
    gc.collect()
    gc.freeze()
    return module


def main() -> None:
    path, *stays = sys.argv[1:]
    worker.quiet()
    horovod.prepare()
    supervise.adopt_orphans()
    for source in stays:
        _prepared(source)
    gc.set_threshold(50_000)  # workers are too short to fill the memory with it
    with files.scratch() as place:
        server = Server(place)
        server.stay(Path(path)) if stays else server.serve(Path(path).resolve())


if __name__ == "__main__":
    main()
