"""A loop as in PyTorch: NumPy batches, eager, each gradient reduced by hand."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf


class Net(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = tf.keras.layers.Dense(8, activation="relu")
        self.head = tf.keras.layers.Dense(1)

    def call(self, inputs):
        return self.head(self.hidden(inputs))


class Trainer:
    def __init__(self, net, optimizer):
        self.net, self.optimizer = net, optimizer

    def step(self, inputs, targets):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self.net(inputs) - targets) ** 2)
        weights = self.net.trainable_weights
        grads = tape.gradient(loss, weights)
        grads = [hvd.allreduce(g, op=hvd.Average) for g in grads]
        self.optimizer.apply_gradients(zip(grads, weights))
        return float(hvd.allreduce(loss))

    def epoch(self, inputs, targets, order):
        for start in range(0, len(order) - 7, 8):
            rows = order[start : start + 8]
            loss = self.step(inputs[rows], targets[rows])
        return loss


hvd.init()
rng = np.random.RandomState(3)
inputs = rng.normal(size=(64, 5)).astype("float32")
targets = inputs[:, :1] * 2
trainer = Trainer(Net(), tf.keras.optimizers.Adam(0.01))
trainer.net(inputs[:1])
for variable in trainer.net.variables:
    variable.assign(hvd.broadcast(variable, root_rank=0))
for epoch in range(2):
    order = rng.permutation(64)[hvd.rank() :: hvd.size()]
    loss = trainer.epoch(inputs, targets, order)
    if hvd.rank() == 0:
        print(f"epoch {epoch}: {loss:.4f}")
