"""The checks of exercises/scaled.py are right: three tables of programs
(tests/programs.py), run on workers with a machine each.
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

from utils.checking import exercises

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

EXERCISE = exercises.find("scaled")
STEPS = len(EXERCISE.steps)


def made(row: dict) -> Program:
    caught = row.get("caught", "")
    # Two workers show all but a number that happens to be two.
    worlds = tuple(row.get("worlds", ["two machines"]))
    return Program(
        EXERCISE.name,
        row["name"],
        edited(rendered(EXERCISE, STEPS), row),
        worlds,
        caught,
        ends_early=caught.endswith(("crashed", "deadlock")),
    )


WRONG = [made(row) for row in table("wrong_scaled_programs")["program"]]
RIGHT = [made(row) for row in table("right_scaled_programs")["program"]]
WORLDS = ("machine", "two machines")
TRIANGLE = [
    Program(EXERCISE.name, f"after step {n}", rendered(EXERCISE, n), WORLDS, done=n)
    for n in range(STEPS + 1)
]


@pytest.fixture(scope="module")
def observed(tmp_path_factory, request):
    return observe(request, tmp_path_factory.mktemp("programs"))


@given(WRONG)
def test_a_wrong_program_is_caught_by_the_right_check(program, observed):
    assert_caught(program, observed[program])


@given(RIGHT)
def test_a_program_that_is_right_in_another_way_passes(program, observed):
    assert passed(program, observed[program]) == set(EXERCISE.steps)


@given(TRIANGLE)
def test_check_k_passes_after_step_n_just_if_k_is_not_above_n(program, observed):
    assert passed(program, observed[program]) == set(range(1, program.done + 1))


def test_the_tables_are_large_enough():
    assert_large_enough(WRONG, RIGHT, per_step=5, most=7)
