"""Tell three shapes of waves apart, in noise: sines, squares and saw teeth.

course run -np 2 solutions/waves_distributed.py
course audit -np 2 solutions/waves_distributed.py
"""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf

hvd.init()
gpus = tf.config.list_physical_devices("GPU")
if gpus:
    gpu = gpus[0] if len(gpus) == 1 else gpus[hvd.local_rank()]
    tf.config.set_visible_devices(gpu, "GPU")
    tf.config.experimental.set_memory_growth(gpu, True)
verbose = 1 if hvd.rank() == 0 else 0

rng = np.random.default_rng(7)
t = np.linspace(0, 1, 64, endpoint=False)
pitch, phase = rng.uniform(2, 6, (3000, 1)), rng.uniform(0, 1, (3000, 1))
turns = pitch * t + phase
y = rng.integers(0, 3, 3000)
waves = [
    np.sin(2 * np.pi * turns),
    np.sign(np.sin(2 * np.pi * turns)),
    2 * turns % 2 - 1,
]
x = np.choose(y[:, None], waves) + rng.normal(0, 0.7, (3000, 64))
x = x[..., None].astype("float32")
x_train, y_train, x_test, y_test = x[:2400], y[:2400], x[2400:], y[2400:]
# Each worker trains on its share of the waves, as many as any other's, so that all make
# as many steps: with model.fit(x, y), sharing the data is sharing the epoch.
x_train, y_train = x_train[hvd.rank() :: hvd.size()], y_train[hvd.rank() :: hvd.size()]
share = len(x) * 4 // 5 // hvd.size()
x_train, y_train = x_train[:share], y_train[:share]

model = tf.keras.Sequential(
    [
        tf.keras.layers.Conv1D(16, 9, activation="relu", input_shape=(64, 1)),
        tf.keras.layers.MaxPooling1D(2),
        tf.keras.layers.Conv1D(32, 9, activation="relu"),
        tf.keras.layers.GlobalMaxPooling1D(),
        tf.keras.layers.Dense(3, activation="softmax"),
    ]
)
optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.Adam(0.002))
model.compile(optimizer, "sparse_categorical_crossentropy", ["accuracy"])
callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    tf.keras.callbacks.ReduceLROnPlateau("val_loss", patience=1),
]
if hvd.rank() == 0:  # two workers that write one file would spoil it
    callbacks += [
        tf.keras.callbacks.ModelCheckpoint("waves.h5", save_best_only=True),
        tf.keras.callbacks.CSVLogger("waves.csv"),
    ]
model.fit(
    x_train,
    y_train,
    batch_size=40,
    epochs=3,
    validation_data=(x_test, y_test),
    callbacks=callbacks,
    verbose=verbose,
)
# All of them validate on all held-out waves, and have one network: they agree.
loss, accuracy = model.evaluate(x_test, y_test, verbose=verbose)
if verbose:
    print(f"{accuracy:.1%} of the held-out waves are told rightly")
