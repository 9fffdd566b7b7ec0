"""The instructor's handbook: what its pages say that outline.toml knows.

python -m utils.lessons.handbook    # writes heads, table of lessons and timetables anew

A page handbook/NAME.md is about the notebook of that name. timetables.toml has the
timetables: each a list of days, each day a list of a lesson's number, or of minutes and
what they are for.
"""

from dataclasses import dataclass
from pathlib import Path

import tomli

from distcheck import errors, files
from utils.base import course, texts
from utils.lessons import outline

FOLDER = course.PACKAGE_ROOT / "handbook"
INDEX, TIMETABLES = FOLDER / "README.md", FOLDER / "timetables.md"


@dataclass(frozen=True)
class Timetable:
    """A plan. minutes: how long a day may be. days: of each, what is done, and for how
    many minutes. before: what is to be done before the first day."""

    title: str
    minutes: int
    before: str
    days: list[list[tuple[str, int]]]


def page(lesson: outline.Notebook) -> Path:
    """The page on a lesson; it need not be there."""
    return FOLDER / f"{lesson.name}.md"


def head(lesson: outline.Notebook) -> str:
    """The line below a page's title."""
    about = f", program `exercises/{lesson.exercise}.py`"
    needs = f", better with {lesson.devices}" if lesson.devices else ""
    has_program = "_step_" in lesson.name or lesson.exercise != outline.FIRST
    return (
        f"{lesson.minutes} minutes{needs}{about if has_program else ''}. The notebook: "
        f"[{lesson.title}](../notebooks/{lesson.name}.ipynb)."
    )


def table() -> str:
    """The lessons, with their pages, in Markdown."""
    rows = ["| No. | Lesson | What is learned | Minutes |", "|---|---|---|---|"]
    for lesson in outline.read().notebooks.values():
        title = f"[{lesson.title}]({page(lesson).name})"
        if not page(lesson).exists():
            title = f"{lesson.title} (no page yet)"
        cells = (lesson.number, title, lesson.teaches, str(lesson.minutes))
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def timetables() -> list[Timetable]:
    """Those of timetables.toml. Raises UserError for a lesson that there isn't."""
    lessons = {one.number: one for one in outline.read().notebooks.values()}
    data = tomli.loads((FOLDER / "timetables.toml").read_text(encoding="utf-8"))

    def item(entry: str | list) -> tuple[str, int]:
        if isinstance(entry, list):
            minutes, what = entry
            return what, minutes
        if entry not in lessons:
            raise errors.UserError(f"timetables.toml: there is no lesson {entry}.")
        lesson = lessons[entry]
        name = f"{lesson.number} {lesson.title}"
        there = page(lesson).exists()
        return f"[{name}]({page(lesson).name})" if there else name, lesson.minutes

    return [
        Timetable(
            one["title"],
            one["minutes"],
            one["before"],
            [[item(entry) for entry in day] for day in one["days"]],
        )
        for one in data["timetables"]
    ]


def clock(minutes: int) -> str:
    """Minutes since the beginning, such as 1:05."""
    return f"{minutes // 60}:{minutes % 60:02}"


def plans() -> str:
    """The timetables in Markdown: when each part begins, since the day's beginning."""
    parts = []
    for plan in timetables():
        parts.append(f"## {plan.title}\n\nBefore: {plan.before}")
        for number, day in enumerate(plan.days, 1):
            rows = ["| From | Minutes | What |", "|---|---|---|"]
            passed = 0
            for what, minutes in day:
                rows.append(f"| {clock(passed)} | {minutes} | {what} |")
                passed += minutes
            rows.append(f"| {clock(passed)} | | End, after {passed} minutes |")
            if len(plan.days) > 1:
                unit = "Day" if plan.minutes > 200 else "Week"
                parts.append(f"### {unit} {number}")
            parts.append("\n".join(rows))
    return "\n\n".join(parts)


def generated() -> dict[Path, str]:
    """Every page with something generated in it -> its whole text, up to date."""
    pages = {}
    contents = {INDEX: table(), TIMETABLES: plans()}
    for lesson in outline.read().notebooks.values():
        if page(lesson).exists():
            contents[page(lesson)] = head(lesson)
    for path, content in contents.items():
        old = path.read_text(encoding="utf-8")
        pages[path] = texts.between(path.name, old, outline.BEGIN, outline.END, content)
    return pages


def main() -> None:
    for path, text in generated().items():
        files.write_whole(path, text)


if __name__ == "__main__":
    main()
