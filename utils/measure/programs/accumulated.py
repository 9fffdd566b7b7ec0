"""One large batch, and the same images in micro-batches: the same update?

    mpirun -np 2 python utils/measure/programs/accumulated.py

Prints, in JSON, for each way the distance of rank 0's weights from those of the large
batch after two updates, the largest of them all, and how far the large batch moved any.
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

BATCH, PASSES, UPDATES = 64, 4, 2
draw = np.random.default_rng(hvd.rank())
images = draw.normal(size=(BATCH, 20)).astype(np.float32)
labels = draw.integers(0, 3, BATCH)

tf.keras.utils.set_random_seed(1)  # the same weights for all workers
model = tf.keras.Sequential(
    [
        tf.keras.Input((20,)),
        tf.keras.layers.Dense(16, activation="tanh"),
        tf.keras.layers.Dense(3),
    ]
)
loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
start = model.get_weights()


def trained(batch, **options):
    """All weights after two epochs in batches of this size."""
    model.set_weights(start)
    optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.9)
    model.compile(hvd.DistributedOptimizer(optimizer, **options), loss)
    model.fit(
        *(images, labels),
        batch_size=batch,
        epochs=UPDATES,
        shuffle=False,
        verbose=0,
    )
    return np.concatenate([weight.ravel() for weight in model.get_weights()])


four = {"backward_passes_per_step": PASSES}
large = trained(BATCH)
ways = {
    "by default": trained(BATCH // PASSES, **four),
    "averaged": trained(BATCH // PASSES, **four, average_aggregated_gradients=True),
}

if hvd.rank() == 0:
    moved = large - np.concatenate([weight.ravel() for weight in start])
    found = {name: float(np.abs(own - large).max()) for name, own in ways.items()}
    print(json.dumps(found | {"moved": float(np.abs(moved).max())}))
