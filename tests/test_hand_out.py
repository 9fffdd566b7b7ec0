"""What a class is handed out: no answers, and checks, hints and lessons that work."""

import functools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from processes import captured
from typer.testing import CliRunner

from distcheck import errors
from utils import cli
from utils.base import course
from utils.grading import hand_out
from utils.lessons import markup, notebook_rules, outline

SOURCES = {markup.name_of(s): s for s in markup.sources(course.PACKAGE_ROOT)}
SOLVED = SOURCES["fashion_mnist"].read_text()

# Lines of step 1 that notebook 03 has its readers run, and that any program has.
TAUGHT = {
    "import horovod.tensorflow.keras as hvd",
    "hvd.init()",
    'gpus = tf.config.list_physical_devices("GPU")',
    "if gpus:",
}


@pytest.fixture(scope="module")
def first_part(tmp_path_factory):
    folder = tmp_path_factory.mktemp("class") / "course"
    return hand_out.hand_out(folder)


@pytest.fixture(scope="module")
def longest(tmp_path_factory):
    folder = tmp_path_factory.mktemp("class") / "course"
    return hand_out.hand_out(folder, "20")


def answers(name: str) -> dict[int, set[str]]:
    """Of each part of an exercise, the lines of code that the exercise has not."""
    text = SOURCES[name].read_text()
    steps = range(len(markup.parts_of(text)) + 1)
    lines = [
        {line.strip() for line in markup.render(text, n).splitlines()} for n in steps
    ]
    return {
        n: {line for line in lines[n] - lines[n - 1] if not line.startswith("#")}
        for n in steps[1:]
    }


def files_of(folder: Path) -> dict[str, str]:
    """The text files of a folder: path -> text, of notebooks that of their cells."""
    texts = {}
    for path in folder.rglob("*"):
        if path.is_file() and path.suffix not in {".npz", ".gz", ".png", ".pyc"}:
            text = path.read_text()
            if path.suffix == ".ipynb":
                cells = notebook_rules.read(path).cells
                text = "\n".join(cell.source for cell in cells)
            texts[path.relative_to(folder).as_posix()] = text
    return texts


def in_class(library: Path, folder: Path, *words: str) -> subprocess.CompletedProcess:
    """`course WORDS` in a folder, by the library of a hand-out."""
    own = {"PYTHONPATH": str(library), "NO_COLOR": "1", "COLUMNS": "100"}
    return captured(
        [sys.executable, "-m", "utils.cli", *words],
        cwd=folder,
        env=os.environ | own,
        timeout=300,
    )


@pytest.mark.parametrize("name", SOURCES)
def test_a_source_without_answers_has_the_same_exercise(name):
    text = SOURCES[name].read_text()
    bare = markup.without_answers(text, name)
    assert markup.render(bare, 0) == markup.render(text, 0)
    assert markup.parts_of(bare) == markup.parts_of(text)
    assert markup.KEPT_BACK in markup.render(bare, 1)
    assert not any(
        line in bare.splitlines() for lines in answers(name).values() for line in lines
    )


def test_no_answer_to_the_six_steps_is_in_any_file(first_part):
    texts = files_of(first_part.folder)
    for step, lines in answers("fashion_mnist").items():
        found = {
            (p, line) for p, text in texts.items() for line in lines if line in text
        }
        if step == 1:  # the library gives devices to processes of its own as well
            found = {(p, line) for p, line in found if not p.startswith("utils/")}
            found = {(p, line) for p, line in found if line not in TAUGHT}
        assert not found, step
    assert not any("after_step" in path for path in texts)
    assert not any(path.startswith(("tests/", "handbook/", ".ci")) for path in texts)


def test_later_exercises_keep_theirs_until_a_lesson_shows_them(longest):
    assert longest.kept_back == ["scaled", "survive", "from_files"]
    for name in (*longest.kept_back, *longest.shown):
        path = longest.folder / f"solutions/{name}_solution.py"
        assert markup.has_answers(path) == (name not in longest.kept_back)
    texts = files_of(longest.folder)
    for name in longest.kept_back:
        whole = markup.render(SOURCES[name].read_text(), len(answers(name)))
        assert not any(
            whole[whole.index("import") :] in text for text in texts.values()
        )


def test_its_outline_has_its_lessons_and_exercises(longest):
    cut = outline.read(longest.folder / "utils/lessons/outline.toml")
    assert list(cut.notebooks) == longest.lessons
    names = set(longest.kept_back) | set(longest.shown)
    assert set(cut.exercises) == names
    whole = outline.read()
    for part, all_of_it in zip(
        (cut.notebooks, cut.exercises), (whole.notebooks, whole.exercises), strict=True
    ):
        assert part == {name: all_of_it[name] for name in part}


