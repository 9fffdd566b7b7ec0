"""Recognize doodles with Horovod and Keras: a model solution of the capstone.

    mpirun -np 2 python solutions/doodles_keras.py
    course run -np 2 solutions/doodles_keras.py -- --images 8000

Compared with exercises/doodles.py: a convolutional network, Adam, a worker for each
device. An epoch has fewer steps for each worker, so the budget holds more epochs.
"""

import argparse
import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # Keras 2; Horovod knows no Keras 3

import horovod.tensorflow.keras as hvd
import tensorflow as tf

from utils import Stopwatch, data, doodles, leaderboard, logs, networks

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
option("--batch-size", type=int, default=16, help="training images per worker and step")
option("--images", type=int, default=8_000, help="train each worker on at most so many")
option("--base-lr", type=float, default=0.002, help="learning rate at the start")
option("--train-images", type=int, default=3_700, help="take so many, of all classes")
option("--data", choices=data.CHOICES, default="auto", help="data set")
option("--classes", default=",".join(doodles.CLASSES), help="separated by commas")
option("--seed", type=int, help="make weights and batches repeatable")
option("--name", default="Horovod, model.fit", help="name on the leaderboard")
args = parser.parse_args()

verbose = 1 if hvd.rank() == 0 else 0
data.seed_worker(args.seed)
classes = tuple(args.classes.split(","))
dataset = doodles.load(args.data, args.train_images, classes)
train = data.training_batches(dataset, args.batch_size, args.seed)
validation = data.validation_batches(dataset, 100, args.seed)
# A worker's share of an epoch, and as many epochs as the budget has room for.
steps = min(len(dataset.x_train) // hvd.size(), args.images) // args.batch_size
epochs = args.images // (steps * args.batch_size)
if verbose:
    print(f"{len(dataset.x_train)} training images from {dataset.name}")

# Long steps first, ever shorter ones later: the rate follows half a cosine wave.
rate = tf.keras.optimizers.schedules.CosineDecay(args.base_lr, epochs * steps)
model = networks.small_cnn(dataset.image_shape, len(dataset.classes))
model.compile(
    optimizer=hvd.DistributedOptimizer(tf.keras.optimizers.Adam(rate)),
    loss=tf.keras.losses.CategoricalCrossentropy(),
    metrics=["accuracy"],
)


stopwatch = Stopwatch(steps * args.batch_size * hvd.size())
callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    stopwatch,
    hvd.callbacks.MetricAverageCallback(),
]
if verbose:
    history = logs.claim(args.log_dir, "history.csv")
    callbacks.append(tf.keras.callbacks.CSVLogger(history))

model.fit(
    train,
    steps_per_epoch=steps,
    epochs=epochs,
    validation_data=validation,
    validation_steps=-(-len(dataset.x_val) // 100),
    callbacks=callbacks,
    verbose=verbose,
)

images = epochs * steps * args.batch_size  # on each worker's device
leaderboard.score(model, dataset, hvd.size(), images, stopwatch.seconds, args.name)
