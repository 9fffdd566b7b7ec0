"""The checks of exercises/survive.py are right: three tables of programs
(tests/programs.py), run in two lives and with a worker that seems to die.
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

EXERCISE = exercises.find("survive")
STEPS = len(EXERCISE.steps)
WORLDS = EXERCISE.worlds(EXERCISE.steps)


def made(row: dict) -> Program:
    caught = row.get("caught", "")
    step = int(caught[len("step-")]) if caught else STEPS
    checked = range(1, step + 1)
    if caught and step == STEPS:  # it has a world of its own
        checked = [step]
    return Program(
        EXERCISE.name,
        row["name"],
        edited(rendered(EXERCISE, STEPS), row),
        EXERCISE.worlds(checked),
        caught,
        unjudged=tuple(set(EXERCISE.steps) - set(checked)),
        ends_early=caught.startswith("step-3"),
    )


WRONG = [made(row) for row in table("wrong_survive_programs")["program"]]
RIGHT = [made(row) for row in table("right_survive_programs")["program"]]
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
