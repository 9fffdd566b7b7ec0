"""Train a small network on garments with Horovod: the program of the clinic, healthy.

    course run -np 2 solutions/patient.py

The lesson *Break it on purpose: the clinic* gives it one fault at a time.
"""

import argparse
import os
from pathlib import Path

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # Keras 2; Horovod knows no Keras 3

import horovod.tensorflow.keras as hvd
import tensorflow as tf

from utils import data

hvd.init()
rank, size = hvd.rank(), hvd.size()
gpus = tf.config.list_physical_devices("GPU")
if gpus:
    gpu = gpus[0] if len(gpus) == 1 else gpus[hvd.local_rank()]
    tf.config.set_visible_devices(gpu, "GPU")

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--log-dir", default="logs", help="where history and model go")
parser.add_argument("--epochs", type=int, default=3)
args = parser.parse_args()
folder = Path(args.log_dir)
folder.mkdir(parents=True, exist_ok=True)

batch_size, base_lr = 40, 0.01
dataset = data.load("auto", 2_400)
train = data.training_batches(dataset, batch_size, seed=1)
steps = len(dataset.x_train) // batch_size // size
validation = data.validation_shard(dataset, 100, rank, size)

model = tf.keras.Sequential(
    [
        tf.keras.Input((28, 28, 1)),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(64, activation="relu"),
        tf.keras.layers.Dense(10, activation="softmax"),
    ]
)
optimizer = tf.keras.optimizers.SGD(base_lr * size, momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer)
model.compile(
    optimizer=optimizer,
    loss=tf.keras.losses.CategoricalCrossentropy(),
    metrics=["accuracy"],
)

callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
]
if rank == 0:
    callbacks.append(tf.keras.callbacks.CSVLogger(folder / "history.csv"))

model.fit(
    train,
    steps_per_epoch=steps,
    epochs=args.epochs,
    validation_data=validation,
    callbacks=callbacks,
    verbose=2 if rank == 0 else 0,
)
if rank == 0:
    model.save_weights(folder / "weights.h5")
