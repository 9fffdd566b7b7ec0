"""The images that a check gives to programs: few, and known again by a recorder.

A `Source` of distcheck: the lab imports this module by its name, and prepares it.
"""

import numpy as np

from distcheck.scenarios import TRAIN_IMAGES
from utils.training import data, samples

CLASSES = len(data.CLASSES)
IMPORT_TENSORFLOW = ("utils.training.stopwatch", "utils.training.survival")


def prepare() -> None:
    """Let `data.load` give the images of a check, in this process."""
    # Workers are forked from this process, and programs import this.
    from utils import logs  # noqa: F401

    name = "a sample of Fashion-MNIST for a check"
    arrays = data.part_of(name, samples.fashion_mnist(), TRAIN_IMAGES, 6)
    # The classes take turns, so that a program that wants fewer images gets the first
    # of them, and recorders can tell which they are by their numbers here.
    for part in ("train", "test"):
        order = data.in_turns(arrays[f"y_{part}"])
        arrays |= {f"{key}_{part}": arrays[f"{key}_{part}"][order] for key in "xy"}
        arrays[f"x_{part}"] = _within_margins(arrays[f"x_{part}"])
    data.use_instead(name, arrays)


def training() -> tuple[np.ndarray, np.ndarray]:
    dataset = data.load()
    return dataset.x_train, dataset.y_train


def validation() -> tuple[np.ndarray, np.ndarray]:
    dataset = data.load()
    return dataset.x_val, dataset.y_val


def _within_margins(images: np.ndarray) -> np.ndarray:
    """Images (n, 28, 28), made so small that no pixel is lost by a shift: so recorders
    know them again (see `distcheck.recorder.images`)."""
    size, margin = images.shape[1], data.SHIFT
    places = np.linspace(0, size - 1, size - 2 * margin).round().astype(int)
    small = images[:, places][:, :, places]
    return np.pad(small, [(0, 0), (margin, margin), (margin, margin)])
