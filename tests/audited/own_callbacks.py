"""Callbacks of one's own: one stops by an average, one saves; with batch norm."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf

hvd.init()


class StopTogether(tf.keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        loss = float(hvd.allreduce(tf.constant(float(logs["val_loss"]))))
        if loss < 0.01:
            self.model.stop_training = True


class SaveBest(tf.keras.callbacks.Callback):
    best = float("inf")

    def on_epoch_end(self, epoch, logs=None):
        if hvd.rank() == 0 and logs["val_loss"] < self.best:
            self.best = logs["val_loss"]
            np.savez("weights.npz", *self.model.get_weights())


rng = np.random.default_rng(5)
x = rng.normal(size=(64, 6)).astype("float32")
y = (x[:, :2].sum(1) > 0).astype("float32")
mine = slice(hvd.rank(), 48, hvd.size())
held = slice(48 + hvd.rank(), None, hvd.size())
inputs = tf.keras.Input((6,))
hidden = tf.keras.layers.Dense(8, use_bias=False)(inputs)
hidden = tf.keras.layers.ReLU()(tf.keras.layers.BatchNormalization()(hidden))
outputs = tf.keras.layers.Dense(1, activation="sigmoid")(hidden)
model = tf.keras.Model(inputs, outputs)
model.compile(hvd.DistributedOptimizer(tf.keras.optimizers.Adam(0.01)), "mse")
model.fit(
    x[mine],
    y[mine],
    batch_size=8,
    epochs=2,
    validation_data=(x[held], y[held]),
    callbacks=[
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        StopTogether(),
        SaveBest(),
    ],
    verbose=0,
)
