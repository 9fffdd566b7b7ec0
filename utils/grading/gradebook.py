"""What a submission is worth, and the tables that say so: CSV, UTF-8, `,`, `\\n`.

`gradebook.csv` has one row per learner, with the columns

    learner          the name, or the id in an anonymous grading
    step_1 ...       points for each step, or task_A and so on for each task; empty when
                     nobody knows
    total, max       their sum, empty when one of them is; what there was to be had
    status           ok, wrong, crashed, hung, refused, missing or grader error
    findings         ids of what is wrong or could not be checked, with blanks between
    checker_version  of the checker, a hash: what judged alike has the same
    duration_s       seconds that running the program took, when it was run

`nbgrader.csv` has the columns that `nbgrader export` writes: assignment, duedate,
timestamp, student_id, last_name, first_name, email, raw_score,
late_submission_penalty, score, max_score. The learner is the student_id; both scores
are the total; what a folder of programs does not tell is empty, the penalty 0.

`learners.csv`, in an anonymous grading only, says which id is which learner. It is the
one file with names in it, unless a program holds its author's: keep it to yourself,
and with the others, so that the next grading gives the same ids.

Refused and missing programs get 0 points. What the grader or the machine failed to
find out gets none at all, neither 0 nor other.

Text is quoted, numbers are not. A cell that a spreadsheet could take for a formula
begins with an apostrophe.
"""

import csv
import io
import secrets
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from distcheck import errors, files
from distcheck.parts import Part, called
from distcheck.verdict import RIGHT, UNDECIDED, WRONG, Verdict
from utils.grading.submissions import MISSING, REFUSED

OK, CRASHED, HUNG, GRADER_ERROR = "ok", "crashed", "hung", "grader error"
STATUSES = (OK, WRONG, CRASHED, HUNG, REFUSED, MISSING, GRADER_ERROR)

_LEARNERS = ["id", "learner"]  # the columns of the table of ids

# With the apostrophe itself among them, no two texts become the same cell.
_FORMULA = tuple("=+-@\t\r\n'")


@dataclass(frozen=True)
class Grade:
    """What one learner gets, and why.

    learner, slug: the name to be shown, and the one for files; both made up in an
        anonymous grading.
    status: one of STATUSES.
    worth: what each step or task is worth, in order.
    verdicts: one for each of them, or none at all.
    reason: for a program that did not run to its end, a sentence.
    files: those that the reason is about.
    program: its text, if there is one.
    isolation, log, seconds: of its run, if there was one; the log is cut.
    """

    learner: str
    slug: str
    status: str
    worth: dict[Part, float]
    verdicts: tuple[Verdict, ...] = ()
    reason: str = ""
    files: tuple[str, ...] = ()
    program: str | None = None
    isolation: tuple[str, ...] = ()
    log: str = ""
    seconds: float | None = None

    @property
    def points(self) -> tuple[float | None, ...]:
        """For each step or task; None where nobody knows."""
        if self.status == GRADER_ERROR:
            return (None,) * len(self.worth)
        if self.status == REFUSED or not self.verdicts:
            return (0,) * len(self.worth)
        by_state = {RIGHT: 1, UNDECIDED: None}
        shares = [by_state.get(verdict.state, 0) for verdict in self.verdicts]
        return tuple(
            None if share is None else share * worth
            for share, worth in zip(shares, self.worth.values(), strict=True)
        )

    @property
    def total(self) -> float | None:
        """The sum of the points; None when some are not known."""
        return None if None in self.points else number(sum(self.points))

    @property
    def max(self) -> float:
        """What there was to be had."""
        return number(sum(self.worth.values()))

    @property
    def findings(self) -> tuple[str, ...]:
        """The ids of what is wrong or could not be checked."""
        reported = (WRONG, UNDECIDED)
        return tuple(
            verdict.id for verdict in self.verdicts if verdict.state in reported
        )

    def as_json(self) -> dict:
        """What the gradebook says, as plain values, and the learner's page."""
        return {
            "learner": self.learner,
            "status": self.status,
            "points": self.points,
            "total": self.total,
            "max": self.max,
            "findings": self.findings,
            "reason": self.reason,
            "page": f"reports/{self.slug}.html",
        }


def number(value: float) -> float:
    """`value` without the traces of binary fractions, and as an int if it is one."""
    value = round(value, 6)
    return int(value) if value == int(value) else value


def gradebook(grades: Sequence[Grade], version: str) -> str:
    """The text of `gradebook.csv`."""
    parts = [called(part).replace(" ", "_") for part in grades[0].worth]
    others = ["total", "max", "status", "findings", "checker_version", "duration_s"]
    return _csv(
        ["learner", *parts, *others],
        (
            [
                grade.learner,
                *grade.points,
                grade.total,
                grade.max,
                grade.status,
                " ".join(grade.findings),
                version,
                None if grade.seconds is None else round(grade.seconds, 1),
            ]
            for grade in grades
        ),
    )


def nbgrader(grades: Sequence[Grade], exercise: str) -> str:
    """The text of `nbgrader.csv`."""
    columns = "assignment duedate timestamp student_id last_name first_name email "
    columns += "raw_score late_submission_penalty score max_score"

    def row(grade: Grade) -> list:
        facts = {"assignment": exercise, "student_id": grade.learner}
        facts |= {"raw_score": grade.total, "late_submission_penalty": 0}
        facts |= {"score": grade.total, "max_score": grade.max}
        return [facts.get(column) for column in columns.split()]

    return _csv(columns.split(), map(row, grades))


def learners(ids: dict[str, str]) -> str:
    """The text of `learners.csv`, from learner -> id."""
    return _csv(_LEARNERS, ([ids[name], name] for name in sorted(ids)))


def ids(names: Iterable[str], path: Path) -> dict[str, str]:
    """Learner -> id: those in `path`, a former `learners.csv`, and new ones.

    An id is drawn, not computed: nobody can find the name by trying. Raises
    UserError when `path` is no such file.
    """
    known: dict[str, str] = {}
    if path.exists():
        try:
            text = path.read_text(encoding="utf-8-sig")
            header, *rows = csv.reader(io.StringIO(text), strict=True)
            known = {_uncell(learner): drawn for drawn, learner in rows}
            unique = len(set(known.values())) == len(rows)
            bad = header != _LEARNERS or not unique or not all(known.values())
        except (OSError, ValueError, csv.Error):
            bad = True
        if bad:
            raise errors.UserError(
                f"{files.shown(path)} can't be read as the table of ids that a former "
                "grading wrote, with the columns `id` and `learner`. Put the original "
                "back, or grade into a new folder, with new ids."
            )
    for name in names:
        while name not in known:
            drawn = f"learner-{secrets.token_hex(4)}"
            if drawn not in known.values():
                known[name] = drawn
    return known


def _cell(value: object) -> object:
    if isinstance(value, str):
        value = value.replace("\0", "\N{REPLACEMENT CHARACTER}")  # no CSV of 3.10's
        # Programs differ in whether they skip blanks, or read fullwidth forms as plain.
        plain = unicodedata.normalize("NFKC", value).lstrip(" ")
        return f"'{value}" if plain.startswith(_FORMULA) else value
    return number(value) if isinstance(value, float) else value


def _uncell(text: str) -> str:
    return text[1:] if text.startswith("'") else text


def _csv(columns: list[str], rows: Iterable[list]) -> str:
    text = io.StringIO()
    # With its quotes, a text with a semicolon stays one cell where `;` separates.
    writer = csv.writer(text, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return text.getvalue()
