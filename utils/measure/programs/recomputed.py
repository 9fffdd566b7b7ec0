"""Activations kept for the way back, or computed again: the peak of memory of each.

    python utils/measure/programs/recomputed.py --blocks 16 --images 8192

Takes the gradient of a deep network by both ways. Prints, in JSON, the bytes at the
peak, and the largest relative difference of the gradients. A peak never falls, so the
way that should need less comes first.
"""

import argparse
import json
import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # Keras 2, as in the course's other programs

import tensorflow as tf

from utils.measure.programs.peak_memory import peak
from utils.training import devices

WIDTH, LAYERS = 128, 8  # of a block


def block(x, *matrices):
    """Some layers of a network: each gives an activation as large as x."""
    for matrix in matrices:
        x = tf.tanh(x @ matrix)
    return x


again = tf.recompute_grad(block)  # keeps what goes in, not what comes between


def gradient(layers, images, blocks):
    """Of the mean of what comes out, for each matrix."""
    with tf.GradientTape() as tape:
        tape.watch(blocks)
        x = images
        for matrices in blocks:
            x = layers(x, *matrices)
        loss = tf.reduce_mean(x)
    return tf.nest.flatten(tape.gradient(loss, blocks))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=16, help="of eight layers each")
    parser.add_argument("--images", type=int, default=8_192, help="in the batch")
    args = parser.parse_args()
    devices.grow_memory()

    images = tf.random.normal((args.images, WIDTH))
    shape, spread = (LAYERS, WIDTH, WIDTH), WIDTH**-0.5
    blocks = [
        tf.unstack(tf.random.normal(shape, stddev=spread)) for _ in range(args.blocks)
    ]
    gradient(again, images[:8], blocks[:1])  # whatever is made only once
    found = {"start": peak()}
    recomputed = gradient(again, images, blocks)
    found["computed again"] = peak()
    kept = gradient(block, images, blocks)
    found["kept"] = peak()
    pairs = list(zip(kept, recomputed, strict=True))
    largest = max(float(tf.reduce_max(tf.abs(one))) for one in kept)
    apart = max(float(tf.reduce_max(tf.abs(one - other))) for one, other in pairs)
    print(json.dumps(found | {"apart": apart / largest}))


if __name__ == "__main__":
    main()
