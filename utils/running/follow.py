"""Start a launcher, show what its workers print, and end all of them.

In a notebook the live line is one output that is rewritten, so that an executed
notebook holds only its last state. Where output goes to a file, a line is printed per
epoch.
"""

import contextlib
import csv
import errno
import html
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from distcheck import files, supervise
from distcheck.show import PRE_STYLE, in_notebook
from utils.base.course import TIME_LIMIT
from utils.running import explain
from utils.running.result import Run, RunFailed
from utils.running.watch import Watch

BEAT = 0.1  # seconds between two looks at the workers


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
                (result.folder / "launcher.txt").open("wb") as output_file,
                supervise.owned(
                    line,
                    time_limit,
                    env=environment,
                    stdout=output_file,
                    stderr=output_file,
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
        raise RunFailed(_why(result, time_limit) + _known(result), result)
    return result


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
            f"{files.shown(result.folder)} is.",
            result,
        ) from None


class Followed:
    """Reads what the workers print as they print it, into the run's log.

    Workers write to files of their own, so their lines can't mix. A progress bar
    rewrites its line with carriage returns and backspaces; the log has its last
    state only.
    """

    _REWRITE = re.compile(r".*\r|\x08+|\x1b\[[0-9;]*[A-Za-z]")
    # Horovod names its sources by where it was built, which is long gone.
    _BUILD = re.compile(r"/\S*/horovod-\d[\d.]*/")
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
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
        # A row that is just being written lacks its last columns.
        if not rows or None in rows[-1].values() or "images_per_second" not in rows[-1]:
            return None
        return float(rows[-1]["images_per_second"])


def _why(result: Run, time_limit: float) -> str:
    """One message on why a run failed: which rank, with the last lines it printed."""
    where = f"The whole log: {files.shown(result.log)}"
    if result.status == supervise.TIMED_OUT:
        return (
            f"{result.script} was stopped after its time limit of {time_limit:g} s, "
            "and all its workers were ended. A larger time_limit= (--time-limit) "
            f"gives it longer.\n{result.tail()}\n{where}"
        )
    if result.status == supervise.STOPPED:
        return f"{result.script} was stopped, and all its workers were ended. {where}"
    output = (result.folder / "launcher.txt").read_text(errors="replace")
    task = re.search(r"^rank (\d+), (\w+ \d+), failed: (.*)$", output, re.M)
    if task:
        rank, culprit = int(task[1]), task[2]
        reason = _error_of(result.folder / "workers" / f"{rank}.json") or task[3]
    else:
        rank, reason = _culprit(result, output)
        culprit = f"rank {rank} of {result.workers}"
    if rank is None:
        message = f"the launcher ended with status {result.status}"
        return f"{message}:\n{output.strip()}\n{where}"
    own_lines = [
        line
        for line in result.log.read_text().splitlines()
        if line.startswith(f"[{rank}] ")
    ]
    tail = "\n".join(own_lines[-10:])
    return (
        f"{culprit} failed: {reason}. All workers were ended.\n"
        f"Its last lines:\n{tail}\n{where}"
    )


def _known(result: Run) -> str:
    """What the table of messages says of the error, if it knows it."""
    if result.status == supervise.STOPPED:
        return ""
    # What stands still prints warnings alone; else they may be about something else.
    kinds = ("error", "warning") if result.status == supervise.TIMED_OUT else ("error",)
    explanation = explain.explain(explain.lines_of_run(result.folder))
    first = explanation.first
    if first and first.kind == "consequence" and first.ranks:
        return f"\n{explanation}"  # of a rank that has ended without any error
    return f"\n{first.explained()}" if first and first.kind in kinds else ""


