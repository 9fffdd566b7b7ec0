"""What TensorFlow, Horovod and MPI say when they are really used; for doctor.py.

    mpirun -np 2 python -m utils.checking.probe
    mpirun -np 2 python -m utils.checking.probe --gpu

Rank 0 prints each fact as soon as it is known, for what comes next may fail. With
--gpu, each worker computes on a GPU of its own.
"""

import ctypes
import json
import sys
import time

from distcheck import worker

MARK = "FACTS "


def tell(**facts) -> None:
    if worker.rank() == 0:
        print(f"{MARK}{json.dumps(facts)}", flush=True)


def main() -> None:
    import tensorflow as tf

    tell(tensorflow=tf.__version__)

    import horovod
    import horovod.tensorflow as hvd

    built = {
        "MPI": bool(hvd.mpi_built()),
        "Gloo": bool(hvd.gloo_built()),
        "NCCL": bool(hvd.nccl_built()),
    }
    tell(horovod=horovod.__version__, built=built)

    hvd.init()
    if "--gpu" in sys.argv:
        use_gpu(tf, hvd)
    total = hvd.allreduce(tf.constant(hvd.rank() + 1.0), op=hvd.Sum)
    tell(sum=float(total), workers=hvd.size())


def use_gpu(tf, hvd) -> None:
    """Tell what the GPU needs and has, and how long its first convolution took."""
    build, gpus = tf.sysconfig.get_build_info(), tf.config.list_physical_devices("GPU")
    tell(
        gpus=len(gpus),
        cuda=build.get("cuda_version", ""),
        built_for=build.get("cuda_compute_capabilities", []),
        built_cudnn=build.get("cudnn_version", ""),
    )
    if not gpus:
        return
    gpu = gpus[0] if len(gpus) == 1 else gpus[hvd.local_rank()]
    tf.config.set_visible_devices(gpu, "GPU")
    tf.config.experimental.set_memory_growth(gpu, True)
    major = build.get("cudnn_version", "").partition(".")[0]
    tell(cudnn=_library(f"libcudnn.so.{major}", "cudnnGetVersion"))
    tell(nccl=hvd.nccl_built())  # its version, or 0
    started = time.perf_counter()
    images, kernel = tf.ones((8, 28, 28, 16)), tf.ones((3, 3, 16, 16))
    inner = tf.nn.conv2d(images, kernel, 1, "VALID").numpy()
    tell(right=bool((inner == 9 * 16).all()), seconds=time.perf_counter() - started)


def _library(name: str, function: str) -> int:
    """What a library says of its version; 0 if it does not load."""
    try:
        get = getattr(ctypes.CDLL(name), function)
    except (OSError, AttributeError):
        return 0
    get.restype = ctypes.c_size_t
    return int(get())


if __name__ == "__main__":
    main()
