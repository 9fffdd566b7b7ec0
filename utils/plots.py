"""The figures of the notebooks: one function a figure, each returns the Figure.

They are closed before they are returned: a cell shows one by ending with it, once.
"""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from utils.data import Dataset


def garments(dataset: Dataset, examples: int = 8) -> Figure:
    """Each class of a data set: its name and its first training images.

    The title names the data set, and says so if it is not Fashion-MNIST.
    """
    figure, axes = plt.subplots(5, 2, figsize=(10, 4.6), layout="constrained")
    for label, (axis, name) in enumerate(zip(axes.flat, dataset.classes, strict=True)):
        images = dataset.x_train[dataset.y_train == label][:examples]
        axis.set_title(name, loc="left", fontsize=10)
        axis.axis("off")
        if len(images):  # a very small training set may lack a class
            axis.imshow(np.hstack(images), cmap="gray")
    if dataset.name == "Fashion-MNIST":
        title = "Fashion-MNIST"
    else:
        title = f"{dataset.name.capitalize()}, not Fashion-MNIST"
    figure.suptitle(title, fontweight="bold")
    plt.close(figure)
    return figure
