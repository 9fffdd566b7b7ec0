"""The course as a class gets it: a folder without the answers, whose checks work.

Lessons show answers, too: `scaled.py` begins with the six steps of `fashion_mnist.py`,
and lesson 12 runs the finished many_workers.py. So a hand-out ends with a lesson, and
keeps back what no lesson up to that one shows (SHOWN_BY).
"""

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from distcheck import errors, files
from utils.base import course
from utils.lessons import hints, markup, outline

# The first lesson that shows how a program is done; those that aren't here are kept
# back until EVERYTHING.
SHOWN_BY = {
    outline.FIRST: "14",  # it is run there, and scaled.py of lesson 16 begins with it
    "mirrored": "14",
    "custom_loop": "11",  # it is run after each of its tasks
    "many_workers": "12",  # the finished program is run, with apparatus
    "servers": "13",  # likewise
}
EVERYTHING = "22"

# What any lesson needs. The tests and the handbook have answers in them.
ALWAYS = (
    "distcheck utils LICENSE Makefile pyproject.toml environment.yml "
    "requirements.txt requirements.lock requirements-spark.txt "
    "requirements-spark.lock .gitignore "
    "requirements-jax.txt requirements-jax.lock "
    "requirements-torch.txt requirements-torch.lock "
    "Containerfile Dockerfile .dockerignore .devcontainer"
).split()
PAGES = ("glossary.md", "clinic.md", "messages", "clusters.md", "gpus.md")

# Where `make wheel` leaves Horovod, built for one system and one Python each.
WHEELS = course.PACKAGE_ROOT / "wheels"

# What of the library has answers in it, and the lesson that needs it.
LIBRARY = {"utils/measure/programs": "15", "utils/checking/clinic.toml": "22"}

# Programs of the course that show how a learner's program of lesson 09 is to end.
OWN_WAYS = ("waves_distributed.py",)


@dataclass(frozen=True)
class HandOut:
    """A folder for a class. lessons: the names of the notebooks in it. kept_back: the
    exercises whose answers are not; shown: those whose answers are. wheels: the names
    of the files in it from which Horovod is installed without being built."""

    folder: Path
    lessons: list[str]
    kept_back: list[str]
    shown: list[str]
    wheels: list[str]

    def __str__(self) -> str:
        lines = [
            f"{files.shown(self.folder)}: lessons {self.lessons[0][:2]} to "
            f"{self.lessons[-1][:2]}, without tests and handbook.",
            f"Answers kept back: {', '.join(self.kept_back)}.",
        ]
        if self.shown:
            lines.append(
                "Answers that are in it, as lessons show them: "
                f"{', '.join(self.shown)}."
            )
        if self.wheels:
            lines.append(
                f"Horovod is in it, built already: {', '.join(self.wheels)}. Where one "
                "fits, `make setup` takes it and needs no compiler."
            )
        return "\n".join(lines)


def hand_out(out: Path, until: str = "09", wheels: bool = False) -> HandOut:
    """Write the folder `out` for a class: the lessons up to number `until`, with their
    exercises as they begin, and without the answers that no such lesson shows; with
    `wheels`, also what `make wheel` has built.

    Raises UserError for a folder with something in it, for a number that no lesson
    has, for one up to which there is nothing to keep back, and for wheels that are
    wanted where none has been built.
    """
    root = course.PACKAGE_ROOT
    lessons = [
        lesson for lesson in outline.read().notebooks.values() if lesson.number <= until
    ]
    if not lessons or lessons[-1].number != until:
        numbers = ", ".join(n.number for n in outline.read().notebooks.values())
        raise errors.UserError(f"there is no lesson {until}: choose from {numbers}.")
    exercises = {exercise_of(lesson) for lesson in lessons} - {None}
    kept_back = [name for name in outline.read().exercises if name in exercises]
    shown = [n for n in kept_back if SHOWN_BY.get(n, EVERYTHING) <= until]
    kept_back = [name for name in kept_back if name not in shown]
    if not kept_back:
        raise errors.UserError(
            f"lessons 00 to {until} have no answers to keep back, or show them all: "
            "end with another lesson, or hand out the course as it is."
        )
    sources = markup.sources(root)
    if not all(markup.has_answers(source) for source in sources):
        raise errors.UserError(
            "this folder was handed out to a class: make others from the course itself."
        )
    built = sorted(WHEELS.glob("*.whl")) if wheels else []
    if wheels and not built:
        raise errors.UserError(
            f"{files.shown(WHEELS)} has no wheel to hand out: `make wheel` makes one."
        )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise errors.UserError(
            f"{files.shown(out)} is there already. Name a folder that is new or empty."
        )
    out.mkdir(parents=True, exist_ok=True)
    _copy_always(root, out, until)
    texts = [_notebook(root, lesson.name, kept_back) for lesson in lessons]
    for lesson, text in zip(lessons, texts, strict=True):
        _write(out / f"notebooks/{lesson.name}.ipynb", text)
    for image in sorted((root / "notebooks").glob("*.png")):
        shutil.copy2(image, out / "notebooks")
    for source in sources:
        if markup.name_of(source) in (*kept_back, *shown):
            _write_exercise(source, out, markup.name_of(source) in kept_back)
    _copy_named(root, out, "\n".join(texts))
    _write(out / "exercises/hints.md", hints.only((*kept_back, *shown)))
    names = [lesson.name for lesson in lessons]
    in_out = out / outline.FILE.relative_to(course.PACKAGE_ROOT)
    _write(in_out, outline.only(names, (*kept_back, *shown)))
    _write(out / "README.md", _readme(lessons))
    for wheel in built:
        (out / WHEELS.name).mkdir(exist_ok=True)
        shutil.copy2(wheel, out / WHEELS.name)
    return HandOut(out, names, kept_back, shown, [wheel.name for wheel in built])


