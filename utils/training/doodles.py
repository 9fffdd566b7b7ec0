"""Doodles of Quick, Draw!: drawings that people made in 20 seconds, as strokes.

They are published by class, a JSON object a line (ndjson), with a hundred thousand and
more in a file: `load` reads no more lines than it needs, and hangs up. Which drawings
are held out, to be tested on and never trained on, follows from their `key_id` alone.

There are no published checksums of the first lines of a file: instead the form of each
line is checked, wherever it comes from (`parse`). Where there is no network, the course
draws doodles of its own (`Pen`), in the same form, read by the same code.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote

import numpy as np

from utils.base.course import CourseError, notice
from utils.training import data, fetch

CLASSES = (
    "apple",
    "clock",
    "envelope",
    "fish",
    "flower",
    "house",
    "ice cream",
    "mushroom",
    "smiley face",
    "sun",
)
PLACES = ("https://storage.googleapis.com/quickdraw_dataset/full/simplified",)
REAL, DRAWN = "Quick, Draw! doodles", "doodles drawn by the course"
TRAIN_IMAGES = 4_000
VALIDATION_EACH = 30  # drawings of a class to validate on
HELD_OUT_EACH = 100  # drawings of a class that are held out: always the same ones
LONGEST = 1_000_000  # bytes of a line

SIZE = 28  # pixels of an image, each way
MARGIN = 2  # pixels that stay empty around a doodle
FINE = 4  # an image is drawn so many times larger, which makes soft edges
LINE = 1.7  # pixels: the width of a line

Drawing = list[list[list[int]]]  # strokes, each with its x and its y, 0 to 255


def load(
    choice: str = "auto",
    train_images: int = TRAIN_IMAGES,
    classes: tuple[str, ...] = CLASSES,
) -> data.Dataset:
    """Doodles as images uint8 (n, 28, 28), white on black: so many to train on, 30 of
    each class to validate on, and as `x_test` the 100 of each class that are held out.

    `choice` is "real" for Quick, Draw!, "drawn" for doodles that the course draws, or
    "auto". `classes` may name any that are published; the course draws those of
    CLASSES. The classes have as many training images each, or one more.

    Raises CourseError for another choice, number or class, for a folder of COURSE_DATA
    that does not hold them, and with "real" if there is no way to get them.
    """
    name, found = drawings(choice, train_images, classes)
    return _dataset(name, found)


def _dataset(name: str, found: dict[str, dict[str, list[Drawing]]]) -> data.Dataset:
    arrays = {}
    for side in ("train", "val", "test"):
        of_class = [sides[side] for sides in found.values()]
        images = [render(drawing) for part in of_class for drawing in part]
        arrays[f"x_{side}"] = np.stack(images)
        counts = [len(part) for part in of_class]
        arrays[f"y_{side}"] = np.repeat(np.arange(len(found), dtype=np.uint8), counts)
    return data.dataset_of(name, arrays, tuple(found))


def drawings(
    choice: str = "auto",
    train_images: int = TRAIN_IMAGES,
    classes: tuple[str, ...] = CLASSES,
) -> tuple[str, dict[str, dict[str, list[Drawing]]]]:
    """The name of the data, and the strokes by class and side: train, val, test.

    Arguments and errors are those of `load`.
    """
    name, found, why = _find(choice, train_images, classes)
    if why:
        _announce(why)
    return name, found


@cache
def _announce(why: str) -> None:
    """Say, once in each process, that the doodles are not the real ones."""
    notice(
        f"these are doodles drawn by the course, not Quick, Draw!, {why}. For the real "
        "ones connect to the network and use --data real, or set COURSE_DATA to a "
        "folder that holds doodles/<class>.ndjson."
    )


def _find(choice: str, train_images: int, classes: tuple[str, ...]) -> tuple:
    """Name, drawings, and why the course drew them, "" if it did not."""
    if not 2 <= len(set(classes)) == len(classes) <= 255:
        raise CourseError(f"classes are {', '.join(classes)}: name two or more, once.")
    if train_images < len(classes):
        raise CourseError(
            f"train_images is {train_images}: choose {len(classes)} or more, one of "
            "each class."
        )
    wanted = {}
    for place, word in enumerate(classes):
        share = (train_images + len(classes) - 1 - place) // len(classes)
        wanted[word] = {"train": share, "val": VALIDATION_EACH, "test": HELD_OUT_EACH}
    found, why = data.real_or_why_not(choice, partial(_published, wanted))
    if found:
        return _name(REAL, classes), found, ""
    found = {word: sample(word, wanted[word], drawn_lines(word))[0] for word in classes}
    return _name(DRAWN, classes), found, why


def _name(kind: str, classes: tuple[str, ...]) -> str:
    return kind if classes == CLASSES else f"{kind}: {', '.join(classes)}"


@cache
def held_out_digest(name: str) -> str | None:
    """The digest of the held-out doodles of the data set called `name`, found from the
    drawings themselves; "" if there is none, None if it is not on this machine."""
    kind, _, listed = name.partition(": ")
    if kind not in (REAL, DRAWN):
        return ""
    classes = tuple(listed.split(", ")) if listed else CLASSES
    try:
        choice = "real" if kind == REAL else "drawn"
        name, found, _ = _find(choice, len(classes), classes)
        return digest(_dataset(name, found))
    except CourseError:
        return None


def digest(dataset: data.Dataset) -> str:
    """Sixteen hexadecimal digits that stand for the images, labels and classes that a
    data set has to test on."""
    found = hashlib.sha256(repr(dataset.classes).encode())
    found.update(dataset.x_test.tobytes() + dataset.y_test.tobytes())
    return found.hexdigest()[:16]


# --- Published drawings --------------------------------------------------------------


def _published(wanted: dict[str, dict[str, int]], try_again: bool):
    given = os.environ.get("COURSE_DATA")
    if given and not (Path(given) / "doodles").is_dir():
        error = fetch.NoDownload(
            f"COURSE_DATA leads to {Path(given).resolve()}, which has no folder "
            "doodles: put the classes' .ndjson files there, or unset COURSE_DATA and "
            "let the course download them."
        )
        error.why = "which COURSE_DATA does not hold"
        raise error

    def read(word: str, file: BinaryIO):
        return sample(word, wanted[word], lines_of(file))[0]

    def download(url: str) -> bytes:
        word = unquote(url.rpartition("/")[2]).removesuffix(".ndjson")

        def first_lines(answer: BinaryIO) -> bytes:
            return b"".join(sample(word, wanted[word], lines_of(answer))[1])

        return fetch.ask(url, first_lines)

    names = {word: f"{word}.ndjson" for word in wanted}
    source = fetch.Published("Quick, Draw!", "doodles", names, PLACES, read, download)
    return fetch.get(source, try_again)


def lines_of(file: BinaryIO) -> Iterable[bytes]:
    """The lines of a file or of a server's answer, read one by one."""
    return iter(lambda: file.readline(LONGEST), b"")


