"""What a Horovod that was built for GPUs says of itself where there may be none.

    .venv/bin/python tests/gpu_build.py

Loads its library, looks for symbols that nobody defines, and lists the operations that
TensorFlow would run on a GPU. Nothing here runs on one.
"""

import subprocess
import sys
from pathlib import Path

import horovod.tensorflow as hvd
from tensorflow.python.framework import kernels

OPERATIONS = (
    "Allgather Allreduce Alltoall Broadcast BroadcastInplace BroadcastInplaceResource "
    "GroupedAllgather GroupedAllreduce GroupedReducescatter Join LocalRank LocalSize "
    "ProcessSetIncluded Rank Reducescatter Size"
).split()


def main():
    hvd.init()
    library = next(Path(hvd.__file__).parent.glob("mpi_lib.*.so"))
    told = subprocess.run(["ldd", "-r", library], capture_output=True, text=True)
    lines = (told.stdout + told.stderr).splitlines()
    missing = [line for line in lines if "undefined" in line or "not found" in line]
    # Python itself defines these; NVIDIA's driver brings libcuda.
    wrong = [line for line in missing if "Py" not in line and "libcuda.so" not in line]
    on_gpus = []
    for name in OPERATIONS:
        registered = kernels.get_registered_kernels_for_op(f"Horovod{name}").kernel
        if any(kernel.device_type == "GPU" for kernel in registered):
            on_gpus.append(name)
    print("library loaded:", library.name)
    print("nccl_built:", hvd.nccl_built(), "cuda_built:", hvd.cuda_built())
    print("symbols that nobody defines:", wrong or "none")
    print(f"on GPUs {len(on_gpus)} of {len(OPERATIONS)}:", *on_gpus)
    if wrong or not (hvd.nccl_built() and hvd.cuda_built()) or len(on_gpus) < 16:
        sys.exit("Something is missing.")


main()
