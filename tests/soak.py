"""Run, interrupt, kill and starve the course at random, and see that nothing is left.

    python tests/soak.py --minutes 20 --seed 7
    python tests/soak.py --seed 7 --round 12        (the round that failed, once more)

Each round does one thing of ACTIONS in a folder of its own, and is right when what was
reported is what was done, and when no trace is left: no process, listening port,
shared memory, temporary file, open file, thread or half-written file. All that is
random about a round comes from the seed and its number. Do it with nothing else of
the course running, as that leaves traces, too.
"""

import contextlib
import gzip
import hashlib
import http.server
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import psutil
import typer
from processes import working_in

from utils.base import course, files, logs, supervise
from utils.running import launch, watch
from utils.running.result import RunFailed

MARK = "COURSE_SOAK"  # the variable by which all that a soak starts is known
PATIENCE = 150.0  # seconds for a round's run to end, or to begin
SETTLE = 10.0  # seconds for the last traces to go
LIMIT = 5.0  # seconds, for the runs that are to reach their time limit
LAST_MOMENT = 3.0  # seconds after which nothing more is done to a run
FULL = 50_000  # bytes that a file may have where the disk is "full"
STALL = 1.0  # seconds of silence that a download endures in a soak

# Where other things than a run's own temporary folder may be left, and under which
# names; None: under any.
SHARED = {
    "/dev/shm": ("*",),
    "/tmp": (
        *(f"{files.SCRATCH}*-*", "ompi.*", "openmpi-sessions-*", "vader_segment*"),
        "__autograph_generated_file*",
    ),
}

# Each worker greets, meets the others, and does what it is asked for.
PROGRAM = """\
import os, resource, sys, time
from mpi4py import MPI

world = MPI.COMM_WORLD
print(f"worker {world.rank} of {world.size}", flush=True)
world.Barrier()
what, victim = sys.argv[1], int(sys.argv[2])
if what == "fill":
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
if what in ("fill", "talk"):
    with open(f"filled.{world.rank}", "w") as file:
        for _ in range(2_000):
            print("a line of fifty characters, to make the file long.", file=file)
            print("a line of fifty characters, to make the file long.")
if what == "wait":
    time.sleep(1_000)
if world.rank == victim:
    if what == "raise":
        raise ValueError("no such garment")
    if what == "exit":
        sys.exit(3)
    if what == "leave":
        os._exit(0)
if what in ("raise", "exit", "leave"):
    time.sleep(1_000)
"""

# A process that owns a run, as a notebook's kernel does, and writes down what came out.
OWNER = """\
import json, resource, signal, sys
from pathlib import Path
from utils.running import launch
from utils.running.result import RunFailed

signal.signal(signal.SIGINT, signal.default_int_handler)
(script, *arguments), options, limit = json.loads(sys.argv[1])
outcome = {"status": 0, "why": ""}
def attend(run):  # not before: Open MPI could not even begin
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    Path("begun").touch()
    launch.run(script, *arguments, quiet=True, attend=attend, **options)
except RunFailed as failed:
    outcome = {"status": failed.run.status, "why": str(failed)}
except KeyboardInterrupt:
    outcome = {"status": 130, "why": "KeyboardInterrupt"}
except Exception as error:
    outcome = {"status": -1, "why": f"{type(error).__name__}: {error}"}
try:
    Path("outcome.json").write_text(json.dumps(outcome))
except KeyboardInterrupt:
    Path("outcome.json").write_text(json.dumps(outcome))
"""

# A process that downloads; `stopped` means that it was told why it got nothing.
DOWNLOAD = """\
import json, resource, sys
from pathlib import Path
from utils.base import course
from utils.training import fetch

files, stall, limit = json.loads(sys.argv[1])
fetch.FILES = {key: tuple(one) for key, one in files.items()}
fetch.PLACES, fetch.STALL = (), stall
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    came = sorted(fetch.fashion_mnist(try_again=True))
    outcome = {"came": came, "why": ""}
except course.CourseError as error:
    outcome = {"came": [], "why": f"{type(error).__name__}: {error}"}
print(json.dumps(outcome))
"""


class Wrong(Exception):
    """What a round did was not reported as it was."""


