"""The programs that learners write, and how each of their steps is checked."""

import importlib
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from utils.base import course
from utils.checking import lab
from utils.checking.judges import judge
from utils.checking.judges.judge import Observed
from utils.lessons import outline
from utils.lessons.markup import render
from utils.lessons.verdict import Verdict


@dataclass(frozen=True)
class Exercise:
    """An exercise with checks.

    name: of the program, without .py. expected: for each step, what a right program
    does. judges: what raises a Problem otherwise. step_worlds: the worlds (of the lab)
    that the judge of each step looks at. options: what the program is run with.
    """

    name: str
    expected: dict[int, str]
    judges: dict[int, Callable[[dict[str, Observed]], None]]
    step_worlds: dict[int, tuple[str, ...]]
    options: tuple[str, ...]

    @classmethod
    def of(cls, facts: outline.Exercise) -> "Exercise":
        """An exercise of the outline, with the functions and numbers that it names."""
        judges = importlib.import_module(f"utils.checking.judges.{facts.judges}")
        names = vars(judges)
        steps = dict(enumerate(facts.steps, 1))
        return cls(
            facts.name,
            {number: step.expected.format_map(names) for number, step in steps.items()},
            {number: names[step.judge] for number, step in steps.items()},
            {number: step.worlds for number, step in steps.items()},
            tuple(shlex.split(facts.options.format_map(names))),
        )

    @property
    def steps(self) -> tuple[int, ...]:
        return tuple(self.expected)

    @property
    def program(self) -> Path:
        """The learner's own."""
        return course.root() / "exercises" / f"{self.name}.py"

    @property
    def source(self) -> Path:
        """The annotated one."""
        return course.PACKAGE_ROOT / "solutions" / f"{self.name}_solution.py"

    def worlds(self, steps: Iterable[int]) -> tuple[str, ...]:
        """The worlds that the checks of these steps need, none twice."""
        needed = {world for step in steps for world in self.step_worlds[step]}
        if "two" in needed:  # it counts as well
            needed.discard("pair")
        return tuple(name for name in lab.WORLDS if name in needed)

    def job(self, script: Path, worlds: tuple[str, ...], folder: Path) -> lab.Job:
        """What the lab has to do with a program, to observe it in these worlds.

        folder: where the program for one device is written, if a world runs that.
        """
        reference = ""
        if any(lab.WORLDS[name].reference for name in worlds):
            path = folder / "reference.py"
            path.write_text(render(self.source.read_text(encoding="utf-8"), 0))
            reference = str(path)
        return lab.Job(str(script), worlds, self.options, reference)

    def judge(self, step: int, worlds: dict[str, Observed]) -> Verdict:
        """The verdict on one step, from the worlds that it needs."""
        return judge.verdict(step, self.expected[step], self.judges[step], worlds)


EXERCISES = {
    name: Exercise.of(facts) for name, facts in outline.read().exercises.items()
}


def find(name: str | None = None, script: str | Path | None = None) -> Exercise:
    """The exercise called `name`; without a name, the one that `script` is called
    after, or else `fashion_mnist`, the course's first.

    Raises CourseError for a name that no exercise with checks has.
    """
    if name is None:
        stem = Path(script).stem if script else ""
        name = next((n for n in EXERCISES if stem.startswith(n)), outline.FIRST)
    return EXERCISES[outline.exercise(name).name]
