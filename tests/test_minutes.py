"""The minutes of a lesson are those of the formula."""

import minutes
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from utils.lessons import outline, reference

LESSONS = outline.read().notebooks.values()
LONGEST = 45


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.number)
def test_outline_has_the_minutes_of_the_formula(lesson):
    assert lesson.minutes == minutes.minutes(lesson), "python tests/minutes.py"
    assert lesson.minutes <= LONGEST


def test_words_predictions_runs_and_lines_are_added(monkeypatch):
    text = "**Predict.** How many?\n\n`code is left out`\n\n" + "word " * 357
    folded = "<details>\n\n" + "word " * 500 + "\n\n</details>"
    further = [
        new_markdown_cell("## Going further: more\n\n**Predict.** So?"),
        new_markdown_cell("### Still more"),
    ]
    cells = [*further, new_markdown_cell("## " + text), new_markdown_cell(folded)]
    cells += [new_code_cell("check(2)"), new_code_cell("check(3)")]
    lesson = outline.Notebook("05_some", "Some", "some", 20, lines=1)
    earlier = outline.Notebook("04_some", "Some", "some", 20)
    books = {
        lesson.name: new_notebook(cells=cells),
        earlier.name: new_notebook(cells=cells[:-1]),
    }
    known = outline.Outline({"04_some": earlier, "05_some": lesson}, {})
    monkeypatch.setattr(outline, "read", lambda: known)
    monkeypatch.setattr(minutes, "notebook_of", lambda of: books[of.name])
    recorded = reference.Reference("", {"05_some": {"seconds": 90, "numbers": {}}})
    monkeypatch.setattr(reference, "read", lambda: recorded)

    assert minutes.words(books["05_some"]) == 361  # the code counts as a word
    assert minutes.predictions(books["05_some"]) == 1
    # Step 3 wraps the optimizer in a call, which takes a line, or more.
    in_step_3 = minutes.lines(lesson) - lesson.lines
    assert in_step_3 >= 1
    assert minutes.lines(earlier) >= 3
    exact = 361 / 180 + 1.5 + 1.5 * (in_step_3 + 1) + 1
    assert 0 <= minutes.minutes(lesson) - exact < 5
    assert minutes.minutes(lesson) % 5 == 0
