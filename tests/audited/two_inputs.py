"""Two inputs, two outputs, several epochs of a repeated data set."""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf

hvd.init()
rng = np.random.default_rng(7)
left, right = rng.normal(size=(2, 64, 4)).astype("float32")
targets = {"sum": (left + right)[:, :1], "sign": (left[:, :1] > 0).astype("float32")}
data = tf.data.Dataset.from_tensor_slices(({"left": left, "right": right}, targets))
data = data.shuffle(64, seed=hvd.rank()).repeat().batch(8).prefetch(1)
inputs = [tf.keras.Input((4,), name=name) for name in ("left", "right")]
hidden = tf.keras.layers.Dense(8, "relu")(tf.keras.layers.Concatenate()(inputs))
outputs = {
    "sum": tf.keras.layers.Dense(1, name="sum")(hidden),
    "sign": tf.keras.layers.Dense(1, "sigmoid", name="sign")(hidden),
}
model = tf.keras.Model(inputs, outputs)
model.compile(
    optimizer=hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.01, momentum=0.9)),
    loss={"sum": "mse", "sign": "binary_crossentropy"},
)
model.fit(
    data,
    steps_per_epoch=8 // hvd.size(),
    epochs=2,
    callbacks=[
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.LearningRateWarmupCallback(
            0.01 * hvd.size(), warmup_epochs=1, momentum_correction=False
        ),
    ],
    verbose=0,
)
