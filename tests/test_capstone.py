"""The programs of the capstone: they train, keep to their time, and are scored."""

import ast
import dataclasses

import pytest

from utils.base import course
from utils.running import launch
from utils.training import doodles, leaderboard

pytestmark = pytest.mark.slow

STARTER = course.PACKAGE_ROOT / "exercises" / "doodles.py"
KERAS = course.PACKAGE_ROOT / "solutions" / "doodles_keras.py"
LOOP = course.PACKAGE_ROOT / "solutions" / "doodles_loop.py"
# The time is up after the first step, and there are epochs that must not begin.
HURRY = {"data": "sample", "seed": 1, "epochs": 3, "train_images": 320, "seconds": 0.01}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The three programs, and the leaderboard that they have written, in a course of
    its own."""
    folder = tmp_path_factory.mktemp("course")
    for name in ("notebooks", "exercises"):
        (folder / name).mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.delenv("COURSE_DATA", raising=False)
        limits = {"quiet": True, "time_limit": 110}
        by_program = {
            "starter": launch.run(
                STARTER, workers=1, **limits, **HURRY | {"seconds": 60}
            ),
            "keras": launch.run(KERAS, workers=2, **limits, **HURRY),
            "loop": launch.run(LOOP, workers=1, replicas=2, **limits, **HURRY),
        }
        yield by_program, leaderboard.Leaderboard()


def test_each_program_enters_one_row_on_held_out_doodles(runs):
    _, board = runs
    rows = [dataclasses.astuple(row) for row in board.rows]
    assert [(name, workers) for name, _, _, workers, *_ in rows] == [
        ("the starter", 1),
        ("Horovod, model.fit", 2),
        ("MirroredStrategy, own loop", 2),
    ]
    assert board.others == {}
    assert sorted(board.ranked[doodles.SAMPLE], key=board.rows.index) == board.rows
    for row in board.rows:
        assert row.seconds > 0
        assert 0 < row.accuracy < 0.9


def test_the_history_has_a_row_an_epoch_and_a_clock(runs):
    by_program, _ = runs
    assert len(by_program["starter"].history) == 3
    for run in by_program.values():
        assert {"epoch", "loss", "val_accuracy", "seconds"} <= set(run.history.columns)
        assert run.history["seconds"].is_monotonic_increasing


@pytest.mark.parametrize("name", ["keras", "loop"])
def test_nobody_goes_on_when_the_time_is_up(runs, name):
    by_program, board = runs
    assert len(by_program[name].history) == 1
    (row,) = (
        r
        for r in board.rows
        if r.workers == 2 and (r.name[0] == "H") == (name == "keras")
    )
    assert row.seconds == pytest.approx(by_program[name].history["seconds"].iloc[-1])


def test_the_runs_say_that_the_doodles_are_a_sample(runs):
    for run in runs[0].values():
        assert "not all that there are, as chosen" in "".join(run.notices)
        assert f"320 training images from {doodles.SAMPLE}" in run.log.read_text()


def test_the_starter_states_the_goal_and_tells_nobody_what_to_do():
    source = STARTER.read_text()
    goal = ast.get_docstring(ast.parse(source))
    assert f"{leaderboard.GOAL_ACCURACY:.0%}".replace("%", " %") in goal
    assert f"at most {leaderboard.GOAL_SECONDS:.0f} seconds" in " ".join(goal.split())
    assert "TODO" not in source
