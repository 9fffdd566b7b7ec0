"""Notebooks are executed for real: the course's own, once, and tiny ones that fail in
every way a notebook can."""

import os
import shutil
import signal
import subprocess
import sys
import uuid
from dataclasses import replace
from pathlib import Path

import pytest
from nbformat.v4 import (
    new_code_cell,
    new_markdown_cell,
    new_notebook,
    new_output,
    writes_json,
)
from processes import wait_for, with_variable

from distcheck import errors
from utils.base import course, profiles, sources
from utils.lessons import notebook_rules, notebooks, outline, work
from utils.lessons.notebooks import prove

OURS = notebooks.discover()


def profile() -> str:
    """That of `course notebooks` without options, so that its results are used."""
    return profiles.settings().name


# -------------------------------------------------------------- the course's own


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.stem)
def test_source_keeps_the_rules(path):
    assert notebook_rules.lint(path) == []


@pytest.mark.slow
@pytest.mark.timeout(profiles.in_force().time_limit + 60)
@pytest.mark.parametrize("path", OURS, ids=lambda path: path.stem)
def test_runs_and_shows_what_it_promises(path):
    assert prove(path, profile()).findings == ()


def test_what_is_folded_stays_folded_on_its_page_and_images_are_in_it(tmp_path):
    """Also where there are blank lines, so that it is read as Markdown."""
    (tmp_path / "dot.gif").write_bytes(b"GIF89a")
    folded = "<details>\n<summary>More</summary>\n\nSome *more*.\n\n</details>"
    cells = [new_markdown_cell(text) for text in (folded, "![a dot](dot.gif)")]
    page, _ = notebooks._exporter().from_notebook_node(
        new_notebook(cells=cells), {"metadata": {"path": str(tmp_path)}}
    )
    body = page.partition("<details>")[2].partition("</details>")[0]
    assert "<em>more</em>" in body
    assert "data:image/gif;base64" in page


# -------------------------------------------------------------- tiny ones


@pytest.fixture
def tiny_course(own_course):
    """A course whose notebooks the test writes."""
    (own_course / "solutions").mkdir()
    return own_course


@pytest.fixture
def steps_course(tiny_course):
    """The same, with the exercise of the six steps."""
    shutil.copy(
        course.PACKAGE_ROOT / "solutions/fashion_mnist_solution.py", "solutions"
    )
    return tiny_course


def write(folder: Path, name: str, *sources: str, outputs=None) -> Path:
    """A notebook of code cells; with `outputs`, one for each, as if it had been run."""
    cells = [new_code_cell(source, id=f"c{n}") for n, source in enumerate(sources)]
    for count, (cell, text) in enumerate(zip(cells, outputs or (), strict=False), 1):
        cell.execution_count = count
        cell.outputs = [new_output("stream", name="stdout", text=f"{text}\n")]
    facts = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    path = folder / "notebooks" / f"{name}.ipynb"
    path.write_text(writes_json(new_notebook(cells=cells, metadata=facts)))
    return path


def stdout_of(result) -> list[str]:
    executed = notebook_rules.read(result.ipynb)
    return [
        output.text.strip()
        for _, cell in notebook_rules.cells_of(executed, "code")
        for output in cell.outputs
        if output.output_type == "stream"
    ]


# Says as papermill and nbval do that its kernel died, in the first runs.
DYING = """
import sys
from pathlib import Path

starts = Path("starts")
starts.write_text((starts.read_text() if starts.exists() else "") + "x")
dies = len(starts.read_text()) <= int(sys.argv[1])
if dies:
    print("RuntimeError: Kernel died before replying to kernel_info")
sys.exit(int(dies))
"""


@pytest.mark.parametrize(("stillborn", "started"), [(0, 1), (1, 2), (9, 3)])
def test_a_kernel_whose_ports_were_taken_is_started_anew(stillborn, started, tmp_path):
    command = [sys.executable, "-c", DYING, str(stillborn)]
    status = notebooks._supervised(command, tmp_path, dict(os.environ), 60.0, print)
    assert len((tmp_path / "starts").read_text()) == started
    assert bool(status) == (stillborn == 9)


