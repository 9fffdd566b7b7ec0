"""A race to an accuracy: the recipe of an older tutorial, and a faster one.

    course run -np 2 utils/measure/programs/recipe.py -- --plain
    course run -np 2 utils/measure/programs/recipe.py -- --epochs 3

Both train the same network until its validation accuracy was above the target in two
epochs running. The plain one takes Keras' ImageDataGenerator, batches of 32 for each
worker, and SGD with a rate of 0.01 that never changes, without momentum. The other
takes the course's pipeline, batches of 64, momentum, and a rate that warms up, then
falls to 0 at the last epoch. `course bench accuracy` runs both.
"""

import argparse
import os
import time

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # Keras 2; Horovod knows no Keras 3

import horovod.tensorflow.keras as hvd
import tensorflow as tf

from utils.base import logs
from utils.measure.programs import pipelines
from utils.training import data, devices, networks


class Until(tf.keras.callbacks.Callback):
    """Stop above the target in two epochs running; log the seconds since the start."""

    def __init__(self, accuracy: float):
        super().__init__()
        self.accuracy = accuracy
        self.started, self.streak = time.perf_counter(), 0

    def on_epoch_end(self, epoch, logs=None):
        logs["seconds"] = time.perf_counter() - self.started
        above = logs["val_accuracy"] > self.accuracy
        self.streak = self.streak + 1 if above else 0
        self.model.stop_training = self.streak == 2


class UpAndDown(tf.keras.callbacks.Callback):
    """The rate of every update: up to the peak, and down to 0 at the last.

    warm_up: epochs that it rises in; steps: of an epoch.
    """

    def __init__(self, peak: float, warm_up: float, epochs: int, steps: int):
        super().__init__()
        self.peak, self.warm_up = peak, warm_up
        self.epochs, self.steps = epochs, steps

    def on_train_batch_begin(self, batch, logs=None):
        done = int(self.model.optimizer.iterations) + 1
        rising = done / max(1, self.warm_up * self.steps)
        left = self.epochs - done / self.steps
        falling = left / max(0.01, self.epochs - self.warm_up)
        rate = self.peak * max(0.0, min(rising, falling))
        self.model.optimizer.learning_rate = rate


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    option = parser.add_argument
    option("--plain", action="store_true", help="the recipe of an older tutorial")
    option("--log-dir")
    option("--epochs", type=int, default=40)
    option("--width", type=int, default=1)
    option("--train-images", type=int)
    option("--data", choices=data.CHOICES, default="auto")
    option("--target-accuracy", type=float, default=0.85)
    faster = parser.add_argument_group("of the faster recipe").add_argument
    faster("--batch-size", type=int, default=64)
    faster("--peak-lr", type=float, default=0.05)
    faster("--warm-up", type=float, default=0.5, help="epochs")
    faster("--policy", choices=["up-and-down", "constant"], default="up-and-down")
    faster("--momentum", type=float, default=0.9)
    faster("--label-smoothing", type=float, default=0.0)
    return parser.parse_args()


def main() -> None:
    args = arguments()
    hvd.init()
    devices.pin(hvd.local_rank())
    rank, size = hvd.rank(), hvd.size()
    batch_size = 32 if args.plain else args.batch_size
    dataset = data.load(args.data, args.train_images)
    steps = len(dataset.x_train) // batch_size // size

    if args.plain:
        train = pipelines.keras_generator(dataset, batch_size)
        optimizer = tf.keras.optimizers.SGD(0.01)
    else:
        train = data.training_batches(dataset, batch_size)
        optimizer = tf.keras.optimizers.SGD(
            args.peak_lr, momentum=args.momentum, nesterov=args.momentum > 0
        )
    # Shards of unequal length, by an image at most, weigh the same in the average.
    shard = data.validation_shard(dataset, 200, rank, size)

    model = networks.wide_resnet(args.width)
    model.compile(
        hvd.DistributedOptimizer(optimizer),
        tf.keras.losses.CategoricalCrossentropy(
            label_smoothing=0.0 if args.plain else args.label_smoothing
        ),
        metrics=["accuracy"],
    )

    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        Until(args.target_accuracy),
    ]
    if not args.plain and args.policy == "up-and-down":
        callbacks.append(UpAndDown(args.peak_lr, args.warm_up, args.epochs, steps))
    if rank == 0:
        history = logs.claim(args.log_dir, "history.csv")
        callbacks.append(tf.keras.callbacks.CSVLogger(history))
    model.fit(
        train,
        steps_per_epoch=steps,
        epochs=args.epochs,
        validation_data=shard,
        callbacks=callbacks,
        verbose=0,
    )
    if rank == 0:
        test = data.test_batches(dataset, 200)
        loss, accuracy = model.evaluate(test, verbose=0)
        print(f"Test loss {loss:.4f}, test accuracy {accuracy:.4f} ({dataset.name})")


if __name__ == "__main__":
    main()
