"""The leaderboard of the capstone: who recognises most held-out doodles, how fast.

`score` computes the accuracy itself, on the images that the data set holds out, and
notes a digest of them; `Leaderboard` ranks only rows whose digest is that of the
doodles which are held out. A file that people can edit proves nothing about them; it
keeps honest people from comparing what can't be compared.
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

GOAL_ACCURACY = 0.90  # of held-out doodles ...
GOAL_SECONDS = 30.0  # ... after so long a training
BATCH = 200
HEADER = ("Place", "Run", "Accuracy", "Seconds", "Workers", "Goal")
NOT_HELD_OUT = "not held-out doodles"
NOT_HERE = "can't be checked: these doodles are not here"


@dataclass(frozen=True)
class Row:
    """A score: who, how good, how fast, with how many, on what, and when."""

    name: str
    accuracy: float  # the share of images that were recognised, 0 to 1
    seconds: float  # spent on training
    workers: int
    data: str
    held_out: str  # digest of the images, see utils.training.doodles.digest
    when: str

    @property
    def meets_goal(self) -> bool:
        return self.accuracy >= GOAL_ACCURACY and self.seconds <= GOAL_SECONDS


def path() -> Path:
    """Where the rows are kept."""
    return course.root() / "logs" / "leaderboard.csv"


def score(
    model: "tf.keras.Model",
    dataset: data.Dataset,
    workers: int,
    seconds: float,
    name: str,
) -> float | None:
    """Test a model on the held-out doodles, print its accuracy and enter it.

    `model` maps float32 (batch, 28, 28, 1), standardised, to a number for each class.
    `seconds` is what its training took on so many `workers` or replicas.

    Returns the share of held-out doodles that it recognises; of several workers rank 0
    does all this, the others get None. Raises CourseError for what can't be a score.
    """
    if not name.strip() or workers < 1 or not (0 < seconds < math.inf):
        raise CourseError(
            f"this can't be a score: name {name!r}, {workers} workers, {seconds} s. "
            "It needs a name, one worker or more and the seconds of its training."
        )
    if course.worker_rank() != 0:
        return None
    accuracy = _accuracy(model, dataset)
    when = time.strftime("%Y-%m-%d %H:%M:%S")
    held_out = doodles.digest(dataset)
    row = Row(name, accuracy, seconds, workers, dataset.name, held_out, when)
    _append(row)
    print(
        f"{name}: {accuracy:.1%} of {len(dataset.x_test):,} held-out doodles recognised"
        f" after {seconds:.0f} s of training ({dataset.name})"
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
    """The rows by the doodles they were scored on: best accuracy first, then the
    fastest. A notebook and a terminal show it as tables."""

    def __init__(self):
        self.rows = read()
        self.ranked: dict[str, list[Row]] = {}
        self.others: dict[str, list[Row]] = {}
        for row in sorted(self.rows, key=lambda row: (-row.accuracy, row.seconds)):
            held_out = row.held_out == doodles.held_out_digest(row.data)
            place = self.ranked if held_out else self.others
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
            has_data = doodles.held_out_digest(name) is not None
            why_not = NOT_HELD_OUT if has_data else NOT_HERE
            rows += [_cells("-", row, why_not) for row in self.others.get(name, [])]
            parts += [_title(name), Table(HEADER, rows)]
        return parts or ["Nobody is on the leaderboard yet."]


def _title(name: str) -> str:
    return (
        f"Held out of {name}. Goal: {GOAL_ACCURACY:.0%} recognised after at most "
        f"{GOAL_SECONDS:.0f} s of training"
    )


def _cells(place: str, row: Row, goal: str) -> tuple[str, ...]:
    accuracy, seconds = f"{row.accuracy:.1%}", f"{row.seconds:.1f}"
    return place, row.name, accuracy, seconds, str(row.workers), goal
