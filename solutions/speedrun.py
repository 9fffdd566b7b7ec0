"""A speedrun: 0.90 test accuracy on Fashion-MNIST in the least time, on two cores.

    course speedrun solutions/speedrun.py

Each ingredient of the recipe is an option, so that `course bench speedrun` can leave
out one at a time. The network is kept whole, as model.keras in the folder --checkpoint.
How good it is isn't asked here: that is for whoever checks it.
"""

import argparse
import os
from pathlib import Path

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # Keras 2; Horovod knows no Keras 3

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

from utils import data

parser = argparse.ArgumentParser(
    description="Train a small network on Fashion-MNIST, in seconds.",
    formatter_class=argparse.ArgumentDefaultsHelpFormatter,
)
option = parser.add_argument
option("--checkpoint", type=Path, required=True, help="folder to keep the network in")
option("--train-images", type=int, help="take so many")
option("--seed", type=int, default=1, help="of weights, order and flips")
option("--epochs", type=int, default=3, help="passes over the images")
option("--global-batch", type=int, default=512, help="images of a step, of all workers")
option("--peak-lr", type=float, default=0.4, help="the highest learning rate")
option("--warm-up", type=float, default=0.2, help="part of the steps in which it rises")
option("--fall", type=float, default=0.8, help="part of the steps in which it falls")
option("--momentum", type=float, default=0.9, help="Nesterov's; 0 for none")
option(
    "--label-smoothing", type=float, default=0.1, help="part of a label that all share"
)
option("--flips", type=float, default=0.0, help="how often an image is mirrored")
option("--normalize", type=int, default=1, help="0: no batch normalization")
args = parser.parse_args()

tf.config.set_visible_devices([], "GPU")  # it is a race of cores
hvd.init()
rank, size = hvd.rank(), hvd.size()
dataset = data.load("auto", args.train_images)
tf.keras.utils.set_random_seed(args.seed)


def normalized(layer):
    """The layer, batch normalization, and ReLU."""
    batch_norm = [tf.keras.layers.BatchNormalization(momentum=0.9)] * args.normalize
    return [layer, *batch_norm, tf.keras.layers.ReLU()]


# Most work is where the images are large: so the first convolution takes strides.
layers = tf.keras.layers
model = tf.keras.Sequential(
    [
        tf.keras.Input((28, 28, 1)),
        *normalized(layers.Conv2D(32, 5, strides=2, padding="same")),
        layers.MaxPooling2D(),
        *normalized(layers.Conv2D(64, 3, padding="same")),
        layers.MaxPooling2D(),
        layers.Flatten(),
        *normalized(layers.Dense(128)),
        layers.Dense(10),
    ]
)
optimizer = tf.keras.optimizers.SGD(
    args.peak_lr, momentum=args.momentum, nesterov=args.momentum > 0
)
loss_of = tf.keras.losses.CategoricalCrossentropy(
    from_logits=True, label_smoothing=args.label_smoothing
)
weights = model.trainable_variables

# All images are in memory, and a step picks its own: no pipeline to wait for.
images, labels = tf.constant(dataset.x_train), tf.one_hot(dataset.y_train, 10)
batch = args.global_batch // size
steps = args.epochs * len(images) // (size * batch)
random = np.random.default_rng(args.seed)  # the same on all ranks: each takes its part
order = [random.permutation(len(images)) for _ in range(args.epochs)]
order = np.concatenate(order)[: steps * size * batch].reshape(steps, size, batch)
mirrored = random.random(order.shape) < args.flips


def learning_rate(step):
    """The rate of a step: up to the peak in a line, and down in a line to 0."""
    rising = (step + 1) / max(1, args.warm_up * steps)
    falling = (steps - step) / max(1, args.fall * steps)
    return args.peak_lr * min(1.0, rising, falling)


@tf.function(autograph=False)
def train_step(places, mirrored):
    """One step on this worker's images; returns their loss."""
    own = tf.gather(images, places)
    own = tf.where(mirrored[:, None, None], tf.reverse(own, [2]), own)
    with tf.GradientTape() as tape:
        scores = model(data.standardise(own, dataset), training=True)
        loss = loss_of(tf.gather(labels, places), scores)
    gradients = hvd.DistributedGradientTape(tape).gradient(loss, weights)
    optimizer.apply_gradients(zip(gradients, weights, strict=True))
    return loss


hvd.broadcast_variables(model.variables, root_rank=0)
for step in range(steps):
    optimizer.learning_rate.assign(learning_rate(step))
    loss = train_step(order[step, rank], mirrored[step, rank])

# Each worker's batch normalization has seen that worker's images only.
for statistic in model.non_trainable_variables:
    statistic.assign(hvd.allreduce(statistic))
if rank == 0:
    args.checkpoint.mkdir(parents=True, exist_ok=True)
    model.save(args.checkpoint / "model.keras")
    print(f"{steps} steps of {size} workers; loss {loss:.3f} ({dataset.name})")
