"""The programs that learners write, and how each of their steps is checked."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from utils.base import course
from utils.checking import lab
from utils.checking.judges import horovod as judge_horovod
from utils.checking.judges import judge
from utils.checking.judges import replicas as judge_replicas
from utils.checking.judges import scaled as judge_scaled
from utils.checking.judges import survive as judge_survive
from utils.checking.judges.judge import World
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
    judges: dict[int, Callable[[dict[str, World]], None]]
    step_worlds: dict[int, tuple[str, ...]]
    options: tuple[str, ...]

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

    def judge(self, step: int, worlds: dict[str, World]) -> Verdict:
        """The verdict on one step, from the worlds that it needs."""
        return judge.verdict(step, self.expected[step], self.judges[step], worlds)


HOROVOD = Exercise(
    "fashion_mnist",
    judge_horovod.EXPECTED,
    judge_horovod.JUDGES,
    judge_horovod.WORLDS,
    lab.OPTIONS,
)
MIRRORED = Exercise(
    "mirrored",
    judge_replicas.MIRRORED,
    judge_replicas.MIRRORED_JUDGES,
    dict.fromkeys(judge_replicas.MIRRORED, ("replicas",)),
    judge_replicas.MIRRORED_OPTIONS,
)
CUSTOM_LOOP = Exercise(
    "custom_loop",
    judge_replicas.LOOP,
    judge_replicas.LOOP_JUDGES,
    judge_replicas.LOOP_WORLDS,
    judge_replicas.LOOP_OPTIONS,
)
SCALED = Exercise(
    "scaled",
    judge_scaled.EXPECTED,
    judge_scaled.JUDGES,
    judge_scaled.WORLDS,
    judge_scaled.OPTIONS,
)
SURVIVE = Exercise(
    "survive",
    judge_survive.EXPECTED,
    judge_survive.JUDGES,
    judge_survive.WORLDS,
    judge_survive.OPTIONS,
)
EXERCISES = {one.name: one for one in (HOROVOD, SCALED, SURVIVE, MIRRORED, CUSTOM_LOOP)}


def find(name: str | None = None, script: str | Path | None = None) -> Exercise:
    """The exercise called `name`; without a name, the one that `script` is called
    after, or else `fashion_mnist`, the course's first.

    Raises CourseError for a name that no exercise with checks has.
    """
    if name is None:
        stem = Path(script).stem if script else ""
        name = next((n for n in EXERCISES if stem.startswith(n)), HOROVOD.name)
    if name not in EXERCISES:
        raise course.CourseError(
            f"there is no exercise `{name}` with checks: choose from "
            f"{', '.join(EXERCISES)}."
        )
    return EXERCISES[name]
