"""The learner's program against the course's: what is missing, what differs."""

import os
import time
from pathlib import Path

from utils.base import course, files
from utils.base.programs import difference, parse_program
from utils.base.show import Coloured
from utils.lessons.hints import call
from utils.lessons.markup import TODO, count, render, renderings, sources


class StepMissing(course.CourseError):
    """The learner's program still lacks a step that is needed now."""


def generate(check: bool = False, start_over: bool = False) -> list[Path]:
    """Write everything that is generated; return the paths that were out of date.

    With `check`, nothing is written. An exercise that is none of the renderings is
    somebody's work and is not overwritten: CourseError, unless `start_over`, which
    first moves it aside.
    """
    stale = []
    for source in sources():
        wanted = renderings(source)
        exercise = next(iter(wanted))
        for path, text in wanted.items():
            if path.exists() and path.read_text() == text:
                continue
            stale.append(path)
            if check:
                continue
            if path == exercise and path.exists():
                _keep_work(path, source, start_over)
            files.write_whole(path, text)
    return stale


def _keep_work(exercise: Path, source: Path, start_over: bool) -> None:
    text = source.read_text()
    itself, own = f"solutions/{source.name}", f"exercises/{exercise.name}"
    known = [render(text, n).replace(itself, own) for n in range(count(text) + 1)]
    if exercise.read_text() in known:
        return
    if not start_over:
        raise course.CourseError(
            f"{course.shown(exercise)} holds work of yours, so it was left as it is. "
            "`course steps --start-over` moves it aside and begins afresh."
        )
    stamp = time.strftime("%Y-%m-%d_%H-%M-%S")
    kept = exercise.with_name(f"{exercise.stem}_kept_{stamp}.py")
    exercise.rename(kept)
    course.notice(f"your {exercise.name} is kept as {course.shown(kept)}")


def _own(exercise: str) -> Path:
    return course.root() / "exercises" / f"{exercise}.py"


def _exercise(script: str | os.PathLike | None) -> Path:
    return Path(script or _own("fashion_mnist"))


def missing_steps(script: str | os.PathLike | None = None) -> dict[int, list[int]]:
    """Steps still marked `TODO: Step N` in a program: step -> its line numbers.

    `script`: default the learner's `exercises/fashion_mnist.py`. Raises CourseError
    if it is missing or is not Python.
    """
    path = _exercise(script)
    parse_program(path)
    return todo_lines(path.read_text(encoding="utf-8"))


def todo_lines(text: str) -> dict[int, list[int]]:
    """Steps marked `TODO: Step N` in a program's text: step -> its line numbers."""
    found: dict[int, list[int]] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        todo = TODO.match(line)
        if todo:
            found.setdefault(int(todo[1]), []).append(number)
    return dict(sorted(found.items()))


def need_steps(n: int, script: str | os.PathLike | None = None) -> None:
    """Go on only if no `TODO: Step 1` ... `TODO: Step n` is left in the program.

    Raises StepMissing, which says what to do, where; CourseError for a program that
    is missing or is not Python.
    """
    path = _exercise(script)
    for step, lines in missing_steps(path).items():
        if step <= n:
            where = f"line{'s' * (len(lines) > 1)} {', '.join(map(str, lines))}"
            raise StepMissing(
                f"step {step} is still to do: {course.shown(path)} says "
                f"`TODO: Step {step}` in {where}. Write the code below it, take the "
                "word TODO away, save the file, and run this cell again. "
                f"`{call(step, path.stem)}` helps."
            )
    which = "Step 1 is" if n == 1 else f"Steps 1 to {n} are"
    print(f"{which} marked as done in {course.shown(path)}.")


def yours_and_ours(
    n: int, script: str | os.PathLike | None = None, exercise: str | None = None
) -> str:
    """The diff from a learner's program to the course's after step `n`.

    exercise: which of the course's programs; default, the one with the same name.
    Raises CourseError when there is no such step or program.
    """
    path = _exercise(script) if script or not exercise else _own(exercise)
    parse_program(path)
    name = exercise or path.stem
    source = course.root() / "solutions" / f"{name}_solution.py"
    if not source.exists():
        names = ", ".join(s.stem.removesuffix("_solution") for s in sources())
        raise course.CourseError(
            f"the course has no {name}.py to compare with; it has {names}."
        )
    text = source.read_text()
    if not 1 <= n <= count(text):
        raise course.CourseError(f"there is no step {n}: steps 1 to {count(text)} are.")
    # The file's own name, in its first lines, is not a difference.
    ours = render(text, n).replace(f"solutions/{source.name}", f"exercises/{name}.py")
    return difference(path.read_text(), ours, "yours", f"the course's, step {n}")


def excerpt(first: str, last: str, script: str | os.PathLike | None = None) -> Coloured:
    """A part of a program, for reading in a notebook.

    first, last: how its first line, and the first line after it, begin. Raises
    CourseError when the program has no such lines.
    """
    path = _exercise(script)
    parse_program(path)
    lines = path.read_text().splitlines()
    places = [
        next((n for n, line in enumerate(lines) if line.startswith(begin)), None)
        for begin in (first, last)
    ]
    if None in places:
        raise course.CourseError(
            f"{course.shown(path)} has no part from `{first}` to `{last}`."
        )
    return Coloured("\n".join(lines[slice(*places)]).rstrip(), "python")


def what_changed(n: int, program: str = "fashion_mnist") -> Coloured:
    """Show what step `n` changes in the program, as a coloured diff (for notebooks)."""
    source = course.root() / "solutions" / f"{program}_solution.py"
    text = source.read_text()
    before, after = render(text, n - 1), render(text, n)
    names = (f"after step {n - 1}" if n > 1 else "before step 1", f"after step {n}")
    return Coloured(difference(before, after, *names), "diff")
