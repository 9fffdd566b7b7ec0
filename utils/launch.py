"""Start a program on N workers with `mpirun`, watch it, and end all of it.

`run` is behind both `course run` and the notebooks. It shows the plain `mpirun` line
that it stands for, one live line of progress, at most ten lines of output at the
end, and returns a `Run`. The workers' whole output is in the run's log.

With `tasks` the processes are a cluster as TensorFlow's own strategies have it, each
told by TF_CONFIG who it is; `utils.tasks` then stands in for mpirun.
"""

import ast
import contextlib
import difflib
import errno
import inspect
import json
import os
import re
import shlex
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import psutil

from utils import course, hosts, logs, steps, supervise
from utils import tasks as clusters
from utils.course import TIME_LIMIT
from utils.display import Display
from utils.profiles import gpus
from utils.watch import Watch

BEAT = 0.1  # seconds between two looks at the workers
TIMELINE = "timeline.json"
MEMORY_PER_WORKER = 0.7e9  # bytes: TensorFlow, the data and the width-1 network


class RunFailed(course.CourseError):
    """A run that did not end well; `.run` is what there is of it."""

    def __init__(self, message: str, run: "Run"):
        super().__init__(message)
        self.run = run


@dataclass
class Run:
    """What came of starting a program on some workers.

    workers is the number of processes, status mpirun's exit status (0: all ended well),
    seconds the time from start to end, samples the processor readings of a watched run.
    """

    script: str
    workers: int
    command: str
    folder: Path
    status: int = -1
    seconds: float = 0.0
    notices: list[str] = field(default_factory=list)
    samples: list[dict] = field(default_factory=list)

    @property
    def log(self) -> Path:
        """The whole output of all workers, each line with its rank in front."""
        return self.folder / "log.txt"

    @property
    def timeline(self) -> Path:
        """What Horovod did, and when, of a run started with `timeline=True`."""
        return self.folder / TIMELINE

    @cached_property
    def history(self):
        """pandas DataFrame, a row an epoch, of the worker that keeps history.csv."""
        return self.histories[0]

    @cached_property
    def histories(self) -> list:
        """One DataFrame for each worker that kept a history of its own.

        Raises CourseError if none did.
        """
        import pandas

        paths = sorted(self.folder.glob("history*.csv"), key=lambda p: (len(p.stem), p))
        found = [pandas.read_csv(path) for path in paths if path.stat().st_size]
        if not found:
            raise course.CourseError(
                f"{self.script} wrote no history.csv: did it train for an epoch?"
            )
        return found

    @property
    def images_per_second(self) -> float:
        """Median over the epochs after the first, which pays for building the graph;
        of the only epoch if there is just one."""
        speeds = self.history["images_per_second"]
        return float((speeds[1:] if len(speeds) > 1 else speeds).median())

    @property
    def seconds_per_epoch(self) -> float:
        """Seconds of training in an epoch; the median, as of images_per_second."""
        times = self.history["seconds"].diff().fillna(self.history["seconds"])
        return float((times[1:] if len(times) > 1 else times).median())

    def tail(self, lines: int = 10) -> str:
        """The last lines of the log."""
        with self.log.open(encoding="utf-8") as log:
            return "".join(deque(log, maxlen=lines)).rstrip()

    def recording(self, rank: int):
        """What `rank` recorded in a run started with `record=...`."""
        from utils import record

        return record.load(self.folder, rank)

    def as_json(self) -> dict:
        """What programs may want to know, as plain data."""
        return {
            "script": self.script,
            "workers": self.workers,
            "command": self.command,
            "status": self.status,
            "seconds": round(self.seconds, 3),
            "log": course.shown(self.log),
            "notices": self.notices,
            "history": (
                self.history.to_dict("records")
                if any(self.folder.glob("history*.csv"))
                else None
            ),
        }

    def __repr__(self) -> str:
        return (
            f"Run({self.script}, workers={self.workers}, status={self.status}, "
            f"seconds={self.seconds:.0f}, log={course.shown(self.log)})"
        )