def sample(
    word: str, wanted: dict[str, int], lines: Iterable[bytes]
) -> tuple[dict[str, list[Drawing]], list[bytes]]:
    """The first recognised drawings of a class: so many for each side; and the lines
    that were read for them, not one more.

    Raises WrongFile for a line of another form, and if there are too few.
    """
    found = {side: [] for side in wanted}
    read = []
    for number, line in enumerate(lines, 1):
        read.append(line)
        try:
            key_id, recognised, drawing = parse(line, word)
        except ValueError as error:
            raise fetch.WrongFile(f"has a wrong line {number}: {error}") from None
        part = found[side_of(key_id)]
        if recognised and len(part) < wanted[side_of(key_id)]:
            part.append(drawing)
        if all(len(found[side]) == wanted[side] for side in wanted):
            return found, read
    has = ", ".join(f"{len(part)} for {side}" for side, part in found.items())
    raise fetch.WrongFile(f"has too few recognised drawings: {has} of {wanted}")


def parse(line: bytes, word: str) -> tuple[str, bool, Drawing]:
    """A line's key_id, whether the drawing was recognised as `word`, and its strokes.

    Raises ValueError, with a reason, for anything but a whole line of that form.
    """
    try:
        entry = json.loads(line)
    except ValueError:
        raise ValueError("it is no JSON") from None
    if not isinstance(entry, dict) or entry.get("word") != word:
        raise ValueError(f"it is not about {word!r}")
    key_id, recognised = entry.get("key_id"), entry.get("recognized")
    if not isinstance(key_id, str) or not isinstance(recognised, bool):
        raise ValueError("it lacks key_id or recognized")
    drawing = entry.get("drawing")
    if not isinstance(drawing, list) or not drawing:
        raise ValueError("it has no strokes")
    for stroke in drawing:
        if not _is_stroke(stroke):
            raise ValueError("a stroke is not [[x, ...], [y, ...]] within 0 to 255")
    return key_id, recognised, drawing


