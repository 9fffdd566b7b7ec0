"""Float16 with two workers, one of which overflows: who skips its update?

    mpirun -np 2 python utils/measure/programs/loss_scaled.py

Each worker prints, in JSON, for each step whether its weights moved, and its loss scale
after it. In the second step the images of the last worker are too large for float16.
"""

import json
import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # Keras 2; Horovod knows no Keras 3

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf

from utils.training import devices

hvd.init()
devices.pin(hvd.local_rank())

tf.get_logger().setLevel("ERROR")  # Keras warns that this is slow without a GPU
tf.keras.mixed_precision.set_global_policy("mixed_float16")
tf.keras.utils.set_random_seed(1)  # the same weights for all workers
model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])

optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.01))
optimizer = tf.keras.mixed_precision.LossScaleOptimizer(optimizer, initial_scale=1024)
model.compile(optimizer, "mse")

images, wanted = np.full((4, 4), 1 + hvd.rank(), np.float32), np.zeros((4, 1))
moved, scales = [], []
for step in range(3):
    too_large = step == 1 and hvd.rank() == hvd.size() - 1
    before = model.get_weights()[0]
    model.fit(images * (1e5 if too_large else 1), wanted, verbose=0)
    moved.append(bool((model.get_weights()[0] != before).any()))
    scales.append(float(optimizer.loss_scale))

found = {"rank": hvd.rank(), "moved": moved, "scales": scales}
print(json.dumps(found), flush=True)
