"""Run a command that nobody has read: confined, watched, and ended for certain.

    ended = sandbox.run(["python", "-m", "utils.checking.lab"], folder, readable=[...])

Where Linux allows it the command gets namespaces(7) of its own: a root in memory that
holds only the system, this Python and what it is shown, all read-only; a network of
nothing but a loopback; its own process numbers; and an unprivileged user without a
way to more. sandbox_inside.py sets that up with the system calls themselves:
bubblewrap is not on every machine, so it could only be a second way to the same end,
and the options of unshare(1) differ between its versions.

What namespaces don't bound is watched from outside: time, memory, processes, files
and output. (Control groups would count memory too, but who may use them, and how,
differs from system to system.) `probe` tries what this machine allows, and says what
it doesn't.
"""

import contextlib
import functools
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import psutil

from utils.base import course, files, supervise
from utils.grading.sandbox_inside import READY

UNPRIVILEGED = 65534  # "nobody" on every Linux

SHORTEST_BEAT, LONGEST_BEAT = 0.05, 0.5  # seconds between two looks at the command
WATCHER_SHARE = 0.03  # of a core: looks that take longer come less often
LATER = 5.0  # seconds after which the supervisor ends it should the watcher be stopped

HELPERS = 2  # processes that stand between the supervisor and the command
TASKS_PER_PROCESS = 16  # the kernel's limit counts threads, too
OPEN_FILES = 1024
_NOWHERE = subprocess.DEVNULL
BLOCK = 4096  # bytes that even an empty file or folder counts for
SHOWN_OUTPUT = 20_000  # bytes


@dataclass(frozen=True)
class Limits:
    """What a command may use up, all of its processes together."""

    seconds: float = 120.0
    memory: float = 6e9  # bytes; pages that processes share count once
    processes: int = 128
    file_bytes: float = 200e6  # one file, all in the folder, and all in /tmp
    output_bytes: float = 2e6


