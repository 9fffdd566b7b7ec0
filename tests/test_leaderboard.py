"""The leaderboard: it tests models itself, and ranks what can be compared."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest
from test_data import alone  # noqa: F401

from utils.base import course, files
from utils.base.course import CourseError
from utils.training import doodles, leaderboard
from utils.training.leaderboard import Leaderboard, Row, score

PAIR = ("apple", "fish")


@pytest.fixture(scope="module")
def dataset():
    return doodles.load("sample", 20, PAIR)


@pytest.fixture(autouse=True)
def course_folder(alone, tmp_path, monkeypatch):  # noqa: F811
    """A course of its own, with an empty leaderboard."""
    for name in ("notebooks", "exercises"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(doodles, "PLACES", ())
    assert course.root() == tmp_path
    return tmp_path


class Knows:
    """Stands in for a model: it knows all labels but those of `errors` images."""

    def __init__(self, dataset, errors):
        self.labels = dataset.y_test.astype(int)
        self.labels[:errors] = 1 - self.labels[:errors]
        self.at = 0

    def __call__(self, images, training):
        import tensorflow as tf

        assert not training
        labels = self.labels[self.at : self.at + len(images)]
        self.at += len(images)
        return tf.one_hot(labels, 2)


def row(**changes) -> Row:
    name = "a sample of Quick, Draw! doodles: apple, fish"
    held_out = doodles.held_out_digest(name)
    example = Row("me", 0.5, 2, 640, 10.0, name, held_out, "2026-01-01 00:00:00")
    return dataclasses.replace(example, **changes)


def test_a_score_is_computed_here_printed_and_entered(dataset, capsys):
    assert score(Knows(dataset, 20), dataset, 2, 640, 12.5, "mine, all mine") == 0.9
    assert "mine, all mine: 90.0% of 200 held-out doodles" in capsys.readouterr().out
    assert score(Knows(dataset, 50), dataset, 1, 640, 3, "worse") == 0.75
    first, second = leaderboard.read()
    assert dataclasses.replace(first, when="") == row(
        name="mine, all mine", accuracy=0.9, seconds=12.5, when=""
    )
    assert (second.name, second.accuracy, second.devices) == ("worse", 0.75, 1)
    board = Leaderboard()
    assert board.ranked == {dataset.name: [first, second]}
    assert board.others == {}
    assert board.best == first


def test_a_real_network_is_tested_on_standardised_images(dataset):
    import tensorflow as tf

    model = tf.keras.Sequential(
        [
            tf.keras.Input((28, 28, 1)),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(2, "softmax"),
        ]
    )
    pixels = (dataset.x_test[..., None] - dataset.mean) / dataset.std
    guesses = model.predict(pixels.astype(np.float32), verbose=0).argmax(1)
    wanted = (guesses == dataset.y_test).mean()
    assert score(model, dataset, 1, 640, 1.0, "x") == pytest.approx(wanted, abs=0.011)


def test_a_score_on_training_doodles_is_entered_but_never_ranked(dataset):
    cheat = dataclasses.replace(dataset, x_test=dataset.x_train, y_test=dataset.y_train)
    score(Knows(cheat, 0), cheat, 1, 640, 1.0, "a cheat")
    board = Leaderboard()
    assert board.ranked == {}
    assert board.best is None
    assert board.others[dataset.name][0].name == "a cheat"
    assert leaderboard.NOT_HELD_OUT in repr(board)
    assert leaderboard.NOT_HELD_OUT in board._repr_html_()


def test_doodles_that_are_not_here_can_not_be_checked():
    leaderboard._append(row(data=doodles.REAL))
    board = Leaderboard()
    assert board.best is None
    assert leaderboard.NOT_HERE in repr(board)
    assert leaderboard.NOT_HELD_OUT not in repr(board)


@pytest.mark.parametrize("change", [{"held_out": "0" * 16}, {"data": "Fashion-MNIST"}])
def test_other_images_are_not_ranked(change):
    leaderboard._append(row(**change))
    leaderboard._append(row(name="right"))
    board = Leaderboard()
    assert [r.name for rows in board.ranked.values() for r in rows] == ["right"]
    assert [r.name for rows in board.others.values() for r in rows] == ["me"]


def test_the_best_come_first_and_of_equals_who_needed_less():
    for name, accuracy, images in (
        ("third", 0.8, 320),
        ("second", 0.9, 1280),
        ("first", 0.9, 640),
    ):
        leaderboard._append(row(name=name, accuracy=accuracy, images=images))
    (rows,) = Leaderboard().ranked.values()
    assert [r.name for r in rows] == ["first", "second", "third"]
    text = repr(Leaderboard())
    assert "\x1b" not in text
    assert text.index("first") < text.index("second") < text.index("third")


def test_rows_on_other_doodles_are_kept_apart():
    other = "a sample of Quick, Draw! doodles: fish, zebra"
    held_out = doodles.held_out_digest(other)
    leaderboard._append(row(name="here", accuracy=0.99))
    leaderboard._append(row(name="there", data=other, held_out=held_out))
    board = Leaderboard()
    assert {name: [r.name for r in rows] for name, rows in board.ranked.items()} == {
        row().data: ["here"],
        other: ["there"],
    }
    assert board.best.name == "there"  # of those who competed last


@pytest.mark.parametrize(
    ("accuracy", "met"),
    [(leaderboard.GOAL_ACCURACY, True), (leaderboard.GOAL_ACCURACY - 0.001, False)],
)
def test_the_goal_is_accuracy_with_the_budget_used_up(accuracy, met):
    leaderboard._append(row(accuracy=accuracy, images=leaderboard.BUDGET))
    assert Leaderboard().best.meets_goal == met
    assert ("not yet" in repr(Leaderboard())) != met


def test_who_trained_on_more_than_the_budget_is_not_ranked():
    leaderboard._append(row(accuracy=1.0, images=leaderboard.BUDGET + 1))
    board = Leaderboard()
    assert board.best is None
    assert not board.rows[0].meets_goal
    assert leaderboard.OVER_BUDGET in repr(board)


def test_nobody_yet():
    assert Leaderboard().best is None
    assert "Nobody" in repr(Leaderboard())
    assert "Nobody" in Leaderboard()._repr_html_()


def test_names_are_text_not_html():
    leaderboard._append(row(name="<script>"))
    assert "&lt;script&gt;" in Leaderboard()._repr_html_()


@pytest.mark.parametrize(
    "change",
    [
        {"name": " "},
        {"devices": 0},
        {"images": 0},
        {"seconds": 0},
        {"seconds": float("nan")},
    ],
)
def test_what_can_not_be_a_score_is_refused(dataset, change):
    arguments = {"devices": 1, "images": 640, "seconds": 1.0, "name": "x"} | change
    with pytest.raises(CourseError, match="this can't be a score"):
        score(Knows(dataset, 0), dataset, **arguments)
    assert leaderboard.read() == []


def test_only_rank_0_writes(dataset, monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    assert score(Knows(dataset, 0), dataset, 2, 640, 1.0, "rank 1") is None
    assert not leaderboard.path().exists()


def test_a_file_that_is_no_leaderboard_is_named():
    leaderboard._append(row())
    file = leaderboard.path()
    file.write_text(file.read_text() + "me,very good,10\n")
    with pytest.raises(CourseError, match=r"line 3 of logs/leaderboard.csv is no row"):
        Leaderboard()


APPEND = """\
import sys
from utils.training import leaderboard
for n in range(20):
    row = leaderboard.Row(sys.argv[1] + str(n), 0.5, 1, 9, 1.0, "x", "y", "")
    leaderboard._append(row)
"""


def test_no_row_is_lost_when_several_write_at_once_and_readers_see_whole_files():
    processes = [
        subprocess.Popen([sys.executable, "-c", APPEND, letter]) for letter in "abcd"
    ]
    try:
        counts = []
        while any(process.poll() is None for process in processes):
            counts.append(len(leaderboard.read()))
        assert counts == sorted(counts)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0] * 4
    names = sorted(entry.name for entry in leaderboard.read())
    assert names == sorted(f"{letter}{n}" for letter in "abcd" for n in range(20))
    assert not list(leaderboard.path().parent.glob(files.HALVES))
