"""Train with servers that hold the weights, and workers that go at their own pace.

    course run --tasks chief=1,worker=2,ps=2 exercises/servers.py

A chief, two workers and two servers (ps), each with a TF_CONFIG. All of them run this
program, and the chief alone gets to its end. Servers never end by themselves: `course
run` ends them with the chief. (Until task A, it runs alone, in one process.)
"""

import argparse
import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # Keras 2; Horovod knows no Keras 3

import tensorflow as tf

from utils import data

parser = argparse.ArgumentParser(
    description="Train on Fashion-MNIST with parameter servers.",
    formatter_class=argparse.ArgumentDefaultsHelpFormatter,
)
option = parser.add_argument
option("--batch-size", type=int, default=64, help="training images per step")
option("--steps", type=int, default=100, help="steps of an epoch, of all workers")
option("--epochs", type=int, default=2, help="train so many epochs")
option("--lr", type=float, default=0.02, help="learning rate")
option("--train-images", type=int, help="take so many")
args = parser.parse_args()

# A step that waits for weights from another task keeps a thread of a server busy.
threads = tf.compat.v1.ConfigProto(inter_op_parallelism_threads=8)

# TODO: Task A: Find out the role of this process. A worker or a ps starts a server, and
# waits there for work until the training ends. The chief goes on.

# TODO: Task B: Keep the variables on the parameter servers. Cut large variables into
# parts of at least 100 kB, so that every server has its share of the load.
strategy = tf.distribute.get_strategy()

dataset = data.load("auto", args.train_images)
images, labels = dataset.x_train, tf.one_hot(dataset.y_train, 10)

with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Flatten(input_shape=(28, 28, 1)),
            tf.keras.layers.Dense(128, activation="relu"),
            tf.keras.layers.Dense(10, activation="softmax"),
        ]
    )
    optimizer = tf.keras.optimizers.SGD(args.lr, momentum=0.9)
    optimizer.build(model.trainable_variables)


def batches():
    """Endless batches, in an order of their own each time that this is called."""
    every = tf.data.Dataset.from_tensor_slices((images, labels))
    every = every.shuffle(len(images)).repeat().batch(args.batch_size)
    return every.map(lambda x, y: (data.standardise(x, dataset), y)).prefetch(2)


@tf.function
def step(iterator):
    """One step of one worker: returns the loss of its batch."""

    def compute(images, labels):
        with tf.GradientTape() as tape:
            guess = model(images, training=True)
            losses = tf.keras.losses.categorical_crossentropy(labels, guess)
            loss = tf.reduce_mean(losses)
        optimizer.minimize(loss, model.trainable_variables, tape)
        return loss

    return strategy.run(compute, next(iterator))


# TODO: Task C: Make the batches on the workers, not on the chief. A coordinator sends
# each worker the function that makes them.
iterator = iter(batches())

for epoch in range(args.epochs):
    # TODO: Task D: Schedule all steps of the epoch; whichever worker is free takes the
    # next. Wait until all are done, and fetch what they returned.
    losses = [step(iterator) for _ in range(args.steps)]

    print(f"Epoch {epoch + 1}/{args.epochs}: loss {sum(losses) / args.steps:.4f}")

print(f"{optimizer.iterations.numpy()} updates, {len(images)} images ({dataset.name})")
for variable in model.variables:
    print(f"{variable.name:20} {variable.shape!s:12} {variable.device}")
