"""The programs that learners write, and how each of their parts is judged.

First by what can be seen at once: is the file Python, and was anything done? Then
the program runs on the workers of a lab (distcheck.lab), as its file is, though some of
what it computes and sees is changed on purpose (distcheck.recorder.interventions); and
judges (distcheck.judges and utils.checking.judges) compare what they did.
"""

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from distcheck import lab, programs
from distcheck.judges import steps  # noqa: F401 (it registers their judges)
from distcheck.judges.registry import registered
from distcheck.judges.runs import Run, in_line, read
from distcheck.judges.verdicts import Check, comes_to_its_end
from distcheck.parts import Part, finding, number, title
from distcheck.scenarios import SCENARIOS
from distcheck.verdict import WRONG, Verdict
from utils.base import course
from utils.checking import (
    images,
    judges,  # noqa: F401 (it registers the other exercises' judges)
)
from utils.lessons import outline, work
from utils.lessons.markup import render

IMAGES = images.__name__  # the module of those that programs are given


class Stopped(Exception):
    """A program was ended, or is not to be judged, for what it did. Raised where the
    machine is protected from it, see `utils.grading.examine`."""

    def __init__(self, status: str, reason: str):
        super().__init__(reason)
        self.status, self.reason = status, reason


@dataclass(frozen=True)
class Exercise:
    """An exercise with checks.

    name: of the program, without .py. checks: of each of its parts, in their order.
    options: what the program is run with.
    """

    name: str
    checks: dict[Part, Check]
    options: tuple[str, ...]

    @classmethod
    def of(cls, facts: outline.Exercise) -> "Exercise":
        """An exercise of the outline, with the checks that its judges registered."""
        found = registered(facts.name)
        checks = {part: found.checks[part] for part in facts.parts}
        return cls(facts.name, checks, found.options)

    @property
    def parts(self) -> tuple[Part, ...]:
        return tuple(self.checks)

    @property
    def program(self) -> Path:
        """The learner's own."""
        return course.root() / "exercises" / f"{self.name}.py"

    @property
    def annotated(self) -> Path:
        """The solution, from which the program after each part is made."""
        return course.PACKAGE_ROOT / "solutions" / f"{self.name}_solution.py"

    def scenarios(self, parts: Iterable[Part]) -> tuple[str, ...]:
        """The scenarios that the checks of these parts need, none twice."""
        needed = {
            scenario for part in parts for scenario in self.checks[part].scenarios
        }
        if "two" in needed:  # it shows all that "pair" shows
            needed.discard("pair")
        return tuple(name for name in SCENARIOS if name in needed)

    def job(self, script: Path, scenarios: tuple[str, ...], folder: Path) -> lab.Job:
        """What the lab has to do with a program, to observe it in these scenarios.

        folder: where the program for one device is written, if a scenario runs that.
        """
        reference = ""
        if any(SCENARIOS[name].reference for name in scenarios):
            path = folder / "reference.py"
            path.write_text(render(self.annotated.read_text("utf-8"), 0))
            reference = str(path)
        return lab.Job(str(script), scenarios, IMAGES, self.options, reference)

    def judge(
        self,
        program: bytes,
        parts: tuple[Part, ...],
        observe: Callable[[tuple[str, ...]], dict[str, Run]],
    ) -> dict[Part, Verdict]:
        """The verdict on each of these parts of a program.

        observe: runs it in these scenarios, and returns what was recorded in each.
        Raises what that raises, except for Stopped.
        """
        verdicts = self._static_verdicts(program, parts)
        left = [part for part in parts if part not in verdicts]
        if left:
            try:
                verdicts |= self.verdicts(left, observe(self.scenarios(left)))
            except Stopped as stopped:
                verdicts |= {part: self._stopped(part, stopped) for part in left}
        return {part: verdicts[part] for part in parts}

    def observe(
        self,
        script: Path,
        scenarios: tuple[str, ...],
        folder: Path,
        perform: Callable,
    ) -> dict[str, Run]:
        """Run a program as it is, and return what was recorded, which is read from
        `folder` when a judge asks for it.

        perform: what is used like `lab.perform`. Raises UserError if the lab itself
        fails.
        """
        perform(folder, [self.job(script, scenarios, folder)])
        return read(folder / "0")

    def verdicts(
        self, parts: Iterable[Part], runs: dict[str, Run]
    ) -> dict[Part, Verdict]:
        """The verdict on each of these parts; the exercise's last one is right only
        if the program came to its end. An earlier part may be right in a program that
        crashes or hangs later on: what it lacks, such as a broadcast for which a rank
        waits, may be a part that is still to do."""
        verdicts = {part: self.checks[part].verdict(runs) for part in parts}
        last = self.parts[-1]
        if last in verdicts and all(verdict.ok for verdict in verdicts.values()):
            end = replace(self.checks[last], judge=comes_to_its_end)
            verdicts[last] = end.verdict(runs)
        return verdicts

    def _static_verdicts(
        self, program: bytes, parts: tuple[Part, ...]
    ) -> dict[Part, Verdict]:
        """The verdicts on the parts that needn't run to be found wrong: of all, if this
        is no Python; of those still to do, if this is the course's own code. All else
        is judged by what it does, whatever a TODO there says."""
        try:
            text = programs.as_python_reads_it(program)
            programs.syntax_tree(text, "program")
        except (SyntaxError, ValueError) as error:
            line = getattr(error, "lineno", None)
            reason = getattr(error, "msg", None) or str(error)
            seen = f"The file can't be read as Python: {reason}{in_line(line)}."
            expected = "A Python program in UTF-8."
            return {
                part: Verdict(
                    part, finding(part, "syntax"), WRONG, expected, seen, line
                )
                for part in parts
            }
        done, todo = self._done_in_ours(text), work.todo_lines(text)
        if done is None:
            return {}
        verdicts = {}
        for part in (part for part in parts if number(part) > done):
            # What the learner asked for comes first, then what it builds on.
            before = self.parts[: self.parts.index(part)]
            unfinished = [one for one in (part, *before) if one in todo]
            if unfinished:
                line = todo[unfinished[0]][0]
                verdicts[part] = Verdict(
                    part,
                    finding(part, "todo"),
                    WRONG,
                    self.checks[part].expected,
                    f"Line {line} still says `TODO: {title(unfinished[0])}`.",
                    line,
                )
        return verdicts

    def _done_in_ours(self, text: str) -> int | None:
        """How many parts are done, if this is still the course's own code after so many
        of them; None if somebody has changed it."""
        annotated, own = self.annotated.read_text("utf-8"), _code(text)
        for done in range(len(self.parts) + 1):
            if own == _code(render(annotated, done)):
                return done
        return None

    def _stopped(self, part: Part, stopped: Stopped) -> Verdict:
        reason = stopped.reason
        seen = f"{reason[0].upper()}{reason[1:]}."
        name = finding(part, stopped.status)
        return Verdict(part, name, WRONG, self.checks[part].expected, seen)


def _code(text: str) -> list[str]:
    """The lines of a program, without comments, and without its docstring, which has
    the path of the file."""
    tree = programs.syntax_tree(text, "program")
    begins = tree.body[0].end_lineno if ast.get_docstring(tree, clean=False) else 0
    lines = (line.rstrip() for line in text.split("\n")[begins:])
    return [line for line in lines if line and not line.lstrip().startswith("#")]


EXERCISES = {
    name: Exercise.of(facts) for name, facts in outline.read().exercises.items()
}


def find(name: str | None = None, script: str | Path | None = None) -> Exercise:
    """The exercise called `name`; without a name, the one that `script` is called
    after, or else `fashion_mnist`, the course's first.

    Raises UserError for a name that no exercise with checks has.
    """
    if name is None:
        stem = Path(script).stem if script else ""
        name = next((n for n in EXERCISES if stem.startswith(n)), outline.FIRST)
    return EXERCISES[outline.exercise(name).name]
