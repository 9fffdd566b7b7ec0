"""Run programs on workers that report what they do: where the checks get their facts.

    python -m distcheck.lab FOLDER

imports TensorFlow once and then, for every job in FOLDER/jobs.json and every scenario
that it asks for, starts a real `mpirun`. What mpirun starts is only a messenger
(messenger.py): it asks this process to fork the worker, which so has TensorFlow
imported already, and ends as the worker ends. Without that, six workers would spend
half a minute on two cores with importing. With the name of a source after FOLDER, it
prepares that and waits for one FOLDER after another, as FOLDER, then a file, names
them.

A scenario ends when its workers have ended, when they wait for each other forever, or
when they are silent.

Who starts whom: `perform`, in the process that checks, starts a supervisor, this
starts the lab, the lab starts an mpirun for each scenario, that starts a messenger for
each rank, and the lab forks a worker for each messenger. The supervisor ends them all.

What is then in FOLDER/<number of the job>/<scenario>/, for the judges:

    rank.N.jsonl, rank.N.NAME.npy   what the recorder of rank N has noted and kept
    rank.N.out, rank.N.err          what the program has printed
    rank.N.stack                    where it was when it was ended, if it hung
    rank.N.home                     the files of a worker with a folder of its own
    rank.N.ran                      is there if the program ended well
    mpirun.txt, outcome.json        what mpirun has printed, and how the scenario ended
"""

import contextlib
import faulthandler
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
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NoReturn, cast

import psutil

from distcheck import errors, events, files, keras_2, machine, mpi, supervise, tasks
from distcheck import worker as workers
from distcheck.recorder import first_import, horovod
from distcheck.recorder.graphs import Graphs
from distcheck.recorder.recorder import Recorder, recorder_of, schema_of
from distcheck.recorder.source import Source
from distcheck.scenarios import SCENARIOS, Scenario

POLL_SECONDS = 0.05  # between two looks at the workers
FAILING = 1.0  # seconds that the other workers have left when one has failed
# All workers that wait for different things are in a deadlock when none of them has
# reported anything for so many seconds.
DEADLOCK_AFTER = 4.0
# A worker counts as hung that has used so many seconds of processor since its last
# report; a sleeping one, after this many times as many seconds.
SILENCE = 25.0
SLEEPING_FACTOR = 3
LIMIT = 150.0  # seconds for a scenario
START = 60.0  # seconds to import TensorFlow
OUTPUT = 1_000_000  # bytes that a worker may print
# Lets waiting workers of MPI yield the processor, where the set-up has built it.
YIELD_SHIM = Path(sys.prefix, "lib", "patient.so")

RAN = "ran"  # how the name of a file ends that is there when a program has ended well

ENDED, FAILED, DEADLOCK, HUNG, FLOOD = "ended", "failed", "deadlock", "hung", "flood"

# Printed before the first worker is there; what fails before that, no program did.
BEGINS = "The first worker begins."

# In the folder of its jobs, a lab that stays is told by a file that nobody wants them
# done any more, and tells by another that it has done with them.
SERVED, WITHDRAWN = "served", "withdrawn"


class Withdrawn(Exception):
    """The jobs were ended, as nobody wants them done any more."""


@dataclass
class _Worker:
    pid: int
    messenger: socket.socket
    status: int | None = None


@dataclass
class _Running:
    """A scenario that is on.

    earlier: the folder of the one that it comes after. graphs: are graphs built?
    """

    scenario: Scenario
    recorder: type[Recorder] | None
    source: Source
    folder: Path
    earlier: Path
    script: str
    options: list[str]
    mpirun: subprocess.Popen
    graphs: bool
    cluster: tasks.Cluster = field(default_factory=dict)
    scratch: list[str] = field(default_factory=list)
    workers: dict[int, _Worker] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)
    heard: float = field(default_factory=time.monotonic)
    used: dict[int, float] = field(default_factory=dict)
    failed: float | None = None
    size: int = -1


