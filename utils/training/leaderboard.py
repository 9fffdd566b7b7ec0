"""The leaderboard of the capstone: a CSV file with a row for each score.

What counts is work, not the clock of whatever machine it is: each device may train on
so many images, so two devices may train on twice as many.

`score` computes the accuracy itself, on the images that the data set holds out. A file
that people can edit proves nothing about them; it helps them to compare.
"""

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from distcheck import files, worker
from distcheck.errors import UserError
from utils.base import course
from utils.training import data

if TYPE_CHECKING:
    import pandas
    import tensorflow as tf

GOAL_ACCURACY = 0.87  # of held-out doodles ...
BUDGET = 8_000  # ... after so many images on each device, one seen twice counts twice
COLUMNS = {
    "name": str,
    "accuracy": float,  # the share of images that were recognized, 0 to 1
    "devices": int,
    "images": int,  # that each device trained on
    "seconds": float,  # spent on training
    "data": str,
    "when": str,
}


def path() -> Path:
    """Where the rows are kept."""
    return course.root() / "logs" / "leaderboard.csv"


def score(
    model: "tf.keras.Model",
    dataset: data.Dataset,
    devices: int,
    images: int,
    seconds: float,
    name: str,
) -> float | None:
    """Test a model on the held-out doodles, print its accuracy and enter it.

    `model` maps float32 (batch, 28, 28, 1), standardised, to a number for each class.
    So many `devices`, each with a worker or a replica, trained it on so many `images`
    each, counted as often as they were seen, in so many `seconds`.

    Returns the share of held-out doodles that it recognizes; of several workers rank 0
    does all this, the others get None. Raises UserError for what can't be a score.
    """
    if not name.strip() or devices < 1 or images < 1 or not (0 < seconds < math.inf):
        raise UserError(
            f"this can't be a score: name {name!r}, {devices} devices, {images} images "
            f"each, {seconds} s. It needs a name, and one or more of all the others."
        )
    if worker.rank() != 0:
        return None
    accuracy = data.test_accuracy(model, dataset)
    when = time.strftime("%Y-%m-%d %H:%M:%S")
    _append(name, accuracy, devices, images, seconds, dataset.name, when)
    print(
        f"{name}: {accuracy:.1%} of {len(dataset.x_test):,} held-out doodles recognized"
        f" after {images:,} images on each of {devices} device(s) ({dataset.name})"
    )
    return accuracy


def _append(*row: str | float) -> None:
    """Add a row; a reader at the same time sees the file without it or with it."""
    path().parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path().with_suffix(".lock")):
        rows = read()
        rows.loc[len(rows)] = row
        files.write_whole(path(), rows.to_csv(index=False))


def read() -> "pandas.DataFrame":
    """All rows, in the order in which they were entered.

    Raises UserError for a file that no longer is a leaderboard.
    """
    import pandas

    if not path().exists():
        return pandas.DataFrame(columns=COLUMNS).astype(COLUMNS)
    options = {"usecols": list(COLUMNS), "dtype": COLUMNS, "keep_default_na": False}
    try:
        return pandas.read_csv(path(), **options)
    except ValueError as error:
        raise UserError(
            f"{files.shown(path())} is no leaderboard: {error}. Mend or delete it."
        ) from None


def ranked() -> "pandas.DataFrame":
    """The rows with the best first: by accuracy, and at the same accuracy by images.

    Each choice of classes has rows of its own. Those over the budget come last.
    """
    rows = read()
    met = (rows["accuracy"] >= GOAL_ACCURACY).map({True: "met", False: "not yet"})
    rows["goal"] = met.mask(rows["images"] > BUDGET, "over the budget")
    # The alphabet has these three in the order in which their rows belong.
    by = ["data", "goal", "accuracy", "images"]
    return rows.sort_values(by, ascending=[True, True, False, True], ignore_index=True)
