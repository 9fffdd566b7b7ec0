"""Each worker draws at random from all of the data; steps are shared."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import argparse

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--lr", type=float, default=0.05)
args = parser.parse_args()


def main():
    hvd.init()
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        tf.config.set_visible_devices(gpus[hvd.local_rank() % len(gpus)], "GPU")
    rng = np.random.default_rng(16)
    x = rng.normal(size=(80, 6)).astype("float32")
    y = (x[:, 0] * x[:, 1] > 0).astype("int64")
    data = tf.data.Dataset.from_tensor_slices((x, y))
    data = data.shuffle(80, seed=100 + hvd.rank()).repeat().batch(args.batch_size)
    model = tf.keras.Sequential()
    model.add(tf.keras.layers.InputLayer(input_shape=(6,)))
    model.add(tf.keras.layers.Dense(8, activation="relu"))
    model.add(tf.keras.layers.Dense(2))
    optimizer = tf.keras.optimizers.SGD(args.lr * hvd.size(), momentum=0.9)
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(hvd.DistributedOptimizer(optimizer), loss, ["accuracy"])
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    if hvd.rank() == 0:
        callbacks.append(tf.keras.callbacks.CSVLogger("history.csv"))
    model.fit(
        data,
        steps_per_epoch=len(x) // args.batch_size // hvd.size(),
        epochs=args.epochs,
        callbacks=callbacks,
        verbose=2 if hvd.rank() == 0 else 0,
    )


if __name__ == "__main__":
    main()
