"""The checks of the programs with tf.distribute are right: the three tables of
tests/test_checks.py, for two exercises more, run with two real replicas each.
"""

import textwrap
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

from utils import exercises, judge, lab, steps

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

CHOSEN = (exercises.MIRRORED, exercises.CUSTOM_LOOP)
STEPS = 4


@dataclass(frozen=True)
class Program:
    exercise: str
    name: str
    text: str
    caught: str = ""
    done: int = STEPS


def rendered(exercise: exercises.Exercise, step: int) -> str:
    return steps.render(exercise.source.read_text(), step).replace("TODO: ", "")


def table(kind: str) -> list[Program]:
    path = Path(__file__).with_name(f"{kind}_replica_programs.toml")
    rows = tomllib.loads(path.read_text())
    return [
        program(exercise, row) for exercise in CHOSEN for row in rows[exercise.name]
    ]


def program(exercise: exercises.Exercise, row: dict) -> Program:
    text = rendered(exercise, STEPS)
    for old, new in row["edits"]:
        assert old in text, f"no program has {old!r}"
        text = text.replace(old, new)
    if row.get("in_a_function"):
        text = f"def main():\n{textwrap.indent(text, '    ')}\n\nmain()\n"
    return Program(exercise.name, row["name"], text, row.get("caught", ""))


WRONG, RIGHT = table("wrong"), table("right")
TRIANGLE = [
    Program(exercise.name, f"after step {n}", rendered(exercise, n), done=n)
    for exercise in CHOSEN
    for n in range(STEPS + 1)
]


def name_of(program: Program) -> str:
    return f"{program.exercise} {program.caught}: {program.name}"


def given(programs: list[Program]):
    return pytest.mark.parametrize("program", programs, ids=name_of)


@pytest.fixture(scope="module")
def observed(tmp_path_factory, request):
    """What each program did; only those run that a selected test asks for."""
    folder = tmp_path_factory.mktemp("programs")
    wanted = []
    for item in request.session.items:
        program = getattr(item, "callspec", None) and item.callspec.params.get(
            "program"
        )
        if item.path == request.path and program and program not in wanted:
            wanted.append(program)
    jobs = []
    for number, program in enumerate(wanted):
        path = folder / f"program_{number}.py"
        path.write_text(program.text)
        options = exercises.EXERCISES[program.exercise].options
        jobs.append(lab.Job(str(path), ("replicas",), options))
    # All are compared with the same program on one device.
    loop = exercises.CUSTOM_LOOP
    jobs.append(lab.Job("", ("reference",), loop.options, str(folder / "alone.py")))
    (folder / "alone.py").write_text(rendered(loop, 0))
    (folder / "seen").mkdir()
    lab.perform(folder / "seen", jobs)
    alone = judge.read(folder / "seen" / str(len(wanted)))
    return {
        program: judge.read(folder / "seen" / str(number)) | alone
        for number, program in enumerate(wanted)
    }


def verdict(program: Program, step: int, observed):
    return exercises.EXERCISES[program.exercise].judge(step, observed[program])


@given(WRONG)
def test_a_wrong_program_is_caught_by_the_right_check(program, observed):
    step = int(program.caught[5])
    found = verdict(program, step, observed)
    assert (found.id, found.ok) == (program.caught, False), found
    if not program.caught.endswith("crashed"):
        earlier = [verdict(program, k, observed) for k in range(1, step)]
        assert [v for v in earlier if not v.ok] == []


@given(RIGHT)
def test_a_program_that_is_right_in_another_way_passes(program, observed):
    verdicts = [verdict(program, k, observed) for k in range(1, STEPS + 1)]
    assert [v for v in verdicts if not v.ok] == []


@given(TRIANGLE)
def test_check_k_passes_after_step_n_just_if_k_is_not_above_n(program, observed):
    passed = {k for k in range(1, STEPS + 1) if verdict(program, k, observed).ok}
    assert passed == set(range(1, program.done + 1))


def test_the_tables_are_large_enough():
    """Four wrong programs for each step, five right ones; none of them twice."""
    for exercise in CHOSEN:
        for step in exercise.steps:
            caught = [p.caught for p in WRONG if p.exercise == exercise.name]
            assert sum(c.startswith(f"step-{step}.") for c in caught) >= 4
        assert sum(p.exercise == exercise.name for p in RIGHT) >= 5
    assert len({p.text for p in WRONG + RIGHT}) == len(WRONG) + len(RIGHT)
