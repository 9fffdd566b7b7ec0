"""Train on one device, or on several replicas in one process with MirroredStrategy.

    python solutions/mirrored_solution.py --data fashion-mnist --epochs 3
    python solutions/mirrored_solution.py --data cifar10 --replicas 2
    course run -np 1 solutions/mirrored_solution.py -- --replicas 2 --epochs 3

One process; its replicas are the machine's GPUs or, without any, parts of the
processor. The best epoch's weights are kept, loaded at the end, and tested.
"""

import argparse
import os
from dataclasses import replace
from pathlib import Path

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # Keras 2; Horovod knows no Keras 3

import tensorflow as tf

from utils import Stopwatch, data, logs, networks, replica_devices

parser = argparse.ArgumentParser(
    description="Train an image classifier with tf.distribute.MirroredStrategy.",
    formatter_class=argparse.ArgumentDefaultsHelpFormatter,
)
option = parser.add_argument
option("--data", choices=["fashion-mnist", "cifar10"], default="fashion-mnist")
option("--replicas", type=int, help="all GPUs, or two parts of the processor")
option("--log-dir", help="folder for history.csv; a new one below logs/ if not given")
option("--batch-size", type=int, default=64, help="training images per replica, step")
option("--epochs", type=int, default=10, help="train so many epochs")
option("--base-lr", type=float, help="for one replica; by itself 0.02 / width")
option("--width", type=int, help="k of WRN-16-k; by itself 10 on GPUs, else 1")
option("--train-images", type=int, help="take so many, and a sixth to test on")
option("--seed", type=int, help="make weights and batches repeatable")
args = parser.parse_args()

devices = replica_devices(args.replicas)
args.width = args.width or (10 if devices[0].startswith("GPU") else 1)
if args.base_lr is None:  # a wider network takes a smaller rate
    args.base_lr = 0.02 / args.width

# Task A: Make a strategy that keeps a replica of the model on each device.
# was: strategy = tf.distribute.get_strategy()
strategy = tf.distribute.MirroredStrategy(devices)

replicas = strategy.num_replicas_in_sync
print(f"{replicas} replica(s) on {', '.join(devices)}")

# Task C: The strategy splits each batch among all replicas. Make the batch so
# large that each replica gets as many images as one device got.
# was: global_batch = args.batch_size
global_batch = args.batch_size * replicas

# Task D: Multiply the learning rate by the number of replicas. A larger batch
# means fewer steps, and its gradient is less noisy, so each step may be longer.
# was: learning_rate = args.base_lr
learning_rate = args.base_lr * replicas

data.seed_worker(args.seed)
if args.data == "cifar10":
    dataset = data.load_cifar10("auto", args.train_images)
else:
    dataset = data.load("auto", args.train_images)
    # One half of CIFAR-10's test images chooses the best epoch, the other tests it.
    images, labels = dataset.x_test, dataset.y_test
    dataset = replace(
        dataset,
        **{"x_val": images[::2], "y_val": labels[::2]},
        **{"x_test": images[1::2], "y_test": labels[1::2]},
    )
train = data.training_batches(dataset, global_batch, args.seed)
validation = data.validation_batches(dataset, global_batch, args.seed)
steps = len(dataset.x_train) // global_batch
validation_steps = -(-len(dataset.x_val) // global_batch)  # rounded up
print(f"{len(dataset.x_train)} training images from {dataset.name}")


def network():
    if args.data == "cifar10":
        return networks.small_cnn(dataset.x_train.shape[1:])
    return networks.wide_resnet(args.width)


# Task B: Make the variables of the model, of the optimizer and of the metrics in
# the strategy's scope. Each replica then has a copy of each variable.
# was: model = network()
# was: model.compile(
# was:     optimizer=tf.keras.optimizers.SGD(learning_rate, momentum=0.9),
# was:     loss=tf.keras.losses.CategoricalCrossentropy(),
# was:     metrics=["accuracy"],
# was: )
with strategy.scope():
    model = network()
    model.compile(
        optimizer=tf.keras.optimizers.SGD(learning_rate, momentum=0.9),
        loss=tf.keras.losses.CategoricalCrossentropy(),
        metrics=["accuracy"],
    )


history = logs.claim(args.log_dir, "history.csv")
# Without .h5 at the end this is TensorFlow's own format, which can store mirrored
# variables.
best = str(Path(history).with_name("best_epoch"))
trained = model.fit(
    train,
    steps_per_epoch=steps,
    epochs=args.epochs,
    validation_data=validation,
    validation_steps=validation_steps,
    callbacks=[
        Stopwatch(steps * global_batch),
        tf.keras.callbacks.ModelCheckpoint(
            best, monitor="val_accuracy", save_best_only=True, save_weights_only=True
        ),
        tf.keras.callbacks.CSVLogger(history),
    ],
)

accuracies = trained.history["val_accuracy"]
epoch = accuracies.index(max(accuracies)) + 1
print(f"Best epoch: {epoch}, validation accuracy {max(accuracies):.4f}")
model.load_weights(best)
loss, accuracy = model.evaluate(data.test_batches(dataset, global_batch), verbose=0)
print(f"Test loss {loss:.4f}, test accuracy {accuracy:.4f} ({dataset.name})")