@dataclass(frozen=True)
class Round:
    """One round: what is done, and all that is random about it.

    moment: from 0 to 1, when; victim: the rank or the number of the file it happens to;
    twice: whether it is done again at once.
    """

    number: int
    action: str
    moment: float
    victim: int
    twice: bool


def plan(seed: int, number: int) -> Round:
    """Round `number`, from 1, of a seed. Each action comes once in every so many."""
    block, place = divmod(number - 1, len(ACTIONS))
    actions = sorted(ACTIONS)
    random.Random(f"{seed} {block}").shuffle(actions)
    rng = random.Random(f"{seed} {block} {place}")
    moment = rng.random()
    return Round(number, actions[place], moment, rng.randrange(2), rng.random() < 0.5)


# ------------------------------------------------------------------- traces


def marked(mark: str) -> list[psutil.Process]:
    """The processes, dead ones that nobody has collected too, that a soak started."""
    processes = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if process.pid == os.getpid():
                continue
            if process.status() == psutil.STATUS_ZOMBIE:  # it has no variables
                started_here = process.ppid() == os.getpid()
            else:
                started_here = process.environ().get(MARK) == mark
            if started_here:
                processes.append(process)
    return processes


def traces(mark: str, *folders: Path) -> set[str]:
    """Everything that might be left behind, each as a sentence.

    folders: where only runs of the soak write temporary files.
    """
    sentences = set()
    for process in marked(mark):
        words = "(dead)"
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            words = " ".join(process.cmdline()) or words
            sentences |= _ports(process)
        sentences.add(f"process {process.pid}: {words[:100]}")
    sentences |= _ports(psutil.Process())
    for folder in folders:
        sentences |= {f"file {path}" for path in _below(folder)}
    for parent, names in SHARED.items():
        for name in names:
            for path in Path(parent).glob(name):
                if not _in_use(path):
                    sentences.add(f"file {path}")
    return sentences | _segments() | _own()


def _ports(process: psutil.Process) -> set[str]:
    return {
        f"port {connection.laddr.port}, on which process {process.pid} listens"
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }


def _in_use(path: Path) -> bool:
    """Is this the scratch folder of a process that lives?"""
    owner = files.owner(path)
    return owner is not None and psutil.pid_exists(owner)


def _segments() -> set[str]:
    """The System V shared memory, semaphores and queues of this user; Linux only."""
    sentences = set()
    for kind in ("shm", "sem", "msg"):
        path = Path("/proc/sysvipc", kind)
        if path.exists():
            header, *rows = (line.split() for line in path.read_text().splitlines())
            for row in rows:
                entry = dict(zip(header, row, strict=False))
                if entry["uid"] == str(os.getuid()):
                    sentences.add(f"System V {kind} segment {row[1]}")
    return sentences


def _own() -> set[str]:
    """This process's own threads and, on Linux, open files."""
    sentences = {f"thread {thread.name}" for thread in threading.enumerate()}
    for path in Path("/proc/self/fd").glob("*"):
        with contextlib.suppress(OSError):  # that of this very listing
            target = os.readlink(path)
            if not target.startswith(("/proc/", "/dev/pts")):
                sentences.add(f"open file {target}")
    return sentences


def halves(folder: Path) -> set[str]:
    """The half-written files below a folder."""
    return {f"file {path}" for path in _below(folder) if path.match(files.HALVES)}


def _below(folder: Path) -> list[Path]:
    """All files and folders below a folder, which others may be removing: unlike
    `Path.rglob`, `os.walk` passes over a folder that has just gone."""
    return [
        Path(parent, name)
        for parent, folders, files in os.walk(folder)
        for name in (*folders, *files)
    ]


def left_behind(before: set[str], mark: str, place: Path, *folders: Path) -> list[str]:
    """The traces that are still new once they had some seconds to go."""
    deadline = time.monotonic() + SETTLE
    while True:
        new = (traces(mark, *folders) - before) | halves(place)
        if not new or time.monotonic() > deadline:
            return sorted(new)
        time.sleep(0.1)


def end_all(mark: str) -> None:
    """Kill whatever a soak has started and not ended, and collect it."""
    deadline = time.monotonic() + SETTLE
    while (processes := marked(mark)) and time.monotonic() < deadline:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        supervise._reap()
        time.sleep(0.01)


# ------------------------------------------------------------------- runs


