"""Code that does not ask which strategy it runs under, and a program that tries it.

    python solutions/any_strategy.py --strategy mirrored
    python solutions/any_strategy.py --strategy default one_device central_storage
    course run --tasks worker=2 solutions/any_strategy.py -- --strategy multi_worker

The four functions below, one for each way to use a strategy, hold no `if`: they ask
`tf.distribute.get_strategy()` and do as it says. A strategy that does not support one
of these ways says so, and the program writes down what it said.
"""

import argparse
import json
import math
import tempfile
from pathlib import Path

import numpy as np
import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # Keras 2; Horovod knows no Keras 3

import tensorflow as tf

from utils import UserError, logs, replica_devices, tasks
from utils.training import samples

STEPS, BATCH = 10, 60
RATE = 0.02  # small enough for the stale gradients of workers that wait for nobody
UNTRAINED = math.log(10)  # the loss of a network that calls all ten classes as likely


# ---------------------------------------------- under any strategy


def network() -> tf.keras.Model:
    """One layer, which starts with zeros: what is tried here is not the network."""
    return tf.keras.Sequential(
        [
            tf.keras.Input((28, 28, 1)),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(10, "softmax", kernel_initializer="zeros"),
        ]
    )


def garments() -> tuple[np.ndarray, np.ndarray]:
    """Images float32 (600, 28, 28, 1) and one-hot labels (600, 10)."""
    few, arrays = STEPS * BATCH, samples.fashion_mnist()
    images = (arrays["x_train"][:few, ..., None] / 255).astype(np.float32)
    return images, np.eye(10, dtype=np.float32)[arrays["y_train"][:few]]


def batches(context=None) -> tf.data.Dataset:
    """Global batches, without an end; the strategy gives each replica its part."""
    data = tf.data.Dataset.from_tensor_slices(garments()).repeat().batch(BATCH)
    options = tf.data.Options()
    # The images are no files, which several workers could share out among them.
    policy = tf.data.experimental.AutoShardPolicy.DATA
    options.experimental_distribute.auto_shard_policy = policy
    return data.with_options(options)


def fit() -> tf.keras.Model:
    """Keras' way: compile and fit."""
    model = network()
    model.compile(tf.keras.optimizers.SGD(RATE), "categorical_crossentropy")
    model.fit(batches(), steps_per_epoch=STEPS, verbose=0)
    return model


def step_for(model, optimizer):
    """What each replica does with its part of a batch."""
    optimizer.build(model.trainable_variables)

    def replica_step(images, labels):
        with tf.GradientTape() as tape:
            predicted = model(images, training=True)
            losses = tf.keras.losses.categorical_crossentropy(labels, predicted)
            loss = tf.nn.compute_average_loss(losses, global_batch_size=BATCH)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(
            zip(gradients, model.trainable_variables, strict=True)
        )

    return replica_step


def loop() -> tf.keras.Model:
    """Our own loop: `strategy.run` a step in every replica."""
    strategy = tf.distribute.get_strategy()
    model = network()
    replica_step = step_for(model, tf.keras.optimizers.SGD(RATE))

    @tf.function
    def step(batch):
        strategy.run(replica_step, args=batch)

    for batch in strategy.experimental_distribute_dataset(batches().take(STEPS)):
        step(batch)
    return model


def coordinator() -> tf.keras.Model:
    """Our own loop again, but the steps are given out, and nobody waits."""
    strategy = tf.distribute.get_strategy()
    office = tf.distribute.coordinator.ClusterCoordinator(strategy)
    model = network()
    replica_step = step_for(model, tf.keras.optimizers.SGD(RATE))

    @tf.function
    def step(iterator):
        strategy.run(replica_step, args=next(iterator))

    iterator = iter(office.create_per_worker_dataset(batches))
    for _ in range(STEPS):
        office.schedule(step, args=(iterator,))
    office.join()
    return model


def save() -> tf.keras.Model:
    """Train, save and load, both under the strategy."""
    model = fit()
    with tempfile.TemporaryDirectory() as folder:
        model.save(f"{folder}/model.keras")
        return tf.keras.models.load_model(f"{folder}/model.keras")


