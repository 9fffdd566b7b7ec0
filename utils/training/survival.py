"""What exercises/survive.py needs beside Horovod and Keras: write down what becomes of
a training whose workers come and go. And for programs that are no exercise, what that
one does itself: take up a checkpoint.
"""

import csv
import os
import socket
import time
from pathlib import Path

import horovod.tensorflow.keras as hvd
import tensorflow as tf

from distcheck.errors import UserError, notice
from distcheck.files import shown
from utils.base import logs

BATCHES = ("time", "host", "workers", "epoch", "begin", "images", "loss")
# What TensorFlow raises for a checkpoint that is cut off, damaged or another network's.
REFUSED = (tf.errors.OpError, AssertionError, IndexError, ValueError)


class Journal(tf.keras.callbacks.Callback):
    """Let the worker that has rank 0 at the moment write journal.csv and history.csv.

    journal.csv has a line for each batch: the time (seconds since 1970), the host of
    rank 0, the number of workers, the epoch (counted from 0), how many of its images
    were done before and are done now, and the loss of rank 0's batch. history.csv has a
    line for each epoch; for one that `end_epoch` has ended, without the training's
    loss. A worker that becomes rank 0 later on begins files of its own, journal-1.csv
    and so on.

    state: its `epoch` and `images` say how far the training is. log_dir: see
    utils.base.logs.claim.
    """

    def __init__(self, state, log_dir: str | None = None):
        super().__init__()
        self.state, self.log_dir = state, log_dir
        self._paths: dict[str, Path] = {}
        self._host = os.environ.get("HOROVOD_HOSTNAME") or socket.gethostname()

    def on_epoch_begin(self, epoch, logs=None):
        self._batches, self._losses = 0, 0.0

    def on_train_batch_begin(self, batch, logs=None):
        self._begin = self.state.images

    def on_train_batch_end(self, batch, logs=None):
        now = f"{time.time():.3f}"
        images = self._begin, self.state.images
        # What Keras tells is the mean of all batches since the epoch, or `fit`, began.
        self._batches += 1
        before, self._losses = self._losses, self._batches * logs["loss"]
        loss = self._losses - before
        facts = now, self._host, hvd.size(), self.state.epoch, *images, loss
        row = dict(zip(BATCHES, facts, strict=True))
        self._write("journal.csv", row)

    def on_epoch_end(self, epoch, logs=None):
        unknown = dict.fromkeys(self.model.metrics_names)
        row = {"epoch": epoch, "workers": hvd.size(), **unknown, **logs}
        self._write("history.csv", row)

    def _write(self, name: str, row: dict) -> None:
        if hvd.rank() > 0:
            return
        new = name not in self._paths
        if new:
            self._paths[name] = Path(logs.claim(self.log_dir, name))
        with self._paths[name].open("a", newline="") as file:
            writer = csv.DictWriter(file, row)
            if new:
                writer.writeheader()
            writer.writerow(row)


def end_epoch(
    model: tf.keras.Model,
    validation: tf.keras.utils.Sequence,
    callbacks: list[tf.keras.callbacks.Callback],
    epoch: int,
) -> None:
    """Do what `model.fit` does after an epoch's last batch, when that alone is missing:
    validate, and tell the callbacks.

    All workers have to call it, as callbacks average over them.
    """
    all_of_them = tf.keras.callbacks.CallbackList(callbacks, model=model)
    metrics = model.evaluate(
        validation, callbacks=all_of_them, return_dict=True, verbose=0
    )
    logs = {f"val_{name}": value for name, value in metrics.items()}
    all_of_them.on_epoch_end(epoch, logs)


def newest_first(folder: str | Path) -> list[str]:
    """The checkpoints in a folder, as `tf.train.load_checkpoint` names them, in the
    order of the numbers at the ends of their names; none where there is no folder."""
    indices = tf.io.gfile.glob(f"{folder}/ckpt-*.index")
    paths = [index.removesuffix(".index") for index in indices]
    return sorted(paths, key=lambda path: int(path.split("-")[-1]), reverse=True)


def restore_newest(checkpoint: tf.train.Checkpoint, folder: str | Path) -> bool:
    """Restore the newest whole checkpoint in a folder; is there any?

    One that is cut off, damaged or another program's is named in a notice, and the one
    before it is taken. Raises UserError when there are checkpoints, but none can be
    taken: to begin anew would end in losing them. By then, `checkpoint` may have parts
    of them.
    """
    # Not the manager's list: it is a file as well, and may be damaged.
    paths = newest_first(folder)
    for path in paths:
        try:
            checkpoint.restore(path).assert_existing_objects_matched()
        except REFUSED as error:
            why = str(error).strip().partition("\n")[0]
            notice(f"the checkpoint {shown(Path(path))} is refused: {why}")
        else:
            return True
    if paths:
        raise UserError(
            f"none of the {len(paths)} checkpoints in {shown(folder)} can be taken up; "
            "the notices say why. Name another folder to begin anew, or move them away."
        )
    return False
