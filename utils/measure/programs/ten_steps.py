"""Train ten steps in one of the course's ways, from the same weights, on the same data.

    cd utils/measure/programs
    python ten_steps.py --with single --out FOLDER
    mpirun -np 2 python ten_steps.py --with horovod ring --out FOLDER
    python ten_steps.py --with mirrored --network wide_resnet --out FOLDER

Several ways, one after the other, cost one import of TensorFlow. Process r keeps the
weights in FOLDER/WAY-r.npz.

Every step takes a global batch of twelve images, which the workers or replicas share
evenly. There is no dropout and the optimizer is plain SGD, so all ways ought to end at
the same weights. `python -m utils.measure.equality` runs them all and compares.
"""

import argparse
import importlib.util
import os
from pathlib import Path

import numpy as np

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # Keras 2; Horovod knows no Keras 3

import tensorflow as tf

from distcheck import errors, files, tasks
from distcheck.worker import rank as worker_rank
from utils.base import course
from utils.training import networks, samples
from utils.training.devices import communication, pin, replica_devices

STEPS, BATCH = 10, 12  # twelve images can be shared by two and by three
REPLICAS = 2
LEARNING_RATE = 0.01
SHAPE = (28, 28, 1)
BATCH_NORM = ("own", "synchronised", "frozen")
FAULTS = {  # what may be left out, and by whom
    "undivided": ("custom_loop",),
    "apart": ("horovod", "ring"),
}


def build(network: str, batch_norm: str) -> tf.keras.Model:
    """The network, with the same weights whenever and wherever it is built."""
    tf.keras.utils.set_random_seed(1)
    if network == "small":
        return networks.small_cnn(SHAPE)
    model = networks.wide_resnet(dropout=0.0, input_shape=SHAPE)

    def copy(layer):
        config = layer.get_config()
        if isinstance(layer, tf.keras.layers.BatchNormalization):
            config["synchronized"] = batch_norm == "synchronised"
            if batch_norm == "frozen":
                config["trainable"] = False
                # It divides by a fixed number now; 1 would let this deep a network
                # explode before it was trained.
                config["moving_variance_initializer"] = tf.keras.initializers.Constant(
                    4
                )
        return type(layer).from_config(config)

    tf.keras.utils.set_random_seed(1)
    return tf.keras.models.clone_model(model, clone_function=copy)


def garments() -> tuple[np.ndarray, np.ndarray]:
    """The images float32 (120, 28, 28, 1) of all ten steps, and one-hot labels."""
    few, arrays = STEPS * BATCH, samples.fashion_mnist()
    images = (arrays["x_train"][:few, ..., None] / 127.5 - 1).astype(np.float32)
    return images, np.eye(10, dtype=np.float32)[arrays["y_train"][:few]]


