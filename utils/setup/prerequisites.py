"""What a machine must have before the course can be installed, and how to get it.

Like utils/setup/install.py this uses only the standard library and plain syntax.
"""

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FETCH_SECONDS = 1800  # for a download over a slow line


class SetupError(Exception):
    """Something that the user can mend. The message says what is missing and how."""


def remedy(problem, debian, fedora, macos):
    """The message for something missing, with the command that gets it."""
    return (
        f"{problem}\n"
        f"    Debian, Ubuntu:  {debian}\n"
        f"    Fedora:          {fedora}\n"
        f"    macOS:           {macos}"
    )


# Each of these returns None, or a message when something is missing.


def platform_problem(system, machine, libc):
    """Arguments: sys.platform, platform.machine(), platform.libc_ver()[0]."""
    if system in ("win32", "cygwin", "msys"):
        return (
            "Horovod doesn't run on Windows itself, but it does in WSL2. Type\n"
            "    wsl --install\n"
            "in an administrator's PowerShell, restart, open Ubuntu, and get and run\n"
            "the course there."
        )
    known = system in ("linux", "darwin") and machine in ("x86_64", "aarch64", "arm64")
    if not known:
        return (
            f"TensorFlow 2.15 has no package for {system} on {machine}: use Linux or\n"
            "macOS on a 64-bit Intel, AMD or ARM processor."
        )
    if system == "linux" and libc != "glibc":
        return (
            "TensorFlow needs the GNU C library, which this Linux (Alpine?) doesn't\n"
            "have: use Debian, Ubuntu or Fedora, for example in a container."
        )
    return None


def compiler_problem():
    """Compiles a small program with $CXX or the system's compiler."""
    compiler = shlex.split(os.environ.get("CXX", ""))
    for name in ("c++", "g++", "clang++"):
        if not compiler and shutil.which(name):
            compiler = [name]
    check = [*compiler, "-x", "c++", "-std=c++17", "-fsyntax-only", "-"]
    program = b"#include <vector>\nint main() { return std::vector<int>().size(); }\n"
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        if compiler and shutil.which("make"):
            answer = subprocess.run(
                check, input=program, stderr=subprocess.DEVNULL, timeout=60
            )
            if answer.returncode == 0:
                return None
    return remedy(
        "A working C++ compiler and make are missing; Horovod is built from source.",
        "sudo apt install g++ make",
        "sudo dnf install gcc-c++ make",
        "xcode-select --install",
    )


def cuda_problem():
    """Looks for the compiler of CUDA's toolkit."""
    folder = os.environ.get("HOROVOD_CUDA_HOME", "/usr/local/cuda")
    if shutil.which("nvcc") or shutil.which("nvcc", path=f"{folder}/bin"):
        return None
    return remedy(
        "GPU=1 needs nvcc of NVIDIA's CUDA toolkit 12. With NVIDIA's package source:",
        "sudo apt install cuda-toolkit-12-2",
        "sudo dnf install cuda-toolkit-12-2",
        "has no CUDA; leave GPU=1 out",
    )


def disk_problem(folder, needed_gb):
    """`folder` need not exist yet."""
    while not folder.exists():
        folder = folder.parent
    free_gb = shutil.disk_usage(folder).free / 1e9
    return None if free_gb >= needed_gb else disk_full(folder, needed_gb, free_gb)


def disk_full(folder, needed_gb, free_gb):
    return remedy(
        f"Disk space is missing: {needed_gb} GB needed, {free_gb:.1f} GB free in\n"
        f"{folder}. Make room there, or move the course to a bigger disk:",
        "sudo apt clean; rm -r ~/.cache/pip",
        "sudo dnf clean all; rm -r ~/.cache/pip",
        "brew cleanup; rm -r ~/Library/Caches/pip",
    )


def python_problem():
    """For when `find_python` has found nothing."""
    named = os.environ.get("PYTHON")
    subject = f"PYTHON={named} is not" if named else "Missing:"
    return (
        remedy(
            f"{subject} a Python 3.11 with its module venv.",
            "sudo apt install python3.11 python3.11-venv",
            "sudo dnf install python3.11",
            "brew install python@3.11",
        )
        + "\n    Ubuntu first:    sudo add-apt-repository ppa:deadsnakes/ppa"
        + "\n    Or anywhere:     make setup COURSE_YES=1   (fetches one with uv)"
    )


# Python 3.11

PROBE = """
import importlib.util, os, sys
print(sys.version_info[:2] == (3, 11))
print(all(map(importlib.util.find_spec, ("venv", "ensurepip"))))
print(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))
"""


def find_python(known, not_from):
    """The real path of a complete Python 3.11, offering to fetch one; else None.

    `known` (may be None) is preferred; those in the folder `not_from` don't count.
    """
    for candidate in filter(None, candidates(known)):
        if Path(candidate).parent != not_from:
            path = probe(candidate)
            if path:
                return path
    if os.environ.get("PYTHON") or not agreed(
        "Python 3.11 is missing. The program uv can fetch one into your home folder\n"
        "(30 MB; nothing else on this machine changes). Fetch it?"
    ):
        return None
    with contextlib.suppress(subprocess.SubprocessError), uv() as program:
        install = [program, "python", "install", "3.11"]
        subprocess.run(install, check=True, timeout=FETCH_SECONDS)
        return uv_find(program)
    return None


def candidates(known):
    """Programs that may be Python 3.11, most wanted first."""
    if os.environ.get("PYTHON"):
        yield os.environ["PYTHON"]
        return
    yield known
    for name in ("python3.11", "python3", "python"):
        for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
            yield shutil.which(name, path=folder)
    yield sys.executable
    if shutil.which("uv"):
        yield uv_find("uv")


def probe(python):
    """The real path of `python` (which may be a pyenv shim, or in an environment) if
    it is a Python 3.11 that can make virtual environments; else None."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        answer = subprocess.run(
            [python, "-I", "-c", PROBE],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=60,
        )
        lines = answer.stdout.decode().splitlines()
        if answer.returncode == 0 and lines[:2] == ["True", "True"]:
            return lines[2]
    return None


def agreed(question):
    """Whether the user wants that; without a terminal only COURSE_YES=1 says so."""
    if os.environ.get("COURSE_YES") == "1":
        return True
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")


@contextlib.contextmanager
def uv():
    """The path of uv: the one on PATH, else one in a temporary folder.

    Raises subprocess.SubprocessError when that can't be fetched; its output says why.
    """
    if shutil.which("uv"):
        yield "uv"
        return
    with tempfile.TemporaryDirectory() as folder:
        print("Fetching uv ...", flush=True)
        venv = [sys.executable, "-m", "venv", folder]
        subprocess.run(venv, check=True, timeout=FETCH_SECONDS)
        pip = [f"{folder}/bin/python", "-m", "pip", "--disable-pip-version-check"]
        install = [*pip, "install", "--quiet", "uv"]
        subprocess.run(install, check=True, timeout=FETCH_SECONDS)
        yield f"{folder}/bin/uv"


def uv_find(program):
    """The Python 3.11 that uv knows, outside of any environment; None without one."""
    answer = subprocess.run(
        [program, "python", "find", "--system", "3.11"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=60,
    )
    return answer.stdout.decode().strip() or None
