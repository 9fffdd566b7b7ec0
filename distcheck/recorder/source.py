"""What a recorder has to know about the images that programs train on."""

from typing import Protocol

import numpy as np


class Source(Protocol):
    """A module that lets programs have images which a recorder knows again."""

    CLASSES: int
    """How many classes the images are of."""

    IMPORT_TENSORFLOW: tuple[str, ...]
    """Modules and packages that programs may import and that import TensorFlow."""

    def prepare(self) -> None:
        """Import what programs import of it, and let them have its images, in this
        process and in those that it forks."""

    def training(self) -> tuple[np.ndarray, np.ndarray]:
        """The images to train on, (n, height, width), and their labels, (n,)."""
        ...

    def validation(self) -> tuple[np.ndarray, np.ndarray]:
        """The images to validate on, and their labels."""
        ...
