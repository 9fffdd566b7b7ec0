"""Run a command that nobody has read: confined, watched, and ended for certain.

    ended = sandbox.run(lab.command(folder), folder, readable=[...])

bubblewrap (the command `bwrap`, of Linux) confines it: it has a root of its own that
holds only the system, this Python and what it is shown, all read-only; a network of
nothing but a loopback; its own process numbers; and no rights.

What bubblewrap doesn't bound is watched from outside: time, memory, processes, files
and output. (Control groups would count memory too, but who may use them, and how,
differs from system to system.) Without bubblewrap nothing runs, unless the caller says
`protected=False`: then a command is watched, and nothing else.
"""

import contextlib
import functools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from distcheck import errors, files, supervise
from utils.base import course

NOBODY = 65534  # an unprivileged user on every Linux

POLL_SECONDS = 0.2
LATER = 5.0  # seconds after which the supervisor ends it should the watcher be stopped

HELPERS = 2  # processes of bubblewrap's own
TASKS_PER_PROCESS = 16  # the kernel's limit counts threads, too
OPEN_FILES = 1024
BLOCK = 4096  # bytes that even an empty file or folder counts for
SHOWN_OUTPUT = 20_000  # bytes

PROTECTED = (
    "It ran in a sandbox, as a user without rights. It saw only the system, this "
    "Python, its own folder and its own processes, wrote only to that folder and to "
    "temporary files in memory, and reached no network.",
    "Its time, memory, processes, files and output were limited. It shared the kernel "
    "and the processor's cores with the rest of the machine.",
)
UNPROTECTED = (
    "NOT PROTECTED: It ran with all rights of the user who graded it. Only its time, "
    "memory, processes, files and output were limited.",
)

_SYSTEM = (
    *("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/usr"),
    *("/etc/alternatives", "/etc/ld.so.cache", "/etc/openmpi"),
    "/sys/devices/system",  # how many processor cores there are
)
_ETC = {
    "passwd": f"learner:x:{NOBODY}:{NOBODY}::/tmp:/bin/sh\n",
    "hosts": "127.0.0.1 localhost sandbox\n",
    "nsswitch.conf": "passwd: files\nhosts: files\n",
}
_WITHOUT = (
    "Programs that you trust can also run without a sandbox, with all your rights: "
    "course grade ... --unprotected"
)


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


@functools.cache
def check() -> None:
    """Raise UserError, which says what to do, if nothing can be run protected."""
    with files.scratch() as folder:
        ended = run(["true"], folder)
    if ended.status:
        raise errors.UserError(
            f"bubblewrap can't make a sandbox here: {ended.output.strip()}\n"
            f"Be root, or take another machine. {_WITHOUT}"
        )


def run(
    command: list[str],
    folder: Path,
    *,
    readable: Sequence[Path] = (),
    environment: dict[str, str] | None = None,
    limits: Limits = LIMITS,
    protected: bool = True,
) -> Ended:
    """Run `command` in `folder`, the only place where it may leave something.

    readable: files and folders that it sees read-only, where they are. This Python
        and the system's programs and libraries are always among them.
    environment: all variables that it gets, besides PATH, HOME, TMPDIR and LANG.
    protected: if not, it can do whatever this process can; only the limits hold.

    Whatever is in `folder` afterwards is the command's doing: links may point anywhere
    and a pipe never ends. It belongs to the caller then, so that no later command can
    change it. `remove` gets rid of it.
    Raises UserError where there is no bubblewrap; then nothing has run.
    """
    folder = Path(folder).resolve()
    for path in (folder, *readable):
        if not Path(path).exists():
            raise errors.UserError(f"the sandbox can't show {path}: make it first.")
    path = [str(Path(sys.executable).parent), "/usr/local/bin", "/usr/bin", "/bin"]
    variables = {
        "PATH": os.pathsep.join(path),
        "HOME": str(folder),
        "LANG": "C.UTF-8",
        **(environment or {}),
    }
    command = [
        "env",
        *(f"{name}={value}" for name, value in variables.items()),
        *command,
    ]
    started = time.monotonic()
    with files.scratch() as scratch:
        if protected:
            command = _confined(command, folder, readable, limits, scratch)
        else:
            there = ["sh", "-c", 'unset PYTHONPATH; cd "$0" && exec "$@"', str(folder)]
            command = [*there, *command]
        printed = scratch / "output"
        with (
            printed.open("wb") as output,
            supervise.owned(
                command,
                limits.seconds + LATER,
                # The command's variables must not reach what runs outside of the
                # sandbox, nor this process's variables the command.
                env={
                    "PATH": os.defpath,
                    "PYTHONPATH": os.pathsep.join(sys.path),
                    "TMPDIR": tempfile.gettempdir(),
                },
                cwd=course.PACKAGE_ROOT,
                stdout=output,
                stderr=subprocess.STDOUT,
            ) as supervisor,
        ):
            breach = _watch(supervisor, folder, printed, limits)
        _take_back(folder)
        statuses = {None: supervisor.returncode, "time": supervise.TIMED_OUT}
        return Ended(
            statuses.get(breach, supervise.STOPPED),
            breach,
            time.monotonic() - started,
            _both_ends(printed),
        )