def test_a_notebook_runs_in_a_scratch_copy(steps_course, monkeypatch):
    real_data = steps_course / "elsewhere"
    real_data.mkdir()
    monkeypatch.setenv("COURSE_DATA", "elsewhere")  # relative to here, not to there
    exercise = steps_course / "exercises" / "fashion_mnist.py"
    exercise.write_text("my own work")
    path = write(
        steps_course,
        "00_look_around",
        "import os\nfrom pathlib import Path\nfrom utils import course, settings",
        "print(settings().name)",
        "print(Path.cwd() == course.root() / 'notebooks')",
        "print('my own work' in Path('../exercises/fashion_mnist.py').read_text())",
        "print(Path('../exercises/fashion_mnist.py').read_text().count('TODO') > 0)",
        "print(Path(os.environ['COURSE_DATA']).is_dir())",
        "Path('../logs').mkdir()",
    )
    result = prove(path, "ci")
    assert result.findings == ()
    assert stdout_of(result) == ["ci", "True", "False", "True", "True"]
    assert exercise.read_text() == "my own work"
    assert not (steps_course / "logs").exists()
    assert result.ipynb == steps_course / "executed/ci/00_look_around.ipynb"
    assert sorted(path.name for path in result.ipynb.parent.iterdir()) == [
        "00_look_around.html",
        "00_look_around.ipynb",
    ]


def test_the_exercise_is_done_as_far_as_the_notebook_has_come(steps_course):
    all_six = [1, 2, 3, 4, 5, 6]
    left_to_do = {
        "01_before": all_six,
        "03_step_1_begin": all_six,  # to be done when it asks
        "05_step_3_go_on": all_six,
        "09_after": [4, 5, 6],
    }
    for name in left_to_do:
        write(steps_course, name, "1")
    for path in notebooks.discover():
        exercise = steps_course / "exercise.py"
        exercise.write_bytes(
            notebooks.scratch_files(path)["exercises/fashion_mnist.py"]
        )
        assert list(work.missing_parts(exercise)) == left_to_do[path.stem]


@pytest.mark.slow
def test_a_step_is_done_when_it_is_asked_for(steps_course):
    kind = write(
        steps_course,
        "04_step_2_kind",
        "from utils import need_steps",
        "need_steps(1)",
        "need_steps(2)",
        "raise ValueError('step 9')",
    )
    (finding,) = prove(kind, "ci").findings
    assert "raised ValueError" in finding
    executed = notebook_rules.read(steps_course / "executed/ci/04_step_2_kind.ipynb")
    messages = [
        error.evalue
        for cell in executed.cells
        for (error,) in cell.metadata.get("stopped", [])
    ]
    assert [line.partition(":")[0] for line in messages] == [
        "step 1 is still to do",
        "step 2 is still to do",
    ]


@pytest.mark.slow
def test_a_step_that_is_not_asked_for_is_found(steps_course):
    unkind = write(
        steps_course,
        "05_step_3_unkind",
        "from utils import need_steps",
        "need_steps(2)",
    )
    (finding,) = prove(unkind, "ci").findings
    assert "asks for 2 of 3 parts" in finding


@pytest.mark.slow
@pytest.mark.parametrize("step", [1, 7])
def test_what_stays_missing_ends_the_notebook(steps_course, step):
    """A step that is done, or that the exercise hasn't, is an error as any other."""
    path = write(
        steps_course,
        "03_step_1_stubborn",
        "from utils.lessons.work import StepMissing",
        f"raise StepMissing('step {step} is never done')",
    )
    (finding,) = prove(path, "ci").findings
    assert "raised StepMissing" in finding


@pytest.mark.parametrize(
    ("sources", "words"),
    [
        (["import sys", "sys.exit(0)", "print('never')"], "never ran"),
        (["import os", "os._exit(0)", "print('never')"], "Kernel died"),
        (["%%bash\nfalse", "print('never')"], "raised CalledProcessError"),
    ],
)
def test_what_papermill_takes_for_an_end_is_seen_through(tiny_course, sources, words):
    result = prove(write(tiny_course, "00_fail", *sources), "ci")
    assert any(words in finding for finding in result.findings), result.findings
    assert result.ipynb.exists()
    assert result.html.exists()


# What a cell leaves running: a child in a session of its own, and itself.
ESCAPE = (
    "import subprocess, time\nfrom pathlib import Path",
    "subprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
    "Path(r'{marker}').touch()\n"
    "time.sleep(1000)",
)