@contextlib.contextmanager
def owner(place: Path, *words: object, limit: int = 0, **options) -> Iterator:
    """A process of its own that runs a program, and its `outcome.json` afterwards."""
    options = {"workers": 2, "time_limit": PATIENCE, **options}
    request = json.dumps([[str(word) for word in words], options, limit])
    with (place / "owner.txt").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", OWNER, request],
            cwd=place,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=supervise.die_with_parent,
        )
    try:
        yield process
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE)
    finally:
        process.kill()
        process.wait()


def wait_for(condition: Callable[[], object], what: str, process=None):
    """What `condition` returns once that is true; Wrong after PATIENCE, or when the
    process has ended."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        ended = process is not None and process.poll() is not None
        value = condition()
        if value:
            return value
        if ended:
            raise Wrong(f"the run ended before {what}")
        time.sleep(0.05)
    raise Wrong(f"waited {PATIENCE:g} s for {what}")


def greeted(place: Path) -> Path | None:
    """The run's folder, once both workers have said hello."""
    for log in place.glob("logs/*/log.txt"):
        text = log.read_text(errors="replace")
        if all(f"worker {rank} of 2" in text for rank in (0, 1)):
            return log.parent
    return None


def outcome(place: Path) -> dict:
    path = place / "outcome.json"
    if not path.exists():
        output = (place / "owner.txt").read_text(errors="replace")
        raise Wrong(f"nothing was reported; said was: {output[-300:]}")
    return json.loads(path.read_text())


def expect(report: dict, status: int | None, *words: str) -> str:
    """The report in short, if it has this status (None: any but 0) and these words."""
    right = report["status"] != 0 if status is None else report["status"] == status
    if not right or not all(word in report["why"] for word in words):
        wanted = f"status {'not 0' if status is None else status}, {words}"
        raise Wrong(f"reported was {report}, expected {wanted}")
    return words[0] if words else f"status {report['status']}"


def end_well(place: Path, turn: Round) -> str:
    with owner(place, "program.py", "talk", turn.victim):
        pass
    expect(outcome(place), 0)
    lines = sum(len(log.read_text().splitlines()) for log in place.glob("logs/*/log*"))
    if lines != 2 * 2_001:
        raise Wrong(f"{lines} lines are in the log, 4002 were said")
    return "ended well"


def fail(place: Path, turn: Round) -> str:
    """A worker raises an exception, leaves with a status, or just leaves."""
    ending, word = (
        ("raise", "ValueError: no such garment"),
        ("exit", "sys.exit(3)"),
        ("leave", "it ended without finishing its work with the others"),
    )[int(turn.moment * 3)]
    with owner(place, "program.py", ending, turn.victim):
        pass
    return expect(outcome(place), None, word, f"rank {turn.victim} of 2 failed")


def interrupt(place: Path, turn: Round) -> str:
    """SIGINT to the owner at any moment, for the impatient twice."""
    with owner(place, "program.py", "wait", 0) as process:
        wait_for((place / "begun").exists, "its begin", process)
        time.sleep(turn.moment * LAST_MOMENT)
        process.send_signal(signal.SIGINT)
        if turn.twice:
            time.sleep(turn.moment / 3)
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT)
    if turn.twice and not (place / "outcome.json").exists():
        return "stopped, before it could report"
    expect(outcome(place), supervise.STOPPED)
    return "was stopped"


def stop_in_the_kernel(place: Path, turn: Round) -> str:
    """KeyboardInterrupt in this very process, in the middle of a run."""
    began = time.monotonic()

    def attend(run):
        if time.monotonic() - began > turn.moment * LAST_MOMENT:
            raise KeyboardInterrupt

    try:
        with working_in(place):
            launch.run("program.py", "wait", 0, workers=2, quiet=True, attend=attend)
    except RunFailed as failed:
        return expect(
            {"status": failed.run.status, "why": str(failed)},
            supervise.STOPPED,
            "was stopped",
        )
    raise Wrong("a run that was stopped is said to have ended well")


def kill(place: Path, who: Callable, turn: Round, *words: str) -> str:
    with owner(place, "program.py", "wait", 0) as process:
        run = wait_for(lambda: greeted(place), "both greetings", process)
        time.sleep(turn.moment)
        who(process, run).kill()
    return expect(outcome(place), None, *words)


