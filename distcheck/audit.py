"""Is a program distributed right? Run it for real, watched, and judge what was seen.

    distcheck -np 2 train.py -- --its-options

Any program with Horovod or tf.distribute will do; it is not changed, and runs in a copy
of the folder that one is in, so that it finds this as it was. Then it runs once more on
one worker, as what is right is often seen only by comparison.
"""

import ast
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from distcheck import errors, evidence, files, machine, mpi, programs, supervise
from distcheck import tasks as clusters
from distcheck.judges.audit import Finding, findings, recorded, running
from distcheck.judges.audit.recorded import RecordedRun
from distcheck.show import Page, Table
from distcheck.verdict import WRONG

TIME_LIMIT = 600.0  # seconds for a run
WARNED = 10  # seconds after which Horovod warns of a stall
# Seconds without progress. At the end of a pipeline, TensorFlow's tuner of it may sleep
# for up to a minute, and its worker with it: that is no stall.
STALLED_AFTER_WARNING = 65.0
MOST_COPIED = 1_000_000_000  # bytes of the folder that is copied
MOST_OUTPUT = 200_000  # characters that are kept of either end of what is printed
RECORDER = "distcheck.recorder.audit.auditor"
NOT_COPIED = (".git", ".venv", "venv", "__pycache__", "node_modules", ".nox", ".tox")

OUTPUTS = ("stdout", "stderr")  # of a task, see distcheck.tasks

HOROVOD, REPLICAS, TASKS = "Horovod", "tf.distribute", "TF_CONFIG"
ONE_PROCESS = {"MirroredStrategy", "OneDeviceStrategy"}  # strategies of REPLICAS
OF_TASKS = {"MultiWorkerMirroredStrategy", "CollectiveAllReduceStrategy"}
NOT_WATCHED = (
    "ParameterServerStrategy",
    "ParameterServerStrategyV2",
    "TPUStrategy",
    "TPUStrategyV2",
)
POLL_SECONDS = 0.1


@dataclass(frozen=True, repr=False)
class Report(Page):
    """What was found; shows itself as a table.

    script: the program, as a person would type it. workers: how many ran it.
    """

    script: str
    workers: int
    findings: list[Finding]
    seconds: float
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.wrong

    @property
    def wrong(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.verdict == WRONG]

    def as_json(self) -> dict:
        """The same as plain values."""
        return {
            "script": self.script,
            "workers": self.workers,
            "ok": self.ok,
            "findings": [finding.as_json() for finding in self.findings],
            "notes": self.notes,
            "seconds": round(self.seconds, 1),
        }

    @property
    def parts(self) -> list[str | Table]:
        rows = [(f.question, f.verdict, f.sentence) for f in self.findings]
        wrong = f"{len(self.wrong)} wrong" if self.wrong else "Nothing wrong was seen"
        unknown = sum(f.verdict == recorded.UNKNOWN for f in self.findings)
        return [
            *self.notes,
            Table(("Question", "Verdict", "Seen"), rows),
            f"{wrong}; {unknown} {'question is' if unknown == 1 else 'questions are'} "
            f"left open. Watched for {self.seconds:.0f} s.",
        ]


# ---------------------------------------------------------------- what it is


def kind_of(script: Path) -> str:
    """How a program is distributed, by what it and the modules beside it name. It may
    name more than it uses: see `kind_made`.

    Raises UserError for one that uses neither Horovod nor tf.distribute, or uses
    only what is not watched.
    """
    names = _names(script)
    if "horovod" in names:
        return HOROVOD
    if OF_TASKS & names:
        return TASKS
    if ONE_PROCESS & names:
        return REPLICAS
    for name in NOT_WATCHED:
        if name in names:
            raise errors.UserError(_not_watched(script, name))
    if "distribute" in names:  # of which a strategy may be made by its name
        return REPLICAS
    raise errors.UserError(
        f"{files.shown(script)} uses neither Horovod nor a strategy of tf.distribute. "
        "It is not distributed, so there is nothing to judge."
    )


def _names(script: Path) -> set[str]:
    """What a program and the modules beside it name."""
    names: set[str] = set()
    for path in _with_neighbors(script):
        for node in ast.walk(programs.parse_program(path)):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names |= {node.module.split(".")[0]}
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.Attribute):
                names.add(node.attr)
            elif isinstance(node, ast.Name):
                names.add(node.id)
    return names


