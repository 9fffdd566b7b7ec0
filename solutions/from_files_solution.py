"""Train from files: each of N workers reads a part of TFRecord shards.

    python solutions/from_files_solution.py --epochs 2
    mpirun -np 2 python solutions/from_files_solution.py --epochs 2
    course run -np 2 solutions/from_files_solution.py -- --epochs 3 --epochs-done 1

It begins as a Horovod program in which every worker reads all files, image by image.
What is left to do: a share for each worker, the same number of steps for all workers,
the place in the epoch at which a training goes on after a crash, and whole batches.
"""

import argparse
import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # Keras 2; Horovod knows no Keras 3

import horovod.tensorflow.keras as hvd
import tensorflow as tf

from utils import data, logs, networks, shards

hvd.init()
gpus = tf.config.list_physical_devices("GPU")
if gpus:
    gpu = gpus[0] if len(gpus) == 1 else gpus[hvd.local_rank()]
    tf.config.set_visible_devices(gpu, "GPU")
    tf.config.experimental.set_memory_growth(gpu, True)

parser = argparse.ArgumentParser(
    description="Train a WideResNet-16 on images in TFRecord shards.",
    formatter_class=argparse.ArgumentDefaultsHelpFormatter,
)
option = parser.add_argument
option("--log-dir", help="folder for history.csv; a new one below logs/ if not given")
option("--shards", default="shards", help="folder of *.tfrecord; written if missing")
option("--files", type=int, default=8, help="write so many shards")
option("--batch-size", type=int, default=64, help="training images per worker and step")
option("--epochs", type=int, default=2, help="train so many epochs in all")
option("--epochs-done", type=int, default=0, help="go on after so many epochs")
option("--steps-done", type=int, default=0, help="and so many steps of the next one")
option("--base-lr", type=float, default=0.001 if gpus else 0.01, help="for one worker")
option("--width", type=int, default=10 if gpus else 1, help="k of WRN-16-k")
option("--train-images", type=int, help="write so many")
option("--data", choices=["auto", "real", "sample"], default="auto", help="data set")
option("--seed", type=int, default=1, help="make weights and order repeatable")
args = parser.parse_args()

data.seed_worker(args.seed)
dataset = data.load(args.data, args.train_images)
if hvd.local_rank() == 0:  # a disk for each machine: one of its workers writes
    shards.write_missing(args.shards, dataset, args.files)
hvd.allreduce(0.0, name="written")  # ends when all have come

files = sorted(tf.io.gfile.glob(f"{args.shards}/*.tfrecord"))
names = tf.data.Dataset.from_tensor_slices(files)

# Task A: Give each of the N workers its own share of the files, before anything
# is shuffled: every Nth file, beginning with the one whose number is the worker's
# rank.
if len(files) >= hvd.size():
    names = names.shard(hvd.size(), hvd.rank())

records = names.interleave(tf.data.TFRecordDataset, cycle_length=4)

# Task A: With fewer files than workers, some worker would have no file. In that
# case every worker reads all files, and takes every Nth record instead.
if len(files) < hvd.size():
    records = records.shard(hvd.size(), hvd.rank())

# Keep the records in memory as bytes, before anything random is done to them.
records = records.cache()
own_images = int(records.reduce(0, lambda count, _: count + 1))

# Task B: Let all workers take the same number of training steps: as many as the
# worker with the fewest images can take.
# was: steps = own_images // args.batch_size
own_steps = tf.constant([own_images // args.batch_size])
steps = int(tf.reduce_min(hvd.allgather(own_steps)))

FEATURES = {
    "image": tf.io.FixedLenFeature([], tf.string),
    "label": tf.io.FixedLenFeature([], tf.int64),
}


# Task D: Parse and augment a whole batch in one call, because a call costs more
# than the pixels of an image. Each image still gets a flip and a shift of its
# own.
# was: def to_train_on(record):
# was:     """An image to train on, and its label, of a record."""
# was:     example = tf.io.parse_single_example(record, FEATURES)
# was:     image = tf.reshape(tf.io.decode_raw(example["image"], tf.uint8), (28, 28, 1))
# was:     image = tf.image.random_flip_left_right(image)
# was:     padded = tf.pad(image, [[data.SHIFT] * 2, [data.SHIFT] * 2, [0, 0]])
# was:     image = tf.image.random_crop(padded, (28, 28, 1))
# was:     return data.standardise(image, dataset), tf.one_hot(example["label"], 10)
def to_train_on(records):
    """A batch of images to train on, and their labels, of as many records."""
    examples = tf.io.parse_example(records, FEATURES)
    images = tf.reshape(tf.io.decode_raw(examples["image"], tf.uint8), (-1, 28, 28))
    count = tf.shape(records)[0]
    flips = tf.random.uniform((count,)) < 0.5
    shifts = tf.random.uniform((count, 2), -data.SHIFT, data.SHIFT + 1, tf.int32)
    images = data.flip_and_shift(images, flips, shifts)
    return data.standardise(images, dataset), tf.one_hot(examples["label"], 10)


def rest_of(epoch, done):
    """The batches of an epoch that come after `done` others."""
    # Task C: Let the order follow from the seed and the epoch alone, so that it
    # is the same again after a crash.
    # was: order = records.shuffle(own_images)
    order = records.shuffle(own_images, seed=args.seed + epoch)

    # Task D: Make batches of records here, without the function.
    # was: batches = order.map(to_train_on).batch(args.batch_size).take(steps)
    batches = order.batch(args.batch_size).take(steps)

    # Task C: Leave out the `done` batches that were trained on before the crash.
    batches = batches.skip(done)

    # Task D: Apply the function here, to whole batches.
    batches = batches.map(to_train_on)

    return batches.prefetch(tf.data.AUTOTUNE)


model = networks.wide_resnet(args.width)
model.compile(
    hvd.DistributedOptimizer(
        tf.keras.optimizers.SGD(args.base_lr * hvd.size(), momentum=0.9)
    ),
    loss=tf.keras.losses.CategoricalCrossentropy(),
    metrics=["accuracy"],
)
verbose = 1 if hvd.rank() == 0 else 0
callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.MetricAverageCallback(),
]
if verbose:
    print(f"{len(files)} files; {own_images} images and {steps} steps for rank 0")
    history = logs.claim(args.log_dir, "history.csv")
    callbacks.append(tf.keras.callbacks.CSVLogger(history, append=True))

for epoch in range(args.epochs_done, args.epochs):
    # Task C: Only in the epoch that was interrupted are some steps done already.
    # was: done = 0
    done = args.steps_done if epoch == args.epochs_done else 0

    model.fit(
        rest_of(epoch, done),
        steps_per_epoch=steps - done,
        initial_epoch=epoch,
        epochs=epoch + 1,
        callbacks=callbacks,
        verbose=verbose,
    )
