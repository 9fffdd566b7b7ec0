"""Recognize doodles with a loop of your own: the other model solution of the capstone.

    python solutions/doodles_loop.py --replicas 2
    course run -np 1 solutions/doodles_loop.py -- --replicas 2 --images 8000

One process, with a replica of the network on each device (tf.distribute's
MirroredStrategy). With the same global batch and the same --seed, it takes the same
steps on one device and on many.
"""

import argparse
import csv
import os
import time
from pathlib import Path

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # Keras 2; Horovod knows no Keras 3

import numpy as np
import tensorflow as tf

from utils import data, doodles, leaderboard, logs, networks, replica_devices

parser = argparse.ArgumentParser(
    description="Train a network on doodles, with MirroredStrategy.",
    formatter_class=argparse.ArgumentDefaultsHelpFormatter,
)
option = parser.add_argument
option("--replicas", type=int, help="all GPUs, or two parts of the processor")
option("--log-dir", help="folder for history.csv; a new one below logs/ if not given")
option("--batch-size", type=int, default=16, help="training images per replica, step")
option(
    "--images", type=int, default=8_000, help="train each replica on at most so many"
)
option("--base-lr", type=float, default=0.002, help="learning rate at the start")
option("--train-images", type=int, default=3_700, help="take so many, of all classes")
option("--data", choices=data.CHOICES, default="auto", help="data set")
option("--classes", default=",".join(doodles.CLASSES), help="separated by commas")
option("--seed", type=int, help="make weights and batches repeatable")
option(
    "--name", default="MirroredStrategy, own loop", help="on the leaderboard, if any"
)
args = parser.parse_args()

strategy = tf.distribute.MirroredStrategy(replica_devices(args.replicas))
# Or a GPU rounds what it multiplies to 10 bits, and one device and many differ by that.
tf.config.experimental.enable_tensor_float_32_execution(False)
replicas = strategy.num_replicas_in_sync
global_batch = args.batch_size * replicas

data.seed_worker(args.seed)
if args.seed is not None:  # or a GPU adds up in another order each time
    tf.config.experimental.enable_op_determinism()
classes = tuple(args.classes.split(","))
dataset = doodles.load(args.data, args.train_images, classes)
train = data.training_batches(dataset, global_batch, args.seed)
batches = iter(strategy.experimental_distribute_dataset(train))
steps = min(len(dataset.x_train) // replicas, args.images) // args.batch_size
epochs = args.images // (steps * args.batch_size)
print(f"{len(dataset.x_train)} training images from {dataset.name}")

with strategy.scope():
    model = networks.small_cnn(dataset.image_shape, len(dataset.classes))
    rate = tf.keras.optimizers.schedules.CosineDecay(args.base_lr, epochs * steps)
    optimizer = tf.keras.optimizers.Adam(rate)
    optimizer.build(model.trainable_variables)


def train_step(images, labels):
    """One step on a replica's share of a batch; returns its share of the loss."""
    with tf.GradientTape() as tape:
        probabilities = model(images, training=True)
        per_image = tf.keras.losses.categorical_crossentropy(labels, probabilities)
        # The gradients of the replicas are added up: divide by all images.
        loss = tf.nn.compute_average_loss(per_image, global_batch_size=global_batch)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return loss


@tf.function
def train_all(batch):
    """One step on all replicas; returns the loss of the global batch."""
    losses = strategy.run(train_step, args=batch)
    return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)


def validation_accuracy():
    """The share of the validation images that are recognized."""
    images = data.standardise(dataset.x_val, dataset)
    found = model(images, training=False).numpy().argmax(1)
    return (found == dataset.y_val).mean()


seconds = 0.0
history_path = logs.claim(args.log_dir, "history.csv")
with open(history_path, "w", newline="") as file:
    history = csv.writer(file)
    history.writerow(["epoch", "loss", "val_accuracy", "images_per_second", "seconds"])
    for epoch in range(epochs):
        print(f"Epoch {epoch + 1}/{epochs}", flush=True)
        started = time.perf_counter()
        loss = float(sum(train_all(next(batches)) for _ in range(steps))) / steps
        spent = time.perf_counter() - started
        seconds += spent
        accuracy = validation_accuracy()
        speed = steps * global_batch / spent
        history.writerow([epoch, loss, accuracy, speed, seconds])
        file.flush()
        print(f"loss {loss:.4f}, validation accuracy {accuracy:.4f}, {seconds:.0f} s")
np.savez(Path(history_path).with_name("weights.npz"), *model.get_weights())

if args.name:
    images = epochs * steps * args.batch_size  # on each replica's device
    leaderboard.score(model, dataset, replicas, images, seconds, args.name)
