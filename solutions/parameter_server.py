"""Train on Fashion-MNIST with ParameterServerStrategy: one program for every role.

    course run --tasks chief=1,worker=2,ps=2 solutions/parameter_server.py

The servers (ps) hold the weights. The workers compute, each at its own pace. The chief
hands out the steps. `course run` shows the lines with which you start each of them by
hand, also on several machines, and ends the servers with the chief.
"""

import argparse
import csv
import os
from pathlib import Path

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # Keras 2; Horovod knows no Keras 3

import tensorflow as tf

from utils import UserError, data, logs, networks, tasks, watch

parser = argparse.ArgumentParser(
    description="Train on Fashion-MNIST with ParameterServerStrategy.",
    formatter_class=argparse.ArgumentDefaultsHelpFormatter,
)
option = parser.add_argument
option("--log-dir", help="folder for the results; a new one below logs/ if not given")
option("--api", choices=["loop", "keras"], default="loop", help="or Keras 2's fit")
option("--batch-size", type=int, default=64, help="training images per step")
option("--steps", type=int, default=100, help="steps of an epoch, of all workers")
option("--epochs", type=int, default=2, help="train so many epochs")
option("--lr", type=float, default=0.02, help="learning rate")
option("--partition", choices=["none", "large", "all"], default="large", help="cut ...")
option("--train-images", type=int, help="take so many, and a sixth to test on")
option("--data", choices=["auto", "real", "sample"], default="auto", help="data set")
option("--kill-worker", type=int, metavar="K", help="in epoch 1, kill worker K")
option("--until-back", action="store_true", help="add epochs until it works again")
args = parser.parse_args()

MOST_EPOCHS = 1000  # that are waited for a worker

task = tasks.enter()
if not {"chief", "worker", "ps"} <= set(task.cluster):
    raise UserError(
        "this program needs a chief, workers and servers: "
        "course run --tasks chief=1,worker=2,ps=1 PROGRAM"
    )
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
workers, servers = len(task.cluster["worker"]), len(task.cluster["ps"])

# A worker or a ps has no more to do than to wait for orders. It never returns: a step
# waits for the weights of another task, so a server needs a thread more than workers.
if task.type in ("worker", "ps"):
    config = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=workers + 1)
    tf.distribute.Server(
        resolver.cluster_spec(), task.type, task.index, config=config
    ).join()

# From here on, this is the chief. Large weights are cut, so that all ps share the load.
partitioners = tf.distribute.experimental.partitioners
strategy = tf.distribute.ParameterServerStrategy(
    resolver,
    variable_partitioner={
        "none": None,
        "large": partitioners.MinSizePartitioner(100_000, max_shards=servers),
        "all": partitioners.FixedShardsPartitioner(servers),
    }[args.partition],
)
dataset = data.load(args.data, args.train_images)


def batches(context=None):
    """Endless batches, shuffled by each worker for itself: who is slow delays nobody.

    The first element of a batch is a random number, which tells the workers apart.
    """
    worker = tf.random.uniform((), maxval=2**31 - 1, dtype=tf.int32)
    count = len(dataset.x_train)
    numbers = tf.data.Dataset.range(count).shuffle(count).repeat()
    images, labels = tf.constant(dataset.x_train), tf.constant(dataset.y_train)

    def look_up(chosen):
        pixels = data.standardise(tf.gather(images, chosen), dataset)
        return worker, pixels, tf.one_hot(tf.gather(labels, chosen), 10)

    return numbers.batch(args.batch_size).map(look_up).prefetch(2)


with strategy.scope():
    model = networks.small_cnn((28, 28, 1))
    optimizer = tf.keras.optimizers.SGD(args.lr, momentum=0.9)
    optimizer.build(model.trainable_variables)
    # Counts updates. Weights as a whole have no versions: each variable is read and
    # written by itself, without a lock, so a step may mix older ones and newer ones.
    version = tf.Variable(0, dtype=tf.int64, trainable=False)

