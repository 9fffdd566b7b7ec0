"""The samples that come with the course: small, balanced, licensed, and real."""

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest

from utils.base import profiles
from utils.figures import capstone
from utils.figures import training as plots
from utils.training import data, doodles, samples

REAL_DATA = os.environ.get("COURSE_DATA")
needs_real_data = pytest.mark.skipif(
    not REAL_DATA, reason="COURSE_DATA does not name a folder"
)
MADE = (samples.FASHION_MNIST, samples.BITMAPS, samples.STROKES)


def test_files_are_small_and_their_licences_lie_beside_them():
    names = {path.name for path in samples.FOLDER.iterdir()}
    licences = {"fashion_mnist_LICENSE.txt", "quickdraw_LICENSE.txt"}
    assert names == {path.name for path in MADE} | licences
    assert samples.FASHION_MNIST.stat().st_size < 4_000_000
    assert samples.BITMAPS.stat().st_size + samples.STROKES.stat().st_size < 2_000_000
    fashion, quickdraw = ((samples.FOLDER / n).read_text() for n in sorted(licences))
    assert "The MIT License (MIT) Copyright © 2017 Zalando SE" in fashion
    assert "permission notice shall be included in all" in fashion
    assert "made available by\nGoogle, Inc. under the Creative Commons" in quickdraw
    assert "https://creativecommons.org/licenses/by/4.0/" in quickdraw
    assert "What was changed" in quickdraw


def test_garments_are_balanced_and_enough_for_a_laptop():
    arrays = samples.fashion_mnist()
    for part, count in (("train", 640), ("test", 107)):
        images, labels = arrays[f"x_{part}"], arrays[f"y_{part}"]
        assert (images.shape, images.dtype) == ((count * 10, 28, 28), np.uint8)
        assert labels.dtype == np.uint8
        assert np.bincount(labels).tolist() == [count] * 10
    assert len(arrays["x_train"]) == profiles.PROFILES["cpu"].train_images


def test_doodles_and_their_strokes_are_of_the_capstone_s_classes():
    bitmaps, strokes = samples.doodles(), samples.strokes()
    assert tuple(bitmaps) == tuple(strokes) == doodles.CLASSES
    for word in doodles.CLASSES:
        assert (bitmaps[word].shape, bitmaps[word].dtype) == ((500, 28, 28), np.uint8)
        assert len(strokes[word]) == 25
        drawings = [doodles.parse(line, word)[2] for line in strokes[word]]
        if word != "rainbow":  # these are the same drawings, once more
            pixels = np.stack([doodles.render(drawing) for drawing in drawings])
            pixels = pixels.reshape(25, -1), bitmaps[word].reshape(500, -1)
            alike = np.corrcoef(*pixels)[:25, 25:]
            assert alike.argmax(1).tolist() == list(range(25))


def test_no_garment_and_no_doodle_is_there_twice():
    arrays = samples.fashion_mnist()
    for images in (
        np.concatenate([arrays["x_train"], arrays["x_test"]]),
        np.concatenate(list(samples.doodles().values())),
    ):
        assert len({image.tobytes() for image in images}) == len(images)


@needs_real_data
@pytest.mark.parametrize("count", [1, 57, 6_400])
def test_the_sample_gives_the_same_images_as_the_whole(monkeypatch, count):
    monkeypatch.setenv("COURSE_DATA", REAL_DATA)
    published, sample = data.load("real", count), data.load("sample", count)
    for key in ("x_train", "y_train", "x_test", "y_test"):
        assert np.array_equal(getattr(published, key), getattr(sample, key))
    assert (published.mean, published.std) == (sample.mean, sample.std)


@pytest.mark.skipif(
    not Path(REAL_DATA or "nowhere", "quickdraw").is_dir(),
    reason="COURSE_DATA does not name a folder with quickdraw",
)
def test_the_script_makes_the_same_samples_again(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_DATA", REAL_DATA)
    samples.make(tmp_path)
    for path in MADE[:2]:
        with np.load(path) as shipped, np.load(tmp_path / path.name) as again:
            assert shipped.files == again.files
            for key in again.files:
                assert np.array_equal(shipped[key], again[key])
    strokes = (MADE[2], tmp_path / MADE[2].name)
    shipped, again = (gzip.decompress(path.read_bytes()) for path in strokes)
    assert shipped == again


def test_all_shipped_strokes_are_json_of_their_authors_form():
    for lines in samples.strokes().values():
        assert len({json.loads(line)["key_id"] for line in lines}) == 25
        assert {"countrycode", "timestamp"} <= set(json.loads(lines[0]))


# --- Figures -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("Fashion-MNIST", "Fashion-MNIST"),
        ("a sample of Fashion-MNIST", "A sample of Fashion-MNIST"),
    ],
)
def test_the_figure_names_the_data_and_each_class_in_words(name, title):
    images, labels, *others = samples.fashion_mnist().values()
    dataset = data.Dataset(name, images, labels, *others, mean=0.0, std=1.0)
    figure = plots.garments(dataset, examples=3)
    assert figure.get_suptitle() == title
    assert [axis.get_title(loc="left") for axis in figure.axes] == list(data.CLASSES)
    for label, axis in enumerate(figure.axes):
        (picture,) = axis.images
        expected = np.hstack(images[labels == label][:3])
        assert np.array_equal(picture.get_array(), expected)


def test_the_figure_of_doodles_says_that_they_are_a_sample():
    doodles._announce.cache_clear()
    figure = capstone.strokes_and_pixels(*doodles.drawings("sample"))
    assert figure.get_suptitle() == "A sample of Quick, Draw! doodles"
    titles = [axis.get_title() for axis in figure.axes if axis.get_title()]
    assert titles == list(doodles.CLASSES)
