"""Is a part right? Have the learner's program judged, and tell what to do next.

`report_on` is `course check`. Who calls whom, until there is a verdict:

    Exercise.judge       what can be seen in the text, `_static_verdicts`; if more is
                         needed, it has the program observed in the parts' scenarios
    Exercise.observe     has the lab do it, by `lab.perform`, and returns its runs
    Exercise.verdicts    what the runs say of each part
    Check.verdict        looks for what is said before any judge; calls the judge
    the part's judge     returns, or raises what it has found, as a Problem
"""

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from distcheck import errors, files, lab
from distcheck.judges.runs import Run
from distcheck.parts import Part, called, finding, title
from distcheck.show import Code, Page, Table
from distcheck.verdict import NOT_CHECKED, RIGHT, UNDECIDED, WRONG, Verdict
from utils.checking import exercises
from utils.lessons import hints, outline, progress, work
from utils.running import explain


@dataclass(frozen=True, repr=False)
class Report(Page):
    """The verdicts of a check; shows itself as a table, with what to do next.

    script: the program, as a person would type it. exercise: its name. hint: what helps
    with the first part that is wrong. diff: from a right program to the course's, "" if
    there is no difference; None where a part is not right, where later parts, which
    were not asked for, are done as well, and would fill it, and where the course's
    program was kept back.
    """

    script: str
    exercise: str
    verdicts: list[Verdict]
    seconds: float
    hint: str = ""
    diff: str | None = None
    remark: str = ""

    @property
    def ok(self) -> bool:
        return all(verdict.ok for verdict in self.verdicts)

    @property
    def undecided(self) -> bool:
        """Could some part not be checked, and none was found wrong?"""
        states = {verdict.state for verdict in self.verdicts}
        return UNDECIDED in states and WRONG not in states

    @property
    def wrong(self) -> Verdict | None:
        """The first verdict that is not right."""
        return next((verdict for verdict in self.verdicts if not verdict.ok), None)

    def as_json(self) -> dict:
        """The same as plain values."""
        return {
            "script": self.script,
            "ok": self.ok,
            "verdicts": [verdict.as_json() for verdict in self.verdicts],
            "seconds": round(self.seconds, 1),
            "remark": self.remark,
        }

    def rows(self) -> list[tuple[str, str]]:
        """The table: one row for each part, then what is said about a wrong one."""
        rows = [(title(v.part), v.state) for v in self.verdicts]
        wrong = self.wrong
        if wrong is None and len(rows) == 1:
            rows.append(("Seen", self.verdicts[0].seen))
        if wrong is not None:
            place = f"{self.script}, line {wrong.line}" if wrong.line else self.script
            rows += [
                ("Expected", wrong.expected),
                ("Seen", wrong.seen),
                ("Where", f"{place} ({wrong.id})"),
            ]
            if wrong.evidence:
                rows.append(("Evidence", "\n".join(wrong.evidence)))
            if known := explain.known("\n".join((wrong.seen, *wrong.evidence))):
                rows.append(("What to do", known))
            if self.hint:
                rows.append(("Hint", self.hint))
        if self.remark:
            rows.append(("Remark", self.remark))
        return rows

    @property
    def _option(self) -> str:
        """What tells commands which exercise is meant."""
        first = self.exercise == outline.FIRST
        return "" if first else f" --exercise {self.exercise}"

    def _closing(self) -> str:
        last = self.verdicts[-1].part
        took = f"Checked in {self.seconds:.1f} s. "
        if self.undecided and not self.hint:
            return took
        if self.wrong is not None:
            part = self.wrong.part
            return (
                f"{took}`course hint {part}{self._option}`, or "
                f"`{hints.call(part, self.exercise)}`, says more each time."
            )
        if self.diff is None:
            return took
        if not self.diff:
            return f"{took}There is no difference from the course's program."
        return (
            f"{took}Below is how your program differs from the course's (`course diff "
            f"{last}{self._option}`), which is one right way, not the only one."
        )

    @property
    def parts(self) -> list[str | Table | Code]:
        parts = [Table(None, self.rows()), self._closing()]
        if self.ok and self.diff:
            parts.append(Code(self.diff, "diff", summary="What differs"))
        return parts


