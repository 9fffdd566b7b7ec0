"""Gradients of two batches are added up before they are averaged."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf

hvd.init()
tf.keras.utils.set_random_seed(11)
rng = np.random.default_rng(10)
x = rng.normal(size=(64, 5)).astype("float32")
y = x[:, :1] - x[:, 1:2]
model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(5,))])
optimizer = tf.keras.optimizers.legacy.SGD(0.02)
optimizer = hvd.DistributedOptimizer(optimizer, backward_passes_per_step=2)
model.compile(optimizer, "mse", experimental_run_tf_function=False)
share = np.array_split(np.arange(64), hvd.size())[hvd.rank()]
reduce = tf.keras.callbacks.ReduceLROnPlateau("loss", patience=1)
model.fit(
    x[share],
    y[share],
    batch_size=4,
    epochs=2,
    callbacks=[
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        reduce,
    ],
    verbose=0,
)
