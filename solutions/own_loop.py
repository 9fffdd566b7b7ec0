"""A training loop of one's own, without `fit`, on made-up data.

course run -np 2 solutions/own_loop.py
course audit -np 2 solutions/own_loop.py
"""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

hvd.init()
rank, size = hvd.rank(), hvd.size()
# So small a network is trained on cores; in a larger one, pin a GPU here.
tf.config.set_visible_devices([], "GPU")

rng = np.random.default_rng(7)  # the same on all: they make the same data
x = rng.normal(size=(1300, 8)).astype("float32")
y = (x[:, :1] * x[:, 1:2] > 0).astype("float32")
own = slice(rank, 1000 // size * size, size)  # as many for each
x_val, y_val = x[1000 + rank :: size], y[1000 + rank :: size]  # each of them once

tf.keras.utils.set_random_seed(7 + rank)  # repeats, and differs from rank to rank
train = tf.data.Dataset.from_tensor_slices((x[own], y[own]))
train = train.shuffle(1000).batch(25)

hidden = tf.keras.layers.Dense(32, "relu", input_shape=(8,))
model = tf.keras.Sequential([hidden, tf.keras.layers.Dense(1)])
optimizer = tf.keras.optimizers.Adam(0.01)
optimizer.build(model.trainable_variables)  # now it has its variables
hvd.broadcast_variables(model.variables, root_rank=0)
hvd.broadcast_variables(optimizer.variables, root_rank=0)
loss_of = tf.keras.losses.BinaryCrossentropy(from_logits=True)


@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape:
        loss = loss_of(y, model(x, training=True))
    tape = hvd.DistributedGradientTape(tape)
    gradients = tape.gradient(loss, model.trainable_variables)
    gradients, _ = tf.clip_by_global_norm(gradients, 1.0)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))


for epoch in range(5):
    for batch in train:
        train_step(*batch)
    right = (model(x_val, training=False) > 0).numpy() == (y_val > 0)
    counted = tf.constant([right.sum(), len(right)], tf.float32)
    right, of_all = hvd.allreduce(counted, op=hvd.Sum).numpy()
    if rank == 0:
        print(f"epoch {epoch + 1}: {right / of_all:.1%} of {of_all:.0f}")