def _is_stroke(stroke: object) -> bool:
    if not isinstance(stroke, list) or len(stroke) != 2:
        return False
    if not all(isinstance(part, list) for part in stroke):
        return False
    if not 1 <= len(stroke[0]) == len(stroke[1]):
        return False
    if any(set(map(type, part)) != {int} for part in stroke):
        return False
    return all(0 <= min(part) and max(part) <= 255 for part in stroke)


def side_of(key_id: str) -> str:
    """Where a drawing belongs, for ever: "test" (held out), "val" or "train"."""
    number = hashlib.sha256(key_id.encode()).digest()[0]
    return "test" if number < 51 else "val" if number < 77 else "train"


def render(drawing: Drawing) -> np.ndarray:
    """The image of a drawing, uint8 (28, 28): white lines on black, in the middle."""
    from PIL import Image, ImageDraw

    strokes = [np.array(stroke, np.float64).T for stroke in drawing]
    points = np.concatenate(strokes)
    middle = (points.min(0) + points.max(0)) / 2
    scale = FINE * (SIZE - 2 * MARGIN - LINE) / 255
    image = Image.new("L", (FINE * SIZE, FINE * SIZE))
    pen = ImageDraw.Draw(image)
    width = FINE * LINE
    radius = (width - 1) / 2  # Pillow's boxes include their last pixel, and it counts
    for stroke in strokes:  # from the middle of a pixel, not from its corner
        moved = (stroke - middle) * scale + (FINE * SIZE - 1) / 2
        pen.line(moved.ravel().tolist(), fill=255, width=round(width))
        for x, y in (moved[0], moved[-1]):  # round ends, and a dot is a stroke, too
            pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=255)
    return np.asarray(image.reduce(FINE))


# --- Doodles that the course draws ---------------------------------------------------

TOGETHER = 500  # doodles drawn at once
POINTS = 15  # of an arc; a straight line has fewer


def drawn_lines(word: str) -> Iterable[bytes]:
    """Endless lines of ndjson with doodles of a class, always the same ones.

    Raises CourseError for a class that the course can't draw.
    """
    if word not in PAINTERS:
        raise CourseError(
            f"the course can't draw {word!r} itself, only {', '.join(PAINTERS)}."
        )
    first = 0
    while True:
        pen = Pen(np.random.default_rng([list(PAINTERS).index(word), first]))
        PAINTERS[word](pen)
        for n, drawing in enumerate(pen.finished(), first):
            content = hashlib.sha256(f"{word} {n}".encode()).digest()
            entry = {
                "word": word,
                "key_id": str(int.from_bytes(content[:7], "big")),
                "recognized": not pen.scribbled[n - first],
                "drawing": drawing,
            }
            yield json.dumps(entry).encode() + b"\n"
        first += TOGETHER


