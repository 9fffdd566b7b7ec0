"""Machines that tests pretend to run on; the fixture `pretend` (conftest.py) makes one.

GPUs that aren't there compute nothing: what is looked at is what the course counts,
says, asks for and starts.
"""

from dataclasses import dataclass

# What nvidia-smi says of a GPU (utils.checking.gpu.FIELDS), after its number.
GPUS = {
    "A100": "NVIDIA A100-SXM4-40GB, 8.0, 550.54.15, 40960, 423",
    "V100": "Tesla V100-SXM2-16GB, 7.0, 550.54.15, 40960, 423",
    "H100": "NVIDIA H100 80GB HBM3, 9.0, 560.35.03, 81559, 1",
    "B200": "NVIDIA B200, 10.0, 570.86.10, 183359, 0",
    "T4": "Tesla T4, 7.5, 525.60.13, 15360, 15000",
    "K80": "Tesla K80, 3.7, 470.57.02, 11441, 0",
}

# What the doctor's probe (utils/checking/probe.py) finds where all is well: on cores,
# and on GPUs.
PROBED = {
    "tensorflow": "2.21.0",
    "horovod": "0.28.1",
    "built": {"MPI": True, "Gloo": True, "NCCL": False},
    "sum": 3.0,
}
PROBED_GPU = {
    "gpus": 1,
    "cuda": "12.5.1",
    "built_for": ["sm_60", "sm_70", "sm_80", "sm_89", "compute_90"],  # 2.21
    "built_cudnn": "9",
    "cudnn": 90300,
    "nccl": 22707,
    "right": True,
    "seconds": 1.5,
    "sum": 1.0,
    "workers": 1,
}


@dataclass(frozen=True)
class Machine:
    """gpu: which of GPUS all of them are. memory: bytes, none of them in use. visible:
    the CUDA_VISIBLE_DEVICES that a scheduler has set, None for none."""

    cores: int = 8
    gpus: int = 0
    gpu: str = "A100"
    memory: float = 512e9
    visible: str | None = None

    @property
    def counts(self) -> str:
        """As DISTCHECK_PRETEND has it."""
        return f"cores={self.cores} gpus={self.gpus}"

    @property
    def nvidia_smi(self) -> str:
        """What the doctor's question to nvidia-smi is answered with."""
        rows = [f"{number}, {GPUS[self.gpu]}\n" for number in range(self.gpus)]
        return "".join(rows)
