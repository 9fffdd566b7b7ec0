"""Own a command and everything it starts, and end all of it.

    python -m distcheck.supervise --time-limit 60 -- mpirun -np 2 python program.py

The command may be an mpirun, as here, or what starts several, such as the lab of the
checks. Whoever starts this keeps its standard input open. When the command ends, the
time limit passes, standard input closes (because its owner stopped or died) or a signal
asks it to stop, every process that the command left behind is ended before this
process ends. `mpirun` gives each worker a process group of its own, so killing a
group is not enough: on Linux, orphans of any depth return to this process,
or to one below it that adopts them as well (`adopt_orphans`). What a supervisor leaves
that was killed itself, its owner ends, or the next command (`sweep`).

Exit status: the command's own (128 + n when it died from signal n), else
TIMED_OUT or STOPPED.
"""

import argparse
import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil

from distcheck import errors, files

TIMED_OUT = 124  # as timeout(1) has it
STOPPED = 130  # as shells report a Ctrl-C

POLL_SECONDS = 0.05
GRACE_SECONDS = 1.0  # for the command to end by itself when asked
KILL_SECONDS = 20.0  # for what is killed to be gone
END_SECONDS = GRACE_SECONDS + KILL_SECONDS + 5.0  # for the supervisor to end

# Options for `owned`, to read what the command says line by line.
READ_LINES = {
    "stdout": subprocess.PIPE,
    "stderr": subprocess.STDOUT,
    "text": True,
    "errors": "replace",
}

# Where Open MPI puts the memory that workers share.
SHARED_MEMORY = "OMPI_MCA_btl_vader_backing_directory"

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def die_with_parent(number: int = signal.SIGTERM) -> None:
    """Should the parent die, even killed, this process gets signal `number`."""
    _prctl(_PR_SET_PDEATHSIG, number)


def adopt_orphans() -> None:
    """From now on, processes below this one whose parents end become its children:
    let it be a "child subreaper" (prctl(2)), where the system has that."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


class Supervisor:
    """Runs `command` and ends all of its descendants. Use `run()` once."""

    def __init__(self, command: list[str], time_limit: float | None):
        self.command = command
        self.time_limit = time_limit
        self.stop_requested = False
        # Where there is no subreaper (macOS), orphans are only known if they were
        # seen while their parent lived.
        self.known: set[psutil.Process] = set()

    def run(self) -> int:
        """Run the command to its end and return this process's exit status."""
        adopt_orphans()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._request_stop)
        # Killed processes can't tidy up: Open MPI's session files and the memory that
        # its workers share go where they can be removed in the end.
        sweep()
        with contextlib.ExitStack() as stack:
            scratch = [
                str(stack.enter_context(files.scratch(parent)))
                for parent in _scratch_parents()
            ]
            environment = dict(os.environ, TMPDIR=scratch[0])
            environment[SHARED_MEMORY] = scratch[-1]
            child = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                env=environment,
                preexec_fn=die_with_parent,
            )
            stack.callback(self._end_all, child)
            return self._watch(child)

    def _request_stop(self, number, frame) -> None:
        self.stop_requested = True

    def _watch(self, child: subprocess.Popen) -> int:
        deadline = time.monotonic() + self.time_limit if self.time_limit else None
        while child.poll() is None:
            if deadline and time.monotonic() > deadline:
                return TIMED_OUT
            if self.stop_requested or self._owner_gone():
                return STOPPED
            if sys.platform == "linux":
                _reap_orphans(child)
            else:
                self.known.update(psutil.Process().children(recursive=True))
        code = child.returncode
        return code if code >= 0 else 128 - code

    def _owner_gone(self) -> bool:
        """Wait one beat; standard input at its end means that the owner is gone."""
        readable, _, _ = select.select([sys.stdin], [], [], POLL_SECONDS)
        return bool(readable) and not os.read(sys.stdin.fileno(), 4096)

    def _end_all(self, child: subprocess.Popen) -> None:
        """Ask the command, wait briefly, then kill whatever is left, orphans too."""
        if child.poll() is None:
            child.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(GRACE_SECONDS)
        deadline = time.monotonic() + KILL_SECONDS
        while alive := self._left():
            for process in alive:
                with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                    process.kill()
            _reap()
            if time.monotonic() > deadline:
                # In the middle of a system call that never ends, or another user's.
                _say_left(alive)
                return
            time.sleep(0.01)
        _reap()

    def _left(self) -> list[psutil.Process]:
        """The descendants that have not ended yet."""
        processes = set(psutil.Process().children(recursive=True))
        processes |= {process for process in self.known if process.is_running()}
        return [process for process in processes if _alive(process)]


