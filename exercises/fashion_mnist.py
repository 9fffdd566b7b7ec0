"""Train a WideResNet on Fashion-MNIST: on one device, or on many with Horovod.

    python exercises/fashion_mnist.py --epochs 3
    mpirun -np 2 python exercises/fashion_mnist.py --epochs 3
    course run -np 2 exercises/fashion_mnist.py -- --epochs 3

One worker; two workers; two workers with the `mpirun` flags that suit this machine,
with progress shown and the log kept. Have GPUs? Start a worker for each, no more.
"""

import argparse
import os
import time
from pathlib import Path

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # Keras 2; Horovod knows no Keras 3

import tensorflow as tf

# TODO: Step 1: Import Horovod's Keras interface under its usual name, hvd.

from utils import data, logs

# TODO: Step 1: Start Horovod. Then give each worker a GPU of its own: the only one that
# it sees, if a scheduler has chosen, else the one numbered like its local rank; with
# memory growth on. Without GPUs there is nothing to pin.

on_gpu = bool(tf.config.list_physical_devices("GPU"))
parser = argparse.ArgumentParser(
    description="Train a WideResNet on Fashion-MNIST.",
    formatter_class=argparse.ArgumentDefaultsHelpFormatter,
)
option = parser.add_argument
option("--log-dir", help="folder for history.csv; a new one below logs/ if not given")
option("--batch-size", type=int, default=64, help="training images per worker and step")
option("--val-batch-size", type=int, default=200, help="validation images likewise")
option("--epochs", type=int, default=40, help="train at most so many epochs")
option("--base-lr", type=float, default=0.02, help="learning rate of the first epochs")
option("--wd", type=float, default=5e-6, help="L2 weight decay")
option("--target-accuracy", type=float, default=0.85, help="validation accuracy to ...")
option("--patience", type=int, default=2, help="... exceed in so many epochs running")
option("--depth", type=int, default=16, choices=range(4, 41, 6), help="d of WRN-d-k")
option("--width", type=int, default=10 if on_gpu else 1, help="k of WRN-d-k")
option("--train-images", type=int, help="take so many, and a sixth to validate on")
option("--data", choices=["auto", "real", "sample"], default="auto", help="data set")
option("--seed", type=int, help="make weights and batches repeatable")
option("--tensorboard", action="store_true", help="write TensorBoard logs as well")
args = parser.parse_args()

# TODO: Step 2: Only the first worker speaks; N workers printing at once is unreadable.
verbose = 1

data.seed_worker(args.seed)  # also if given: other random numbers on each worker
dataset = data.load(args.data, args.train_images)
data.check_batch_size(dataset, args.batch_size)
if verbose:
    print(f"{len(dataset.x_train)} training images from {dataset.name}")

# The input pipeline: numbers of images, in a random order; as soon as all were drawn,
# in a new one. Whole batches of numbers become batches of images, flipped and shifted
# at random. Who draws what? Each worker by itself, from all images.
train = tf.data.Dataset.range(len(dataset.x_train))
train = train.shuffle(len(dataset.x_train))
train = train.batch(args.batch_size, drop_remainder=True)
train = train.repeat()
train = train.map(data.augmented(dataset))
train = train.prefetch(2).with_options(data.one_thread())

# Validation: likewise at random, but the images are as they are, and none is left out.
validation = tf.data.Dataset.range(len(dataset.x_test))
validation = validation.shuffle(len(dataset.x_test))
validation = validation.batch(args.val_batch_size)
validation = validation.repeat()
validation = validation.map(data.as_they_are(dataset))
validation = validation.prefetch(2).with_options(data.one_thread())


# The network: a wide residual network (Zagoruyko and Komodakis, 2016,
# arXiv:1605.07146), with max-pooling between its three groups instead of strides.
def conv(x, filters, size):
    return tf.keras.layers.Conv2D(
        filters,
        size,
        padding="same",
        use_bias=False,
        kernel_initializer="he_normal",
        kernel_regularizer=tf.keras.regularizers.L2(args.wd),
    )(x)


def cbr(x, filters):
    """Convolution, batch normalisation, ReLU."""
    x = conv(x, filters, 3)
    # Keras' default momentum, 0.99, would need far more steps than a short run has.
    x = tf.keras.layers.BatchNormalization(momentum=0.9)(x)
    return tf.keras.layers.ReLU()(x)


