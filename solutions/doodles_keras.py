"""Recognise doodles with Horovod and Keras: a model solution of the capstone.

    mpirun -np 2 python solutions/doodles_keras.py
    course run -np 2 solutions/doodles_keras.py -- --epochs 12 --seconds 28

Compared with exercises/doodles.py: a convolutional network, Adam, a worker for each
device. The workers have different clocks, so they average the seconds, as they average
the other metrics: all of them stop after the same epoch.
"""

import argparse
import os
import time

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # Keras 2; Horovod knows no Keras 3

import horovod.tensorflow.keras as hvd
import tensorflow as tf

from utils import data, doodles, leaderboard, logs, networks

hvd.init()
gpus = tf.config.list_physical_devices("GPU")
if gpus:
    gpu = gpus[0] if len(gpus) == 1 else gpus[hvd.local_rank()]
    tf.config.set_visible_devices(gpu, "GPU")
    tf.config.experimental.set_memory_growth(gpu, True)

parser = argparse.ArgumentParser(
    description="Train a network on doodles, with Horovod.",
    formatter_class=argparse.ArgumentDefaultsHelpFormatter,
)
option = parser.add_argument
option("--log-dir", help="folder for history.csv; a new one below logs/ if not given")
option("--batch-size", type=int, default=32, help="training images per worker and step")
option("--epochs", type=int, default=12, help="train at most so many epochs")
option("--seconds", type=float, default=28, help="start no epoch that would end later")
option("--base-lr", type=float, default=0.002, help="learning rate at the start")
option("--train-images", type=int, default=3_700, help="take so many, of all classes")
option("--data", choices=data.CHOICES, default="auto", help="data set")
option("--seed", type=int, help="make weights and batches repeatable")
option("--name", default="Horovod, model.fit", help="name on the leaderboard")
args = parser.parse_args()

verbose = 1 if hvd.rank() == 0 else 0
data.seed_worker(args.seed)
dataset = doodles.load(args.data, args.train_images)
train = data.training_batches(dataset, args.batch_size, args.seed)
validation = data.validation_batches(dataset, 100, args.seed)
steps = len(dataset.x_train) // args.batch_size // hvd.size()
if verbose:
    print(f"{len(dataset.x_train)} training images from {dataset.name}")

# Long steps first, ever shorter ones later: the rate follows half a cosine wave.
rate = tf.keras.optimizers.schedules.CosineDecay(args.base_lr, args.epochs * steps)
model = networks.small_cnn(dataset.image_shape, len(dataset.classes))
model.compile(
    optimizer=hvd.DistributedOptimizer(tf.keras.optimizers.Adam(rate)),
    loss=tf.keras.losses.CategoricalCrossentropy(),
    metrics=["accuracy"],
)


class Clock(tf.keras.callbacks.Callback):
    """Log the seconds since training began on this worker."""

    def on_train_begin(self, logs=None):
        self.started = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        logs["seconds"] = time.perf_counter() - self.started


class Budget(tf.keras.callbacks.Callback):
    """Stop if one more epoch would end too late, by the average of all clocks."""

    seconds = 0.0

    def on_epoch_end(self, epoch, logs=None):
        before, self.seconds = self.seconds, float(logs["seconds"])
        # The first epoch says nothing about the next one: it built the graph, too.
        one_more = self.seconds - before if epoch > 0 else 0.0
        self.model.stop_training = self.seconds + one_more > args.seconds


budget = Budget()
callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    Clock(),
    hvd.callbacks.MetricAverageCallback(),
    budget,
]
if verbose:
    history = logs.claim(args.log_dir, "history.csv")
    callbacks.append(tf.keras.callbacks.CSVLogger(history))

model.fit(
    train,
    steps_per_epoch=steps,
    epochs=args.epochs,
    validation_data=validation,
    validation_steps=-(-len(dataset.x_val) // 100),
    callbacks=callbacks,
    verbose=verbose,
)

leaderboard.score(model, dataset, hvd.size(), budget.seconds, args.name)
