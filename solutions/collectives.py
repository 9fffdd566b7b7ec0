"""Show what each collective makes of what the workers give.

    mpirun -np 3 --oversubscribe python solutions/collectives.py

Of n workers, each has n numbers. The tens of a number say whose it was, the ones which
of them; so one sees where it has gone.
"""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # Keras 2; Horovod knows no Keras 3

import horovod.tensorflow as hvd
import tensorflow as tf

tf.config.set_visible_devices([], "GPU")  # a few numbers: leave the GPUs alone
hvd.init()
given = 10 * hvd.rank() + tf.range(hvd.size())

got = {
    "broadcast": hvd.broadcast(given, root_rank=0),
    "allgather": hvd.allgather(given),
    "reduce-scatter": hvd.reducescatter(given, op=hvd.Sum),
    "alltoall": hvd.alltoall(given),
    "all-reduce": hvd.allreduce(given, op=hvd.Sum),
}
for name, numbers in got.items():
    print(f"{name}: {given.numpy().tolist()} -> {numbers.numpy().tolist()}", flush=True)