class Pen:
    """Draws TOGETHER doodles, stroke by stroke, each in its own way.

    Coordinates are about -1 to 1, x to the right, y down: numbers, or arrays
    (TOGETHER, 1) with one for each doodle.
    """

    def __init__(self, rng: np.random.Generator):
        self.rng = rng
        self.strokes: list[np.ndarray] = []  # each (TOGETHER, points, 2)
        self.there: list[np.ndarray] = []  # bool (TOGETHER,): who has this stroke
        # One in ten is a scribble that nobody would recognise.
        self.scribbled = rng.random(TOGETHER) < 0.1

    def between(self, low: float, high: float) -> np.ndarray:
        """A random number for each doodle."""
        return self.rng.uniform(low, high, (TOGETHER, 1))

    def line(self, *points: tuple, chance: float = 0.9) -> None:
        """A stroke through points (x, y); so many of the doodles have it."""
        corners = np.stack([np.stack(self._each(*point), 1) for point in points], 1)
        at = np.linspace(0, len(points) - 1, 3 * (len(points) - 1) + 1)
        before = np.minimum(at.astype(int), len(points) - 2)
        way = (at - before)[:, None]
        self._add(corners[:, before] * (1 - way) + corners[:, before + 1] * way, chance)

    def arc(self, x, y, rx, ry, start=0.0, end=1.0, chance: float = 0.9) -> None:
        """A part of an ellipse: from `start` to `end`, in turns, clockwise from 3
        o'clock."""
        x, y, rx, ry, start, end = (
            n[:, None] for n in self._each(x, y, rx, ry, start, end)
        )
        angle = 2 * np.pi * (start + (end - start) * np.linspace(0, 1, POINTS))
        points = np.stack([x + rx * np.cos(angle), y + ry * np.sin(angle)], axis=2)
        self._add(points, chance)

    def _each(self, *numbers) -> list[np.ndarray]:
        return [np.broadcast_to(n, (TOGETHER, 1))[:, 0] for n in numbers]

    def _add(self, points: np.ndarray, chance: float) -> None:
        first = not self.strokes  # nobody goes without all strokes
        self.strokes.append(self._wobbled(points))
        self.there.append(first | (self.rng.random(TOGETHER) < chance))

    def _wobbled(self, points: np.ndarray) -> np.ndarray:
        """A hand that is not steady, and does not start where it should."""
        at = np.linspace(0, 4, points.shape[1])
        near = np.maximum(0, 1 - np.abs(at[:, None] - np.arange(5)))  # (points, 5)
        hand = np.where(self.scribbled, 0.7, self.rng.uniform(0.02, 0.16, TOGETHER))
        knots = self.rng.normal(0, 1, (TOGETHER, 5, 2)) * hand[:, None, None]
        start = self.rng.normal(0, 0.5, (TOGETHER, 1, 2)) * hand[:, None, None]
        return points + near @ knots + start

    def finished(self) -> Iterable[Drawing]:
        """The doodles turned, stretched and slanted, in the published units: from 0,
        the longer side 255."""
        turn = self.between(-0.35, 0.35)[:, 0]
        slant, wide = self.between(-0.25, 0.25)[:, 0], self.between(0.65, 1.5)[:, 0]
        cos, sin = np.cos(turn), np.sin(turn)
        spread = np.stack([wide, slant, np.zeros(TOGETHER), np.ones(TOGETHER)], 1)
        rotation = np.stack([cos, -sin, sin, cos], 1)
        matrix = rotation.reshape(-1, 2, 2) @ spread.reshape(-1, 2, 2)
        strokes = [points @ matrix.transpose(0, 2, 1) for points in self.strokes]
        for n in range(TOGETHER):
            kept = [
                points[n]
                for points, there in zip(strokes, self.there, strict=True)
                if there[n]
            ]
            everything = np.concatenate(kept)
            low = everything.min(0)
            scale = 255 / (everything.max(0) - low).max()
            yield [
                np.rint((part - low) * scale).astype(int).T.tolist() for part in kept
            ]


def apple(pen: Pen) -> None:
    tall = pen.between(0.75, 1)
    pen.arc(0, 0.1, 0.95, tall, -0.22, pen.between(0.68, 0.8))
    tip = pen.between(-0.3, 0.3)
    pen.line((0, 0.1 - tall), (tip, -0.4 - tall))
    pen.arc(tip + 0.2, -0.25 - tall, 0.25, 0.13, chance=0.5)
    pen.arc(0, 0.1 - tall, 0.25, 0.12, 0, 0.5, chance=0.4)


def clock(pen: Pen) -> None:
    pen.arc(0, 0, 1, 1, pen.between(0, 1), pen.between(1.9, 2.05))
    hour, minute = pen.between(0, 6.28), pen.between(0, 6.28)
    pen.line((0, 0), (0.5 * np.cos(hour), 0.5 * np.sin(hour)))
    pen.line((0, 0), (0.8 * np.cos(minute), 0.8 * np.sin(minute)))
    for x, y in ((0, -1), (1, 0), (0, 1), (-1, 0)):
        pen.line((0.8 * x, 0.8 * y), (0.95 * x, 0.95 * y), chance=0.5)


def envelope(pen: Pen) -> None:
    high = pen.between(0.5, 0.75)
    pen.line((-1, -high), (1, -high), (1, high), (-1, high), (-1, -high))
    pen.line((-1, -high), (0, pen.between(-0.1, 0.35)), (1, -high))
    pen.line((-1, high), (-0.2, 0.1), chance=0.3)
    pen.line((1, high), (0.2, 0.1), chance=0.3)