WAYS = {way.__name__: way for way in (fit, loop, coordinator, save)}


# ---------------------------------------------- the strategies


def parameter_server() -> tf.distribute.Strategy:
    """A cluster of two workers and a ps, all of them inside this process."""
    cluster = tasks.free_cluster({"worker": 2, "ps": 1})
    spec = tf.train.ClusterSpec(cluster)
    # A step waits for weights from another server: with fewer threads all could wait.
    # And none of the three takes hold of a GPU.
    config = tf.compat.v1.ConfigProto(
        inter_op_parallelism_threads=3, device_count={"GPU": 0}
    )
    for task in tasks.tasks_of(cluster):
        tf.distribute.Server(spec, task.type, task.index, config=config)
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        spec, rpc_layer="grpc"
    )
    return tf.distribute.ParameterServerStrategy(resolver)


def tpu() -> tf.distribute.Strategy:
    """The TPU of this machine, if it has one."""
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
    tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return tf.distribute.TPUStrategy(resolver)


STRATEGIES = {
    "default": tf.distribute.get_strategy,
    "one_device": lambda: tf.distribute.OneDeviceStrategy(replica_devices(2)[0]),
    "mirrored": lambda: tf.distribute.MirroredStrategy(replica_devices(2)),
    "central_storage": lambda: tf.distribute.experimental.CentralStorageStrategy(
        replica_devices(2), parameter_device="CPU:0"
    ),
    "multi_worker": tf.distribute.MultiWorkerMirroredStrategy,
    "parameter_server": parameter_server,
    "tpu": tpu,
}


# ---------------------------------------------- trying them


def loss_of(model) -> float:
    """The loss of the model's weights on all images, computed without a strategy."""
    alone = network()
    alone.set_weights(model.get_weights())
    images, labels = garments()
    return float(
        tf.reduce_mean(tf.keras.losses.categorical_crossentropy(labels, alone(images)))
    )


def attempt(what) -> tuple:
    """Call it. Returns what it returned and None, or None and the error in a line."""
    try:
        return what(), None
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        # An error inside a tf.function comes at the end of where it came from.
        line = lines[-1 if lines[0].startswith("in user code") else 0]
        return None, f"{type(error).__name__}: {line.strip()}"


def must_have_learnt(model) -> None:
    """Its weights on all images, without a strategy, are better than no training."""
    loss = loss_of(model)
    if not loss < UNTRAINED - 0.1:
        raise UserError(f"it did not learn: its loss is {loss:.3f}.")


def try_out(name: str, ways: list[str]) -> dict:
    """What happened under a strategy: {"start": None, "fit": None, ...}, where None is
    all right and a string is the error; and `replicas`, their number."""
    strategy, error = attempt(STRATEGIES[name])
    found = {"start": error}
    if error:
        return found
    found["replicas"] = strategy.num_replicas_in_sync
    for way in ways:
        with strategy.scope():
            model, error = attempt(WAYS[way])
        if error is None:
            _, error = attempt(lambda model=model: must_have_learnt(model))
        found[way] = error
    return found


def main() -> None:
    """Try each way under each strategy; say and write down what happened."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    option = parser.add_argument
    option("--strategy", nargs="+", choices=STRATEGIES, default=["default"])
    option("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    option("--log-dir", help="folder for tried.json; a new one below logs/ by default")
    args = parser.parse_args()
    path = Path(logs.claim(args.log_dir, "tried.json"))
    if {"one_device", "mirrored", "central_storage"} & {*args.strategy}:
        replica_devices(2)  # while TensorFlow has no tensor yet
    tried = {}
    for name in args.strategy:
        tried[name] = try_out(name, args.ways)
        for way in ("start", *args.ways):
            if way in tried[name]:
                print(f"{name}, {way}: {tried[name][way] or 'works'}", flush=True)
    half = path.with_suffix(".half")
    half.write_text(json.dumps(tried, indent=1))
    half.replace(path)


if __name__ == "__main__":
    main()