def _confined(
    command: list[str],
    folder: Path,
    readable: Sequence[Path],
    limits: Limits,
    scratch: Path,
) -> list[str]:
    """The command line that runs `command` in bubblewrap. If this is root, it gives the
    folder to nobody, who is to write there."""
    bubblewrap = shutil.which("bwrap")
    if not bubblewrap:
        raise errors.UserError(
            "programs are graded in a sandbox, and bubblewrap, which makes it, is "
            "missing. Debian, Ubuntu: sudo apt install bubblewrap; Fedora: sudo dnf "
            f"install bubblewrap; other systems than Linux have none.\n{_WITHOUT}"
        )
    own_memory = ("--perms", "1777", "--size", str(int(limits.file_bytes)), "--tmpfs")
    mounts = {
        "/dev": ("--dev",),
        "/dev/shm": own_memory,
        "/proc": ("--proc",),
        "/sys/class/net": ("--dir",),  # the UCX below Open MPI complains without it
        "/tmp": own_memory,
    }
    for name, text in _ETC.items():
        (scratch / name).write_text(text)
        mounts[f"/etc/{name}"] = ("--ro-bind", str(scratch / name))
    # What is reached through links is shown where it really is, too.
    for visible in (*_SYSTEM, sys.prefix, sys.base_prefix, *readable):
        for path in (Path(visible).absolute(), Path(visible).resolve()):
            mounts[str(path)] = ("--ro-bind-try", str(path))
    mounts[str(folder)] = ("--bind", str(folder))
    # Folders on the way there, which bubblewrap would make for their owner alone.
    for parent in {p for path in mounts for p in Path(path).parents[:-1]}:
        mounts.setdefault(str(parent), ("--dir",))

    line = [bubblewrap, "--die-with-parent", "--new-session", "--hostname", "sandbox"]
    line += ["--unshare-ipc", "--unshare-net", "--unshare-pid", "--unshare-uts"]
    # In this order whatever lies within another place is shown after it.
    for path, how in sorted(mounts.items()):
        line += [*how, path]
    line += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", str(folder)]
    line += ["--clearenv", "--setenv", "PATH", os.defpath, "--setenv", "TMPDIR", "/tmp"]
    inner = [
        *("choom", "--adjust", "1000", "--"),  # should memory run out, this goes first
        *("prlimit", "--core=0", f"--nofile={OPEN_FILES}"),
        f"--fsize={int(limits.file_bytes)}",
        f"--nproc={limits.processes * TASKS_PER_PROCESS}",
    ]
    if os.geteuid() == 0:
        # A user namespace would only call it nobody: outside it would still be root.
        subprocess.run(["chown", "-hR", f"{NOBODY}:{NOBODY}", "--", folder], check=True)
        inner += ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    else:
        line += ["--unshare-user", "--uid", str(NOBODY), "--gid", str(NOBODY)]
    return [*line, "--", *inner, *command]


def remove(folder: Path) -> None:
    """Delete a folder that a command ran in, however deeply it is nested."""
    _take_back(folder)
    subprocess.run(["rm", "-rf", "--", str(folder)], check=True)


def _take_back(folder: Path) -> None:
    """Let nobody write there any more but this user, who can read it all, whatever
    rights the command took away. No link is followed."""
    if os.geteuid() == 0:
        subprocess.run(
            ["chown", "-hR", "0:0", "--", str(folder)], stderr=subprocess.DEVNULL
        )
    subprocess.run(
        ["chmod", "-R", "u+rwX,go-w", "--", folder], stderr=subprocess.DEVNULL
    )


def _both_ends(printed: Path) -> str:
    """The first and the last part of an output."""
    half, size = SHOWN_OUTPUT // 2, printed.stat().st_size
    with printed.open("rb") as file:
        shown = file.read(half)
        if size > SHOWN_OUTPUT:
            shown += f"\n[... {size - SHOWN_OUTPUT} bytes ...]\n".encode()
            file.seek(-half, os.SEEK_END)
        return (shown + file.read(half)).decode(errors="replace")


def _watch(
    supervisor: subprocess.Popen, folder: Path, printed: Path, limits: Limits
) -> str | None:
    """Wait for the end of the command; return the limit that it has exceeded."""
    process = psutil.Process(supervisor.pid)
    deadline = time.monotonic() + limits.seconds
    free_disk, files_in_memory = shutil.disk_usage(folder).free, _files_in_memory()
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            supervisor.wait(POLL_SECONDS)
        ended = supervisor.poll() is not None
        if printed.stat().st_size > limits.output_bytes:
            return "output"
        # A deleted file keeps its space while it is open.
        if shutil.disk_usage(folder).free < free_disk / 2:
            return "files"
        if _holds_more_than(folder, limits.file_bytes):
            return "files"
        if ended:
            return None
        family = process.children(recursive=True)
        if len(family) > limits.processes + HELPERS:
            return "processes"
        in_memory = max(0, _files_in_memory() - files_in_memory)
        if _use_too_much(family, limits.memory - in_memory):
            return "memory"
        if time.monotonic() > deadline:
            return "time"


def _use_too_much(family: list[psutil.Process], memory: float) -> bool:
    """Do they use more than that, or has the machine too little left?"""
    machine = psutil.virtual_memory()
    if machine.available < machine.total / 20:
        return True
    # Pages that processes share count for each of them here. The fair share is slow to
    # read, and needed only when this is too much.
    if sum(map(_resident, family)) <= memory:
        return False
    return sum(map(_fair_share, family)) > memory


def _holds_more_than(folder: Path, limit: float) -> bool:
    """Are there more bytes in the folder, or what can't be counted?"""
    total, folders = 0, [folder]
    while folders:
        try:
            for entry in os.scandir(folders.pop()):
                with contextlib.suppress(FileNotFoundError):
                    total += entry.stat(follow_symlinks=False).st_size + BLOCK
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                if total > limit:
                    return True
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:  # hidden, or nested too deeply
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
