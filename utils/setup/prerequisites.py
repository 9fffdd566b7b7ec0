"""What a machine must have before the course can be installed, and how to get it.

Like utils/setup/install.py this uses only the standard library and plain syntax.
"""

import contextlib
import glob
import importlib.util
import os
import shutil
import subprocess
import sys

PYTHONS = ("3.13", "3.12", "3.11", "3.10")  # that TensorFlow has; most wanted first


class SetupError(Exception):
    """Something that the user can mend. The message says what is missing and how."""


def remedy(problem, apt, dnf, macos):
    """The message for something missing, with the command that gets it."""
    return (
        f"{problem}\n"
        f"    Debian, Ubuntu:  sudo apt {apt}\n"
        f"    Fedora:          sudo dnf {dnf}\n"
        f"    macOS:           {macos}"
    )


def quietly(*command, **options):
    """What a command prints; None if it fails or isn't there."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.check_output(
            command, stderr=subprocess.DEVNULL, timeout=60, **options
        ).decode()


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
    if f"{system} {machine}" not in ("linux x86_64", "linux aarch64", "darwin arm64"):
        return (
            f"TensorFlow 2.21 has no package for {system} on {machine}: use Linux on\n"
            "a 64-bit Intel, AMD or ARM processor, or macOS on Apple's own."
        )
    if system == "linux" and libc != "glibc":
        return (
            "TensorFlow needs the GNU C library, which this Linux (Alpine?) doesn't\n"
            "have: use Debian, Ubuntu or Fedora, for example in a container."
        )
    return None


def compiler_problem():
    """Compiles a small program with $CXX or the system's compiler."""
    check = "command -v make && command -v git && "
    check += "${CXX:-c++} -x c++ -std=c++17 -fsyntax-only -"
    program = b"#include <vector>\nint main() { return std::vector<int>().size(); }\n"
    if quietly("/bin/sh", "-c", check, input=program) is not None:
        return None
    return remedy(
        "Missing: a working C++ compiler, make or git. Horovod is built from source.",
        "install g++ make git",
        "install gcc-c++ make git",
        "xcode-select --install",
    )


def uv_problem():
    """Without uv, the Python that runs this must be able to fetch it."""
    if shutil.which("uv") or (
        sys.version_info >= (3, 8)
        and all(map(importlib.util.find_spec, ("venv", "ensurepip")))
    ):
        return None
    return remedy(
        f"Missing: uv, or modules venv and ensurepip of a newer {sys.executable}.",
        "install python3-venv",
        "install python3.12",
        "brew install uv",
    )


def cuda_home():
    """The folder of CUDA's toolkit 12, which TensorFlow was built with; None without
    one. Where a newer one comes first, this may be beside it."""
    nvcc = os.path.realpath(shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc")
    found = [os.path.dirname(os.path.dirname(nvcc)), *glob.glob("/usr/local/cuda*")]
    named = os.environ.get("HOROVOD_CUDA_HOME")
    for folder in [named] if named else found:
        if "release 12." in (quietly(f"{folder}/bin/nvcc", "--version") or ""):
            return folder
    return None


def cuda_problem():
    if cuda_home():
        return None
    return remedy(
        "GPU=1 needs nvcc of NVIDIA's CUDA toolkit 12, as TensorFlow is built so;\n"
        "HOROVOD_CUDA_HOME=/path names another place. With NVIDIA's package source:",
        "install cuda-toolkit-12-9",
        "install cuda-toolkit-12-9",
        "has no CUDA; leave GPU=1 out",
    )


def disk_problem(folder, needed_gb):
    """`folder` need not exist yet."""
    while not folder.exists():
        folder = folder.parent
    free_gb = shutil.disk_usage(str(folder)).free / 1e9
    return None if free_gb >= needed_gb else disk_full(folder, needed_gb, free_gb)


def disk_full(folder, needed_gb, free_gb):
    return remedy(
        f"Disk space is missing: {needed_gb} GB needed, {free_gb:.1f} GB free in\n"
        f"{folder}. Make room there, or move the course to a bigger disk:",
        "clean; rm -r ~/.cache/uv",
        "clean all; rm -r ~/.cache/uv",
        "brew cleanup; rm -r ~/.cache/uv",
    )


def python_problem():
    """For when none is found."""
    named = os.environ.get("PYTHON")
    subject = f"PYTHON={named} is not" if named else "Missing:"
    return (
        remedy(
            f"{subject} a Python from {PYTHONS[-1]} to {PYTHONS[0]}.",
            "install python3",
            "install python3.12",
            "brew install python@3.12",
        )
        + "\n    Or anywhere:     make setup COURSE_YES=1   (fetches one with uv)"
    )


def agreed(question):
    """Whether the user wants that; without a terminal only COURSE_YES=1 says so."""
    if os.environ.get("COURSE_YES") == "1":
        return True
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
