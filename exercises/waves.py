"""Tell three shapes of waves apart, in noise: sines, squares and saw teeth.

python exercises/waves.py
"""

import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np
import tensorflow as tf

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

model = tf.keras.Sequential(
    [
        tf.keras.layers.Conv1D(16, 9, activation="relu", input_shape=(64, 1)),
        tf.keras.layers.MaxPooling1D(2),
        tf.keras.layers.Conv1D(32, 9, activation="relu"),
        tf.keras.layers.GlobalMaxPooling1D(),
        tf.keras.layers.Dense(3, activation="softmax"),
    ]
)
model.compile(
    tf.keras.optimizers.Adam(0.002), "sparse_categorical_crossentropy", ["accuracy"]
)
callbacks = [
    tf.keras.callbacks.ReduceLROnPlateau("val_loss", patience=1),
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
)
loss, accuracy = model.evaluate(x_test, y_test)
print(f"{accuracy:.1%} of the held-out waves are told rightly")
