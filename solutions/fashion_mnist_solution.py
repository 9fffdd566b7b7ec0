"""Train a WideResNet on Fashion-MNIST: on one device, or on many with Horovod.

    mpirun -np 2 python solutions/fashion_mnist_solution.py --epochs 3

Once all steps are done, this trains one network with two workers.
"""

import argparse
import os
import time

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # Keras 2, because Horovod knows no Keras 3

import tensorflow as tf

# Step 1: Import Horovod's interface for tf.keras under its usual name, hvd.
import horovod.tensorflow.keras as hvd

from utils import data

# Step 1: Start Horovod. Then let each worker see one GPU: if it finds only one,
# that one; else the one whose number is its local rank, its rank on this machine.
# Let the GPU's memory grow as needed. Without GPUs there is nothing to pin.
hvd.init()
gpus = tf.config.list_physical_devices("GPU")
if gpus:
    gpu = gpus[0] if len(gpus) == 1 else gpus[hvd.local_rank()]
    tf.config.set_visible_devices(gpu, "GPU")
    tf.config.experimental.set_memory_growth(gpu, True)

# Step 2: Let rank 0 alone write files (is_root), and it alone print (verbose).
# was: is_root = True
# was: verbose = 1
is_root = hvd.rank() == 0
verbose = 1 if is_root else 0

on_gpu = bool(tf.config.list_physical_devices("GPU"))
base_lr, width = (0.002, 10) if on_gpu else (0.02, 1)  # at 0.02, a wide one diverges
# `course run` names a folder in COURSE_RUN; otherwise make one named by the time.
log_dir = os.getenv("COURSE_RUN", time.strftime("logs/%Y-%m-%d_%H-%M-%S"))
parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
add = parser.add_argument
add("--log-dir", default=log_dir, help="Write history.csv to this folder.")
add("--batch-size", type=int, default=64, help="Train each worker on batches this big.")
add("--val-batch-size", type=int, default=200, help="Validate on batches this big.")
add("--epochs", type=int, default=40, help="Train for at most this many epochs.")
add("--base-lr", type=float, default=base_lr, help="Start with this learning rate.")
add("--wd", type=float, default=5e-6, help="Use this L2 penalty in the convolutions.")
add("--target-accuracy", type=float, default=0.85, help="Aim at this val_accuracy.")
add("--patience", type=int, default=2, help="Stop after this many epochs above it.")
add("--width", type=int, default=width, help="Multiply channels by this.")
add("--train-images", type=int, help="Use this many images (None: all).")
add("--seed", type=int, help="Repeat random numbers (None: don't).")
args = parser.parse_args()

data.seed_worker(args.seed)  # other random numbers on each rank, with a seed, too
dataset = data.load(train_images=args.train_images)
data.check_batch_size(dataset, args.batch_size)

# Training: shuffle the indices of all images, anew in each pass, and cut them into
# batches. Then turn each batch of indices into images, flipped and shifted at random.
train = tf.data.Dataset.range(len(dataset.x_train))
train = train.shuffle(len(dataset.x_train))
train = train.batch(args.batch_size, drop_remainder=True).repeat()
train = train.map(data.augmented(dataset)).prefetch(2).with_options(data.one_thread())

# Validation: images as they are; shuffled, too, because workers will share it (step 5).
validation = data.validation_batches(dataset, args.val_batch_size, args.seed)

# A wide residual network (arXiv:1605.07146), simplified: it normalizes after each 3x3
# convolution, not before, and pools between its three groups instead of striding.
layers, l2 = tf.keras.layers, tf.keras.regularizers.L2(args.wd)


def conv(x, filters, size):
    options = {"kernel_initializer": "he_normal", "kernel_regularizer": l2}
    return layers.Conv2D(filters, size, padding="same", use_bias=False, **options)(x)


def cbr(x, filters):
    """Convolution, batch normalization, ReLU."""
    x = conv(x, filters, 3)
    x = layers.BatchNormalization(momentum=0.9)(x)  # 0.99 is too slow for short runs
    return layers.ReLU()(x)


