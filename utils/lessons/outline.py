"""The course as data: outline.toml, its notebooks and its exercises with their parts.

python -m utils.lessons.outline    # writes README's routes and table of lessons anew
"""

import functools
import math
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

import tomli

from distcheck import errors, files, parts
from distcheck.parts import Part
from utils.base import course, texts

FILE = Path(__file__).with_name("outline.toml")
FIRST = "fashion_mnist"  # the exercise that is meant where none is named

# README's table stands between these.
BEGIN, END = "<!-- outline.toml says this -->", "<!-- until here -->"


@dataclass(frozen=True)
class Notebook:
    """A lesson.

    name: of its file, without .ipynb; it begins with its number. title: its heading.
    teaches: what one learns, for README. minutes: what a learner should set aside, by
    minutes.py. lines: those that a learner writes besides the exercise's.
    needs: what must work on a machine, in the words of `course doctor`. devices: what
    it is better with, for README. exercise: the program that it is about.
    """

    name: str
    title: str
    teaches: str
    minutes: int
    needs: tuple[str, ...] = ()
    devices: str = ""
    exercise: str = FIRST
    lines: int = 0

    @property
    def number(self) -> str:
        return self.name[:2]


@dataclass(frozen=True)
class Route:
    """A way through the course. lessons: the numbers of its first and its last; one_of:
    of these a learner takes one; about: what one learns on it."""

    title: str
    lessons: tuple[str, str]
    about: str
    one_of: tuple[str, ...] = ()

    @property
    def minutes(self) -> int:
        """What a learner should set aside, with the longest of those to choose from."""
        first, last = self.lessons
        taken = {
            lesson.number: lesson.minutes
            for lesson in read().notebooks.values()
            if first <= lesson.number <= last
        }
        choices = [taken.pop(number, 0) for number in self.one_of]
        return sum(taken.values()) + max(choices, default=0)

    @property
    def hours(self) -> str:
        """The same in words, such as "3½ hours"."""
        halves = max(1, round(self.minutes / 30))
        whole, half = divmod(halves, 2)
        number = f"{whole or ''}{'½' if half else ''}"
        return f"{number} hour{'s' if halves > 2 else ''}"


@dataclass(frozen=True)
class Exercise:
    """A program that learners write, in steps or in tasks. points: what each of them is
    worth to a grader."""

    name: str
    points: dict[Part, float]

    @property
    def parts(self) -> tuple[Part, ...]:
        return tuple(self.points)

    def part(self, given: Part) -> Part:
        """The step or the task that somebody means by 3, "3", "C" or "c". Raises
        UserError where the exercise has none of that name."""
        for part in self.parts:
            if str(part) == str(given).upper():
                return part
        word = parts.called(self.parts[0]).split()[0]
        raise errors.UserError(
            f"there is no `{given}`: {self.name} has {word}s "
            f"{', '.join(map(str, self.parts))}."
        )


@dataclass(frozen=True)
class Outline:
    """The whole course, each thing by its name, in its order. parts: their titles, by
    the number of the lesson that each begins with."""

    notebooks: dict[str, Notebook]
    exercises: dict[str, Exercise]
    parts: dict[str, str] = field(default_factory=dict)
    routes: tuple[Route, ...] = ()


@functools.cache
def read(path: Path = FILE) -> Outline:
    """The outline in a file. Raises UserError for one that says nonsense."""
    try:
        data = tomli.loads(path.read_text(encoding="utf-8"))
        notebooks = {
            name: Notebook(name, **facts | {"needs": tuple(facts["needs"])})
            for name, facts in data["notebooks"].items()
        }
        exercises = {
            name: _exercise(name, facts) for name, facts in data["exercises"].items()
        }
        routes = tuple(
            Route(
                facts["title"],
                tuple(facts["lessons"]),
                facts["about"],
                tuple(facts.get("one_of", ())),
            )
            for facts in data["routes"]
        )
        parts_of_it = dict(data["parts"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise errors.UserError(
            f"{files.shown(path)} can't be read as the course's outline: "
            f"{type(error).__name__}: {error}."
        ) from None
    return Outline(notebooks, exercises, parts_of_it, routes)


def _exercise(name: str, facts: dict) -> Exercise:
    points = {int(p) if p.isdecimal() else p: n for p, n in facts["points"].items()}
    if tuple(points) not in (parts.steps(len(points)), parts.tasks(len(points))):
        raise ValueError(f"the parts of {name} are {', '.join(map(str, points))}")
    for part, worth in points.items():
        if type(worth) not in (int, float) or not 0 <= worth < math.inf:
            raise ValueError(
                f"the points of {parts.called(part)} of {name} are {worth!r}"
            )
    return Exercise(name, points)


def exercise_of(notebook: str) -> str:
    """The program that a notebook (its name without .ipynb) is about."""
    notebooks = read().notebooks
    return notebooks[notebook].exercise if notebook in notebooks else FIRST


def exercise(name: str) -> Exercise:
    """The exercise called `name`. Raises UserError where there is none."""
    exercises = read().exercises
    if name not in exercises:
        raise errors.UserError(
            f"there is no exercise `{name}` with checks: choose from "
            f"{', '.join(exercises)}."
        )
    return exercises[name]


def only(notebooks: Collection[str], exercises: Collection[str]) -> str:
    """The file with these notebooks and exercises alone, by their names."""
    kept = []
    for part in re.split(r"^(?=\[)", FILE.read_text(encoding="utf-8"), flags=re.M):
        named = re.match(r"\[+(notebooks|exercises)\.(\w+)", part)
        wanted = {"notebooks": notebooks, "exercises": exercises}
        if not named or named[2] in wanted[named[1]]:
            kept.append(part)
    return "".join(kept)


def routes_here() -> list[Route]:
    """The ways of which this folder has lessons: a class's has the first ones alone."""
    return [route for route in read().routes if route.minutes]


def routes() -> str:
    """The ways through the course with their hours, in Markdown."""
    return "\n".join(
        f"- **{route.title}** (lessons {' to '.join(route.lessons)}, {route.hours}). "
        f"{route.about}"
        for route in routes_here()
    )


def table() -> str:
    """README's table of the lessons, in Markdown."""
    rows = [
        "| No. | Lesson | What you learn | Minutes | Better with |",
        "|---|---|---|---|---|",
    ]
    for lesson in read().notebooks.values():
        if lesson.number in read().parts:
            rows.append(f"| | **{read().parts[lesson.number]}** | | | |")
        link = f"[{lesson.title}](notebooks/{lesson.name}.ipynb)"
        cells = (lesson.number, link, lesson.teaches, str(lesson.minutes))
        rows.append(f"| {' | '.join((*cells, lesson.devices))} |".replace("  |", " |"))
    return "\n".join(rows)


def overview() -> str:
    """What README has of this: the ways through the course, and the lessons."""
    return f"{routes()}\n\n{table()}"


def main() -> None:
    readme = course.PACKAGE_ROOT / "README.md"
    old = readme.read_text("utf-8")
    text = texts.between(readme.name, old, BEGIN, END, overview())
    files.write_whole(readme, text)


if __name__ == "__main__":
    main()
