"""The checks are right: three tables of programs, run for real under mpirun.

- the triangle: the check of step k passes on the program after step n just if k <= n;
- wrong_programs.toml: one fault each, caught by the right check with the right id;
- right_programs.toml: right in another way, and found right.

The TODO marks are taken out, so that only behaviour decides. TensorFlow is imported
once for all of them.
"""

import textwrap
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

from utils import course, exercises, judge, lab, steps

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

EXERCISE = exercises.HOROVOD
SOURCE = (course.PACKAGE_ROOT / "solutions/fashion_mnist_solution.py").read_text()
BLOCKS = """\
        x = conv_block(x, filters)
        x = conv_block(x, filters)
"""
# The steps don't depend on the network: a small one is built in no time.
FINISHED = steps.render(SOURCE, 6).replace(BLOCKS, "        x = cbr(x, filters)\n")
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Program:
    name: str
    text: str
    worlds: tuple[str, ...]
    caught: str = ""
    ends_early: bool = False


def edited(edits: list[list[str]]) -> str:
    text = FINISHED
    assert BLOCKS not in text
    for old, new in edits:
        assert old in text, f"no program has {old!r}"
        text = text.replace(old, new)
    return text


def table(name: str) -> list[dict]:
    with (HERE / f"{name}_programs.toml").open("rb") as file:
        return tomllib.load(file)["program"]


def wrong(row: dict) -> Program:
    worlds = EXERCISE.worlds([int(row["caught"][5])])
    text, early = edited(row["edits"]), row.get("ends_early", False)
    return Program(row["name"], text, worlds, row["caught"], early)


def right(row: dict) -> Program:
    text = edited(row["edits"])
    if row.get("in_a_function"):
        text = f"def main():\n{textwrap.indent(text, '    ')}\n\nmain()\n"
    return Program(row["name"], text, tuple(row.get("worlds", ["two"])))


WRONG = [wrong(row) for row in table("wrong")]
RIGHT = [right(row) for row in table("right")]
TRIANGLE = [
    Program(
        f"after step {n}",
        steps.render(SOURCE, n).replace("TODO: ", ""),
        ("two", "three", "one"),
    )
    for n in range(7)
]
NAME = pytest.mark.parametrize


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
        jobs.append(lab.Job(str(path), program.worlds))
    (folder / "seen").mkdir()
    lab.perform(folder / "seen", jobs)
    return {
        program: judge.read(folder / "seen" / str(number))
        for number, program in enumerate(wanted)
    }


def name_of(program: Program) -> str:
    return program.name


@NAME("program", WRONG, ids=[f"{p.caught}: {p.name}" for p in WRONG])
def test_a_wrong_program_is_caught_by_the_right_check(program, observed):
    step = int(program.caught[5])
    worlds = observed[program]
    verdict = EXERCISE.judge(step, worlds)
    assert verdict.id == program.caught, verdict
    assert not verdict.ok
    if "two" in worlds:
        earlier = [EXERCISE.judge(k, worlds) for k in range(1, step) if k != 5]
        wanted = ("right", "crashed") if program.ends_early else ("right",)
        assert all(v.id.partition(".")[2] in wanted for v in earlier), earlier


@NAME("program", RIGHT, ids=name_of)
def test_a_program_that_is_right_in_another_way_passes(program, observed):
    verdicts = [EXERCISE.judge(step, observed[program]) for step in EXERCISE.steps]
    assert [v for v in verdicts if not v.ok] == []


@NAME("program", TRIANGLE, ids=name_of)
def test_check_k_passes_after_step_n_just_if_k_is_not_above_n(program, observed):
    n = TRIANGLE.index(program)
    passed = {k for k in EXERCISE.steps if EXERCISE.judge(k, observed[program]).ok}
    assert passed == set(range(1, n + 1))


def test_the_tables_are_large_enough():
    """Six wrong programs for each step, twelve right ones; none of them twice."""
    for step in EXERCISE.steps:
        assert sum(p.caught.startswith(f"step-{step}.") for p in WRONG) >= 6
    assert len(RIGHT) >= 12
    assert len({p.text for p in WRONG + RIGHT}) == len(WRONG) + len(RIGHT)
