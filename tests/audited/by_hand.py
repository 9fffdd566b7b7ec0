"""No Keras model, no optimizer: variables, and updates by hand."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

hvd.init()
rng = np.random.default_rng(8)
x = rng.normal(size=(80, 4)).astype("float32")
y = x @ np.array([[1.0], [2.0], [3.0], [4.0]], "float32")
w = tf.Variable(tf.random.normal((4, 1)))
b = tf.Variable(tf.zeros((1,)))
hvd.broadcast_variables([w, b], root_rank=0)
for step in range(8):
    rows = rng.permutation(80)[hvd.rank() :: hvd.size()][:16]
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((tf.matmul(x[rows], w) + b - y[rows]) ** 2)
    for variable, gradient in zip((w, b), tape.gradient(loss, (w, b))):
        variable.assign_sub(0.05 * hvd.allreduce(gradient))
