"""Gradients as they are, and in 16 bits: bytes on the wire, and seconds.

    mpirun -np 2 python utils/measure/programs/narrow_wire.py --numbers 175000

Sums so many float32 numbers of all workers a few times. Prints, in JSON, for each way
the seconds of one sum, the bytes that rank 0's host sent for it through its network
cards, and the largest relative difference from the sum of float32 numbers.
"""

import argparse
import json
import os
import time
from pathlib import Path

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # Keras 2; Horovod knows no Keras 3

import horovod.tensorflow as hvd
import tensorflow as tf

SUMS = 4


def sent() -> int:
    """Bytes that have left this host so far; 0 where the system doesn't tell."""
    counters = Path("/proc/net/dev")  # the ninth number of a card's line
    if not counters.exists():
        return 0
    cards = [line.partition(":")[2] for line in counters.read_text().splitlines()[2:]]
    return sum(int(card.split()[8]) for card in cards)


def settled() -> int:
    """The same, once the others have received all that this worker sent them: until
    then, some of it may still stand in line before the card."""
    hvd.allreduce(tf.zeros(1), name="settled")
    return sent()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--numbers", type=int, default=175_000, help="of each worker")
    args = parser.parse_args()
    hvd.init()
    tf.config.set_visible_devices([], "GPU")
    generator = tf.random.Generator.from_seed(hvd.rank())
    gradient = generator.normal((args.numbers,), stddev=1e-3)
    ways = {"float32": hvd.Compression.none, "16 bits": hvd.Compression.fp16}
    found, exact = {}, None
    for name, compression in ways.items():
        total = hvd.allreduce(gradient, compression=compression, name=name)
        exact = total if exact is None else exact
        off = tf.abs(total - exact)
        before, started = settled(), time.perf_counter()
        for _ in range(SUMS):
            hvd.allreduce(gradient, compression=compression, name=name)
        seconds = time.perf_counter() - started
        found[name] = {
            "seconds": seconds / SUMS,
            "bytes": (settled() - before) // SUMS,
            "off": float(tf.reduce_max(off) / tf.reduce_max(tf.abs(exact))),
        }
    if hvd.rank() == 0:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
