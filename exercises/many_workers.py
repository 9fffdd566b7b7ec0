"""Train in several processes that keep in step, on one machine or on many.

    python exercises/many_workers.py --epochs 3
    course run --tasks worker=2 exercises/many_workers.py -- --epochs 3

One process; two, each with a TF_CONFIG that says who it is and where the other one is.
All of them run this program. The trained network is kept once, by the chief.
"""

import argparse
import os

# TODO: Task E: Import `tempfile`, which makes folders that delete themselves after use.

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # Keras 2; Horovod knows no Keras 3

import tensorflow as tf

from utils import data, networks

parser = argparse.ArgumentParser(
    description="Train on Fashion-MNIST, in one process or in several.",
    formatter_class=argparse.ArgumentDefaultsHelpFormatter,
)
option = parser.add_argument
option("--model", default="model.keras", help="the file for the trained network")
option("--batch-size", type=int, default=64, help="training images per worker and step")
option("--epochs", type=int, default=2, help="passes over the training images")
option("--lr", type=float, default=0.02, help="learning rate")
option("--train-images", type=int, help="take so many")
args = parser.parse_args()

# Between GPUs, NVIDIA's NCCL; otherwise a ring. AUTO would take the ring on GPUs, too.
gpus = tf.config.list_physical_devices("GPU")
ways = tf.distribute.experimental.CommunicationImplementation
communication = tf.distribute.experimental.CommunicationOptions(
    implementation=ways.NCCL if gpus else ways.RING
)

# TODO: Task A: Make the strategy. It reads TF_CONFIG to find the other workers, and
# starts a server for them, so it must be made before TensorFlow computes
# anything.
strategy = tf.distribute.get_strategy()

workers = strategy.num_replicas_in_sync
print(f"{workers} worker(s) in step")

# TODO: Task C: The strategy splits each batch among all workers. Make the batch so
# large that each worker gets as many images as a single worker got.
global_batch = args.batch_size

dataset = data.load("auto", args.train_images)


def prepare(images, labels):
    return data.standardise(images, dataset), tf.one_hot(labels, 10)


# TODO: Task D: Every worker has all images and takes its share of each batch, so all
# workers need the same order, a new one in each epoch. Name the policy by which
# they share: DATA.
train = tf.data.Dataset.from_tensor_slices((dataset.x_train, dataset.y_train))
train = train.shuffle(len(dataset.x_train))
train = train.batch(global_batch, drop_remainder=True).map(prepare).prefetch(2)

# TODO: Task B: Make and compile the model in the strategy's scope, so that all workers
# begin with the same weights and add up their gradients.
model = networks.tiny()
optimizer = tf.keras.optimizers.SGD(args.lr, momentum=0.9)
model.compile(optimizer, "categorical_crossentropy", metrics=["accuracy"])

model.fit(train, epochs=args.epochs, verbose=2)

# TODO: Task E: Keep one copy. All workers must call save, because saving averages what
# batch normalization has counted on each worker. Only the chief, worker 0, keeps
# its file. Without a cluster, task_id is None.
model.save(args.model)

print(f"{len(dataset.x_train)} images from {dataset.name}")