def cores() -> int:
    """How many processor cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def mpirun_line(
    workers: int,
    program: list[str],
    threads: int | None,
    variables: Mapping[str, str] | None = None,
) -> list[str]:
    """The `mpirun` command that suits this machine, as an argument list.

    variables: what else of the environment the workers are to have.

    Workers that wait in MPI spin, and steal the core that another computes on;
    yielding gives it back. Binding is left to the kernel, as each worker has more
    threads than the one that computes.
    """
    line = ["mpirun", "-np", str(workers), "--bind-to", "none"]
    line += ["--mca", "mpi_yield_when_idle", "1"]
    if workers > cores():
        line += ["--oversubscribe"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        line += ["--allow-run-as-root"]
    for name, value in (thread_variables(threads) | dict(variables or {})).items():
        line += ["-x", f"{name}={value}"]
    return line + program


def thread_variables(threads: int | None, inter_op: int = 0) -> dict[str, str]:
    """What holds TensorFlow to so many threads; None: what it takes by itself.

    inter_op: threads that start operations; by default as many as compute, so that
        replicas in one process run side by side.
    """
    if not threads:
        return {}
    return {
        "OMP_NUM_THREADS": str(threads),
        "TF_NUM_INTRAOP_THREADS": str(threads),
        "TF_NUM_INTEROP_THREADS": str(inter_op or threads),
    }


def plain_tasks(
    cluster: clusters.Cluster, program: list[str], variables: dict[str, str]
) -> str:
    """The shell commands that start the tasks of a cluster by hand.

    Each line could as well be typed in a terminal, or on a machine, of its own.
    """
    pairs = [f"{name}={value}" for name, value in variables.items()]
    first = [" ".join(["export", *pairs])] if pairs else []
    lines = []
    for task in clusters.tasks_of(cluster):
        own = clusters.own_environment(task).items()
        words = [f"{name}={shlex.quote(value)}" for name, value in own]
        lines.append(" ".join([*words, shlex.join(program)]))
    if clusters.has_servers(cluster):  # they would never end by themselves
        chief, *servers = lines
        lines = [*(f"{line} &" for line in servers), chief, "kill $(jobs -p)"]
    else:
        lines = [*(f"{line} &" for line in lines), "wait"]
    return "\n".join([*first, *lines])


def _check(script: Path, workers: int, processes: int, horovod: bool) -> list[str]:
    """Refuse what can't work; return what the user should know about the rest.

    workers: of the processes, those that train.
    """
    if not isinstance(workers, int) or workers < 1:
        raise course.CourseError(f"workers must be 1 or more, not {workers!r}.")
    tree = steps.parse_program(script)
    notices = []
    if horovod and workers > 1 and not _starts_a_library(tree):
        notices.append(
            f"{script.name} never calls hvd.init(): its {workers} workers run side by "
            "side, each as if it were alone."
        )
    if gpus():
        if workers > gpus():
            notices.append(f"{workers} workers share {gpus()} GPU(s).")
        return notices
    if workers > cores():
        notices.append(
            f"{workers} workers on {cores()} cores take turns: expect no speed-up "
            f"beyond {cores()} workers."
        )
    needed = processes * MEMORY_PER_WORKER
    free = psutil.virtual_memory().available
    if needed > free:
        raise course.CourseError(
            f"{processes} workers need about {needed / 1e9:.0f} GB of memory; "
            f"{free / 1e9:.1f} GB are free. Start fewer workers or close programs."
        )
    return notices


def _refuse_unknown(options: Mapping[str, object], script: Path) -> None:
    """Raise CourseError for a word that is neither the program's nor `run`'s.

    What a program knows is told by the texts in it that begin with `--`; one without
    such texts may read its arguments as it likes.
    """
    nodes = ast.walk(steps.parse_program(script))
    texts = [node.value for node in nodes if isinstance(node, ast.Constant)]
    flags = {text for text in texts if isinstance(text, str) and text.startswith("--")}
    theirs = [flag[2:].replace("-", "_") for flag in flags]
    ours = [
        name
        for name, parameter in inspect.signature(run).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    ]
    for name in options:
        if name in theirs:
            continue
        near = difflib.get_close_matches(name, [*ours, *theirs], n=1, cutoff=0.75)
        if near or theirs:
            hint = f" Did you mean `{near[0]}`?" if near else ""
            raise course.CourseError(
                f"neither `run` nor {script.name} knows `{name}`.{hint}"
            )


def _starts_a_library(tree: ast.Module) -> bool:
    """Does the program itself call an `init`, or import MPI, which starts itself?"""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name == "init":
                return True
        if isinstance(node, ast.ImportFrom) and node.module == "mpi4py":
            return True
    return False


def run(
    script: str | os.PathLike,
    *arguments: object,
    workers: int = 2,
    tasks: Mapping[str, int] | None = None,
    restarts: int = 0,
    tolerate: str | None = None,
    elastic: bool = False,
    reset_limit: int | None = None,
    attend: Callable[["Run"], None] | None = None,
    threads: int | None = None,
    time_limit: float = TIME_LIMIT,
    record: int = 0,
    fingerprint: bool = False,
    timeline: bool = False,
    watch: bool = False,
    quiet: bool = False,
    environment: Mapping[str, str] | None = None,
    **options: object,
) -> Run:
    """Run `script` on `workers` workers under `mpirun` and wait for its end.

    tasks: instead, run it as the tasks of a TF_CONFIG cluster on this machine, such as
        {"chief": 1, "worker": 2, "ps": 1}. The next two are for this form alone.
    restarts: after how many failures the task that failed is started again, and, in a
        cluster without servers, all the others with it.
    tolerate: a failed task of this type, such as "worker", does not end the others.
    arguments, options: the program's own; `epochs=3` becomes `--epochs 3`.
    elastic: let `horovodrun` start the workers, half of them as if on another host, so
        that training goes on when a host is lost (utils.elastic).
    reset_limit: after how many such changes an elastic run is ended.
    attend: called with the run again and again while it is on.
    threads: how many threads, and so cores, each worker computes with; by default the
        cores are shared out. Without meaning where there are GPUs.
    time_limit: seconds, after which every process is ended.
    record: let each worker keep its weights of so many batches (`Run.recording`).
    fingerprint: let each worker note what must be the same on all (utils.fingerprint).
    timeline: let Horovod write down what it does, and when (`Run.timeline`).
    watch: sample which core each worker loads (`Run.samples`).
    quiet: show nothing while it runs.
    environment: variables for the workers, such as {"HOROVOD_CYCLE_TIME": "5"}.

    Raises CourseError for a program, a number of workers or a word that can't be, and
    RunFailed when a worker fails, the time is up or the run is stopped; by then no
    process is left. An interrupt (Ctrl-C, the stop button) ends the run likewise.
    """
    script = Path(script)
    if tolerate is not None and tolerate not in (tasks or {}):
        raise course.CourseError(
            f"tolerate is {tolerate!r}, a type that the run has no tasks of."
        )
    if tasks is not None and (timeline or elastic):
        raise course.CourseError("timeline and elastic are Horovod's: not with tasks.")
    if elastic and workers < 2:
        raise course.CourseError("an elastic run begins with 2 workers or more.")
    cluster = clusters.free_cluster(tasks) if tasks is not None else None
    if cluster is not None:
        everybody = clusters.tasks_of(cluster)
        computing = sum(task.computes for task in everybody)
        processes = len(everybody)
    else:
        computing = processes = workers
    notices = _check(script, computing, processes, horovod=cluster is None)
    _refuse_unknown(options, script)
    own = words(arguments, options)

    if gpus():
        threads = None
    elif threads is None:
        threads = max(1, cores() // computing)
    shown = ["python", str(script), *own]
    worker = [sys.executable, "-u", "-m", "utils.worker", str(script), *own]
    extra = dict(environment or {})
    environment = clean_environment() | extra
    folder = logs.new_folder(script.stem)
    if timeline:
        extra["HOROVOD_TIMELINE"] = course.shown(folder / TIMELINE)
    if elastic:
        line = hosts.horovodrun_line(workers, folder, reset_limit)
        variables = thread_variables(threads) | extra
        environment |= variables | {"COURSE_OUTPUT": str(folder / "ranks")}
        pairs = [f"{name}={value}" for name, value in variables.items()]
        command = " ".join([*pairs, shlex.join([*line, *shown])])
        actual = [*line, *worker]
    elif cluster is None:
        command = shlex.join(mpirun_line(workers, shown, threads, extra))
        actual = mpirun_line(workers, worker, threads, extra)
        actual[:1] = [mpirun(), "--output-filename", f"{folder / 'ranks'}:nocopy"]
    else:
        # Steps that wait for weights hold a thread; a ps needs one more than workers.
        inter_op = 1 + len(cluster.get("worker", [])) if "ps" in cluster else 0
        variables = thread_variables(threads, inter_op) | extra
        environment |= variables
        command = plain_tasks(cluster, shown, variables)
        actual = [sys.executable, "-m", "utils.tasks"]
        actual += ["--cluster", json.dumps(cluster), "--output", f"{folder / 'ranks'}"]
        actual += ["--restarts", str(restarts)]
        actual += ["--tolerate", tolerate] if tolerate else []
        actual += ["--", *worker]
    result = Run(script.name, processes, command, folder)
    result.notices += notices
    environment["COURSE_RUN"] = str(result.folder)
    if record:
        environment["COURSE_RECORD"] = str(record)
    if fingerprint:
        environment["COURSE_FINGERPRINT"] = "1"

    watching = Watch(result.folder) if watch else None
    return follow(actual, result, environment, time_limit, attend, watching, quiet)


def follow(
    line: list[str],
    result: Run,
    environment: Mapping[str, str],
    time_limit: float = TIME_LIMIT,
    attend: Callable[[Run], None] | None = None,
    watching: Watch | None = None,
    quiet: bool = False,
) -> Run:
    """Start a launcher, show what its workers print, and return `result`, filled in.

    line: the launcher's command; what it says goes to launcher.txt of the run's folder,
    and its workers' output is looked for in `ranks` there. The rest as for `run`.
    Raises RunFailed when it fails, reaches the limit or is interrupted.
    """
    started = time.monotonic()
    with (
        _room_for(result),
        Display(result, quiet) as display,
        Followed(result) as output,
    ):
        try:
            with (
                (result.folder / "launcher.txt").open("wb") as said,
                supervise.owned(
                    line, time_limit, env=environment, stdout=said, stderr=said
                ) as process,
            ):
                while process.poll() is None:
                    time.sleep(BEAT)
                    output.read()
                    display.update(output.progress)
                    if attend:
                        attend(result)
                    if watching:
                        result.samples += watching.sample()
                result.status = process.returncode
        except KeyboardInterrupt:
            result.status = supervise.STOPPED
        finally:
            result.seconds = time.monotonic() - started
            output.read(last=True)
        result.notices += [n for n in output.notices if n not in result.notices]
    if result.status:
        raise RunFailed(_why(result, time_limit), result)
    return result


def words(arguments: Sequence[object], options: Mapping[str, object]) -> list[str]:
    """A program's own arguments and options: `epochs=3` becomes `--epochs 3`."""
    own = [str(argument) for argument in arguments]
    for name, value in options.items():
        own += [f"--{name.replace('_', '-')}", str(value)]
    return own