def kind_made(run: RecordedRun) -> str:
    """How a program that was run is distributed, by the strategy that it trains with or
    has made; the kind by which it was started if it has made none."""
    made = {event["kind"] for event in run.strategies}
    started = any(end["size"] is not None for end in run.ends())
    if run.kind == HOROVOD and (started or not run.whole):
        return HOROVOD
    if made & OF_TASKS:
        return TASKS
    if made & ONE_PROCESS:
        return REPLICAS
    return run.kind


def _not_watched(script: Path, name: str) -> str:
    return (
        f"{files.shown(script)} uses {name}, which an audit can't watch. It can watch "
        "Horovod, MirroredStrategy and MultiWorkerMirroredStrategy."
    )


def _with_neighbors(script: Path) -> list[Path]:
    """The program, and the modules of its folder that it imports, directly or not."""
    found, wanted = [], [script]
    while wanted:
        path = wanted.pop()
        found.append(path)
        for node in ast.walk(programs.parse_program(path)):
            modules = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                modules = [node.module or alias.name for alias in node.names]
            for module in modules:
                beside = script.parent.joinpath(*module.split("."))
                for file in (beside.with_suffix(".py"), beside / "__init__.py"):
                    if file.is_file() and file not in found + wanted:
                        wanted.append(file)
    return found


# ---------------------------------------------------------------- running it


def _command(kind: str, workers: int, program: list[str], folder: Path) -> list[str]:
    """The command that starts a watched program on so many workers."""
    if kind == HOROVOD:
        return [mpi.mpirun(), *mpi.mpirun_line(workers, program, None)[1:]]
    if kind == REPLICAS:
        return program
    cluster = json.dumps(clusters.free_cluster({"worker": workers}))
    line = [sys.executable, "-m", "distcheck.tasks", "--cluster", cluster]
    return [*line, "--output", str(folder / "ranks"), "--", *program]


def watched(script: Path, arguments: Sequence[str]) -> list[str]:
    """The command of a worker that runs the program and reports."""
    return [sys.executable, "-u", "-m", RECORDER, str(script), *arguments]


def environment(kind: str, workers: int, folder: Path, place: Path) -> dict[str, str]:
    """What a watched run needs in its environment."""
    variables = mpi.clean_environment()
    if kind != REPLICAS:
        variables |= mpi.thread_variables(machine.share(workers))
    gpus = machine.gpus(variables)
    if workers > gpus > 0:  # two on a GPU would take turns, and NCCL refuses them
        variables |= machine.HIDDEN
    return variables | {
        "DISTCHECK_REPORTS": str(folder),
        "DISTCHECK_PLACE": str(place),
        "DISTCHECK_REPLICAS": str(workers if kind == REPLICAS else 0),
        "HOROVOD_STALL_CHECK_TIME_SECONDS": str(WARNED),
        "PYTHONUNBUFFERED": "1",
    }


def _copied(place: Path, scratch: Path) -> Path:
    """A copy of the folder in which the program is run."""
    size = 0
    for folder, names, here in os.walk(place):
        names[:] = [name for name in names if name not in NOT_COPIED]
        for name in here:
            size += os.lstat(os.path.join(folder, name)).st_size
        if size > MOST_COPIED:
            raise errors.UserError(
                f"{place} has more than {MOST_COPIED / 1e9:g} GB of files, too many "
                "to copy for each run. Start the audit in the program's own "
                "folder, or use --in-place, which runs the program where it is."
            )
    copy = scratch / "copy" / place.name
    ignored = shutil.ignore_patterns(*NOT_COPIED)
    try:
        shutil.copytree(place, copy, symlinks=True, ignore=ignored)
    except OSError as error:  # shutil.Error is one, with a reason for each file
        reasons = error.args[0] if isinstance(error, shutil.Error) else [error]
        raise errors.UserError(
            f"{place} can't be copied, in which the program is run: {reasons[0]}. "
            "--in-place runs it where it is."
        ) from None
    return copy


class _Output(threading.Thread):
    """Reads what a run prints, and keeps both ends of it."""

    def __init__(self, stream):
        super().__init__(daemon=True)
        self.stream, self.first, self.last = stream, "", ""
        self.stalls: float | None = None
        self.start()

    def run(self) -> None:
        while chunk := self.stream.read1(65536):
            text = chunk.decode(errors="replace")
            if "waiting for remainder of ranks" in text:
                # The first: Horovod says it again for as long as it lasts.
                self.stalls = self.stalls or time.monotonic()
            room = MOST_OUTPUT - len(self.first)
            self.first += text[:room]
            self.last = (self.last + text[room:])[-MOST_OUTPUT:]

    @property
    def text(self) -> str:
        return self.first + self.last