@pytest.fixture
def family(monkeypatch):
    """Lists the processes that were started during this test, wherever they went."""
    name = str(uuid.uuid4())
    monkeypatch.setenv("COURSE_FAMILY", name)
    return lambda: with_variable("COURSE_FAMILY", lambda value: value == name)


@pytest.mark.slow
def test_an_overrun_ends_with_all_its_processes(tiny_course, family, monkeypatch):
    impatient = replace(profiles.PROFILES["ci"], time_limit=10)
    monkeypatch.setitem(profiles.PROFILES, "ci", impatient)
    escape = [line.format(marker=tiny_course / "started") for line in ESCAPE]
    path = write(tiny_course, "00_overrun", *escape)
    result = prove(path, "ci")
    assert any("its time limit of 10 s" in finding for finding in result.findings)
    assert family() == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ending", "jobs"), [(signal.SIGINT, 1), (signal.SIGINT, 2), (signal.SIGKILL, 2)]
)
def test_nothing_survives_the_command(tiny_course, family, ending, jobs):
    marker = tiny_course / "started"
    escape = [line.format(marker=marker) for line in ESCAPE]
    for name in ("00_overrun", "01_overrun", "02_overrun"):
        write(tiny_course, name, *escape)
    scratch = tiny_course / "scratch"
    scratch.mkdir()
    command = subprocess.Popen(
        [
            *(sys.executable, "-m", "utils.cli", "notebooks"),
            *("--profile", "ci", "--jobs", str(jobs)),
        ],
        env={**os.environ, "TMPDIR": str(scratch)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(marker.exists, 100, "the cell to start")
        assert len(family()) >= 4  # the command, a supervisor, the kernel, its child
        command.send_signal(ending)
        wait_for(lambda: command.poll() is not None, what="the command to end")
    finally:
        command.kill()
    wait_for(lambda: not family(), what="all its processes to end")
    assert not (tiny_course / "executed").exists()
    if ending == signal.SIGINT:  # who is killed can't tidy up; a later supervisor does
        assert list(scratch.iterdir()) == []


# -------------------------------------------------------------- no proof twice


@pytest.mark.slow
def test_a_notebook_is_executed_again_only_when_something_changed(
    tiny_course, monkeypatch
):
    counter = tiny_course / "count"
    monkeypatch.setenv("COURSE_COUNTER", str(counter))
    count = "import os\nopen(os.environ['COURSE_COUNTER'], 'a').write('x');"
    path = write(tiny_course, "00_count", count)
    other = write(tiny_course, "01_other", "print('other')")

    def runs_of(**options) -> tuple[int, bool]:
        before = counter.stat().st_size if counter.exists() else 0
        result = prove(path, "ci", **options)
        assert result.findings == ()
        return counter.stat().st_size - before, result.cached

    assert notebooks.kept(path, "ci") is None
    assert runs_of() == (1, False)
    assert notebooks.kept(path, "ci").cached
    assert runs_of() == (0, True)
    other.write_text(other.read_text().replace("'other'", "'another'"))
    assert runs_of() == (0, True)
    assert runs_of(force=True) == (1, False)
    (tiny_course / "exercises" / "hints.md").write_text("a hint")
    assert not notebooks.kept(path, "ci").cached
    assert runs_of() == (1, False)
    write(tiny_course, "00_count", count, "print('changed')")
    assert runs_of() == (1, False)
    assert runs_of() == (0, True)


def test_what_a_result_depends_on(tiny_course, tmp_path, monkeypatch):
    path = write(tiny_course, "00_some", "1")
    write(tiny_course, "01_other", "1")

    def fingerprint(profile: str = "ci") -> str:
        return notebooks.fingerprint(path, notebooks.scratch_files(path), profile)

    fingerprints = [fingerprint(), fingerprint("cpu")]
    (tiny_course / "requirements.lock").write_text("a package")
    fingerprints.append(fingerprint())
    (tiny_course / "solutions" / "program.py").write_text("1")
    fingerprints.append(fingerprint())
    outlined = tmp_path / "outline.toml"
    outlined.write_text(outline.FILE.read_text())
    monkeypatch.setattr(outline, "FILE", outlined)
    assert fingerprint() == fingerprints[-1]
    outlined.write_text("# otherwise")
    fingerprints.append(fingerprint())
    assert len(set(fingerprints)) == len(fingerprints)


def test_a_result_depends_on_the_figures_that_are_named(tiny_course):
    path = write(tiny_course, "00_some", "memory = 1")

    def figures() -> set[str]:
        modules = notebooks._modules_behind(path, notebooks.scratch_files(path))
        paths = sources.files_of(modules)
        every = {*course.PACKAGE.rglob("*.py")}
        others = every - {*(course.PACKAGE / "figures").iterdir()}
        assert others <= {*paths}
        return {path.stem for path in paths} & {"memory", "accuracy", "style"}

    assert "memory" not in figures()
    write(tiny_course, "00_some", "from utils import figures\nfigures.memory.a()")
    assert figures() == {"memory", "style"}
    program = "from utils.figures import accuracy"
    (tiny_course / "solutions" / "program.py").write_text(program)
    assert figures() == {"memory", "accuracy", "style"}


@pytest.mark.slow
def test_a_pretended_machine_has_results_of_its_own(tiny_course, monkeypatch):
    text = "from utils import settings\nprint(settings().workers)"
    path = write(tiny_course, "00_asks", text)
    own = prove(path, "ci")
    monkeypatch.setenv("DISTCHECK_PRETEND", "workers=3")
    other = prove(path, "ci")
    assert own.ok
    assert other.ok
    assert other.ipynb.parent.name == "ci_workers=3"
    assert stdout_of(own) == ["2"]
    notice, workers = sorted(stdout_of(other), reverse=True)
    assert notice.endswith("this machine is pretended: workers=3.")
    assert workers == "3"


@pytest.mark.slow
def test_a_failure_is_not_kept_for_good(tiny_course, monkeypatch):
    path = write(
        tiny_course, "00_maybe", "import os\nassert 'COURSE_LUCK' in os.environ"
    )
    assert prove(path, "ci").findings != ()
    monkeypatch.setenv("COURSE_LUCK", "1")
    assert prove(path, "ci").findings == ()


@pytest.mark.slow
def test_other_data_is_another_proof(tiny_course, monkeypatch):
    path = write(tiny_course, "00_some", "1;")
    monkeypatch.setenv("COURSE_DATA", str(tiny_course / "data"))
    assert not prove(path, "ci").cached
    (tiny_course / "data").mkdir()
    (tiny_course / "data" / "images.gz").write_bytes(b"images")
    assert not prove(path, "ci").cached
    assert prove(path, "ci").cached


# -------------------------------------------------------------- outputs that are kept


def test_kept_outputs_are_compared(tiny_course):
    right = write(tiny_course, "02_sum", "a = 1;print(a)", "print(a + 1)", outputs="12")
    result = prove(right, "ci")
    assert result.findings == ()
    assert stdout_of(result) == ["1", "2"]
    wrong = write(tiny_course, "02_sum", "a = 1;print(a)", "print(a + 1)", outputs="13")
    (finding,) = prove(wrong, "ci").findings
    assert "cell 1: Cell outputs differ" in finding
    assert "--inplace" in finding


# -------------------------------------------------------------- choosing


def test_notebooks_are_found_in_order_and_by_number(tiny_course):
    for name in ("10_ten", "02_two", "readme", "3_three"):
        write(tiny_course, name, "1")
    assert [path.stem for path in notebooks.discover()] == ["02_two", "10_ten"]
    assert [path.stem for path in notebooks.discover(["2"])] == ["02_two"]
    with pytest.raises(errors.UserError, match=r"no notebook 77: choose from 02, 10"):
        notebooks.discover(["77", "10"])


def test_a_course_without_notebooks_is_an_error(tiny_course):
    with pytest.raises(errors.UserError, match="no notebooks in"):
        notebooks.discover()


@pytest.mark.slow
def test_pages_link_to_pages(tiny_course):
    path = write(tiny_course, "00_first")
    notebook = notebook_rules.read(path)
    notebook.cells = [new_markdown_cell("[Next](01_next.ipynb)", id="link")]
    path.write_text(writes_json(notebook))
    assert 'href="01_next.html"' in prove(path, "ci").html.read_text()
