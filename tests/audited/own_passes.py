"""A step of its own computes the gradient in two parts, and averages once."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from horovod.tensorflow.keras.callbacks import BroadcastGlobalVariablesCallback

hvd.init()
rng = np.random.default_rng(12)
x = rng.normal(size=(96, 5)).astype("float32")
y = np.tanh(x[:, :1] + 0.5 * x[:, 2:3])


class InParts(tf.keras.Model):
    def train_step(self, data):
        parts = [tf.split(part, 2) for part in data]
        total = None
        for inputs, truth in zip(*parts, strict=True):
            with tf.GradientTape() as tape:
                loss = self.compute_loss(inputs, truth, self(inputs, training=True))
            part = tape.gradient(loss, self.trainable_variables)
            total = part if total is None else [a + b for a, b in zip(total, part)]
        mean = [hvd.allreduce(gradient / 2) for gradient in total]
        self.optimizer.apply_gradients(zip(mean, self.trainable_variables))
        return {"loss": loss}


inputs = tf.keras.Input((5,))
hidden = tf.keras.layers.Dense(4, activation="relu")(inputs)
model = InParts(inputs, tf.keras.layers.Dense(1)(hidden))
model.compile(tf.keras.optimizers.SGD(0.02 * hvd.size()), "mse")
share = slice(hvd.rank(), None, hvd.size())
model.fit(
    x[share],
    y[share],
    batch_size=8,
    epochs=2,
    callbacks=[BroadcastGlobalVariablesCallback(0)],
    verbose=0,
)
