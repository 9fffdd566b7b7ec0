"""Watch a Keras program's training from inside, without changing the program.

`start` makes every `model.fit` keep, for this rank, the trainable weights before
training and after each of the first batches, and the metrics of each epoch before
and after the program's own callbacks have seen them. `load` reads them back. Of a large
network it keeps a sample of the weights: all of WRN-16-10's, of eight workers and after
twenty batches, are 12 GB.
"""

import functools
import inspect
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from distcheck import errors, files, keras_2, worker

ALL = 200_000  # weights of a network that are kept without a choice


@dataclass(frozen=True)
class Recording:
    """What one worker kept.

    weights: float32 (batches + 1, numbers), row 0 before the first batch, row b after
        the callbacks of batch b; the numbers are those of `sample`.
    metrics_before, metrics_after: per epoch the metrics as this worker computed them
        and as the program's last callback left them.
    """

    weights: np.ndarray
    metrics_before: list[dict[str, float]]
    metrics_after: list[dict[str, float]]


def sample(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """The numbers that are kept of a network's weights, in one row.

    They are all of them, up to ALL. Of more, each array gives as many as any other, or
    all that it has; always the same, and scaled so that sums of squares, and with them
    lengths, distances and angles, stay what they are but for a few per cent. What is
    equal stays equal to the last bit.
    """
    total = sum(array.size for array in arrays)
    most = total if total <= ALL else ALL // len(arrays)
    return np.concatenate([_spread(np.ravel(array), most) for array in arrays])


def _spread(numbers: np.ndarray, most: int) -> np.ndarray:
    if numbers.size <= most:
        return numbers
    random = np.random.default_rng(numbers.size)
    chosen = random.choice(numbers.size, most, replace=False, shuffle=False)
    return numbers[chosen] * np.float32(np.sqrt(numbers.size / most))


def load(folder: Path, rank: int) -> Recording:
    """The recording of `rank` in a run's folder.

    Raises UserError if that rank recorded nothing.
    """
    stem = folder / "record" / str(rank)
    if not stem.with_suffix(".npz").exists():
        raise errors.UserError(
            f"rank {rank} recorded nothing in {files.shown(folder)}: start the run "
            "with record=20 to keep its first 20 batches."
        )
    metrics = json.loads(stem.with_suffix(".json").read_text())
    with np.load(stem.with_suffix(".npz")) as arrays:
        return Recording(arrays["weights"], metrics["before"], metrics["after"])


def start(batches: int) -> None:
    """Record the first `batches` batches of every `fit` from now on."""
    keras_2.choose()
    import tensorflow as tf

    folder = Path(os.environ["COURSE_RUN"], "record")
    folder.mkdir(exist_ok=True)
    stem = folder / str(worker.rank())
    weights: list[np.ndarray] = []
    metrics: dict[str, list[dict]] = {"before": [], "after": []}

    def keep_weights(model) -> None:
        if len(weights) <= batches:
            weights.append(sample([w.numpy() for w in model.trainable_weights]))

    def keep_metrics(when: str, logs: dict) -> None:
        metrics[when].append(
            {key: float(value) for key, value in logs.items() if np.isscalar(value)}
        )

    class First(tf.keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            keep_metrics("before", logs)

    class Last(tf.keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            keep_weights(self.model)

        def on_train_batch_end(self, batch, logs=None):
            keep_weights(self.model)

        def on_epoch_end(self, epoch, logs=None):
            keep_metrics("after", logs)

        def on_train_end(self, logs=None):
            np.savez(stem.with_suffix(".npz"), weights=np.stack(weights))
            stem.with_suffix(".json").write_text(json.dumps(metrics))

    change_callbacks(lambda own: [First(), *own, Last()])


def change_callbacks(change: Callable[[list], list]) -> None:
    """Let every `fit` from now on have what `change` makes of the program's own
    callbacks."""
    import tensorflow as tf

    fit = tf.keras.Model.fit
    signature = inspect.signature(fit)

    @functools.wraps(fit)  # with whose signature it can be changed once more
    def observed(*args, **kwargs):
        call = signature.bind(*args, **kwargs)
        call.arguments["callbacks"] = change(call.arguments.get("callbacks") or [])
        return fit(*call.args, **call.kwargs)

    tf.keras.Model.fit = observed
