"""From one annotated program to the exercise and the solutions after each step.

A step is a paragraph that begins with `# Step N: ...`; a blank line or a dedent ends
it. In it, `# was: ...` lines hold the code that the step replaces:

    # Step 2: Count in tens; nobody reads a line for each.
    # was: every = 1
    every = 10

A step may have several paragraphs, in any order; the numbers run from 1 without a
gap. Of most exercises the parts are tasks: `# Task A: ...`, and so on, in just the same
way. `render(source, 2)`, or `render(source, "B")`, is the program as it stands after
two of them. Of one exercise, KEPT, these programs are files of the course; of others
they are made when asked for.
What an instructor hands out has sources in which KEPT_BACK stands for each answer.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

from distcheck import errors, parts
from distcheck.parts import Part, called, title
from utils.base import course

_PART = re.compile(rf"(?P<indent> *)# {parts.NAMED}: (?P<text>\S.*)")
_NEARLY_A_PART = re.compile(r"\s*#+\s*(step\s*\d+|task\s+\w\b)", re.IGNORECASE)
_WAS = re.compile(r"(?P<indent>\s*)# was:(?: (?P<code>.*))?$")
TODO = re.compile(r"\s*#+\s*TODO:?\s*(?:Step\s*(\d+)|Task\s+([A-Z])\b)", re.IGNORECASE)


# The exercise whose program after each step stands in solutions/, to be read and run.
KEPT = "fashion_mnist"

# In the place of the code of a part, where the answers are not for the reader.
KEPT_BACK = "...  # The instructor has kept this back."


class MarkupError(errors.UserError):
    """An annotated source breaks a rule of the markup; the message has the line."""


@dataclass
class _Paragraph:
    part: Part
    indent: str
    text: list[str]
    line: int
    was: list[str] = field(default_factory=list)
    code: list[str] = field(default_factory=list)

    def render(self, done: bool) -> list[str]:
        todo = "" if done else "TODO: "
        first, *rest = self.text
        lines = [f"{self.indent}# {todo}{title(self.part)}: {first}"]
        lines += [f"{self.indent}# {line}" for line in rest]
        return lines + (self.code if done else self.was)


def _parse(source: str, name: str) -> list[str | _Paragraph]:
    """Split into plain lines and the paragraphs of parts. Raises MarkupError."""

    def wrong(line: int, message: str) -> MarkupError:
        return MarkupError(f"{name}, line {line}: {message}")

    pieces: list[str | _Paragraph] = []
    current: _Paragraph | None = None
    for number, line in enumerate(source.splitlines(), start=1):
        if current and (not line.strip() or not line.startswith(current.indent)):
            _close(current, wrong)
            current = None
        part, was = _PART.fullmatch(line), _WAS.fullmatch(line)
        if part and current:
            raise wrong(
                number,
                f"{called(parts.of(part[2], part[3]))} inside {called(current.part)}, "
                f"which began in line {current.line}; put a blank line before it.",
            )
        if part:
            which = parts.of(part[2], part[3])
            current = _Paragraph(which, part["indent"], [part["text"]], number)
            pieces.append(current)
        elif TODO.match(line):
            raise wrong(
                number,
                "a TODO in an annotated source; write `# Step N:` or `# Task X:`.",
            )
        elif _NEARLY_A_PART.match(line):
            raise wrong(
                number,
                "a step begins with `# Step N: text`, a task with `# Task X: text`, "
                "exactly so.",
            )
        elif was and not current:
            raise wrong(number, "`# was:` outside a step or a task.")
        elif was and was["indent"] != current.indent:
            raise wrong(number, f"`# was:` is not indented as {called(current.part)}.")
        elif was and current.code:
            raise wrong(number, "`# was:` after the new code; it comes before it.")
        elif was:
            code = was["code"] or ""
            current.was.append(current.indent + code if code else "")
        elif current is None:
            pieces.append(line)
        elif line.startswith(f"{current.indent}#") and not (current.code + current.was):
            current.text.append(line.strip().removeprefix("#").strip())
        elif not current.code and line[len(current.indent)] == " ":
            raise wrong(number, f"wrong indentation below {called(current.part)}.")
        else:
            current.code.append(line)
    if current:
        _close(current, wrong)

    paragraphs = [piece for piece in pieces if isinstance(piece, _Paragraph)]
    found = {paragraph.part for paragraph in paragraphs}
    are_steps = paragraphs and isinstance(paragraphs[0].part, int)
    wanted = (parts.steps if are_steps else parts.tasks)(len(found))
    for paragraph in paragraphs:
        if paragraph.part not in wanted:
            missing = next(part for part in wanted if part not in found)
            raise wrong(
                paragraph.line, f"{called(paragraph.part)} without a {called(missing)}."
            )
    return pieces


def _close(paragraph: _Paragraph, wrong) -> None:
    if not paragraph.code:
        raise wrong(
            paragraph.line,
            f"{called(paragraph.part)} has no code of its own at its indentation.",
        )


def parts_of(source: str, name: str = "source") -> tuple[Part, ...]:
    """The steps of an annotated source, or its tasks, in order. Raises MarkupError."""
    pieces = _parse(source, name)
    found = {piece.part for piece in pieces if isinstance(piece, _Paragraph)}
    return tuple(sorted(found))


def render(source: str, n: Part, name: str = "source") -> str:
    """The annotated `source` as it stands after part `n`; 2 is task B, too.

    Parts up to n keep their new code; later ones become a TODO with their old code.
    `render(source, 0)` is the exercise. Raises MarkupError, and ValueError when there
    is no part n.
    """
    total, last = len(parts_of(source, name)), parts.number(n)
    if not 0 <= last <= total:
        raise ValueError(f"there are {total} parts; can't render {called(n)}")
    lines: list[str] = []
    for piece in _parse(source, name):
        if isinstance(piece, str):
            lines.append(piece)
        else:
            lines += piece.render(done=parts.number(piece.part) <= last)
    return "\n".join(lines) + "\n"


def without_answers(source: str, name: str = "source") -> str:
    """The annotated `source` with the same exercise and no answers: KEPT_BACK stands
    for the code of each part. Raises MarkupError."""
    lines: list[str] = []
    for piece in _parse(source, name):
        if isinstance(piece, str):
            lines.append(piece)
            continue
        heading = [f"{title(piece.part)}: {piece.text[0]}", *piece.text[1:]]
        before = [f"was: {line[len(piece.indent) :]}".rstrip() for line in piece.was]
        lines += [f"{piece.indent}# {line}".rstrip() for line in (*heading, *before)]
        lines.append(f"{piece.indent}{KEPT_BACK}")
    return "\n".join(lines) + "\n"


def has_answers(source: Path) -> bool:
    """Does an annotated source say how its parts are done?"""
    return KEPT_BACK not in source.read_text(encoding="utf-8")


def sources(folder: Path | None = None) -> list[Path]:
    """The annotated sources of a course folder, `solutions/*_solution.py`."""
    return sorted((folder or course.root()).glob("solutions/*_solution.py"))


def source_of(exercise: str) -> Path:
    """The annotated source of an exercise. Raises UserError if there is none."""
    known = {name_of(source): source for source in sources()}
    if exercise not in known:
        raise errors.UserError(
            f"the course has no {exercise}.py with steps or tasks; it has "
            f"{', '.join(known)}."
        )
    return known[exercise]


def name_of(source: Path) -> str:
    """The exercise that an annotated source is of."""
    return source.stem.removesuffix("_solution")


def exercise_of(source: Path) -> Path:
    """The file that a learner edits."""
    return source.parent.parent / "exercises" / f"{name_of(source)}.py"


def program(source: Path, n: Part, path: Path) -> str:
    """The program after part `n` of an annotated source, for a file `path`: its first
    lines say how that is started, in the course folder."""
    solution, root = f"solutions/{source.name}", source.parent.parent
    target = path.relative_to(root) if path.is_relative_to(root) else path
    text = source.read_text(encoding="utf-8")
    return render(text, n, solution).replace(solution, target.as_posix())


def stages(source: Path, folder: Path) -> dict[Path, str]:
    """The program after each part, for files in `folder`: path -> text."""
    note = f"# Generated by `course steps` from {source.name}; edit that instead.\n"
    texts = {}
    for part in parts_of(source.read_text(encoding="utf-8"), source.name):
        which = f"step_{part:02}" if isinstance(part, int) else f"task_{part}"
        path = folder / f"{name_of(source)}_after_{which}.py"
        texts[path] = note + program(source, part, path)
    return texts


def renderings(source: Path) -> dict[Path, str]:
    """What the course keeps of an annotated source: path -> text.

    The first one is the exercise; of KEPT, the program after each step follows.
    """
    exercise = exercise_of(source)
    texts = {exercise: program(source, 0, exercise)}
    stay = name_of(source) == KEPT and has_answers(source)
    return texts | (stages(source, source.parent) if stay else {})