LIMITS = Limits()


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    status is as base/supervise.py has it. breach is the limit that it was ended for:
    "time", "memory", "processes", "files", "output" or None. output is what it
    printed: the first and the last part, if it was much.
    """

    status: int
    breach: str | None
    seconds: float
    output: str


@dataclass(frozen=True)
class Isolation:
    """What keeps a command apart from the rest of the machine; see `probe`."""

    user: bool
    network: bool
    processes: bool
    files: bool
    how: str

    def describe(self) -> tuple[str, ...]:
        """Plain sentences for a report, also on what is not in force."""
        sentences = (
            (
                self.user,
                "It runs as an unprivileged user and can't gain any rights.",
                "It runs with all rights of the user who started it.",
            ),
            (
                self.network,
                "Its network is a loopback of its own; it reaches nothing else.",
                "It can use this machine's network.",
            ),
            (
                self.processes,
                "It sees and can signal only its own processes.",
                "It sees all processes of this machine.",
            ),
            (
                self.files,
                "It sees only the system, this Python and its own folder, and can "
                "write only there and to temporary files in memory.",
                "It can read, and perhaps write, whatever its user can.",
            ),
        )
        return (
            *(
                yes if in_force else f"NOT isolated: {no}"
                for in_force, yes, no in sentences
            ),
            "Time, memory, processes, files and output are watched; whoever exceeds a "
            "limit is ended with all processes.",
            "NOT isolated: it shares the kernel and the processor cores with the rest.",
        )


NONE = Isolation(False, False, False, False, "nothing but limits and a watcher")


def run(
    command: list[str],
    folder: Path,
    *,
    readable: Sequence[Path] = (),
    environment: dict[str, str] | None = None,
    limits: Limits = LIMITS,
    isolation: Isolation | None = None,
) -> Ended:
    """Run `command` in `folder`, the only place where it may leave something.

    readable: files and folders that it sees read-only, where they are. This Python
        and the system's programs and libraries are always among them.
    environment: all variables that it gets, besides PATH, HOME, TMPDIR and LANG.
    isolation: by default the best that this machine has.

    Whatever is in `folder` afterwards is the command's doing: links may point anywhere
    and a pipe never ends. It belongs to the caller then, so that no later command can
    change it. `remove` gets rid of it.
    Raises CourseError if the isolation could not be set up; then nothing has run.
    """
    isolation = isolation or probe()
    folder = Path(folder).resolve()
    for path in (folder, *readable):
        if not Path(path).exists():
            raise course.CourseError(f"the sandbox can't show {path}: make it first.")
    if isolation.user and os.geteuid() == 0:
        _give_away(folder)
    specification = _specification(folder, readable, environment, limits, isolation)
    inside = Path(__file__).with_stem("sandbox_inside")
    started = time.monotonic()
    with (
        supervise.owned(
            [sys.executable, "-I", "-S", str(inside), specification, *command],
            limits.seconds + LATER,
            # The command's variables must not reach what runs outside of the sandbox,
            # nor this process's variables the command.
            env={
                "PATH": os.defpath,
                "PYTHONPATH": os.pathsep.join(sys.path),
                "TMPDIR": tempfile.gettempdir(),
            },
            cwd=course.PACKAGE_ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ) as supervisor,
        supervisor.stdout,
    ):
        watcher = _Watcher(supervisor, folder, limits)
        breach = watcher.watch()
    _take_back(folder)
    if not breach and not watcher.output.ready:
        raise course.CourseError(
            f"the sandbox ({isolation.how}) could not be set up, so nothing was run: "
            f"{watcher.output.text().strip()}\n"
            "Call sandbox.probe() for what works here."
        )
    statuses = {None: supervisor.returncode, "time": supervise.TIMED_OUT}
    return Ended(
        statuses.get(breach, supervise.STOPPED),
        breach,
        time.monotonic() - started,
        watcher.output.text(),
    )


def _specification(folder, readable, environment, limits, isolation) -> str:
    """What utils/grading/sandbox_inside.py is to do."""
    kernel_limits = {
        "RLIMIT_CORE": 0,
        "RLIMIT_FSIZE": int(limits.file_bytes),
        "RLIMIT_NOFILE": OPEN_FILES,
    }
    if isolation.user:  # else it would count what else the user runs
        kernel_limits["RLIMIT_NPROC"] = limits.processes * TASKS_PER_PROCESS
    path = [str(Path(sys.executable).parent), "/usr/local/bin", "/usr/bin", "/bin"]
    variables = {
        "PATH": os.pathsep.join(path),
        "HOME": str(folder),
        "LANG": "C.UTF-8",
    }
    # What is reached through links is shown where it really is, too.
    visible = [Path(path) for path in (sys.prefix, sys.base_prefix, *readable)]
    specification = {
        "isolation": asdict(isolation),
        "uid": UNPRIVILEGED,
        "folder": str(folder),
        "readable": [
            str(p) for path in visible for p in (path.absolute(), path.resolve())
        ],
        "environment": variables | (environment or {}),
        "limits": kernel_limits,
        "memory_files": limits.file_bytes,
    }
    return json.dumps(specification)


def remove(folder: Path) -> None:
    """Delete a folder that a command ran in, however deeply it is nested."""
    _take_back(folder)
    subprocess.run(["rm", "-rf", "--", str(folder)], check=True)


def _give_away(folder: Path) -> None:
    """Make the unprivileged user own the folder."""
    for path in (folder, *folder.rglob("*")):
        os.chown(path, UNPRIVILEGED, UNPRIVILEGED, follow_symlinks=False)


def _take_back(folder: Path) -> None:
    """Undo that, and let nobody write there any more but this user, who can read it
    all, whatever rights the command took away. No link is followed."""
    if os.geteuid() == 0:
        subprocess.run(["chown", "-hR", "0:0", "--", str(folder)], stderr=_NOWHERE)
    subprocess.run(["chmod", "-R", "u+rwX,go-w", "--", folder], stderr=_NOWHERE)


class _Output:
    """The first and the last part of an output, and how long it was."""

    def __init__(self):
        self.first = self.last = b""
        self.length = 0

    def add(self, data: bytes) -> None:
        self.length += len(data)
        room = SHOWN_OUTPUT // 2 - len(self.first)
        self.first += data[:room]
        self.last = (self.last + data[room:])[-SHOWN_OUTPUT // 2 :]

    @property
    def ready(self) -> bool:
        """Was the isolation in force before anything else was printed?"""
        return self.first.startswith(READY)

    def text(self) -> str:
        left_out = self.length - len(self.first) - len(self.last)
        gap = f"\n[... {left_out} bytes ...]\n".encode() if left_out else b""
        content = self.first.removeprefix(READY) + gap + self.last
        return content.decode(errors="replace")


class _Watcher:
    """Looks at a supervised command from outside and ends it at a breach."""

    def __init__(self, supervisor: subprocess.Popen, folder: Path, limits: Limits):
        self.supervisor = psutil.Process(supervisor.pid)
        self.family: list[psutil.Process] = []
        self.pipe = supervisor.stdout.fileno()
        self.folder = folder
        self.limits = limits
        self.output = _Output()
        self.deadline = time.monotonic() + limits.seconds
        self.files_in_memory = _files_in_memory()
        self.free_disk = shutil.disk_usage(folder).free

    def watch(self) -> str | None:
        """Wait for the end of the command; return the limit that it has exceeded."""
        next_look = time.monotonic()
        while True:
            wait = max(0.0, next_look - time.monotonic())
            if select.select([self.pipe], [], [], wait)[0]:
                data = os.read(self.pipe, 1 << 16)
                if not data:  # the supervisor has ended, so all others have
                    return "files" if self._files() else None
                self.output.add(data)
            breach = "output" if self.output.length > self.limits.output_bytes else None
            if not breach and time.monotonic() >= next_look:
                before = time.thread_time()
                breach = self._look()
                pause = (time.thread_time() - before) / WATCHER_SHARE
                pause = min(max(pause, SHORTEST_BEAT), LONGEST_BEAT)
                next_look = time.monotonic() + pause
            if breach:
                for process in self._family():
                    with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                        process.kill()
                return breach

    def _look(self) -> str | None:
        family = self._family()
        if len(family) > self.limits.processes + HELPERS:
            return "processes"
        if self._memory(family):
            return "memory"
        if self._files():
            return "files"
        return "time" if time.monotonic() > self.deadline else None

    def _family(self) -> list[psutil.Process]:
        processes = self.supervisor.children(recursive=True)
        if not processes:  # has the command ended, or has it killed its supervisor?
            processes = [process for process in self.family if process.is_running()]
        self.family = processes
        return processes

    def _memory(self, family: list[psutil.Process]) -> bool:
        """Do they use too much, or has the machine too little left?"""
        machine = psutil.virtual_memory()
        if machine.available < machine.total / 20:
            return True
        in_memory = max(0, _files_in_memory() - self.files_in_memory)
        # Pages that processes share count for each of them here. The fair share is
        # slow to read, and needed only when this is too much.
        if in_memory + sum(map(_resident, family)) <= self.limits.memory:
            return False
        return in_memory + sum(map(_fair_share, family)) > self.limits.memory

    def _files(self) -> bool:
        """Has it written too much? Also seen by how full the disk gets, as a deleted
        file keeps its space while it is open."""
        if shutil.disk_usage(self.folder).free < self.free_disk / 2:
            return True
        total, folders = 0, [self.folder]
        while folders:
            try:
                for entry in os.scandir(folders.pop()):
                    with contextlib.suppress(FileNotFoundError):
                        total += entry.stat(follow_symlinks=False).st_size + BLOCK
                        if entry.is_dir(follow_symlinks=False):
                            folders.append(entry.path)
                    if total > self.limits.file_bytes:
                        return True
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError:  # hidden, or nested too deeply, to be counted
                return True
        return False


def _files_in_memory() -> int:
    """Bytes of them on the whole machine: no process need show them as its own."""
    return getattr(psutil.virtual_memory(), "shared", 0)  # macOS doesn't say


def _resident(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        return process.memory_info().rss
    return 0


def _fair_share(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        memory = process.memory_full_info()
        return getattr(memory, "pss", memory.uss)
    return _resident(process)


_EVIDENCE = """
import contextlib, json, os, sys
def link(name):
    return os.readlink(f"/proc/self/ns/{name}")