class Lab:
    """The process that has TensorFlow imported and forks the workers."""

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
        self.silence = wanted["silence"]
        for number, job in enumerate(wanted["jobs"]):
            for name, facts in job["scenarios"].items():
                scenario, place = Scenario(**facts), folder / str(number) / name
                before = str(place.parent / scenario.after)
                while self._busy(scenario.size) or self._changes_disks(before):
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
            self.withdrawn = folder / WITHDRAWN
            with contextlib.suppress(Withdrawn):
                self.serve(folder)
            for running in self.running.values():
                self._end(running, WITHDRAWN)
            self.running.clear()
            self.withdrawn = None
            (folder / SERVED).touch()

    def _changes_disks(self, key: str) -> bool:
        """May the programs of a scenario still write to their disks?"""
        running = self.running.get(key)
        if running is None:
            return False
        return len([*running.folder.glob(f"rank.*.{RAN}")]) < running.scenario.size

    def _busy(self, workers: int) -> bool:
        """Would more than two workers have to share a core?

        Two may: half of the time, a worker waits for mpirun or for another worker. But
        not on a crowded machine, where those who wait take time from those who work.
        """
        ended = [
            waits == "ended"
            for running in self.running.values()
            for waits in self._waits(running).values()
        ]
        size = sum(running.scenario.size for running in self.running.values())
        now = size - sum(ended)
        crowded = os.getloadavg()[0] > 3 * machine.cores()
        return bool(now) and now + workers > (1 if crowded else 2) * machine.cores()

    def _start(self, scenario: Scenario, folder: Path, job: dict) -> None:
        source, key = _prepared(job["source"]), str(folder)
        script = job["reference"] if scenario.reference else job["script"]
        options = [*job["options"], *scenario.options]
        messenger = [sys.executable, "-I", "-S"]
        messenger += [str(Path(__file__).with_name("messenger.py"))]
        messenger += [f"{self.place}/door", key]
        command = mpi.mpirun_line(scenario.size, messenger, threads=1)
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
        earlier = Path(job["earlier"] or folder.parent / scenario.after)
        counts = dict(scenario.cluster)
        cluster = tasks.free_cluster(counts) if counts else {}
        self.running[key] = _Running(
            *(scenario, recorder_of(scenario), source, folder, earlier, script),
            *(options, mpirun, job["graphs"], cluster, [*scratch.values()]),
        )

    def _poll(self) -> None:
        if self.withdrawn and self.withdrawn.exists():
            raise Withdrawn
        with contextlib.suppress(BlockingIOError):
            while True:
                self._fork(self.door.accept()[0])
        for key, running in list(self.running.items()):
            self._tend(running)
            outcome = self._outcome(running)
            if outcome:
                self._end(running, outcome)
                del self.running[key]
        time.sleep(POLL_SECONDS)

    def _fork(self, messenger: socket.socket) -> None:
        """Start the worker that a messenger asks for."""
        messenger.settimeout(START)
        with messenger.makefile("rb") as stream:
            request = json.loads(stream.readline())
        running = self.running.get(request["key"])
        if running is None:  # ended while mpirun was still starting workers
            messenger.close()
            return
        if not self.begun:
            print(BEGINS, flush=True)
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
                status = _work(running, request["environment"])
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        messenger.setblocking(False)
        rank = workers.rank(request["environment"])
        running.workers[rank] = _Worker(pid, messenger)

    def _tend(self, running: _Running) -> None:
        """Pass on how workers ended; end those whose messenger was ended."""
        for process in running.workers.values():
            if process.status is not None:
                continue
            ended, status = os.waitpid(process.pid, os.WNOHANG)
            if ended:
                process.status = os.waitstatus_to_exitcode(status)
                with contextlib.suppress(OSError):
                    process.messenger.sendall(
                        json.dumps(process.status).encode() + b"\n"
                    )
                process.messenger.close()
                continue
            with contextlib.suppress(BlockingIOError):
                if not process.messenger.recv(1):
                    os.kill(process.pid, signal.SIGKILL)

    def _outcome(self, running: _Running) -> str | None:
        """How the scenario has ended; None while it goes on."""
        if not running.recorder:
            return self._plain_outcome(running)
        now = time.monotonic()
        waits = self._waits(running)
        # Beside servers, the end of the chief, who has rank 0, is the end of all.
        served = tasks.has_servers(running.cluster)
        awaited = {rank: waits.get(rank) for rank in range(1 if served else len(waits))}
        if len(waits) == running.scenario.size and set(awaited.values()) == {"ended"}:
            return ENDED
        failed = [
            process
            for process in running.workers.values()
            if process.status is not None
        ]
        if failed or running.mpirun.poll() is not None:
            running.failed = running.failed or now
            # The others may be about to say why they fail, too.
            if now - running.failed > FAILING or len(failed) == running.scenario.size:
                return FAILED
        size = 0
        for path in running.folder.glob("rank.*"):
            bytes_there = path.lstat().st_size
            if path.suffix in (".out", ".err") and bytes_there > OUTPUT:
                return FLOOD
            if path.suffix == ".jsonl":
                size += bytes_there
        if size != running.size:
            running.size, running.heard = size, now
            running.used = _used(running)
        quiet = now - running.heard
        all_wait = len(waits) == running.scenario.size and None not in waits.values()
        if quiet > DEADLOCK_AFTER and all_wait and len(set(waits.values())) > 1:
            return DEADLOCK
        if now - running.started > LIMIT:
            return HUNG
        return HUNG if self._hangs(running) else None

    def _plain_outcome(self, running: _Running) -> str | None:
        """How a scenario has ended in which no worker reports anything."""
        status = running.mpirun.poll()
        if status is not None:
            return FAILED if status else ENDED
        return HUNG if self._hangs(running) else None

    def _hangs(self, running: _Running) -> bool:
        """Was there no word from it for too long?"""
        quiet = time.monotonic() - running.heard
        if quiet <= self.silence:
            return False
        # On a busy machine, a worker gets little of the seconds that pass.
        before, used = running.used, _used(running)
        busiest = max((used[r] - before.get(r, 0.0) for r in used), default=0.0)
        return busiest > self.silence or quiet > SLEEPING_FACTOR * self.silence

    def _waits(self, running: _Running) -> dict[int, str | None]:
        """What each worker waits for, "ended" if for nothing more; None: it works."""
        waits: dict[int, str | None] = {}
        for rank in running.workers:
            report = running.folder / f"rank.{rank}.jsonl"
            last = last_event(report, schema_of(running.scenario))
            waits[rank] = None
            if last.get("what") == "collective_start":
                waits[rank] = f"{last['op']} {last['name']} {last['elements']}"
            elif last.get("what") == "ended":
                waits[rank] = "ended"
        return waits

    def _end(self, running: _Running, outcome: str) -> None:
        """End all processes of a scenario, and write down how it ended."""
        alive = [
            process for process in running.workers.values() if process.status is None
        ]
        if outcome in (HUNG, DEADLOCK):
            for process in alive:  # they write down where they are
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGUSR1)
            time.sleep(0.3)
        # Asking mpirun nicely would take a second, and it would remove its files.
        running.mpirun.kill()
        running.mpirun.wait()
        for process in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
            os.waitpid(process.pid, 0)
            process.messenger.close()
        facts = {
            "outcome": outcome,
            "script": running.script,
            "seconds": round(time.monotonic() - running.started, 2),
            "mpirun": running.mpirun.returncode,
            "statuses": {
                rank: process.status for rank, process in running.workers.items()
            },
        }
        # Not into what somebody else may have made there, a pipe for example.
        path = running.folder / "outcome.json"
        files.write_whole(path, json.dumps(facts), mode=0o600)
        for scratch in running.scratch:
            shutil.rmtree(scratch, ignore_errors=True)


