"""From one annotated program to the exercise and the solutions after each step.

A step is a paragraph that begins with `# Step N: ...`; a blank line or a dedent ends
it. In it, `# was: ...` lines hold the code that the step replaces:

    # Step 2: Only the first worker speaks; N workers printing at once is unreadable.
    # was: verbose = 1
    verbose = 1 if hvd.rank() == 0 else 0

A step may have several paragraphs, in any order; the numbers run from 1 without a
gap. `render(source, n)` is the program as it stands after step n.
"""

import ast
import codecs
import difflib
import io
import os
import re
import threading
import time
import tokenize
from dataclasses import dataclass, field
from pathlib import Path

from utils import course
from utils.display import Coloured

_STEP = re.compile(r"(?P<indent> *)# Step (?P<number>\d+): (?P<text>\S.*)")
_NEARLY_A_STEP = re.compile(r"\s*#+\s*step\s*\d+", re.IGNORECASE)
_WAS = re.compile(r"(?P<indent>\s*)# was:(?: (?P<code>.*))?$")
_TODO = re.compile(r"\s*#+\s*TODO:?\s*Step\s*(\d+)", re.IGNORECASE)

HINT_LEVELS = ("Nudge", "Place", "Nearly the code")


class MarkupError(course.CourseError):
    """An annotated source breaks a rule of the markup; the message has the line."""


class StepMissing(course.CourseError):
    """The learner's program still lacks a step that is needed now."""


@dataclass
class _Paragraph:
    number: int
    indent: str
    text: list[str]
    line: int
    was: list[str] = field(default_factory=list)
    code: list[str] = field(default_factory=list)

    def render(self, done: bool) -> list[str]:
        todo = "" if done else "TODO: "
        first, *more = self.text
        lines = [f"{self.indent}# {todo}Step {self.number}: {first}"]
        lines += [f"{self.indent}# {line}" for line in more]
        return lines + (self.code if done else self.was)


def _parse(source: str, name: str) -> list[str | _Paragraph]:
    """Split into plain lines and step paragraphs. Raises MarkupError."""

    def wrong(line: int, what: str) -> MarkupError:
        return MarkupError(f"{name}, line {line}: {what}")

    parts: list[str | _Paragraph] = []
    current: _Paragraph | None = None
    for number, line in enumerate(source.splitlines(), start=1):
        if current and (not line.strip() or not line.startswith(current.indent)):
            _close(current, wrong)
            current = None
        step, was = _STEP.fullmatch(line), _WAS.fullmatch(line)
        if step and current:
            raise wrong(
                number,
                f"a step inside step {current.number}, which began in line "
                f"{current.line}; put a blank line before it.",
            )
        if step:
            current = _Paragraph(
                int(step["number"]), step["indent"], [step["text"]], number
            )
            parts.append(current)
        elif _TODO.match(line):
            raise wrong(number, "a TODO in an annotated source; write `# Step N:`.")
        elif _NEARLY_A_STEP.match(line):
            raise wrong(number, "a step begins with `# Step N: text`, exactly so.")
        elif was and not current:
            raise wrong(number, "`# was:` outside a step.")
        elif was and was["indent"] != current.indent:
            raise wrong(number, f"`# was:` is not indented as step {current.number}.")
        elif was and current.code:
            raise wrong(number, "`# was:` after the new code; it comes before it.")
        elif was:
            code = was["code"] or ""
            current.was.append(current.indent + code if code else "")
        elif current is None:
            parts.append(line)
        elif line.startswith(f"{current.indent}#") and not (current.code + current.was):
            current.text.append(line.strip().removeprefix("#").strip())
        elif not current.code and line[len(current.indent)] == " ":
            raise wrong(number, f"wrong indentation below step {current.number}.")
        else:
            current.code.append(line)
    if current:
        _close(current, wrong)

    numbers = sorted({part.number for part in parts if isinstance(part, _Paragraph)})
    for expected, number in enumerate(numbers, start=1):
        if number != expected:
            line = next(
                part.line
                for part in parts
                if isinstance(part, _Paragraph) and part.number == number
            )
            raise wrong(line, f"step {number} without a step {expected}.")
    return parts


