"""Keep the accuracy: train a WideResNet on N workers as well as on one.

    python exercises/scaled.py --epochs 3
    mpirun -np 2 python exercises/scaled.py --epochs 3
    course run -np 2 exercises/scaled.py -- --epochs 3 --checkpoint kept

It begins as the finished Horovod program. What is left to do: a learning rate for the
larger batch, and exact validation.
"""

import argparse
import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # Keras 2; Horovod knows no Keras 3

import horovod.tensorflow.keras as hvd
import tensorflow as tf

from utils import Stopwatch, data, logs, networks

hvd.init()
gpus = tf.config.list_physical_devices("GPU")
if gpus:
    gpu = gpus[0] if len(gpus) == 1 else gpus[hvd.local_rank()]
    tf.config.set_visible_devices(gpu, "GPU")
    tf.config.experimental.set_memory_growth(gpu, True)
# Otherwise a GPU rounds what it multiplies to 10 bits, and may recognize other images.
tf.config.experimental.enable_tensor_float_32_execution(False)

parser = argparse.ArgumentParser(
    description="Train a WideResNet-16 on Fashion-MNIST, with a batch on each worker.",
    formatter_class=argparse.ArgumentDefaultsHelpFormatter,
)
option = parser.add_argument
option("--log-dir", help="folder for history.csv; a new one below logs/ if not given")
option("--checkpoint", help="folder to keep weights and optimizer state in; else none")
option("--batch-size", type=int, default=64, help="training images per worker and step")
option("--val-batch-size", type=int, default=200, help="validation images likewise")
option("--epochs", type=int, default=10, help="train at most so many epochs")
option("--base-lr", type=float, default=0.002 if gpus else 0.02, help="for one worker")
option("--warmup-epochs", type=int, default=1, help="reach the full rate after so many")
option("--wd", type=float, default=5e-6, help="L2 weight decay")
option("--target-accuracy", type=float, default=1.0, help="stop after an epoch with it")
option("--width", type=int, default=10 if gpus else 1, help="k of WRN-16-k")
option("--train-images", type=int, help="take so many, and a sixth to validate on")
option("--data", choices=["auto", "real", "sample"], default="auto", help="data set")
option("--seed", type=int, help="make weights and batches repeatable")
args = parser.parse_args()

verbose = 1 if hvd.rank() == 0 else 0
workers = hvd.size()

data.seed_worker(args.seed)
dataset = data.load(args.data, args.train_images)
train = data.training_batches(dataset, args.batch_size, args.seed)
steps = len(dataset.x_train) // args.batch_size // workers
if verbose:
    print(f"{len(dataset.x_train)} training images from {dataset.name}")

# TODO: Task A: Scale the learning rate. With N workers an epoch has an Nth of the
# steps, and each step has N times as many images, so make each step N times as
# long.
full_lr = args.base_lr

# TODO: Task C: Validate on every image once. Each of N workers takes every Nth image,
# beginning with the one whose number is its rank. Nothing is drawn at random.
val_steps = -(-len(dataset.x_val) // args.val_batch_size)  # rounded up
validation_steps = 3 * val_steps // workers
validation = data.validation_batches(dataset, args.val_batch_size, args.seed)

optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(full_lr, momentum=0.9))
model = networks.wide_resnet(args.width, args.wd)
model.compile(
    optimizer=optimizer,
    loss=tf.keras.losses.CategoricalCrossentropy(),
    metrics=["accuracy"],
)


class AverageStatistics(tf.keras.callbacks.Callback):
    """Before validation, give every worker the mean of all running statistics.

    Each worker's batch normalization has seen that worker's images only. The statistics
    are no weights: no gradient is averaged for them.
    """

    def on_test_begin(self, logs=None):
        for variable in self.model.non_trainable_variables:
            variable.assign(hvd.allreduce(variable.value()))


class StopAtAccuracy(tf.keras.callbacks.Callback):
    """Stop after the first epoch whose validation accuracy reaches the target."""

    def on_epoch_end(self, epoch, logs=None):
        if logs["val_accuracy"] >= args.target_accuracy:
            self.model.stop_training = True


def learning_rate(update):
    """The learning rate of an update of the weights; they are numbered from 0."""
    # TODO: Task B: Warm up. The gradients of new weights are large and soon change
    # their direction. So let the learning rate grow evenly from the base rate to
    # the full one, over --warmup-epochs epochs of `steps` updates each. 0 means
    # no warm-up.
    return full_lr


class SetLearningRate(tf.keras.callbacks.Callback):
    """Set the learning rate before each update."""

    def on_train_batch_begin(self, batch, logs=None):
        update = int(self.model.optimizer.iterations)
        self.model.optimizer.learning_rate = learning_rate(update)


class NoteLearningRate(tf.keras.callbacks.Callback):
    """Log the learning rate."""

    def on_epoch_end(self, epoch, logs=None):
        logs["learning_rate"] = float(self.model.optimizer.learning_rate)


# TODO: Task C: Weight each worker's metrics by its number of images.
# MetricAverageCallback takes a mean without weights. After this callback all
# workers have the same numbers, so that mean no longer changes them.


callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    SetLearningRate(),
    AverageStatistics(),
]

# TODO: Task C: Append your callback here, before any other callback reads the metrics.

callbacks.append(hvd.callbacks.MetricAverageCallback())
callbacks.append(Stopwatch(steps * args.batch_size * workers))
callbacks.append(NoteLearningRate())
callbacks.append(StopAtAccuracy())
if verbose:
    callbacks.append(
        tf.keras.callbacks.CSVLogger(logs.claim(args.log_dir, "history.csv"))
    )

# If --checkpoint names a folder, rank 0 saves weights and optimizer state in it after
# each epoch. Lesson 20 explains why this is the right way.
if args.checkpoint and hvd.rank() == 0:
    kept = tf.train.Checkpoint(model=model, optimizer=optimizer)
    manager = tf.train.CheckpointManager(kept, args.checkpoint, max_to_keep=1)
    keep = tf.keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: manager.save())
    callbacks.append(keep)

model.fit(
    train,
    steps_per_epoch=steps,
    epochs=args.epochs,
    validation_data=validation,
    validation_steps=validation_steps,
    callbacks=callbacks,
    verbose=verbose,
)
