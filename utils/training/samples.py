"""Small real samples, shipped with the course: what it trains on without a network.

Fashion-MNIST is by Zalando SE, under the MIT licence; Quick, Draw! by Google, under CC
BY 4.0. The licences' texts, and what was changed, lie beside the files in `samples/`.
CIFAR-10 has no licence that allows a copy: garments in color stand in for it.

    COURSE_DATA=FOLDER python -m utils.training.samples --out FOLDER

makes the files again, to the byte where NumPy and zlib are the same. It takes the four
files of Fashion-MNIST, `quickdraw/bitmaps_16x500.npz` (Google's own bitmaps, 500 of a
class) and `quickdraw/strokes/all_classes.ndjson.gz` (25 drawings of a class).
"""

import argparse
import gzip
import json
import os
from pathlib import Path

import numpy as np

from utils.training import fetch

FOLDER = Path(__file__).with_name("samples")
FASHION_MNIST = FOLDER / "fashion_mnist.npz"
BITMAPS = FOLDER / "quickdraw_bitmaps.npz"
STROKES = FOLDER / "quickdraw_strokes.ndjson.gz"
TRAIN_EACH, TEST_EACH = 640, 107  # what the profile `cpu` takes, and no more than 4 MB
DOODLES = (
    *("apple", "bicycle", "butterfly", "carrot", "fish"),
    *("flower", "pizza", "rainbow", "snowflake", "zebra"),
)


def fashion_mnist() -> dict[str, np.ndarray]:
    """The first 640 images of each class to train on, the first 107 to test on, in the
    order of the full set: x_train uint8 (6400, 28, 28), y_train uint8 (6400,), x_test
    (1070, 28, 28), y_test (1070,)."""
    with np.load(FASHION_MNIST) as stored:
        return dict(stored)


def garments_in_color() -> dict[str, np.ndarray]:
    """The images of `fashion_mnist` with two pixels more on each side, each in a color
    of its own on a ground of another, always the same: uint8 (n, 32, 32, 3); labels as
    there."""
    arrays = fashion_mnist()
    for seed, key in enumerate(("x_train", "x_test")):
        shade = np.pad(arrays[key], [(0, 0), (2, 2), (2, 2)])[:, None]
        shade = shade.astype(np.uint16)  # enough for a product of two bytes
        random = np.random.default_rng(seed).random((2, len(shade), 3, 1, 1))
        garment = (80 + 175 * random[0]).astype(np.uint16)
        ground = (175 * random[1]).astype(np.uint16)
        visible = 255 - np.minimum(4 * shade, 255)  # of the ground, behind a soft edge
        planes = ((shade * garment + visible * ground) // 255).astype(np.uint8)
        arrays[key] = np.ascontiguousarray(planes.transpose(0, 2, 3, 1))
    return arrays


def doodles() -> dict[str, np.ndarray]:
    """Five hundred drawings of each class in DOODLES, recognized or not, in Google's
    order: word to uint8 (500, 28, 28), white on black."""
    with np.load(BITMAPS) as stored:
        return dict(stored)


def strokes() -> dict[str, list[bytes]]:
    """The first 25 drawings of each class as they were published: word to lines of
    ndjson. They are the first of `doodles` again; only the rainbows are others."""
    lines: dict[str, list[bytes]] = {word: [] for word in DOODLES}
    with gzip.open(STROKES) as file:
        for line in file:
            lines[json.loads(line)["word"]].append(line)
    return lines


def make(out: Path) -> None:
    """Write the samples' files into a folder, from the full data in COURSE_DATA.

    Raises UserError if Fashion-MNIST isn't there, OSError if Quick, Draw! isn't.
    """
    full, arrays = fetch.fashion_mnist(), {}
    for part, each in (("train", TRAIN_EACH), ("test", TEST_EACH)):
        labels = full[f"y_{part}"]
        first = [np.flatnonzero(labels == label)[:each] for label in range(10)]
        rows = np.sort(np.concatenate(first))
        arrays |= {f"{key}_{part}": full[f"{key}_{part}"][rows] for key in "xy"}
    np.savez_compressed(out / FASHION_MNIST.name, **arrays)
    published = Path(os.environ["COURSE_DATA"]) / "quickdraw"
    with np.load(published / "bitmaps_16x500.npz") as bitmaps:
        np.savez_compressed(
            out / BITMAPS.name, **{word: bitmaps[word] for word in DOODLES}
        )
    with gzip.open(published / "strokes" / "all_classes.ndjson.gz") as file:
        lines = [line for line in file if json.loads(line)["word"] in DOODLES]
    (out / STROKES.name).write_bytes(gzip.compress(b"".join(lines), mtime=0))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=FOLDER, help="a folder")
    make(parser.parse_args().out)
