"""Two networks of one model, each with an optimizer of its own, on one tape; and an
input, the places, that all samples have in common."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

hvd.init()
rng = np.random.default_rng(1)
functions = rng.normal(size=(96, 6)).astype("float32")
places = np.linspace(0, 1, 5, dtype="float32")[:, None]
values = functions[:, :1] + functions[:, 1:2] * places.T
data = tf.data.Dataset.from_tensor_slices((functions, values))
data = data.shard(hvd.size(), hvd.rank()).shuffle(96).batch(8)


class Operator(tf.keras.Model):
    def __init__(self):
        super().__init__()
        self.branch = tf.keras.Sequential(
            [tf.keras.layers.Dense(32, "tanh"), tf.keras.layers.Dense(4)]
        )
        self.trunk = tf.keras.layers.Dense(4)

    def call(self, inputs):
        functions, places = inputs
        return tf.matmul(self.branch(functions), self.trunk(places), transpose_b=True)


model = Operator()
optimizers = [
    tf.keras.optimizers.SGD(0.01 * hvd.size()),
    tf.keras.optimizers.Adam(0.001 * hvd.size()),
]


@tf.function(autograph=False)
def train_step(functions, values, first):
    with tf.GradientTape(persistent=True) as tape:
        loss = tf.reduce_mean(tf.square(model((functions, places)) - values))
    tape = hvd.DistributedGradientTape(tape)
    parts = [net.trainable_variables for net in (model.trunk, model.branch)]
    grads = [tape.gradient(loss, part) for part in parts]
    for optimizer, part, grad in zip(optimizers, parts, grads, strict=True):
        optimizer.apply_gradients(zip(grad, part))
    if first:
        hvd.broadcast_variables(model.variables, root_rank=0)
        for optimizer in optimizers:
            hvd.broadcast_variables(optimizer.variables(), root_rank=0)
    return loss


for epoch in range(2):
    for batch, (some, their_values) in enumerate(data):
        loss = train_step(some, their_values, epoch == 0 and batch == 0)
    if hvd.rank() == 0:
        print("epoch", epoch, "loss", float(loss))