def kill_worker(place: Path, turn: Round) -> str:
    word = f"rank {turn.victim} of 2 failed: it was ended by signal 9"
    return kill(place, lambda _, run: worker(run, turn.victim), turn, word)


def worker(run: Path, rank: int) -> psutil.Process:
    return watch.worker_processes(run)[rank]


def kill_mpirun(place: Path, turn: Round) -> str:
    kill(place, lambda process, _: below(process, 2), turn)
    return "the launcher's end was reported"


def kill_supervisor(place: Path, turn: Round) -> str:
    kill(place, lambda process, _: below(process, 1), turn)
    return "the supervisor's end was reported"


def below(process, depth: int) -> psutil.Process:
    """The only child; or the only child's only child."""
    child = psutil.Process(process.pid)
    for _ in range(depth):
        (child,) = child.children()
    return child


def kill_owner(place: Path, turn: Round) -> str:
    with owner(place, "program.py", "wait", 0) as process:
        wait_for((place / "begun").exists, "its begin", process)
        time.sleep(turn.moment * LAST_MOMENT)
        process.kill()
    if (place / "outcome.json").exists():
        raise Wrong("an owner that was killed has reported")
    return "the owner died"


def reach_the_limit(place: Path, turn: Round) -> str:
    limit = 1 + round(turn.moment * LIMIT, 2)
    with owner(place, "program.py", "wait", 0, time_limit=limit):
        pass
    return expect(outcome(place), supervise.TIMED_OUT, f"its time limit of {limit:g} s")


def fill_the_disk(place: Path, turn: Round) -> str:
    """A file can't grow any more: a worker's, or the log of the run."""
    if turn.twice:
        with owner(place, "program.py", "talk", 0, limit=FULL):
            pass
        return expect(outcome(place), None, "Make room", "File too large")
    with owner(place, "program.py", "fill", 0):
        pass
    return expect(outcome(place), None, "File too large")


# ------------------------------------------------------------------- the real program


def solution(place: Path) -> list:
    """The course's program, with as little work as can be."""
    program = course.PACKAGE_ROOT / "solutions" / "survive_solution.py"
    options = {"--train-images": 160, "--batch-size": 16, "--data": "sample"}
    options["--checkpoint"] = str(place / "kept")
    return [program, *(word for pair in options.items() for word in pair)]


def train(place: Path, turn: Round) -> str:
    with owner(place, *solution(place), "--epochs", 1):
        pass
    expect(outcome(place), 0)
    (history,) = place.glob("logs/*/history.csv")
    if len(history.read_text().splitlines()) != 2 or not kept(place):
        raise Wrong("it ended well, without a history of one epoch and a checkpoint")
    return "trained"


def kept(place: Path) -> list[Path]:
    return list(place.glob("kept/ckpt-*.index"))


def kill_in_training(place: Path, turn: Round) -> str:
    """SIGKILL of a worker that has TensorFlow's graph and threads."""
    with owner(place, *solution(place), "--epochs", 1_000) as process:

        def trained() -> Path | None:
            journals = place.glob("logs/*/journal*.csv")
            return next((path.parent for path in journals), None)

        run = wait_for(trained, "its first batch", process)
        time.sleep(turn.moment)
        worker(run, turn.victim).kill()
    word = f"rank {turn.victim} of 2 failed: it was ended by signal 9"
    return expect(outcome(place), None, word)


def fill_the_disk_in_training(place: Path, turn: Round) -> str:
    """No room for a checkpoint."""
    program = place / "training.py"
    program.write_text(
        "import resource, runpy\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({FULL}, {FULL}))\n"
        f"runpy.run_path({str(solution(place)[0])!r})\n"
    )
    with owner(place, "training.py", *solution(place)[1:], "--epochs", 1):
        pass
    report = outcome(place)
    if kept(place):
        raise Wrong("a checkpoint that can't be whole is there")
    return expect(report, None, "rank 0 of 2 failed", "File too large")


# ------------------------------------------------------------------- downloads


