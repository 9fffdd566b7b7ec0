"""The inner half of sandbox.py: confine this process, then become the command.

    python -I -S utils/grading/sandbox_inside.py SPECIFICATION COMMAND...

Three processes come of it. The first moves into new namespaces and waits. Its child
is the first process of the new process namespace (with its end the kernel ends all
others there) and arranges the view of the files. That one's child gives up its rights
and becomes the command. Only the standard library is imported, as this runs once for
each command.
"""

import ctypes
import fcntl
import json
import os
import resource
import signal
import socket
import struct
import sys
import warnings  # noqa: F401  os.execvpe imports it when it can't be read any more

READY = b"\0ready\n"  # the first output, before the command runs: all is in force

_NEW_FILES = 0x00020000  # CLONE_NEWNS
_NEW_USER = 0x10000000
_NEW_PROCESSES = 0x20000000
_NEW_NETWORK = 0x40000000
_NEW_NAME_AND_IPC = 0x04000000 | 0x08000000

_NOSUID, _NODEV, _NOEXEC, _BIND, _RECURSIVE, _PRIVATE = 2, 4, 8, 4096, 1 << 14, 1 << 18
_DETACH = 2  # MNT_DETACH
_MOUNT_SETATTR = 442  # the system call's number, the same on every processor
_READ_ONLY_TREE = 1 | _NOSUID | _NODEV  # MOUNT_ATTR_...
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1

_SYSTEM = (
    *("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/usr"),
    *("/etc/alternatives", "/etc/ld.so.cache", "/etc/openmpi"),
    "/sys/devices/system",  # how many processor cores there are
)
_DEVICES = ("null", "zero", "full", "random", "urandom")
_OLD = "/old-root"


def _call(function: str, *arguments) -> None:
    """Call a function of the C library that returns -1 when it fails."""
    arguments = [a.encode() if isinstance(a, str) else a for a in arguments]
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, function)(*arguments) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{function}{arguments}: {os.strerror(number)}")


def _die_with_parent() -> None:
    if sys.platform == "linux":
        _call("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _enter_namespaces(isolation: dict, uid: int) -> None:
    spaces = {
        "files": _NEW_FILES | _NEW_NAME_AND_IPC,
        "network": _NEW_NETWORK,
        "processes": _NEW_PROCESSES,
    }
    flags = sum(flag for name, flag in spaces.items() if isolation[name])
    if not flags:
        return
    own_uid, own_gid = os.geteuid(), os.getegid()
    if own_uid == 0:
        _call("unshare", flags)
        return
    # Within a user namespace of their own anyone may do the rest.
    _call("unshare", flags | _NEW_USER)
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{uid} {own_uid} 1"),
        ("gid_map", f"{uid} {own_gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def _bring_loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh14x", b"lo", _IFF_UP)
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, request)


def _set_attributes(path: str, attributes: int, recursive: int = _AT_RECURSIVE) -> None:
    change = struct.pack("QQQQ", attributes, 0, 0, 0)
    arguments = (_AT_FDCWD, path, recursive, change, len(change))
    _call("syscall", _MOUNT_SETATTR, *arguments)


def _mount_memory(path: str, size: float) -> None:
    os.makedirs(path, exist_ok=True)
    options = f"mode=1777,size={int(size)},nr_inodes=20000"
    _call("mount", "tmpfs", path, "tmpfs", _NOSUID | _NODEV, options)


