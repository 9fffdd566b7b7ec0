"""Where the data comes from, and what the pipelines make of it.

No test here reaches beyond this machine: servers are on the loopback interface, and
small files stand in for the published ones.
"""

import gzip
import hashlib
import http.server
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import urllib.parse
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from processes import captured, serving

from distcheck import files
from distcheck.errors import UserError
from utils.training import data, fetch, samples

REAL_DATA = os.environ.get("COURSE_DATA")

# What a process of its own runs: with the files of the test, and no other place.
LOADER = """\
import json, sys
from utils.training import data, fetch
fetch.FILES, fetch.PLACES = json.loads(sys.argv[1]), ()
print("ready", flush=True)
print(data.load("real").x_train.sum(), flush=True)
"""


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    """A process of rank 0 with an empty cache, no settings and no way out."""
    for name in (
        "COURSE_DATA",
        "COURSE_MIRROR",
        "HOROVOD_RANK",
        "OMPI_COMM_WORLD_RANK",
        "PMI_RANK",
        "SLURM_PROCID",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(fetch, "PLACES", ())
    monkeypatch.setattr(fetch, "CIFAR10_PLACES", ())


def few() -> dict[str, np.ndarray]:
    """Three hundred images to train on and a hundred to test on, both balanced."""
    return data.part_of("few", samples.fashion_mnist(), 300, 3)


@pytest.fixture
def published(tmp_path, monkeypatch):
    """A folder with a small data set that passes for the published one."""
    folder = tmp_path / "published"
    folder.mkdir()
    files = {}
    for key, array in few().items():
        shape = np.array(array.shape, ">u4").tobytes()
        content = bytes([0, 0, 8, array.ndim]) + shape + array.tobytes()
        name = fetch.FILES[key][0]
        (folder / name).write_bytes(gzip.compress(content))
        files[key] = (name, hashlib.sha256(content).hexdigest())
    monkeypatch.setattr(fetch, "FILES", files)
    return folder


class Server(http.server.ThreadingHTTPServer):
    """Serves a folder, remembers what it was asked for, and can be made to wait.

    `before` and `midway` are called with the name of the file, before it is sent and
    after half of it.
    """

    def __init__(self, folder: Path):
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder = folder
        self.asked: list[str] = []
        self.before = self.midway = lambda name: None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        name = urllib.parse.unquote(self.path.rpartition("/")[2])
        self.server.asked.append(name)
        self.server.before(name)
        path = self.server.folder / name
        if not path.exists():
            self.send_error(404)
            return
        content = path.read_bytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        try:
            self.wfile.write(content[: len(content) // 2])
            self.wfile.flush()
            self.server.midway(name)
            self.wfile.write(content[len(content) // 2 :])
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the one who asked is dead

    def log_message(self, *args):
        """Quiet: `asked` is the log."""


@pytest.fixture
def server(published, monkeypatch):
    """The instructor's own server, with the published files."""
    with serving(Server(published)) as server:
        monkeypatch.setenv("COURSE_MIRROR", server.address)
        yield server


@pytest.fixture
def dead_server(published, monkeypatch):
    """An address at which nobody listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        monkeypatch.setenv(
            "COURSE_MIRROR", f"http://127.0.0.1:{bound.getsockname()[1]}"
        )
        yield


@pytest.fixture
def loaders():
    """Starts processes that load; none survives the test."""
    started = []

    def start() -> subprocess.Popen:
        process = subprocess.Popen(
            [sys.executable, "-c", LOADER, json.dumps(fetch.FILES)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def cached() -> Path:
    return fetch.cache_folder() / "fashion-mnist"


def files_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


PUBLISHED_NAMES = {name for name, _ in fetch.FILES.values()}


# --- From where ---------------------------------------------------------------------


@pytest.mark.skipif(not REAL_DATA, reason="COURSE_DATA does not name a folder")
def test_the_real_data_is_what_its_authors_describe(monkeypatch):
    monkeypatch.setenv("COURSE_DATA", REAL_DATA)
    dataset = data.load("auto")
    assert dataset.name == "Fashion-MNIST"
    assert dataset.x_train.shape == (60_000, 28, 28)
    assert dataset.x_test.shape == (10_000, 28, 28)
    assert np.bincount(dataset.y_train).tolist() == [6_000] * 10
    assert np.bincount(dataset.y_test).tolist() == [1_000] * 10
    assert dataset.y_train[:5].tolist() == [9, 0, 0, 3, 0]
    assert dataset.mean / 255 == pytest.approx(0.2860, abs=5e-5)
    assert dataset.std / 255 == pytest.approx(0.3530, abs=5e-5)


@pytest.mark.parametrize("inside", ["", "fashion-mnist"])
def test_course_data_is_the_folder_or_the_one_above(published, monkeypatch, inside):
    folder = published.parent / "given"
    folder.mkdir()
    published.rename(folder / inside) if inside else published.rename(folder)
    monkeypatch.setenv("COURSE_DATA", str(folder))
    dataset = data.load("auto")
    assert dataset.name == "Fashion-MNIST"
    for key, array in few().items():
        assert np.array_equal(getattr(dataset, key), array)
    assert dataset.mean == pytest.approx(dataset.x_train.mean())
    assert dataset.std == pytest.approx(dataset.x_train.std())
    assert dataset.classes[6] == "Shirt"
    assert not fetch.cache_folder().exists()


def test_a_file_may_have_been_compressed_again(published, monkeypatch):
    for path in published.iterdir():
        path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()), 1))
    monkeypatch.setenv("COURSE_DATA", str(published))
    assert data.load("real").name == "Fashion-MNIST"


def cut_short(path):
    path.write_bytes(path.read_bytes()[:-20])


def swap(path):
    path.write_bytes((path.parent / "t10k-labels-idx1-ubyte.gz").read_bytes())


def change_a_pixel(path):
    content = bytearray(gzip.decompress(path.read_bytes()))
    content[500] ^= 1
    path.write_bytes(gzip.compress(content))


def answer_with_a_page(path):
    path.write_text("<html>Please log in to the hotel's network</html>")


DAMAGES = {
    Path.unlink: "is missing",
    cut_short: "is cut short or is no gzip file",
    answer_with_a_page: "is cut short or is no gzip file",
    swap: "holds the content of t10k-labels-idx1-ubyte.gz",
    change_a_pixel: "does not hold what was published under this name",
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("choice", ["auto", "real"])
def test_a_wrong_file_in_course_data_is_refused_by_name(
    published, monkeypatch, server, damage, choice
):
    damage(published / "train-images-idx3-ubyte.gz")
    monkeypatch.setenv("COURSE_DATA", str(published))
    with pytest.raises(UserError) as error:
        data.load(choice)
    message = str(error.value)
    assert f"train-images-idx3-ubyte.gz {DAMAGES[damage]}\n" in message
    assert str(published) in message
    assert "t10k-images" not in message
    assert "unset COURSE_DATA" in message
    assert server.asked == []


def test_course_data_that_is_not_there_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match=r"nowhere(.|\n)*t10k-labels.*is missing"):
        data.load()


def test_a_download_is_kept_and_used_again(server):
    first = data.load("auto")
    second = data.load("auto")
    assert first.name == second.name == "Fashion-MNIST"
    assert np.array_equal(first.x_test, second.x_test)
    assert sorted(server.asked) == sorted(PUBLISHED_NAMES)
    assert files_in(cached()) - {"lock"} == PUBLISHED_NAMES


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_wrong_file_in_the_cache_is_fetched_again(server, capfd, damage):
    dataset = data.load("real")
    server.asked.clear()
    damage(cached() / "train-images-idx3-ubyte.gz")
    assert np.array_equal(data.load("real").x_train, dataset.x_train)
    assert server.asked == ["train-images-idx3-ubyte.gz"]
    notices = [line for line in capfd.readouterr().err.splitlines() if "NOTICE" in line]
    if damage is Path.unlink:
        assert notices == []
    else:
        (line,) = notices
        assert f"train-images-idx3-ubyte.gz {DAMAGES[damage]}: fetching" in line


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_wrong_file_from_a_place_is_not_kept_and_the_next_place_is_asked(
    server, published, tmp_path, monkeypatch, damage
):
    good = tmp_path / "good"
    good.mkdir()
    for path in published.iterdir():
        (good / path.name).write_bytes(path.read_bytes())
    damage(published / "t10k-images-idx3-ubyte.gz")
    with pytest.raises(UserError, match="t10k-images"):
        data.load("real")
    assert "t10k-images-idx3-ubyte.gz" not in files_in(cached())

    shutil.rmtree(cached())
    with serving(Server(good)) as second:
        monkeypatch.setattr(fetch, "PLACES", (second.address,))
        assert len(data.load("real").x_test) == 100
    assert "t10k-images-idx3-ubyte.gz" in second.asked
    assert "train-images-idx3-ubyte.gz" not in second.asked


def test_eight_processes_at_once_fetch_each_file_once(server, loaders):
    everyone_is_there = threading.Event()
    server.before = lambda name: everyone_is_there.wait(60)
    processes = [loaders() for _ in range(8)]
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    everyone_is_there.set()
    results = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0] * 8, results
    assert len({out for out, _ in results}) == 1
    assert sorted(server.asked) == sorted(PUBLISHED_NAMES)


def test_a_killed_download_leaves_no_half_file_and_blocks_nobody(server, loaders):
    halfway, go_on = threading.Event(), threading.Event()

    def stop_halfway(name):
        if not halfway.is_set():
            halfway.set()
            go_on.wait(60)

    server.midway = stop_halfway
    killed, waiting = loaders(), None
    try:
        assert halfway.wait(60)
        waiting = loaders()
        assert waiting.stdout.readline() == "ready\n"
        killed.kill()
        killed.wait(10)
        assert files_in(cached()) == {"lock"}
        assert server.asked == ["train-images-idx3-ubyte.gz"]
    finally:
        go_on.set()
    _, complaint = waiting.communicate(timeout=60)
    assert waiting.returncode == 0, complaint
    assert files_in(cached()) - {"lock"} == PUBLISHED_NAMES


def test_what_one_that_was_killed_left_does_not_fill_the_disk(server):
    cached().mkdir(parents=True)
    (cached() / files.HALVES.replace("*", ".0123")).touch()
    assert data.load("real").name == "Fashion-MNIST"
    assert files_in(cached()) - {"lock"} == PUBLISHED_NAMES


# --- A sample, and why ---------------------------------------------------------------


def test_without_a_network_there_is_a_sample_and_it_is_announced(dead_server, capfd):
    dataset = data.load("auto")
    assert dataset.name == "a sample of Fashion-MNIST"
    assert dataset.x_train.shape == (6_400, 28, 28)
    assert dataset.x_test.shape == (1_070, 28, 28)
    notice = capfd.readouterr().err.splitlines()[-1]
    assert notice.startswith("NOTICE: this is a sample of Fashion-MNIST, not the whole")
    assert "could not be downloaded" in notice
    assert "tried again after 10 minutes" in notice
    assert "COURSE_DATA" in notice


def test_real_without_a_network_says_what_each_place_answered(dead_server):
    with pytest.raises(
        UserError, match=r"//127\S+/train-images\S+ did not come: .*refused"
    ):
        data.load("real")


def test_a_failed_download_is_remembered_for_a_while(server):
    away = server.folder.rename(server.folder.parent / "away")
    assert data.load("auto").name == "a sample of Fashion-MNIST"
    away.rename(server.folder)
    server.asked.clear()
    assert data.load("auto").name == "a sample of Fashion-MNIST"
    assert server.asked == []

    failed = cached() / "download-failed"
    long_ago = failed.stat().st_mtime - fetch.REMEMBER - 1
    os.utime(failed, (long_ago, long_ago))
    assert data.load("auto").name == "Fashion-MNIST"
    assert not failed.exists()


def test_real_tries_again_at_once(server):
    away = server.folder.rename(server.folder.parent / "away")
    assert data.load("auto").name == "a sample of Fashion-MNIST"
    away.rename(server.folder)
    assert data.load("real").name == "Fashion-MNIST"
    assert data.load("auto").name == "Fashion-MNIST"


def test_a_server_that_never_answers_is_given_up(server, monkeypatch):
    monkeypatch.setattr(fetch, "ANSWER_WITHIN", 0.2)
    the_end = threading.Event()
    server.before = lambda name: the_end.wait(60)
    with pytest.raises(UserError, match=r"no answer within 0\.2 s"):
        data.load("real")
    the_end.set()


def test_a_sample_is_announced_even_when_asked_for(published, monkeypatch, capfd):
    monkeypatch.setenv("COURSE_DATA", str(published))
    dataset = data.load("sample", train_images=25)
    assert dataset.name == "a sample of Fashion-MNIST"
    assert "not the whole, as chosen. For all of it" in capfd.readouterr().err
    assert (len(dataset.x_train), len(dataset.x_test)) == (25, 5)


def test_a_cache_that_can_not_be_written_is_named(published, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"file.*Set COURSE_CACHE"):
        data.load("auto")


def test_a_mirror_must_be_an_address(published, monkeypatch):
    monkeypatch.setenv("COURSE_MIRROR", "/some/folder")
    with pytest.raises(UserError, match="COURSE_MIRROR is '/some/folder'"):
        data.load("auto")


def test_another_choice_is_refused():
    with pytest.raises(UserError, match="'fake': choose one of auto, real, sample"):
        data.load("fake")


# --- A part of the training set ------------------------------------------------------


@pytest.mark.parametrize("count", [1, 9, 57, 300])
def test_part_of_the_training_set_is_balanced_and_in_order(
    published, monkeypatch, count
):
    monkeypatch.setenv("COURSE_DATA", str(published))
    everything = data.load()
    part = data.load(train_images=count)
    assert len(part.x_train) == len(part.y_train) == count
    per_class = np.bincount(part.y_train, minlength=10)
    assert per_class.max() - per_class.min() <= 1
    for label in range(10):
        first = everything.x_train[everything.y_train == label][: per_class[label]]
        assert np.array_equal(part.x_train[part.y_train == label], first)
    assert part.mean == pytest.approx(part.x_train.mean())
    assert len(part.x_test) == len(part.y_test) == -(-count // 6)
    tested = np.bincount(part.y_test, minlength=10)
    assert tested.max() - tested.min() <= 1


def test_turns_of_unordered_labels_keep_the_order_of_the_set():
    labels = np.array([3, 3, 1, 3, 1, 2, 1])
    assert data._balanced(labels, 3).tolist() == [0, 2, 5]
    assert data._balanced(labels, 5).tolist() == [0, 1, 2, 4, 5]


def test_more_than_there_is_takes_all_once_with_a_notice(dead_server, capfd):
    dataset = data.load("auto", train_images=60_000)
    assert (len(dataset.x_train), len(dataset.x_test)) == (6_400, 1_067)
    last = capfd.readouterr().err.splitlines()[-1]
    wanted = "NOTICE: 60,000 training images were asked for; a sample of Fashion-MNIST"
    assert last == f"{wanted} has 6,400, and all of them are used."


@pytest.mark.parametrize("count", [0, -1])
def test_an_impossible_number_of_images_is_refused(published, monkeypatch, count):
    monkeypatch.setenv("COURSE_DATA", str(published))
    with pytest.raises(UserError, match=rf"train_images is {count}: .* 1 to 300"):
        data.load(train_images=count)


# --- Pipelines -----------------------------------------------------------------------


def dataset_of(x_train, x_test=None, mean=0.0, std=1.0) -> data.Dataset:
    """Labels are the images' numbers modulo ten."""
    x_test = x_train if x_test is None else x_test
    labels = [(np.arange(len(x)) % 10).astype(np.uint8) for x in (x_train, x_test)]
    return data.Dataset("test", x_train, labels[0], x_test, labels[1], mean, std)


def numbered(count: int) -> np.ndarray:
    """Images that can be told apart after a shift: number i is full of i + 1."""
    numbers = np.arange(1, count + 1, dtype=np.uint8)
    return np.broadcast_to(numbers[:, None, None], (count, 28, 28)).copy()


def numbers_in(batches) -> list[list[int]]:
    return [(x.max(axis=(1, 2, 3)).astype(int) - 1).tolist() for x, _ in batches]


def joined(lists) -> list:
    return list(chain.from_iterable(lists))


def take(batches, count):
    return list(batches.take(count).as_numpy_iterator())


def pixels(batches) -> np.ndarray:
    return np.concatenate([x for x, _ in batches])


def test_batches_have_the_shapes_and_types_that_keras_expects():
    dataset = dataset_of(numbered(50), numbered(25))
    for batches in (
        data.training_batches(dataset, 8),
        data.validation_batches(dataset, 8),
        data.test_batches(dataset, 8),
    ):
        ((x, y),) = take(batches, 1)
        assert (x.shape, x.dtype) == ((8, 28, 28, 1), np.float32)
        assert (y.shape, y.dtype) == ((8, 10), np.float32)
        (numbers,) = numbers_in([(x, y)])
        assert np.array_equal(y, np.eye(10)[np.array(numbers) % 10])
        assert batches.element_spec[0].shape.as_list() == [None, 28, 28, 1]


def test_numbers_become_the_images_that_they_stand_for():
    dataset = dataset_of(numbered(50), numbered(25), mean=5.0, std=2.0)
    for make, count in ((data.augmented, 50), (data.as_they_are, 25)):
        import tensorflow as tf

        numbers = [7, 3, count - 1]
        x, y = make(dataset)(tf.constant(numbers, tf.int64))
        assert (x.shape, x.dtype) == ((3, 28, 28, 1), np.float32)
        assert (x.numpy().max(axis=(1, 2, 3)) * 2 + 4).tolist() == numbers
        assert np.array_equal(y, np.eye(10)[np.array(numbers) % 10])
    assert (x.numpy() == x.numpy()[:, :1, :1]).all()  # nothing is shifted in


def test_one_seed_repeats_what_is_flipped_and_shifted():
    """And each image of a batch has a flip and a shift of its own."""
    import tensorflow as tf

    picture = np.arange(28 * 28).reshape(1, 28, 28) % 251
    dataset = dataset_of(np.repeat(picture.astype(np.uint8), 400, axis=0))

    def batch(seed):
        tf.random.set_seed(seed)
        numbers = tf.data.Dataset.range(400).batch(400)
        ((x, _),) = numbers.map(data.augmented(dataset)).as_numpy_iterator()
        return x

    first, again, other = batch(1), batch(1), batch(2)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    shifts = range(-data.SHIFT, data.SHIFT + 1)
    moves = [(flip, (d, r)) for flip in (False, True) for d in shifts for r in shifts]
    flips, ways = (np.array(part) for part in zip(*moves, strict=True))
    moved = data.flip_and_shift(
        np.repeat(dataset.x_train[:1], len(moves), axis=0), flips, ways.astype(np.int32)
    )
    possible = {
        image.tobytes(): move for image, move in zip(moved.numpy(), moves, strict=True)
    }
    drawn = [possible[image.astype(np.uint8).tobytes()] for image in first[..., 0]]
    assert 150 < sum(flip for flip, _ in drawn) < 250
    assert {down for _, (down, _) in drawn} == {*shifts}
    assert {right for _, (_, right) in drawn} == {*shifts}


def test_each_training_pass_is_a_new_permutation_without_repeats():
    batches = data.training_batches(dataset_of(numbered(103)), 10, seed=1)
    numbers = numbers_in(take(batches, 30))
    passes = [joined(numbers[start : start + 10]) for start in (0, 10, 20)]
    for numbers_in_pass in passes:
        assert len(set(numbers_in_pass)) == 100
        assert numbers_in_pass != sorted(numbers_in_pass)
    assert passes[0] != passes[1] != passes[2] != passes[0]
    assert len(set(joined(passes))) == 103  # those left out take turns


def epoch_of(dataset, epoch, size, done=0, batch=8):
    """What `size` ranks train on in the rest of an epoch: by step, then by rank."""
    ranks = [
        list(
            data.rest_of_epoch(
                dataset, batch, 1, epoch, done, rank, size
            ).as_numpy_iterator()
        )
        for rank in range(size)
    ]
    return [batch for step in zip(*ranks, strict=True) for batch in step]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_an_epoch_is_the_same_for_any_number_of_ranks(size):
    dataset = dataset_of(numbered(103))
    alone, shared = epoch_of(dataset, 4, 1), epoch_of(dataset, 4, size)
    assert len(shared) == 103 // (8 * size) * size
    for batch, shared_batch in zip(alone, shared, strict=False):
        assert np.array_equal(batch[0], shared_batch[0])
        assert np.array_equal(batch[1], shared_batch[1])
    numbers = joined(numbers_in(shared))
    assert len(set(numbers)) == len(numbers)


def test_an_epoch_that_goes_on_with_other_ranks_has_no_image_twice_and_none_left_out():
    dataset = dataset_of(numbered(103))
    parts = epoch_of(dataset, 2, 2)[:4], epoch_of(dataset, 2, 1, done=32)
    alone = epoch_of(dataset, 2, 1)
    assert numbers_in([*parts[0], *parts[1]]) == numbers_in(alone)
    assert np.array_equal(pixels([*parts[0], *parts[1]]), pixels(alone))


def test_each_epoch_has_an_order_of_its_own_and_its_rest_a_length():
    dataset = dataset_of(numbered(103))
    orders = [joined(numbers_in(epoch_of(dataset, epoch, 1))) for epoch in range(3)]
    assert orders[0] != orders[1] != orders[2] != orders[0]
    lengths = [
        len(data.rest_of_epoch(dataset, 8, 1, 0, done, 1, 2)) for done in (0, 80, 103)
    ]
    assert lengths == [6, 1, 0]


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"batch_size": 0}, "batch size is 0"),
        ({"batch_size": 60, "size": 2}, "too few for one step of 2 workers"),
        ({"done": 104}, "done is 104"),
        ({"rank": 2, "size": 2}, "no rank 2 of 2"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_a_rest_that_makes_no_sense_is_refused(wrong, complaint):
    right = {"batch_size": 8, "seed": 1, "epoch": 0}
    with pytest.raises(UserError, match=complaint):
        data.rest_of_epoch(dataset_of(numbered(103)), **right | wrong)


def test_validation_passes_are_permutations_of_all_test_images():
    dataset = dataset_of(numbered(10), numbered(43))
    numbers = numbers_in(take(data.validation_batches(dataset, 10, seed=1), 10))
    assert [len(batch) for batch in numbers] == [10, 10, 10, 10, 3] * 2
    passes = [joined(numbers[:5]), joined(numbers[5:])]
    assert sorted(passes[0]) == sorted(passes[1]) == list(range(43))
    assert passes[0] != passes[1]


def test_test_batches_are_every_image_once_in_order():
    dataset = dataset_of(numbered(10), numbered(43))
    batches = data.test_batches(dataset, 10)
    assert batches.cardinality() == 5
    assert joined(numbers_in(batches.as_numpy_iterator())) == list(range(43))


def test_standardised_pixels_are_exact():
    images = samples.fashion_mnist()["x_train"][:1_000]
    dataset = dataset_of(images, mean=float(images.mean()), std=float(images.std()))
    (batch,) = take(data.test_batches(dataset, 1_000), 1)
    wanted = (images[..., None].astype(np.float64) - images.mean()) / images.std()
    np.testing.assert_allclose(batch[0], wanted, rtol=1e-6, atol=1e-6)
    assert batch[0].mean(dtype=np.float64) == pytest.approx(0, abs=1e-6)
    assert batch[0].std(dtype=np.float64) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(
    ("shape", "standardised"),
    [
        ((28, 28, 1), (28, 28, 1)),
        ((5, 28, 28), (5, 28, 28, 1)),
        ((5, 28, 28, 1), (5, 28, 28, 1)),
        ((32, 32, 3), (32, 32, 3)),
        ((5, 32, 32, 3), (5, 32, 32, 3)),
    ],
)
def test_images_get_an_axis_of_channels_if_they_have_none(shape, standardised):
    dataset = dataset_of(numbered(1), mean=1.0, std=2.0)
    assert data.standardise(np.ones(shape, np.uint8), dataset).shape == standardised


def test_training_pixels_are_standardised_after_the_shift():
    images = np.full((20, 28, 28), 200, np.uint8)
    values = pixels(
        take(data.training_batches(dataset_of(images, mean=80.0, std=40.0), 20), 1)
    )
    assert set(np.unique(values)) == {-2.0, 3.0}  # what was shifted in is black


def reference(image, flip, down, right):
    """The same by hand: paste the image into a larger black one, and cut."""
    image = image[:, ::-1] if flip else image
    canvas = np.zeros((48, 48, *image.shape[2:]), image.dtype)
    canvas[10 + down : 38 + down, 10 + right : 38 + right] = image
    return canvas[10:38, 10:38]


@pytest.mark.parametrize("colors", [(), (3,)])
def test_every_flip_and_shift_is_that_of_the_reference(colors):
    moves = [(f, d, r) for f in (0, 1) for d in range(-5, 6) for r in range(-5, 6)]
    shape = (len(moves), 28, 28, *colors)
    images = np.random.default_rng(1).integers(1, 256, shape, np.uint8)
    flips = np.array([flip == 1 for flip, _, _ in moves])
    shifts = np.array([move[1:] for move in moves], np.int32)
    results = data.flip_and_shift(images, flips, shifts).numpy()
    for image, move, moved in zip(images, moves, results, strict=True):
        assert np.array_equal(moved, reference(image, *move)), move


def test_flips_and_shifts_are_equally_likely_and_independent():
    image = np.zeros((28, 28), np.uint8)
    image[14, 12], image[14, 17] = 200, 100
    dataset = dataset_of(np.repeat(image[None], 242, axis=0))
    moved = pixels(take(data.training_batches(dataset, 242, seed=4), 40))[..., 0]
    rows, bright = np.divmod((moved == 200).reshape(-1, 784).argmax(1), 28)
    dim = (moved == 100).reshape(-1, 784).argmax(1) % 28
    flips = bright > dim
    down, right = rows - 14, np.minimum(bright, dim) - np.where(flips, 10, 12)
    assert set(down) == set(right) == set(range(-5, 6))
    counts = np.zeros((2, 11, 11))
    np.add.at(counts, (flips.astype(int), down + 5, right + 5), 1)
    # Pearson's chi-square with 241 degrees of freedom: 241 expected, deviation 22.
    assert np.square(counts - 40).sum() / 40 < 241 + 4 * 22
    # And in time: neighbors in a pass are not moved alike.
    for values in (flips.astype(float), down, right):
        assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.04


PIPELINES = [data.training_batches, data.validation_batches]


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_a_seed_gives_each_rank_its_own_stream_every_time(pipeline, monkeypatch):
    images = samples.fashion_mnist()["x_train"][:100]

    def stream(seed, rank):
        monkeypatch.setenv("OMPI_COMM_WORLD_RANK", str(rank))
        return pixels(take(pipeline(dataset_of(images), 10, seed), 25)).tobytes()

    streams = [stream(7, 0), stream(7, 1), stream(8, 0), stream(8, 1)]
    assert len(set(streams)) == 4
    assert stream(7, 0) == streams[0]
    assert stream(7, 1) == streams[1]


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_without_a_seed_streams_differ(pipeline):
    images = samples.fashion_mnist()["x_train"][:100]
    first, second = (pixels(take(pipeline(dataset_of(images), 10), 5)) for _ in "ab")
    assert not np.array_equal(first, second)


def test_keras_goes_on_with_the_stream_from_epoch_to_epoch():
    import tensorflow as tf

    inputs_seen = []

    class Watch(tf.keras.layers.Layer):
        def call(self, inputs, training=False):
            if training:
                inputs_seen.append(inputs.numpy())
            return inputs

    model = tf.keras.Sequential(
        [Watch(), tf.keras.layers.Flatten(), tf.keras.layers.Dense(10, "softmax")]
    )
    model.compile("sgd", "categorical_crossentropy", run_eagerly=True)
    dataset = dataset_of(numbered(60), numbered(43), mean=0.0, std=1.0)
    history = model.fit(
        data.training_batches(dataset, 10, seed=1),
        steps_per_epoch=3,
        epochs=2,
        validation_data=data.validation_batches(dataset, 10, seed=1),
        validation_steps=7,
        verbose=0,
    )
    assert len(history.history["val_loss"]) == 2
    numbers = joined(numbers_in((x, None) for x in inputs_seen))
    assert sorted(numbers) == list(range(60))
    with pytest.raises(ValueError, match="specify the number of steps"):
        model.fit(data.training_batches(dataset, 10), verbose=0)


@pytest.mark.parametrize("size", [0, -1, 61])
def test_an_impossible_batch_size_is_refused(size):
    dataset = dataset_of(numbered(60))
    with pytest.raises(UserError, match=rf"batch size is {size}: .* 1 to the 60"):
        data.training_batches(dataset, size)
    if size < 1:
        for pipeline in (data.validation_batches, data.test_batches):
            with pytest.raises(UserError, match=f"batch size is {size}"):
                pipeline(dataset, size)


def test_a_seed_gives_each_worker_its_own_weights_every_time(monkeypatch):
    import tensorflow as tf

    def weights(seed, rank):
        monkeypatch.setenv("OMPI_COMM_WORLD_RANK", str(rank))
        data.seed_worker(seed)
        return tf.keras.layers.Dense(4), np.random.random()

    def start(seed, rank):
        layer, number = weights(seed, rank)
        layer.build((None, 3))
        return layer.kernel.numpy().tobytes(), number

    starts = [start(1, 0), start(1, 1), start(2, 0)]
    assert len(set(starts)) == 3
    assert start(1, 0) == starts[0]
    assert start(1, 1) == starts[1]


def test_no_seed_leaves_random_numbers_alone():
    np.random.seed(5)
    expected = np.random.random()
    np.random.seed(5)
    data.seed_worker(None)
    assert np.random.random() == expected


def test_a_negative_seed_is_refused():
    with pytest.raises(UserError, match="seed is -1"):
        data.training_batches(dataset_of(numbered(20)), 2, seed=-1)


def test_a_pipeline_with_one_thread_starts_no_tuner():
    import tensorflow as tf

    batches = tf.data.Dataset.range(8).prefetch(2).with_options(data.one_thread())
    assert batches.options().autotune.enabled is False


def test_horovod_is_not_rewritten_by_autograph():
    """Which would take half of the time to the first batch."""
    program = (
        "import tensorflow as tf\n"
        "import horovod.tensorflow.keras as hvd\n"
        "from utils import data\n"
        "hvd.init()\n"
        "data.load('sample', 100)\n"
        "optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD())\n"
        "gradients = optimizer._allreduce_grads([tf.constant([2.0])], [])\n"
        "assert gradients[0].numpy() == [2.0]\n"
        "print(optimizer._allreduce_grads._autograph)\n"
    )
    answer = captured([sys.executable, "-c", program])
    assert answer.stdout.splitlines()[-1:] == ["False"], answer.stderr
