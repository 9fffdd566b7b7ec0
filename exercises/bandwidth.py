"""Measure Horovod's all-reduce by the size of the message, as nccl-tests does.

    python exercises/bandwidth.py
    mpirun -np 2 python exercises/bandwidth.py --counts 16 1048576
    course run -np 2 exercises/bandwidth.py -- --dtype float16

It begins as a program that times the first all-reduce of each size, on each worker for
itself. What is left to do: many rounds, all workers, bytes, and the work of the wires.
"""

import argparse
import os
import time

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # Keras 2; Horovod knows no Keras 3

import horovod.tensorflow as hvd
import tensorflow as tf

hvd.init()
gpus = tf.config.list_physical_devices("GPU")
if gpus:
    gpu = gpus[0] if len(gpus) == 1 else gpus[hvd.local_rank()]
    tf.config.set_visible_devices(gpu, "GPU")
    tf.config.experimental.set_memory_growth(gpu, True)

parser = argparse.ArgumentParser(
    description="Measure all-reduce by the size of the message.",
    formatter_class=argparse.ArgumentDefaultsHelpFormatter,
)
option = parser.add_argument
option("--counts", type=int, nargs="+", default=[16, 16_384], help="numbers in each")
option("--dtype", choices=["float16", "float32", "float64"], default="float32")
option("--warm-up", type=int, default=5, help="rounds of each size that don't count")
option("--rounds", type=int, default=20, help="rounds of each size that do")
args = parser.parse_args()
if min(args.rounds, *args.counts) < 1 or args.warm_up < 0:
    parser.error("rounds and counts begin at 1, warm-up rounds at 0")


def clock():
    """Seconds, when a GPU has done all that it was asked for."""
    if gpus:
        tf.test.experimental.sync_devices()
    return time.perf_counter()


def all_reduce(message):
    """Add up the messages of all workers, and wait until the sum is there."""
    # Outside of a tf.function, Horovod computes on the processor if no device is named.
    hvd.allreduce(message, op=hvd.Sum, device_dense=message.device)


def measured(message):
    """Seconds that an all-reduce of this message takes."""
    # TODO: Task A: Warm up. The first rounds also make connections and get memory, so
    # run some rounds that are not timed.

    # TODO: Task B: Start together. A worker that is early would also time its wait for
    # the others. An all-reduce of one number ends only when every worker has
    # called it, so it is a barrier.

    started = clock()

    # TODO: Task A: Time many rounds together, and divide by their number.
    all_reduce(message)
    own = clock() - started

    # TODO: Task B: Return the slowest worker's time, because a training step waits for
    # that worker.
    return own


if hvd.rank() == 0:
    print(f"# {hvd.size()} workers, {args.rounds} rounds of each size")
    print(f"#{'bytes':>11}{'count':>11}{'type':>9}{'us':>11}{'algbw':>10}{'busbw':>10}")

for count in args.counts:
    message = tf.ones(count, args.dtype)
    seconds = measured(message)

    # TODO: Task C: Count bytes, not numbers. The algorithm bandwidth is the bytes of a
    # message divided by the seconds that its all-reduce takes.
    size = count
    algbw = count / seconds

    # TODO: Task D: In a ring of n workers, each worker sends 2 (n - 1) / n times the
    # bytes of the message. The bus bandwidth is what each sends per second.
    busbw = algbw

    row = f"{size:12}{count:11}{args.dtype:>9}{1e6 * seconds:11.1f}"
    row += f"{algbw / 1e9:10.4g}{busbw / 1e9:10.4g}"

    # TODO: Task D: All workers have the same numbers, so let one worker print them.
    print(row, flush=True)
