"""Run programs on workers that report what they do: where the checks get their facts.

    python -m utils.checking.lab FOLDER

imports TensorFlow once and then, for every job in FOLDER/jobs.json and every world
that it asks for, starts a real `mpirun`. What mpirun starts is only a messenger
(utils/checking/messenger.py): it asks this process to fork the worker, which so has
TensorFlow imported already, and ends as the worker ends. Without that, six workers
would spend half a minute on two cores with importing. With --stay, it waits for one
FOLDER after another, as FOLDER, then a file, names them.

A world ends when its workers have ended, when they wait for each other forever, or
when they are silent; how, is in its outcome.json.
"""

import contextlib
import faulthandler
import gc
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

import numpy as np
import psutil

from distcheck import errors, files, keras_2, machine, mpi, supervise, tasks
from utils.base import course
from utils.checking import evidence
from utils.checking.observers import devices as observe_devices
from utils.checking.observers import first_import, observe
from utils.checking.observers import from_files as observe_files
from utils.checking.observers import graphs as observe_graphs
from utils.checking.observers import replicas as observe_replicas
from utils.checking.observers import scaled as observe_scaled
from utils.checking.observers import survive as observe_survive
from utils.checking.observers import tasks as observe_tasks
from utils.checking.observers import wires as observe_wires
from utils.checking.observers import zero as observe_zero
from utils.running import beside, worker
from utils.training import data, samples

