"""The programs after each step, in a notebook that keeps its outputs: nbval compares.

Lesson 02, the other notebook that nbval compares, is run by test_notebooks.py.
"""

import pytest

from utils.base import course, profiles
from utils.checking import exercises
from utils.lessons import notebook_rules, notebooks, outline

ROOT = course.PACKAGE_ROOT
AFTER_EACH_STEP = ROOT / "solutions" / "after_each_step.ipynb"


@pytest.mark.slow
@pytest.mark.timeout(profiles.in_force().time_limit + 60)
def test_each_step_changes_what_the_notebook_shows():
    result = notebooks.prove(AFTER_EACH_STEP, profiles.in_force().name)
    assert result.findings == ()


def test_the_notebook_is_whole_and_knows_every_step():
    notebook = notebook_rules.read(AFTER_EACH_STEP)
    rules = (
        notebook_rules.is_valid,
        notebook_rules.kernel_is_python3,
        notebook_rules.every_cell_ran_in_order,
        notebook_rules.no_absolute_path,
    )
    assert [breach for rule in rules for breach in rule(notebook)] == []
    titles = [
        lesson.title
        for name, lesson in outline.read().notebooks.items()
        if notebooks.step_of(ROOT / "notebooks" / f"{name}.ipynb")
    ]
    sources = [cell.source for cell in notebook.cells]
    headings = [source.splitlines()[0].removeprefix("## ") for source in sources]
    assert [heading for heading in headings if heading.startswith("Step ")] == titles
    steps = exercises.find("fashion_mnist").parts
    assert len(titles) == len(steps)
    assert all(f"after_step({step})" in sources for step in steps)


def test_no_other_notebooks_keep_their_outputs():
    keeping = [
        path.name
        for folder in ("notebooks", "solutions")
        for path in sorted((ROOT / folder).rglob("*.ipynb"))
        if ".ipynb_checkpoints" not in path.parts
        if any(cell.get("outputs") for cell in notebook_rules.read(path).cells)
    ]
    assert len(keeping) == len(notebook_rules.KEEPS_OUTPUTS)
    assert all(name.startswith(notebook_rules.KEEPS_OUTPUTS) for name in keeping)
