"""How far the learner is: `progress.json` in the course folder, theirs alone.

It holds the last result of each step's check, and how many hints were shown, under
names such as "mirrored 2".
"""

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock

from utils.base import course, files
from utils.base.show import Page, Table
from utils.lessons import hints, outline
from utils.lessons.verdict import NOT_CHECKED, RIGHT, UNDECIDED, Verdict


def path() -> Path:
    """Where it is kept."""
    return course.root() / "progress.json"


def load() -> dict:
    """{"checks": {"mirrored 1": {"state", "id", "when"}}, "hints": {"mirrored 1": 2}}.

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
    return {"checks": dict(content["checks"]), "hints": dict(content["hints"])}


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
            course.notice(
                f"progress.json can't be read ({error}); it is kept as {name}."
            )
            record = {"checks": {}, "hints": {}}
        before = json.dumps(record)
        yield record
        if json.dumps(record) != before:
            files.write_whole(path(), json.dumps(record, indent=2) + "\n")


def _key(exercise: str, step: int) -> str:
    return f"{exercise} {step}"


def note(exercise: str, verdicts: list[Verdict]) -> None:
    """Keep the results of a check."""
    with _changing() as record:
        for verdict in verdicts:
            if verdict.state not in (NOT_CHECKED, UNDECIDED):
                when = time.strftime("%Y-%m-%d %H:%M")
                facts = {"state": verdict.state, "id": verdict.id, "when": when}
                record["checks"][_key(exercise, verdict.step)] = facts


def hints_shown(exercise: str, step: int) -> int:
    """How many hints for this step were shown, 0 to 3."""
    return int(load()["hints"].get(_key(exercise, step), 0))


def show_hint(exercise: str, step: int, level: int) -> None:
    """Note that hints up to `level` were shown."""
    with _changing() as record:
        key = _key(exercise, step)
        record["hints"][key] = max(level, int(record["hints"].get(key, 0)))


class Progress(Page):
    """The steps and how they were found in the last check; shows itself as a table."""

    def __init__(self):
        self.record = load()
        self.steps = [
            (name, step)
            for name, exercise in outline.read().exercises.items()
            for step in range(1, len(exercise.steps) + 1)
        ]

    @property
    def done(self) -> int:
        """How many steps are right."""
        return sum(row[2] == RIGHT for row in self.rows())

    def rows(self) -> list[tuple[str, str, str, str, str]]:
        """Program, step, state, when it was checked, hints shown."""
        result = []
        for name, step in self.steps:
            check = self.record["checks"].get(_key(name, step), {})
            shown = self.record["hints"].get(_key(name, step), 0)
            state = check.get("state", NOT_CHECKED)
            result.append(
                (
                    f"{name}.py",
                    str(step),
                    state,
                    check.get("when", ""),
                    f"{shown} of {len(hints.LEVELS)}",
                )
            )
        return result

    def as_json(self) -> dict:
        """The same as plain values."""
        return {"done": self.done, "of": len(self.steps), **self.record}

    @property
    def parts(self) -> tuple[Table, str]:
        done = f"{self.done} of {len(self.steps)} steps are right."
        return Table(_HEADER, self.rows()), done


_HEADER = ("Program", "Step", "Last check", "When", "Hints shown")


def hint(n: int, exercise: str = "fashion_mnist", level: int | None = None):
    """Show hint `level` (1: nudge, 2: place, 3: nearly the code) for step `n`.

    Without `level`, one level deeper each time. Raises CourseError when there is no
    such hint.
    """
    from IPython.display import Markdown

    by_step = hints.of(exercise)
    texts = by_step.get(n, [])
    if level is None:
        level = min(hints_shown(exercise, n) + 1, len(hints.LEVELS))
    if not 1 <= level <= len(texts):
        raise course.CourseError(
            f"there is no hint {level} for step {n} of {exercise}: steps 1 to "
            f"{len(by_step)} have hints 1 to {len(hints.LEVELS)}."
        )
    show_hint(exercise, n, level)
    more = f"\n\n*More: `{hints.call(n, exercise)}`*" if level < len(texts) else ""
    return Markdown(f"**{hints.LEVELS[level - 1]}.** {texts[level - 1]}{more}")
