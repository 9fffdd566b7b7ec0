"""The drawn garments: the same for everyone, and neither too easy nor too hard."""

import hashlib

import numpy as np
import pytest

from utils.figures import training as plots
from utils.training import drawn
from utils.training.data import CLASSES, Dataset


@pytest.fixture(scope="module")
def garments():
    return drawn.draw(2_000, seed=1)


def test_shapes_types_and_classes_in_turn(garments):
    images, labels = garments
    assert (images.shape, images.dtype) == ((2_000, 28, 28), np.uint8)
    assert (labels.shape, labels.dtype) == ((2_000,), np.uint8)
    assert labels[:12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]


def test_a_seed_gives_the_same_garments_on_every_machine(garments):
    content = b"".join(array.tobytes() for array in garments)
    # A new value here means that results from before can't be compared any more.
    assert (
        hashlib.sha256(content).hexdigest()
        == "75fe720f2f9315676f8feb95f5e7b413212976161531433cf18fd63a4911bc91"
    )


@pytest.mark.parametrize("count", [0, 1, 7, 999, 1_001])
def test_a_smaller_count_gives_the_first_of_them(garments, count):
    images, labels = drawn.draw(count, seed=1)
    assert np.array_equal(images, garments[0][:count])
    assert np.array_equal(labels, garments[1][:count])


def test_another_seed_repeats_no_image(garments):
    others, _ = drawn.draw(2_000, seed=2)
    every = {image.tobytes() for images in (garments[0], others) for image in images}
    assert len(every) == 4_000


def test_a_garment_fills_some_of_its_image_and_leaves_some_black(garments):
    filled = (garments[0] > 0).mean((1, 2))
    assert 0.05 < filled.min()
    assert filled.max() < 0.85


def test_classes_differ_but_their_average_images_do_not_tell_them_apart(garments):
    images, labels = garments[0].reshape(-1, 784) / 255, garments[1]
    averages = np.stack([images[labels == label].mean(0) for label in range(10)])
    others, truth = drawn.draw(1_000, seed=2)
    distances = others.reshape(-1, 1, 784) / 255 - averages
    accuracy = (np.square(distances).sum(2).argmin(1) == truth).mean()
    assert 0.5 < accuracy < 0.8


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("Fashion-MNIST", "Fashion-MNIST"),
        ("drawn garments", "Drawn garments, not Fashion-MNIST"),
    ],
)
def test_the_figure_names_the_data_and_each_class_in_words(garments, name, title):
    images, labels = garments
    dataset = Dataset(name, images, labels, images, labels, mean=0.0, std=1.0)
    figure = plots.garments(dataset, examples=3)
    assert figure.get_suptitle() == title
    assert [axis.get_title(loc="left") for axis in figure.axes] == list(CLASSES)
    for label, axis in enumerate(figure.axes):
        (picture,) = axis.images
        shown = np.hstack(images[labels == label][:3])
        assert np.array_equal(picture.get_array(), shown)
