"""The parts of an exercise: steps 1, 2, ... of the course's first program, and tasks
A, B, ... of every other.

A part is its number or its letter; which of both it is, says what it is called.
"""

from string import ascii_uppercase

Part = int | str

# How a part is named at the head of a paragraph or of a section; `of` reads it.
NAMED = r"(?:Step (\d+)|Task ([A-Z]))"


def of(number: str | None, letter: str | None) -> Part:
    """The part that a regular expression has found by the one group or the other."""
    return int(number) if number else str(letter).upper()


def called(part: Part) -> str:
    """Such as "step 3" or "task C"."""
    return f"{'step' if isinstance(part, int) else 'task'} {part}"


def title(part: Part) -> str:
    """The same where a sentence or a paragraph begins, or the part stands by itself."""
    return called(part).title()


def number(part: Part) -> int:
    """The place of a part among those of its exercise, from 1."""
    return part if isinstance(part, int) else ascii_uppercase.index(part) + 1


def steps(count: int) -> tuple[Part, ...]:
    """The first so many steps."""
    return tuple(range(1, count + 1))


def tasks(count: int) -> tuple[Part, ...]:
    """The first so many tasks."""
    return tuple(ascii_uppercase[:count])


def finding(part: Part, name: str) -> str:
    """The id of what a check has found, such as "step-3.sum" or "task-C.sum"."""
    return f"{called(part).replace(' ', '-')}.{name}"
