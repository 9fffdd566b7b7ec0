"""Survive a crash: train a WideResNet on N workers, and lose little when one dies.

    mpirun -np 2 python solutions/survive_solution.py --epochs 2 --checkpoint kept
    mpirun -np 2 python solutions/survive_solution.py --epochs 4 --checkpoint kept
    course run -np 2 --elastic solutions/survive_solution.py -- --epochs 2

The second line goes on where the first has ended. It begins as a Horovod program that
a crash throws back to its start. What is left to do: save a checkpoint, go on from the
newest complete one, on all workers, and go on without a worker that has died.
"""

import argparse
import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # Keras 2; Horovod knows no Keras 3

import horovod.tensorflow as hvd_tf
import horovod.tensorflow.keras as hvd
import tensorflow as tf

from utils import data, networks, survival

hvd.init()
gpus = tf.config.list_physical_devices("GPU")
if gpus:
    gpu = gpus[0] if len(gpus) == 1 else gpus[hvd.local_rank()]
    tf.config.set_visible_devices(gpu, "GPU")
    tf.config.experimental.set_memory_growth(gpu, True)

parser = argparse.ArgumentParser(
    description="Train a WideResNet-16 on Fashion-MNIST, and survive crashes.",
    formatter_class=argparse.ArgumentDefaultsHelpFormatter,
)
option = parser.add_argument
option("--log-dir", help="folder for .csv files; a new one below logs/ if not given")
option("--checkpoint", help="folder to keep checkpoints in, and to go on from")
option("--commit-every", type=int, default=10, help="batches between two commits")
option("--batch-size", type=int, default=64, help="training images per worker and step")
option("--val-batch-size", type=int, default=200, help="validation images likewise")
option("--epochs", type=int, default=10, help="train so many epochs in all")
option("--base-lr", type=float, default=5e-4 if gpus else 5e-3, help="for one worker")
option("--wd", type=float, default=5e-6, help="L2 weight decay")
option("--width", type=int, default=10 if gpus else 1, help="k of WRN-16-k")
option("--train-images", type=int, help="take so many, and a sixth to validate on")
option("--data", choices=["auto", "real", "sample"], default="auto", help="data set")
option("--seed", type=int, default=1, help="make weights and order repeatable")
args = parser.parse_args()

data.seed_worker(args.seed)
dataset = data.load(args.data, args.train_images)
optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(momentum=0.9))
# No dropout, because a checkpoint doesn't hold the state of its random numbers.
model = networks.wide_resnet(args.width, args.wd, dropout=0.0)
model.compile(
    optimizer=optimizer,
    loss=tf.keras.losses.CategoricalCrossentropy(),
    metrics=["accuracy"],
)
optimizer.build(model.trainable_variables)  # its state is there before the first batch
epochs_done = 0

# Task A: Name what a checkpoint holds: everything that training changes.
checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, epoch=tf.Variable(0))


def keep_checkpoint():
    """Keep a checkpoint of the epochs that are done, as one of the newest three."""
    # Task A: Let only rank 0 write, because all workers have the same weights.
    # The manager deletes the oldest checkpoint when the new one is complete.
    # was: pass
    if args.checkpoint and hvd.rank() == 0:
        checkpoint.epoch.assign(state.epoch)
        manager = tf.train.CheckpointManager(checkpoint, args.checkpoint, max_to_keep=3)
        manager.save(checkpoint_number=state.epoch)


def restore_newest():
    """Restore the newest complete checkpoint; return how many epochs are done in it.

    0 without a checkpoint. Where there are some, but none is complete, the program
    ends: to begin anew would write over them.
    """
    paths = survival.newest_first(args.checkpoint)

    # Task B: Try the checkpoints one by one, the newest first, until one is
    # complete: all of it can be read, and it fits the model. Print the name of
    # each that isn't.
    for path in paths:
        try:
            reader = tf.train.load_checkpoint(path)
            for name in reader.get_variable_to_shape_map():
                reader.get_tensor(name)  # fails if its bytes are not those written
            checkpoint.restore(path).assert_existing_objects_matched()
            return int(checkpoint.epoch)
        except (tf.errors.OpError, AssertionError, IndexError, ValueError) as error:
            print(f"NOTICE: {path} is refused: {error}", flush=True)

    if paths:
        raise SystemExit(f"None of {len(paths)} checkpoints is whole: {paths}")
    return 0


# Task B: Go on from the newest checkpoint. Only rank 0 reads it.
if args.checkpoint and hvd.rank() == 0:
    epochs_done = restore_newest()

# Task D: Keep a copy of the state in memory, to go back to when a worker dies.
# was: state = argparse.Namespace(epoch=epochs_done, images=0)
state = hvd.elastic.KerasState(model, optimizer, epoch=epochs_done, images=0)


class Progress(tf.keras.callbacks.Callback):
    """Keep in the state how many images of the epoch are done."""

    def on_train_batch_end(self, batch, logs=None):
        state.images += args.batch_size * hvd.size()

    def on_epoch_end(self, epoch, logs=None):
        # The next epoch has its images in another order, so end this call of fit.
        self.model.stop_training = True


record = survival.Journal(state, args.log_dir)


class AverageStatistics(tf.keras.callbacks.Callback):
    """Before validation, give every worker the mean of all running statistics."""

    def on_test_begin(self, logs=None):
        for variable in self.model.non_trainable_variables:
            variable.assign(hvd.allreduce(variable.value()))


def train(state):
    """Train from where `state` is to the last epoch."""
    # Task C: Before the first batch, take over from rank 0 its epoch, its weights
    # and the state of its optimizer.
    # was: hvd_tf.broadcast_variables(model.variables, root_rank=0)
    state.epoch, state.images = hvd_tf.broadcast_object((state.epoch, state.images))
    hvd_tf.broadcast_variables(model.variables, root_rank=0)
    hvd_tf.broadcast_variables(optimizer.variables, root_rank=0)

    optimizer.learning_rate = args.base_lr * hvd.size()
    verbose = 1 if hvd.rank() == 0 else 0
    callbacks = [
        Progress(),
        AverageStatistics(),
        hvd.callbacks.MetricAverageCallback(),
        record,
    ]

    # Task D: Commit the state to that copy now and then. When a worker dies, all
    # work since the last commit is lost. This callback is the last one, because
    # it raises an exception when hosts have come or gone.
    callbacks.append(hvd.elastic.CommitStateCallback(state, args.commit_every))

    worker = hvd.rank(), hvd.size()
    validation = data.validation_shard(dataset, args.val_batch_size, *worker)
    while state.epoch < args.epochs:
        done = args.seed, state.epoch, state.images
        rest = data.rest_of_epoch(dataset, args.batch_size, *done, *worker)
        if len(rest) > 0:
            model.fit(
                rest,
                initial_epoch=state.epoch,
                epochs=args.epochs,
                validation_data=validation,
                callbacks=callbacks,
                verbose=verbose,
            )
        else:  # hosts came or went after the last batch: only its end is missing
            survival.end_epoch(model, validation, callbacks, state.epoch)
        state.epoch, state.images = state.epoch + 1, 0
        keep_checkpoint()


# Task D: When a worker has died or joined, let Horovod go back to the last
# commit, give all workers the state of rank 0, and call `train` again.
# was: train(state)
hvd.elastic.run(train)(state)
