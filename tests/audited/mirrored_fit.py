"""MirroredStrategy with model.fit(x, y)."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np
import tensorflow as tf

strategy = tf.distribute.MirroredStrategy()
rng = np.random.default_rng(13)
x = rng.normal(size=(64, 6)).astype("float32")
y = (x[:, 0] > 0).astype("int64")
with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Dense(8, activation="relu"),
            tf.keras.layers.BatchNormalization(),
            tf.keras.layers.Dense(2, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
batch = 8 * strategy.num_replicas_in_sync
model.fit(x, y, batch_size=batch, epochs=2, validation_split=0.25, verbose=0)
