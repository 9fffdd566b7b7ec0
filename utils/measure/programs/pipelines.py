"""The course's input pipeline beside the usual ones, alone, on one thread.

    python -m utils.measure.programs.pipelines --rounds 5 --seconds 2

prints a line of JSON: images per second of each, a number for every round.
"""

import argparse
import json
import os
import time
from collections.abc import Iterator

import numpy as np

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # Keras 2; Horovod knows no Keras 3

import tensorflow as tf

from utils.training import data

WARM_UP = 3  # batches, of each in every round


def keras_generator(dataset: data.Dataset, batch_size: int) -> Iterator:
    """Keras' ImageDataGenerator, which moves image by image in Python.

    Batches as of `data.training_batches`: float32 (batch, 28, 28, 1) and (batch, 10).
    """
    generator = tf.keras.preprocessing.image.ImageDataGenerator(
        featurewise_center=True,
        featurewise_std_normalization=True,
        horizontal_flip=True,
        width_shift_range=0.2,
        height_shift_range=0.2,
        fill_mode="constant",
    )
    generator.mean, generator.std = dataset.mean, dataset.std
    labels = np.eye(len(dataset.classes), dtype=np.float32)[dataset.y_train]
    return generator.flow(dataset.x_train[..., None], labels, batch_size)


def image_by_image(dataset: data.Dataset, batch_size: int) -> tf.data.Dataset:
    """tf.data as tutorials have it: shuffle, map over single images, batch."""

    def augmented(image, label):
        image = tf.image.random_flip_left_right(image[..., None])
        padded = tf.pad(image, [[data.SHIFT] * 2, [data.SHIFT] * 2, [0, 0]])
        image = tf.image.random_crop(padded, dataset.image_shape)
        pixels = (tf.cast(image, tf.float32) - dataset.mean) / dataset.std
        return pixels, tf.one_hot(label, len(dataset.classes))

    images = tf.data.Dataset.from_tensor_slices((dataset.x_train, dataset.y_train))
    batches = images.repeat().shuffle(10_000).map(augmented).batch(batch_size)
    options = tf.data.Options()
    options.threading.private_threadpool_size = 1
    return batches.prefetch(2).with_options(options)


PIPELINES = {
    "course": data.training_batches,
    "image_by_image": image_by_image,
    "keras_generator": keras_generator,
}


def speeds(
    dataset: data.Dataset, batch_size: int, rounds: int, seconds: float
) -> dict[str, list[float]]:
    """Images per second of each pipeline; they take turns, `seconds` each."""
    iterators = {
        name: iter(make(dataset, batch_size)) for name, make in PIPELINES.items()
    }
    measured: dict[str, list[float]] = {name: [] for name in PIPELINES}
    for _ in range(rounds):
        for name, iterator in iterators.items():
            for _ in range(WARM_UP):
                next(iterator)
            images, started = 0, time.perf_counter()
            while (passed := time.perf_counter() - started) < seconds:
                images += len(next(iterator)[0])
            measured[name].append(images / passed)
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--data", choices=data.CHOICES, default="auto")
    args = parser.parse_args()
    dataset = data.load(args.data)
    print(json.dumps(speeds(dataset, args.batch_size, args.rounds, args.seconds)))


if __name__ == "__main__":
    main()