# Odd numbers of batches, so that dividing leaves remainders.
TRAIN_IMAGES, BATCH_SIZE, VAL_BATCH_SIZE = 60, 8, 4
STEPS = TRAIN_IMAGES // BATCH_SIZE
VAL_STEPS = -(-(TRAIN_IMAGES // 6) // VAL_BATCH_SIZE)


@dataclass(frozen=True)
class World:
    """The workers that a program is run on.

    local_ranks: what to pretend, by rank, where not the real ones; gpus: how many to
    pretend on the machine; given: the CUDA_VISIBLE_DEVICES of each worker, by rank,
    where a scheduler has set it. devices_only: a worker ends when it has chosen its
    devices. count_only: see observers/observe.py. apart: each worker has a folder of
    its own, so that it is seen who writes what; after each collective it also has what
    the others wrote. replicas: of a single worker, for
    programs with tf.distribute; reference: it runs the course's program for one device,
    with which the other is compared. machines: each worker is on a machine of its own,
    with one GPU and a disk (see observers/scaled.py).
    after: it begins with what the world so called has left on the disks. lives: it may
    be started again (see observers/survive.py); cut: the newest file there is half of
    what it was; options: what it is given besides. failing: the update in which rank 0
    dies; here, all share a disk. graphs: rank 0 builds in the end what would
    have been compiled (see observers/graphs.py). Not `observed`, the program does what
    it does for a learner: it is compiled, and nothing but its end is known.
    shards: the images of the check lie in files of so many each, on the disk of each
    machine (see observers/from_files.py).
    zero: the program applies its gradients itself (see observers/zero.py).
    cluster: how many tasks of which type the workers are, each told by a TF_CONFIG and
    in a folder of its own (see observers/tasks.py).
    wires: the clocks show made-up seconds (see observers/wires.py).
    opposite: in validation, rank 0 is always wrong and the others always right.
    host_devices: for programs with JAX, how many devices they are to make of the
    processor; the environment beside the course's runs them (see observers/devices.py).
    """

    size: int
    local_ranks: tuple[int, ...] = ()
    gpus: int = 0
    given: tuple[str, ...] = ()
    devices_only: bool = False
    count_only: bool = False
    apart: bool = False
    replicas: int = 0
    reference: bool = False
    machines: bool = False
    lives: bool = False
    after: str = ""
    cut: bool = False
    options: tuple[str, ...] = ()
    failing: int | None = None
    graphs: bool = False
    observed: bool = True
    shards: tuple[int, ...] = ()
    zero: bool = False
    cluster: tuple[tuple[str, int], ...] = ()
    wires: bool = False
    opposite: bool = False
    host_devices: int = 0

    @property
    def kind(self) -> str:
        """What is observed of it: see `evidence.SCHEMAS`."""
        if self.replicas:
            return "replicas"
        if self.cluster:
            return "tasks"
        if self.host_devices:
            return "devices"
        if self.lives:
            return "survive"
        if self.shards:
            return "files"
        if self.zero:
            return "zero"
        if self.wires:
            return "wires"
        return "scaled" if self.machines else "horovod"


def _cluster(**counts: int) -> World:
    return World(sum(counts.values()), cluster=tuple(counts.items()))


def _machines(size: int, **facts) -> World:
    return World(size, local_ranks=(0,) * size, gpus=1, machines=True, **facts)


_FOUR_EPOCHS = ("--epochs", "4")
LOGS = ("--log-dir", "logs")
# What a program may look at, and then do something else.
OTHER_OPTIONS = (
    *LOGS,
    *("--seed", "1", "--epochs", "4"),
    *("--target-accuracy", "0", "--patience", "3"),
)

AT_THE_TARGET = ("--target-accuracy", "0.25", "--patience", "1", "--epochs", "3")

FILES = (10, 10, 10, 10)  # images in each
REST_OF_FILES = 1, 1  # epochs and steps that are done before
EPOCHS_OF_REST = 3
_DONE = ("--epochs-done", str(REST_OF_FILES[0]), "--steps-done", str(REST_OF_FILES[1]))

# Two workers of a machine with four GPUs, on which others work, too; and machines
# without a GPU.
WORLDS = {
    "two": World(2, local_ranks=(3, 1), gpus=4, apart=True, graphs=True, options=LOGS),
    # There, no machine has a GPU, and the disk that all share has what rank 0 left.
    "other options": World(2, apart=True, after="two", options=OTHER_OPTIONS),
    # Where the mean of all is above the target, and rank 0's own is not.
    "opposite": World(2, apart=True, opposite=True, options=AT_THE_TARGET),
    # Two machines with a worker each, or one with three or one; for so many epochs that
    # whoever draws at random from all images draws nearly every one; three also with a
    # seed, with which all may draw alike.
    "pair": World(
        2, local_ranks=(0, 0), count_only=True, graphs=True, options=_FOUR_EPOCHS
    ),
    "three": World(3, count_only=True, options=(*_FOUR_EPOCHS, "--seed", "1")),
    "one": World(1, count_only=True, options=_FOUR_EPOCHS),
    # One of four workers: to each a scheduler has given a GPU, by a name that is no
    # number; or they have two GPUs for four.
    "given": World(
        1, local_ranks=(3,), gpus=4, given=(observe.name_of(0),), devices_only=True
    ),
    "crowded": World(1, local_ranks=(3,), gpus=2, devices_only=True),
    "hosts": World(2, local_ranks=(0, 0), gpus=1, devices_only=True),
    "replicas": World(1, replicas=2),
    "reference": World(1, replicas=1, reference=True),
    "machine": _machines(1),
    "two machines": _machines(2, graphs=True),
    "three machines": _machines(3),
    "first life": _machines(2, lives=True, graphs=True),
    "second life": _machines(
        2, lives=True, after="first life", options=("--epochs", "4")
    ),
    "cut off": _machines(2, lives=True, after="first life", cut=True),
    "shaken": _machines(2, lives=True, failing=8, graphs=True),
    "files": _machines(2, shards=FILES),
    "few files": _machines(2, shards=(sum(FILES),)),
    "uneven files": _machines(2, shards=(15, 5, 15, 5)),
    "rest of files": _machines(
        2, shards=FILES, options=(*_DONE, "--epochs", str(EPOCHS_OF_REST))
    ),
    # Three, so that a part is not what is left of the other.
    "parts": World(3, zero=True, graphs=True),
    "two wires": World(2, local_ranks=(0, 0), wires=True),
    "three wires": World(3, local_ranks=(0, 0, 0), wires=True),
    "cluster": _cluster(worker=2),
    "servers": _cluster(chief=1, worker=2, ps=2),
    "devices": World(1, host_devices=2),
    "plain": World(2, observed=False),
    "plain replicas": World(1, replicas=2, observed=False),
}

BEAT = 0.05  # seconds between two looks at the workers
FAILING = 1.0  # seconds that a failing world has left
STALL = 4.0  # seconds without a word, after which waiting for each other is forever
SILENCE = 25.0  # seconds of processor without a word, after which a worker is hung
PATIENCE = 3  # so many times as many seconds pass before one is hung that sleeps
LIMIT = 150.0  # seconds for a world
START = 60.0  # seconds to import TensorFlow
OUTPUT = 1_000_000  # bytes that a worker may print
PATIENT = Path(sys.prefix, "lib", "patient.so")  # see utils/setup/patient.cpp

RANK_0_HOME = "rank.0.home"
RAN = "ran"  # how the name of a file ends that is there when a program has ended well
JAX = "jax"
CHOICES_OF_JAX = ("KERAS_BACKEND", "XLA_FLAGS", "JAX_NUM_CPU_DEVICES", "JAX_PLATFORMS")

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
    """A world that is on."""

    world: World
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
        """Do all jobs in `folder`, in order; as many worlds at a time as the cores
        bear."""
        wanted = json.loads((folder / "jobs.json").read_text())
        self.silence = wanted["silence"]
        for number, job in enumerate(wanted["jobs"]):
            for name in job["worlds"]:
                of_world = folder / str(number) / name
                before = str(of_world.parent / WORLDS[name].after)
                while self._busy(WORLDS[name].size) or self._changes_disks(before):
                    self._beat()
                of_world.mkdir(parents=True)
                self._start(name, of_world, job)
        while self.running:
            self._beat()

    def stay(self, request: Path) -> None:
        """Do the jobs of each folder that the file `request` names, as it comes."""
        while True:
            self._beat()
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
        """May the programs of a world still write to their disks?"""
        running = self.running.get(key)
        if running is None:
            return False
        return len([*running.folder.glob(f"rank.*.{RAN}")]) < running.world.size

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
        size = sum(running.world.size for running in self.running.values())
        now = size - sum(ended)
        crowded = os.getloadavg()[0] > 3 * machine.cores()
        return bool(now) and now + workers > (1 if crowded else 2) * machine.cores()

    def _start(self, name: str, folder: Path, job: dict) -> None:
        world, key = WORLDS[name], str(folder)
        script = job["reference"] if world.reference else job["script"]
        options = [*job["options"], *world.options]
        if world.replicas:
            options += ["--replicas", str(world.replicas)]
        messenger = [sys.executable, "-I", "-S"]
        messenger += [str(Path(__file__).with_name("messenger.py"))]
        messenger += [f"{self.place}/door", key]
        command = mpi.mpirun_line(world.size, messenger, threads=1)
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
        earlier = Path(job["earlier"] or folder.parent / world.after)
        cluster = tasks.free_cluster(dict(world.cluster)) if world.cluster else {}
        self.running[key] = _Running(
            *(world, folder, earlier, script, options, mpirun, job["graphs"]),
            *(cluster, [*scratch.values()]),
        )

    def _beat(self) -> None:
        if self.withdrawn and self.withdrawn.exists():
            raise Withdrawn
        with contextlib.suppress(BlockingIOError):
            while True:
                self._fork(self.door.accept()[0])
        for key, running in list(self.running.items()):
            self._tend(running)
            outcome = self._verdict(running)
            if outcome:
                self._end(running, outcome)
                del self.running[key]
        time.sleep(BEAT)

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
        rank = course.worker_rank(request["environment"])
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

    def _verdict(self, running: _Running) -> str | None:
        """How the world has ended; None while it goes on."""
        if not running.world.observed:
            return self._plain_verdict(running)
        now = time.monotonic()
        waits = self._waits(running)
        # Beside servers, the end of the chief, who has rank 0, is the end of all.
        served = tasks.has_servers(running.cluster)
        awaited = {rank: waits.get(rank) for rank in range(1 if served else len(waits))}
        if len(waits) == running.world.size and set(awaited.values()) == {"ended"}:
            return ENDED
        failed = [
            process
            for process in running.workers.values()
            if process.status is not None
        ]
        if failed or running.mpirun.poll() is not None:
            running.failed = running.failed or now
            # The others may be about to say why they fail, too.
            if now - running.failed > FAILING or len(failed) == running.world.size:
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
        all_wait = len(waits) == running.world.size and None not in waits.values()
        if quiet > STALL and all_wait and len(set(waits.values())) > 1:
            return DEADLOCK
        if now - running.started > LIMIT:
            return HUNG
        return HUNG if self._hangs(running) else None

    def _plain_verdict(self, running: _Running) -> str | None:
        """The same for a world that reports nothing but what mpirun ends with."""
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
        return busiest > self.silence or quiet > PATIENCE * self.silence

    def _waits(self, running: _Running) -> dict[int, str | None]:
        """What each worker waits for, "ended" if for nothing more; None: it works."""
        waits: dict[int, str | None] = {}
        for rank in running.workers:
            report = running.folder / f"rank.{rank}.jsonl"
            last = last_event(report, running.world.kind)
            waits[rank] = None
            if last.get("what") == "enter":
                waits[rank] = f"{last['op']} {last['name']} {last['elements']}"
            elif last.get("what") == "ended":
                waits[rank] = "ended"
        return waits

    def _end(self, running: _Running, outcome: str) -> None:
        """End all processes of a world, and write down how it ended."""
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
    """Seconds of processor that each living worker of a world has used so far."""
    seconds = {}
    for rank, process in running.workers.items():
        if process.status is None:
            with contextlib.suppress(psutil.NoSuchProcess):
                times = psutil.Process(process.pid).cpu_times()
                seconds[rank] = times.user + times.system
    return seconds


def _work(running: _Running, environment: dict[str, str]) -> int:
    """Be a worker: run the program, mostly observed; return the exit status."""
    supervise.die_with_parent(signal.SIGKILL)
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    del os.environ[keras_2.VARIABLE]  # programs choose it themselves
    rank = course.worker_rank()
    world = running.world
    if world.observed:  # which pretends what GPUs there are
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    if world.given:
        os.environ["CUDA_VISIBLE_DEVICES"] = world.given[rank]
    if world.cluster:
        task = tasks.tasks_of(running.cluster)[rank]
        os.environ.update(tasks.own_environment(task) | machine.HIDDEN)
        # As `course run` has it: a server needs a thread more than workers.
        os.environ["TF_NUM_INTEROP_THREADS"] = str(1 + len(running.cluster["worker"]))
        tempfile.tempdir = None  # TMPDIR is another one than the lab's
    local_rank = world.local_ranks[rank] if world.local_ranks else None
    if local_rank is not None:
        os.environ["OMPI_COMM_WORLD_LOCAL_RANK"] = str(local_rank)
        local_size = observe.local_size(local_rank, world.gpus)
        os.environ["OMPI_COMM_WORLD_LOCAL_SIZE"] = str(local_size)
    for number, name in ((1, "out"), (2, "err")):
        path = running.folder / f"rank.{rank}.{name}"
        os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600), number)
    stack = (running.folder / f"rank.{rank}.stack").open("w")
    faulthandler.register(signal.SIGUSR1, file=stack, all_threads=False)
    home = running.folder
    if world.machines or world.cluster or world.apart:
        home /= f"rank.{rank}.home" if world.failing is None else "home"
    if world.apart:
        os.environ["COURSE_RUN"] = str(home)
    if world.after:
        left = RANK_0_HOME if world.apart else home.name
        shutil.copytree(running.earlier / left, home)
    if world.cut:
        observe_survive.cut_newest(home)
    home.mkdir(exist_ok=True)
    os.chdir(home)
    if world.shards:
        observe_files.write_shards(world.shards)
    sys.argv = [running.script, *running.options]
    sys.path[0] = str(Path(running.script).parent)
    if not world.observed:
        return _run_plainly(running.script)
    if world.host_devices:
        _become(running)
    common = (running.folder, rank, running.script)
    if world.kind == "replicas":
        observer = observe_replicas.ReplicaObserver(*common)
    elif world.kind == "tasks":
        observer = observe_tasks.TaskObserver(*common)
    elif world.kind == "survive":
        observer = observe_survive.SurviveObserver(
            *common, local_rank, world.gpus, failing=world.failing
        )
    elif world.kind == "files":
        observer = observe_files.FilesObserver(*common, local_rank, world.gpus)
    elif world.kind == "zero":
        observer = observe_zero.ZeroObserver(*common, local_rank, world.gpus)
    elif world.kind == "wires":
        observer = observe_wires.WiresObserver(*common, local_rank, world.gpus)
    elif world.kind == "scaled":
        observer = observe_scaled.ScaledObserver(*common, local_rank, world.gpus)
    else:
        observer = observe.Observer(
            *(*common, local_rank, world.gpus),
            *(world.count_only, world.devices_only, world.opposite, world.apart),
        )
    observer.event("started", pid=os.getpid())
    graphs = None
    if world.graphs and rank == 0:
        graphs = observer.graphs = observe_graphs.Graphs(observer, running.graphs)

    def got_keras_3(module: str) -> None:
        observer.event("keras 3", module=module)

    with observer.at_work(), first_import.watched(got_keras_3):
        failure = worker.run_program(running.script)
    sys.stdout.flush()
    sys.stderr.flush()
    if failure:
        failure["status"] = failure["status"] & 0xFF or 1  # as the system has it
        observer.event("failed", **failure)
        os._exit(failure["status"])
    (running.folder / f"rank.{rank}.{RAN}").touch()
    if graphs:
        graphs.build()
    observer.wait_for_the_end()


