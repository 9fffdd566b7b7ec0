"""Augmented data, clipped gradients, a checkpoint that rank 0 writes and reads."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

hvd.init()
rng = np.random.default_rng(9)
x = rng.uniform(size=(48, 8, 8, 1)).astype("float32")
y = rng.integers(0, 2, (48, 1)).astype("float32")


def augment(image, label):
    return image + tf.random.normal(tf.shape(image), stddev=0.1), label


data = tf.data.Dataset.from_tensor_slices((x, y))
data = data.shard(hvd.size(), hvd.rank()).shuffle(48).map(augment).batch(8)
model = tf.keras.Sequential(
    [tf.keras.layers.Flatten(), tf.keras.layers.Dense(1, activation="sigmoid")]
)
optimizer = tf.keras.optimizers.Adam(0.01)
checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
loss_of = tf.keras.losses.BinaryCrossentropy()
first = True
for epoch in range(2):
    for images, labels in data:
        with tf.GradientTape() as tape:
            loss = loss_of(labels, model(images, training=True))
        tape = hvd.DistributedGradientTape(tape)
        grads = tape.gradient(loss, model.trainable_variables)
        grads, _ = tf.clip_by_global_norm(grads, 0.1)
        optimizer.apply_gradients(zip(grads, model.trainable_variables))
        if first:
            hvd.broadcast_variables(model.variables, root_rank=0)
            hvd.broadcast_variables(optimizer.variables(), root_rank=0)
            first = False
    if hvd.rank() == 0:
        checkpoint.save("checkpoints/model")
