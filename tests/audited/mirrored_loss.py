"""MirroredStrategy with model.fit and a loss that is a single number, in Keras 2."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np
import tensorflow as tf

keras = tf.keras
strategy = tf.distribute.MirroredStrategy()
rng = np.random.default_rng(19)
x = 0.5 * rng.normal(size=(64, 6)).astype("float32")
y = x[:, :1] + 3


def loss_of(labels, outputs):
    return tf.reduce_sum(tf.square(labels - outputs)) / 8


with strategy.scope():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.02), loss_of)
batch = 8 * strategy.num_replicas_in_sync
model.fit(x, y, batch_size=batch, epochs=2, verbose=0)