@contextlib.contextmanager
def _room_for(result: Run) -> Iterator[None]:
    """A disk that is too full for what a run writes is for the user to mend."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise RunFailed(
            f"{result.script} was stopped, and all its workers were ended, as its log "
            f"can't be written: {error.strerror}. Make room where "
            f"{course.shown(result.folder)} is.",
            result,
        ) from None


def _path() -> str:
    """PATH with this Python's own folder first: its mpirun belongs to it."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])


def mpirun() -> str:
    mpirun = shutil.which("mpirun", path=_path())
    if mpirun is None:
        raise course.CourseError("there is no mpirun here; `make setup` installs it.")
    return mpirun


def clean_environment() -> dict[str, str]:
    """This process's environment, for a run of its own.

    A worker of a run must not believe to be a worker of the run that started it.
    """
    ours = ("OMPI_", "PMIX_", "HOROVOD_RANK", "TF_CONFIG", "COURSE_TASK")
    kept = {n: v for n, v in os.environ.items() if not n.startswith(ours)}
    # No message goes by libfabric's way (it is for one-sided communication), but to
    # close it takes a second at the end of every run.
    return kept | {"PATH": _path(), "OMPI_MCA_btl": "^ofi"}


class Followed:
    """Reads what the workers print as they print it, into the run's log.

    Workers write to files of their own, so their lines can't mix. A progress bar
    rewrites its line with carriage returns and backspaces; the log has its last
    state only.
    """

    _REWRITE = re.compile(r".*\r|\x08+|\x1b\[[0-9;]*[A-Za-z]")
    # Horovod names its sources by where pip has built it, which is long gone.
    _BUILD = re.compile(r"/\S*/pip-install-\w+/[^/\s]+/")
    _EPOCH = re.compile(r"Epoch (\d+)/(\d+)")
    _BAR = re.compile(r" *(\d+)/(\d+) \[")

    def __init__(self, result: Run):
        self.result = result
        self.notices: list[str] = []
        self.progress: dict = {}
        self._open: dict[Path, tuple] = {}
        self._bar_started: float | None = None

    def __enter__(self):
        self._log = self.result.log.open("w", encoding="utf-8")
        return self

    def __exit__(self, *error):
        self._log.close()
        for stream, _ in self._open.values():
            stream.close()

    def read(self, last: bool = False) -> None:
        """Take in what is new; with `last`, unfinished lines too."""
        for path in sorted(self.result.folder.glob("ranks/1/rank.*/std*")):
            if path not in self._open:
                self._open[path] = (path.open("rb"), b"")
            stream, rest = self._open[path]
            *lines, rest = (rest + stream.read()).split(b"\n")
            rest = rest[max(0, rest.rfind(b"\r")) :]
            if last and rest:
                lines, rest = [*lines, rest], b""
            rank = int(path.parent.name.partition(".")[2])
            for line in lines:
                self._take(rank, self._clean(line))
            if rank == 0 and path.name == "stdout":
                self._look_at_bar(self._clean(rest))
            self._open[path] = (stream, rest)
        self._log.flush()

    def _clean(self, line: bytes) -> str:
        text = line.decode("utf-8", errors="replace").rstrip("\r")
        return self._BUILD.sub("", self._REWRITE.sub("", text)).rstrip()

    def _take(self, rank: int, line: str) -> None:
        if not line:
            return
        self._log.write(f"[{rank}] {line}\n")
        if line.startswith("NOTICE: ") and line[8:] not in self.notices:
            self.notices.append(line[8:])
        epoch = self._EPOCH.match(line) if rank == 0 else None
        if epoch:
            now, total = int(epoch[1]), int(epoch[2])
            self.progress.update(epoch=now, epochs=total, step=0, steps=1)

    def _look_at_bar(self, text: str) -> None:
        bar = self._BAR.match(text)
        if bar and "epoch" in self.progress:
            self.progress.update(step=int(bar[1]), steps=int(bar[2]))
        if "epoch" not in self.progress:
            return
        done = (
            self.progress["epoch"] - 1 + self.progress["step"] / self.progress["steps"]
        )
        self.progress["done"] = done / self.progress["epochs"]
        now = time.monotonic()
        if done and self._bar_started is None:
            self._bar_started, self._done_then = now, self.progress["done"]
        elif done and self.progress["done"] > self._done_then:
            pace = (now - self._bar_started) / (self.progress["done"] - self._done_then)
            self.progress["seconds_left"] = pace * (1 - self.progress["done"])
        self.progress["images_per_second"] = self._last_speed()

    def _last_speed(self) -> float | None:
        """Images per second of the last whole epoch, from history.csv."""
        path = self.result.folder / "history.csv"
        if not path.exists():
            return None
        header, *rows = path.read_text().splitlines() or [""]
        names = header.split(",")
        if not rows or "images_per_second" not in names:
            return None
        values = rows[-1].split(",")
        if len(values) < len(names):  # a row that is just being written
            return None
        return float(values[names.index("images_per_second")])


