"""The programs of the capstone: they train, keep to their budget, and are scored."""

import ast

import numpy as np
import pytest
from processes import empty_course

from utils.base import course
from utils.running import launch
from utils.training import doodles, leaderboard

pytestmark = pytest.mark.slow

STARTER = course.PACKAGE_ROOT / "exercises" / "doodles.py"
KERAS = course.PACKAGE_ROOT / "solutions" / "doodles_keras.py"
LOOP = course.PACKAGE_ROOT / "solutions" / "doodles_loop.py"
# Room for two epochs of one device, or four of two, and for a part of another.
BUDGET = 700
# One replica with the whole batch of two takes as many steps.
ALONE = {"replicas": 1, "batch_size": 32, "images": 2 * 640, "name": ""}
FEW = {"data": "sample", "seed": 1, "train_images": 320, "images": BUDGET}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The three programs, and the leaderboard that they have written, in a course of
    its own."""
    folder = tmp_path_factory.mktemp("course")
    with empty_course(folder), pytest.MonkeyPatch.context() as patch:
        patch.delenv("COURSE_DATA", raising=False)
        limits = {"quiet": True, "time_limit": 300}
        by_program = {
            "starter": launch.run(STARTER, workers=1, **limits, **FEW),
            "keras": launch.run(KERAS, workers=2, **limits, **FEW),
            "loop": launch.run(LOOP, workers=1, replicas=2, **limits, **FEW),
            "one": launch.run(LOOP, workers=1, **limits, **FEW | ALONE),
        }
        yield by_program, leaderboard.read()


def test_each_program_enters_one_row(runs):
    _, board = runs
    assert list(zip(board["name"], board["devices"], strict=True)) == [
        ("the starter", 1),
        ("Horovod, model.fit", 2),
        ("MirroredStrategy, own loop", 2),
    ]
    assert set(board["data"]) == {doodles.SAMPLE}
    assert (board["seconds"] > 0).all()
    assert board["accuracy"].between(0, 0.9, inclusive="neither").all()


def test_the_history_has_a_row_an_epoch_and_a_clock(runs):
    by_program, _ = runs
    lengths = {name: len(run.history) for name, run in by_program.items()}
    assert lengths == {"starter": 2, "keras": 4, "loop": 4, "one": 4}
    columns = {"epoch", "loss", "val_accuracy", "images_per_second", "seconds"}
    for run in by_program.values():
        assert columns <= set(run.history.columns)
        assert run.history["seconds"].is_monotonic_increasing


def test_they_end_before_the_budget_does(runs):
    _, board = runs
    assert (board["images"] == 640).all()
    assert 640 <= BUDGET < 640 + 160  # another epoch of two devices


def test_one_device_and_two_take_the_same_steps_with_the_same_global_batch(runs):
    by_program, _ = runs
    one, two = (
        list(np.load(by_program[name].folder / "weights.npz").values())
        for name in ("one", "loop")
    )
    apart = max(np.abs(a - b).max() for a, b in zip(one, two, strict=True))
    assert apart < 1e-3, apart


def test_the_runs_say_that_the_doodles_are_a_sample(runs):
    for run in runs[0].values():
        assert "not all that there are, as chosen" in "".join(run.notices)
        assert f"320 training images from {doodles.SAMPLE}" in run.log.read_text()


def test_other_classes_may_be_named(own_course, monkeypatch):
    monkeypatch.delenv("COURSE_DATA", raising=False)
    pair = FEW | {"classes": "fish,zebra", "images": 320}
    launch.run(STARTER, workers=1, quiet=True, time_limit=300, **pair)
    (name,) = leaderboard.read()["data"]
    assert name == f"{doodles.SAMPLE}: fish, zebra"


def test_the_starter_states_the_goal_and_tells_nobody_what_to_do():
    source = STARTER.read_text()
    goal = ast.get_docstring(ast.parse(source))
    assert f"{leaderboard.GOAL_ACCURACY:.0%}".replace("%", " %") in goal
    assert f"at most {leaderboard.BUDGET:,} images" in " ".join(goal.split())
    assert "TODO" not in source