def exercise_of(lesson: outline.Notebook) -> str | None:
    """The program with checks that learners work on in a lesson; None where in none.

    An outline has FIRST for all that have no other; it is worked on in 03 to 08.
    """
    own = lesson.exercise != outline.FIRST or "_step_" in lesson.name
    return lesson.exercise if own else None


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_whole(path, text)


def _copy_always(root: Path, out: Path, until: str) -> None:
    later = [Path(path).name for path, lesson in LIBRARY.items() if lesson > until]
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.pyc", *later)
    for name in ALWAYS:
        if (root / name).is_dir():
            shutil.copytree(root / name, out / name, ignore=ignored)
        elif (root / name).exists():
            shutil.copy2(root / name, out / name)


def _write_exercise(source: Path, out: Path, without_answers: bool) -> None:
    """An exercise as it begins, and its annotated source."""
    text = source.read_text(encoding="utf-8")
    path = out / "solutions" / source.name
    _write(path, markup.without_answers(text, source.name) if without_answers else text)
    for rendering, program in markup.renderings(path).items():
        _write(rendering, program)


def _notebook(root: Path, name: str, kept_back: list[str]) -> str:
    """The text of a notebook that runs the learner's own program, where the course's
    would show what was kept back, and without the cells about nothing but that."""
    notebook = json.loads((root / f"notebooks/{name}.ipynb").read_text("utf-8"))
    own_ways = OWN_WAYS if outline.FIRST in kept_back else ()
    cells: list[dict] = []
    for cell in notebook["cells"]:
        text = "".join(cell["source"])
        sources = {f"solutions/{name}_solution.py" for name in kept_back}
        reads = "read_text()" in text and any(source in text for source in sources)
        if not reads and not any(way in text for way in own_ways):
            cells.append(cell)
        elif cell["cell_type"] == "code" and cells[-1]["cell_type"] == "markdown":
            if cells[-1]["source"][0].startswith("## "):
                cells.pop()  # its heading and what was said of it
    text = json.dumps(notebook | {"cells": cells}, indent=1, ensure_ascii=False)
    programs = r"solutions/(\w+?)_(?:solution|after_step_\d\d|after_task_[A-Z])\.py"
    return (
        re.sub(
            programs,
            lambda m: f"exercises/{m[1]}.py" if m[1] in kept_back else m[0],
            text,
        )
        + "\n"
    )


def _copy_named(root: Path, out: Path, texts: str) -> None:
    """What these notebooks name of exercises/ and solutions/ and is not there yet."""
    pages = {f"exercises/{page}" for page in PAGES}
    named = set(re.findall(r"((?:exercises|solutions)/\w+(?:\.\w+|/))", texts))
    if "clinic.admit" in texts:
        named.add("solutions/patient.py")
    for name in sorted(pages | named):
        path = root / name
        if path.is_dir():
            shutil.copytree(path, out / name, dirs_exist_ok=True)
        elif path.is_file() and not (out / name).exists():
            (out / name).parent.mkdir(exist_ok=True)
            shutil.copy2(path, out / name)


def _readme(lessons: list[outline.Notebook]) -> str:
    rows = "\n".join(
        f"| {lesson.number} | [{lesson.title}](notebooks/{lesson.name}.ipynb) | "
        f"{lesson.teaches} | {lesson.minutes} |"
        for lesson in lessons
    )
    return f"""# Distributed training, step by step

`make lab` sets up what is missing, in the folder `.venv`, and opens JupyterLab on the
first lesson. You work on the programs in `exercises/`. A lesson for each step asks you
for a change, shows what it does, and checks it. In a terminal, type
`. .venv/bin/activate` first. Then you can use `course doctor`, `course check 3`,
`course hint 3` and `course progress`.

| No. | Lesson | What you learn | Minutes |
|---|---|---|---|
{rows}

Three pages help you further. The [glossary](exercises/glossary.md) says what a word
means. [Troubleshooting](exercises/clinic.md) says what to do if a training goes wrong.
[Where to get a GPU](exercises/gpus.md) says how to get one for an hour.
"""