def _become(running: _Running) -> None:
    """Become a process of the Python that has JAX: this one has TensorFlow."""
    python = str(beside.program(JAX))
    program = [python, "-m", observe_devices.__name__, str(running.folder)]
    # Not what Keras was told to compute with in this home.
    keras_home = {"KERAS_HOME": str(running.folder / "keras")}
    environment = {n: v for n, v in os.environ.items() if n not in CHOICES_OF_JAX}
    os.execve(
        python,
        [*program, running.script, *running.options],
        environment | keras_home,
    )


def _run_plainly(script: str) -> int:
    """Run a program as it is; return its exit status."""
    import horovod.tensorflow as hvd

    failure = worker.run_program(script)
    sys.stdout.flush()
    if failure:
        return failure["status"] & 0xFF or 1
    # As Python does when it ends: mpirun takes who leaves without a word for failed.
    if hvd.is_initialized():
        hvd.shutdown()
    return 0


def last_event(path: Path, kind: str) -> dict:
    """The last whole line of a report; {} if there is none, or none that a worker
    reports."""
    try:
        with files.open_regular(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - evidence.MOST_LINE))
            lines = file.read(evidence.MOST_LINE).split(b"\n")
        return evidence.event(lines[-2], kind) if len(lines) > 1 else {}
    except (OSError, files.Unfit, evidence.Unreadable):
        return {}


