"""The learner's program against the course's: what is missing, what differs."""

import os
import time
from pathlib import Path

from distcheck import errors, files, parts
from distcheck.parts import Part, called, title
from distcheck.programs import parse_program
from distcheck.show import Code
from utils.base import course
from utils.base.texts import difference
from utils.lessons import markup, outline, progress
from utils.lessons.hints import call


class StepMissing(errors.UserError):
    """The learner's program still lacks a step, or a task, that is needed now."""


class KeptBack(errors.UserError):
    """This folder is a class's: it has the exercises, and not the answers."""


def need_answers(*sources: Path) -> None:
    """Go on only if these annotated sources say how their parts are done."""
    for source in sources:
        if not markup.has_answers(source):
            raise KeptBack(
                f"how the course does {markup.name_of(source)}.py is not in this "
                "folder: your instructor has it. `course check` and `course hint` work."
            )


def generate(check: bool = False, start_over: bool = False) -> list[Path]:
    """Write everything that is generated; return the paths that were out of date.

    With `check`, nothing is written. An exercise that is none of the renderings is
    somebody's work and is not overwritten: UserError, unless `start_over`, which
    first moves it aside.
    """
    stale = []
    for source in markup.sources():
        for path, text in markup.renderings(source).items():
            if path.exists() and path.read_text() == text:
                continue
            stale.append(path)
            if check:
                continue
            if path == markup.exercise_of(source) and path.exists():
                _keep_work(path, source, start_over)
            files.write_whole(path, text)
    return stale


