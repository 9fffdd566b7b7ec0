"""The recipe that most tutorials have: what the course's program is compared with.

    mpirun -np 2 python utils/plain_recipe.py

The same network, trained until its validation accuracy was above the target in two
epochs running: with Keras' ImageDataGenerator, batches of 32 for each worker, and SGD
with a rate of 0.01 that never changes, without momentum. `course bench` runs it.
"""

import argparse
import time

import horovod.tensorflow.keras as hvd
import tensorflow as tf

from utils import data, logs, networks, pipelines

hvd.init()
gpus = tf.config.list_physical_devices("GPU")
if gpus:
    tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
option = parser.add_argument
option("--log-dir")
option("--epochs", type=int, default=40)
option("--width", type=int, default=1)
option("--batch-size", type=int, default=32)
option("--train-images", type=int)
option("--data", choices=data.CHOICES, default="auto")
option("--target-accuracy", type=float, default=0.85)
args = parser.parse_args()

dataset = data.load(args.data, args.train_images)
model = networks.wide_resnet(args.width)
model.compile(
    hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.01)),
    tf.keras.losses.CategoricalCrossentropy(),
    metrics=["accuracy"],
)


class Until(tf.keras.callbacks.Callback):
    """Stop above the target in two epochs running; log the seconds since the start."""

    def __init__(self):
        super().__init__()
        self.started, self.streak = time.perf_counter(), 0

    def on_epoch_end(self, epoch, logs=None):
        logs["seconds"] = time.perf_counter() - self.started
        above = logs["val_accuracy"] > args.target_accuracy
        self.streak = self.streak + 1 if above else 0
        self.model.stop_training = self.streak == 2


callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
    Until(),
]
if hvd.rank() == 0:
    history = logs.claim(args.log_dir, "history.csv")
    callbacks.append(tf.keras.callbacks.CSVLogger(history))
model.fit(
    pipelines.keras_generator(dataset, args.batch_size),
    steps_per_epoch=len(dataset.x_train) // args.batch_size // hvd.size(),
    epochs=args.epochs,
    validation_data=data.validation_batches(dataset, 200),
    validation_steps=-(-3 * len(dataset.x_test) // 200 // hvd.size()),
    callbacks=callbacks,
    verbose=0,
)