class Server(http.server.ThreadingHTTPServer):
    """Serves `content` by name, and does `fault` to the file `victim`."""

    def __init__(self, content: dict[str, bytes], victim: str, fault: str):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.content, self.victim, self.fault = content, victim, fault
        self.reached, self.over = threading.Event(), threading.Event()

    @contextlib.contextmanager
    def serving(self) -> Iterator[str]:
        with self:
            thread = threading.Thread(target=self.serve_forever)
            thread.start()
            try:
                yield f"http://127.0.0.1:{self.server_port}"
            finally:
                self.over.set()
                self.shutdown()
                thread.join()


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        name = self.path.rpartition("/")[2]
        content = self.server.content[name]
        fault = self.server.fault if name == self.server.victim else None
        if fault == "404":
            self.send_error(404)
            return
        if fault == "wrong bytes":
            content = bytes(reversed(content))
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        with contextlib.suppress(ConnectionError):  # the one who asked may be dead
            self.wfile.write(content[: len(content) // 2])
            self.wfile.flush()
            if name == self.server.victim:
                self.server.reached.set()
            if fault in ("silence", "killed"):
                self.server.over.wait(PATIENCE)
            if fault in (None, "wrong bytes", "full disk"):
                self.wfile.write(content[len(content) // 2 :])
        self.close_connection = True

    def log_message(self, *args):
        """Nobody reads it."""


# What each fault is reported as.
FAULTS = {
    "404": "HTTP Error 404",
    "breaks off": "did not come",
    "silence": "timed out",
    "wrong bytes": "is cut short or is no gzip file",
    "full disk": "Can't write to the cache",
    "killed": "",
}


def download(place: Path, turn: Round) -> str:
    """Of four files, one does not come whole; then all do."""
    fault = sorted(FAULTS)[int(turn.moment * len(FAULTS))]
    rng = random.Random(turn.moment)
    content, files = {}, {}
    for key in ("x_train", "y_train", "x_test", "y_test"):
        # An IDX file of one dimension: its type and their number, its length, bytes.
        data = b"\0\0\x08\1" + (4 * FULL).to_bytes(4, "big") + rng.randbytes(4 * FULL)
        name = f"{key}.gz"
        content[name] = gzip.compress(data)
        files[key] = (name, hashlib.sha256(data).hexdigest())
    victim = list(content)[2 * turn.victim + turn.twice]

    server = Server(content, victim, fault)
    with server.serving() as address, fetching(place, address, files, fault) as process:
        if fault == "killed":
            wait_for(server.reached.is_set, "half of a file", process)
            process.kill()
        output, _ = process.communicate(timeout=PATIENCE)
    if fault != "killed":
        why = json.loads(output)["why"]
        named = fault == "full disk" or victim in why
        if FAULTS[fault] not in why or not named:
            raise Wrong(f"reported was {why!r}, expected {FAULTS[fault]!r}, {victim}")
    check_whole(place, content)
    with (
        Server(content, "", "").serving() as address,
        fetching(place, address, files) as process,
    ):
        output, _ = process.communicate(timeout=PATIENCE)
    if json.loads(output)["came"] != sorted(files):
        raise Wrong(f"after that nothing came any more: {output}")
    check_whole(place, content)
    return f"{fault}, then all came"


@contextlib.contextmanager
def fetching(place: Path, address: str, files: dict, fault: str = "") -> Iterator:
    """A process that downloads from the address into the round's own cache."""
    limit = FULL if fault == "full disk" else 0
    surroundings = {**os.environ, "COURSE_MIRROR": address}
    surroundings.pop("COURSE_DATA", None)
    surroundings["COURSE_CACHE"] = str(place / "cache")
    process = subprocess.Popen(
        [sys.executable, "-c", DOWNLOAD, json.dumps([files, STALL, limit])],
        cwd=place,
        env=surroundings,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=supervise.die_with_parent,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def check_whole(place: Path, content: dict[str, bytes]) -> None:
    """What is in the cache is whole, and nothing there is half-written."""
    if halves(place):
        raise Wrong(f"half-written: {halves(place)}")
    for path in place.glob("cache/*/*.gz"):
        if path.read_bytes() != content[path.name]:
            raise Wrong(f"{path.name} is in the cache, and not whole")


ACTIONS: dict[str, Callable[[Path, Round], str]] = {
    "end well": end_well,
    "fail": fail,
    "interrupt": interrupt,
    "stop in the kernel": stop_in_the_kernel,
    "kill a worker": kill_worker,
    "kill mpirun": kill_mpirun,
    "kill the supervisor": kill_supervisor,
    "kill the owner": kill_owner,
    "reach the time limit": reach_the_limit,
    "fill the disk": fill_the_disk,
    "download": download,
    "train": train,
    "kill in training": kill_in_training,
    "fill the disk in training": fill_the_disk_in_training,
}


# ------------------------------------------------------------------- rounds


@dataclass
class Report:
    """What came of a soak: the rounds that were done, and a line for each fault."""

    seed: int
    folder: Path
    rounds: list[Round] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return bool(self.rounds) and not self.faults

    def __str__(self) -> str:
        done = f"{len(self.rounds)} rounds of seed {self.seed}"
        if self.ok:
            return f"{done}: all reported what happened, and nothing was left behind."
        if not self.rounds:
            return f"{done}: there was no time for any."
        return (
            f"{done}: {len(self.faults)} fault(s), kept in "
            f"{course.shown(self.folder)}.\n" + "\n".join(self.faults)
        )


def soak(
    minutes: float = 20.0,
    seed: int = 1,
    only: int | None = None,
    say: Callable[[str], None] = print,
) -> Report:
    """Do rounds until the time is up; `only`: this one alone.

    The last round may end later than that, by minutes at the most. Each has a line for
    `say`. A round with a fault keeps its folder, in the soak's below logs/.
    """
    mark = f"{os.getpid()}-{time.time_ns()}"
    report = Report(seed, logs.new_folder("soak"))
    end = time.monotonic() + 60 * minutes
    say(f"{'round':>5}  {'what':26} {'seconds':>7}  outcome")
    numbers = iter([only]) if only else iter(range(1, sys.maxsize))
    # Ctrl-C: the verdict is on the rounds that were done.
    with contextlib.suppress(KeyboardInterrupt), _surroundings(mark) as temporary:
        while time.monotonic() < end and (number := next(numbers, None)):
            turn = plan(seed, number)
            started = time.monotonic()
            line, faults = _do(turn, mark, report.folder / f"{number}", temporary)
            report.rounds.append(turn)
            seconds = time.monotonic() - started
            say(f"{number:5}  {turn.action:26} {seconds:7.1f}  {line}")
            command = f"python tests/soak.py --seed {seed} --round {number}"
            for fault in faults:
                say(f"{'':15}{fault}")
                report.faults.append(f"{command}   # {turn.action}: {fault}")
    if report.faults:
        faults = "".join(f"{fault}\n" for fault in report.faults)
        files.write_whole(report.folder / "faults.txt", faults)
    else:
        shutil.rmtree(report.folder)
    return report


@contextlib.contextmanager
def _surroundings(mark: str) -> Iterator[Path]:
    """The variables that mark what a soak starts, and temporary files of its own."""
    with tempfile.TemporaryDirectory(prefix="soak-") as temporary:
        wanted = {MARK: mark, "TMPDIR": temporary}
        before = {name: os.environ.get(name) for name in wanted}
        os.environ.update(wanted)
        tempfile.tempdir = None  # it would remember another
        try:
            yield Path(temporary)
        finally:
            end_all(mark)
            for name, value in before.items():
                os.environ.pop(name)
                if value is not None:
                    os.environ[name] = value
            tempfile.tempdir = None


def _do(turn: Round, mark: str, place: Path, temporary: Path) -> tuple[str, list[str]]:
    """One round: its line, and what was wrong with it."""
    for name in ("notebooks", "exercises"):
        (place / name).mkdir(parents=True)
    (place / "program.py").write_text(PROGRAM)
    before = traces(mark, temporary)
    faults = []
    try:
        line = ACTIONS[turn.action](place, turn)
    except Wrong as wrong:
        line = "WRONG"
        faults.append(str(wrong))
    new = left_behind(before, mark, place, temporary)
    if new:
        line = f"{line}; LEFT BEHIND"
        faults += new
        end_all(mark)
    if not faults:
        shutil.rmtree(place)
    return line, faults


def main(
    minutes: Annotated[float, typer.Option(help="For how long.")] = 20,
    seed: Annotated[int, typer.Option(help="Which sequence.")] = 1,
    only: Annotated[int | None, typer.Option("--round", help="Only this one.")] = None,
) -> None:
    """Run, interrupt, kill and starve runs at random; say what is left behind.

    It needs the machine to itself.
    """
    report = soak(minutes, seed, only)
    print(report)
    raise typer.Exit(0 if report.ok else 1)


if __name__ == "__main__":
    typer.run(main)
