"""The checks of exercises/scaled.py are right: the three tables of
tests/test_checks.py, run on workers with a machine each.
"""

import textwrap
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

from utils import exercises, judge, lab, steps

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

EXERCISE = exercises.SCALED
SOURCE = EXERCISE.source.read_text()
STEPS = 4


@dataclass(frozen=True)
class Program:
    name: str
    text: str
    worlds: tuple[str, ...] = ("machine", "two machines")
    caught: str = ""


def table(kind: str) -> list[Program]:
    path = Path(__file__).with_name(f"{kind}_scaled_programs.toml")
    return [program(row) for row in tomllib.loads(path.read_text())["program"]]


def program(row: dict) -> Program:
    text = steps.render(SOURCE, STEPS)
    for old, new in row["edits"]:
        assert old in text, f"no program has {old!r}"
        text = text.replace(old, new)
    if row.get("in_a_function"):
        text = f"def main():\n{textwrap.indent(text, '    ')}\n\nmain()\n"
    # Two workers show all but a number that happens to be two.
    worlds = tuple(row.get("worlds", ["two machines"]))
    return Program(row["name"], text, worlds, row.get("caught", ""))


WRONG, RIGHT = table("wrong"), table("right")
TRIANGLE = [
    Program(f"after step {n}", steps.render(SOURCE, n).replace("TODO: ", ""))
    for n in range(STEPS + 1)
]


def name_of(program: Program) -> str:
    return f"{program.caught}: {program.name}" if program.caught else program.name


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
        jobs.append(lab.Job(str(path), program.worlds, EXERCISE.options))
    (folder / "seen").mkdir()
    lab.perform(folder / "seen", jobs)
    return {
        program: judge.read(folder / "seen" / str(number))
        for number, program in enumerate(wanted)
    }


@given(WRONG)
def test_a_wrong_program_is_caught_by_the_right_check(program, observed):
    step = int(program.caught[5])
    found = EXERCISE.judge(step, observed[program])
    assert (found.id, found.ok) == (program.caught, False), found
    if not found.id.endswith(("crashed", "deadlock")):
        earlier = [EXERCISE.judge(k, observed[program]) for k in range(1, step)]
        assert [v for v in earlier if not v.ok] == []


@given(RIGHT)
def test_a_program_that_is_right_in_another_way_passes(program, observed):
    verdicts = [EXERCISE.judge(step, observed[program]) for step in EXERCISE.steps]
    assert [v for v in verdicts if not v.ok] == []


@given(TRIANGLE)
def test_check_k_passes_after_step_n_just_if_k_is_not_above_n(program, observed):
    n = TRIANGLE.index(program)
    passed = {k for k in EXERCISE.steps if EXERCISE.judge(k, observed[program]).ok}
    assert passed == set(range(1, n + 1))


def test_the_tables_are_large_enough():
    """Five wrong programs for each step, seven right ones; none of them twice."""
    for step in EXERCISE.steps:
        assert sum(p.caught.startswith(f"step-{step}.") for p in WRONG) >= 5
    assert len(RIGHT) >= 7
    assert len({p.text for p in WRONG + RIGHT}) == len(WRONG) + len(RIGHT)
