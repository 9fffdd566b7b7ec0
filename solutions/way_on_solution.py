"""Train a small network on Fashion-MNIST, on two devices of one process.

    .venv-jax/bin/python solutions/way_on_solution.py --epochs 3

It begins as a Horovod program, for two workers that `mpirun -np 2 python` starts. What
is left to do: to move it to Keras 3 with JAX, for which `make jax` makes .venv-jax.
"""

import argparse
import os

# Task A: Choose JAX as the backend of Keras. Keras reads this variable when it is
# imported.
# was: os.environ["TF_USE_LEGACY_KERAS"] = "1"  # Keras 2; Horovod knows no Keras 3
os.environ["KERAS_BACKEND"] = "jax"

# Task B: Ask for two devices. There are no workers any more, because one process
# has all devices of its machine. Without GPUs, JAX's compiler XLA divides the
# processor into as many devices as this flag says. Set it before JAX starts.
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

# Task A: Import JAX, and Keras as a package of its own. This program needs no
# TensorFlow.
# was: import horovod.tensorflow.keras as hvd
# was: import tensorflow as tf
# was: from tensorflow import keras
import jax
import keras

from utils import data, logs

# Task A: Ask JAX for the number of this process and for how many there are: on
# one machine, 0 and 1. No other process has to be found, and no GPU has to be
# pinned.
# was: hvd.init()
# was: gpus = tf.config.list_physical_devices("GPU")
# was: if gpus:
# was:     gpu = gpus[0] if len(gpus) == 1 else gpus[hvd.local_rank()]
# was:     tf.config.set_visible_devices(gpu, "GPU")
# was: rank, size = hvd.rank(), hvd.size()
rank, size = jax.process_index(), jax.process_count()

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


# Task C: Split each batch among all devices, and keep a copy of each variable on
# every device. Keras applies this when it makes the variables.
keras.distribution.set_distribution(keras.distribution.DataParallel())

model = keras.Sequential(
    [
        keras.Input((28, 28)),
        keras.layers.Flatten(),
        keras.layers.Dense(64, activation="relu"),
        keras.layers.Dense(10),
    ]
)

# Task D: Give `fit` batches that are large enough for all devices of this
# process, and let the learning rate grow with the devices, not with the
# processes.
# was: batch = args.batch_size
# was: rate = args.base_lr * size
batch = args.batch_size * jax.local_device_count()
rate = args.base_lr * jax.device_count()

# Task A: Don't wrap the optimizer. All devices run one compiled program, which
# adds up their gradients.
# was: optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(rate, momentum=0.9))
optimizer = keras.optimizers.SGD(rate, momentum=0.9)

model.compile(
    optimizer,
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)

# Task A: Leave out Horovod's callbacks. One process has nothing to broadcast and
# nothing to average.
# was: callbacks = [
# was:     hvd.callbacks.BroadcastGlobalVariablesCallback(0),
# was:     hvd.callbacks.MetricAverageCallback(),
# was: ]
callbacks = []

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
