"""A subclassed model with a train_step of its own, fed by a generator."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf

hvd.init()


class Autoencoder(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.encode = tf.keras.layers.Dense(3, activation="tanh")
        self.decode = tf.keras.layers.Dense(6)

    def call(self, x):
        return self.decode(self.encode(x))

    def train_step(self, x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self(x, training=True) - x))
        self.optimizer.minimize(loss, self.trainable_variables, tape=tape)
        return {"loss": loss}


def batches(rows):
    rng = np.random.default_rng(hvd.rank())
    while True:
        yield rows[rng.permutation(len(rows))[:8]]


rows = np.random.default_rng(4).normal(size=(80, 6)).astype("float32")
model = Autoencoder()
model.compile(optimizer=hvd.DistributedOptimizer(tf.keras.optimizers.RMSprop(0.01)))
model.fit(
    batches(rows),
    steps_per_epoch=10 // hvd.size(),
    epochs=2,
    callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)],
    verbose=0,
)