def batches(worker: int = 0, workers: int = 1) -> tf.data.Dataset:
    """This worker's part of each of the ten global batches, in order."""
    if BATCH % workers:
        raise errors.UserError(
            f"{workers} workers can't share {BATCH} images evenly: start 1, 2, 3 or 4."
        )
    images, labels = (
        array.reshape(STEPS, workers, BATCH // workers, *array.shape[1:])[:, worker]
        for array in garments()
    )
    return tf.data.Dataset.from_tensor_slices((images, labels))


def cross_entropy(labels, predicted) -> tf.Tensor:
    """One number for each image."""
    return tf.keras.losses.categorical_crossentropy(labels, predicted)


def sgd() -> tf.keras.optimizers.Optimizer:
    return tf.keras.optimizers.SGD(LEARNING_RATE)


def fit(model, optimizer, data) -> None:
    model.compile(optimizer, tf.keras.losses.CategoricalCrossentropy())
    model.fit(data, verbose=0)


def single(make, fault):
    """One device: what all others are compared with."""
    model = make()
    fit(model, sgd(), batches())
    return model


def horovod(make, fault):
    """A process per worker; `hvd.DistributedOptimizer` averages the gradients."""
    import horovod.tensorflow.keras as hvd

    hvd.init()
    model = make()
    optimizer = sgd() if fault == "apart" else hvd.DistributedOptimizer(sgd())
    fit(model, optimizer, batches(hvd.rank(), hvd.size()))
    return model


def mirrored(make, fault):
    """Two replicas in one process; Keras shares the batch and averages."""
    return fit_under(tf.distribute.MirroredStrategy(replica_devices(REPLICAS)), make)


def multi_worker(make, fault):
    """A process per worker, which TF_CONFIG tells of the others."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy(
        communication_options=communication()
    )
    return fit_under(strategy, make)


def fit_under(strategy, make):
    with strategy.scope():
        model = make()
        fit(model, sgd(), batches())
    return model


def custom_loop(make, fault):
    """Two replicas again, but we divide the loss ourselves."""
    strategy = tf.distribute.MirroredStrategy(replica_devices(REPLICAS))
    with strategy.scope():
        model, optimizer = make(), sgd()
    # The strategy adds up the replicas' gradients. So the loss of each is its sum over
    # the *global* batch size; the mean of its own part would count twice.
    divisor = BATCH // REPLICAS if fault == "undivided" else BATCH

    def replica_step(images, labels):
        with tf.GradientTape() as tape:
            losses = cross_entropy(labels, model(images, training=True))
            loss = tf.nn.compute_average_loss(losses, global_batch_size=divisor)
            loss += tf.nn.scale_regularization_loss(sum(model.losses, 0.0))
        variables = model.trainable_variables
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    @tf.function
    def step(images, labels):
        strategy.run(replica_step, args=(images, labels))

    for images, labels in strategy.experimental_distribute_dataset(batches()):
        step(images, labels)
    return model


def ring(make, fault):
    """A process per worker; the ring of lesson 02 adds up the gradients."""
    path = course.root() / "exercises" / "ring_allreduce.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    notebook_02 = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(notebook_02)
    rank, workers = notebook_02.rank, notebook_02.workers
    model, optimizer = make(), sgd()
    variables = model.trainable_variables

    @tf.function
    def gradients_of(images, labels):
        with tf.GradientTape() as tape:
            losses = cross_entropy(labels, model(images, training=True))
            loss = tf.reduce_mean(losses) + sum(model.losses)
        return tape.gradient(loss, variables)

    for images, labels in batches(rank, workers):
        gradients = gradients_of(images, labels)
        values = flat(gradients)
        if fault != "apart":
            notebook_02.ring_all_reduce(values)
            values /= workers
        ends = np.cumsum([gradient.shape.num_elements() for gradient in gradients])
        parts = zip(np.split(values, ends[:-1]), variables, strict=True)
        averaged = [(part.reshape(v.shape), v) for part, v in parts]
        optimizer.apply_gradients(averaged)
    return model


WAYS = {
    way.__name__: way
    for way in (single, horovod, mirrored, multi_worker, custom_loop, ring)
}


def flat(arrays) -> np.ndarray:
    """Tensors or variables end to end, (n,) of their own precision."""
    return np.concatenate([np.empty(0, np.float32), *(np.ravel(a) for a in arrays)])


def same_numbers() -> None:
    """Let a GPU compute the same from the same numbers, as a processor does.

    By itself it rounds what it multiplies to 10 bits (TF32, on GPUs since 2020), so
    that two ways to the same sum differ in the fourth digit; and it adds up in whatever
    order its threads come, so that a run differs from itself.
    """
    tf.config.experimental.enable_tensor_float_32_execution(False)
    tf.keras.utils.set_random_seed(1)  # which the next line asks for
    tf.config.experimental.enable_op_determinism()


def keep(folder: str, way: str, start: np.ndarray, model: tf.keras.Model) -> None:
    """Write FOLDER/WAY-r.npz: `start` and `end`, (n,), are the weights that are
    trained, `moving` the others: the moving averages of batch normalization."""
    rank = tasks.this_task().rank or worker_rank()
    path = Path(folder, f"{way}-{rank}.npz")
    end, moving = flat(model.trainable_weights), flat(model.non_trainable_weights)
    with files.whole(path) as file:
        np.savez(file, start=start, end=end, moving=moving)


def main() -> None:
    """Train in each way, and keep the weights."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    option = parser.add_argument
    option("--with", dest="ways", nargs="+", choices=WAYS, default=["single"])
    option("--network", choices=["small", "wide_resnet"], default="small")
    option("--batch-norm", choices=BATCH_NORM, default="own", help="of wide_resnet")
    option("--precision", choices=["float32", "float64"], default="float32")
    option("--fault", choices=FAULTS, help="do it wrong, to see what that changes")
    option("--out", default=os.environ.get("COURSE_RUN", "."), help="folder")
    args = parser.parse_args()
    for way in args.ways:
        if args.fault and way not in FAULTS[args.fault]:
            who = " and ".join(FAULTS[args.fault])
            parser.error(f"the fault {args.fault} is one of {who}, not of {way}")
    if {"mirrored", "custom_loop"} & set(args.ways):
        replica_devices(REPLICAS)  # while TensorFlow has no tensor yet
    with_mpi = not {"horovod", "ring"}.isdisjoint(args.ways)
    if with_mpi:
        import horovod.tensorflow.keras as hvd

        hvd.init()
        pin(hvd.local_rank())
    same_numbers()

    tf.keras.backend.set_floatx(args.precision)
    for way in args.ways:
        start = []

        def make(start=start):
            model = build(args.network, args.batch_norm)
            start.append(flat(model.trainable_weights))
            return model

        model = WAYS[way](make, args.fault)
        keep(args.out, way, start[0], model)
    if with_mpi:
        # The first process that ends lets Horovod end MPI in all of them. With a fault
        # they never wait for each other, so another may still need MPI.
        hvd.allreduce(tf.zeros(1), name="all_have_trained")


if __name__ == "__main__":
    main()
