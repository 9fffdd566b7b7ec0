"""CIFAR-10: from where it comes, how it is split, and that colors survive.

A small archive stands in for the published one, and a server on the loopback interface
for the place where it is published.
"""

import hashlib
import io
import os
import pickle
import tarfile

import numpy as np
import pytest
from processes import serving
from test_data import (
    Server,
    alone,  # noqa: F401
    dead_server,  # noqa: F401
    published,  # noqa: F401
    take,
)

from distcheck.errors import UserError
from utils.training import data, fetch, samples

NAME = fetch.CIFAR10_FILE[0]
REAL_DATA = os.environ.get("COURSE_DATA")


@pytest.fixture(scope="module")
def images():
    """Six hundred images to train on and as many to test on, in no order."""
    rng = np.random.default_rng(1)
    arrays = {}
    for part in ("train", "test"):
        arrays[f"x_{part}"] = rng.integers(0, 256, (600, 32, 32, 3), np.uint8)
        arrays[f"y_{part}"] = rng.permutation(np.arange(600) % 10).astype(np.uint8)
    return arrays


def packed(members: dict[str, object]) -> bytes:
    """An archive like the published one: pickles of a kind that Python 2 wrote."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name, member in members.items():
            pickled = pickle.dumps(member, protocol=2)
            entry = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            entry.size = len(pickled)
            archive.addfile(entry, io.BytesIO(pickled))
    return content.getvalue()


def batch(images: np.ndarray, labels: np.ndarray) -> dict[bytes, object]:
    planes = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    return {b"data": planes, b"labels": labels.tolist(), b"batch_label": b"one"}


@pytest.fixture(scope="module")
def archive(images):
    members = {"batches.meta": {b"label_names": [b"airplane"]}}
    for n in (5, 4, 3, 2, 1):  # the order of an archive says nothing
        part = slice(120 * (n - 1), 120 * n)
        members[f"data_batch_{n}"] = batch(
            images["x_train"][part], images["y_train"][part]
        )
    members["test_batch"] = batch(images["x_test"], images["y_test"])
    return packed(members)


def publish(folder, monkeypatch, content):
    """Put an archive into a folder; its checksum is the published one from now on."""
    folder.mkdir(exist_ok=True)
    (folder / NAME).write_bytes(content)
    checksum = hashlib.sha256(content).hexdigest()
    monkeypatch.setattr(fetch, "CIFAR10_FILE", (NAME, checksum))


@pytest.fixture
def folder(tmp_path, monkeypatch, archive):
    publish(tmp_path / "there", monkeypatch, archive)
    return tmp_path / "there"


@pytest.fixture
def place(folder, monkeypatch):
    """Where CIFAR-10 is published: a server that holds the archive."""
    with serving(Server(folder)) as server:
        monkeypatch.setattr(fetch, "CIFAR10_PLACES", (server.address,))
        yield server


def cached():
    return fetch.cache_folder() / "cifar10"


# --- From where ----------------------------------------------------------------------


def test_a_download_is_unpacked_kept_and_used_again(place, images):
    for _ in range(2):
        arrays = fetch.cifar10()
        assert set(arrays) == set(images)
        for key, array in images.items():
            assert arrays[key].dtype == np.uint8
            assert np.array_equal(arrays[key], array), key
    assert place.asked == [NAME]
    assert {path.name for path in cached().iterdir()} == {NAME, "lock"}
    dataset = data.load_cifar10("auto")
    assert dataset.name == "CIFAR-10"
    assert dataset.classes[3] == "cat"


def change_a_byte(path):
    content = bytearray(path.read_bytes())
    content[5000] ^= 1
    path.write_bytes(content)


def cut_short(path):
    path.write_bytes(path.read_bytes()[:-20])


@pytest.mark.parametrize("damage", [change_a_byte, cut_short])
def test_a_corrupt_archive_is_not_kept_and_not_read(place, folder, damage):
    damage(folder / NAME)
    with pytest.raises(fetch.NoDownload, match=f"{NAME} is cut short or not what was"):
        data.load_cifar10("real")
    assert not (cached() / NAME).exists()


class Evil:
    def __reduce__(self):
        return os.system, ("echo run by a data set",)


def test_a_pickle_that_would_run_code_is_refused(tmp_path, monkeypatch, capfd):
    publish(tmp_path / "evil", monkeypatch, packed({"test_batch": Evil()}))
    monkeypatch.setenv("COURSE_DATA", str(tmp_path / "evil"))
    with pytest.raises(UserError, match=r"asks for \w+\.system, which no data set"):
        fetch.cifar10()
    assert "run by a data set" not in capfd.readouterr().out


# --- A sample ------------------------------------------------------------------------


@pytest.fixture
def sample(tmp_path, monkeypatch, images):
    path = tmp_path / "given" / "cifar10" / fetch.CIFAR10_SAMPLE
    path.parent.mkdir(parents=True)
    np.savez(path, **images)
    monkeypatch.setenv("COURSE_DATA", str(tmp_path / "given"))
    return path


def test_a_sample_in_course_data_is_read_and_called_one(sample, images, place):
    assert np.array_equal(fetch.cifar10()["x_train"], images["x_train"])
    assert data.load_cifar10("real").name == "a sample of CIFAR-10"
    assert place.asked == []


def test_the_whole_of_it_goes_before_a_sample(sample, folder):
    sample.write_bytes(b"")
    (folder / NAME).rename(sample.parent / NAME)
    assert data.load_cifar10("real").name == "CIFAR-10"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"y_train": np.zeros(5, np.uint8)}, r"y_train uint8 \(5,\)"),
        ({"x_test": np.zeros((600, 32, 32, 3))}, "x_test is float64"),
        ({"y_test": np.array([None] * 600)}, "allow_pickle"),
    ],
)
def test_a_wrong_sample_is_refused(sample, images, change, complaint):
    np.savez(sample, **images | change)
    with pytest.raises(UserError, match=complaint):
        data.load_cifar10()


def test_a_sample_cut_short_is_refused(sample):
    cut_short(sample)
    with pytest.raises(UserError, match="is no sample of CIFAR-10"):
        data.load_cifar10()


# --- Split ---------------------------------------------------------------------------


def test_validation_and_test_share_the_test_images(sample, images):
    dataset = data.load_cifar10()
    assert (len(dataset.x_val), len(dataset.x_test)) == (500, 100)
    assert np.bincount(dataset.y_val).tolist() == [50] * 10
    assert np.bincount(dataset.y_test).tolist() == [10] * 10
    both = [*dataset.x_val, *dataset.x_test]
    assert {i.tobytes() for i in both} == {i.tobytes() for i in images["x_test"]}
    assert len({i.tobytes() for i in both}) == 600
    for label in range(10):
        first = images["x_test"][images["y_test"] == label][:50]
        assert np.array_equal(dataset.x_val[dataset.y_val == label], first)
    assert dataset.mean == pytest.approx(images["x_train"].mean())
    assert dataset.std == pytest.approx(images["x_train"].std())


def test_part_of_it_is_balanced(sample):
    part = data.load_cifar10(train_images=57)
    assert (len(part.x_train), len(part.x_val), len(part.x_test)) == (57, 500, 12)
    assert set(np.bincount(part.y_train)) == {5, 6}
    with pytest.raises(UserError, match="train_images is 0"):
        data.load_cifar10(train_images=0)


# --- A stand-in ----------------------------------------------------------------------


def test_without_a_network_there_are_garments_in_color_and_they_are_announced(
    dead_server,  # noqa: F811
    capfd,
):
    dataset = data.load_cifar10("auto", train_images=100)
    assert dataset.name == "a sample of Fashion-MNIST in color"
    sizes = len(dataset.x_train), len(dataset.x_val), len(dataset.x_test)
    assert sizes == (100, 500, 20)
    assert dataset.classes == data.CLASSES
    notice = capfd.readouterr().err.splitlines()[-1]
    assert notice.startswith(f"NOTICE: this is {dataset.name}, not CIFAR-10, which")
    with pytest.raises(fetch.NoDownload, match="CIFAR-10 is not on this machine"):
        data.load_cifar10("real")


def test_garments_in_color_repeat_and_are_those_of_the_sample():
    arrays, grey = samples.garments_in_color(), samples.fashion_mnist()
    assert np.array_equal(samples.garments_in_color()["x_test"], arrays["x_test"])
    for part in ("train", "test"):
        images, labels = arrays[f"x_{part}"], arrays[f"y_{part}"]
        assert (images.shape, images.dtype) == ((len(labels), 32, 32, 3), np.uint8)
        assert np.array_equal(labels, grey[f"y_{part}"])
        grounds = images[:, 0, 0]
        assert len(np.unique(grounds, axis=0)) > 0.95 * len(labels)
        assert (grounds.std(axis=0) > 40).all()
        # What is all garment has its color, as dark as it is there.
        solid = grey[f"x_{part}"][0] >= 64
        shade = grey[f"x_{part}"][0][solid].astype(float)
        garment = images[0, 2:30, 2:30][solid]
        for channel in range(3):
            color = (garment[:, channel] / shade).max()
            assert np.abs(garment[:, channel] - color * shade).max() < 4


# --- Pipelines in color -------------------------------------------------------------


def test_batches_are_colored_and_validation_images_are_not_test_images(sample):
    dataset = data.load_cifar10()
    assert dataset.image_shape == (32, 32, 3)
    for batches, originals in (
        (data.training_batches(dataset, 8), None),
        (data.validation_batches(dataset, 500, seed=1), dataset.x_val),
        (data.test_batches(dataset, 100), dataset.x_test),
    ):
        ((x, y),) = take(batches, 1)
        assert (x.shape[1:], x.dtype) == ((32, 32, 3), np.float32)
        assert (y.shape, y.dtype) == ((len(x), 10), np.float32)
        assert batches.element_spec[0].shape.as_list() == [None, 32, 32, 3]
        if originals is not None:
            wanted = (originals.astype(np.float64) - dataset.mean) / dataset.std
            assert np.sort(x.sum((1, 2, 3))) == pytest.approx(
                np.sort(wanted.sum((1, 2, 3))), abs=0.05
            )


@pytest.mark.skipif(not REAL_DATA, reason="COURSE_DATA does not name a folder")
def test_the_real_data_is_balanced(monkeypatch):
    monkeypatch.setenv("COURSE_DATA", REAL_DATA)
    dataset = data.load_cifar10("real")
    assert dataset.name.endswith("CIFAR-10")
    assert len(set(np.bincount(dataset.y_train))) == 1
    assert np.bincount(dataset.y_val).tolist() == [50] * 10
    assert len(set(np.bincount(dataset.y_test))) == 1