def _used(running: _Running) -> dict[int, float]:
    """Seconds of processor that each living worker of a scenario has used so far."""
    seconds = {}
    for rank, process in running.workers.items():
        if process.status is None:
            with contextlib.suppress(psutil.NoSuchProcess):
                times = psutil.Process(process.pid).cpu_times()
                seconds[rank] = times.user + times.system
    return seconds


def _work(running: _Running, environment: dict[str, str]) -> int:
    """Be a worker: run the program, mostly recorded; return the exit status."""
    supervise.die_with_parent(signal.SIGKILL)
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    del os.environ[keras_2.VARIABLE]  # programs choose it themselves
    if running.recorder:  # which pretends what GPUs there are
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    rank = workers.rank()
    _pretend(running, rank)
    for number, name in ((1, "out"), (2, "err")):
        path = running.folder / f"rank.{rank}.{name}"
        os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600), number)
    stack = (running.folder / f"rank.{rank}.stack").open("w")
    faulthandler.register(signal.SIGUSR1, file=stack, all_threads=False)
    _enter_home(running, rank)
    sys.argv = [running.script, *running.options]
    sys.path[0] = str(Path(running.script).parent)
    if running.recorder is None:
        return _run_plainly(running.script)
    running.recorder.set_up(running.scenario, running.folder)
    _run_recorded(running, running.recorder, rank)


