"""Recognise doodles, as many and as fast as you can. This is where you start from.

    python exercises/doodles.py
    course run -np 1 exercises/doodles.py -- --epochs 5 --seconds 30

The goal: recognise 90 % of the held-out doodles after at most 30 seconds of training,
with all the devices that this machine has. Ten classes, images of 28 x 28 pixels.

This program trains on one device, in about the simplest way there is, and is far from
the goal. Everything may be changed: the network, the optimizer, the number of images
and epochs, the strategy. Two rules: it never trains on `dataset.x_test`, the held-out
doodles, and it ends with `leaderboard.score`.
"""

import argparse
import os
import time

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # Keras 2; Horovod knows no Keras 3

import tensorflow as tf

from utils import data, doodles, leaderboard, logs

parser = argparse.ArgumentParser(
    description="Train a network on doodles.",
    formatter_class=argparse.ArgumentDefaultsHelpFormatter,
)
option = parser.add_argument
option("--log-dir", help="folder for history.csv; a new one below logs/ if not given")
option("--batch-size", type=int, default=64, help="training images per step")
option("--epochs", type=int, default=5, help="train at most so many epochs")
option("--seconds", type=float, default=30, help="start no epoch after so many")
option("--base-lr", type=float, default=0.01, help="learning rate")
option("--train-images", type=int, default=3_700, help="take so many, of all classes")
option("--data", choices=data.CHOICES, default="auto", help="data set")
option("--seed", type=int, help="make weights and batches repeatable")
option("--name", default="the starter", help="how the leaderboard calls this run")
args = parser.parse_args()

data.seed_worker(args.seed)
dataset = doodles.load(args.data, args.train_images)
train = data.training_batches(dataset, args.batch_size, args.seed)
validation = data.validation_batches(dataset, 100, args.seed)
steps = len(dataset.x_train) // args.batch_size
print(f"{len(dataset.x_train)} training images from {dataset.name}")

model = tf.keras.Sequential(
    [
        tf.keras.Input(dataset.image_shape),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(len(dataset.classes), activation="softmax"),
    ]
)
model.compile(
    optimizer=tf.keras.optimizers.SGD(args.base_lr),
    loss=tf.keras.losses.CategoricalCrossentropy(),
    metrics=["accuracy"],
)


class Budget(tf.keras.callbacks.Callback):
    """Log the seconds since training began; stop when they are used up."""

    seconds = 0.0

    def on_train_begin(self, logs=None):
        self.started = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        self.seconds = logs["seconds"] = time.perf_counter() - self.started
        self.model.stop_training = self.seconds > args.seconds


budget = Budget()
model.fit(
    train,
    steps_per_epoch=steps,
    epochs=args.epochs,
    validation_data=validation,
    validation_steps=-(-len(dataset.x_val) // 100),
    callbacks=[
        budget,
        tf.keras.callbacks.CSVLogger(logs.claim(args.log_dir, "history.csv")),
    ],
)

leaderboard.score(model, dataset, 1, budget.seconds, args.name)