def _why(result: Run, time_limit: float) -> str:
    """One message on why a run failed: which rank, with the last lines it printed."""
    where = f"The whole log: {course.shown(result.log)}"
    if result.status == supervise.TIMED_OUT:
        return (
            f"{result.script} was stopped after its time limit of {time_limit:g} s, "
            "and all its workers were ended. A larger time_limit= (--time-limit) "
            f"gives it longer.\n{result.tail()}\n{where}"
        )
    if result.status == supervise.STOPPED:
        return f"{result.script} was stopped, and all its workers were ended. {where}"
    said = (result.folder / "launcher.txt").read_text(errors="replace")
    task = re.search(r"^rank (\d+), (\w+ \d+), failed: (.*)$", said, re.M)
    if task:
        rank, who = int(task[1]), task[2]
        what = _own_word(result.folder / "workers" / f"{rank}.json") or task[3]
    else:
        rank, what = _culprit(result, said)
        who = f"rank {rank} of {result.workers}"
    if rank is None:
        return (
            f"the launcher ended with status {result.status}:\n{said.strip()}\n{where}"
        )
    own = [
        line
        for line in result.log.read_text().splitlines()
        if line.startswith(f"[{rank}] ")
    ]
    tail = "\n".join(own[-10:])
    return (
        f"{who} failed: {what}. All workers were ended.\n"
        f"Its last lines:\n{tail}\n{where}"
    )


def _culprit(result: Run, mpirun: str) -> tuple[int | None, str]:
    """The rank that failed first, and how: its own word for it, else mpirun's."""
    reports = sorted(result.folder.glob("workers/*.json"), key=os.path.getmtime)
    for path in reports:
        if error := _own_word(path):
            return int(path.stem), error
    killed = re.search(
        r"process rank (\d+) .*? on signal (\d+) \(([^)]*)\)", mpirun, re.S
    )
    if killed:
        return int(killed[1]), f"it was ended by signal {killed[2]}, {killed[3]}"
    left = re.search(r"process rank (\d+) with .*? exiting improperly", mpirun, re.S)
    if left:
        return int(left[1]), "it ended without finishing its work with the others"
    return None, ""


def _own_word(path: Path) -> str | None:
    """What a worker reports to have failed of, and in which line."""
    report = json.loads(path.read_text()) if path.exists() else {}
    if "error" not in report:
        return None
    return report["error"] + (
        f", in line {report['line']}" if report.get("line") else ""
    )
