"""The checks of the six steps are right: three tables of programs (tests/programs.py),
run for real under mpirun.
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

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

EXERCISE = exercises.find("fashion_mnist")
BLOCKS = """\
        x = conv_block(x, filters)
        x = conv_block(x, filters)
"""
# The steps don't depend on the network: a small one is built in no time.
FINISHED = rendered(EXERCISE, 6).replace(BLOCKS, "        x = cbr(x, filters)\n")
assert BLOCKS not in FINISHED


def wrong(row: dict) -> Program:
    step = int(row["caught"][len("step-")])
    worlds = EXERCISE.worlds([step])
    return Program(
        EXERCISE.name,
        row["name"],
        edited(FINISHED, row),
        worlds,
        row["caught"],
        row.get("says", ""),
        unjudged=(5,) if "two" in worlds else EXERCISE.steps,
        ends_early=row.get("ends_early", False),
    )


def right(row: dict) -> Program:
    worlds = tuple(row.get("worlds", ["two"]))
    return Program(EXERCISE.name, row["name"], edited(FINISHED, row), worlds)


WRONG = [wrong(row) for row in table("wrong_programs")["program"]]
RIGHT = [right(row) for row in table("right_programs")["program"]]
EVERYWHERE = ("two", "three", "one")
TRIANGLE = [
    Program(EXERCISE.name, f"after step {n}", rendered(EXERCISE, n), EVERYWHERE, done=n)
    for n in range(7)
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
    assert {world.outcome for world in observed[program].values()} == {lab.ENDED}


@given(TRIANGLE)
def test_check_k_passes_after_step_n_just_if_k_is_not_above_n(program, observed):
    assert passed(program, observed[program]) == set(range(1, program.done + 1))


def test_the_tables_are_large_enough():
    assert_large_enough(WRONG, RIGHT, per_step=6, most=12)
