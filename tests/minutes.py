"""How long a lesson takes, by the same formula for all.

words that are neither folded nor in Going further, which is optional / 180
+ minutes that its cells ran in the reference run
+ 1.5 for each line that a learner writes
+ 1 for each prediction

python tests/minutes.py    # writes them into outline.toml
"""

import difflib
import math
import re

from nbformat import NotebookNode

from distcheck import files
from utils.base import course
from utils.lessons import markup, notebook_rules, notebooks, outline, reference

WORDS_A_MINUTE = 180
MINUTES_A_LINE = 1.5
MINUTES_A_PREDICTION = 1
STEP = 5  # what is said is a multiple of it, rounded up


def words(notebook: NotebookNode) -> int:
    """The words of its text that aren't folded away, nor optional."""
    return sum(map(notebook_rules.words_shown, _texts(notebook)))


def predictions(notebook: NotebookNode) -> int:
    return sum(len(notebook_rules.PREDICT.findall(text)) for text in _texts(notebook))


def lines(lesson: outline.Notebook) -> int:
    """The lines of code that a learner writes in a lesson: those of the parts of its
    exercise that it is the first to check, and those that the outline counts."""
    source = markup.source_of(lesson.exercise).read_text(encoding="utf-8")
    last = notebooks.parts_checked(notebook_of(lesson), source)
    earlier = [
        notebooks.parts_checked(notebook_of(other), source)
        for other in outline.read().notebooks.values()
        if other.exercise == lesson.exercise and other.number < lesson.number
    ]
    first = max(earlier, default=0)
    added = 0
    if last > first:
        before, after = (
            [
                line
                for line in markup.render(source, part).splitlines()
                if line.strip() and not line.strip().startswith("#")
            ]
            for part in (first, last)
        )
        changes = difflib.ndiff(before, after)
        added = sum(change.startswith("+ ") for change in changes)
    return added + lesson.lines


def minutes(lesson: outline.Notebook) -> int:
    """What the formula says, rounded up. Raises LookupError for a lesson that the
    reference run is without."""
    notebook = notebook_of(lesson)
    exact = (
        words(notebook) / WORDS_A_MINUTE
        + reference.read().lessons[lesson.name]["seconds"] / 60
        + MINUTES_A_LINE * lines(lesson)
        + MINUTES_A_PREDICTION * predictions(notebook)
    )
    return STEP * math.ceil(exact / STEP)


def notebook_of(lesson: outline.Notebook) -> NotebookNode:
    path = course.PACKAGE_ROOT / "notebooks" / f"{lesson.name}.ipynb"
    return notebook_rules.read(path)


def _texts(notebook: NotebookNode) -> list[str]:
    """Its cells of text, without what is optional: the section Going further."""
    texts, optional = [], False
    for _, cell in notebook_rules.cells_of(notebook, "markdown"):
        if heading := re.match(r"## (.+)", cell.source):
            optional = heading[1].startswith("Going further")
        if not optional:
            texts.append(cell.source)
    return texts


def main() -> None:
    text = outline.FILE.read_text(encoding="utf-8")
    for lesson in outline.read().notebooks.values():
        text = re.sub(
            rf"(\[notebooks\.{lesson.name}\]\n(?:.+\n)*?minutes = )\d+",
            rf"\g<1>{minutes(lesson)}",
            text,
        )
    files.write_whole(outline.FILE, text)


if __name__ == "__main__":
    main()
