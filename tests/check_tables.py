"""The checks are right: three tables of programs for each exercise, run for real.

- the triangle: the check of part k passes on the program after part n just if k <= n;
- wrong programs: one fault each, caught by the right check with the right id;
- right programs: right in another way, and found right.

The TODO marks are taken out, so that only behaviour decides. A module of tests has all
of this by `from check_tables import *`, for its EXERCISES; it is run by one worker of
pytest, and imports TensorFlow once for all of its programs.
"""

import re
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import kept_evidence
import pytest
import tomli

from distcheck import lab
from distcheck.judges.runs import Run, read
from distcheck.parts import Part
from distcheck.scenarios import SCENARIOS
from utils.checking import exercises
from utils.lessons import markup, outline

__all__ = [
    "observed",
    "pytest_generate_tests",
    "pytestmark",
    "test_a_program_that_is_right_in_another_way_passes",
    "test_a_wrong_program_is_caught_by_the_right_check",
    "test_check_k_passes_after_step_n_just_if_k_is_not_above_n",
    "test_the_tables_are_large_enough",
]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@dataclass(frozen=True)
class Program:
    """scenarios: that it is run in; caught: the id of the verdict on a wrong one; says:
    words in it; done: parts done, of one in the triangle; ends_early: other checks,
    too, may see no more than that it crashed or hung."""

    exercise: str
    name: str
    text: str
    scenarios: tuple[str, ...]
    caught: str = ""
    says: str = ""
    done: int = 0
    ends_early: bool = False

    @property
    def its(self) -> exercises.Exercise:
        return exercises.EXERCISES[self.exercise]

    @property
    def part(self) -> Part:
        """The step or the task at which it is caught."""
        return outline.exercise(self.exercise).part(self.caught[len("step-")])

    @property
    def earlier(self) -> list[Part]:
        """The parts before that which can be judged: in a scenario of theirs, and by
        more of it than how many steps there were."""
        scenarios = {name for name in self.scenarios if not SCENARIOS[name].count_only}
        before = self.its.parts[: self.its.parts.index(self.part)]
        return [
            part for part in before if scenarios & {*self.its.checks[part].scenarios}
        ]

    @property
    def graphs_wanted(self) -> bool:
        """Have graphs to be built? A judge looks at them last: where it has found
        anything else, they would not be looked at."""
        return not self.caught or self.caught.endswith(".eager-only")


@dataclass(frozen=True)
class Tables:
    """The tables of an exercise.

    files: tests/wrong_FILES.toml and tests/right_FILES.toml hold the rows; by default
    they are called after the exercise. right_in, wrong_in: the scenarios that these
    are run in, where a row says nothing else; stages_in: those of the triangle. By
    default wrong ones are run in those of the check that is to catch them, all others
    in those of the exercise.
    """

    exercise: exercises.Exercise
    files: str = ""
    right_in: tuple[str, ...] = ()
    wrong_in: tuple[str, ...] = ()
    stages_in: tuple[str, ...] = ()

    @cached_property
    def finished(self) -> str:
        return rendered(self.exercise, len(self.exercise.parts))

    @cached_property
    def wrong(self) -> list[Program]:
        return [self._program(row) for row in self._rows("wrong")]

    @cached_property
    def right(self) -> list[Program]:
        return [self._program(row) for row in self._rows("right")]

    @cached_property
    def stage(self) -> list[Program]:
        name, done = self.exercise.name, range(len(self.exercise.parts) + 1)
        texts = [rendered(self.exercise, n) for n in done]
        return [
            Program(name, f"{n} done", text, self.stages_in or self._all_in, done=n)
            for n, text in zip(done, texts, strict=True)
        ]

    @property
    def _all_in(self) -> tuple[str, ...]:
        return self.exercise.scenarios(self.exercise.parts)

    def _rows(self, kind: str) -> list[dict]:
        files = self.files or f"{self.exercise.name}_programs"
        path = Path(__file__).with_name(f"{kind}_{files}.toml")
        rows = tomli.loads(path.read_text())
        return rows.get("program") or rows[self.exercise.name]

    def _program(self, row: dict) -> Program:
        text = edited(self.finished, row["edits"])
        if row.get("in_a_function"):
            text = f"def main():\n{textwrap.indent(text, '    ')}\n\nmain()\n"
        caught = row.get("caught", "")
        scenarios = self.right_in or self._all_in
        if caught:
            part = outline.exercise(self.exercise.name).part(caught[len("step-")])
            scenarios = self.wrong_in or self.exercise.scenarios([part])
            # Rows whose fault shows with other options alone say so.
            scenarios = tuple(name for name in scenarios if name != "other options")
        return Program(
            self.exercise.name,
            row["name"],
            text,
            tuple(row.get("scenarios", scenarios)),
            caught,
            row.get("says", ""),
            ends_early=row.get("ends_early", False),
        )


# Of fashion_mnist.py's network, all but the first convolution and the last layer: what
# the tables are about is the same without, and hundreds of programs build it.
BLOCKS = re.compile(r"^x = (conv_block|layers\.MaxPooling2D)\(.*\n", re.MULTILINE)


def rendered(exercise: exercises.Exercise, done: int) -> str:
    """The program when so many of its steps or tasks are done, without a sign of what
    is left to do, and with a shallow network."""
    text = markup.render(exercise.annotated.read_text(), done).replace("TODO: ", "")
    return BLOCKS.sub("", text)