def conv_block(x, filters):
    """Two cbr, with dropout between, and a shortcut: x, or a 1x1 convolution of it."""
    shortcut = x if x.shape[-1] == filters else conv(x, filters, 1)
    x = layers.Dropout(0.01)(cbr(x, filters))
    return layers.Add()([cbr(x, filters), shortcut])


image = tf.keras.Input((28, 28, 1))
x = cbr(image, 16)
x = conv_block(conv_block(x, 16 * args.width), 16 * args.width)
x = layers.MaxPooling2D(2)(x)
x = conv_block(conv_block(x, 32 * args.width), 32 * args.width)
x = layers.MaxPooling2D(2)(x)
x = conv_block(conv_block(x, 64 * args.width), 64 * args.width)
x = layers.GlobalAveragePooling2D()(x)
model = tf.keras.Model(image, layers.Dense(10, activation="softmax")(x))
if verbose:
    print(f"{len(dataset.x_train)} training images from {dataset.name}")
    print(f"WRN-16-{args.width} with {model.count_params():,} parameters")

optimizer = tf.keras.optimizers.SGD(args.base_lr, momentum=0.9)

# Step 3: Average all workers' gradients before each update: wrap the optimizer.
optimizer = hvd.DistributedOptimizer(optimizer)

model.compile(optimizer, loss="categorical_crossentropy", metrics=["accuracy"])
callbacks = []

# Step 4: Start from the same weights: add a callback that hands out rank 0's.
callbacks.append(hvd.callbacks.BroadcastGlobalVariablesCallback(0))

workers = 1
steps = len(dataset.x_train) // args.batch_size
val_steps = -(-len(dataset.x_test) // args.val_batch_size)  # rounded up

# Step 5: Share the epoch. Each of N workers takes an Nth of the training steps,
# and an Nth of three rounds of validation: at random, one round misses many images.
workers = hvd.size()
steps = steps // workers
val_steps = 3 * val_steps // workers

# Step 6: Average the metrics of all workers before the callbacks below read them.
callbacks.append(hvd.callbacks.MetricAverageCallback())


class Stopwatch(tf.keras.callbacks.Callback):
    """Log the seconds spent on training so far, and the images per second."""

    seconds = 0.0

    def on_epoch_begin(self, epoch, logs=None):
        self.started = time.perf_counter()

    def on_test_begin(self, logs=None):  # validation begins: training has ended
        self.epoch_seconds = time.perf_counter() - self.started

    def on_epoch_end(self, epoch, logs=None):
        self.seconds += self.epoch_seconds
        images = steps * args.batch_size * workers
        logs.update(seconds=self.seconds, images_per_second=images / self.epoch_seconds)


class StopAtAccuracy(tf.keras.callbacks.Callback):
    """Stop when val_accuracy was above the target in `patience` epochs in a row."""

    streak = 0

    def on_epoch_end(self, epoch, logs=None):
        above = logs["val_accuracy"] > args.target_accuracy
        self.streak = self.streak + 1 if above else 0
        self.model.stop_training = self.streak >= args.patience


def learning_rate(epoch):
    """The base rate, divided by ten after 15, 25 and 35 epochs."""
    return args.base_lr * 0.1 ** sum(epoch >= drop for drop in (15, 25, 35))


callbacks.append(Stopwatch())
callbacks.append(StopAtAccuracy())
callbacks.append(tf.keras.callbacks.LearningRateScheduler(learning_rate))
if is_root:
    os.makedirs(args.log_dir, exist_ok=True)
    callbacks.append(tf.keras.callbacks.CSVLogger(f"{args.log_dir}/history.csv"))

model.fit(
    train,
    steps_per_epoch=steps,
    epochs=args.epochs,
    validation_data=validation,
    validation_steps=val_steps,
    callbacks=callbacks,
    verbose=verbose,
)

if is_root:
    test = data.test_batches(dataset, args.val_batch_size)
    loss, accuracy = model.evaluate(test, verbose=0)
    print(f"Test loss {loss:.4f}, test accuracy {accuracy:.4f} ({dataset.name})")
