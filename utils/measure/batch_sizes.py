"""How many images a second a device trains on, by the size of a batch."""

import time
from collections.abc import Iterable

from distcheck import keras_2
from utils.training import devices, networks


def images_per_second(
    width: int, sizes: Iterable[int], steps: int = 3
) -> dict[int, float]:
    """The throughput of a WRN-16-`width` for each size of a batch, on the first GPU
    or, without any, on the processor; of so many training steps on random images."""
    keras_2.choose()
    import tensorflow as tf

    devices.grow_memory()
    model = networks.wide_resnet(width)
    optimizer = tf.keras.optimizers.SGD(0.01)

    @tf.function(input_signature=[tf.TensorSpec([None, 28, 28, 1])])
    def train(images):
        labels = tf.zeros(tf.shape(images)[:1])  # for the time, any will do
        with tf.GradientTape() as tape:
            guess = model(images, training=True)
            losses = tf.keras.losses.sparse_categorical_crossentropy(labels, guess)
            loss = tf.reduce_mean(losses)
        variables = model.trainable_variables
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    def seconds(images) -> float:
        started = time.perf_counter()
        for _ in range(steps):
            loss = train(images)
        loss.numpy()  # a GPU computes on after the call: wait for the number
        return time.perf_counter() - started

    speeds = {}
    for size in sizes:
        images = tf.random.normal([size, 28, 28, 1])
        train(images).numpy()  # the first one is slower: don't count it
        speeds[size] = steps * size / seconds(images)
    return speeds
