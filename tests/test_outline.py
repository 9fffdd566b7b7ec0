"""utils/lessons/outline.toml says what is there, and nothing that is not."""

import re

import pytest

from utils.base import course
from utils.checking import doctor, exercises, lab
from utils.lessons import hints, markup, notebook_rules, notebooks, outline

OUTLINE = outline.read()
EXERCISES = OUTLINE.exercises.values()


def test_its_notebooks_are_those_in_the_folder_with_their_headings():
    assert list(OUTLINE.notebooks) == [path.stem for path in notebooks.discover()]
    for name, notebook in OUTLINE.notebooks.items():
        source = notebook_rules.read(course.PACKAGE_ROOT / f"notebooks/{name}.ipynb")
        heading = source.cells[0].source.splitlines()[0]
        assert heading.startswith(f"# {notebook.title}"), name
        assert notebook.minutes > 0
        assert notebook.exercise in OUTLINE.exercises


def test_what_notebooks_need_are_lines_of_the_doctor():
    software = {line.name for line in doctor._lines_of_software({})}
    needs = {need for notebook in OUTLINE.notebooks.values() for need in notebook.needs}
    assert needs <= software | {"cores"}
    assert "all-reduce" in needs


def test_readme_has_its_table():
    readme = (course.PACKAGE_ROOT / "README.md").read_text()
    assert f"{outline.BEGIN}\n\n{outline.table()}\n\n{outline.END}" in readme
    assert len(re.findall(r"^\| \d\d \| \[", readme, re.MULTILINE)) == len(
        OUTLINE.notebooks
    )


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.name)
def test_each_step_has_a_text_a_judge_worlds_hints_and_a_place(exercise):
    source = course.PACKAGE_ROOT / "solutions" / f"{exercise.name}_solution.py"
    count = markup.count(source.read_text())
    checked = exercises.find(exercise.name)
    assert checked.steps == tuple(range(1, count + 1)) == tuple(hints.of(exercise.name))
    for step in checked.steps:
        assert "{" not in checked.expected[step]
        assert callable(checked.judges[step])
        assert set(checked.step_worlds[step]) <= set(lab.WORLDS)
    assert "{" not in " ".join(checked.options)
    assert sum(step.points for step in exercise.steps) > 0


def test_all_exercises_with_hints_are_there():
    assert list(OUTLINE.exercises) == hints.exercises()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("points = 1", f"points = {value}")
        for value in ("[]", "'1'", "true", "-1", "nan", "inf")
    ]
    + [
        ("points = 1\n", ""),
        ("minutes = 15", "hours = 1"),
        ("[exercises.", "[programs."),
        ("worlds = ", "worlds "),
    ],
)
def test_nonsense_is_an_error_that_names_the_file(tmp_path, old, new):
    path = tmp_path / "outline.toml"
    path.write_text(outline.FILE.read_text().replace(old, new))
    with pytest.raises(course.CourseError, match=r"outline\.toml"):
        outline.read(path)


def test_an_exercise_that_is_none_is_named_with_those_that_are():
    with pytest.raises(course.CourseError, match="fashion_mnist, scaled"):
        outline.exercise("fashion")
