"""What solutions/four_ways/horovod_keras_3.py does, as its tests want to see it.

    mpirun -np 2 python tests/keras_3_with_horovod.py FOLDER

Each worker trains for itself from random weights; what it ends with is left in FOLDER.
"""

import json
import os
import sys
from pathlib import Path

os.environ["TF_USE_LEGACY_KERAS"] = "0"
os.environ["KERAS_BACKEND"] = "tensorflow"
sys.path.insert(0, str(Path(__file__).parent.parent / "solutions" / "four_ways"))

import horovod_keras_3 as hvd
import keras
import numpy as np

hvd.init()
rank, size = hvd.rank(), hvd.size()
random = np.random.default_rng(1)
x, y = random.integers(0, 20, (32, 3)), random.normal(size=(32, 1))
mine = slice(rank, None, size)


def network(seed):
    """With an embedding, whose gradients are sparse, and a dropout that drops none."""
    keras.utils.set_random_seed(seed)
    layers = [
        keras.Input((3,), dtype="int32"),
        keras.layers.Embedding(20, 4),
        keras.layers.Flatten(),
        keras.layers.Dropout(1e-9),
        keras.layers.Dense(1),
    ]
    return keras.Sequential(layers)


def trained(optimizer, seed, *callbacks, rows=mine, batch=8 // size):
    """The model after an epoch of these rows; its history is in it."""
    model = network(seed)
    model.compile(optimizer, "mse", jit_compile=False)
    quiet = {"verbose": 0, "shuffle": False, "callbacks": list(callbacks)}
    model.fit(x[rows], y[rows], batch_size=batch, **quiet)
    return model


def weights(model):
    return [weight.tolist() for weight in model.get_weights()]


KINDS = {
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "clipped": lambda: keras.optimizers.SGD(0.1, global_clipnorm=0.05),
    "accumulated": lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=2),
    "loss scaled": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.1)
    ),
}
left = {"alone": {}, "together": {}}
for name, kind in KINDS.items():
    everything = {"rows": slice(None), "batch": 8}
    left["alone"][name] = weights(trained(kind(), 1, **everything))
    left["together"][name] = weights(trained(hvd.DistributedOptimizer(kind()), 1))

optimizer = hvd.DistributedOptimizer(KINDS["momentum"]())
callbacks = (hvd.BroadcastGlobalVariablesCallback(0), hvd.MetricAverageCallback())
model = trained(optimizer, 10 + rank, *callbacks)
left["apart, then broadcast"] = weights(model)
left["apart"] = weights(network(10 + rank))
left["seeds"] = model.layers[2].seed_generator.state.numpy().tolist()
left["averaged"] = model.history.history["loss"]
plain = trained(KINDS["momentum"](), 1)
left["own"] = plain.history.history["loss"]
means = {"loss": left["own"][0]}
hvd.MetricAverageCallback().on_epoch_end(0, means)
left["mean"] = means["loss"]

saved = Path(sys.argv[1], f"{rank}.keras")
model.save(saved)
left["loaded as"] = str(type(keras.saving.load_model(saved).optimizer))

left["refused"] = []
outside = keras.optimizers.LossScaleOptimizer(optimizer)
for chosen, compiled in [(outside, False), (optimizer, True)]:
    model = network(1)
    model.compile(chosen, "mse", jit_compile=compiled)
    try:
        model.fit(x, y, verbose=0, callbacks=[callbacks[0]])
    except ValueError as error:
        left["refused"].append(str(error))
Path(sys.argv[1], f"{rank}.json").write_text(json.dumps(left))
