"""The checks of the programs with tf.distribute are right: three tables of programs
(tests/programs.py) for two exercises, run with two real replicas each.
"""

import pytest
from programs import (
    Program,
    assert_caught,
    assert_large_enough,
    edited,
    given,
    observe,
    passed,
    rendered,
    table,
)

from utils.checking import exercises, lab

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

CHOSEN = (exercises.find("mirrored"), exercises.find("custom_loop"))
WORLDS = ("replicas",)


def programs(kind: str) -> list[Program]:
    rows = table(f"{kind}_replica_programs")
    return [made(exercise, row) for exercise in CHOSEN for row in rows[exercise.name]]


def made(exercise: exercises.Exercise, row: dict) -> Program:
    caught = row.get("caught", "")
    return Program(
        exercise.name,
        row["name"],
        edited(rendered(exercise, 4), row),
        WORLDS,
        caught,
        ends_early=caught.endswith("crashed"),
    )


WRONG, RIGHT = programs("wrong"), programs("right")
TRIANGLE = [
    Program(exercise.name, f"after step {n}", rendered(exercise, n), WORLDS, done=n)
    for exercise in CHOSEN
    for n in range(5)
]


@pytest.fixture(scope="module")
def observed(tmp_path_factory, request):
    """What each program did, and the one on one device, with which all are compared."""
    folder = tmp_path_factory.mktemp("programs")
    alone, loop = folder / "alone.py", exercises.find("custom_loop")
    alone.write_text(rendered(loop, 0))
    job = lab.Job("", ("reference",), loop.options, str(alone))
    return observe(request, folder, job)


@given(WRONG)
def test_a_wrong_program_is_caught_by_the_right_check(program, observed):
    assert_caught(program, observed[program])


@given(RIGHT)
def test_a_program_that_is_right_in_another_way_passes(program, observed):
    assert passed(program, observed[program]) == set(program.its.steps)


@given(TRIANGLE)
def test_check_k_passes_after_step_n_just_if_k_is_not_above_n(program, observed):
    assert passed(program, observed[program]) == set(range(1, program.done + 1))


def test_the_tables_are_large_enough():
    assert_large_enough(WRONG, RIGHT, per_step=4, most=5)
