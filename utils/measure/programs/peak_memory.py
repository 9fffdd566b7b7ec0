"""How much memory training steps take, by the batch: measured at its peak.

    python utils/measure/programs/peak_memory.py --batches 32,64,128 --width 1
    python utils/measure/programs/peak_memory.py --batches 32,128/32,128

Prints, in JSON, the bytes at the peak with each batch size: on a processor, the most of
this process that was ever resident; on a GPU, TensorFlow's own counter of what it had
allocated there. A peak never falls, so they have to come in rising order. 128/32 is a
batch of 128 in micro-batches of 32.
"""

import argparse
import json
import os
import re
import resource
import sys
from pathlib import Path

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # Keras 2, as in the course's other programs

import tensorflow as tf

from utils.training import devices, networks


def peak() -> int:
    """The most bytes that were in use at a time so far."""
    if tf.config.list_physical_devices("GPU"):
        return tf.config.experimental.get_memory_info("GPU:0")["peak"]
    status = Path("/proc/self/status")
    if status.exists():
        kilobytes = re.search(r"VmHWM:\s*(\d+) kB", status.read_text())[1]
        return 1024 * int(kilobytes)
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else 1024 * size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", default="32,64,128", help="batch sizes")
    parser.add_argument("--width", type=int, default=1, help="k of WRN-16-k")
    parser.add_argument("--steps", type=int, default=2, help="with each batch size")
    args = parser.parse_args()
    devices.grow_memory()

    model = networks.wide_resnet(args.width)
    optimizer = tf.keras.optimizers.SGD(0.01, momentum=0.9)
    weights = model.trainable_variables
    optimizer.build(weights)
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy()

    @tf.function(input_signature=[tf.TensorSpec((None, 28, 28, 1), tf.float32)])
    def gradients_of(images):
        labels = tf.zeros(tf.shape(images)[0], tf.int32)
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        return tape.gradient(loss, weights)

    def step(batch: int, micro: int) -> None:
        """An update with so many images, so many at a time."""
        total = None
        for _ in range(batch // micro):
            own = gradients_of(tf.random.normal((micro, 28, 28, 1)))
            total = total or [tf.zeros_like(gradient) for gradient in own]
            total = [tf.add(*pair) for pair in zip(total, own, strict=True)]
        mean = [gradient / (batch // micro) for gradient in total]
        optimizer.apply_gradients(zip(mean, weights, strict=True))

    found = {}
    for name in args.batches.split(","):
        batch, _, micro = name.partition("/")
        for _ in range(args.steps):
            step(int(batch), int(micro or batch))
        found[name] = peak()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