def check(
    part: Part | None = None,
    exercise: str | None = None,
    script: str | os.PathLike | None = None,
) -> None:
    """Show whether a part of the program is right, such as step 3 or task "B"; all
    parts if none is named.

    exercise: such as "mirrored"; default: see `exercises.find`. script: default the
    learner's own program. Raises StepMissing after the table if a part is wrong, and
    UserError if it could not be checked.
    """
    from IPython.display import DisplayHandle

    handle = DisplayHandle()
    handle.display({"text/plain": "Running your program ..."}, raw=True)
    report = report_on(part, exercise, script)
    handle.update(report)
    wrong = report.wrong
    if report.undecided:
        raise errors.UserError(
            f"{called(wrong.part)} could not be checked: {wrong.seen}"
        )
    if wrong is not None:
        raise work.StepMissing(
            f"{called(wrong.part)} is not right yet. Change {report.script}, save it, "
            "and run this cell again."
        )


def report_on(
    part: Part | None = None,
    exercise: str | None = None,
    script: str | os.PathLike | None = None,
    perform: Callable = lab.perform,
) -> Report:
    """Check a part, or all, of which the report tells until the first that is not
    right; of the learner's own program, note the progress.

    part: as it may be typed, "b" for "B". perform: what has the program run, see
    `lab.perform`. Raises UserError for a part or a program that there isn't, or when
    the check itself fails.
    """
    chosen = exercises.find(exercise, script)
    if part is not None:
        part = outline.exercise(chosen.name).part(part)
    own_program = chosen.program
    program = program_of(chosen, script)
    started = time.monotonic()
    wanted = chosen.parts if part is None else (part,)
    with files.scratch() as place:

        def observe(scenarios: tuple[str, ...]) -> dict[str, Run]:
            return chosen.observe(
                program.resolve(), scenarios, place.resolve(), perform
            )

        verdicts = chosen.judge(program.read_bytes(), wanted, observe)
    ordered = stop_at_the_first([verdicts[n] for n in wanted])
    hint, diff = "", None
    wrong = next((verdict for verdict in ordered if not verdict.ok), None)
    is_own = program.resolve() == own_program.resolve()
    if is_own:
        progress.note(chosen.name, ordered)
    if wrong is not None:
        hint = hints.about(wrong.id, chosen.name) or ""
        if not hint and wrong.state == WRONG:  # nobody knows better
            before = progress.hints_shown(chosen.name, wrong.part) if is_own else 0
            level = max(1, before)
            if is_own:
                progress.show_hint(chosen.name, wrong.part, level)
            hint = hints.of(chosen.name)[wrong.part][level - 1]
    hint = " ".join(hint.split())  # tables break lines themselves
    if wrong is None:
        last = ordered[-1].part
        later = chosen.parts[chosen.parts.index(last) + 1 :]
        if set(later) <= work.missing_parts(program).keys():
            with contextlib.suppress(work.KeptBack):
                diff = work.yours_and_ours(last, program, chosen.name)
    remark = ""
    if wrong is None or not wrong.id.endswith((".syntax", ".todo")):
        told = 1 + chosen.parts.index((wrong or ordered[-1]).part)
        remark = work.remark(program.read_text("utf-8"), chosen.parts[:told])
    shown, seconds = files.shown(program), time.monotonic() - started
    return Report(shown, chosen.name, ordered, seconds, hint, diff, remark)


def program_of(
    exercise: exercises.Exercise, script: str | os.PathLike | None = None
) -> Path:
    """The program that is checked: `script`, or else the learner's own.

    Raises UserError if there is none.
    """
    program = Path(script or exercise.program)
    if not program.is_file():
        raise errors.UserError(f"there is no program {files.shown(program)}.")
    return program


def stop_at_the_first(verdicts: list[Verdict]) -> list[Verdict]:
    """The same, but nothing is said of the parts after the first that is not right."""
    result = []
    stopped = False
    for verdict in verdicts:
        if stopped:
            verdict = Verdict(
                verdict.part,
                finding(verdict.part, "not-checked"),
                NOT_CHECKED,
                verdict.expected,
                "An earlier step or task is not right yet.",
            )
        result.append(verdict)
        stopped = stopped or verdict.state != RIGHT
    return result
