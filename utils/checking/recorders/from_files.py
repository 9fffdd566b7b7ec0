"""Report what the workers of exercises/from_files.py do: which images each of them
trains on, how far each was shifted, and how often the functions of a pipeline run.

No check depends on the weights, so nothing is computed with a batch: a step is to meet
the others. Each worker has a folder of its own with the same shards in it, as if each
machine had a copy of the files.
"""

from pathlib import Path

from distcheck.events import Event
from distcheck.recorder import patches
from distcheck.scenarios import Scenario, register
from utils.checking.recorders.scaled import ScaledRecorder


class Trained(Event):
    """A step was given a batch to train on."""

    epoch: int
    images: list[int]
    """Their numbers among the images to train on; -1 for none of them."""
    down: list[int]
    """By how many rows each was shifted down."""


class Mapped(Event):
    """At the end of the program: how its pipelines ran."""

    calls: list[int]
    """How often each function ran that was given to `Dataset.map`, in their order."""


class FilesRecorder(ScaledRecorder):
    """Reports the batches of trainings with `Model.fit`.

    sizes, in its settings: of the shards in which the images of the check lie.
    """

    schema = ScaledRecorder.schema | {"trained": Trained, "mapped": Mapped}

    @classmethod
    def set_up(cls, scenario: Scenario, reports: Path) -> None:
        """Write the shards where the program looks for them."""
        from utils.training import data, shards

        sizes = scenario.settings["sizes"]
        dataset = data.load("auto", sum(sizes))
        shards.write("shards", dataset.x_train, dataset.y_train, sizes)

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._passes = 0
        self._tops = None  # first row of each image that isn't all background
        self._calls: list[int] = []  # of each function of a pipeline

    def hook_training(self, tf) -> None:
        self.replace(tf.keras.Model, "fit", self._fit)
        self.replace(tf.data.Dataset, "map", self._map)

    def intervene(self, tf) -> None:
        """Compute nothing in a step, of a tiny network, but let it meet the others."""
        import horovod.tensorflow as hvd

        super().intervene(tf)

        def step(model, batch):
            images, _, _ = tf.keras.utils.unpack_x_y_sample_weight(batch)
            self._trained(images)
            # Not an all-reduce: called eagerly, Horovod would take that of a metric for
            # the same, and complain of its shape, where training waits.
            hvd.allgather(tf.zeros(1))
            return {"loss": tf.zeros(())}

        self.replace(tf.keras.Model, "train_step", lambda original: step)

    def _map(self, original):
        import tensorflow as tf

        def observed(dataset, function, *args, **kwargs):
            number = len(self._calls)
            self._calls.append(0)

            def called() -> None:
                self._calls[number] += 1

            def counted(*elements):
                tf.numpy_function(called, [], [])
                return function(*elements)

            return original(dataset, counted, *args, **kwargs)

        return observed

    def hook_callbacks(self, tf) -> None:
        self.before(patches.callback_list(), "on_epoch_begin", self._epoch_begins)

    def _epoch_begins(self, *args, **kwargs) -> None:
        self._passes += 1

    def _trained(self, images) -> None:
        import numpy as np

        from utils.training import data

        numbers = self.numbers_of(images, True)
        if self._tops is None:
            self._tops = _tops(data.load("auto").x_train)
        pixels = np.asarray(images)
        pixels = pixels.reshape(len(pixels), *pixels.shape[1:3])
        down = _tops(pixels) - self._tops[numbers]
        self.event(
            "trained", epoch=self._passes - 1, images=numbers, down=down.tolist()
        )

    def report_end(self) -> None:
        self.event("mapped", calls=self._calls)


def _tops(images):
    """The first row of each image, (n, height, width), with more than background in it.

    The background is an image's least value.
    """
    least = images.min(axis=(1, 2), keepdims=True)
    return (images > least).any(axis=2).argmax(axis=1)


SIZES = (10, 10, 10, 10)  # images in each shard
EPOCHS_DONE, STEPS_DONE = 1, 1  # before "rest of files" begins
EPOCHS_OF_REST = 3
_REST = (
    *("--epochs-done", str(EPOCHS_DONE), "--steps-done", str(STEPS_DONE)),
    *("--epochs", str(EPOCHS_OF_REST)),
)


def _shards(*sizes: int, **facts) -> Scenario:
    return FilesRecorder.on_machines(2, settings={"sizes": sizes}, **facts)


register(
    {
        "files": _shards(*SIZES),
        "few files": _shards(sum(SIZES)),
        "uneven files": _shards(15, 5, 15, 5),
        "rest of files": _shards(*SIZES, options=_REST),
    }
)