def test_its_notebooks_name_no_program_that_is_not_there(first_part, longest):
    for made in (first_part, longest):
        for name in made.lessons:
            path = made.folder / f"notebooks/{name}.ipynb"
            code = [
                cell.source
                for cell in notebook_rules.read(path).cells
                if cell.cell_type == "code"
            ]
            named = re.findall(r"\.\./((?:exercises|solutions)/\w+\.py)", "".join(code))
            # Those, the learner writes.
            for program in set(named) - {
                "exercises/discover_hosts.py",
                "exercises/penalized_loop.py",
                "exercises/waves_mirrored.py",
                "exercises/waves_workers.py",
                "exercises/waves_equal.py",
            }:
                assert (made.folder / program).exists(), (name, program)


def test_a_learner_checks_and_gets_hints_there(first_part, tmp_path):
    # On a server: the library once for all, the rest for each.
    leave = shutil.ignore_patterns("utils")
    folder = shutil.copytree(first_part.folder, tmp_path / "mine", ignore=leave)
    course_command = functools.partial(in_class, first_part.folder, folder)
    todo = course_command("check", "1")
    assert todo.returncode == 1
    assert "Line 16 still says `TODO: Step 1`" in todo.stdout
    assert "Place." in course_command("hint", "1").stdout  # the check nudged
    exercise = folder / "exercises/fashion_mnist.py"
    exercise.write_text(markup.render(SOLVED, 1))
    right = course_command("check", "1", "--json")
    assert right.returncode == 0, right.stdout + right.stderr
    assert json.loads(right.stdout)["verdicts"][0]["state"] == "right"
    for words in (("diff", "1"), ("notebooks", "03"), ("class", "again")):
        refused = course_command(*words)
        assert refused.returncode == 2, words
    assert "your instructor has it" in course_command("diff", "1").stderr
    again = course_command("steps", "--start-over")
    assert again.returncode == 0
    begun = (first_part.folder / "exercises/fashion_mnist.py").read_text()
    assert exercise.read_text() == begun


@pytest.mark.parametrize(
    ("until", "message"),
    [("44", "there is no lesson 44"), ("01", "no answers"), ("22", "show them all")],
)
def test_what_can_not_be_handed_out_is_refused(tmp_path, until, message):
    with pytest.raises(errors.UserError, match=message):
        hand_out.hand_out(tmp_path / "new", until)
    assert not (tmp_path / "new").exists()


def test_a_folder_with_something_in_it_is_left_alone(tmp_path):
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(errors.UserError, match="is there already"):
        hand_out.hand_out(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_each_exercise_has_a_lesson_that_shows_it_or_waits_for_the_last():
    assert set(hand_out.SHOWN_BY) <= set(outline.read().exercises)
    numbers = [lesson.number for lesson in outline.read().notebooks.values()]
    assert {*hand_out.SHOWN_BY.values(), *hand_out.LIBRARY.values()} <= set(numbers)
    assert all((course.PACKAGE_ROOT / path).exists() for path in hand_out.LIBRARY)


@pytest.fixture
def wheels(tmp_path, monkeypatch) -> list[str]:
    """What `make wheel` left for two Pythons, and something that is no wheel."""
    monkeypatch.setattr(hand_out, "WHEELS", tmp_path / "wheels")
    hand_out.WHEELS.mkdir()
    for name in ("horovod-1-cp311.whl", "horovod-1-cp312.whl", "log"):
        (hand_out.WHEELS / name).write_text(f"the content of {name}")
    return ["horovod-1-cp311.whl", "horovod-1-cp312.whl"]


def test_wheels_are_handed_out_where_they_are_asked_for(wheels, tmp_path):
    made = hand_out.hand_out(tmp_path / "class", wheels=True)
    assert made.wheels == wheels
    there = {path.name: path.read_text() for path in (made.folder / "wheels").iterdir()}
    assert there == {name: f"the content of {name}" for name in wheels}
    assert ", ".join(wheels) in str(made)

    without = hand_out.hand_out(tmp_path / "other")
    assert without.wheels == []
    assert not (without.folder / "wheels").exists()
    assert "Horovod" not in str(without)


def test_wheels_that_nobody_has_built_are_missed(wheels, tmp_path):
    for name in wheels:
        (hand_out.WHEELS / name).unlink()
    with pytest.raises(errors.UserError, match="`make wheel` makes one"):
        hand_out.hand_out(tmp_path / "class", wheels=True)
    assert not (tmp_path / "class").exists()


def test_the_command_hands_out_wheels(wheels, tmp_path):
    folder = tmp_path / "class"
    done = CliRunner().invoke(cli.app, ["class", str(folder), "--wheels"])
    assert done.exit_code == 0, done.output
    assert all(name in done.output for name in wheels)
    assert len(list((folder / "wheels").glob("*.whl"))) == len(wheels)