lines = open("/proc/self/status").read().splitlines()
status = dict(line.split(":\\t", 1) for line in lines if ":\\t" in line)
print(json.dumps({
    "user": [os.getuid(), link("user")],
    "bare": int(status["CapEff"], 16) == 0 and status["NoNewPrivs"] == "1",
    "network": link("net"),
    "processes": link("pid"),
    "sees": os.path.exists(sys.argv[1]),
}))
with contextlib.suppress(OSError):
    os.mkdir(sys.argv[1] + ".new")
"""


@functools.cache
def probe() -> Isolation:
    """The best isolation that works here, by trying: it runs a program that looks."""
    if sys.platform != "linux":
        return NONE
    root = os.geteuid() == 0
    as_user = f"user {UNPRIVILEGED}" if root else "a user namespace"
    candidates = [Isolation(True, True, True, True, f"namespaces and {as_user}")]
    if root:
        candidates.append(Isolation(True, False, False, False, f"{as_user} only"))
    problems = []
    for candidate in candidates:
        try:
            observed = _observed(candidate)
        except course.CourseError as error:
            problems.append(str(error).splitlines()[0])
            continue
        if observed == candidate:
            return candidate
        problems.append(f"{candidate.how}: only {observed}")
    return replace(NONE, how=f"{NONE.how} ({'; '.join(problems)})")


def _observed(wanted: Isolation) -> Isolation:
    """Run a program isolated as wanted and return what it found to be in force."""
    with files.scratch() as outside:
        secret, folder = outside / "secret", outside / "folder"
        secret.touch()
        folder.mkdir()
        outside.chmod(0o777)  # nothing but the isolation keeps it out
        secret.chmod(0o666)
        command = [sys.executable, "-I", "-S", "-c", _EVIDENCE, str(secret)]
        ended = run(command, folder, limits=Limits(seconds=10), isolation=wanted)
        wrote = Path(f"{secret}.new").exists()
    try:
        evidence = json.loads(ended.output)
    except ValueError:
        raise course.CourseError(f"the probe failed: {ended.output}") from None
    own_user = [os.getuid(), os.readlink("/proc/self/ns/user")]
    return Isolation(
        user=evidence["bare"] and evidence["user"] != own_user,
        network=evidence["network"] != os.readlink("/proc/self/ns/net"),
        processes=evidence["processes"] != os.readlink("/proc/self/ns/pid"),
        files=not evidence["sees"] and not wrote,
        how=wanted.how,
    )