def _close(paragraph: _Paragraph, wrong) -> None:
    if not paragraph.code:
        raise wrong(
            paragraph.line,
            f"step {paragraph.number} has no code of its own at its indentation.",
        )


def count(source: str, name: str = "source") -> int:
    """How many steps an annotated source has. Raises MarkupError."""
    parts = _parse(source, name)
    return max((part.number for part in parts if not isinstance(part, str)), default=0)


def render(source: str, n: int, name: str = "source") -> str:
    """The annotated `source` as it stands after step `n`.

    Steps up to n keep their new code; later ones become a TODO with their old code.
    `render(source, 0)` is the exercise. Raises MarkupError, and ValueError when there
    is no step n.
    """
    total = count(source, name)
    if not 0 <= n <= total:
        raise ValueError(f"there are {total} steps; can't render step {n}")
    lines: list[str] = []
    for part in _parse(source, name):
        if isinstance(part, str):
            lines.append(part)
        else:
            lines += part.render(done=part.number <= n)
    return "\n".join(lines) + "\n"


def sources(folder: Path | None = None) -> list[Path]:
    """The annotated sources of a course folder, `solutions/*_solution.py`."""
    return sorted((folder or course.root()).glob("solutions/*_solution.py"))


def renderings(source: Path) -> dict[Path, str]:
    """What is generated from an annotated source: path -> text.

    The first one is the exercise, the rest are the solutions after each step.
    """
    text = source.read_text()
    name = source.stem.removesuffix("_solution")
    folder = source.parent.parent
    itself = f"solutions/{source.name}"
    exercise = folder / "exercises" / f"{name}.py"
    result = {exercise: render(text, 0, itself)}
    for n in range(1, count(text, itself) + 1):
        path = source.parent / f"{name}_after_step_{n:02}.py"
        note = f"# Generated by `course steps` from {source.name}; edit that instead.\n"
        result[path] = note + render(text, n, itself)
    return {
        path: text.replace(itself, path.relative_to(folder).as_posix())
        for path, text in result.items()
    }


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
            half = path.with_suffix(".half")
            half.write_text(text)
            half.replace(path)
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


# CPython 3.11 counts the depth of syntax trees once for all threads: two that parse at
# the same time end in "AST constructor recursion depth mismatch".
_parsing = threading.Lock()


def as_python_reads_it(program: bytes) -> str:
    """The text of a program: what Python takes for a comment is one here, too.

    Raises SyntaxError for a program that declares another coding than UTF-8, and
    ValueError for one that is no UTF-8.
    """
    # To Python, a return ends a line as well: a coding may be declared behind it.
    program = program.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    coding, _ = tokenize.detect_encoding(io.BytesIO(program).readline)
    if codecs.lookup(coding).name not in ("utf-8", "utf-8-sig"):
        raise SyntaxError(
            f"it declares the coding {coding}, where the course reads UTF-8; save it "
            "as UTF-8, and take that line out"
        )
    return program.decode("utf-8-sig")


def syntax_tree(content: str | bytes, name: str) -> ast.Module:
    """The syntax tree of a text, also from several threads at once.

    Raises SyntaxError or ValueError, as ast.parse, also for what is nested too deeply.
    """
    with _parsing:
        try:
            return ast.parse(content, filename=name)
        except (RecursionError, MemoryError):
            # Python's parser has a stack of its own, and calls it memory.
            raise SyntaxError("it is nested too deeply for Python to read") from None


