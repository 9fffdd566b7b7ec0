"""Gradients summed, of a loss that is divided by the number of workers."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

hvd.init()
rng = np.random.default_rng(2)
x = rng.normal(size=(64, 6)).astype("float32")
y = (x[:, 0] > 0).astype("int64")
mine = slice(hvd.rank(), None, hvd.size())
data = tf.data.Dataset.from_tensor_slices((x[mine], y[mine])).shuffle(64).batch(8)
model = tf.keras.Sequential([tf.keras.layers.Dense(4, input_shape=(6,))])
hvd.broadcast_variables(model.variables, root_rank=0)
optimizer = tf.keras.optimizers.SGD(0.05)
measure = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
for epoch in range(2):
    for features, labels in data:
        with tf.GradientTape() as tape:
            loss = measure(labels, 0.1 * model(features)) / hvd.size()
        tape = hvd.DistributedGradientTape(tape, op=hvd.Sum)
        grads = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(grads, model.trainable_variables))
