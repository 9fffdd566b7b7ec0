"""What a machine must have before the course can be installed, and how to get it.

Like utils/setup/install.py this uses only the standard library and plain syntax.
"""

import contextlib
import glob
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile

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


def compiler(command=None):
    """The first line of what a compiler, $CXX or the system's, says of itself."""
    command = command or os.environ.get("CXX") or "c++"
    return (quietly("/bin/sh", "-c", command + " --version") or "unknown").split("\n")[
        0
    ]


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


# The first driver for Linux that runs what a CUDA 12 has compiled.
LEAST_DRIVER = (525, 60)


def driver():
    """The version of NVIDIA's driver, such as (550, 54, 14); () without a GPU."""
    query = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    found = re.match(r"[\d.]+", (quietly(*query) or "").strip())
    return tuple(int(part) for part in found.group().split(".")) if found else ()


def driver_problem():
    if driver() >= LEAST_DRIVER:
        return None
    have, least = (".".join(map(str, v)) for v in (driver(), LEAST_DRIVER))
    return (
        f"The driver of this machine's GPUs, {have}, is too old for CUDA 12, which\n"
        f"takes {least} or newer: update it as you installed it, and restart."
    )


def cuda_home():
    """The folder of CUDA's toolkit 12, which TensorFlow was built with; None without
    one. Where a newer one comes first, this may be beside it."""
    nvcc = os.path.realpath(shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc")
    found = [os.path.dirname(os.path.dirname(nvcc)), *glob.glob("/usr/local/cuda*")]
    named = os.environ.get("HOROVOD_CUDA_HOME")
    for folder in [named] if named else found:
        if "release 12." in (quietly(folder + "/bin/nvcc", "--version") or ""):
            return folder
    return None


def host_compiler(cuda):
    """The compiler that this toolkit's nvcc takes for the code around its kernels; None
    if it takes none of those here. Each toolkit refuses compilers newer than itself.

    CUDAHOSTCXX and CXX name one; else it is the system's, or the newest g++ that works.
    """
    named = os.environ.get("CUDAHOSTCXX") or os.environ.get("CXX")
    others = [f"g++-{number}" for number in range(15, 10, -1)]
    with tempfile.TemporaryDirectory() as folder:
        program = os.path.join(folder, "program.cu")
        with open(program, "w") as file:
            file.write("#include <vector>\n__global__ void kernel() {}\n")
        for candidate in [named] if named else ["c++", *others]:
            path = shutil.which(candidate)
            compile_it = ("-ccbin", path, "-c", program, "-o", program + ".o")
            if path and quietly(cuda + "/bin/nvcc", *compile_it) is not None:
                return path
    return None


def cuda_problem():
    """Why Horovod can't be built for GPUs here, and the command that changes it."""
    cuda = cuda_home()
    if cuda and host_compiler(cuda):
        return None
    if cuda:
        return (
            f"{cuda}/bin/nvcc, CUDA's compiler, takes none of the C++ compilers here;\n"
            f"this one is too new for it: {compiler()}\n"
            "Add an older one:"
        ) + get_for_cuda("g++-12", "gcc-toolset-12-gcc-c++", "gxx=12")
    return (
        "For GPUs, Horovod is built with nvcc of NVIDIA's CUDA toolkit 12, as\n"
        "TensorFlow was. It is not here (HOROVOD_CUDA_HOME=/path names it). Get it:"
    ) + get_for_cuda(*TOOLKITS)


# Debian's and Ubuntu's own; NVIDIA's for Fedora and its kin; conda-forge's.
TOOLKITS = (
    "nvidia-cuda-toolkit g++-13",
    "cuda-toolkit-12-9",
    "cuda-nvcc=12 cuda-cudart-dev=12 cuda-version=12",
)


def get_for_cuda(apt, dnf, conda):
    """The one command for this system and this user that gets such packages."""
    if os.geteuid() != 0 and not shutil.which("sudo"):
        return (
            f"\n    micromamba create --prefix ~/cuda --channel conda-forge {conda}\n"
            "(which needs no root), and name that folder: HOROVOD_CUDA_HOME=~/cuda"
        )
    sudo = "" if os.geteuid() == 0 else "sudo "
    if shutil.which("dnf"):
        return (
            f"\n    {sudo}dnf install {dnf}\n"
            "(from NVIDIA's package source for your system, if dnf doesn't know it)"
        )
    return (
        f"\n    {sudo}apt install {apt}\n"
        "(Debian has it in its part non-free; before Debian 13 and Ubuntu 24.04, take\n"
        "cuda-toolkit-12-9 from NVIDIA's package source for your system)"
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
    """For when none is found, or only one that is newer than TensorFlow's packages."""
    named = os.environ.get("PYTHON")
    subject = f"PYTHON={named} is not" if named else "Missing:"
    problem = f"{subject} a Python from {PYTHONS[-1]} to {PYTHONS[0]}."
    major, minor = sys.version_info[:2]
    too_new = (major, minor) > tuple(map(int, PYTHONS[0].split(".")))
    if too_new:
        problem += f"\nTensorFlow 2.21 has no package for Python {major}.{minor} yet."
    return (
        remedy(
            problem,
            f"install python{'3.13 python3.13-venv' if too_new else '3'}",
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