# -------------------------------------------------------------- the other side


@dataclass(frozen=True)
class Job:
    """A program to run, the names of the worlds to run it in, and its options.

    reference: the program for one device, where a world compares with it.
    earlier: the folder of the world that another one of these comes after, where that
        is not run in this job.
    graphs: are graphs built, where a world has that? Without, none fails.
    """

    script: str
    worlds: tuple[str, ...]
    options: tuple[str, ...] = ()
    reference: str = ""
    earlier: str = ""
    graphs: bool = True


def command(folder: Path) -> list[str]:
    """The command that does the jobs in `folder`."""
    return [sys.executable, "-m", "utils.checking.lab", str(folder)]


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
        **({"LD_PRELOAD": str(PATIENT)} if PATIENT.exists() else {}),
    }


def prepare(folder: Path, jobs: list[Job], silence: float = SILENCE) -> None:
    """Write down the jobs in `folder`, for `command`.

    silence: seconds of processor without a word from any worker, after which a world
    is ended; a sleeping one after PATIENCE times as many seconds. Raises UserError
    where a world needs JAX, and it is missing.
    """
    if any(WORLDS[name].host_devices for job in jobs for name in job.worlds):
        why = beside.problem(JAX)
        if why:
            raise errors.UserError(why)
    wanted = {"jobs": [asdict(job) for job in jobs], "silence": silence}
    (folder / "jobs.json").write_text(json.dumps(wanted))


