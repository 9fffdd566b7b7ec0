"""A network that makes samples and one that judges them, each with its own tape and
optimizer. The second is shown the data and what the first makes of random numbers."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

hvd.init()
real = np.random.default_rng(1).normal(size=(64, 6)).astype("float32")
data = tf.data.Dataset.from_tensor_slices(real)
data = data.shard(hvd.size(), hvd.rank()).batch(4)

generator = tf.keras.Sequential(
    [
        tf.keras.layers.Dense(8, "relu", input_shape=(3,)),
        tf.keras.layers.Dense(6),
    ]
)
critic = tf.keras.Sequential(
    [
        tf.keras.layers.Dense(8, "relu", input_shape=(6,)),
        tf.keras.layers.Dense(1),
    ]
)
optimizers = [tf.keras.optimizers.Adam(0.001 * hvd.size()) for _ in range(2)]
loss = tf.keras.losses.BinaryCrossentropy(from_logits=True)


@tf.function
def train_step(some, first):
    with tf.GradientTape() as one, tf.GradientTape() as other:
        made = generator(tf.random.normal((4, 3)), training=True)
        on_real, on_made = critic(some, training=True), critic(made, training=True)
        its = loss(tf.ones_like(on_made), on_made)
        of_critic = loss(tf.ones_like(on_real), on_real)
        of_critic += loss(tf.zeros_like(on_made), on_made)
    one, other = hvd.DistributedGradientTape(one), hvd.DistributedGradientTape(other)
    networks = generator, critic
    grads = [
        tape.gradient(value, network.trainable_variables)
        for tape, value, network in zip(
            (one, other), (its, of_critic), networks, strict=True
        )
    ]
    for grad, optimizer, network in zip(grads, optimizers, networks, strict=True):
        optimizer.apply_gradients(zip(grad, network.trainable_variables))
    if first:
        for network, optimizer in zip(networks, optimizers, strict=True):
            hvd.broadcast_variables(network.variables, root_rank=0)
            hvd.broadcast_variables(optimizer.variables, root_rank=0)
    return of_critic


for epoch in range(2):
    for batch, some in enumerate(data):
        value = train_step(some, epoch == 0 and batch == 0)
    if hvd.rank() == 0:
        print("epoch", epoch, "loss", float(value))
