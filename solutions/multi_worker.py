"""Train on Fashion-MNIST with MultiWorkerMirroredStrategy: many processes, one model.

    python solutions/multi_worker.py --epochs 3
    course run --tasks worker=2 solutions/multi_worker.py -- --epochs 3

One worker; two workers, each with a TF_CONFIG that says who it is and where the other
one is. `course run` shows the lines with which you start the same by hand, also on
several machines. Have GPUs? Each worker takes those that it sees.
"""

import argparse
import hashlib
import os
import shutil
import signal
import tempfile
from pathlib import Path

import numpy as np

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # Keras 2; Horovod knows no Keras 3

import tensorflow as tf

from utils import Stopwatch, communication, data, logs, networks, tasks

gpus = tf.config.list_physical_devices("GPU")  # starts nothing

parser = argparse.ArgumentParser(
    description="Train on Fashion-MNIST with MultiWorkerMirroredStrategy.",
    formatter_class=argparse.ArgumentDefaultsHelpFormatter,
)
option = parser.add_argument
option("--log-dir", help="folder for history.csv; a new one below logs/ if not given")
option("--batch-size", type=int, default=64, help="training images per worker and step")
option("--epochs", type=int, default=2, help="passes over the training images")
option("--lr", type=float, default=0.004 if gpus else 0.04, help="learning rate")
option("--network", choices=["wide_resnet", "small_cnn"], default="small_cnn")
option("--width", type=int, default=10 if gpus else 1, help="k of WRN-16-k")
option("--communication", choices=["RING", "NCCL"], help="NCCL on GPUs, else RING")
option("--shard", choices=["DATA", "OFF", "AUTO"], default="DATA", help="the policy")
option("--train-images", type=int, help="take so many, and a sixth to validate on")
option("--data", choices=["auto", "real", "sample"], default="auto", help="data set")
option("--seed", type=int, default=1, help="of the order; the same for all workers")
option("--keep-seen", action="store_true", help="note which images each worker gets")
option(
    "--die-at-epoch", type=int, metavar="N", help="once, kill a worker in epoch N ..."
)
option("--die-task", type=int, default=1, metavar="K", help="... namely worker K")
args = parser.parse_args()

# Before anything else of TensorFlow: the strategy starts a server at this worker's
# address, and waits for all the others.
task = tasks.enter()
strategy = tf.distribute.MultiWorkerMirroredStrategy(
    communication_options=communication(args.communication)
)
workers = strategy.num_replicas_in_sync
global_batch = args.batch_size * workers
verbose = 2 if task.is_chief else 0
print(f"{task}, chief: {task.is_chief}, replicas in all: {workers}")

# Shuffled with one seed, the images come in the same order to every worker.
tf.keras.utils.set_random_seed(args.seed)
dataset = data.load(args.data, args.train_images)
with tf.device("CPU"):
    images, labels = tf.constant(dataset.x_train), tf.constant(dataset.y_train)
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = (
    tf.data.experimental.AutoShardPolicy[args.shard]
)


def in_order(count):
    """The numbers of all training images, each pass in a new order, by global batch."""
    numbers = tf.data.Dataset.range(count).shuffle(count, args.seed)
    return numbers.batch(global_batch, drop_remainder=True).with_options(options)


def look_up(chosen):
    pixels = data.standardise(tf.gather(images, chosen), dataset)
    return chosen, pixels, tf.one_hot(tf.gather(labels, chosen), 10)


seen = []  # the numbers of the images that this worker has trained on, by step


class Noting(tf.keras.Model):
    """Notes which images `fit` gives to this worker."""

    def train_step(self, batch):
        numbers, pixels, targets = batch
        tf.numpy_function(seen.append, [numbers], [])
        return super().train_step((pixels, targets))


# Here `fit` gets batches for all workers, and splits them: see the policy.
count = len(dataset.x_train)
train = in_order(count).map(look_up).prefetch(2).with_options(options)

with strategy.scope():
    if args.network == "wide_resnet":
        model = networks.wide_resnet(args.width)
    else:
        model = networks.small_cnn((28, 28, 1))
    model = Noting(model.inputs, model.outputs)
    model.compile(
        optimizer=tf.keras.optimizers.SGD(args.lr, momentum=0.9),
        loss=tf.keras.losses.CategoricalCrossentropy(),
        metrics=["accuracy"],
    )


class Accident(tf.keras.callbacks.Callback):
    """Kill this process in the middle of an epoch; once, which a file remembers."""

    def __init__(self, marker):
        super().__init__()
        self.marker = marker

    def on_epoch_begin(self, epoch, logs=None):
        self.now = epoch + 1 == args.die_at_epoch

    def on_train_batch_end(self, batch, logs=None):
        if self.now and batch and not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)


if task.is_chief:
    history = logs.claim(args.log_dir, "history.csv")
    folder = Path(history).parent
else:
    folder = Path(args.log_dir or os.environ.get("COURSE_RUN") or tempfile.mkdtemp())

# After each epoch the chief keeps all that training needs to go on: weights, optimizer
# and epoch. A worker that is started again finds it here and goes on from there.
callbacks = [
    tf.keras.callbacks.BackupAndRestore(str(folder / "backup")),
    Stopwatch(count // global_batch * global_batch),
]
if task.is_chief:
    callbacks.append(tf.keras.callbacks.CSVLogger(history))
if args.die_at_epoch and task.index == args.die_task:
    callbacks.append(Accident(folder / "accident"))

model.fit(train, epochs=args.epochs, callbacks=callbacks, verbose=verbose)

if args.keep_seen:  # of the first epoch
    first = seen[: count // global_batch]
    np.save(folder / f"seen-{task.rank}.npy", np.concatenate(first))

# Every worker has the same weights, bit for bit.
weights = b"".join(weight.tobytes() for weight in model.get_weights())
print(f"Weights at the end: {hashlib.sha256(weights).hexdigest()[:16]}")

# All workers save, at the same time: what batch normalization and metrics keep is
# averaged over the workers when it is read, and that needs all of them. With Horovod,
# rank 0 saves alone. The others' files are thrown away.
own = folder if task.is_chief else Path(tempfile.mkdtemp())
model.save(own / "model.keras")
if not task.is_chief:
    shutil.rmtree(own)
