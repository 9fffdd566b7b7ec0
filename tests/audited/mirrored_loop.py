"""MirroredStrategy with a loop of one's own."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np
import tensorflow as tf

strategy = tf.distribute.MirroredStrategy()
size = 8 * strategy.num_replicas_in_sync
rng = np.random.default_rng(14)
x = rng.normal(size=(64, 6)).astype("float32")
y = (x[:, 0] > 0).astype("int64")
data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(64).batch(size)
data = strategy.experimental_distribute_dataset(data)
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(4)])
    optimizer = tf.keras.optimizers.SGD(0.1)
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction=tf.keras.losses.Reduction.NONE
    )


def train_step(features, labels):
    with tf.GradientTape() as tape:
        each = loss_of(labels, 0.1 * model(features, training=True))
        loss = tf.nn.compute_average_loss(each, global_batch_size=size)
    grads = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(grads, model.trainable_variables))
    return loss


@tf.function
def distributed_step(features, labels):
    losses = strategy.run(train_step, args=(features, labels))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)


for epoch in range(2):
    for features, labels in data:
        loss = distributed_step(features, labels)
print(float(loss))