def run(
    kind: str,
    workers: int,
    command: list[str],
    variables: dict[str, str],
    folder: Path,
    time_limit: float,
) -> RecordedRun:
    """Run a command that starts watched workers; what they reported.

    Ends all processes at the end, when the time is up, after a stall, and when it is
    interrupted.
    """
    started = time.monotonic()
    outcome = recorded.ENDED
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    # In a folder without modules, or the program's could be taken for Python's own.
    with supervise.owned(
        command, time_limit, env=variables, cwd=folder, **options
    ) as process:
        output, busy = _Output(process.stdout), started
        while process.poll() is None:
            time.sleep(POLL_SECONDS)
            if not output.stalls:
                continue
            # Who computes, compiles, or reads, lets the others wait, but not forever.
            if any(map(supervise.awake, _living(folder))):
                busy = time.monotonic()
            quiet = min(_quiet(folder, output.stalls), time.monotonic() - busy)
            if quiet > STALLED_AFTER_WARNING:
                outcome = recorded.STALLED
                _ask_where(folder)
                break
    output.join(5)
    if outcome == recorded.ENDED and process.returncode:
        timed_out = process.returncode == supervise.TIMED_OUT
        outcome = recorded.TIME_UP if timed_out else recorded.FAILED
    text = output.text
    if kind == TASKS:
        text = f"{text}\n{_of_tasks(folder, text)}"
    return recorded.read(
        folder, kind, workers, outcome, text, time.monotonic() - started
    )


def _of_tasks(folder: Path, said: str) -> str:
    """What the tasks of a cluster printed, each to files of its own; the one that
    failed, as its launcher said, comes last."""
    failed = re.search(r"^rank \d+(?=, .* failed: )", said, re.MULTILINE)
    name = failed[0].replace(" ", ".") if failed else ""
    places = sorted(
        folder.resolve().glob("ranks/1/rank.*"), key=lambda place: place.name == name
    )
    texts = (evidence.text(place / kind) for place in places for kind in OUTPUTS)
    return "\n".join(text[-MOST_OUTPUT:] for text in texts)


def _quiet(folder: Path, warned: float) -> float:
    """Seconds for which no worker got on, as far as is known."""
    now = time.time()
    beats = [now - path.stat().st_mtime for path in folder.glob("rank.*.beat")]
    return min([*beats, time.monotonic() - warned + WARNED])


def _living(folder: Path) -> list[psutil.Process]:
    """The workers that have not ended."""
    found = []
    for path in folder.glob("rank.*.jsonl"):
        with path.open() as file:
            match = re.search(r'"pid": (\d+)', file.readline())
        if match:
            with contextlib.suppress(psutil.NoSuchProcess):
                found.append(psutil.Process(int(match[1])))
    return found


def _ask_where(folder: Path) -> None:
    """Have each living worker write down where it is."""
    for process in _living(folder):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGUSR1)
    time.sleep(0.5)


def audit(
    script: str | os.PathLike,
    *arguments: object,
    workers: int = 2,
    quick: bool = False,
    in_place: bool = False,
    time_limit: float = TIME_LIMIT,
) -> Report:
    """Run `script` on `workers` workers, and on one, and judge how it is distributed.

    quick: leave out the run on one worker, and what only that can tell. in_place: run
    it in the working directory, not in a copy of it. time_limit: seconds for each run;
    what was seen until then is judged.

    Raises UserError for a program that can't be run or judged.
    """
    started = time.monotonic()
    if workers < 2:
        raise errors.UserError(
            f"workers must be 2 or more, not {workers}: an audit compares workers."
        )
    path = Path(script)
    kind = kind_of(path)
    runs: list[RecordedRun] = []
    for count in (workers,) if quick else (workers, 1):
        words = [str(word) for word in arguments]
        runs.append(observe(path, words, kind, count, time_limit, in_place))
        kind = runs[-1].kind
        if not runs[-1].trained and runs[-1].outcome != recorded.STALLED:
            break
    return report(files.shown(path), runs, time.monotonic() - started)


