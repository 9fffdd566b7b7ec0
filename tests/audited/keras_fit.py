"""As people write it: Sequential, model.fit(x, y), Horovod's callbacks."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf

hvd.init()

rng = np.random.default_rng(0)
x = rng.normal(size=(96, 8)).astype("float32")
y = (x[:, 0] > 0).astype("int64")
x_train, y_train = x[hvd.rank() : 80 : hvd.size()], y[hvd.rank() : 80 : hvd.size()]
x_test, y_test = x[80:], y[80:]

model = tf.keras.Sequential(
    [
        tf.keras.layers.Dense(16, activation="relu", input_shape=(8,)),
        tf.keras.layers.Dense(2, activation="softmax"),
    ]
)
optimizer = tf.keras.optimizers.Adam(0.01 * hvd.size())
optimizer = hvd.DistributedOptimizer(optimizer)
model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    tf.keras.callbacks.EarlyStopping("val_loss", patience=5),
]
if hvd.rank() == 0:
    callbacks.append(tf.keras.callbacks.ModelCheckpoint("best.h5"))
model.fit(
    x_train,
    y_train,
    batch_size=8,
    epochs=3,
    callbacks=callbacks,
    validation_data=(x_test, y_test),
    verbose=1 if hvd.rank() == 0 else 0,
)
