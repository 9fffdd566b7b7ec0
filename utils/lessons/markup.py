"""From one annotated program to the exercise and the solutions after each step.

A step is a paragraph that begins with `# Step N: ...`; a blank line or a dedent ends
it. In it, `# was: ...` lines hold the code that the step replaces:

    # Step 2: Count in tens; nobody reads a line for each.
    # was: every = 1
    every = 10

A step may have several paragraphs, in any order; the numbers run from 1 without a
gap. `render(source, n)` is the program as it stands after step n. Of one exercise,
KEPT, these programs are files of the course; of others they are made when asked for.
What an instructor hands out has sources in which KEPT_BACK stands for each answer.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

from utils.base import course

_STEP = re.compile(r"(?P<indent> *)# Step (?P<number>\d+): (?P<text>\S.*)")
_NEARLY_A_STEP = re.compile(r"\s*#+\s*step\s*\d+", re.IGNORECASE)
_WAS = re.compile(r"(?P<indent>\s*)# was:(?: (?P<code>.*))?$")
TODO = re.compile(r"\s*#+\s*TODO:?\s*Step\s*(\d+)", re.IGNORECASE)


# The exercise whose program after each step stands in solutions/, to be read and run.
KEPT = "fashion_mnist"

# In the place of the code of a step, where the answers are not for the reader.
KEPT_BACK = "...  # The instructor has kept this back."


class MarkupError(course.CourseError):
    """An annotated source breaks a rule of the markup; the message has the line."""


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
        first, *rest = self.text
        lines = [f"{self.indent}# {todo}Step {self.number}: {first}"]
        lines += [f"{self.indent}# {line}" for line in rest]
        return lines + (self.code if done else self.was)


def _parse(source: str, name: str) -> list[str | _Paragraph]:
    """Split into plain lines and step paragraphs. Raises MarkupError."""

    def wrong(line: int, message: str) -> MarkupError:
        return MarkupError(f"{name}, line {line}: {message}")

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
        elif TODO.match(line):
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


def without_answers(source: str, name: str = "source") -> str:
    """The annotated `source` with the same exercise and no answers: KEPT_BACK stands
    for the code of each step. Raises MarkupError."""
    lines: list[str] = []
    for part in _parse(source, name):
        if isinstance(part, str):
            lines.append(part)
            continue
        heading = [f"Step {part.number}: {part.text[0]}", *part.text[1:]]
        before = [f"was: {line[len(part.indent) :]}".rstrip() for line in part.was]
        lines += [f"{part.indent}# {line}".rstrip() for line in (*heading, *before)]
        lines.append(f"{part.indent}{KEPT_BACK}")
    return "\n".join(lines) + "\n"


def has_answers(source: Path) -> bool:
    """Does an annotated source say how its steps are done?"""
    return KEPT_BACK not in source.read_text(encoding="utf-8")


def sources(folder: Path | None = None) -> list[Path]:
    """The annotated sources of a course folder, `solutions/*_solution.py`."""
    return sorted((folder or course.root()).glob("solutions/*_solution.py"))


def source_of(exercise: str) -> Path:
    """The annotated source of an exercise. Raises CourseError if there is none."""
    known = {name_of(source): source for source in sources()}
    if exercise not in known:
        raise course.CourseError(
            f"the course has no {exercise}.py with steps; it has {', '.join(known)}."
        )
    return known[exercise]


def name_of(source: Path) -> str:
    """The exercise that an annotated source is of."""
    return source.stem.removesuffix("_solution")


def exercise_of(source: Path) -> Path:
    """The file that a learner edits."""
    return source.parent.parent / "exercises" / f"{name_of(source)}.py"


def program(source: Path, n: int, path: Path) -> str:
    """The program after step `n` of an annotated source, for a file `path`: its first
    lines say how that is started, in the course folder."""
    solution, root = f"solutions/{source.name}", source.parent.parent
    target = path.relative_to(root) if path.is_relative_to(root) else path
    text = source.read_text(encoding="utf-8")
    return render(text, n, solution).replace(solution, target.as_posix())


def stages(source: Path, folder: Path) -> dict[Path, str]:
    """The program after each step, for files in `folder`: path -> text."""
    note = f"# Generated by `course steps` from {source.name}; edit that instead.\n"
    texts = {}
    for n in range(1, count(source.read_text(encoding="utf-8"), source.name) + 1):
        path = folder / f"{name_of(source)}_after_step_{n:02}.py"
        texts[path] = note + program(source, n, path)
    return texts


def renderings(source: Path) -> dict[Path, str]:
    """What the course keeps of an annotated source: path -> text.

    The first one is the exercise; of KEPT, the program after each step follows.
    """
    exercise = exercise_of(source)
    texts = {exercise: program(source, 0, exercise)}
    stay = name_of(source) == KEPT and has_answers(source)
    return texts | (stages(source, source.parent) if stay else {})
