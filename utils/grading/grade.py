"""Grade a class: take in the submissions, examine each program once, write the results.

What an examination found is kept in `.cache/` in the folder of the results as soon as
it ends, under a hash of the program and of the checker. So a grading that was stopped
goes on where it was, and only what is new, or new to a changed checker, is run again;
to have it all run again, delete `.cache/*.json`. The results themselves are written
at the end, all of them: there is no half gradebook.
"""

import contextlib
import functools
import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

from filelock import FileLock

from distcheck import errors, files, supervise
from distcheck.parts import Part, number
from distcheck.verdict import Verdict
from utils.base import course, sources
from utils.grading import gradebook, report
from utils.grading.examine import examine
from utils.grading.examined import Examined
from utils.grading.gradebook import GRADER_ERROR, Grade
from utils.grading.submissions import Submission, collect, slugs
from utils.lessons import markup, outline

CACHE = ".cache"
MARKER = f"{CACHE}/grading"  # no .json: it is no examination
LEARNERS = "learners.csv"


# What runs a program and judges it, and what a program may import.
CHECKER = (
    *("utils.grading.examine", "utils.checking.judges", "utils.checking.recorders"),
    *("distcheck", "utils.base", "utils.training", "utils.running"),
)


def _checker_version() -> str:
    """A hash of all that decides how a program is judged."""
    lock = course.PACKAGE_ROOT / "requirements.lock"
    return sources.digest(CHECKER, lock)[:12]


VERSION = _checker_version()


def grade(
    submissions: Path,
    out: Path,
    exercise: str = "fashion_mnist",
    jobs: int = 1,
    anonymous: bool = False,
    compared: bool = True,
    examine: Callable[..., Examined] = examine,
    until: Part | None = None,
) -> list[Grade]:
    """Grade all of the folder `submissions`; write the results into the folder `out`.

    There are then `gradebook.csv` and `nbgrader.csv` (see utils.grading.gradebook),
    `index.html` on the class, and a page for each learner in `reports/`. With
    `anonymous`, ids stand for the learners, and `learners.csv` says whose they are.

    jobs: how many programs are examined at the same time, each in a thread; a single
        one is examined in the thread of the caller.
    compared: do pages show the program beside the solution? If not, learners who may
        hand in again can have them.
    examine: examines a program; default, utils.grading.examine.examine.
    until: the step or task that the class is at. Later ones are not looked at, and
        pages compare with the course's program after that one; default, the last.

    Raises UserError when a folder won't do or the exercise can't be graded. An error
    of `examine` is the grade of that program, a grader error, and nothing is raised.
    """
    facts = outline.exercise(exercise)
    worth = dict(facts.points)
    _same_parts(exercise, facts.parts)
    if until is not None:
        last = number(facts.part(until))
        worth = {part: worth[part] for part in worth if number(part) <= last}
        examine = functools.partial(examine, parts=tuple(worth))
    handed_in = _collect(submissions, out, exercise)
    _prepare(out, {"exercise": exercise, "anonymous": anonymous})

    names = {submission.learner: submission.learner for submission in handed_in}
    if anonymous:
        with FileLock(out / CACHE / "lock"):  # another grading may draw ids as well
            ids = gradebook.ids(names, out / LEARNERS)
            # Before anything is made of them: a grading that is stopped keeps them.
            files.write_whole(out / LEARNERS, gradebook.learners(ids), mode=0o600)
        names = {name: ids[name] for name in names}
    slug = slugs(names.values())

    examined = _examine_all(
        handed_in, out / CACHE, exercise, tuple(worth), jobs, examine
    )
    grades = []
    for submission in handed_in:
        name = names[submission.learner]
        examination = examined.get(submission.program)
        grades.append(
            _grade(submission, examination, name, slug[name], worth, anonymous)
        )
    # In the order of the ids, which tells nothing of the names, when anonymous.
    grades.sort(key=lambda grade: (grade.learner.casefold(), grade.learner))
    return _write_all(grades, out, exercise, compared)