def perform(folder: Path, jobs: list[Job], silence: float = SILENCE) -> None:
    """Do the jobs; what was observed is then in `folder/<number>/<world>/`.

    Raises UserError if the lab itself fails. An interrupt ends all its processes.
    """
    prepare(folder, jobs, silence)
    with _owned(command(folder), folder, START + LIMIT * len(jobs)) as process:
        process.wait()
    if process.returncode:
        raise _failure(folder, process.returncode)


@contextlib.contextmanager
def staying() -> Iterator[Callable]:
    """Give what is used like `perform`, for as long as the block lasts: it has its jobs
    done by one lab, which imports TensorFlow once.

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
                time.sleep(BEAT)
            if (folder / WITHDRAWN).exists():
                raise Withdrawn

        lab = [*command(request), "--stay"]
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


def _within_margins(images: np.ndarray) -> np.ndarray:
    """Images (n, 28, 28), made so small that no pixel is lost by a shift: so observers
    know them again (see `observe.moments`)."""
    size, margin = images.shape[1], data.SHIFT
    places = np.linspace(0, size - 1, size - 2 * margin).round().astype(int)
    small = images[:, places][:, :, places]
    return np.pad(small, [(0, 0), (margin, margin), (margin, margin)])


def take_images() -> None:
    """Let `data.load` give the images of a check, in this process."""
    name = "a sample of Fashion-MNIST for a check"
    arrays = data.part_of(name, samples.fashion_mnist(), TRAIN_IMAGES, 6)
    # The classes take turns, so that a program that wants fewer images gets the first
    # of them, and observers can tell which they are by their numbers here.
    for part in ("train", "test"):
        order = data.in_turns(arrays[f"y_{part}"])
        arrays |= {f"{key}_{part}": arrays[f"{key}_{part}"][order] for key in "xy"}
        arrays[f"x_{part}"] = _within_margins(arrays[f"x_{part}"])
    data.use_instead(name, arrays)


def main() -> None:
    path, *stays = sys.argv[1:]
    worker.quiet()
    observe.prepare()
    take_images()
    from utils import logs  # noqa: F401

    # What is imported stays: workers need not look through it for garbage, and copy
    # its pages by that.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000)  # they are too short to fill the memory with it
    with files.scratch() as place:
        lab = Lab(place)
        lab.stay(Path(path)) if stays else lab.serve(Path(path).resolve())


if __name__ == "__main__":
    main()
