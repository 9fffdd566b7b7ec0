"""Train a small network on Fashion-MNIST, on two devices of one process.

    .venv-jax/bin/python exercises/way_on.py --epochs 3

It begins as a Horovod program, for two workers that `mpirun -np 2 python` starts. What
is left to do: to move it to Keras 3 with JAX, for which `make jax` makes .venv-jax.
"""

import argparse
import os

# TODO: Task A: Choose JAX as the backend of Keras. Keras reads this variable when it is
# imported.
os.environ["TF_USE_LEGACY_KERAS"] = "1"  # Keras 2; Horovod knows no Keras 3

# TODO: Task B: Ask for two devices. There are no workers any more, because one process
# has all devices of its machine. Without GPUs, JAX's compiler XLA divides the
# processor into as many devices as this flag says. Set it before JAX starts.

# TODO: Task A: Import JAX, and Keras as a package of its own. This program needs no
# TensorFlow.
import horovod.tensorflow.keras as hvd
import tensorflow as tf
from tensorflow import keras

from utils import data, logs

# TODO: Task A: Ask JAX for the number of this process and for how many there are: on
# one machine, 0 and 1. No other process has to be found, and no GPU has to be
# pinned.
hvd.init()
gpus = tf.config.list_physical_devices("GPU")
if gpus:
    gpu = gpus[0] if len(gpus) == 1 else gpus[hvd.local_rank()]
    tf.config.set_visible_devices(gpu, "GPU")
rank, size = hvd.rank(), hvd.size()

parser = argparse.ArgumentParser(
    description="Train a small network on Fashion-MNIST.",
    formatter_class=argparse.ArgumentDefaultsHelpFormatter,
)
option = parser.add_argument
option("--log-dir", help="folder for history.csv; a new one below logs/ if not given")
option("--batch-size", type=int, default=64, help="training images per device and step")
option("--epochs", type=int, default=3, help="train so many epochs")
option("--base-lr", type=float, default=0.05, help="learning rate for one device")
option("--train-images", type=int, help="take so many, and a sixth to validate on")
option("--data", choices=["auto", "real", "sample"], default="auto", help="data set")
option("--seed", type=int, default=1, help="make weights and order repeatable")
args = parser.parse_args()

keras.utils.set_random_seed(args.seed)
dataset = data.load(args.data, args.train_images)


def own(images, labels):
    """This process's part: every Nth image, floats; as many as 8 devices can share."""
    count = len(images) // (8 * size) * 8 * size
    images = (images[rank:count:size] - dataset.mean) / dataset.std
    return images.astype("float32"), labels[rank:count:size]


# TODO: Task C: Split each batch among all devices, and keep a copy of each variable on
# every device. Keras applies this when it makes the variables.

model = keras.Sequential(
    [
        keras.Input((28, 28)),
        keras.layers.Flatten(),
        keras.layers.Dense(64, activation="relu"),
        keras.layers.Dense(10),
    ]
)

# TODO: Task D: Give `fit` batches that are large enough for all devices of this
# process, and let the learning rate grow with the devices, not with the
# processes.
batch = args.batch_size
rate = args.base_lr * size

# TODO: Task A: Don't wrap the optimizer. All devices run one compiled program, which
# adds up their gradients.
optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(rate, momentum=0.9))

model.compile(
    optimizer,
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)

# TODO: Task A: Leave out Horovod's callbacks. One process has nothing to broadcast and
# nothing to average.
callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
]

if rank == 0:
    print(f"batches of {batch} on each of {size} process(es)")
    callbacks.append(keras.callbacks.CSVLogger(logs.claim(args.log_dir, "history.csv")))

model.fit(
    *own(dataset.x_train, dataset.y_train),
    batch_size=batch,
    epochs=args.epochs,
    validation_data=own(dataset.x_test, dataset.y_test),
    callbacks=callbacks,
    verbose=2 if rank == 0 else 0,
)
