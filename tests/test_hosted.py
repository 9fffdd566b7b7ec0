"""Hosted copies of the notebooks, and what their first cell does to a host's Python.

The hosts of most tests are bare environments, made in a second without the network.
COURSE_HOST names the Python of a real one: of another environment, with TensorFlow,
Keras 3, ipykernel, matplotlib and pandas of its own. Then its kernel executes hosted
copies, which takes the network and half an hour. What came of it is in build/host.
"""

import importlib.util
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import nbformat
import psutil
import pytest
import yaml
from processes import captured, wait_for

from distcheck import errors
from utils.base import course
from utils.lessons import hosted, notebook_rules, notebooks

ROOT = course.PACKAGE_ROOT
WORKFLOW = ROOT / ".github" / "workflows" / "site.yml"
SCRIPT = ROOT / "utils" / "setup" / "hosted.py"
REPOSITORY = "someone/course"


# -------------------------------------------------------------- the copies


@pytest.fixture(scope="module")
def copies(tmp_path_factory) -> list[Path]:
    return hosted.write(tmp_path_factory.mktemp("copies"), REPOSITORY)


def test_a_hosted_copy_is_the_lesson_with_two_cells_in_front(copies):
    sources = notebooks.discover()
    assert [path.name for path in copies] == [path.name for path in sources]
    for source, path in zip(sources, copies, strict=True):
        page = nbformat.read(path, 4)
        nbformat.validate(page)  # each cell has an id of its own
        lesson = notebook_rules.read(source)
        assert page.cells[2:] == lesson.cells
        assert page.metadata == lesson.metadata
        assert [cell.cell_type for cell in page.cells[:2]] == ["markdown", "code"]


def test_the_cell_gets_the_course_from_its_repository(copies):
    words, code = notebook_rules.read(copies[0]).cells[:2]
    assert f"clone --quiet --depth 1 https://github.com/{REPOSITORY} course\n" in (
        code.source
    )
    (named,) = [line for line in code.source.splitlines() if ".py" in line]
    name = named.split('"')[1].removeprefix("course/")
    assert (ROOT / name).is_file()
    assert f"https://github.com/{REPOSITORY}/issues" in words.source
    assert "{" not in words.source + code.source


def test_links_between_copies_lead_to_copies(copies):
    targets = {
        target
        for path in copies
        for target in re.findall(r"\]\((\d\d_[^)#]+)", path.read_text())
    }
    assert len(targets) > 20
    assert targets <= {path.name for path in copies}


@pytest.mark.parametrize("name", ["", "course", "https://github.com/a/b", "a/b c"])
def test_what_is_no_repository_is_refused(tmp_path, name):
    with pytest.raises(errors.UserError, match="OWNER/NAME"):
        hosted.write(tmp_path, name)
    assert list(tmp_path.iterdir()) == []


def test_the_notebooks_themselves_are_not_overwritten(own_course, monkeypatch):
    source = own_course / "notebooks" / "00_check_your_machine.ipynb"
    shutil.copy(ROOT / "notebooks" / source.name, source)
    before = source.read_bytes()
    monkeypatch.chdir(source.parent)
    with pytest.raises(errors.UserError, match="Name another folder"):
        hosted.write("../notebooks", REPOSITORY)
    assert source.read_bytes() == before


def test_a_folder_that_can_t_be_made_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(errors.UserError, match="can't be made"):
        hosted.write(tmp_path / "file" / "copies", REPOSITORY)


# -------------------------------------------------------------- the host's Python


@pytest.fixture
def host(tmp_path) -> Path:
    """The Python of a bare environment beside ours, on the Python that ours is on."""
    command = [sys._base_executable, "-m", "venv", "--without-pip", tmp_path / "host"]
    subprocess.run(command, check=True, timeout=60)
    return tmp_path / "host" / "bin" / "python"


def have(host: Path, *names: str) -> None:
    """Install packages of these names, which say that they are the host's."""
    (packages,) = host.parent.parent.glob("lib/python3.*/site-packages")
    for name in names:
        (packages / name).mkdir(parents=True)
        (packages / name / "__init__.py").write_text("version = 'of the host'\n")
        (packages / name / "part.py").touch()


def outside(**variables: str) -> dict[str, str]:
    """The environment variables of a process that knows nothing of our environment."""
    ours = str(Path(sys.prefix) / "bin")
    path = os.environ["PATH"].split(os.pathsep)
    kept = {name: value for name, value in os.environ.items() if name != "OPAL_PREFIX"}
    kept["PATH"] = os.pathsep.join(folder for folder in path if folder != ours)
    return kept | variables