def _same_parts(exercise: str, parts: tuple[Part, ...]) -> None:
    source = markup.source_of(exercise)
    own = markup.parts_of(source.read_text(encoding="utf-8"), source.name)
    if own != parts:
        raise errors.UserError(
            f"{files.shown(outline.FILE)} has {', '.join(map(str, parts))} for "
            f"{exercise}, whose parts are {', '.join(map(str, own))}. Say what each of "
            "them is worth."
        )


def _collect(folder: Path, out: Path, exercise: str) -> list[Submission]:
    inner, outer = folder.resolve(), out.resolve()
    if outer.is_relative_to(inner) or inner.is_relative_to(outer):
        raise errors.UserError(
            f"the results can't be written to {files.shown(out)}: that and the "
            f"submissions, {files.shown(folder)}, must not be one in the other. "
            "Name another folder."
        )
    return collect(folder, exercise)


def _prepare(out: Path, facts: dict) -> None:
    """Make `out` the folder of a grading, unless it is somebody else's."""
    folder = files.shown(out)
    if out.exists() and not out.is_dir():
        raise errors.UserError(f"{folder} is a file. Name a folder for the results.")
    marker = out / MARKER
    if marker.exists():
        try:
            former = json.loads(marker.read_text(encoding="utf-8"))
        except ValueError:
            former = None
        if former != facts:
            raise errors.UserError(
                f"{folder} holds another grading: of another exercise, or one with "
                "names where this is anonymous, or without. Name another folder."
            )
        return
    if out.exists() and any(path.name != CACHE for path in out.iterdir()):
        raise errors.UserError(
            f"{folder} holds files that are no grading; none of them was touched. "
            "Name a new folder, or an empty one."
        )
    marker.parent.mkdir(parents=True, exist_ok=True)
    files.write_whole(marker, json.dumps(facts))


# -------------------------------------------------------------- examination


def _examine_all(
    handed_in: list[Submission],
    cache: Path,
    exercise: str,
    parts: tuple[Part, ...],
    jobs: int,
    examine: Callable[[Path], Examined],
) -> dict[bytes, Examined]:
    """Program -> what examining it gave, now or before; the same program only once."""

    def examine_one(program: bytes) -> Examined:
        return _examine_one(program, exercise, examine)

    programs = dict.fromkeys(one.program for one in handed_in if one.program)
    kept = {p: _recall(_cached(cache, p, exercise, parts)) for p in programs}
    known = {program: found for program, found in kept.items() if found}
    new = [program for program in programs if program not in known]

    with _progress(len(new), len(known)) as advance, supervise.pool(jobs) as run:
        for program, examination in run(examine_one, new):
            # Here, not in the thread: a Ctrl-C may have ended the program that another
            # thread examines, and nothing is kept from then on.
            if examination.settled:
                cache_file = _cached(cache, program, exercise, parts)
                files.write_whole(cache_file, json.dumps(asdict(examination)))
            known[program] = examination
            advance(examination.status)
    return known


def _examine_one(program: bytes, exercise: str, examine) -> Examined:
    """Examine a program in a folder of its own, under a name that is nobody's."""
    with files.scratch() as folder:
        path = folder / f"{exercise}.py"
        path.write_bytes(program)
        try:
            examination = examine(path)
            return replace(examination, log=report.cut(examination.log))
        except Exception as error:  # whatever it is, the others are to be graded
            message = f"{type(error).__name__}: {error}".replace(str(folder), ".")
            reason = f"The grader failed, not the program: {message}"
            return Examined((), GRADER_ERROR, (), "", 0.0, reason)


def _cached(
    cache: Path, program: bytes, exercise: str, parts: tuple[Part, ...]
) -> Path:
    digest = hashlib.sha256(repr((program, VERSION, exercise, parts)).encode())
    return cache / f"{digest.hexdigest()}.json"


