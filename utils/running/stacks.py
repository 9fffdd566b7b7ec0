"""Where is each worker of a run at this moment? Ask all of them for their stacks.

A worker that `course run` starts has a thread that waits for the signal USR1, and then
writes down where the main thread is. Horovod and TensorFlow let other threads work
while they compute or wait. (Python's faulthandler would ask nobody's leave; but it
reads the stack while that changes, and now and then kills the worker.)
"""

import contextlib
import json
import re
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from distcheck import errors
from distcheck.show import Table

SIGNAL = signal.SIGUSR1
PATIENCE = 3.0  # seconds for a worker to answer
_LANDMARK = re.compile(r"fit|evaluate|predict|save\w*|load\w*|on_\w+")


@dataclass(frozen=True)
class Frame:
    """A call that has not returned yet."""

    file: str
    line: int
    function: str


@dataclass(frozen=True)
class Stack:
    """What a worker was doing: innermost call first; none if it did not answer.

    busy: the share of a core that its process used just then.
    """

    rank: int
    frames: tuple[Frame, ...]
    busy: float

    def of_program(self, name: str) -> Frame | None:
        """The innermost call in the file of this name."""
        return next((f for f in self.frames if Path(f.file).name == name), None)

    def inside(self, function: str, frame: Frame) -> bool:
        """Is a call on the way of Keras' function of this name?"""
        outwards = self.frames[self.frames.index(frame) :]
        return any(f.function == function and "/tf_keras/" in f.file for f in outwards)

    def doing(self, name: str) -> str:
        """What the innermost call in the file of this name has called, in few words:
        of Keras the parts of a training, of Horovod the function, of TensorFlow no more
        than that it runs a graph."""
        words: list[str] = []
        for frame in self.frames:  # outwards
            if Path(frame.file).name == name:
                break
            if "/horovod/" in frame.file and words[-1:] != ["in Horovod"]:
                words.append("in Horovod")
            elif frame.function == "quick_execute":
                words.append("in a graph of TensorFlow")
            elif "/tf_keras/" in frame.file and _LANDMARK.fullmatch(frame.function):
                words.append(frame.function)
        if words:
            return " > ".join(dict.fromkeys(reversed(words)))
        return self.frames[0].function if self.frames else "no answer"


def answer_from_now_on(folder: Path, rank: int) -> None:
    """Let this process write its stack when it is asked to; for workers."""
    path = _path(folder, rank)
    path.parent.mkdir(exist_ok=True)
    # In all threads to come: else the signal would end the process.
    signal.pthread_sigmask(signal.SIG_BLOCK, {SIGNAL})

    def answer() -> None:
        while True:
            signal.sigwait({SIGNAL})
            calls = json.dumps(_calls(threading.main_thread()))
            with path.open("a") as file:
                file.write(f"{calls}\n")

    threading.Thread(target=answer, daemon=True).start()


def _calls(thread: threading.Thread) -> list[tuple[str, int, str]]:
    """File, line and function of each call of a thread, innermost first."""
    frame, calls = sys._current_frames().get(thread.ident), []
    while frame:
        code = frame.f_code
        calls.append((code.co_filename, frame.f_lineno or 0, code.co_name))
        frame = frame.f_back
    return calls


def _path(folder: Path, rank: int) -> Path:
    return folder / "workers" / f"{rank}.stack"


def of_run(folder: Path) -> list[Stack]:
    """The stacks of the living workers of a run, by rank.

    Raises UserError if none is alive.
    """
    import psutil  # which workers do without

    from utils.running.watch import worker_processes

    workers = worker_processes(folder)
    if not workers:
        raise errors.UserError("no worker of this run is alive.")
    sizes = {}
    for rank, process in workers.items():
        path = _path(folder, rank)
        sizes[rank] = path.stat().st_size if path.exists() else 0
        with contextlib.suppress(psutil.NoSuchProcess):
            process.cpu_percent()
            process.send_signal(SIGNAL)
    time.sleep(0.3)
    deadline = time.monotonic() + PATIENCE
    stacks = []
    for rank, process in workers.items():
        text = ""
        while not text.endswith("\n") and time.monotonic() < deadline:
            path = _path(folder, rank)
            if path.exists():
                text = path.read_bytes()[sizes[rank] :].decode(errors="replace")
            time.sleep(0.05)
        calls = json.loads(text.splitlines()[-1]) if text.endswith("\n") else []
        frames = [Frame(*call) for call in calls]
        busy = 0.0
        with contextlib.suppress(psutil.NoSuchProcess):
            busy = process.cpu_percent() / 100
        stacks.append(Stack(rank, tuple(frames), busy))
    return stacks


def table(stacks: list[Stack], script: str) -> Table:
    """Where each worker is: the line of the program, and what it called there."""
    rows = []
    for stack in stacks:
        frame = stack.of_program(script)
        place = f"{script}, line {frame.line}" if frame else "not in the program"
        doing = stack.doing(script)
        rows.append((str(stack.rank), place, doing, f"{stack.busy:.0%}"))
    return Table(("rank", "where", "doing", "of a core"), rows)


def newest() -> Table:
    """The table for the run that is on now. Raises UserError when none is."""
    from utils.running.watch import newest_run

    folder = newest_run()
    stacks = of_run(folder)
    # The folder's name ends in that of the program, and maybe in a number of its own.
    name = folder.name.split("_", 2)[-1]
    scripts = [f"{name}.py", f"{re.sub(r'_[0-9]+$', '', name)}.py"]
    known = (s for s in scripts if any(stack.of_program(s) for stack in stacks))
    return table(stacks, next(known, scripts[-1]))
