"""How far the learner is: `progress.json` in the course folder, theirs alone.

It holds the last result of the check of each step and task, and how many hints were
shown, under names such as "fashion_mnist 2" and "mirrored B".
"""

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock

from distcheck import errors, files
from distcheck.parts import Part, called
from distcheck.show import Page, Table
from distcheck.verdict import NOT_CHECKED, RIGHT, UNDECIDED, Verdict
from utils.base import course
from utils.lessons import hints, outline


def path() -> Path:
    """Where it is kept."""
    return course.root() / "progress.json"


def load() -> dict:
    """{"checks": {"mirrored A": {"state", "id", "when"}}, "hints": {"mirrored A": 2}}.

    An unreadable file is put aside, with a notice.
    """
    try:
        return _read()
    except _UNREADABLE:
        with _changing() as record:
            return record


_UNREADABLE = (ValueError, KeyError, TypeError, OSError)


def _read() -> dict:
    """What the file holds; nothing where there is none. Raises one of _UNREADABLE."""
    try:
        content = json.loads(path().read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {"checks": {}, "hints": {}}
    return {name: dict(content[name]) for name in ("checks", "hints")}


@contextlib.contextmanager
def _changing() -> Iterator[dict]:
    """Give what the file holds, and keep what is made of it.

    A notebook and a terminal may do so at once: one waits for the other. The system
    releases the lock of a process that is killed.
    """
    with FileLock(path().with_suffix(".lock")):
        try:
            record = _read()
        except _UNREADABLE as error:
            name = time.strftime("progress_kept_%Y-%m-%d_%H-%M-%S.json")
            path().rename(path().with_name(name))
            errors.notice(
                f"progress.json can't be read ({error}); it is kept as {name}."
            )
            record = {"checks": {}, "hints": {}}
        before = json.dumps(record)
        yield record
        if json.dumps(record) != before:
            files.write_whole(path(), json.dumps(record, indent=2) + "\n")


def _key(exercise: str, part: Part) -> str:
    return f"{exercise} {part}"


def note(exercise: str, verdicts: list[Verdict]) -> None:
    """Keep the results of a check."""
    with _changing() as record:
        for verdict in verdicts:
            if verdict.state not in (NOT_CHECKED, UNDECIDED):
                when = time.strftime("%Y-%m-%d %H:%M")
                facts = {"state": verdict.state, "id": verdict.id, "when": when}
                record["checks"][_key(exercise, verdict.part)] = facts


def found_right(exercise: str) -> set[Part]:
    """The parts of an exercise that their last checks found right."""
    checks = load()["checks"]
    return {
        part
        for part in outline.exercise(exercise).parts
        if checks.get(_key(exercise, part), {}).get("state") == RIGHT
    }


def hints_shown(exercise: str, part: Part) -> int:
    """How many hints for this part were shown, 0 to 3."""
    return int(load()["hints"].get(_key(exercise, part), 0))


def show_hint(exercise: str, part: Part, level: int) -> None:
    """Note that hints up to `level` were shown."""
    with _changing() as record:
        key = _key(exercise, part)
        record["hints"][key] = max(level, int(record["hints"].get(key, 0)))


class Progress(Page):
    """All steps and tasks, as the last check found them; shows itself as a table."""

    def __init__(self):
        self.record = load()
        self.parts_of_all = [
            (name, part)
            for name, exercise in outline.read().exercises.items()
            for part in exercise.parts
        ]

    @property
    def done(self) -> int:
        """How many of them are right."""
        return sum(row[2] == RIGHT for row in self.rows())

    def rows(self) -> list[tuple[str, str, str, str, str]]:
        """Program, part, state, when it was checked, hints shown."""
        result = []
        for name, part in self.parts_of_all:
            check = self.record["checks"].get(_key(name, part), {})
            shown = self.record["hints"].get(_key(name, part), 0)
            state, when = check.get("state", NOT_CHECKED), check.get("when", "")
            hints_of_it = f"{shown} of {len(hints.LEVELS)}"
            result.append((f"{name}.py", called(part), state, when, hints_of_it))
        return result

    def as_json(self) -> dict:
        """The same as plain values."""
        return {"done": self.done, "of": len(self.parts_of_all), **self.record}

    @property
    def parts(self) -> tuple[Table, str]:
        done = f"{self.done} of {len(self.parts_of_all)} steps and tasks are right."
        return Table(_HEADER, self.rows()), done


_HEADER = ("Program", "Part", "Last check", "When", "Hints shown")


def hint(part: Part, exercise: str = "fashion_mnist", level: int | None = None):
    """Show hint `level` (1: nudge, 2: place, 3: nearly the code) for a part of an
    exercise, such as step 3 or task "B".

    Without `level`, one level deeper each time. Raises UserError when there is no
    such hint.
    """
    from IPython.display import Markdown

    by_part = hints.of(exercise)
    part = outline.exercise(exercise).part(part)
    texts = by_part[part]
    if level is None:
        level = min(hints_shown(exercise, part) + 1, len(hints.LEVELS))
    if not 1 <= level <= len(texts):
        raise errors.UserError(
            f"there is no hint {level} for {called(part)} of {exercise}: it has hints "
            f"1 to {len(hints.LEVELS)}."
        )
    show_hint(exercise, part, level)
    more = f"\n\n*More: `{hints.call(part, exercise)}`*" if level < len(texts) else ""
    return Markdown(f"**{hints.LEVELS[level - 1]}.** {texts[level - 1]}{more}")
