"""Report what the workers of exercises/scaled.py do: the learning rate of each update,
the images that each validates on, what it knows of the metrics, and what it keeps.

Nothing is decided here, and functions run eagerly. The course's network gives way to a
tiny one, as no check depends on it, so that whole trainings are computed. Each worker
has a folder of its own to work in, as if on a disk of its own.
"""

import contextlib
import zipfile
from pathlib import Path

from distcheck.events import HOROVOD, Event, Finite, Inode
from distcheck.recorder import patches
from distcheck.recorder.files import files_in
from distcheck.recorder.horovod import HorovodRecorder
from distcheck.recorder.tensors import is_batch
from distcheck.scenarios import Scenario, register


class Fit(Event):
    """`Model.fit` begins."""


class Update(Event):
    """An optimizer has updated the weights."""

    epoch: int
    rate: float
    """The learning rate of this update."""


class Validated(Event):
    """A batch was validated, in an epoch."""

    epoch: int
    images: list[int]
    """Their numbers among the images to validate on; -1 for none of them."""
    right: list[bool]
    """Which of them were recognized."""


class Epoch(Event):
    """An epoch has ended, with all callbacks."""

    epoch: int
    files: dict[str, list[Inode]]
    """Of each file in the worker's folder: its inode, and the time of its last change,
    in ns."""


class Kept(Event):
    """At the end of the program: what of the training is in the files that it left."""

    files: list[str]
    weights: Finite
    """The share of the weights that is in them, as they were after one of the epochs:
    the one of which most is there."""
    state: Finite
    """The share of the optimizer's state that is in them, of the same epoch."""
    epoch: int
    """This epoch; -1 if none was trained."""


class ScaledRecorder(HorovodRecorder):
    """Reports whole trainings with `Model.fit`."""

    schema = HOROVOD | {
        "fit": Fit,
        "update": Update,
        "validated": Validated,
        "epoch": Epoch,
        "kept": Kept,
    }
    metric_shift = 0.0  # what is validated here can be compared as it is

    @classmethod
    def on_machines(cls, size: int, **facts) -> Scenario:
        """Workers on a machine each, which has one GPU."""
        watched = {"recorder": cls.dotted_name(), "own_disks": True}
        return Scenario(size, local_ranks=(0,) * size, gpus=1, **watched, **facts)

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._epoch = 0
        self._labels: dict[bytes, tuple[int, int]] = {}
        self._kept: list[tuple[list, list]] = []  # weights and state of each epoch
        self._held: list = []  # open files, so that no new file gets their numbers

    def hook_training(self, tf) -> None:
        self.replace(tf.keras.Model, "__call__", self._forward)
        self.replace(tf.keras.Model, "fit", self._fit)
        patches.hook_updates(self.replace, self._observe_update)

    def intervene(self, tf) -> None:
        """Compute all steps: there are few, of a tiny network."""
        from utils.training import networks

        networks.use_instead(networks.tiny)

    def hook_callbacks(self, tf) -> None:
        super().hook_callbacks(tf)
        callback_list = patches.callback_list()
        self.before(callback_list, "on_epoch_begin", self._epoch_begins)
        self.after(callback_list, "on_epoch_end", self._epoch_ends)

    def _fit(self, original):
        def observed(model, *args, **kwargs):
            self.event("fit")
            self._models = [model]
            with self.inside("fit"):
                try:
                    return original(model, *args, **kwargs)
                finally:
                    self.event("fitted")

        return observed

    def _observe_update(self, make_update, optimizer, pairs: list):
        if "update" in self.activities or not self._models:
            return make_update()
        with self.inside("update"):
            result = make_update()
        self._optimizers = [optimizer]
        self._gradients.updates += 1
        self.event("update", epoch=self._epoch, rate=_rate(optimizer))
        return result

    def _forward(self, original):
        def observed(model, *args, **kwargs):
            inputs = patches.argument("inputs", 0, args, kwargs)
            training = bool(patches.argument("training", 1, args, kwargs))
            inner = "forward" in self.activities or "fit" not in self.activities
            if inner or training or not is_batch(inputs):
                return original(model, *args, **kwargs)
            with self.inside("forward"):
                result = original(model, *args, **kwargs)
            self._validated(inputs, result)
            return result

        return observed

    def _validated(self, images, result) -> None:
        """Report which images these are, by number, and which were recognized."""
        import numpy as np

        from utils.training import data

        dataset = data.load("auto")
        if not self._labels:
            for number, (image, label) in enumerate(
                zip(dataset.x_val, dataset.y_val, strict=True)
            ):
                self._labels[image.tobytes()] = number, int(label)
        pixels = np.asarray(images)[..., 0] * dataset.std + dataset.mean
        pixels = np.rint(pixels).clip(0, 255).astype(np.uint8)
        identities = [self._labels.get(image.tobytes(), (-1, -1)) for image in pixels]
        predictions = np.asarray(result).argmax(axis=-1)
        self.event(
            "validated",
            epoch=self._epoch,
            images=[number for number, _ in identities],
            right=[
                int(answer) == label
                for answer, (_, label) in zip(predictions, identities, strict=True)
            ],
        )

    def _epoch_begins(self, callback_list, epoch, logs=None) -> None:
        self._epoch = int(epoch)

    def _epoch_ends(self, result, callback_list, epoch, logs=None) -> None:
        if self._models:
            weights = [v.numpy() for v in self._models[0].weights]
            self._kept.append((weights, self._state()))
        files = {
            name: [facts.st_ino, facts.st_mtime_ns]
            for name, facts in files_in(Path.cwd()).items()
        }
        self._held += [open(name, "rb") for name in files]
        self.event("epoch", epoch=int(epoch), files=files)

    def report_end(self) -> None:
        """Report what files the worker left, and what of the training is in them."""
        arrays = arrays_in(Path.cwd())
        best = max(
            (
                (share(weights, arrays), share(state, arrays), epoch)
                for epoch, (weights, state) in enumerate(self._kept)
            ),
            default=(0.0, 0.0, -1),
        )
        weights, state, epoch = best
        files = sorted(files_in(Path.cwd()))
        self.event("kept", files=files, weights=weights, state=state, epoch=epoch)


