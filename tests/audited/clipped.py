"""MirroredStrategy with a loop that averages gradients itself, and then clips them."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np
import tensorflow as tf

strategy = tf.distribute.MirroredStrategy()
size = 8 * strategy.num_replicas_in_sync
rng = np.random.default_rng(21)
x = rng.normal(size=(64, 6)).astype("float32")
y = x.sum(axis=1, keepdims=True)
data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(64).batch(size)
data = strategy.experimental_distribute_dataset(data)
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
    optimizer = tf.keras.optimizers.SGD(0.01)


def train_step(features, labels):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(features, training=True) - labels))
    grads = tape.gradient(loss, model.trainable_variables)
    grads = tf.distribute.get_replica_context().all_reduce("mean", grads)
    grads, _ = tf.clip_by_global_norm(grads, 0.5)
    optimizer.apply_gradients(
        zip(grads, model.trainable_variables),
        skip_gradients_aggregation=True,
    )
    return loss


@tf.function
def distributed_step(features, labels):
    losses = strategy.run(train_step, args=(features, labels))
    return strategy.reduce(tf.distribute.ReduceOp.MEAN, losses, axis=None)


for epoch in range(2):
    for features, labels in data:
        loss = distributed_step(features, labels)
print(float(loss))
