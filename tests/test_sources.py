"""Which files decide what code does."""

import pytest

from utils.base import course, sources


def found(*modules: str) -> set[str]:
    paths = sources.files_of(modules)
    return {path.relative_to(course.PACKAGE_ROOT).as_posix() for path in paths}


def test_what_is_imported_on_the_way_counts_and_nothing_else():
    files = found("distcheck.lab", "utils.checking.images")
    assert {
        "utils/__init__.py",  # of each package that it is in
        "utils/checking/__init__.py",
        "utils/checking/images.py",
        "utils/base/course.py",
        "utils/training/fetch.py",  # imported by training/data.py
        "utils/base/logs.py",  # by the name that `utils` has for it, in a function
        "distcheck/lab/forked.py",
        "distcheck/lab/messenger.py",
        "distcheck/recorder/interventions.py",
        "distcheck/supervise.py",
    } <= files
    others = ("checking/judges/", "figures/", "lessons/", "grading/", "measure/")
    assert not [f for f in files if f.removeprefix("utils/").startswith(others)]


def test_a_package_is_all_of_its_modules():
    files = found("utils.checking.judges")
    own = (course.PACKAGE / "checking" / "judges").glob("*.py")
    assert {f"utils/checking/judges/{path.name}" for path in own} <= files


@pytest.mark.parametrize(
    ("program", "modules"),
    [
        (
            "from utils import networks, Stopwatch",
            {"training.networks", "training.stopwatch"},
        ),
        ("def f():\n    from utils.training import data", {"training.data"}),
        ("from utils.training.data import load", {"training.data"}),
        ("import utils.base.course as c", {"base.course"}),
        ("import numpy\nfrom team import utils", set()),
        ("import", set()),
    ],
)
def test_what_a_program_imports_is_known_by_its_text(program, modules):
    assert sources.imported_by(program) == {f"utils.{name}" for name in modules}


def test_a_name_that_there_is_not_is_that_of_the_package():
    assert sources.imported_by("from utils import nothing") == {"utils"}


def test_the_digest_is_another_with_each_file(tmp_path, monkeypatch):
    sources.modules()  # they are looked for where the course is, once
    monkeypatch.setattr(course, "PACKAGE_ROOT", tmp_path)
    room = tmp_path / "utils" / "base"
    room.mkdir(parents=True)
    digests = []
    for name, text in (("course.py", "1"), ("course.py", "2"), ("__init__.py", "2")):
        (room / name).write_text(text)
        digests.append(sources.digest(["utils.base.course"]))
    (tmp_path / "lock").write_text("x==1")
    digests.append(sources.digest(["utils.base.course"], tmp_path / "lock"))
    assert len(set(digests)) == len(digests)
    (room / "files.py").write_text("1")
    assert sources.digest(["utils.base.course"]) == digests[-2]


@pytest.mark.parametrize(
    ("text", "is_same"),
    [
        ('"""What."""\n# Why.\ndef f(\n    x,\n):\n    """How."""\n    return x', True),
        ("def f(x):\n    return  x", True),
        ("def f(x):\n    return -x", False),
        ("def f(x):\n    1\n    return x", False),
    ],
)
def test_comments_docstrings_and_layout_leave_the_digest_as_it_is(
    tmp_path, monkeypatch, text, is_same
):
    sources.modules()
    monkeypatch.setattr(course, "PACKAGE_ROOT", tmp_path)
    program = tmp_path / "program.py"
    program.write_text("def f(x):\n    return x\n")
    digest = sources.digest([], program)
    program.write_text(text)
    assert (sources.digest([], program) == digest) == is_same