def _rate(optimizer) -> float:
    """The learning rate of the update that the optimizer has just made."""
    rate = optimizer.learning_rate
    if callable(rate):  # a schedule of a legacy optimizer
        rate = rate(optimizer.iterations - 1)
    return float(getattr(rate, "numpy", lambda: rate)())


def arrays_in(folder: Path) -> list:
    """All arrays in the checkpoints in a folder, whichever way they were saved.

    Of one that was cut off, those that can be read.
    """
    import h5py
    import numpy as np
    import tensorflow as tf

    arrays: list = []

    def of_hdf5(file) -> None:
        with h5py.File(file, "r") as stored:
            stored.visititems(
                lambda _, item: (
                    arrays.append(item[()]) if isinstance(item, h5py.Dataset) else None
                )
            )

    for path in folder.rglob("*"):
        if path.suffix == ".index":
            reader = tf.train.load_checkpoint(str(path.with_suffix("")))
            for name in reader.get_variable_to_shape_map():
                with contextlib.suppress(tf.errors.OpError, IndexError):
                    arrays.append(reader.get_tensor(name))
        elif path.is_file() and h5py.is_hdf5(path):
            of_hdf5(path)
        elif path.is_file() and zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                for name in archive.namelist():
                    if name.endswith(".h5"):
                        with archive.open(name) as file:
                            of_hdf5(file)
                    elif name.endswith(".npy"):
                        with archive.open(name) as file:
                            arrays.append(np.load(file, allow_pickle=False))
    return [array for array in arrays if isinstance(array, np.ndarray)]


def share(wanted: list, arrays: list) -> float:
    """Which share of the wanted arrays is among those that were found."""
    import numpy as np

    matches = [
        any(
            array.shape == candidate.shape and np.allclose(array, candidate)
            for candidate in arrays
        )
        for array in wanted
    ]
    return sum(matches) / len(matches) if matches else 1.0


register(
    {
        "machine": ScaledRecorder.on_machines(1),
        "two machines": ScaledRecorder.on_machines(2, build_graphs=True),
        "three machines": ScaledRecorder.on_machines(3),
    }
)