def _show(path: str, real_path: str, attributes: int) -> None:
    """Make what is at `real_path` in the old root visible at `path` in the new."""
    source = _OLD + real_path
    if os.path.isdir(source):
        os.makedirs(path, exist_ok=True)
    elif not os.path.lexists(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        open(path, "x").close()
    _call("mount", source, path, None, _BIND | _RECURSIVE, None)
    _set_attributes(path, attributes)


def _arrange_files(specification: dict) -> None:
    """A new root in memory, with nothing in it but what the command may see."""
    folder, uid = specification["folder"], specification["uid"]
    readable = {*_SYSTEM, *specification["readable"]} - {folder}
    mounts = {path: (os.path.realpath(path), _READ_ONLY_TREE) for path in readable}
    mounts[folder] = (folder, _NOSUID | _NODEV)

    _call("mount", None, "/", None, _RECURSIVE | _PRIVATE, None)
    # The new root covers the folder only until it has become the root.
    _call("mount", "tmpfs", folder, "tmpfs", _NOSUID | _NODEV, "mode=755,size=1m")
    os.mkdir(folder + _OLD)
    _call("pivot_root", folder, folder + _OLD)
    os.chdir("/")

    for path in ("/tmp", "/dev/shm"):
        _mount_memory(path, specification["memory_files"])
    for name in _DEVICES:
        _show(f"/dev/{name}", f"/dev/{name}", _NOSUID)
    for name, number in (
        ("fd", ""),
        ("stdin", "/0"),
        ("stdout", "/1"),
        ("stderr", "/2"),
    ):
        os.symlink(f"/proc/self/fd{number}", f"/dev/{name}")
    os.makedirs("/sys/class/net")  # the UCX below Open MPI complains if it is missing
    os.mkdir("/proc")
    _call("mount", "proc", "/proc", "proc", _NOSUID | _NODEV | _NOEXEC, None)
    os.mkdir("/etc")
    for name, text in (
        ("passwd", f"learner:x:{uid}:{uid}::{folder}:/bin/sh\n"),
        ("group", f"learner:x:{uid}:\n"),
        ("hosts", "127.0.0.1 localhost sandbox\n"),
        ("nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n"),
    ):
        with open(f"/etc/{name}", "w") as file:
            file.write(text)
    # In this order whatever lies within another place is shown after it.
    for path, (real_path, attributes) in sorted(mounts.items()):
        if os.path.exists(_OLD + real_path):
            _show(path, real_path, attributes)

    _call("umount2", _OLD, _DETACH)
    os.rmdir(_OLD)
    _set_attributes("/", _READ_ONLY_TREE, recursive=0)
    socket.sethostname("sandbox")


def _become(command: list[str], specification: dict) -> None:
    """Give up what rights there are, and turn into the command."""
    isolation, uid = specification["isolation"], specification["uid"]
    environment = {"TMPDIR": "/tmp"}
    if not isolation["files"]:  # the supervisor's folders, which it removes
        for name in ("TMPDIR", "OMPI_MCA_btl_vader_backing_directory"):
            environment[name] = os.environ[name]
    os.setsid()  # or kill(0, ...) would reach the supervisor
    os.chdir(specification["folder"])
    for name, value in specification["limits"].items():
        number = getattr(resource, name)
        hard = resource.getrlimit(number)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(number, (value, value))
    if sys.platform == "linux":
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")  # should memory run out, this goes first
        _call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if isolation["user"] and os.geteuid() == 0:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
    # Capabilities end here, with uid 0, or below, with the exec.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores
        signal.signal(number, signal.SIG_DFL)
    os.write(1, READY)
    try:
        os.execvpe(command[0], command, {**environment, **specification["environment"]})
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", flush=True)
        os._exit(127)


def _status_of(function, *arguments) -> int:
    """Call `function` in a child and return its exit status as a shell would."""
    child = os.fork()
    if not child:
        try:
            function(*arguments)
        except OSError as error:
            print(f"{error.strerror} {error.filename or ''}", flush=True)
        os._exit(125)
    while True:
        process, status = os.wait()  # the first process collects orphans, too
        if process == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _first_process(command: list[str], specification: dict) -> None:
    _die_with_parent()
    if specification["isolation"]["files"]:
        _arrange_files(specification)
    if specification["isolation"]["network"]:
        _bring_loopback_up()
    os._exit(_status_of(_become, command, specification))


def main() -> int:
    specification, command = json.loads(sys.argv[1]), sys.argv[2:]
    try:
        _enter_namespaces(specification["isolation"], specification["uid"])
        _die_with_parent()
    except OSError as error:
        print(error.strerror, flush=True)
        return 125
    return _status_of(_first_process, command, specification)


if __name__ == "__main__":
    sys.exit(main())
