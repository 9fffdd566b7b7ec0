"""Doodles of Quick, Draw!: drawings that people made in 20 seconds, as strokes.

They are published by class, a JSON object a line (ndjson), with a hundred thousand and
more in a file: `load` reads no more lines than it needs, and hangs up. Which drawings
are held out, to be tested on and never trained on, follows from their `key_id` alone.

There are no published checksums of the first lines of a file: instead the form of each
line is checked, wherever it comes from (`parse`). Where there is no network, the course
has a sample, of which the last ones of each class are held out. The data set is made
available by Google, Inc. under CC BY 4.0.
"""

import hashlib
import json
import os
from collections.abc import Iterable
from functools import cache, partial
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote

import numpy as np

from distcheck.errors import UserError, notice
from utils.training import data, fetch, samples

CLASSES = samples.DOODLES
PLACES = ("https://storage.googleapis.com/quickdraw_dataset/full/simplified",)
REAL, SAMPLE = "Quick, Draw! doodles", "a sample of Quick, Draw! doodles"
TRAIN_IMAGES = 3_700  # as many as the sample has
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

    `choice` is "real" for Quick, Draw!, "sample" for the 500 doodles a class that come
    with the course, or "auto". `classes` may name any that are published; the sample
    has those of CLASSES, and 370 of each to train on: where more are asked for, all of
    them are used, with a notice. The classes have as many training images each, or one
    more.

    Raises UserError for another choice, number or class, for a folder of COURSE_DATA
    that does not hold them, and with "real" if there is no way to get them.
    """
    name, images, why = _images(choice, train_images, classes)
    if why:
        _announce(why)
    dataset = _dataset(name, images)
    data.no_more_than(len(dataset.x_train), train_images, name)
    return dataset


def _dataset(name: str, images: dict[str, dict[str, np.ndarray]]) -> data.Dataset:
    arrays = {}
    for side in ("train", "val", "test"):
        of_class = [sides[side] for sides in images.values()]
        arrays[f"x_{side}"] = np.concatenate(of_class)
        counts = [len(part) for part in of_class]
        arrays[f"y_{side}"] = np.repeat(np.arange(len(images), dtype=np.uint8), counts)
    return data.dataset_of(name, arrays, tuple(images))


def drawings(
    choice: str = "auto",
    train_images: int = TRAIN_IMAGES,
    classes: tuple[str, ...] = CLASSES,
) -> tuple[str, dict[str, list[Drawing]]]:
    """The name of the data, and the strokes of what there is to train on, by class; in
    the sample, those of the first 25 drawings that were recognized.

    Arguments and errors are those of `load`.
    """
    name, published, why = _find(choice, _wanted(train_images, classes))
    if published:
        return name, {word: sides["train"] for word, sides in published.items()}
    _announce(why)
    lines, strokes = samples.strokes(), {}
    for word in classes:
        parsed = [parse(line, word) for line in lines[word]]
        strokes[word] = [drawing for _, recognized, drawing in parsed if recognized]
    return name, strokes


@cache
def _announce(why: str) -> None:
    """Say, once in each process, that the doodles are the course's sample."""
    notice(
        f"this is a sample of Quick, Draw! doodles (by Google, CC BY 4.0), not all "
        f"that there are, {why}. For more connect to the network and use --data real, "
        "or set COURSE_DATA to a folder that holds doodles/<class>.ndjson."
    )


def _images(choice: str, train_images: int, classes: tuple[str, ...]) -> tuple:
    """Name, images by class and side, and why they are the sample's, "" if not."""
    wanted = _wanted(train_images, classes)
    name, published, why = _find(choice, wanted)
    if published:
        images = {
            word: {
                side: np.stack([render(drawing) for drawing in part])
                for side, part in sides.items()
            }
            for word, sides in published.items()
        }
        return name, images, why
    images, bitmaps = {}, samples.doodles()
    edges = -HELD_OUT_EACH - VALIDATION_EACH, -HELD_OUT_EACH
    for word, counts in wanted.items():
        train, val, held_out = np.split(bitmaps[word], edges)
        images[word] = {"train": train[: counts["train"]], "val": val, "test": held_out}
    return name, images, why


def _wanted(train_images: int, classes: tuple[str, ...]) -> dict[str, dict[str, int]]:
    """How many drawings of each class are wanted for each side."""
    if not 2 <= len(set(classes)) == len(classes) <= 255:
        raise UserError(f"classes are {', '.join(classes)}: name two or more, once.")
    if train_images < len(classes):
        raise UserError(
            f"train_images is {train_images}: choose {len(classes)} or more, one of "
            "each class."
        )
    wanted = {}
    for place, word in enumerate(classes):
        share = (train_images + len(classes) - 1 - place) // len(classes)
        wanted[word] = {"train": share, "val": VALIDATION_EACH, "test": HELD_OUT_EACH}
    return wanted


def _find(choice: str, wanted: dict[str, dict[str, int]]) -> tuple:
    """Name and published drawings by class and side; or the sample's name, None and
    why it has to be the sample."""
    published, why = data.real_or_why_not(choice, partial(_published, wanted))
    missing = [word for word in wanted if word not in CLASSES]
    if why and missing:
        raise UserError(
            f"the course's sample has no {missing[0]!r}, only {', '.join(CLASSES)}."
        )
    return _name(SAMPLE if why else REAL, tuple(wanted)), published, why


def _name(kind: str, classes: tuple[str, ...]) -> str:
    return kind if classes == CLASSES else f"{kind}: {', '.join(classes)}"


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
    """The first recognized drawings of a class: so many for each side; and the lines
    that were read for them, not one more.

    Raises WrongFile for a line of another form, and if there are too few.
    """
    by_side = {side: [] for side in wanted}
    read = []
    for number, line in enumerate(lines, 1):
        read.append(line)
        try:
            key_id, recognized, drawing = parse(line, word)
        except ValueError as error:
            raise fetch.WrongFile(f"has a wrong line {number}: {error}") from None
        part = by_side[side_of(key_id)]
        if recognized and len(part) < wanted[side_of(key_id)]:
            part.append(drawing)
        if all(len(by_side[side]) == wanted[side] for side in wanted):
            return by_side, read
    has = ", ".join(f"{len(part)} for {side}" for side, part in by_side.items())
    raise fetch.WrongFile(f"has too few recognized drawings: {has} of {wanted}")


def parse(line: bytes, word: str) -> tuple[str, bool, Drawing]:
    """A line's key_id, whether the drawing was recognized as `word`, and its strokes.

    Raises ValueError, with a reason, for anything but a whole line of that form.
    """
    try:
        entry = json.loads(line)
    except ValueError:
        raise ValueError("it is no JSON") from None
    if not isinstance(entry, dict) or entry.get("word") != word:
        raise ValueError(f"it is not about {word!r}")
    key_id, recognized = entry.get("key_id"), entry.get("recognized")
    if not isinstance(key_id, str) or not isinstance(recognized, bool):
        raise ValueError("it lacks key_id or recognized")
    drawing = entry.get("drawing")
    if not isinstance(drawing, list) or not drawing:
        raise ValueError("it has no strokes")
    for stroke in drawing:
        if not _is_stroke(stroke):
            raise ValueError("a stroke is not [[x, ...], [y, ...]] within 0 to 255")
    return key_id, recognized, drawing


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
    """Where a drawing belongs, forever: "test" (held out), "val" or "train"."""
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
