"""Keras 3 and JAX: .venv-jax/bin/python with_keras_3.py SAME.npz TRAINED.npz"""

import os
import sys

# Step 1: one process for all devices; without GPUs, two made of the processor.
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np

keras.distribution.set_distribution(keras.distribution.DataParallel())

same = np.load(sys.argv[1])
x, y = same["x"], same["y"]  # step 5: the distribution splits each batch
batch = int(same["batch"])  # the global one

# Steps 3 and 4: every variable made from now on is on all devices, and XLA adds up
# what they compute.
hidden = keras.layers.Dense(32, "relu")
model = keras.Sequential([keras.Input((784,)), hidden, keras.layers.Dense(10)])
model.set_weights([same[name] for name in ("w1", "b1", "w2", "b2")])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.SGD(0.1), loss)

# Steps 2 and 6: one process speaks, and its metrics are those of all devices.
trained = model.fit(x, y, batch, epochs=2, shuffle=False, verbose=0)
np.savez(sys.argv[2], *model.get_weights(), loss=trained.history["loss"])
