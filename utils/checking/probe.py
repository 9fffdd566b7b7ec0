"""What TensorFlow, Horovod and MPI say when they are really used; for doctor.py.

    mpirun -np 2 python -m utils.checking.probe

Rank 0 prints each fact as soon as it is known, for what comes next may fail.
"""

import json

from utils.base import course

MARK = "FACTS "


def tell(**facts) -> None:
    if course.worker_rank() == 0:
        print(f"{MARK}{json.dumps(facts)}", flush=True)


def main() -> None:
    import tensorflow as tf

    cuda = tf.sysconfig.get_build_info().get("cuda_version", "")
    gpus = tf.config.list_physical_devices("GPU")
    tell(tensorflow=tf.__version__, cuda=cuda, gpus=len(gpus))

    import horovod
    import horovod.tensorflow as hvd

    built = {
        "MPI": bool(hvd.mpi_built()),
        "Gloo": bool(hvd.gloo_built()),
        "NCCL": bool(hvd.nccl_built()),
    }
    tell(horovod=horovod.__version__, built=built)

    hvd.init()
    if gpus:
        gpu = gpus[hvd.local_rank() % len(gpus)]
        tf.config.set_visible_devices(gpu, "GPU")
        tf.config.experimental.set_memory_growth(gpu, True)
    total = hvd.allreduce(tf.constant(hvd.rank() + 1.0), op=hvd.Sum)
    tell(sum=float(total))


if __name__ == "__main__":
    main()