def edited(text: str, edits: Iterable[tuple[str, str]]) -> str:
    """The program with other text in some places: (what stands there, the new one)."""
    for old, new in edits:
        assert old in text, f"no program has {old!r}"
        text = text.replace(old, new)
    return text


# Two workers show all but a number that happens to be two.
TWO_MACHINES = {"right_in": ("two machines",), "wrong_in": ("two machines",)}
REPLICAS = dict.fromkeys(("right_in", "wrong_in", "stages_in"), ("replicas",))
OTHERWISE: dict[str, dict] = {
    "fashion_mnist": {
        "files": "programs",
        "right_in": ("two", "other options", "opposite"),
    },
    "scaled": TWO_MACHINES | {"stages_in": ("machine", "two machines")},
    "from_files": {"stages_in": ("files", "uneven files", "rest of files")},
    "mirrored": {"files": "replica_programs"},
    "custom_loop": REPLICAS | {"files": "replica_programs"},
}
TABLES = {
    name: Tables(exercise, **OTHERWISE.get(name, {}))
    for name, exercise in exercises.EXERCISES.items()
}


def pytest_generate_tests(metafunc):
    """A test for each program of the tables of the module's EXERCISES."""
    for kind in {"wrong", "right", "stage"}.intersection(metafunc.fixturenames):
        tables = (getattr(TABLES[name], kind) for name in metafunc.module.EXERCISES)
        programs = [program for table in tables for program in table]
        metafunc.parametrize(kind, programs, ids=title)


def title(program: Program) -> str:
    caught = f" {program.caught}:" if program.caught else ""
    return f"{program.exercise}{caught} {program.name}"


def observe(
    request,
    folder: Path,
    alone: lab.Job | None = None,
    may_compute: float = lab.MAY_COMPUTE,
) -> dict:
    """What each program did, now or before (see kept_evidence.py), that a selected test
    of the module asks for: program -> its runs. alone: a job whose runs all of them
    get as well. may_compute: see `lab.prepare`."""
    programs = (
        value
        for item in request.session.items
        if item.path == request.path and hasattr(item, "callspec")
        for value in item.callspec.params.values()
        if isinstance(value, Program)
    )
    wanted = list(dict.fromkeys(programs))
    jobs = []
    for number, program in enumerate(wanted):
        path = folder / f"program_{number}.py"
        path.write_text(program.text)
        job = program.its.job(path, program.scenarios, folder)
        jobs.append(replace(job, graphs_wanted=program.graphs_wanted))
    places = kept_evidence.of_jobs(jobs + ([alone] if alone else []), may_compute)
    shared = read(places.pop()) if alone else {}
    return {
        program: read(place) | shared
        for program, place in zip(wanted, places, strict=True)
    }


@pytest.fixture(scope="module")
def observed(tmp_path_factory, request):
    """What each program did; and, where a check compares with it, what the loop on one
    device did."""
    folder = tmp_path_factory.mktemp("programs")
    loop = exercises.find("custom_loop")
    if loop.name not in request.module.EXERCISES:
        return observe(request, folder)
    alone = folder / "alone.py"
    alone.write_text(rendered(loop, 0))
    job = lab.Job("", ("reference",), exercises.IMAGES, loop.options, str(alone))
    return observe(request, folder, job)


def passed(program: Program, runs: dict[str, Run]) -> tuple[Part, ...]:
    """The parts whose checks find it right."""
    its = program.its
    return tuple(part for part in its.parts if its.verdicts([part], runs)[part].ok)


def where(runs: dict[str, Run]) -> str:
    """Where the evidence is, to be looked at, or removed and made anew."""
    return f"evidence: {[str(run.folder) for run in runs.values()]}"


def test_a_wrong_program_is_caught_by_the_right_check(wrong, observed):
    """With the right id, and by no check before that."""
    runs = observed[wrong]
    verdict = wrong.its.verdicts([wrong.part], runs)[wrong.part]
    assert (verdict.id, verdict.ok) == (wrong.caught, False), (verdict, where(runs))
    assert wrong.says in verdict.seen
    fine = {"right"}
    if wrong.ends_early:
        fine |= {"crashed", "deadlock"}
    earlier = [wrong.its.checks[part].verdict(runs) for part in wrong.earlier]
    assert [v for v in earlier if v.id.partition(".")[2] not in fine] == []


def test_a_program_that_is_right_in_another_way_passes(right, observed):
    runs = observed[right]
    assert passed(right, runs) == right.its.parts, where(runs)
    # Where there are too few GPUs, a right program fails.
    ended = [w.outcome for w in runs.values() if w.name != "crowded"]
    assert {*ended} == {lab.ENDED}, where(runs)


def test_check_k_passes_after_step_n_just_if_k_is_not_above_n(stage, observed):
    runs = observed[stage]
    assert passed(stage, runs) == stage.its.parts[: stage.done], where(runs)


# Of wrong programs for each part, and of right ones: those of the six steps are more.
LEAST, LEAST_OF_STEPS = (2, 4), (6, 12)


def test_the_tables_are_large_enough(request):
    for name in request.module.EXERCISES:
        tables = TABLES[name]
        wrong, right = LEAST_OF_STEPS if name == outline.FIRST else LEAST
        caught = [program.part for program in tables.wrong]
        for part in tables.exercise.parts:
            assert caught.count(part) >= wrong, (name, part)
        assert len(tables.right) >= right
        texts = [program.text for program in tables.wrong + tables.right]
        assert len({*texts}) == len(texts), name
