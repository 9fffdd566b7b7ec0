"""The hints of `exercises/hints.md`: three a step, from a nudge to nearly the code."""

import re
from pathlib import Path

from utils.base import course

LEVELS = ("Nudge", "Place", "Nearly the code")


def call(step: int, exercise: str) -> str:
    """What to type for a hint."""
    which = "" if exercise == "fashion_mnist" else f', "{exercise}"'
    return f"hint({step}{which})"


def exercises() -> list[str]:
    """The exercises that exercises/hints.md has hints for, in its order."""
    return re.findall(r"^# (\w+)\.py$", _file().read_text(), re.MULTILINE)


def _file() -> Path:
    return course.root() / "exercises" / "hints.md"


def of(exercise: str = "fashion_mnist") -> dict[int, list[str]]:
    """Of `exercises/hints.md`, the part on an exercise: step -> its hints, from a nudge
    to nearly the code.

    Raises CourseError when there is no such part, or a section breaks the form.
    """
    path = _file()
    parts = re.split(r"^# (\w+)\.py$", path.read_text(), flags=re.MULTILINE)
    by_exercise = dict(zip(parts[1::2], parts[2::2], strict=True))
    if exercise not in by_exercise:
        raise course.CourseError(
            f"{course.shown(path)} has no hints for {exercise!r}, but for "
            f"{', '.join(by_exercise)}."
        )
    hints: dict[int, list[str]] = {}
    for section in re.split(r"^## ", by_exercise[exercise], flags=re.MULTILINE)[1:]:
        title, *levels = re.split(r"^### ", section, flags=re.MULTILINE)
        heading = re.match(r"Step (\d+)\b", title)
        names = tuple(level.partition("\n")[0].strip() for level in levels)
        if not heading or names != LEVELS:
            raise course.CourseError(
                f"{course.shown(path)}: `## {title.strip()}` must be `## Step N: ...` "
                f"with the sections {', '.join(LEVELS)}; it has {names}."
            )
        texts = [level.partition("\n")[2].strip() for level in levels]
        hints[int(heading[1])] = texts
    return hints
