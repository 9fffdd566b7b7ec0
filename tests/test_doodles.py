"""Doodles: read by the line, split by their ids for ever, or those of the sample.

A server on the loopback interface stands in for the place where they are published. It
never stops sending: whoever reads more than needed would read for ever.
"""

import contextlib
import http.server
import itertools
import json
import urllib.parse

import numpy as np
import pytest
from processes import serving
from test_data import (
    alone,  # noqa: F401
    cut_short,
    dead_server,  # noqa: F401
    published,  # noqa: F401
    take,
)

from distcheck.errors import UserError
from utils.training import data, doodles, fetch, samples

PAIR = ("ice cream", "sun")
IN_SAMPLE = ("apple", "fish")
FEW = {"train": 5, "val": 2, "test": 3}


@pytest.fixture(autouse=True)
def no_way_out(alone, monkeypatch):  # noqa: F811
    monkeypatch.setattr(doodles, "PLACES", ())
    doodles._announce.cache_clear()


def lines(word: str, count: int) -> list[bytes]:
    """Lines about `word`, whatever they show; no two are the same."""
    entries = [json.loads(line) for line in samples.strokes()["fish"]]
    texts = []
    for n, entry in zip(range(count), itertools.cycle(entries)):
        another = [*entry["drawing"], [[n % 256], [n // 256]]]
        changed = {"word": word, "key_id": str(10**15 + n), "drawing": another}
        texts.append(json.dumps(entry | changed).encode())
    return texts


class Endless(http.server.BaseHTTPRequestHandler):
    """Sends the lines of a class again and again, until the other side hangs up."""

    def do_GET(self):
        assert " " not in self.path
        name = urllib.parse.unquote(self.path).strip("/")
        self.server.asked.append(name)
        self.send_response(200)
        self.end_headers()
        content = b"\n".join([*lines(name.removesuffix(".ndjson"), 700), b""])
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            while True:
                self.wfile.write(self.server.changed(content))

    def log_message(self, *args):
        """Quiet: `asked` is the log."""


@pytest.fixture
def place(monkeypatch):
    """Where doodles are published; `changed` is what becomes of them on the way."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Endless)
    server.asked, server.changed = [], lambda content: content
    place = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(doodles, "PLACES", (place,))
    with serving(server):
        yield server


def cached(word: str):
    return fetch.cache_folder() / "doodles" / f"{word}.ndjson"


# --- Lines ---------------------------------------------------------------------------

GOOD = {
    "word": "sun",
    "countrycode": "DE",
    "timestamp": "2017-03-09 00:28:55.637750 UTC",
    "recognized": True,
    "key_id": "5891796615823360",
    "drawing": [[[0, 255], [7, 9]], [[3], [4]]],
}


def test_a_published_line_is_read():
    line = json.dumps(GOOD).encode()
    assert doodles.parse(line, "sun") == ("5891796615823360", True, GOOD["drawing"])


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"word": "moon"}, "not about 'sun'"),
        ({"key_id": 5891796615823360}, "lacks key_id"),
        ({"recognized": None}, "lacks key_id or recognized"),
        ({"drawing": []}, "no strokes"),
        ({"drawing": "sun"}, "no strokes"),
        ({"drawing": [[[1, 2], [3]]]}, "a stroke"),
        ({"drawing": [[[], []]]}, "a stroke"),
        ({"drawing": [[[1], [2], [3]]]}, "a stroke"),  # the raw data's third is time
        ({"drawing": [[[256], [2]]]}, "a stroke"),
        ({"drawing": [[[1], [-1]]]}, "a stroke"),
        ({"drawing": [[[1.5], [2]]]}, "a stroke"),
        ({"drawing": [[[True], [2]]]}, "a stroke"),
        ({"drawing": [{"0": [1], "1": [2]}]}, "a stroke"),
        ({"drawing": [["1", "2"]]}, "a stroke"),
    ],
)
def test_a_line_of_another_form_is_refused(change, complaint):
    with pytest.raises(ValueError, match=complaint):
        doodles.parse(json.dumps(GOOD | change).encode(), "sun")


@pytest.mark.parametrize(
    "line", [b"<html>", b"", b"[1]", b'{"word": "sun", "key', b"7"]
)
def test_what_is_no_object_is_refused(line):
    with pytest.raises(ValueError, match="it is no"):
        doodles.parse(line, "sun")


def test_a_sample_reads_no_further_than_it_must():
    drawings, read = doodles.sample("sun", FEW, iter(lines("sun", 200)))
    assert {side: len(part) for side, part in drawings.items()} == FEW
    with pytest.raises(fetch.WrongFile, match="too few"):
        doodles.sample("sun", FEW, read[:-1])
    assert doodles.sample("sun", FEW, read) == (drawings, read)


def test_only_recognized_drawings_are_taken():
    read = lines("sun", 200)
    entries = [json.loads(line) for line in read]
    unrecognized = [entry["drawing"] for entry in entries if not entry["recognized"]]
    assert 5 < len(unrecognized) < 40
    by_side, _ = doodles.sample("sun", {"train": 90, "val": 5, "test": 20}, read)
    drawings = [drawing for part in by_side.values() for drawing in part]
    assert not any(drawing in unrecognized for drawing in drawings)


# --- Held out ------------------------------------------------------------------------


def test_the_side_of_a_drawing_never_changes():
    # Other values here would train on what was held out before.
    ids = [
        str(number) for number in range(5_000_000_000_000_000, 5_000_000_000_001_000)
    ]
    sides = [doodles.side_of(key_id) for key_id in ids]
    assert "".join(side[1] for side in sides[:20]) == "rrrrrareraeraeerrarr"
    counts = {side: sides.count(side) for side in ("train", "val", "test")}
    assert counts == {"train": 713, "val": 95, "test": 192}


def test_held_out_are_the_same_ones_whatever_the_sample_and_never_trained_on(place):
    small, large = (
        doodles._find("real", doodles._wanted(count, PAIR))[1] for count in (20, 901)
    )
    for word, count in zip(PAIR, (451, 450), strict=True):
        assert large[word]["test"] == small[word]["test"]
        assert large[word]["val"] == small[word]["val"]
        assert large[word]["train"][:10] == small[word]["train"]
        assert len(large[word]["train"]) == count
        assert len(small[word]["test"]) == doodles.HELD_OUT_EACH
        trained = {json.dumps(drawing) for drawing in large[word]["train"]}
        assert not trained & {json.dumps(drawing) for drawing in large[word]["test"]}
        assert not trained & {json.dumps(drawing) for drawing in large[word]["val"]}


def test_so_it_is_in_the_sample():
    small, large = (doodles.load("sample", count, IN_SAMPLE) for count in (20, 741))
    for part in ("test", "val"):
        arrays = [getattr(dataset, f"x_{part}") for dataset in (small, large)]
        assert np.array_equal(*arrays)
    assert (len(small.x_train), len(large.x_train)) == (20, 740)
    assert np.array_equal(small.x_train[:10], large.x_train[:10])
    images = np.concatenate([large.x_train, large.x_val, large.x_test])
    assert len(np.unique(images.reshape(-1, 784), axis=0)) == len(images) == 1_000
    assert np.bincount(large.y_test).tolist() == [doodles.HELD_OUT_EACH] * 2


# --- From where ----------------------------------------------------------------------


def test_a_download_stops_when_it_has_enough_and_is_kept(place):
    name, drawings = doodles.drawings("auto", 20, PAIR)
    assert name == "Quick, Draw! doodles: ice cream, sun"
    assert place.asked == ["ice cream.ndjson", "sun.ndjson"]
    wanted = {"train": 10, "val": 30, "test": 100}
    kept = cached("ice cream").read_bytes().splitlines(keepends=True)
    sides, read = doodles.sample("ice cream", wanted, kept)
    assert (sides["train"], read) == (drawings["ice cream"], kept)
    assert doodles.drawings("real", 20, PAIR)[1] == drawings
    assert len(place.asked) == 2


def test_a_larger_sample_is_fetched_again(place, capfd):
    small = doodles.load("real", 20, PAIR)
    large = doodles.load("real", 900, PAIR)
    assert np.array_equal(large.x_test, small.x_test)
    assert len(place.asked) == 4
    assert "has too few recognized drawings" in capfd.readouterr().err


def test_any_published_class_may_be_named_but_the_sample_has_ten(place):
    dataset = doodles.load("real", 20, ("cat", "The Eiffel Tower"))
    assert dataset.classes == ("cat", "The Eiffel Tower")
    assert len(dataset.x_test) == 200
    with pytest.raises(UserError, match="sample has no 'sun', only apple, "):
        doodles.load("sample", 20, ("fish", "sun"))


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        (lambda content: content[:3_000] + b"\n", "wrong line .*: it is no JSON"),
        (lambda content: b"<html>Log in", "wrong line 1: it is no JSON"),
        (lambda content: b" " * 10_000_000, "wrong line 1: it is no JSON"),
        (lambda content: content.replace(b'"sun"', b'"moon"'), "not about 'sun'"),
        (lambda content: content.replace(b"255", b"256"), "a stroke is not"),
    ],
)
def test_what_comes_in_another_form_is_not_kept(place, changed, complaint):
    place.changed = changed
    with pytest.raises(fetch.NoDownload, match=complaint):
        doodles.load("real", 20, ("sun", "clock"))
    assert not cached("sun").exists()


def test_a_damaged_sample_in_the_cache_is_fetched_again(place, capfd):
    before = doodles.drawings("real", 20, PAIR)
    cut_short(cached("sun"))
    assert doodles.drawings("real", 20, PAIR) == before
    assert place.asked[2:] == ["sun.ndjson"]
    assert "it is no JSON: fetching it again" in capfd.readouterr().err


@pytest.fixture
def course_data(tmp_path, monkeypatch):
    folder = tmp_path / "given" / "doodles"
    folder.mkdir(parents=True)
    for word in PAIR:
        (folder / f"{word}.ndjson").write_bytes(b"\n".join(lines(word, 900)))
    monkeypatch.setenv("COURSE_DATA", str(folder.parent))
    return folder


def test_course_data_may_hold_them(course_data, place):
    assert doodles.load("auto", 20, PAIR).name.startswith("Quick, Draw!")
    (course_data / "sun.ndjson").unlink()
    with pytest.raises(UserError, match=r"Quick, Draw!:\n  sun.ndjson is missing"):
        doodles.load("auto", 20, PAIR)
    (course_data / "sun.ndjson").write_bytes(b"\n".join(lines("sun", 50)))
    with pytest.raises(UserError, match=r"sun.ndjson has too few recognized"):
        doodles.load("auto", 20, PAIR)
    assert place.asked == []


def test_course_data_without_a_folder_of_them_has_none(course_data, place, capfd):
    course_data.rename(course_data.parent / "others")
    assert doodles.load("auto", 20, IN_SAMPLE).name.startswith("a sample of Quick")
    notice = capfd.readouterr().err.splitlines()[-1]
    assert "not all that there are, which COURSE_DATA does not hold" in notice
    with pytest.raises(UserError, match="has no folder doodles"):
        doodles.load("real", 20, PAIR)
    assert place.asked == []


def test_without_a_network_there_is_a_sample_and_it_is_announced(
    dead_server,  # noqa: F811
    capfd,
):
    dataset = doodles.load("auto", 800, IN_SAMPLE)
    assert dataset.name == "a sample of Quick, Draw! doodles: apple, fish"
    notice, too_few = capfd.readouterr().err.splitlines()[-2:]
    assert notice.startswith("NOTICE: this is a sample of Quick, Draw! doodles (by")
    assert "--data real" in notice
    assert "800 training images were asked for" in too_few
    assert too_few.endswith("has 740, and all of them are used.")
    with pytest.raises(fetch.NoDownload, match="Quick, Draw! is not on this machine"):
        doodles.load("real", 20, PAIR)


# --- Arguments -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("fake", 20, PAIR), "'fake': choose one of auto, real, sample"),
        (("sample", 1, IN_SAMPLE), "train_images is 1: choose 2 or more"),
        (("sample", 20, ("sun",)), "name two or more"),
        (("sample", 20, ("sun", "sun")), "name two or more"),
    ],
)
def test_what_can_not_be_is_refused(arguments, complaint):
    with pytest.raises(UserError, match=complaint):
        doodles.load(*arguments)


# --- Pixels --------------------------------------------------------------------------


def test_a_line_is_white_in_the_middle_with_soft_edges():
    image = doodles.render([[[0, 255], [40, 40]]])
    assert (image.shape, image.dtype) == ((28, 28), np.uint8)
    inked = np.flatnonzero(image.any(1))
    assert set(inked) <= {12, 13, 14, 15}
    assert image[13:15, 5:23].min() > 180
    assert len(np.unique(image)) > 2
    columns = np.flatnonzero(image.any(0))
    # Pillow rounds to quarters of a pixel.
    assert columns[0] == pytest.approx(doodles.MARGIN, abs=1)
    assert columns[-1] == pytest.approx(27 - doodles.MARGIN, abs=1)


def test_strokes_are_drawn_where_they_are_and_not_joined():
    image = doodles.render([[[0, 255, 255], [0, 0, 255]], [[0], [255]]])
    assert image[3, 3:25].min() > 100  # along the top
    assert image[3:25, 24].min() > 100  # down on the right
    assert image[23:26, 2:5].max() > 200  # a dot is a stroke, too
    assert image[8:20, 2:20].max() == 0
    assert image[24, 8:20].max() == 0


def test_where_the_bounding_box_lies_makes_no_difference():
    strokes = [[[0, 100, 50], [0, 30, 90]]]
    moved = [[[n + 50 for n in part] for part in strokes[0]]]
    assert np.array_equal(doodles.render(strokes), doodles.render(moved))


def test_batches_are_like_those_of_the_other_data_sets():
    dataset = doodles.load("sample", 21, IN_SAMPLE)
    assert len(dataset.x_train) == len(dataset.y_train) == 21
    assert (len(dataset.x_val), len(dataset.x_test)) == (60, 200)
    for batches in (
        data.training_batches(dataset, 8, seed=1),
        data.validation_batches(dataset, 8, seed=1),
        data.test_batches(dataset, 8),
    ):
        ((x, y),) = take(batches, 1)
        assert (x.shape, x.dtype) == ((8, 28, 28, 1), np.float32)
        assert (y.shape, y.dtype) == ((8, 2), np.float32)


def test_classes_differ_but_their_average_images_do_not_tell_them_apart():
    dataset = doodles.load("sample", 600)
    assert dataset.classes == doodles.CLASSES
    assert np.bincount(dataset.y_train).tolist() == [60] * 10
    train, test = (
        images.reshape(-1, 784) / 255 for images in (dataset.x_train, dataset.x_test)
    )
    averages = np.stack([train[dataset.y_train == k].mean(0) for k in range(10)])
    distances = np.square(test[:, None] - averages).sum(2)
    accuracy = (distances.argmin(1) == dataset.y_test).mean()
    assert 0.3 < accuracy < 0.75
