"""What tests that start processes share: small programs, a count of survivors, a server
in this one."""

import contextlib
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from socketserver import BaseServer

import psutil

from utils.base import course
from utils.lessons import markup

# Each worker greets, meets the others once, and then does what the test asks for.
PROGRAM = """\
import os, signal, subprocess, sys, time
from mpi4py import MPI

world = MPI.COMM_WORLD
print(f"worker {world.rank} of {world.size}", flush=True)
world.Barrier()
what = sys.argv[1] if len(sys.argv) > 1 else "end"
unlucky = world.rank == world.size - 1
if what == "raise" and unlucky:
    raise ValueError("no such garment")
if what == "exit" and unlucky:
    sys.exit(3)
if what == "leave" and unlucky:
    os._exit(0)
if what == "die" and unlucky:
    os.kill(os.getpid(), signal.SIGKILL)
if what == "escape":
    null = subprocess.DEVNULL
    nap = ["sleep", "1000"]
    subprocess.Popen(nap, start_new_session=True, stdout=null, stderr=null)
    open(f"escaped.{world.rank}", "w").close()
if what != "end":
    time.sleep(1000)
"""


def program(folder: Path, text: str = PROGRAM, name: str = "program.py") -> Path:
    """Write a program into `folder`."""
    path = folder / name
    path.write_text(text)
    return path


@contextlib.contextmanager
def working_in(folder: Path):
    """contextlib.chdir, which Python 3.10 hasn't."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield folder
    finally:
        os.chdir(before)


@contextlib.contextmanager
def empty_course(folder: Path):
    """Make `folder` a course without notebooks and exercises, and work in it."""
    for name in ("notebooks", "exercises"):
        (folder / name).mkdir()
    with working_in(folder):
        yield folder


def ship_the_exercise(folder: Path, steps: int = 0) -> Path:
    """Make `folder` a course with one exercise, up to a step. Returns the program."""
    for name in ("notebooks", "exercises", "solutions"):
        (folder / name).mkdir()
    root, solution = course.PACKAGE_ROOT, "solutions/fashion_mnist_solution.py"
    shutil.copy(root / "exercises/hints.md", folder / "exercises")
    shutil.copy(root / solution, folder / "solutions")
    text = markup.render((root / solution).read_text(), steps)
    return program(folder / "exercises", text, "fashion_mnist.py")


def descendants_of_runs_in(folder: Path) -> list[psutil.Process]:
    """Every process that a run below `folder` started, at whatever depth.

    They are known by the variable COURSE_RUN, which they all inherit.
    """
    processes = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            run = process.environ().get("COURSE_RUN", "")
            if run.startswith(str(folder)) and process.status() != "zombie":
                processes.append(process)
    return processes


def assert_none_is_left(folder: Path) -> None:
    """That no process of a run is left; if one is, end it first."""
    processes = descendants_of_runs_in(folder)
    for process in processes:
        process.kill()
    assert not processes


def in_a_plain_shell(command: str) -> str:
    """What a command prints that a person types, with `.venv` activated."""
    return subprocess.run(
        command,
        shell=True,
        env=os.environ
        | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout


def wait_for(condition, seconds: float = 240, what: str = "the condition"):
    """Wait until `condition()` is true and return its value; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"waited {seconds} s for {what}")


def wait_until_none_is_left(folder: Path) -> float:
    """Wait until no process of a run is left; return how many seconds that took."""
    started = time.monotonic()
    wait_for(
        lambda: not descendants_of_runs_in(folder),
        seconds=10,
        what="every process of the run to end",
    )
    return time.monotonic() - started


@contextlib.contextmanager
def serving(server: BaseServer):
    """Let a server answer, on a thread, in this block."""
    with server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
