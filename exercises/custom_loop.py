"""Train with a loop of your own: on one device, or on the replicas of a strategy.

    python exercises/custom_loop.py --epochs 3
    python exercises/custom_loop.py --replicas 2 --epochs 3

The global batch stays what it is, however many replicas share it: with the same seed,
the loop does the same to the weights on one device and on many.
"""

import argparse
import csv
import os
import time

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # Keras 2; Horovod knows no Keras 3

import tensorflow as tf

from utils import data, logs, networks, replica_devices

parser = argparse.ArgumentParser(
    description="Train a small network on Fashion-MNIST with a custom loop.",
    formatter_class=argparse.ArgumentDefaultsHelpFormatter,
)
option = parser.add_argument
option("--replicas", type=int, help="all GPUs, or two parts of the processor")
option("--log-dir", help="folder for history.csv; a new one below logs/ if not given")
option("--global-batch-size", type=int, default=128, help="images per step")
option("--val-batch-size", type=int, default=200, help="validation images likewise")
option("--epochs", type=int, default=3, help="train so many epochs")
option("--base-lr", type=float, default=0.02, help="learning rate")
option("--train-images", type=int, help="take so many, and a sixth to validate on")
option("--seed", type=int, help="make weights and batches repeatable")
args = parser.parse_args()

devices = replica_devices(args.replicas)
# Otherwise a GPU rounds what it multiplies to 10 bits, and runs on one device and on
# several would differ by that.
tf.config.experimental.enable_tensor_float_32_execution(False)
data.seed_worker(args.seed)
dataset = data.load("auto", args.train_images)
train = data.training_batches(dataset, args.global_batch_size, args.seed)
validation = data.test_batches(dataset, args.val_batch_size)
steps = len(dataset.x_train) // args.global_batch_size
print(f"{len(dataset.x_train)} training images from {dataset.name}")

# TODO: Task A: Mirror the variables. Make the model, the optimizer and the metrics in
# the scope of a strategy that has a replica on each device.
strategy = tf.distribute.get_strategy()
model = networks.small_cnn((28, 28, 1))
optimizer = tf.keras.optimizers.SGD(args.base_lr, momentum=0.9)
optimizer.build(model.trainable_variables)
val_loss = tf.keras.metrics.CategoricalCrossentropy()
val_accuracy = tf.keras.metrics.CategoricalAccuracy()

# TODO: Task B: Let the strategy split each global batch among the replicas.
batches = iter(train)
validation_set = validation


def step_loss(per_image):
    """What a replica minimizes: from the losses of its images, float32 (images,)."""

    # TODO: Task C: Divide the sum of the losses by the number of images in the global
    # batch, because the gradients of the replicas will be added up, not averaged.
    return tf.reduce_mean(per_image)


def train_step(batch):
    """One step on a replica's share of a batch; returns the replica's loss."""
    images, labels = batch
    with tf.GradientTape() as tape:
        probabilities = model(images, training=True)
        per_image = tf.keras.losses.categorical_crossentropy(labels, probabilities)
        loss = step_loss(per_image)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return loss


@tf.function
def train_all(batch):
    """One step on all replicas; returns the loss of the global batch."""

    # TODO: Task B: Run the step on every replica, and add up what the replicas return.
    return train_step(batch)


def validation_step(batch):
    """Look at a replica's share of a batch; returns its mean loss and accuracy."""
    images, labels = batch
    probabilities = model(images, training=False)
    val_loss.update_state(labels, probabilities)
    val_accuracy.update_state(labels, probabilities)
    loss = tf.keras.losses.categorical_crossentropy(labels, probabilities)
    accuracy = tf.keras.metrics.categorical_accuracy(labels, probabilities)
    return tf.reduce_mean(loss), tf.reduce_mean(accuracy)


@tf.function
def validate_batch(batch):
    """A batch on all replicas; returns the mean of their losses and accuracies."""
    means = strategy.run(validation_step, args=(batch,))
    return [
        strategy.reduce(tf.distribute.ReduceOp.MEAN, mean, axis=None) for mean in means
    ]


def validate():
    """Loss and accuracy on the whole validation set."""
    means = []
    for metric in (val_loss, val_accuracy):
        metric.reset_state()
    for batch in validation_set:
        means.append(validate_batch(batch))

    # TODO: Task D: Count every image once. The last batch is smaller, and some replicas
    # may get no image of it, so a mean of means is wrong, or not a number.
    # Metrics that were made in the scope add up images over all batches and
    # replicas.
    loss, accuracy = tf.reduce_mean(means, axis=0).numpy()

    return float(loss), float(accuracy)


seconds = 0.0
with open(logs.claim(args.log_dir, "history.csv"), "w", newline="") as file:
    history = csv.writer(file)
    history.writerow(
        ["epoch", "loss", "val_loss", "val_accuracy", "images_per_second", "seconds"]
    )
    for epoch in range(args.epochs):
        print(f"Epoch {epoch + 1}/{args.epochs}", flush=True)
        started = time.perf_counter()
        total = sum(train_all(next(batches)) for _ in range(steps))
        loss = float(total) / steps
        spent = time.perf_counter() - started
        seconds += spent
        images_per_second = steps * args.global_batch_size / spent
        validation_loss, accuracy = validate()
        history.writerow(
            [epoch, loss, validation_loss, accuracy, images_per_second, seconds]
        )
        file.flush()
        print(f"loss {loss:.4f}, validation {validation_loss:.4f}, {accuracy:.4f}")