def _pretend(running: _Running, rank: int) -> None:
    """Let a worker's environment say what its scenario is."""
    scenario = running.scenario
    if scenario.cuda_visible_devices:
        os.environ["CUDA_VISIBLE_DEVICES"] = scenario.cuda_visible_devices[rank]
    if scenario.cluster:
        task = tasks.tasks_of(running.cluster)[rank]
        os.environ.update(tasks.own_environment(task) | machine.HIDDEN)
        # As `course run` has it: a server needs a thread more than workers.
        os.environ["TF_NUM_INTEROP_THREADS"] = str(1 + len(running.cluster["worker"]))
        tempfile.tempdir = None  # TMPDIR is another one than the lab's
    if scenario.local_ranks:
        os.environ["OMPI_COMM_WORLD_LOCAL_RANK"] = str(scenario.local_rank(rank))
        os.environ["OMPI_COMM_WORLD_LOCAL_SIZE"] = str(scenario.local_size(rank))
    if scenario.own_folders:
        os.environ["COURSE_RUN"] = str(_home(running, rank))


def _home(running: _Running, rank: int) -> Path:
    """The folder in which a worker's program is run."""
    scenario = running.scenario
    if scenario.own_folders or scenario.own_disks:
        return running.folder / f"rank.{rank}.home"
    return running.folder / "home" if scenario.shared_disk else running.folder


def _enter_home(running: _Running, rank: int) -> None:
    """Work in this worker's folder, with what an earlier scenario has left in it."""
    home = _home(running, rank)
    if running.scenario.after:
        # Where all seem to share one folder, it is as rank 0 saw it.
        left = _home(running, 0 if running.scenario.own_folders else rank)
        shutil.copytree(running.earlier / left.name, home)
    home.mkdir(exist_ok=True)
    os.chdir(home)


def _run_recorded(running: _Running, of: type[Recorder], rank: int) -> NoReturn:
    """Run the program while a recorder watches it; ends this process, or waits until
    the lab does that."""
    recorder = of(
        *(running.folder, rank, running.script, running.scenario, running.source)
    )
    recorder.event("started", pid=os.getpid())
    graphs = None
    if running.scenario.build_graphs and rank == 0:
        graphs = recorder.graphs = Graphs(recorder, running.graphs)

    def got_keras_3(module: str) -> None:
        recorder.event("keras 3", module=module)

    importing = first_import.watched(got_keras_3, running.source.IMPORT_TENSORFLOW)
    recorder.run(importing)
    (running.folder / f"rank.{rank}.{RAN}").touch()
    if graphs:
        graphs.build()
    recorder.wait_for_the_end()


def _run_plainly(script: str) -> int:
    """Run a program as it is; return its exit status."""
    import horovod.tensorflow as hvd

    failure = workers.run_program(script)
    sys.stdout.flush()
    if failure:
        return failure["status"] & 0xFF or 1
    # As Python does when it ends: mpirun treats a process that exits without
    # MPI_Finalize as failed.
    if hvd.is_initialized():
        hvd.shutdown()
    return 0


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


# -------------------------------------------------------------- the other side


@dataclass(frozen=True)
class Job:
    """A program to run, and in which scenarios."""

    script: str
    """The program's path."""

    scenarios: tuple[str, ...]
    """Their names."""

    source: str
    """The module of the images that the program is given, a `Source`."""

    options: tuple[str, ...] = ()
    """Its command line."""

    reference: str = ""
    """The program for one device, where a scenario compares with it."""

    earlier: str = ""
    """The folder of the scenario that another one of these comes after, where that is
    not run in this job."""

    graphs: bool = True
    """Are graphs built, where a scenario has that? Without, none fails."""

    def as_json(self) -> dict:
        """Plain values, with all that the scenarios are."""
        scenarios = {name: asdict(SCENARIOS[name]) for name in self.scenarios}
        return asdict(self) | {"scenarios": scenarios}