def on(host: Path, code: str, folder: Path, **variables: str) -> str:
    """What a program of the host's prints. It knows the functions of hosted.py."""
    begin = (
        "import os, runpy, shutil, sys\n"
        "from pathlib import Path\n"
        f"globals().update(runpy.run_path({str(SCRIPT)!r}))\n"
        f"OURS = Path({sys.prefix!r})\n"
    )
    done = captured(
        [host, "-c", begin + code], cwd=folder, env=outside(**variables), timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_environment_s_packages_come_first(host, tmp_path):
    have(host, "utils", "numpy", "mine")
    code = """
enter(OURS)
import mine, numpy, utils
print(mine.version, Path(numpy.__file__).is_relative_to(OURS), utils.__file__)
"""
    utils = ROOT / "utils" / "__init__.py"
    assert on(host, code, tmp_path) == f"of the host True {utils}"


def test_what_tensorflow_needs_newer_is_imported_anew(host, tmp_path):
    """And what else the host has imported stays whole."""
    have(host, "google/protobuf", "rich")
    code = """
import google.protobuf.part, rich
theirs = google.protobuf
enter(OURS)
import google.protobuf, rich.part
print(theirs.version, Path(google.protobuf.__file__).is_relative_to(OURS))
print("google.protobuf.part" in sys.modules, rich.version, rich.part.__name__)
"""
    said = on(host, code, tmp_path)
    assert said == "of the host True\nFalse of the host rich.part"


def test_what_can_t_be_imported_anew_is_refused(host, tmp_path):
    have(host, "tensorflow", "keras")
    code = """
import keras, tensorflow
try:
    refuse_early_imports(OURS)
except HostError as error:
    print(*error._render_traceback_())
"""
    said = on(host, code, tmp_path)
    assert said.startswith("HostError: This kernel has imported the host's tensorflow,")
    assert "tensorflow, keras already" in said


def test_what_is_ours_already_is_not_refused(host, tmp_path):
    code = "enter(OURS)\nimport horovod\nrefuse_early_imports(OURS)\nprint('fine')"
    assert on(host, code, tmp_path) == "fine"


def test_done_again_it_changes_nothing(host, tmp_path):
    code = """
def state():
    return list(sys.path), os.environ["PATH"], sys.prefix, sys.executable

enter(OURS)
first = state()
enter(OURS)
print(first == state(), sys.path.count(first[0][0]), sys.prefix == str(OURS))
"""
    assert on(host, code, tmp_path) == "True 1 True"


def test_an_environment_for_another_python_is_refused(host, tmp_path):
    (tmp_path / "env" / "lib" / "python2.7" / "site-packages").mkdir(parents=True)
    code = """
before = sys.executable, list(sys.path)
try:
    enter(Path("env").resolve())
except HostError as error:
    print(error)
print(before == (sys.executable, sys.path))
"""
    said = on(host, code, tmp_path)
    assert f"not made for this kernel's python3.{sys.version_info[1]}." in said
    assert said.endswith("True")


PROGRAM = """\
import sys
from pathlib import Path

import horovod.tensorflow as hvd

hvd.init()
Path(f"worker.{hvd.rank()}").write_text(f"{hvd.size()} {sys.prefix}")
"""


@pytest.mark.slow
def test_workers_are_started_with_the_environment_s_python(host, tmp_path):
    have(host, "horovod")
    stray = tmp_path / "stray" / "horovod"
    stray.mkdir(parents=True)
    (stray / "__init__.py").write_text("raise ImportError('not this one')")
    for folder in ("notebooks", "exercises"):
        (tmp_path / folder).mkdir()
    (tmp_path / "program.py").write_text(PROGRAM)
    code = """
enter(OURS)
from utils import run
run("program.py", workers=2, quiet=True)
print(os.environ["OPAL_PREFIX"] == str(OURS), shutil.which("mpirun"))
"""
    said = on(host, code, tmp_path, PYTHONPATH=str(stray.parent))
    assert said.split() == ["True", str(Path(sys.prefix, "bin", "mpirun"))]
    for rank in (0, 1):
        assert (tmp_path / f"worker.{rank}").read_text() == f"2 {sys.prefix}"


# -------------------------------------------------------------- the set-up


def on_this_python(name: str):
    """The script, as a module of this process."""
    spec = importlib.util.spec_from_file_location(name, SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_file(folder: Path, *commands: str) -> None:
    """Let `make setup` do something else in a folder."""
    lines = "".join(f"\t@{command}\n" for command in commands)
    (folder / "Makefile").write_text(f"setup:\n{lines}")


def test_the_set_up_is_told_the_host_s_python_and_not_its_settings(
    tmp_path, monkeypatch, capsys
):
    make_file(tmp_path, "echo $(PYTHON) $${UV_SYSTEM_PYTHON-none} $${UV_OTHER-none}")
    module = on_this_python("hosted_told")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setenv("UV_SYSTEM_PYTHON", "true")
    monkeypatch.setenv("UV_OTHER", "kept")
    monkeypatch.setattr(sys, "executable", "/not/the/host's")
    module.set_up()
    assert capsys.readouterr().out == f"{sys._base_executable} none kept\n"


def test_a_set_up_that_fails_says_why(tmp_path, monkeypatch, capsys):
    make_file(tmp_path, "echo broken", "false")
    module = on_this_python("hosted_fails")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    with pytest.raises(module.HostError, match="set-up failed"):
        module.set_up()
    assert capsys.readouterr().out.startswith("broken\n")


def test_a_host_without_make_is_told_so(monkeypatch):
    monkeypatch.setenv("PATH", "")
    module = on_this_python("hosted_bare")
    with pytest.raises(module.HostError, match="make is missing"):
        module.set_up()


def test_a_stage_is_shown_as_it_begins_and_ends_when_the_reader_stops_it(
    host, tmp_path
):
    make_file(tmp_path, "echo $$$$ > pid; printf 'Horovod ... '; exec sleep 100")
    code = f"set_up.__globals__['ROOT'] = Path({str(tmp_path)!r})\nset_up()"
    program = (
        f"import runpy\nfrom pathlib import Path\n"
        f"globals().update(runpy.run_path({str(SCRIPT)!r}))\n{code}"
    )
    process = subprocess.Popen(
        [host, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert select.select([process.stdout], [], [], 30)[0], "nothing was shown"
        assert os.read(process.stdout.fileno(), 100) == b"Horovod ... "
        stage = psutil.Process(int((tmp_path / "pid").read_text()))
        process.send_signal(signal.SIGINT)
        process.wait(30)
        wait_for(lambda: not stage.is_running(), what="the stage to end")
    finally:
        process.kill()
        process.stdout.close()


# -------------------------------------------------------------- the site


@pytest.fixture
def buttons(tmp_path, monkeypatch):
    """Builds a page for one notebook with the site's settings; returns where its links
    to elsewhere lead."""

    def built(repository: str | None) -> set[str]:
        monkeypatch.delenv("GITHUB_REPOSITORY", raising=False)
        if repository:
            monkeypatch.setenv("GITHUB_REPOSITORY", repository)
        pages, html = tmp_path / "pages", tmp_path / f"html_{repository is None}"
        (pages / "notebooks").mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "site" / "conf.py", pages)
        shutil.copytree(ROOT / "site/static", pages / "static", dirs_exist_ok=True)
        shutil.copy(ROOT / "notebooks/00_check_your_machine.ipynb", pages / "notebooks")
        (pages / "index.md").write_text("# Index\n\n```{toctree}\n:glob:\n\n*/*\n```\n")
        command = [sys.executable, "-m", "sphinx", "--quiet", pages, html]
        subprocess.run(command, check=True, timeout=300, stderr=subprocess.DEVNULL)
        page = (html / "notebooks/00_check_your_machine.html").read_text()
        assert "Launch on" not in (html / "index.html").read_text()
        return set(re.findall(r'href="(https://[^"]*(?:colab|kaggle)[^"]*)"', page))

    return built


@pytest.mark.slow
def test_each_lesson_s_page_opens_its_hosted_copy(buttons):
    branch = f"{REPOSITORY}/blob/hosted" if published_branch() == "hosted" else ""
    page = "notebooks/00_check_your_machine.ipynb"
    assert buttons(REPOSITORY) == {
        f"https://colab.research.google.com/github/{branch}/{page}",
        "https://www.kaggle.com/kernels/welcome?src="
        f"https://raw.githubusercontent.com/{branch.replace('blob/', '')}/{page}",
    }
    assert buttons(None) == set()


def publishing() -> str:
    """The commands of the workflow `site` that publish the copies."""
    steps = yaml.safe_load(WORKFLOW.read_text())["jobs"]["site"]["steps"]
    (step,) = [step for step in steps if step.get("name") == "publish hosted copies"]
    return step["run"]


def published_branch() -> str:
    return re.search(r"HEAD:(\w+)", publishing())[1]


def git(*words: str | Path, folder: Path) -> str:
    command = ["git", "-C", folder, *words]
    return captured(command, check=True).stdout


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this is no git repository")
def test_the_workflow_publishes_the_copies_beside_all_other_files(tmp_path):
    """Its commands, in a clone that has an origin of its own, run twice."""
    origin, clone = tmp_path / "origin", tmp_path / "clone"
    git("clone", "--quiet", "--bare", ROOT, origin, folder=tmp_path)
    for again in (False, True):
        shutil.rmtree(clone, ignore_errors=True)
        source = f"file://{origin}"
        git("clone", "--quiet", "--depth", "1", source, clone, folder=tmp_path)
        (clone / ".venv").symlink_to(sys.prefix)
        subprocess.run(
            ["bash", "-e", "-c", publishing()],
            cwd=clone,
            env={
                **os.environ,
                "GITHUB_REPOSITORY": REPOSITORY,
                "GITHUB_SHA": "0" * 40,
                "GIT_CONFIG_GLOBAL": os.devnull,
                **({"GIT_COMMITTER_DATE": "2030-01-01T00:00:00"} if again else {}),
            },
            check=True,
            timeout=120,
            capture_output=True,
        )
    changed = git("diff", "--name-only", "HEAD", "hosted", folder=origin).split()
    assert changed == [f"notebooks/{path.name}" for path in notebooks.discover()]
    name = "hosted:notebooks/00_check_your_machine.ipynb"
    page = nbformat.reads(git("show", name, folder=origin), 4)
    assert f"github.com/{REPOSITORY} course" in page.cells[1].source


# -------------------------------------------------------------- a real host

# What hosts' kernels may have imported before the first cell, as Colab's has.
PRELOADED = """
import google.protobuf.descriptor_pb2, matplotlib.pyplot, numpy, pandas
get_ipython().run_line_magic("matplotlib", "inline")
"""


@pytest.fixture(scope="module")
def home() -> Path:
    """The home folder of a host, with the course as it is here, not set up unless it
    was in an earlier run; and a kernel of the host's Python for Jupyter."""
    home = ROOT / "build" / "host"
    kinds = ("--cached", "--others", "--exclude-standard")
    listed = git("ls-files", "-z", *kinds, folder=ROOT)
    for name in filter(None, listed.split("\0")):
        target = home / "course" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_file():
            shutil.copy(ROOT / name, target)
    # What Python in our environment has set, which starts Jupyter here.
    unset = "OPAL_PREFIX TF_ENABLE_ONEDNN_OPTS TF_CPP_MIN_LOG_LEVEL VIRTUAL_ENV".split()
    argv = ["env", *(f"--unset={name}" for name in unset), os.environ["COURSE_HOST"]]
    argv += ["-m", "ipykernel_launcher", "-f", "{connection_file}"]
    kernel = home / "jupyter" / "kernels" / "python3" / "kernel.json"
    kernel.parent.mkdir(parents=True, exist_ok=True)
    facts = {"argv": argv, "display_name": "host", "language": "python"}
    kernel.write_text(json.dumps(facts))
    return home


REAL = [*((f"{number:02}", False) for number in (*range(9), 10)), ("01", True)]
REAL += [("08", True), ("10", True)]


@pytest.mark.slow
@pytest.mark.timeout(3600)  # the first one sets the course up
@pytest.mark.skipif(
    "COURSE_HOST" not in os.environ,
    reason="COURSE_HOST names no Python of another environment: see this file's head",
)
@pytest.mark.parametrize(("number", "preloaded"), REAL)
def test_a_host_executes_a_hosted_copy(number, preloaded, home, tmp_path):
    """As a learner does who does each step when it is asked for."""
    (source,) = notebooks.discover([number])
    for name, content in notebooks.scratch_files(source).items():
        (home / "course" / name).write_bytes(content)
    page = hosted.hosted_copy(notebook_rules.read(source), REPOSITORY)
    hosted_copy = home / "course" / "notebooks" / source.name
    nbformat.write(page, hosted_copy)
    if preloaded:
        start_up = tmp_path / "profile_default" / "startup" / "preloaded.py"
        start_up.parent.mkdir(parents=True)
        start_up.write_text(PRELOADED)
    environment = outside(
        HOME=str(home),
        JUPYTER_PATH=str(home / "jupyter"),
        IPYTHONDIR=str(tmp_path),
        COURSE_PROFILE="ci",
    )
    if "COURSE_DATA" in environment:
        environment["COURSE_DATA"] = str(Path(environment["COURSE_DATA"]).resolve())
    executed, findings = notebooks._papermill(hosted_copy, environment, 3500, print)
    (home / "executed").mkdir(exist_ok=True)
    kept = home / "executed" / f"{source.stem}{'_preloaded' * preloaded}.ipynb"
    nbformat.write(executed, kept)
    executed.cells = [
        cell
        for cell in executed.cells
        if not notebook_rules.tagged(cell, "papermill-error-cell-tag")
    ]
    assert [*findings, *notebook_rules.audit(executed)] == []
    if notebooks.asks_for_parts(source):
        asked = notebook_rules.parts_asked_for(executed)
        assert asked == notebooks.parts_needed(source)
