"""Do all workers have the same weights? A fingerprint of them, after every epoch.

    course run -np 2 --fingerprint exercises/fashion_mnist.py
    course fingerprint

With it, each worker notes what must be the same on all, and what must differ: a digest
of its weights, its learning rate, the sum of the last batch's pixels, and how many
steps it made. It does so from inside, the program is not changed.
"""

import hashlib
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from distcheck import errors, keras_2, worker
from distcheck.show import Table
from utils.base import course
from utils.running import recording

LENGTH = 6  # characters of a digest


@dataclass(frozen=True)
class Print:
    """What a worker noted at the end of an epoch (0: before the first).

    weights: digest of all weights with a gradient; pixels: their sum in the last batch
    of the epoch; rate: the learning rate; steps: how many it made; seconds: how long
    they took.
    """

    rank: int
    epoch: int
    weights: str
    pixels: float
    rate: float
    steps: int
    seconds: float


def start() -> None:
    """Note the fingerprints of every `fit` of this worker from now on."""
    keras_2.choose()
    import tensorflow as tf

    rank = worker.rank()
    path = _path(Path(os.environ["COURSE_RUN"]), rank)
    path.parent.mkdir(exist_ok=True)
    step = tf.keras.Model.train_step

    def note(**facts) -> None:
        with path.open("a") as file:
            file.write(json.dumps({"rank": rank, **facts}) + "\n")

    class Noting(tf.keras.callbacks.Callback):
        pixels = tf.Variable(0.0)

        def on_train_begin(self, logs=None):
            self.steps, self.began = 0, time.monotonic()
            self._note(0)

        def on_epoch_begin(self, epoch, logs=None):
            self.steps, self.began = 0, time.monotonic()

        def on_train_batch_end(self, batch, logs=None):
            self.steps += 1

        def on_test_begin(self, logs=None):
            self.took = time.monotonic() - self.began

        def on_epoch_end(self, epoch, logs=None):
            self._note(epoch + 1)

        def _note(self, epoch):
            seconds = getattr(self, "took", time.monotonic() - self.began)
            weights = [v.numpy() for v in self.model.trainable_weights]
            note(
                epoch=epoch,
                weights=_digest(weights),
                pixels=round(float(self.pixels), 2),
                rate=float(self.model.optimizer.learning_rate),
                steps=self.steps,
                seconds=round(seconds, 3),
            )

    def noting_step(model, batch):
        images = batch[0] if isinstance(batch, tuple) else batch
        Noting.pixels.assign(tf.reduce_sum(tf.cast(images, tf.float32)))
        return step(model, batch)

    recording.change_callbacks(lambda own: [*own, Noting()])
    tf.keras.Model.train_step = noting_step


def _path(folder: Path, rank: int) -> Path:
    return folder / "workers" / f"{rank}.prints"


def _digest(arrays) -> str:
    digest = hashlib.blake2b()
    for array in arrays:
        digest.update(array.tobytes())
    return digest.hexdigest()[:LENGTH]


def of_run(folder: Path) -> list[Print]:
    """All fingerprints of a run, by epoch, then by rank.

    Raises UserError if it was started without.
    """
    prints = [
        Print(**json.loads(line))
        for path in folder.glob("workers/*.prints")
        for line in path.read_text().splitlines()
    ]
    if not prints:
        raise errors.UserError(
            "the run has no fingerprints: start it with --fingerprint "
            "(fingerprint=True), and let it train."
        )
    return sorted(prints, key=lambda entry: (entry.epoch, entry.rank))


def drifted(prints: Sequence[Print]) -> int | None:
    """The first epoch after which the workers' weights differ; None if in none.

    Before the first epoch they may: they are made the same in its first batch.
    """
    for epoch in sorted({entry.epoch for entry in prints if entry.epoch}):
        if len({entry.weights for entry in prints if entry.epoch == epoch}) > 1:
            return epoch
    return None


def table(prints: Sequence[Print]) -> Table:
    """A row for each epoch, with the weights' digest on each rank."""
    ranks = sorted({entry.rank for entry in prints})
    rows = []
    for epoch in sorted({entry.epoch for entry in prints}):
        digests = {
            entry.rank: entry.weights for entry in prints if entry.epoch == epoch
        }
        same = len(set(digests.values())) == 1 and len(digests) == len(ranks)
        rows.append(
            (
                str(epoch) if epoch else "before",
                *(digests.get(rank, "not there yet") for rank in ranks),
                "the same" if same else "different",
            )
        )
    return Table(("epoch", *(f"rank {rank}" for rank in ranks), "weights"), rows)


def newest() -> Table:
    """The table of the newest run that has fingerprints. Raises UserError."""
    runs = sorted((course.root() / "logs").glob("*/workers/*.prints"), reverse=True)
    if not runs:
        raise errors.UserError(
            "no run has fingerprints: start one with `course run --fingerprint`."
        )
    return table(of_run(runs[0].parent.parent))
