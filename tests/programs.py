"""What the tables of wrong and right programs share: how they are read, run, judged.

Of each exercise with checks there are three tables, run for real:

- the triangle: the check of step k passes on the program after step n just if k <= n;
- wrong programs: one fault each, caught by the right check with the right id;
- right programs: right in another way, and found right.

The TODO marks are taken out, so that only behaviour decides. TensorFlow is imported
once for all programs of a module.
"""

import textwrap
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from utils.checking import exercises, lab
from utils.checking.judges import judge
from utils.lessons import markup


@dataclass(frozen=True)
class Program:
    """worlds: that it is run in; caught: the id of the verdict on a wrong one; says:
    words in it; done: steps done, of one in the triangle; unjudged: checks that its
    worlds don't serve; ends_early: other checks, too, may see no more than that it
    crashed or hung."""

    exercise: str
    name: str
    text: str
    worlds: tuple[str, ...]
    caught: str = ""
    says: str = ""
    done: int = 0
    unjudged: tuple[int, ...] = ()
    ends_early: bool = False

    @property
    def its(self) -> exercises.Exercise:
        return exercises.EXERCISES[self.exercise]

    @property
    def step(self) -> int:
        """The step at which it is caught."""
        return int(self.caught[len("step-")])


def table(name: str) -> dict[str, list[dict]]:
    """The rows of tests/NAME.toml, by their heading."""
    return tomllib.loads(Path(__file__).with_name(f"{name}.toml").read_text())


def rendered(exercise: exercises.Exercise, step: int) -> str:
    """The program after a step, without a sign of what is left to do."""
    return markup.render(exercise.source.read_text(), step).replace("TODO: ", "")


def edited(text: str, row: dict) -> str:
    """The program that a row of a table makes of `text`."""
    for old, new in row["edits"]:
        assert old in text, f"no program has {old!r}"
        text = text.replace(old, new)
    if row.get("in_a_function"):
        text = f"def main():\n{textwrap.indent(text, '    ')}\n\nmain()\n"
    return text


def given(programs: Iterable[Program]):
    """Parametrises a test with `program`."""

    def name_of(program: Program) -> str:
        caught = f" {program.caught}:" if program.caught else ""
        return f"{program.exercise}{caught} {program.name}"

    return pytest.mark.parametrize("program", programs, ids=name_of)


def observe(
    request,
    folder: Path,
    alone: lab.Job | None = None,
    silence: float = lab.SILENCE,
) -> dict:
    """What each program did, that a selected test of the module asks for: program ->
    its worlds. alone: a job whose worlds all of them get as well. silence: after which
    one is hung (see `lab.prepare`)."""
    asked = (
        item.callspec.params.get("program")
        for item in request.session.items
        if item.path == request.path and hasattr(item, "callspec")
    )
    wanted = list(dict.fromkeys(program for program in asked if program))
    jobs = []
    for number, program in enumerate(wanted):
        path = folder / f"program_{number}.py"
        path.write_text(program.text)
        jobs.append(lab.Job(str(path), program.worlds, program.its.options))
    seen = folder / "seen"
    seen.mkdir()
    lab.perform(seen, jobs + ([alone] if alone else []), silence)
    shared = judge.read(seen / str(len(wanted))) if alone else {}
    return {
        program: judge.read(seen / str(number)) | shared
        for number, program in enumerate(wanted)
    }


def assert_caught(program: Program, worlds: dict[str, judge.World]) -> None:
    """The right check catches it, with the right id, and no check before that."""
    found = program.its.judge(program.step, worlds)
    assert (found.id, found.ok) == (program.caught, False), found
    assert program.says in found.seen
    earlier = [
        program.its.judge(step, worlds)
        for step in range(1, program.step)
        if step not in program.unjudged
    ]
    fine = {"right"} | (
        {judge.CRASHED, judge.DEADLOCK} if program.ends_early else set()
    )
    assert [v for v in earlier if v.id.partition(".")[2] not in fine] == []


def passed(program: Program, worlds: dict[str, judge.World]) -> set[int]:
    """The steps whose checks find it right."""
    return {step for step in program.its.steps if program.its.judge(step, worlds).ok}


def assert_large_enough(
    wrong: list[Program], right: list[Program], per_step: int, most: int
) -> None:
    """So many wrong programs for each step, so many right ones; none of them twice."""
    for name in {program.exercise for program in right}:
        caught = [p.step for p in wrong if p.exercise == name]
        for step in exercises.EXERCISES[name].steps:
            assert caught.count(step) >= per_step, (name, step)
        assert sum(p.exercise == name for p in right) >= most
    assert len({p.text for p in wrong + right}) == len(wrong) + len(right)
