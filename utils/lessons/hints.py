"""The hints of `exercises/hints.md`: three for each part, from a nudge to nearly the
code, and those for a fault that a check has found.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path

from distcheck import errors, files, parts
from distcheck.parts import Part
from utils.base import course

LEVELS = ("Nudge", "Place", "Nearly the code")
FOR = "For "  # ... the faults that are named behind it, by commas
ANY_PART = 0


def call(part: Part, exercise: str) -> str:
    """What to type for a hint."""
    which = "" if exercise == "fashion_mnist" else f', "{exercise}"'
    return f"hint({json.dumps(part)}{which})"


def _file() -> Path:
    return course.root() / "exercises" / "hints.md"


def only(names: Iterable[str]) -> str:
    """The file with its hints for these exercises alone."""
    start, *rest = re.split(r"^(?=# \w+\.py$)", _file().read_text(), flags=re.MULTILINE)
    wanted = {f"# {name}.py" for name in names}
    return start + "".join(p for p in rest if p.split("\n", 1)[0] in wanted)


def of(exercise: str = "fashion_mnist") -> dict[Part, list[str]]:
    """Of `exercises/hints.md`, what is on an exercise: part -> its hints, from a nudge
    to nearly the code.

    Raises UserError when there is none, or a section breaks the form.
    """
    by_part = _by_part(_chapter(exercise))
    return {part: [texts[level] for level in LEVELS] for part, texts in by_part.items()}


def about(fault: str, exercise: str = "fashion_mnist") -> str | None:
    """The hint for what a check has found, such as "step-3.sum"; None if it has none.

    Raises UserError as `of` does.
    """
    finding = re.fullmatch(r"(?:step-(\d+)|task-([A-Z]))\.(.+)", fault)
    if not finding:
        return None
    part, name = parts.of(finding[1], finding[2]), finding[3]
    own = _by_part(_chapter(exercise)).get(part, {})
    general = _by_part(_chapter(None)).get(ANY_PART, {})
    for title, text in (*own.items(), *general.items()):
        if title.startswith(FOR) and name in title.removeprefix(FOR).split(", "):
            return text
    return None


def _chapter(exercise: str | None) -> str:
    """Of the file, what is on an exercise; None: on all of them."""
    path = _file()
    start, *rest = re.split(r"^# (\w+)\.py$", path.read_text(), flags=re.MULTILINE)
    by_exercise = {None: start, **dict(zip(rest[::2], rest[1::2], strict=True))}
    if exercise not in by_exercise:
        raise errors.UserError(
            f"{files.shown(path)} has no hints for {exercise!r}, but for "
            f"{', '.join(rest[::2])}."
        )
    return by_exercise[exercise]


def _by_part(chapter: str) -> dict[Part, dict[str, str]]:
    """Part -> the sections on it, by title. Raises UserError for another form."""
    by_part = {}
    for section in re.split(r"^## ", chapter, flags=re.MULTILINE)[1:]:
        heading, *sections = re.split(r"^### ", section, flags=re.MULTILINE)
        texts = {}
        for text in sections:
            title, _, below = text.partition("\n")
            texts[title.strip()] = below.strip()
        named = re.match(rf"{parts.NAMED}\b", heading)
        levels = tuple(title for title in texts if not title.startswith(FOR))
        any_part = heading.strip() == "Any step or task"
        if any_part and not levels:
            by_part[ANY_PART] = texts
        elif named and levels == LEVELS:
            by_part[parts.of(*named.groups())] = texts
        else:
            raise errors.UserError(
                f"{files.shown(_file())}: `## {heading.strip()}` must be `## Step N: "
                f"...` or `## Task X: ...`, with the sections {', '.join(LEVELS)}, or "
                f"`## Any step or task` without them; it has {levels}."
            )
    return by_part