def command(folder: Path) -> list[str]:
    """The command that does the jobs in `folder`."""
    return [sys.executable, "-m", "distcheck.lab", str(folder)]


def environment() -> dict[str, str]:
    """What the command needs in its environment, beside what every process has."""
    return {
        keras_2.VARIABLE: "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "OMP_NUM_THREADS": "1",
        "TF_NUM_INTRAOP_THREADS": "1",
        "TF_NUM_INTEROP_THREADS": "1",
        # With it, TensorFlow 2.21 fails at the first convolution of an empty batch,
        # which is what a replica gets when there are fewer images than replicas.
        "TF_ENABLE_ONEDNN_OPTS": "0",
        "CUDA_VISIBLE_DEVICES": "-1",
        "PYTHONUNBUFFERED": "1",
        "HOROVOD_STALL_CHECK_DISABLE": "1",
        # An environment that was not set up by the course has none.
        **({"LD_PRELOAD": str(YIELD_SHIM)} if YIELD_SHIM.exists() else {}),
    }


def prepare(folder: Path, jobs: list[Job], silence: float = SILENCE) -> None:
    """Write down the jobs in `folder`, for `command`.

    silence: seconds of processor without a word from any worker, after which a
    scenario is ended; a sleeping one after SLEEPING_FACTOR times as many seconds.
    Raises UserError where a recorder lacks what its programs need.
    """
    for name in {name for job in jobs for name in job.scenarios}:
        if recorder := recorder_of(SCENARIOS[name]):
            recorder.needs()
    wanted = {"jobs": [job.as_json() for job in jobs], "silence": silence}
    (folder / "jobs.json").write_text(json.dumps(wanted))


def perform(folder: Path, jobs: list[Job], silence: float = SILENCE) -> None:
    """Do the jobs; what was observed is then in `folder/<number>/<scenario>/`.

    Raises UserError if the lab itself fails. An interrupt ends all its processes.
    """
    prepare(folder, jobs, silence)
    limit = START + LIMIT * sum(len(job.scenarios) for job in jobs)
    with _owned(command(folder), folder, limit) as process:
        process.wait()
    if process.returncode:
        raise _failure(folder, process.returncode)


@contextlib.contextmanager
def staying(source: str) -> Iterator[Callable]:
    """Give what is used like `perform`, for as long as the block lasts: it has its jobs
    done by one lab, which imports TensorFlow and prepares the source once.

    It takes `wanted`, too: once this says no, it ends the jobs and raises Withdrawn.
    """
    with files.scratch() as scratch:
        place = scratch.resolve()
        request = place / "request"

        def perform(
            folder: Path,
            jobs: list[Job],
            silence: float = SILENCE,
            wanted: Callable[[], bool] = lambda: True,
        ) -> None:
            prepare(folder, jobs, silence)
            files.write_whole(request, str(folder))
            while not (folder / SERVED).exists():
                if process.poll() is not None:
                    raise _failure(place, process.returncode)
                if not wanted():
                    (folder / WITHDRAWN).touch()
                time.sleep(POLL_SECONDS)
            if (folder / WITHDRAWN).exists():
                raise Withdrawn

        lab = [*command(request), source]
        with _owned(lab, place, float("inf")) as process:
            yield perform


@contextlib.contextmanager
def _owned(line: list[str], folder: Path, limit: float) -> Iterator[subprocess.Popen]:
    """A lab, whose output is in `folder/lab.txt`; it ends with the block."""
    surroundings = {**mpi.clean_environment(), **environment()}
    with (
        (folder / "lab.txt").open("wb") as output,
        supervise.owned(
            line, limit, env=surroundings, stdout=output, stderr=output
        ) as process,
    ):
        yield process


def _failure(folder: Path, status: int) -> errors.UserError:
    last = (folder / "lab.txt").read_text(errors="replace")[-2000:]
    return errors.UserError(f"the check itself failed with status {status}:\n{last}")


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
    workers.quiet()
    horovod.prepare()
    for source in stays:
        _prepared(source)
    gc.set_threshold(50_000)  # workers are too short to fill the memory with it
    with files.scratch() as place:
        lab = Lab(place)
        lab.stay(Path(path)) if stays else lab.serve(Path(path).resolve())


if __name__ == "__main__":
    main()