@contextlib.contextmanager
def pool(jobs: int) -> Iterator[Callable]:
    """Give a function that works on items, so many at a time, each in a thread, and
    yields each item with its result, as they come.

    When it is left early, what has not begun does not begin any more, and commands
    that the threads own are ended.
    """
    if jobs <= 1:
        yield lambda work, items: ((item, work(item)) for item in items)
        return
    # Here, as every run starts this module as a program, which needs no threads.
    from concurrent.futures import ThreadPoolExecutor, as_completed

    def run(work, items):
        futures = {threads.submit(work, item): item for item in items}
        for future in as_completed(futures):
            yield futures[future], future.result()

    threads = ThreadPoolExecutor(jobs)
    try:
        yield run
    except BaseException:
        threads.shutdown(wait=False, cancel_futures=True)
        for child in psutil.Process().children():
            with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
                if __name__ in child.cmdline():
                    child.terminate()
        raise
    finally:
        threads.shutdown(cancel_futures=True)


@contextlib.contextmanager
def owned(command: list[str], time_limit: float, **options):
    """Start `command` under a supervisor; leaving the block ends all of it.

    Yields the supervisor's Popen, whose return code becomes the exit status.
    time_limit: seconds. options: for Popen. The supervisor has a session of its own,
    so that a Ctrl-C comes to the caller first, and is passed on by leaving the block.
    """
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "distcheck.supervise"),
            *("--time-limit", str(time_limit), "--"),
            *command,
        ],
        stdin=subprocess.PIPE,
        start_new_session=True,
        **options,
    )
    try:
        yield process
    finally:
        assert process.stdin
        process.stdin.close()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            # Said, not raised: what happened in the block is what matters.
            _say_left([psutil.Process(process.pid)])
        sweep()


def _say_left(processes: Sequence[psutil.Process]) -> None:
    """Tell the user which processes could not be ended."""
    for process in processes:
        name = "?"
        with contextlib.suppress(psutil.Error):
            name = process.name()
        errors.notice(f"process {process.pid} ({name}) could not be ended, and is left")


def _scratch_parents() -> list[str]:
    """Where scratch folders go: temporary files, and shared memory if it is apart."""
    return [tempfile.gettempdir(), *filter(os.path.isdir, ["/dev/shm"])]


def sweep() -> None:
    """Remove what supervisors that were killed have left: the processes that have
    their temporary files in a scratch folder of theirs, and then the folders."""
    for parent in _scratch_parents():
        for folder in Path(parent).glob(f"{files.SCRATCH}*"):
            owner = files.owner(folder)
            if owner is not None and not psutil.pid_exists(owner):
                _kill_those_in(folder)
                shutil.rmtree(folder, ignore_errors=True)


def _kill_those_in(folder: Path) -> None:
    """Kill each process whose temporary files are in this folder or below it."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # it has ended, or is another user's
            if Path(process.environ().get("TMPDIR", "")).is_relative_to(folder):
                process.kill()


def awake(process: psutil.Process) -> bool:
    """Does its main thread compute, or want to, or does any thread wait for a disk?

    Other threads tell no more: Horovod's asks for news all the time.
    """
    with contextlib.suppress(psutil.NoSuchProcess, OSError):  # a thread has ended
        if process.status() == psutil.STATUS_RUNNING:
            return True
        threads = Path(f"/proc/{process.pid}/task").iterdir()
        stats = [(thread / "stat").read_text() for thread in threads]
        return any(stat.rpartition(")")[2].split()[0] == "D" for stat in stats)
    return False


def _alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _reap() -> None:
    """Collect dead children, adopted ones included."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _reap_orphans(child: subprocess.Popen) -> None:
    """Collect dead children, but for the command, which its Popen has to collect: a
    command that lasts for hours may leave thousands."""
    look = os.WEXITED | os.WNOHANG | os.WNOWAIT
    while (dead := os.waitid(os.P_ALL, 0, look)) and dead.si_pid != child.pid:
        os.waitpid(dead.si_pid, 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--time-limit", type=float, metavar="SECONDS")
    parser.add_argument("command", nargs="+", metavar="-- COMMAND")
    arguments = parser.parse_args()
    return Supervisor(arguments.command, arguments.time_limit).run()


if __name__ == "__main__":
    sys.exit(main())
