"""The leaderboard: it tests models itself, and puts the best first."""

import subprocess
import sys

import numpy as np
import pytest
from test_data import alone  # noqa: F401

from distcheck import files
from distcheck.errors import UserError
from utils.training import doodles, leaderboard
from utils.training.leaderboard import score

PAIR = ("apple", "fish")


@pytest.fixture(scope="module")
def dataset():
    return doodles.load("sample", 20, PAIR)


@pytest.fixture(autouse=True)
def empty_leaderboard(alone, own_course, monkeypatch):  # noqa: F811
    monkeypatch.setattr(doodles, "PLACES", ())


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


def enter(name="me", accuracy=0.5, images=640, data="ten classes"):
    leaderboard._append(name, accuracy, 2, images, 10.0, data, "2026-01-01 00:00:00")


def test_a_score_is_computed_here_printed_and_entered(dataset, capsys):
    assert score(Knows(dataset, 20), dataset, 2, 640, 12.5, "mine, all mine") == 0.9
    assert "mine, all mine: 90.0% of 200 held-out doodles" in capsys.readouterr().out
    assert score(Knows(dataset, 50), dataset, 1, 640, 3, "worse") == 0.75
    first, second = leaderboard.read().drop(columns="when").itertuples(index=False)
    assert first == ("mine, all mine", 0.9, 2, 640, 12.5, dataset.name)
    assert second == ("worse", 0.75, 1, 640, 3, dataset.name)


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


def test_the_best_come_first_by_data_and_those_over_the_budget_last():
    goal, budget = leaderboard.GOAL_ACCURACY, leaderboard.BUDGET
    enter("too long", 1.0, budget + 1)
    enter("elsewhere", 0.99, data="two classes")
    enter("missed", goal - 0.001, budget)
    enter("just met", goal, budget)
    enter("after more images", 0.9, 1280)
    enter("the best", 0.9, 640)
    board = leaderboard.ranked()
    assert list(zip(board["name"], board["goal"], strict=True)) == [
        ("the best", "met"),
        ("after more images", "met"),
        ("just met", "met"),
        ("missed", "not yet"),
        ("too long", "over the budget"),
        ("elsewhere", "met"),
    ]


def test_nobody_yet():
    assert leaderboard.ranked().empty


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
    with pytest.raises(UserError, match="this can't be a score"):
        score(Knows(dataset, 0), dataset, **arguments)
    assert leaderboard.read().empty


def test_only_rank_0_writes(dataset, monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    assert score(Knows(dataset, 0), dataset, 2, 640, 1.0, "rank 1") is None
    assert not leaderboard.path().exists()


@pytest.mark.parametrize("broken", ["me,very good,10\n", "me,0.5\n", 9 * "x," + "\n"])
def test_a_file_that_is_no_leaderboard_is_named(broken):
    enter()
    with leaderboard.path().open("a") as file:
        file.write(broken)
    with pytest.raises(UserError, match=r"logs/leaderboard.csv is no leaderboard"):
        leaderboard.ranked()


def test_a_file_without_the_columns_is_named():
    leaderboard.path().parent.mkdir()
    leaderboard.path().write_text("who,what\n")
    with pytest.raises(UserError, match=r"is no leaderboard.*accuracy"):
        leaderboard.read()


def test_rows_of_an_earlier_version_are_kept():
    leaderboard.path().parent.mkdir()
    header = "name,accuracy,devices,images,seconds,data,held_out,when"
    leaderboard.path().write_text(f"{header}\nold,0.8,1,9,1.0,x,digest,y\n")
    enter("new")
    assert list(leaderboard.read()["name"]) == ["old", "new"]


APPEND = """\
import sys
from utils.training import leaderboard
for n in range(20):
    leaderboard._append(sys.argv[1] + str(n), 0.5, 1, 9, 1.0, "x", "y")
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
    names = sorted(leaderboard.read()["name"])
    assert names == sorted(f"{letter}{n}" for letter in "abcd" for n in range(20))
    assert not list(leaderboard.path().parent.glob(files.HALVES))
