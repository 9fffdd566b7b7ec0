"""utils/lessons/outline.toml says what is there, and nothing that is not."""

import re

import pytest

from distcheck import errors
from distcheck.scenarios import SCENARIOS
from utils import Routes
from utils.base import course
from utils.checking import doctor, exercises
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
    assert f"{outline.BEGIN}\n\n{outline.overview()}\n\n{outline.END}" in readme
    assert len(re.findall(r"^\| \d\d \| \[", readme, re.MULTILINE)) == len(
        OUTLINE.notebooks
    )


def test_every_lesson_is_on_one_route_and_in_a_part():
    numbers = [lesson.number for lesson in OUTLINE.notebooks.values()]
    assert set(OUTLINE.parts) <= set(numbers)
    assert min(OUTLINE.parts) == numbers[0]
    for number in numbers:
        on = [r for r in OUTLINE.routes if r.lessons[0] <= number <= r.lessons[1]]
        assert len(on) == 1, number


def links(text: str) -> list[tuple[str, str]]:
    """The labels of the links to lessons in a text, and the lessons' names."""
    return re.findall(r"\[([^\]]*)\]\((\d\d_\w+)\.ipynb", text)


@pytest.mark.parametrize("path", notebooks.discover(), ids=lambda path: path.stem[:2])
def test_lessons_are_linked_by_their_titles_and_lead_to_the_next(path):
    cells = notebook_rules.cells_of(notebook_rules.read(path), "markdown")
    text = "\n".join(cell.source for _, cell in cells)
    for label, name in links(text):
        assert label.replace("`", "") == OUTLINE.notebooks[name].title

    names = list(OUTLINE.notebooks)
    # Of the lessons of which one is chosen, each leads to the one after all of them.
    chosen = {number for route in OUTLINE.routes for number in route.one_of}
    following = names[names.index(path.stem) + 1 :]
    if path.stem[:2] in chosen or (following and following[0][:2] in chosen):
        following = [name for name in following if name[:2] not in chosen]
    summary = text.partition("\n## Summary\n")[2].partition("<details>")[0]
    if following:
        assert links(summary)[-1][1] == following[0]


@pytest.mark.parametrize(
    ("minutes", "words"),
    [(20, "½ hour"), (60, "1 hour"), (95, "1½ hours"), (120, "2 hours")],
)
def test_the_hours_of_a_route_are_those_of_its_lessons(monkeypatch, minutes, words):
    lessons = [
        outline.Notebook(f"0{n}_a", "A", "a", m) for n, m in enumerate((minutes - 5, 5))
    ]
    whole = outline.Outline({lesson.name: lesson for lesson in lessons}, {})
    monkeypatch.setattr(outline, "read", lambda: whole)
    assert outline.Route("R", ("00", "01"), "r").hours == words
    assert outline.Route("R", ("00", "01"), "r", ("00", "01")).minutes == minutes - 5
    assert outline.Route("R", ("01", "09"), "r").minutes == 5


def test_learners_see_each_route():
    text = repr(Routes())
    assert all(route.title in text for route in OUTLINE.routes if route.minutes)
    assert "00 to 10" in text


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.name)
def test_each_part_has_a_check_hints_and_a_place(exercise):
    source = course.PACKAGE_ROOT / "solutions" / f"{exercise.name}_solution.py"
    checked = exercises.find(exercise.name)
    assert checked.parts == markup.parts_of(source.read_text())
    assert checked.parts == tuple(hints.of(exercise.name)) == exercise.parts
    for check in checked.checks.values():
        assert "{" not in check.expected
        assert callable(check.judge)
        assert set(check.scenarios) <= set(SCENARIOS)
    assert "{" not in " ".join(checked.options)
    assert sum(exercise.points.values()) > 0


def test_only_the_six_steps_are_called_steps():
    kinds = {e.name: {type(part) for part in e.parts} for e in EXERCISES}
    assert kinds.pop(outline.FIRST) == {int}
    assert all(kind == {str} for kind in kinds.values())


@pytest.mark.parametrize(
    ("name", "given", "part"),
    [("scaled", "B", "B"), ("scaled", "b", "B"), ("fashion_mnist", "3", 3)],
)
def test_a_part_is_known_as_it_is_typed(name, given, part):
    assert outline.exercise(name).part(given) == part


@pytest.mark.parametrize(
    ("name", "given", "has"),
    [
        ("scaled", "3", "scaled has tasks A, B, C"),
        ("scaled", 3, "scaled has tasks A, B, C"),
        ("scaled", "D", "scaled has tasks A, B, C"),
        ("fashion_mnist", "A", "fashion_mnist has steps 1, 2, 3, 4, 5, 6"),
        ("fashion_mnist", 0, "fashion_mnist has steps 1, 2, 3, 4, 5, 6"),
    ],
)
def test_a_part_that_is_none_is_named_with_those_that_are(name, given, has):
    with pytest.raises(errors.UserError, match=f"no `{given}`: {has}"):
        outline.exercise(name).part(given)


def test_all_exercises_with_hints_are_there():
    text = (course.PACKAGE_ROOT / "exercises" / "hints.md").read_text()
    assert list(OUTLINE.exercises) == re.findall(r"^# (\w+)\.py$", text, re.M)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("{ 1 = 1,", f"{{ 1 = {value},")
        for value in ("[]", "'1'", "true", "-1", "nan", "inf")
    ]
    + [
        ("points = { 1 = 1,", "other = { 1 = 1,"),
        ("\nminutes = ", "\nhours = "),
        ("[exercises.", "[programs."),
        ("points = ", "points "),
        ("{ 1 = 1, ", "{ "),
        ("{ A = 1, ", "{ 1 = 1, "),
        ("[[routes]]", "[[ways]]"),
        ("about = ", "says = "),
    ],
)
def test_nonsense_is_an_error_that_names_the_file(tmp_path, old, new):
    path = tmp_path / "outline.toml"
    path.write_text(outline.FILE.read_text().replace(old, new))
    with pytest.raises(errors.UserError, match=r"outline\.toml"):
        outline.read(path)


def test_an_exercise_that_is_none_is_named_with_those_that_are():
    with pytest.raises(errors.UserError, match="fashion_mnist, scaled"):
        outline.exercise("fashion")
