"""A compiled step with DistributedGradientTape; tf.data, sharded."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

hvd.init()
rng = np.random.default_rng(1)
x = rng.normal(size=(96, 6)).astype("float32")
y = x.sum(axis=1, keepdims=True)
data = tf.data.Dataset.from_tensor_slices((x, y)).shard(hvd.size(), hvd.rank())
data = data.shuffle(96).batch(8)
model = tf.keras.Sequential(
    [tf.keras.layers.Dense(8, "tanh"), tf.keras.layers.Dense(1)]
)
optimizer = tf.keras.optimizers.SGD(0.01 * hvd.size())


@tf.function(autograph=False)  # Horovod has much to convert, and there is no need
def train_step(images, labels, first):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(images, training=True) - labels))
    tape = hvd.DistributedGradientTape(tape)
    grads = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(grads, model.trainable_variables))
    if first:
        hvd.broadcast_variables(model.variables, root_rank=0)
        hvd.broadcast_variables(optimizer.variables(), root_rank=0)
    return loss


for epoch in range(2):
    for batch, (images, labels) in enumerate(data):
        loss = train_step(images, labels, epoch == 0 and batch == 0)
    if hvd.rank() == 0:
        print("epoch", epoch, "loss", float(loss))
