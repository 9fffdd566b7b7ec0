"""Train with an optimizer whose state is cut up among the workers: ZeRO, stage 1.

    python exercises/zero.py --steps 50
    mpirun -np 3 --oversubscribe python exercises/zero.py --steps 50
    course run -np 3 exercises/zero.py -- --steps 50

It begins as a Horovod program in which every worker has all of Adam's state, and makes
the same update as all others. What is left to do: give each worker a part of its own,
let it receive the gradient of that part only, and put all parts together again.
"""

import argparse
import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # Keras 2; Horovod knows no Keras 3

import horovod.tensorflow as hvd
import tensorflow as tf

from utils import data

hvd.init()
gpus = tf.config.list_physical_devices("GPU")
if gpus:
    gpu = gpus[0] if len(gpus) == 1 else gpus[hvd.local_rank()]
    tf.config.set_visible_devices(gpu, "GPU")
    tf.config.experimental.set_memory_growth(gpu, True)

parser = argparse.ArgumentParser(
    description="Train a small network on Fashion-MNIST, the optimizer's state cut up.",
    formatter_class=argparse.ArgumentDefaultsHelpFormatter,
)
option = parser.add_argument
option("--steps", type=int, default=20, help="train so many steps")
option("--batch-size", type=int, default=32, help="training images per worker and step")
option("--hidden", type=int, default=32, help="neurons of the hidden layer")
option("--lr", type=float, default=0.001, help="learning rate")
option("--train-images", type=int, help="take so many")
option("--seed", type=int, default=1, help="make weights repeatable")
option("--weights", help="file for the weights after the last step, from rank 0")
args = parser.parse_args()

data.seed_worker(args.seed)
dataset = data.load("auto", args.train_images)
examples = tf.data.Dataset.from_tensor_slices((dataset.x_train, dataset.y_train))
batches = examples.shard(hvd.size(), hvd.rank()).repeat().batch(args.batch_size)

model = tf.keras.Sequential(
    [
        tf.keras.Input((28, 28, 1)),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(args.hidden, activation="relu"),
        tf.keras.layers.Dense(10),
    ]
)
loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = tf.keras.optimizers.Adam(args.lr)
weights = model.trainable_variables
hvd.broadcast_variables(weights, root_rank=0)
sizes = [int(tf.size(w)) for w in weights]
count = sum(sizes)

# TODO: Task A: Make the row divisible. All weights are laid into one row of numbers,
# which is cut into one part per worker, all of the same length. Zeros fill up its
# end.
filled = count

# TODO: Task B: Take this worker's part of the row: say where in the row it begins, and
# how long it is.
begin, length = 0, filled


def in_a_row(tensors):
    """All numbers of some tensors, shaped as the weights are, with zeros at the end."""
    numbers = tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], axis=0)
    return tf.pad(numbers, [[0, filled - count]])


def assign(row):
    """Give the weights the numbers of a row."""
    for weight, part in zip(weights, tf.split(row[:count], sizes), strict=True):
        weight.assign(tf.reshape(part, weight.shape))


row = in_a_row(weights)
own = tf.Variable(row[begin : begin + length])  # what the optimizer updates

for step, (images, labels) in enumerate(batches.take(args.steps), 1):
    with tf.GradientTape() as tape:
        guesses = model(tf.cast(images, tf.float32) / 255, training=True)
        loss = loss_of(labels, guesses)
    gradients = tape.gradient(loss, weights)

    # TODO: Task C: Reduce-scatter. No worker needs the whole averaged gradient, so let
    # each worker receive only the part that it updates.
    gradient = hvd.allreduce(in_a_row(gradients))[begin : begin + length]

    optimizer.apply_gradients([(gradient, own)])

    # TODO: Task D: All-gather. The other workers have updated the other parts of the
    # row, so collect them.
    row = tf.concat([row[:begin], own, row[begin + length :]], axis=0)

    assign(row)
    if step == args.steps and hvd.rank() == 0:
        print(f"step {step}: loss {float(loss):.4f} of rank 0's images")

state = sum(int(tf.size(v)) for v in optimizer.variables if v.shape.rank)
print(f"rank {hvd.rank()} has {count:,} weights and {state:,} numbers of state")
if args.weights and hvd.rank() == 0:
    in_a_row(weights)[:count].numpy().tofile(args.weights)