def parse_program(script: Path) -> ast.Module:
    """The syntax tree of a program.

    Raises CourseError, with the line, for a file that is missing, is not UTF-8 text
    or is not Python.
    """
    try:
        return syntax_tree(script.read_bytes(), script.name)
    except (FileNotFoundError, IsADirectoryError):
        raise course.CourseError(
            f"there is no program {course.shown(script)}. Programs are named relative "
            f"to the folder you are in, {Path.cwd().name}/."
        ) from None
    except SyntaxError as error:
        line = f", line {error.lineno}: `{(error.text or '').strip()}`"
        raise course.CourseError(
            f"{course.shown(script)} is not valid Python{line if error.lineno else ''}:"
            f" {error.msg}."
        ) from None
    except ValueError as error:
        raise course.CourseError(
            f"{course.shown(script)} is not a Python text file: {error}."
        ) from None


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
        todo = _TODO.match(line)
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
                f"`{_hint_call(step, path.stem)}` helps."
            )
    which = "Step 1 is" if n == 1 else f"Steps 1 to {n} are"
    print(f"{which} marked as done in {course.shown(path)}.")


def _hint_call(step: int, exercise: str) -> str:
    """What to type for a hint."""
    which = "" if exercise == "fashion_mnist" else f', "{exercise}"'
    return f"hint({step}{which})"


def difference(old: str, new: str, old_name: str, new_name: str) -> str:
    """The unified diff of two texts."""
    return "\n".join(
        difflib.unified_diff(
            old.splitlines(), new.splitlines(), old_name, new_name, n=2, lineterm=""
        )
    )


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


def hinted() -> list[str]:
    """The exercises that exercises/hints.md has hints for, in its order."""
    return re.findall(r"^# (\w+)\.py$", _hints_file().read_text(), re.MULTILINE)


def _hints_file() -> Path:
    return course.root() / "exercises" / "hints.md"


def hints(exercise: str = "fashion_mnist") -> dict[int, list[str]]:
    """Of `exercises/hints.md`, the part on an exercise: step -> its hints, from a nudge
    to nearly the code.

    Raises CourseError when there is no such part, or a section breaks the form.
    """
    path = _hints_file()
    parts = re.split(r"^# (\w+)\.py$", path.read_text(), flags=re.MULTILINE)
    known = dict(zip(parts[1::2], parts[2::2], strict=True))
    if exercise not in known:
        raise course.CourseError(
            f"{course.shown(path)} has no hints for {exercise!r}, but for "
            f"{', '.join(known)}."
        )
    found: dict[int, list[str]] = {}
    for section in re.split(r"^## ", known[exercise], flags=re.MULTILINE)[1:]:
        title, *levels = re.split(r"^### ", section, flags=re.MULTILINE)
        heading = re.match(r"Step (\d+)\b", title)
        names = tuple(level.partition("\n")[0].strip() for level in levels)
        if not heading or names != HINT_LEVELS:
            raise course.CourseError(
                f"{course.shown(path)}: `## {title.strip()}` must be `## Step N: ...` "
                f"with the sections {', '.join(HINT_LEVELS)}; it has {names}."
            )
        texts = [level.partition("\n")[2].strip() for level in levels]
        found[int(heading[1])] = texts
    return found


def hint(n: int, exercise: str = "fashion_mnist", level: int | None = None):
    """Show hint `level` (1: nudge, 2: place, 3: nearly the code) for step `n`.

    Without `level`, one level deeper each time. Raises CourseError when there is no
    such hint.
    """
    from IPython.display import Markdown

    from utils import progress

    known = hints(exercise)
    texts = known.get(n, [])
    if level is None:
        level = min(progress.hints_shown(exercise, n) + 1, len(HINT_LEVELS))
    if not 1 <= level <= len(texts):
        raise course.CourseError(
            f"there is no hint {level} for step {n} of {exercise}: steps 1 to "
            f"{len(known)} have hints 1 to {len(HINT_LEVELS)}."
        )
    progress.show_hint(exercise, n, level)
    more = f"\n\n*More: `{_hint_call(n, exercise)}`*" if level < len(texts) else ""
    return Markdown(f"**{HINT_LEVELS[level - 1]}.** {texts[level - 1]}{more}")