def fish(pen: Pen) -> None:
    fat = pen.between(0.3, 0.6)
    tail = pen.between(0.25, 0.5)
    side = np.where(pen.between(0, 1) < 0.5, -1, 1)
    pen.arc(-0.2 * side, 0, 0.75 * side, fat)
    pen.line((0.5 * side, 0), (side, -tail), (side, tail), (0.5 * side, 0))
    pen.arc(-0.6 * side, -0.1, 0.07, 0.07, chance=0.8)
    pen.arc(-0.35 * side, 0, 0.12, fat * 0.7, -0.25, 0.25, chance=0.3)


def flower(pen: Pen) -> None:
    heart = pen.between(0.15, 0.3)
    pen.arc(0, -0.3, heart, heart)
    turn = pen.between(0, 1)
    for petal in range(5):
        angle = 2 * np.pi * (turn + petal / 5)
        x, y = 0.48 * np.cos(angle), 0.48 * np.sin(angle)
        pen.arc(x, -0.3 + y, 0.25, 0.25, turn + petal / 5 - 0.4, turn + petal / 5 + 0.4)
    pen.line((0, 0.2), (pen.between(-0.2, 0.2), 1.1), chance=0.65)
    pen.arc(0.2, 0.7, 0.2, 0.1, chance=0.3)


def house(pen: Pen) -> None:
    eaves = pen.between(-0.35, 0)
    pen.line((-0.8, eaves), (-0.8, 1), (0.8, 1), (0.8, eaves), (-0.8, eaves))
    pen.line((-0.9, eaves), (pen.between(-0.2, 0.2), -1), (0.9, eaves))
    door = pen.between(-0.5, 0.2)
    pen.line((door, 1), (door, 0.4), (door + 0.3, 0.4), (door + 0.3, 1), chance=0.75)
    pen.line((0.3, 0.1), (0.6, 0.1), (0.6, 0.4), (0.3, 0.4), (0.3, 0.1), chance=0.5)


def ice_cream(pen: Pen) -> None:
    wide = pen.between(0.45, 0.65)
    pen.line((-wide, -0.1), (pen.between(-0.1, 0.1), 1.1), (wide, -0.1), (-wide, -0.1))
    pen.arc(0, -0.1, wide, pen.between(0.5, 0.8), 0.5, 1)
    pen.line((-wide * 0.6, 0.2), (0.15, 0.75), chance=0.35)
    pen.line((wide * 0.6, 0.2), (-0.15, 0.75), chance=0.35)
    pen.arc(0, -0.8, 0.15, 0.15, chance=0.25)


def mushroom(pen: Pen) -> None:
    brim = pen.between(-0.1, 0.15)
    pen.arc(0, brim, 0.95, pen.between(0.7, 1), 0.5, 1)
    pen.line((-0.95, brim), (0.95, brim))
    foot = pen.between(0.2, 0.4)
    pen.line((-foot, brim), (-foot, 0.95), (foot, 0.95), (foot, brim))
    pen.arc(-0.35, brim - 0.35, 0.15, 0.12, chance=0.4)
    pen.arc(0.3, brim - 0.4, 0.15, 0.15, chance=0.4)


def smiley_face(pen: Pen) -> None:
    pen.arc(0, 0, 1, 1, pen.between(0, 1), pen.between(1.9, 2.05))
    eye = pen.between(0.05, 0.15)
    pen.arc(-0.35, -0.3, eye, 1.4 * eye)
    pen.arc(0.35, -0.3, eye, 1.4 * eye)
    wide = pen.between(0.4, 0.65)
    pen.arc(0, 0.15, wide, pen.between(0.2, 0.5), 0, 0.5)
    pen.line((0, -0.1), (0, 0.1), chance=0.2)


def sun(pen: Pen) -> None:
    radius = pen.between(0.4, 0.65)
    pen.arc(0, 0, radius, radius)
    turn = pen.between(0, 1)
    for ray in range(8):
        angle = 2 * np.pi * (turn + ray / 8)
        x, y = np.cos(angle), np.sin(angle)
        near, far = radius + 0.12, pen.between(0.85, 1.1)
        pen.line((near * x, near * y), (far * x, far * y), chance=0.85)


PAINTERS: dict[str, Callable[[Pen], None]] = dict(
    zip(
        CLASSES,
        (
            apple,
            clock,
            envelope,
            fish,
            flower,
            house,
            ice_cream,
            mushroom,
            smiley_face,
            sun,
        ),
        strict=True,
    )
)
