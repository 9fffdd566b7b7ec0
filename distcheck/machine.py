"""What this machine has to compute with."""

import contextlib
import ctypes.util
import functools
import importlib.util
import itertools
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil

from distcheck.errors import UserError

CGROUP = Path("/sys/fs/cgroup")  # a container sees its own here
HIDDEN = {"CUDA_VISIBLE_DEVICES": "-1"}  # what lets a process see no GPU
PRETEND = "DISTCHECK_PRETEND"


def pretended() -> dict[str, int]:
    """The numbers that DISTCHECK_PRETEND sets in place of this machine's own, by name:
    of `cores`, of `gpus`, and of the `workers` that a program is run on by default.

    It is for trying out what another machine would run, and changes what is counted and
    nothing else: a GPU that isn't there computes nothing, so TensorFlow takes the
    processor. Raises UserError for what it can't read.
    """
    numbers = {}
    for word in os.environ.get(PRETEND, "").split():
        name, _, number = word.partition("=")
        least = {"cores": 1, "gpus": 0, "workers": 2}.get(name)
        if least is None or not number.isdecimal() or int(number) < least:
            raise UserError(
                f"{PRETEND} has {word!r}: a word is cores=1 or more, gpus=0 or more, "
                "or workers=2 or more."
            )
        numbers[name] = int(number)
    return numbers


def pretence() -> str:
    """What is pretended, such as "cores=16 gpus=8"; "" where nothing is."""
    return " ".join(f"{name}={number}" for name, number in pretended().items())


def gpus(environment: Mapping[str, str] | None = None) -> int:
    """The number of NVIDIA GPUs that TensorFlow can use, found without importing it:
    those that CUDA_VISIBLE_DEVICES leaves visible, and none without cuDNN, which the
    package tensorflow[and-cuda] brings.

    environment: of which process; by default of this one. `gpus({})` counts all.
    """
    there = installed()
    if there and not has_cudnn():
        return 0
    variables = os.environ if environment is None else environment
    visible = variables.get("CUDA_VISIBLE_DEVICES")
    return there if visible is None else min(there, len(names(visible)))


def has_cudnn() -> bool:
    """Is NVIDIA's library for networks here, as a package or as the system's?"""
    numbers = pretended()
    return numbers["gpus"] > 0 if "gpus" in numbers else _finds_cudnn()


@functools.cache
def _finds_cudnn() -> bool:
    with contextlib.suppress(ModuleNotFoundError):  # without any package of NVIDIA's
        if importlib.util.find_spec("nvidia.cudnn"):
            return True
    return bool(ctypes.util.find_library("cudnn"))


def installed() -> int:
    """The number of NVIDIA GPUs in this machine, whoever can use them."""
    if (count := pretended().get("gpus")) is not None:
        return count
    return len(list(Path("/dev").glob("nvidia[0-9]*"))) or _listed_by_nvidia_smi()


def names(visible: str) -> list[str]:
    """The GPUs that a CUDA_VISIBLE_DEVICES names: by numbers, or as GPU-8932f937 and,
    for a part of one, MIG-5a1e. As CUDA has it, -1 ends the list."""
    words = (word.strip() for word in visible.split(","))
    return list(itertools.takewhile(lambda word: word not in ("", "-1"), words))


def _listed_by_nvidia_smi() -> int:
    """WSL2 has GPUs without device files."""
    if not shutil.which("nvidia-smi"):
        return 0
    try:
        listing = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0  # a driver that does not answer drives no GPU
    lines = listing.stdout.splitlines() if listing.returncode == 0 else []
    return sum(line.startswith("GPU ") for line in lines)


def cores() -> int:
    """How many processor cores this process may use, in a container no more than its
    limit (`docker run --cpus 2`, a pod's `cpu`), which leaves all of them visible."""
    if count := pretended().get("cores"):
        return count
    if hasattr(os, "sched_getaffinity"):
        return max(1, min(len(os.sched_getaffinity(0)), int(_limit(CGROUP))))
    return os.cpu_count() or 1


def _limit(cgroup: Path) -> float:
    """How many cores' time a control group gets, by version 2 or 1 of its files; what
    has neither, or no limit, gets any."""
    pair = (cgroup / "cpu" / f"cpu.cfs_{name}_us" for name in ("quota", "period"))
    for paths in ([cgroup / "cpu.max"], pair):
        with contextlib.suppress(OSError, ValueError):  # "max" or -1: no limit
            quota, period = " ".join(path.read_text() for path in paths).split()
            if int(quota) > 0:
                return int(quota) / int(period)
    return float(sys.maxsize)


def share(workers: int, compared_with: int = 1, of: int | None = None) -> int:
    """How many cores, and so threads, each of `workers` workers computes with.

    In two runs that are compared a worker has to have the same share of the machine:
    else the smaller team is faster because it has more cores for each worker. So each
    gets the share of a worker in the larger team; where that has more workers than
    there are cores, they take turns.

    compared_with: how many workers the other run has. of: how many cores there are to
    share out; by default this machine's.
    """
    return max(1, (of or cores()) // max(workers, compared_with))


def summary() -> str:
    """This machine in a line: processor, cores, what it computes with, memory, GPUs."""
    name = processor()
    count = cores()
    parts = [f"{count} core{'s' if count > 1 else ''} of {name}"]
    if sets := _instruction_sets():
        parts.append(sets)
    parts.append(f"{psutil.virtual_memory().total / 2**30:.0f} GiB")
    gpu = gpus()
    parts.append(f"{gpu} GPU{'s' if gpu > 1 else ''}" if gpu else "no GPU")
    parts.append(platform.system())
    if text := pretence():
        parts.append(f"of which {text} is pretended")
    return ", ".join(parts)


def processor() -> str:
    """The processor's name, as the system tells it."""
    name = _cpuinfo("model name") or platform.processor() or platform.machine()
    return " ".join(name.replace("(R)", "").replace("(TM)", "").split())


def flags() -> set[str]:
    """The processor's instruction sets, where the system tells them: Linux, which calls
    them flags on x86 and Features on ARM."""
    return set((_cpuinfo("flags") or _cpuinfo("Features")).split())


def bfloat16() -> set[str]:
    """The processor's instruction sets for bfloat16: Intel's and AMD's, and ARM's."""
    return flags() & {"avx512_bf16", "amx_bf16", "bf16"}


def _instruction_sets() -> str:
    supported = flags()
    names = {"avx2": "AVX2", "avx512f": "AVX-512", "avx512_vnni": "VNNI"}
    names |= {"avx512_bf16": "bfloat16", "amx_bf16": "AMX", "bf16": "bfloat16"}
    return " ".join(label for flag, label in names.items() if flag in supported)


def _cpuinfo(key: str) -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""  # macOS has no such file
    fields = (line.partition(":") for line in lines)
    return next((value.strip() for name, _, value in fields if name.strip() == key), "")
