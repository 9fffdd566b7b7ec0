"""What the GPUs of this machine are, and whether TensorFlow and Horovod fit them.

What is asked (nvidia-smi, and a probe that really computes) is apart from what is made
of the answers, `lines`, which needs no GPU.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from distcheck import machine
from utils.running.watch import nvidia_smi

FIELDS = "index,name,compute_cap,driver_version,memory.total,memory.used"
ON_CORES = (
    "until then, `export CUDA_VISIBLE_DEVICES=-1` lets everything run on the processor"
)
WARM_UP = (
    "set CUDA_CACHE_MAXSIZE=4294967296, and CUDA_CACHE_PATH to a folder that is kept "
    "(a folder inside a container isn't), then run one worker first: `course run -np 1 "
    "solutions/fashion_mnist_solution.py -- --epochs 1`; later starts load the kernels "
    "from that folder"
)
# The first driver for Linux that has all of a CUDA, and so can compile for it. Older
# ones of the same major version, from its first on, run what is compiled already.
DRIVERS = {
    (11, 0): (450, 36),
    (11, 8): (520, 61),
    (12, 0): (525, 60),
    (12, 2): (535, 54),
    (12, 3): (545, 23),
    (12, 4): (550, 54),
    (12, 5): (555, 42),
    (12, 6): (560, 28),
    (12, 8): (570, 26),
    (12, 9): (575, 51),
    (13, 0): (580, 65),
}
# The first cuDNN for CUDA 12 whose libraries begin at compute capability 7.5 (Turing).
CUDNN_WITHOUT_VOLTA = (9, 11, 0)
# MiB for the gpu profile, WRN-16-10 in batches of 512. Reckoned from a processor, where
# a step took 13 to 23 MB for each image, and 1 GB besides; not measured on a GPU.
LEAST_MEMORY = 12_000


@dataclass(frozen=True)
class Gpu:
    """capability: its compute capability, such as (8, 6). memory, used: in MiB."""

    index: int
    name: str
    capability: tuple[int, int]
    driver: tuple[int, ...]
    memory: int
    used: int

    def __str__(self) -> str:
        major, minor = self.capability
        free = (self.memory - self.used) / 1024
        return (
            f"{self.name}, compute capability {major}.{minor}, {free:.0f} of "
            f"{self.memory / 1024:.0f} GiB free"
        )


def ask() -> str:
    """What nvidia-smi says of FIELDS, a line for each GPU; "" where it says nothing."""
    return nvidia_smi(f"gpu={FIELDS}", seconds=20)


def read(answer: str) -> list[Gpu]:
    """The GPUs in an answer of `ask`; lines that can't be read are left out."""
    gpus = []
    for line in answer.splitlines():
        words = [word.strip() for word in line.split(",")]
        try:
            index, name, capability, driver, memory, used = words
            numbers = version(capability), version(driver), int(memory), int(used)
            gpus.append(Gpu(int(index), name, *numbers))
        except ValueError:
            continue  # such as "[N/A]"
    return gpus


def seen(gpus: Sequence[Gpu], visible: str | None) -> list[Gpu]:
    """Those that a CUDA_VISIBLE_DEVICES leaves visible, where it has their numbers;
    names can't be compared with what is known of a GPU."""
    names = None if visible is None else machine.names(visible)
    if names is None or not all(name.isdecimal() for name in names):
        return list(gpus)
    return [gpu for gpu in gpus if str(gpu.index) in names]


def version(text: str) -> tuple[int, ...]:
    """ "12.5" as (12, 5). Raises ValueError."""
    return tuple(int(part) for part in text.split("."))


def of_library(number: int) -> tuple[int, int, int]:
    """The version that cuDNN or NCCL tells as one number: 8902, 90300, 22707."""
    major = 10_000 if number >= 10_000 else 1_000
    return number // major, number % major // 100, number % 100


# ------------------------------------------------------------ does it fit?


def how_it_runs(capability: tuple[int, int], built: Sequence[str]) -> tuple[str, str]:
    """How a GPU gets the kernels of a TensorFlow that was built for these targets.

    built: as `tf.sysconfig.get_build_info()` lists them: sm_80 is machine code for 8.0,
    compute_90 is machine code for 9.0, and PTX for later ones.
    Returns "there" and the target; "compiled" and the one that it is compiled from; or
    "" twice, if no way leads there.
    """
    targets = [
        (kind, (int(major), int(minor)))
        for kind, major, minor in re.findall(
            r"\b(sm|compute)_(\d+)(\d)\b", " ".join(built)
        )
    ]
    # Machine code runs on the same major version, from its own minor version on.
    fits = [t for _, t in targets if t[0] == capability[0] and t <= capability]
    if fits:
        return "there", "sm_{}{}".format(*max(fits))
    # The driver can compile PTX for any later GPU.
    older = [t for kind, t in targets if kind == "compute" and t <= capability]
    if older:
        return "compiled", "compute_{}{}".format(*max(older))
    return "", ""


