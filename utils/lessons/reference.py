"""What the lessons measured on one machine, which their text interprets: the reference
run. A reader's own numbers are shown beside it.

    beside_reference(speedup=1.87)           # in a cell
    two workers were 1.9<!--speedup--> times as fast as one     # in the text

python -m utils.lessons.reference [NUMBER ...]   # records all lessons, or some, anew

A recorded number has one name in the whole course, so the text needs no other.
"""

import json
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nbformat import NotebookNode

from distcheck import errors, files
from utils.lessons import notebook_rules, notebooks
from utils.lessons.claims import short

FILE = Path(__file__).with_name("reference.json")
PROFILE = "cpu"


@dataclass(frozen=True)
class Reference:
    """machine: what the lessons ran on, in words. lessons: of each, by its name, the
    `seconds` that it took there, and the `numbers` that it measured, by theirs."""

    machine: str
    lessons: dict[str, dict]

    @property
    def numbers(self) -> dict[str, float]:
        """The numbers of all lessons."""
        return {
            name: number
            for lesson in self.lessons.values()
            for name, number in lesson["numbers"].items()
        }


def read() -> Reference:
    """What is recorded."""
    return Reference(**json.loads(FILE.read_text(encoding="utf-8")))


class Beside:
    """Numbers of this run beside those of the reference run, as a table of text."""

    def __init__(self, numbers: dict[str, float], reference: Reference):
        self.numbers, self.reference = numbers, reference

    def __repr__(self) -> str:
        rows = [("", "reference", "yours")]
        for name, number in self.numbers.items():
            recorded = self.reference.numbers.get(name)
            there = "not recorded" if recorded is None else short(recorded)
            rows.append((name.replace("_", " "), there, short(number)))
        widths = [max(len(row[column]) for row in rows) for column in range(3)]
        lines = (
            f"{name:{widths[0]}}  {there:>{widths[1]}}  {here:>{widths[2]}}"
            for name, there, here in rows
        )
        return "\n".join(lines)

    def _repr_mimebundle_(self, **_) -> tuple[dict, dict]:
        """For Jupyter: the text, and in its metadata what `measured` reads."""
        return {"text/plain": repr(self)}, {"reference": self.numbers}


def beside_reference(**numbers: float) -> None:
    """Show numbers that were measured just now beside those of the reference run.

    beside_reference(speedup=two / one, seconds_per_step=0.12)

    A name is what the table says, with `_` for a blank; each is used by one cell of the
    whole course.
    """
    from IPython.display import display

    display(Beside({name: float(n) for name, n in numbers.items()}, read()))


def measured(notebook: NotebookNode) -> dict[str, float]:
    """The numbers that an executed copy has shown."""
    found: dict[str, float] = {}
    for _, cell in notebook_rules.cells_of(notebook, "code"):
        for output in cell.outputs:
            found |= output.get("metadata", {}).get("reference", {})
    return found


def quoted(notebook: NotebookNode) -> Iterator[tuple[str, str, str]]:
    """Of each recorded number that the text quotes: the place, the number as it is
    written, and its name."""
    for place, cell in notebook_rules.cells_of(notebook, "markdown"):
        for text, name in re.findall(r"([\d.,]*\d)[%]?<!--(\w+)-->", cell.source):
            yield place, text, name


def agrees(text: str, number: float) -> bool:
    """Is `text`, such as 1.9 or 1,200, what `number` is, rounded as `text` is?"""
    digits = text.replace(",", "")
    decimals = len(digits.partition(".")[2])
    zeros = 0 if decimals else len(digits) - len(digits.rstrip("0"))
    return any(
        round(number, places) == float(digits)
        for places in ([decimals] if decimals else range(0, -zeros - 1, -1))
    )


def record(numbers: list[str]) -> Path:
    """Execute the lessons with these numbers, or all, and keep what they measure: of
    the lessons that were left out, what was kept before.

    A lesson that was executed as it is now isn't executed again. Raises UserError for
    one that has findings.
    """
    from distcheck import machine

    lessons = dict(read().lessons) if numbers else {}
    for notebook in notebooks.discover(numbers):
        result = notebooks.prove(notebook, PROFILE)
        if not result.ok:
            raise errors.UserError(f"{notebook.stem}: {'; '.join(result.findings)}")
        lessons[notebook.stem] = {
            "seconds": round(result.seconds),
            "numbers": measured(notebook_rules.read(result.ipynb)),
        }
    facts = {
        "machine": f"{machine.summary()}; profile {PROFILE}; {time.strftime('%B %Y')}",
        "lessons": dict(sorted(lessons.items())),
    }
    files.write_whole(FILE, json.dumps(facts, indent=1) + "\n")
    return FILE


if __name__ == "__main__":
    print(files.shown(record(sys.argv[1:])))
