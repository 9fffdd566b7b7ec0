"""Epochs are shared, not steps, as in the first examples of Horovod."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import math

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf

hvd.init()
rng = np.random.default_rng(6)
x = rng.uniform(size=(48, 8, 8, 1)).astype("float32")
y = tf.keras.utils.to_categorical(rng.integers(0, 3, 48), 3)
model = tf.keras.Sequential()
model.add(tf.keras.layers.Conv2D(4, 3, activation="relu", input_shape=(8, 8, 1)))
model.add(tf.keras.layers.Flatten())
model.add(tf.keras.layers.Dropout(0.25))
model.add(tf.keras.layers.Dense(3, activation="softmax"))
optimizer = tf.keras.optimizers.legacy.Adadelta(1.0 * hvd.size())
model.compile(
    loss=tf.keras.losses.categorical_crossentropy,
    optimizer=hvd.DistributedOptimizer(optimizer),
    metrics=["accuracy"],
)
callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
if hvd.rank() == 0:
    callbacks.append(tf.keras.callbacks.ModelCheckpoint("./checkpoint-{epoch}.h5"))
epochs = int(math.ceil(4 / hvd.size()))
model.fit(x, y, batch_size=12, epochs=epochs, verbose=0, callbacks=callbacks)