def least_driver(cuda: str, compiles: bool) -> tuple[int, ...]:
    """The first driver for a CUDA such as "12.5"; () if it isn't known. compiles: it
    has to compile for the GPU, too."""
    wanted = version(cuda)[:2]
    known = [c for c in DRIVERS if c[0] == wanted[0] and (c >= wanted or not compiles)]
    return DRIVERS[min(known)] if known else ()


def problems(gpus: Sequence[Gpu], facts: Mapping) -> tuple[list[str], list[str]]:
    """What forbids to train on these GPUs, and what limits it; each with the remedy.

    facts: what the probe found, see utils/checking/probe.py.
    """
    forbids, limits = [], []
    cuda, built = facts.get("cuda") or "", facts.get("built_for", [])
    for gpu in gpus:
        capability = "{}.{}".format(*gpu.capability)
        how, target = how_it_runs(gpu.capability, built) if built else ("there", "")
        if not how:
            forbids.append(
                f"this TensorFlow has no kernels for compute capability {capability}, "
                f"only for {', '.join(built)}, and can't compile them: use a newer "
                f"GPU; {ON_CORES}"
            )
        elif how == "compiled":
            limits.append(
                f"TensorFlow has no kernels for compute capability {capability} and "
                f"compiles them from {target} at the first start, which can take half "
                f"an hour, and each worker does it for itself: {WARM_UP}"
            )
            if gpu.capability >= (10, 0):
                limits.append(
                    "on GPUs as new as this one, compiling has been reported to fail "
                    f"with CUDA_ERROR_INVALID_PTX (tensorflow#101746); {ON_CORES}"
                )
        library = of_library(facts.get("cudnn") or 0)
        if library >= CUDNN_WITHOUT_VOLTA and gpu.capability < (7, 5):
            forbids.append(
                f"cuDNN {'.'.join(map(str, library))} has no kernels for compute "
                f"capability {capability}, only from 7.5 on: use a newer GPU; "
                f"{ON_CORES}"
            )
        driver = least_driver(cuda, how == "compiled") if cuda else ()
        if gpu.driver < driver:
            forbids.append(
                f"the driver {'.'.join(map(str, gpu.driver))} is too old for CUDA "
                f"{cuda}: install {driver[0]} or newer; {ON_CORES}"
            )
        if gpu.memory - gpu.used < LEAST_MEMORY:
            limits.append(
                f"GPU {gpu.index} has less than {LEAST_MEMORY / 1024:.0f} GiB free: "
                "`nvidia-smi` shows which processes use the rest; or choose a smaller "
                "`--batch-size` (in notebooks, `batch_size`)"
            )
    built_cudnn, cudnn = facts.get("built_cudnn"), facts.get("cudnn")
    if built_cudnn and facts.get("gpus"):
        wanted = version(built_cudnn)
        there = of_library(cudnn) if cudnn else ()
        if there[:1] != wanted[:1] or there < wanted:
            have = ".".join(map(str, there)) or "none that loads"
            forbids.append(
                f"TensorFlow was built for cuDNN {built_cudnn}, but this machine has "
                f"{have}: `make setup GPU=1` installs the right one"
            )
    return list(dict.fromkeys(forbids)), list(dict.fromkeys(limits))


def described(gpus: Sequence[Gpu], facts: Mapping) -> str:
    """The GPUs and what is installed for them, in a sentence."""
    kinds = [str(gpu) for gpu in gpus]
    parts = [
        f"{kinds.count(kind)} x {kind}" if kinds.count(kind) > 1 else kind
        for kind in dict.fromkeys(kinds)
    ]
    if gpus:
        parts.append(f"driver {'.'.join(map(str, gpus[0].driver))}")
    if facts.get("cuda"):
        parts.append(f"CUDA {facts['cuda']}")
    for name in ("cudnn", "nccl"):
        if facts.get(name):
            text = ".".join(map(str, of_library(facts[name])))
            parts.append(f"{'cuDNN' if name == 'cudnn' else 'NCCL'} {text}")
    return "; ".join(parts)
