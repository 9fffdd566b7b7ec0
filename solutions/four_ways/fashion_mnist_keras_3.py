"""The course's program, moved: a WideResNet on Fashion-MNIST, with Keras 3 and JAX.

    .venv-jax/bin/python solutions/four_ways/fashion_mnist_keras_3.py --epochs 3

All that solutions/fashion_mnist_after_step_06.py has Horovod for is gone, and so is
tf.data: NumPy makes the batches, whole ones, from the same images.
"""

import argparse
import os

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np

from utils import data

parser = argparse.ArgumentParser(
    description="Train a WideResNet on Fashion-MNIST.",
    formatter_class=argparse.ArgumentDefaultsHelpFormatter,
)
option = parser.add_argument
option("--devices", type=int, default=2, help="so many, made of a processor")
option("--trained", help="file for the losses and the weights (.npz)")
option("--batch-size", type=int, default=128, help="training images per step, in all")
option("--epochs", type=int, default=40, help="train so many epochs")
option("--base-lr", type=float, help="for that batch; by itself 0.04 / width")
option("--wd", type=float, default=5e-6, help="L2 weight decay")
option("--depth", type=int, default=16, choices=range(4, 41, 6), help="d of WRN-d-k")
option("--width", type=int, help="k of WRN-d-k; by itself 10 on GPUs, else 1")
option("--train-images", type=int, help="take so many, and a sixth to validate on")
option("--data", choices=["auto", "real", "sample"], default="auto", help="data set")
option("--seed", type=int, default=1, help="make weights and batches repeatable")
args = parser.parse_args()

# Before JAX starts. With GPUs, JAX takes those, and leaves the processor alone.
count = f"--xla_force_host_platform_device_count={args.devices}"
os.environ["XLA_FLAGS"] = count

keras.distribution.set_distribution(keras.distribution.DataParallel())
on_gpu = keras.distribution.list_devices()[0].startswith("gpu")
args.width = args.width or (10 if on_gpu else 1)
if args.base_lr is None:
    args.base_lr = 0.04 / args.width
keras.utils.set_random_seed(args.seed)
dataset = data.load(args.data, args.train_images)
data.check_batch_size(dataset, args.batch_size)


def standardise(images):
    """Floats (n, 28, 28, 1), by the mean and the deviation of the training set."""
    return ((images - dataset.mean) / dataset.std).astype("float32")[..., None]


def flip_and_shift(images, random):
    """Each image flipped or not, and shifted by up to data.SHIFT pixels."""
    margin = (data.SHIFT, data.SHIFT)
    padded = np.pad(images, [(0, 0), margin, margin])
    moved = np.empty_like(images)
    for number, image in enumerate(padded):
        down, right = random.integers(0, 2 * data.SHIFT + 1, 2)
        cut = image[down : down + 28, right : right + 28]
        moved[number] = cut[:, ::-1] if random.random() < 0.5 else cut
    return moved


class Batches(keras.utils.PyDataset):
    """Training batches: each epoch in an order of its own; the rest is left out."""

    def __init__(self):
        super().__init__()
        self.random = np.random.default_rng(args.seed)
        self.on_epoch_end()

    def __len__(self):
        return len(dataset.x_train) // args.batch_size

    def __getitem__(self, step):
        rows = self.order[step * args.batch_size : (step + 1) * args.batch_size]
        images = flip_and_shift(dataset.x_train[rows], self.random)
        return standardise(images), dataset.y_train[rows]

    def on_epoch_end(self):
        self.order = self.random.permutation(len(dataset.x_train))


def conv(x, filters, size):
    return keras.layers.Conv2D(
        filters,
        size,
        padding="same",
        use_bias=False,
        kernel_initializer="he_normal",
        kernel_regularizer=keras.regularizers.L2(args.wd),
    )(x)


def cbr(x, filters):
    """Convolution, batch normalization, ReLU."""
    x = conv(x, filters, 3)
    # Of the whole batch: for XLA there is one, wherever its parts are.
    x = keras.layers.BatchNormalization(momentum=0.9)(x)
    return keras.layers.ReLU()(x)


def conv_block(x, filters):
    """Two cbr and a way around them; a 1x1 convolution where the width changes."""
    shortcut = x if x.shape[-1] == filters else conv(x, filters, 1)
    x = cbr(x, filters)
    x = keras.layers.Dropout(0.01)(x)
    x = cbr(x, filters)
    return keras.layers.Add()([x, shortcut])


def wide_resnet(depth, width):
    image = keras.Input((28, 28, 1))
    x = cbr(image, 16)
    for group, filters in enumerate([16 * width, 32 * width, 64 * width]):
        if group > 0:
            x = keras.layers.MaxPooling2D(2)(x)
        for _ in range((depth - 4) // 6):
            x = conv_block(x, filters)
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(image, keras.layers.Dense(10)(x))


model = wide_resnet(args.depth, args.width)
model.compile(
    keras.optimizers.SGD(args.base_lr, momentum=0.9),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
known = len(dataset.x_test) // 8 * 8  # as many as 8 devices can share
trained = model.fit(
    Batches(),
    epochs=args.epochs,
    validation_data=(standardise(dataset.x_test[:known]), dataset.y_test[:known]),
    verbose=2,
)
if args.trained:
    np.savez(args.trained, *model.get_weights(), loss=trained.history["loss"])
