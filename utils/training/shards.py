"""Images in files: TFRecord shards, as data sets have them that no memory holds.

A shard is a file of records, a record is a `tf.train.Example` with the bytes of an
image and its label. Records lie one behind the other, so a file is read from its
beginning to its end.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from distcheck.errors import UserError
from distcheck.files import shown
from utils.training.data import Dataset


def write(
    folder: str | os.PathLike,
    images: np.ndarray,
    labels: np.ndarray,
    sizes: Sequence[int],
) -> list[Path]:
    """Write a shard of each size, one image after the other; return their paths.

    images: uint8 (n, height, width); labels: whole numbers (n,). The features of a
    record are `image`, the n pixels as bytes, and `label`, an int64. A file has its
    name only when it is whole. Raises UserError unless the sizes add up to n.
    """
    import tensorflow as tf

    if min(sizes, default=0) < 1 or sum(sizes) != len(images):
        raise UserError(
            f"shards of {list(sizes)} images can't hold {len(images)}: each needs one "
            "or more, and together all."
        )
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    paths, start = [], 0
    for number, size in enumerate(sizes):
        path = folder / f"train-{number:05}-of-{len(sizes):05}.tfrecord"
        half = path.with_suffix(".half")
        with tf.io.TFRecordWriter(str(half)) as writer:
            for at in range(start, start + size):
                writer.write(record(images[at], int(labels[at])))
        half.replace(path)
        paths.append(path)
        start += size
    return paths


def record(image: np.ndarray, label: int) -> bytes:
    """The bytes of a record: an image, uint8, and its label."""
    import tensorflow as tf

    features = {
        "image": tf.train.Feature(
            bytes_list=tf.train.BytesList(value=[image.tobytes()])
        ),
        "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
    }
    return tf.train.Example(
        features=tf.train.Features(feature=features)
    ).SerializeToString()


def even(images: int, files: int) -> list[int]:
    """The sizes of so many shards for so many images: they differ by one at most.

    Raises UserError for more shards than images.
    """
    if not 1 <= files <= images:
        raise UserError(
            f"{images:,} images can't fill {files} shards: choose from 1 to {images:,}."
        )
    return [images // files + (number < images % files) for number in range(files)]


def write_missing(folder: str | os.PathLike, dataset: Dataset, files: int) -> None:
    """Write the images to train on into so many shards, unless there are some.

    One worker of a machine calls this, and the others wait for it. Raises UserError
    where a folder without shards holds something else.
    """
    folder = Path(folder)
    if any(folder.glob("*.tfrecord")):
        return
    if folder.exists() and any(p.suffix != ".half" for p in folder.iterdir()):
        raise UserError(
            f"{shown(folder)} holds no shards, but something else: name another folder."
        )
    write(folder, dataset.x_train, dataset.y_train, even(len(dataset.x_train), files))