def conv_block(x, filters):
    """Two cbr and a way around them; a 1x1 convolution where the width changes."""
    shortcut = x if x.shape[-1] == filters else conv(x, filters, 1)
    x = cbr(x, filters)
    x = tf.keras.layers.Dropout(0.01)(x)
    x = cbr(x, filters)
    return tf.keras.layers.Add()([x, shortcut])


def wide_resnet(depth, width):
    image = tf.keras.Input((28, 28, 1))
    x = cbr(image, 16)
    for group, filters in enumerate([16 * width, 32 * width, 64 * width]):
        if group > 0:
            x = tf.keras.layers.MaxPooling2D(2)(x)
        for _ in range((depth - 4) // 6):
            x = conv_block(x, filters)
    x = tf.keras.layers.GlobalAveragePooling2D()(x)
    x = tf.keras.layers.Dense(10, activation="softmax")(x)
    return tf.keras.Model(image, x)


optimizer = tf.keras.optimizers.SGD(args.base_lr, momentum=0.9)

# TODO: Step 3: Average the gradients of all workers before each update of the weights.

model = wide_resnet(args.depth, args.width)
model.compile(
    optimizer=optimizer,
    loss=tf.keras.losses.CategoricalCrossentropy(),
    metrics=["accuracy"],
)
if verbose:
    print(f"WRN-{args.depth}-{args.width} with {model.count_params():,} parameters")

steps = len(dataset.x_train) // args.batch_size
val_steps = -(-len(dataset.x_test) // args.val_batch_size)  # rounded up

# TODO: Step 5: Share the epoch. Each of N workers takes an Nth of the training steps
# and an Nth of three rounds of validation: with images drawn at random, three
# rounds rather than one make it likely that every image is looked at.
workers = 1
train_steps = steps
validation_steps = val_steps


class Stopwatch(tf.keras.callbacks.Callback):
    """Log images per second, and the seconds spent on training so far."""

    def __init__(self, images_per_epoch):
        super().__init__()
        self.images_per_epoch = images_per_epoch
        self.seconds = 0.0

    def on_epoch_begin(self, epoch, logs=None):
        self.started = time.perf_counter()

    def on_test_begin(self, logs=None):
        self.epoch_seconds = time.perf_counter() - self.started

    def on_epoch_end(self, epoch, logs=None):
        self.seconds += self.epoch_seconds
        logs["images_per_second"] = self.images_per_epoch / self.epoch_seconds
        logs["seconds"] = self.seconds


class StopAtAccuracy(tf.keras.callbacks.Callback):
    """Stop after `patience` epochs running with val_accuracy above `target`."""

    def __init__(self, target, patience):
        super().__init__()
        self.target, self.patience, self.streak = target, patience, 0

    def on_epoch_end(self, epoch, logs=None):
        self.streak = self.streak + 1 if logs["val_accuracy"] > self.target else 0
        if self.streak >= self.patience:
            self.model.stop_training = True
            if verbose:
                print(f"\nAbove {self.target} in {self.streak} epochs running: done.")


def learning_rate(epoch):
    """The base rate, divided by ten after 15, 25 and 35 epochs."""
    return args.base_lr * 0.1 ** sum(epoch >= drop for drop in (15, 25, 35))


callbacks = []

# TODO: Step 4: Start from the same weights: every worker takes those of rank 0.

# TODO: Step 6: Average the metrics of all workers, before any callback reads them.

callbacks.append(Stopwatch(train_steps * args.batch_size * workers))
callbacks.append(StopAtAccuracy(args.target_accuracy, args.patience))
callbacks.append(tf.keras.callbacks.LearningRateScheduler(learning_rate))
if verbose:
    history = logs.claim(args.log_dir, "history.csv")
    callbacks.append(tf.keras.callbacks.CSVLogger(history))
    if args.tensorboard:
        callbacks.append(tf.keras.callbacks.TensorBoard(Path(history).parent))

model.fit(
    train,
    steps_per_epoch=train_steps,
    epochs=args.epochs,
    validation_data=validation,
    validation_steps=validation_steps,
    callbacks=callbacks,
    verbose=verbose,
)

if verbose:
    test = data.test_batches(dataset, args.val_batch_size)
    loss, accuracy = model.evaluate(test, verbose=0)
    print(f"Test loss {loss:.4f}, test accuracy {accuracy:.4f} ({dataset.name})")