def _culprit(result: Run, mpirun: str) -> tuple[int | None, str]:
    """The rank that failed first, and how: its own word for it, else mpirun's."""
    reports = sorted(result.folder.glob("workers/*.json"), key=os.path.getmtime)
    for path in reports:
        if error := _error_of(path):
            return int(path.stem), error
    killed = re.search(
        r"process rank (\d+) .*? on signal (\d+) \(([^)]*)\)", mpirun, re.S
    )
    if killed:
        return int(killed[1]), f"it was ended by signal {killed[2]}, {killed[3]}"
    exited = re.search(r"process rank (\d+) with .*? exiting improperly", mpirun, re.S)
    if exited:
        return int(exited[1]), "it ended without finishing its work with the others"
    return None, ""


def _error_of(path: Path) -> str | None:
    """What a worker reports to have failed of, and in which line."""
    report = json.loads(path.read_text()) if path.exists() else {}
    if "error" not in report:
        return None
    # TensorFlow says where each operation of a graph was made, in many frames.
    lines = report["error"].removesuffix(".").splitlines()
    error = "\n".join(
        line for line in lines if line.strip() and not line.startswith('  File "')
    )
    return error + (f", in line {report['line']}" if report.get("line") else "")


# ------------------------------------------------------------------ the live line

TAIL_LINES = 10
BAR_CELLS = 20


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def describe(progress: dict, seconds: float) -> str:
    """The live line: epoch, images per second and time left, as far as known."""
    if "epoch" not in progress:
        return f"starting ({_clock(seconds)}) ..."
    done = progress.get("done", 0.0)
    bar = "#" * round(done * BAR_CELLS)
    line = f"epoch {progress['epoch']}/{progress['epochs']} [{bar:.<{BAR_CELLS}}]"
    if progress.get("images_per_second"):
        line += f" {progress['images_per_second']:,.0f} images/s,"
    if "seconds_left" in progress:
        return f"{line} {_clock(progress['seconds_left'])} left"
    return f"{line} {_clock(seconds)} so far"


class Display:
    """Shows a run from start to end: use as a context manager, call `update`."""

    def __init__(self, run: "Run", quiet: bool = False):
        self.run = run
        self.quiet = quiet
        self.started = time.monotonic()
        self.printed_epoch = 0
        self.handle = self.live = None

    def __enter__(self):
        if self.quiet:
            return self
        if in_notebook():
            from IPython.display import display

            self.handle = display(
                self._bundle("starting ..."), raw=True, display_id=True
            )
        else:
            print(f"$ {self.run.command}", flush=True)
            if sys.stdout.isatty():
                from rich.live import Live

                self.live = Live(transient=True, refresh_per_second=5)
                self.live.start()
        return self

    def update(self, progress: dict) -> None:
        """Show the progress so far; see `describe` for its keys."""
        if self.quiet:
            return
        seconds = time.monotonic() - self.started
        if self.handle:
            self.handle.update(self._bundle(describe(progress, seconds)), raw=True)
        elif self.live:
            from rich.text import Text

            self.live.update(Text(describe(progress, seconds)))
        elif progress.get("epoch", 0) > self.printed_epoch:
            self.printed_epoch = progress["epoch"]
            print(describe(progress, seconds), flush=True)

    def __exit__(self, *error):
        if self.quiet:
            return
        if self.live:
            self.live.stop()
        closing = self._closing()
        if self.handle:
            self.handle.update(self._bundle(closing), raw=True)
        else:
            print(closing, flush=True)

    def _closing(self) -> str:
        """At most ten lines of output, the notices, and a line that sums up."""
        run = self.run
        parts = [run.tail(TAIL_LINES)] if run.status == 0 else []
        parts += [f"NOTICE: {text}" for text in run.notices]
        plural = "s" * (run.workers > 1)
        summary = f"{run.workers} worker{plural}, {run.seconds:.0f} s"
        parts.append(f"{summary}, log: {files.shown(run.log)}")
        return "\n".join(part for part in parts if part)

    def _bundle(self, text: str) -> dict[str, str]:
        plain = f"$ {self.run.command}\n{text}"
        return {
            "text/plain": plain,
            "text/html": f'<pre style="{PRE_STYLE}">{html.escape(plain)}</pre>',
        }