def write_steps(folder: str | os.PathLike, exercise: str | None = None) -> list[Path]:
    """Write the program after each part of an exercise, by default of all, into a
    folder; return their paths, as one would type them here, in the order of the parts.

    Raises UserError, and writes nothing, where `folder` holds something else by one
    of their names.
    """
    folder = Path(folder).resolve()
    sources = [markup.source_of(exercise)] if exercise else markup.sources()
    need_answers(*sources)
    wanted: dict[Path, str] = {}
    for source in sources:
        wanted |= markup.stages(source, folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise errors.UserError(
            f"the folder {files.shown(folder)} can't be made: {error.strerror}. Name "
            "another one."
        ) from None
    in_the_way = [path for path, text in wanted.items() if _holds_other(path, text)]
    if in_the_way:
        raise errors.UserError(
            f"{', '.join(map(files.shown, in_the_way))} would be overwritten, so "
            "nothing was written. Name another folder, or move that away."
        )
    for path, text in wanted.items():
        files.write_whole(path, text)
    return [Path(files.shown(path)) for path in wanted]


def _holds_other(path: Path, text: str) -> bool:
    same = path.is_file() and path.read_bytes() == text.encode()
    return os.path.lexists(path) and not same


def _keep_work(exercise: Path, source: Path, start_over: bool) -> None:
    parts_of_it = (0, *markup.parts_of(source.read_text()))
    if exercise.read_text() in [
        markup.program(source, part, exercise) for part in parts_of_it
    ]:
        return
    if not start_over:
        raise errors.UserError(
            f"{files.shown(exercise)} holds work of yours, so it was left as it is. "
            "`course steps --start-over` moves it aside and begins afresh."
        )
    stamp = time.strftime("%Y-%m-%d_%H-%M-%S")
    kept = exercise.with_name(f"{exercise.stem}_kept_{stamp}.py")
    exercise.rename(kept)
    errors.notice(f"your {exercise.name} is kept as {files.shown(kept)}")


def _program_of(exercise: str) -> Path:
    return course.root() / "exercises" / f"{exercise}.py"


def _exercise(script: str | os.PathLike | None) -> Path:
    return Path(script or _program_of("fashion_mnist"))


def missing_parts(script: str | os.PathLike | None = None) -> dict[Part, list[int]]:
    """Parts still marked `TODO: ...` in a program: part -> its line numbers.

    `script`: default the learner's `exercises/fashion_mnist.py`. Raises UserError
    if it is missing or is not Python.
    """
    path = _exercise(script)
    parse_program(path)
    return todo_lines(path.read_text(encoding="utf-8"))


def todo_lines(text: str) -> dict[Part, list[int]]:
    """Parts marked `TODO: Step N` or `TODO: Task X` in a program's text: part -> its
    line numbers."""
    lines_of: dict[Part, list[int]] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        todo = markup.TODO.match(line)
        if todo:
            lines_of.setdefault(parts.of(*todo.groups()), []).append(number)
    return {part: lines_of[part] for part in sorted(lines_of, key=parts.number)}


def remark(text: str, parts_to_look_at: tuple[Part, ...]) -> str:
    """A sentence on which of these parts a program still marks as to be done; "" if it
    marks none."""
    lines_of = todo_lines(text)
    left = [
        f"line {lines_of[part][0]} still says `TODO: {title(part)}`"
        for part in parts_to_look_at
        if part in lines_of
    ]
    sentence = f"{', '.join(left)}."
    return sentence[0].upper() + sentence[1:] if left else ""


def need_steps(n: int) -> None:
    """Go on only if no `TODO: Step 1` ... `TODO: Step n` is left in the learner's
    program; one of a step that the last check found right doesn't count.

    Raises StepMissing, which says what to do, where; UserError for a program that
    is missing or is not Python.
    """
    path, right = _exercise(None), progress.found_right(outline.FIRST)
    for step, lines in missing_parts(path).items():
        if isinstance(step, int) and step <= n and step not in right:
            where = f"line{'s' * (len(lines) > 1)} {', '.join(map(str, lines))}"
            raise StepMissing(
                f"step {step} is still to do: {files.shown(path)} says "
                f"`TODO: Step {step}` in {where}. Write the code below it, take the "
                "word TODO away, save the file, and run this cell again. "
                f"`{call(step, path.stem)}` helps; `check({step})` says whether it is "
                "right."
            )
    which = "Step 1 is" if n == 1 else f"Steps 1 to {n} are"
    print(f"{which} done in {files.shown(path)}.")


def yours_and_ours(
    part: Part, script: str | os.PathLike | None = None, exercise: str | None = None
) -> str:
    """The diff from a learner's program to the course's after one of its parts.

    exercise: which of the course's programs; default, the one with the same name.
    Raises UserError when there is no such part or program, and KeptBack where the
    course's is not for the reader.
    """
    path = _exercise(script) if script or not exercise else _program_of(exercise)
    parse_program(path)
    source = markup.source_of(exercise or path.stem)
    part = outline.exercise(markup.name_of(source)).part(part)
    need_answers(source)
    # The file's own name, in its first lines, is not a difference.
    ours = markup.program(source, part, markup.exercise_of(source))
    return difference(path.read_text(), ours, "yours", f"the course's, {called(part)}")


def excerpt(
    first: str, last: str | None, script: str | os.PathLike | None = None
) -> Code:
    """A part of a program, for reading in a notebook.

    first, last: how its first line, and the first line after it, begin; with None for
    the second, the part goes on to the program's end. Raises UserError when the
    program has no such lines.
    """
    path = _exercise(script)
    parse_program(path)
    lines = path.read_text().splitlines()
    places = [
        next((n for n, line in enumerate(lines) if line.startswith(begin)), None)
        for begin in (first, last or first)
    ]
    if None in places:
        raise errors.UserError(
            f"{files.shown(path)} has no part from `{first}` to `{last}`."
        )
    begin, end = places
    part = lines[begin:end] if last else lines[begin:]
    return Code("\n".join(part).rstrip(), "python")


def what_changed(part: Part, program: str = "fashion_mnist") -> Code:
    """Show what a part changes in the program, as a colored diff (for notebooks);
    where the answers were kept back, only that."""
    source = markup.source_of(program)
    try:
        need_answers(source)
    except KeptBack as kept:
        return Code(f"# {kept}", "text")
    text = source.read_text()
    part = outline.exercise(program).part(part)
    before = markup.render(text, parts.number(part) - 1)
    after = markup.render(text, part)
    names = (f"before {called(part)}", f"after {called(part)}")
    return Code(difference(before, after, *names), "diff")