def observe(
    script: Path,
    arguments: Sequence[str],
    kind: str,
    workers: int,
    time_limit: float,
    in_place: bool = False,
) -> RecordedRun:
    """What so many workers report who run a program in this folder, or a copy of it.

    Starts it again where it turns out to be of another kind; and as one process where
    its tasks crash in MirroredStrategy, which it makes after the strategy of a cluster.
    A program that makes MirroredStrategy only without a cluster isn't started again,
    because that would hide the crash.

    Raises UserError for a program with a strategy that is not watched.
    """
    options = (script, arguments, workers, time_limit, in_place)
    watched_run = _observe_as(kind, *options)
    for event in watched_run.all("strategy"):
        if event["kind"] in NOT_WATCHED:
            raise errors.UserError(_not_watched(script, event["kind"]))
    made = kind_made(watched_run)
    if made != kind:
        return _observe_as(made, *options)
    if _crashed_in_a_cluster(watched_run) and ONE_PROCESS & _names(script):
        other = _observe_as(REPLICAS, *options)
        first = next((event["kind"] for event in other.all("strategy")), None)
        if other.trained and kind_made(other) == REPLICAS and first in OF_TASKS:
            other.crashed = _last_words(watched_run)
            return other
    return watched_run


def _last_words(run: RecordedRun) -> str:
    """How the launcher says that a task ended; else the last line that was printed."""
    said = re.search(r"^rank \d+, .* failed: .*", run.output, re.MULTILINE)
    lines = run.output.strip().splitlines()
    return (said[0] if said else lines[-1] if lines else "it printed nothing")[:500]


def _crashed_in_a_cluster(run: RecordedRun) -> bool:
    """Have the tasks ended without a word before they trained? TensorFlow does so where
    a program makes MirroredStrategy after that of a cluster."""
    spoke = run.trained or run.failure or run.ends()
    return run.kind == TASKS and run.outcome == recorded.FAILED and not spoke


def _observe_as(
    kind: str,
    script: Path,
    arguments: Sequence[str],
    workers: int,
    time_limit: float,
    in_place: bool,
) -> RecordedRun:
    here, script = Path.cwd().resolve(), script.resolve()
    with files.scratch() as scratch:
        folder = scratch / "reports"
        folder.mkdir()
        place = here if in_place else _copied(here, scratch)
        if script.is_relative_to(here):
            script = place / script.relative_to(here)
        command = _command(kind, workers, watched(script, arguments), folder)
        variables = environment(kind, workers, folder, place)
        return run(kind, workers, command, variables, folder, time_limit)


def report(script: str, runs: list[RecordedRun], seconds: float) -> Report:
    """Judge the runs: the first on all workers; the second, if any, on one.

    Raises UserError where there is nothing to judge.
    """
    for event in (event for run in runs for event in run.all("not read")):
        raise errors.UserError(
            f"{script} ended well, but distcheck could not read what it had come to, "
            "so nothing is judged. This is a fault of distcheck, not of the program. "
            f"Please report it, with these lines:\n{event['error']}"
        )
    parallel = runs[0]
    if not parallel.trained and parallel.outcome != recorded.STALLED:
        raise errors.UserError(_why_nothing(script, parallel))
    single = runs[1] if len(runs) > 1 and runs[1].trained else None
    notes = []
    if parallel.outcome == recorded.TIME_UP:
        notes.append(
            "The time limit ended the program. What was seen until then is judged."
        )
    if parallel.crashed:
        notes.append(
            "As several tasks the program ended without a word of its own: "
            f"{parallel.crashed}. It was run as one process instead."
        )
    if parallel.all("in place of GPUs"):
        notes.append(
            "The program names GPUs, of which there are none here. Its strategy got "
            f"{parallel.workers} parts of the processor in their place."
        )
    if len(runs) > 1 and not single:
        notes.append(
            "Nothing is compared with a single worker, on which there was no training: "
            f"{_why_nothing(script, runs[1])}"
        )
    found = findings(parallel, single, quick=len(runs) == 1)
    return Report(script, parallel.workers, found, seconds, notes)


def _why_nothing(script: str, run: RecordedRun) -> str:
    failure = run.failure
    last = "\n".join(run.output.strip().splitlines()[-15:])[-2000:]
    if failure:
        where = f" ({failure['where']})" if failure.get("where") else ""
        why = running.why(run, failure)
        return f"{script} failed before it trained: {why}{where}"
    if run.outcome == recorded.TIME_UP:
        return f"{script} had not begun to train when its time was over."
    if run.outcome == recorded.FAILED:
        return f"{script} could not be run. The last lines that it printed:\n{last}"
    return (
        f"{script} ended without training: no gradient of a Keras or TensorFlow "
        "variable was seen."
    )
