"""Pages for people, as HTML: one per learner, and one for the class.

What learners wrote, and what their programs printed, is hostile until it is escaped.
That is the rule here, not something to remember: whatever a template prints is made
visible and escaped, unless it is Markup, which only this module makes. The pages need
no script and no other file, and their policy forbids both.
"""

import base64
import difflib
import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from distcheck.parts import Part, called, title
from distcheck.verdict import NOT_CHECKED, RIGHT, UNDECIDED, WRONG
from utils.grading import gradebook
from utils.grading.gradebook import Grade
from utils.grading.submissions import REFUSED, visible
from utils.lessons import hints, markup, work

TEMPLATES = Path(__file__).with_name("templates")

FIRST_LINES, LAST_LINES, LINE_CHARACTERS = 20, 60, 300
MOST_COMPARED = 1_000  # lines of a program; difflib's time grows with their square

# Of a state or a status, how its word looks; what is not here is still open.
_LOOKS = {
    **dict.fromkeys([RIGHT, gradebook.OK], "right"),
    **dict.fromkeys([WRONG, gradebook.CRASHED, gradebook.HUNG, REFUSED], "wrong"),
    **dict.fromkeys([UNDECIDED, gradebook.GRADER_ERROR], "unknown"),
}

# The table of a class is wide enough as it is.
_SHORT = {NOT_CHECKED: "not yet", UNDECIDED: "unknown"}

# `code` that stands by itself: other backticks mean nothing.
_CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")


class Row(NamedTuple):
    """A line of a comparison; `what` says in words how its sides differ."""

    what: str
    left_line: int | None = None
    left: str = ""
    right_line: int | None = None
    right: str = ""


class PageError(Exception):
    """The page of a learner can't be made. grade: of whom."""

    def __init__(self, grade: Grade, error: Exception):
        super().__init__(f"{type(error).__name__}: {error}")
        self.grade = grade


def pages(
    grades: Sequence[Grade], exercise: str, version: str, compared: bool = True
) -> dict[str, str]:
    """All pages: path below the folder of the grading -> text. Raises PageError.

    compared: is each program shown beside the solution?
    """
    nudges = hints.of(exercise)

    def hint(verdict) -> str | None:
        general = nudges.get(verdict.part)
        return hints.about(verdict.id, exercise) or (general and general[0])

    parts = tuple(grades[0].worth)
    course_text = solution(exercise, parts[-1])
    style = (TEMPLATES / "style.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    html = Environment(
        loader=FileSystemLoader(TEMPLATES),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
        autoescape=True,
        finalize=_seen,
    )
    html.globals |= {
        "RIGHT": RIGHT,
        "WRONG": WRONG,
        "NOT_CHECKED": NOT_CHECKED,
        "exercise": exercise,
        "last": called(parts[-1]),
        "compared": compared,
        "version": version,
        "hint": hint,
        "title": title,
        "points": lambda value: "unknown" if value is None else gradebook.number(value),
        "look": lambda word: _LOOKS.get(word, "open"),
        "sentence": _sentence,
        "cut": cut,
        "file": Markup(f"{exercise}.py"),
        "command": Markup(f"course check --script {exercise}.py"),
        "style": Markup(style),
        "policy": f"default-src 'none'; style-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'",
        "prose": _prose,
    }
    page = html.get_template("report.html")

    texts = {"index.html": html.get_template("index.html").render(_class(grades))}
    for grade in grades:
        try:
            texts[f"reports/{grade.slug}.html"] = page.render(
                _facts(grade, course_text)
            )
        except Exception as error:
            raise PageError(grade, error) from error
    return texts


def _facts(grade: Grade, course_text: str) -> dict:
    """What the page of a learner shows."""
    handed_in = None if grade.program is None else _text(grade.program)
    comparable = handed_in is not None and _comparable(handed_in)
    return {
        "grade": grade,
        "line": lambda n: _line(handed_in, n),
        "remark": lambda part: work.remark(handed_in or "", (part,)),
        "rows": compare(handed_in, course_text) if comparable else None,
    }


def solution(exercise: str, last: Part) -> str:
    """The course's program after one of its parts. Raises UserError."""
    source = markup.source_of(exercise)
    # The file's own name, in its first lines, is not a difference.
    return markup.program(source, last, markup.exercise_of(source))


def cut(log: str) -> str:
    """The first and the last lines of `log`, long ones cut as well."""
    lines = log.replace("\r\n", "\n").rstrip("\n").split("\n")
    left_out = len(lines) - FIRST_LINES - LAST_LINES
    if left_out > 1:
        note = f"[{left_out} lines left out]"
        lines = [*lines[:FIRST_LINES], note, *lines[-LAST_LINES:]]
    return "\n".join(map(_short, lines))


def compare(left: str, right: str, context: int = 3) -> list[Row]:
    """Two programs side by side: what differs, and `context` lines around it."""
    a, b = left.splitlines(), right.splitlines()
    rows: list[Row] = []
    matcher = difflib.SequenceMatcher(None, a, b, autojunk=False)
    for group in matcher.get_grouped_opcodes(context):
        if rows or group[0][1] or group[0][3]:
            rows.append(Row("skip"))
        for tag, a_from, a_to, b_from, b_to in group:
            sides = itertools.zip_longest(range(a_from, a_to), range(b_from, b_to))
            for i, j in sides:
                if tag == "equal":
                    what = ""
                elif i is None:
                    what = "only the course's"
                else:
                    what = "only handed in" if j is None else "changed"
                left_cell = (None, "") if i is None else (i + 1, _short(a[i]))
                right_cell = (None, "") if j is None else (j + 1, _short(b[j]))
                rows.append(Row(what, *left_cell, *right_cell))
    return rows


def _class(grades: Sequence[Grade]) -> dict:
    """What the page of the class shows."""
    statuses = Counter(grade.status for grade in grades)
    right = Counter(
        verdict.part for grade in grades for verdict in grade.verdicts if verdict.ok
    )
    grades_by_finding: dict[str, list[Grade]] = {}
    for grade in grades:
        for finding in dict.fromkeys(grade.findings):
            grades_by_finding.setdefault(finding, []).append(grade)
    return {
        "grades": grades,
        "parts": list(grades[0].worth),
        "short": _SHORT,
        "counts": [(s, statuses[s]) for s in gradebook.STATUSES if statuses[s]],
        "right": right,
        "findings": sorted(
            grades_by_finding.items(), key=lambda item: (-len(item[1]), item[0])
        ),
    }


# -------------------------------------------------------------- texts


def _text(program: str) -> str:
    """A program as it is shown: its lines are those that Python counts."""
    return visible(re.sub(r"\r\n?", "\n", program.removeprefix("\ufeff")), "\n\t")


def _comparable(program: str) -> bool:
    return program.count("\n") < MOST_COMPARED and len(program) < 100 * MOST_COMPARED


def _line(program: str | None, number: int) -> str:
    lines = (program or "").split("\n")
    return _short(lines[number - 1].strip()) if 0 < number <= len(lines) else ""


def _short(line: str) -> str:
    return line if len(line) <= LINE_CHARACTERS else f"{line[:LINE_CHARACTERS]} [...]"


def _sentence(text: str) -> str:
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


# -------------------------------------------------------------- HTML


def _seen(value):
    """What Jinja calls on all that a template prints, before it escapes it."""
    if isinstance(value, Markup):
        return value
    if value is None:
        return ""
    return visible(value, "\n\t") if isinstance(value, str) else value


def _prose(text: str) -> Markup:
    """A sentence, its `code` marked up."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(_seen(text)))))
