"""One global batch for any number of workers; rank 0 keeps what is best on average."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf

hvd.init()
rng = np.random.default_rng(17)
x = rng.normal(size=(120, 8)).astype("float32")
y = (x.sum(1) > 0).astype("float32")
mine = slice(hvd.rank(), 96, hvd.size())
held = slice(96 + hvd.rank(), None, hvd.size())
model = tf.keras.Sequential([tf.keras.Input((8,)), tf.keras.layers.Dense(1)])
model.compile(
    hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.05)),
    tf.keras.losses.BinaryCrossentropy(from_logits=True),
)
callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    tf.keras.callbacks.TensorBoard(f"logs/{hvd.rank()}"),
]
if hvd.rank() == 0:
    best = tf.keras.callbacks.ModelCheckpoint("best.h5", save_best_only=True)
    callbacks.append(best)
model.fit(
    x[mine],
    y[mine],
    batch_size=16 // hvd.size(),
    epochs=3,
    validation_data=(x[held], y[held]),
    callbacks=callbacks,
    verbose=0,
)
hvd.shutdown()
