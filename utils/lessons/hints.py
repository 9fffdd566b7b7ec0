"""The hints of `exercises/hints.md`: three a step, from a nudge to nearly the code, and
those for a fault that a check has found.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from utils.base import course

LEVELS = ("Nudge", "Place", "Nearly the code")
FOR = "For "  # ... the faults that are named behind it, by commas
ANY_STEP = 0


def call(step: int, exercise: str) -> str:
    """What to type for a hint."""
    which = "" if exercise == "fashion_mnist" else f', "{exercise}"'
    return f"hint({step}{which})"


def exercises() -> list[str]:
    """The exercises that exercises/hints.md has hints for, in its order."""
    return re.findall(r"^# (\w+)\.py$", _file().read_text(), re.MULTILINE)


def _file() -> Path:
    return course.root() / "exercises" / "hints.md"


def only(names: Iterable[str]) -> str:
    """The file with its hints for these exercises alone."""
    parts = re.split(r"^(?=# \w+\.py$)", _file().read_text(), flags=re.MULTILINE)
    wanted = {f"# {name}.py" for name in names}
    return parts[0] + "".join(p for p in parts[1:] if p.split("\n", 1)[0] in wanted)


def of(exercise: str = "fashion_mnist") -> dict[int, list[str]]:
    """Of `exercises/hints.md`, the part on an exercise: step -> its hints, from a nudge
    to nearly the code.

    Raises CourseError when there is no such part, or a section breaks the form.
    """
    steps = _steps(_part(exercise))
    return {step: [texts[level] for level in LEVELS] for step, texts in steps.items()}


def about(fault: str, exercise: str = "fashion_mnist") -> str | None:
    """The hint for what a check has found, such as "step-3.sum"; None if it has none.

    Raises CourseError as `of` does.
    """
    finding = re.fullmatch(r"step-(\d+)\.(.+)", fault)
    if not finding:
        return None
    step, name = finding.groups()
    own = _steps(_part(exercise)).get(int(step), {})
    general = _steps(_part(None)).get(ANY_STEP, {})
    for title, text in (*own.items(), *general.items()):
        if title.startswith(FOR) and name in title.removeprefix(FOR).split(", "):
            return text
    return None


def _part(exercise: str | None) -> str:
    """Of the file, what is on an exercise; None: on all of them."""
    path = _file()
    start, *parts = re.split(r"^# (\w+)\.py$", path.read_text(), flags=re.MULTILINE)
    by_exercise = {None: start, **dict(zip(parts[::2], parts[1::2], strict=True))}
    if exercise not in by_exercise:
        raise course.CourseError(
            f"{course.shown(path)} has no hints for {exercise!r}, but for "
            f"{', '.join(parts[::2])}."
        )
    return by_exercise[exercise]


def _steps(part: str) -> dict[int, dict[str, str]]:
    """Step -> the sections on it, by title. Raises CourseError for another form."""
    steps = {}
    for section in re.split(r"^## ", part, flags=re.MULTILINE)[1:]:
        heading, *sections = re.split(r"^### ", section, flags=re.MULTILINE)
        texts = {}
        for text in sections:
            title, _, below = text.partition("\n")
            texts[title.strip()] = below.strip()
        number = re.match(r"Step (\d+)\b", heading)
        levels = tuple(title for title in texts if not title.startswith(FOR))
        any_step = heading.strip() == "Any step"
        if any_step and not levels:
            steps[ANY_STEP] = texts
        elif number and levels == LEVELS:
            steps[int(number[1])] = texts
        else:
            raise course.CourseError(
                f"{course.shown(_file())}: `## {heading.strip()}` must be `## Step N: "
                f"...` with the sections {', '.join(LEVELS)}, or `## Any step` without "
                f"them; it has {levels}."
            )
    return steps