history = logs.claim(args.log_dir, "history.csv")
folder = Path(history).parent


def write(name, header, rows):
    """A table as a csv file in the run's folder."""
    with (folder / f"{name}.half").open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    (folder / f"{name}.half").replace(folder / name)


# "/job:ps/replica:0/task:1/device:CPU:0" is on ps 1.
places = [
    (v.name, v.device.split("task:")[1].split("/")[0], v.shape.num_elements() * 4)
    for v in model.variables
]
write("variables.csv", ("name", "ps", "bytes"), places)


def train_with_keras():
    model.compile(optimizer, "categorical_crossentropy", metrics=["accuracy"])
    model.fit(
        tf.keras.utils.experimental.DatasetCreator(
            lambda context: batches().map(lambda worker, *batch: batch)
        ),
        steps_per_epoch=args.steps,
        epochs=args.epochs,
        callbacks=[tf.keras.callbacks.CSVLogger(history)],
        verbose=2,
    )


@tf.function
def step(iterator):
    """One worker's step, and a report on it."""
    worker, images, labels = next(iterator)

    def compute(images, labels):
        read = version.read_value()
        with tf.control_dependencies([read]), tf.GradientTape() as tape:
            probabilities = model(images, training=True)
            losses = tf.keras.losses.categorical_crossentropy(labels, probabilities)
            loss = tf.reduce_mean(losses)
        updates = optimizer.compute_gradients(loss, model.trainable_variables, tape)
        optimizer.apply_gradients(updates)
        # TensorFlow would count before it computes, if nothing told it to wait.
        with tf.control_dependencies([gradient for gradient, _ in updates]):
            wrote = version.assign_add(1, read_value=True)
        return read, wrote, loss

    read, wrote, loss = strategy.run(compute, (images, labels))
    with tf.control_dependencies([wrote]):
        return worker, read, wrote, loss, tf.timestamp()


def train_with_a_loop():
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    iterator = iter(coordinator.create_per_worker_dataset(batches))
    rows, epochs = [], []
    for epoch in range(MOST_EPOCHS):
        if epoch >= args.epochs and not awaits_worker(rows):
            break
        # `schedule` returns at once; whichever worker is free takes the next step.
        orders = [coordinator.schedule(step, (iterator,)) for _ in range(args.steps)]
        if epoch == 0 and args.kill_worker is not None:
            kill_worker_after(orders[args.steps // 3])
        coordinator.join()
        reports = [order.fetch() for order in orders]
        rows += [[epoch, *(value.item() for value in report)] for report in reports]
        loss = sum(float(report[3]) for report in reports) / args.steps
        epochs.append((epoch, loss))
        count = max(args.epochs, epoch + 1)
        print(f"Epoch {epoch + 1}/{count}: {args.steps} steps, loss {loss:.4f}")
    write("steps.csv", ("epoch", "worker", "read", "wrote", "loss", "time"), rows)
    write("history.csv", ("epoch", "loss"), epochs)
    print(f"Steps reported: {len(rows)}. Updates of the weights: {version.numpy()}.")


def awaits_worker(rows):
    """Is there still to be one more, the killed one in its second life?"""
    first = {worker for epoch, worker, *_ in rows if epoch == 0}
    later = {worker for epoch, worker, *_ in rows if epoch > 0}
    return args.until_back and len(first) <= workers and later <= first


def kill_worker_after(order):
    """Wait for one of the steps; then a worker's process ends as if by a power cut."""
    order.fetch()
    rank = tasks.Task("worker", args.kill_worker, task.cluster).rank
    victim = watch.worker_processes(Path(os.environ["COURSE_RUN"]))[rank]
    victim.kill()
    print(f"Killed worker {args.kill_worker}, process {victim.pid}.")


if args.api == "keras":
    train_with_keras()
else:
    train_with_a_loop()
