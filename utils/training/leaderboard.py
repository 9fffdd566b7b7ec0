"""The leaderboard of the capstone: who recognizes most doodles after how much work.

What counts is work, not the clock of whatever machine it is: each device may train on
so many images. Who has two devices, has twice as many.

`score` computes the accuracy itself, on the images that the data set holds out, and
notes a digest of them; `Leaderboard` ranks only rows within the budget whose digest is
that of the doodles which are held out. A file that people can edit proves nothing about
them; it keeps honest people from comparing what can't be compared.
"""

import csv
import io
import math
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from utils.base import course, files
from utils.base.course import CourseError
from utils.base.show import Page, Table
from utils.training import data, doodles

if TYPE_CHECKING:
    import tensorflow as tf

GOAL_ACCURACY = 0.87  # of held-out doodles ...
BUDGET = 8_000  # ... after so many images on each device, one seen twice counts twice
BATCH = 200
HEADER = ("Place", "Run", "Accuracy", "Devices", "Images on each", "Seconds", "Goal")
OVER_BUDGET = "over the budget"
NOT_HELD_OUT = "not held-out doodles"
NOT_HERE = "can't be checked: these doodles are not here"


@dataclass(frozen=True)
class Row:
    """A score: who, how good, on how many, after how much, on what, and when."""

    name: str
    accuracy: float  # the share of images that were recognized, 0 to 1
    devices: int
    images: int  # that each of them trained on
    seconds: float  # spent on training
    data: str
    held_out: str  # digest of the images, see utils.training.doodles.digest
    when: str

    @property
    def meets_goal(self) -> bool:
        return self.accuracy >= GOAL_ACCURACY and self.images <= BUDGET


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
    does all this, the others get None. Raises CourseError for what can't be a score.
    """
    if not name.strip() or devices < 1 or images < 1 or not (0 < seconds < math.inf):
        raise CourseError(
            f"this can't be a score: name {name!r}, {devices} devices, {images} images "
            f"each, {seconds} s. It needs a name, and one or more of all the others."
        )
    if course.worker_rank() != 0:
        return None
    accuracy = _accuracy(model, dataset)
    when = time.strftime("%Y-%m-%d %H:%M:%S")
    held_out = doodles.digest(dataset)
    row = Row(name, accuracy, devices, images, seconds, dataset.name, held_out, when)
    _append(row)
    print(
        f"{name}: {accuracy:.1%} of {len(dataset.x_test):,} held-out doodles recognized"
        f" after {images:,} images on each of {devices} device(s) ({dataset.name})"
    )
    return accuracy


def _accuracy(model: "tf.keras.Model", dataset: data.Dataset) -> float:
    right = 0
    for images, labels in data.test_batches(dataset, BATCH).as_numpy_iterator():
        outputs = model(images, training=False).numpy()
        right += int((outputs.argmax(1) == labels.argmax(1)).sum())
    return right / len(dataset.x_test)


def _append(row: Row) -> None:
    """Add a row; whoever reads at the same time sees the file without or with it."""
    path().parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path().with_suffix(".lock")):
        rows = [*read(), row]
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, [field.name for field in fields(Row)])
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)
        files.write_whole(path(), text.getvalue())


def read() -> list[Row]:
    """All rows, in the order in which they were entered.

    Raises CourseError for a file that no longer is a leaderboard.
    """
    if not path().exists():
        return []
    rows = []
    with path().open(newline="", encoding="utf-8") as file:
        for line in (reader := csv.DictReader(file)):
            try:
                rows.append(Row(**{f.name: f.type(line[f.name]) for f in fields(Row)}))
            except (KeyError, TypeError, ValueError):
                raise CourseError(
                    f"line {reader.line_num} of {course.shown(path())} is no row of a "
                    "leaderboard: mend or delete it."
                ) from None
    return rows


class Leaderboard(Page):
    """The rows by the doodles they were scored on: best accuracy first, then who needed
    the fewest images. A notebook and a terminal show it as tables."""

    def __init__(self):
        self.rows = read()
        self.ranked: dict[str, list[Row]] = {}
        self.others: dict[str, list[Row]] = {}
        for row in sorted(self.rows, key=lambda row: (-row.accuracy, row.images)):
            held_out = row.held_out == doodles.held_out_digest(row.data)
            place = self.ranked if held_out and row.images <= BUDGET else self.others
            place.setdefault(row.data, []).append(row)

    @property
    def best(self) -> Row | None:
        """The first of those who competed on the same doodles as the last one to be
        ranked; None if nobody was."""
        for row in reversed(self.rows):
            if row in self.ranked.get(row.data, []):
                return self.ranked[row.data][0]
        return None

    @property
    def parts(self) -> list[str | Table]:
        parts: list[str | Table] = []
        for name in dict.fromkeys([*self.ranked, *self.others]):
            rows = [
                _cells(str(place), row, "met" if row.meets_goal else "not yet")
                for place, row in enumerate(self.ranked.get(name, []), 1)
            ]
            rows += [
                _cells("-", row, _why_not(row)) for row in self.others.get(name, [])
            ]
            parts += [_title(name), Table(HEADER, rows)]
        return parts or ["Nobody is on the leaderboard yet."]


def _why_not(row: Row) -> str:
    """Why a row is not ranked."""
    held_out = doodles.held_out_digest(row.data)
    if held_out is None:
        return NOT_HERE
    return NOT_HELD_OUT if held_out != row.held_out else OVER_BUDGET


def _title(name: str) -> str:
    return (
        f"Held out of {name}. Goal: {GOAL_ACCURACY:.0%} recognized after at most "
        f"{BUDGET:,} images on each device"
    )


def _cells(place: str, row: Row, goal: str) -> tuple[str, ...]:
    accuracy, seconds = f"{row.accuracy:.1%}", f"{row.seconds:.1f}"
    devices, images = str(row.devices), f"{row.images:,}"
    return place, row.name, accuracy, devices, images, seconds, goal