def _recall(path: Path) -> Examined | None:
    """What was kept, if it was and is whole."""
    try:
        return _from_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _from_json(data: dict) -> Examined:
    verdicts = tuple(
        Verdict(**verdict | {"evidence": tuple(verdict["evidence"])})
        for verdict in data["verdicts"]
    )
    isolation = tuple(data["isolation"])
    return Examined(**data | {"verdicts": verdicts, "isolation": isolation})


@contextlib.contextmanager
def _progress(count: int, known: int) -> Iterator[Callable[[str], None]]:
    """Show how many of `count` programs are examined; give what is to be called when
    one is. Says what to do when it is stopped."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    if known:
        console.print(f"{known} of {known + count} programs are known from before.")
    done = 0
    bar = Progress(
        TextColumn("{task.description}"),
        MofNCompleteColumn(),
        BarColumn(),
        TimeRemainingColumn(),
        TextColumn("left"),
        console=console,
        transient=True,
        disable=not console.is_terminal or not count,
    )

    def advance(status: str) -> None:
        nonlocal done
        done += 1
        bar.advance(task)
        if not console.is_terminal:
            console.print(f"examined {done} of {count}: {status}")

    try:
        with bar:
            task = bar.add_task("examined", total=count)
            yield advance
    except KeyboardInterrupt:
        console.print(
            f"Stopped after {done} of {count} programs. They are kept, and the former "
            "results, if any, are as they were: the same command goes on from here."
        )
        raise


# -------------------------------------------------------------- results


def _grade(
    submission: Submission,
    examination: Examined | None,
    name: str,
    slug: str,
    worth: dict[Part, float],
    anonymous: bool,
) -> Grade:
    if examination is None:
        # The names of files may be those of learners.
        names = () if anonymous else submission.files
        status, reason = submission.status, submission.problem
        return Grade(name, slug, status, worth, reason=reason, files=names)
    failed = examination.status == GRADER_ERROR
    return Grade(
        name,
        slug,
        examination.status,
        worth,
        verdicts=examination.verdicts,
        reason=examination.reason,
        program=submission.program.decode("utf-8"),
        isolation=examination.isolation,
        log=examination.log,
        seconds=None if failed else examination.seconds,
    )


def _write_all(
    grades: list[Grade], out: Path, exercise: str, compared: bool
) -> list[Grade]:
    """Write all results: first beside their places, then, in one go, into them.

    Gives the grades that were written: one that can't be shown is a grader error.
    """
    texts: dict[str, str] = {}
    while not texts:
        try:
            texts = report.pages(grades, exercise, VERSION, compared)
        except report.PageError as failed:
            # One learner's page, whatever is in it, is not to keep the class from
            # theirs; and what was kept of it is not to do so again.
            bad = failed.grade
            if bad.program is None:  # nothing of the learner's is on it
                raise
            kept = _cached(out / CACHE, bad.program.encode(), exercise, (*bad.worth,))
            kept.unlink(missing_ok=True)
            reason = f"The grader failed, not the program: {failed}"
            instead = Grade(bad.learner, bad.slug, GRADER_ERROR, bad.worth, (), reason)
            grades = [instead if grade is bad else grade for grade in grades]
    texts["nbgrader.csv"] = gradebook.nbgrader(grades, exercise)
    texts["gradebook.csv"] = gradebook.gradebook(grades, VERSION)
    (out / "reports").mkdir(exist_ok=True)
    with contextlib.ExitStack() as stack:
        for path, text in reversed(texts.items()):  # they are left in reverse again
            # Closed at once: there may be more of them than can be open.
            with stack.enter_context(files.whole(out / path)) as file:
                file.write(text.encode())

    pages = (out / "reports").glob("[!.]*")
    former_pages = {path.name for path in pages if f"reports/{path.name}" not in texts}
    if former_pages:
        errors.notice(
            f"nobody in this grading has these pages of a former one, which were left "
            f"in {files.shown(out / 'reports')}: {', '.join(sorted(former_pages))}"
        )
    return grades
