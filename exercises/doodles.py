"""Recognize doodles with all your devices. This is where you start from.

    python exercises/doodles.py
    course run -np 1 exercises/doodles.py -- --images 8000

The goal: recognize 87 % of the held-out drawings after at most 8,000 images on each
device. An image that is seen twice counts twice. With two devices you may train on
16,000 in all. Ten classes, images of 28 x 28 pixels; --classes takes others, where
there is a network.

This program trains on one device, in about the simplest way there is, and is far from
the goal. Everything may be changed: the model, the optimizer, the batch, the strategy.
Three rules: it never trains on `dataset.x_test`, the held-out drawings; you choose by
`dataset.x_val` alone; and it ends with `leaderboard.score`.
"""

import argparse
import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # Keras 2; Horovod knows no Keras 3

import tensorflow as tf

from utils import Stopwatch, data, doodles, leaderboard, logs

parser = argparse.ArgumentParser(
    description="Train a model on doodles.",
    formatter_class=argparse.ArgumentDefaultsHelpFormatter,
)
option = parser.add_argument
option("--log-dir", help="folder for history.csv; a new one below logs/ if not given")
option("--batch-size", type=int, default=16, help="training images per step")
option("--images", type=int, default=8_000, help="train on at most so many")
option("--base-lr", type=float, default=0.01, help="learning rate")
option("--train-images", type=int, default=3_700, help="take so many, of all classes")
option("--data", choices=data.CHOICES, default="auto", help="data set")
option("--classes", default=",".join(doodles.CLASSES), help="separated by commas")
option("--seed", type=int, help="make weights and batches repeatable")
option("--name", default="the starter", help="how the leaderboard calls this run")
args = parser.parse_args()

data.seed_worker(args.seed)
classes = tuple(args.classes.split(","))
dataset = doodles.load(args.data, args.train_images, classes)
train = data.training_batches(dataset, args.batch_size, args.seed)
validation = data.validation_batches(dataset, 100, args.seed)
# Whole epochs, as many as the budget has room for: it ends before the limit.
steps = min(len(dataset.x_train), args.images) // args.batch_size
epochs = args.images // (steps * args.batch_size)
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


stopwatch = Stopwatch(steps * args.batch_size)
model.fit(
    train,
    steps_per_epoch=steps,
    epochs=epochs,
    validation_data=validation,
    validation_steps=-(-len(dataset.x_val) // 100),
    callbacks=[
        stopwatch,
        tf.keras.callbacks.CSVLogger(logs.claim(args.log_dir, "history.csv")),
    ],
)

devices = 1
images = epochs * steps * args.batch_size  # on each device
leaderboard.score(model, dataset, devices, images, stopwatch.seconds, args.name)
