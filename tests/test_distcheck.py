"""`distcheck` is a package of its own, and its command works without the course."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import tomli
import typer.testing
from processes import captured

from distcheck import audit, cli, errors
from distcheck.judges.audit import QUESTIONS, Finding
from distcheck.judges.audit.recorded import UNKNOWN
from distcheck.verdict import RIGHT, WRONG
from utils.base import course

FOLDER = course.PACKAGE_ROOT / "distcheck"
PROJECT = tomli.loads((FOLDER / "pyproject.toml").read_text())
AUDITED = Path(__file__).parent / "audited"
# What is there already where it is imported: the user's own, and rich's pygments.
OTHERS = {"tensorflow", "tf_keras", "keras", "horovod", "pygments"}


def modules() -> list[Path]:
    return [path for path in FOLDER.rglob("*.py") if "build" not in path.parts]


def test_its_wheel_has_each_of_its_packages():
    folders = {path.parent.relative_to(FOLDER.parent) for path in modules()}
    packages = PROJECT["tool"]["setuptools"]["packages"]
    assert sorted(packages) == sorted(".".join(f.parts) for f in folders)


def test_it_depends_on_what_it_imports_and_no_more():
    named: set[str] = set()
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                named |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                named.add((node.module or "").partition(".")[0])
    foreign = named - sys.stdlib_module_names - {"distcheck"} - OTHERS
    assert sorted(foreign) == sorted(PROJECT["project"]["dependencies"])


def test_its_readme_explains_each_question():
    rows = re.findall(r"^\| (.+\?) \| .+ \|$", (FOLDER / "README.md").read_text(), re.M)
    assert rows == [question for question, _ in QUESTIONS.values()]


def test_it_has_the_version_of_the_course():
    assert PROJECT["project"]["version"] == course.version()


# ------------------------------------------------------------ the command


FOUND = [
    Finding("together", "One team?", RIGHT, "Two workers."),
    Finding("speed", "Faster?", UNKNOWN, "Too short."),
    Finding(
        "gradients", "Averaged, once?", WRONG, "50 %: not\naveraged.", "net/a.py:3"
    ),
    Finding("files", "By one?", WRONG, "Ranks 0 and 1 all write it."),
]


@pytest.fixture
def invoke(monkeypatch):
    """A function that gives the command's result, where an audit has found FOUND."""

    def audited(script, *arguments, **options):
        if not Path(script).suffix:
            raise errors.UserError("there is no such program.")
        findings = [f for f in FOUND if f.verdict != WRONG or "--bad" in arguments]
        return audit.Report(str(script), options["workers"], findings, 1.0)

    monkeypatch.setattr(audit, "audit", audited)
    return lambda *words: typer.testing.CliRunner().invoke(cli.app, words)


@pytest.mark.parametrize(("options", "status"), [((), 0), (("--", "--bad"), 1)])
def test_the_exit_status_says_whether_something_is_wrong(invoke, options, status):
    result = invoke("-np", "3", "train.py", *options)
    assert result.exit_code == status
    assert "Faster?" in result.stdout
    assert "::error" not in result.output


@pytest.mark.parametrize("error", [errors.UserError("No."), ValueError("Oh.")])
def test_what_gives_no_answer_ends_with_status_2(monkeypatch, capsys, error):
    def fails(*arguments, **options):
        raise error

    monkeypatch.setattr(audit, "audit", fails)
    monkeypatch.setattr(sys, "argv", ["distcheck", "train.py"])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert str(error) in said
    assert ("Traceback" in said) == isinstance(error, ValueError)


# Names a strategy, so that it is started as the tasks of a cluster.
TASK = """
import json, os, time
me = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
print(f"this is task {me}", flush=True)
if me == 0:
    print("there is no room for me", flush=True)
    os._exit(3)
time.sleep(100)
MultiWorkerMirroredStrategy
"""


def test_what_a_task_of_a_cluster_printed_is_shown_where_it_failed(
    tmp_path, monkeypatch
):
    (tmp_path / "train.py").write_text(TASK)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(errors.UserError, match="could not be run") as raised:
        audit.audit("train.py", quick=True)
    assert str(raised.value).endswith("this is task 0\nthere is no room for me")


def test_an_option_of_the_program_needs_two_dashes_before_it(invoke):
    result = invoke("train.py", "--epochs", "3")
    assert result.exit_code == 2
    assert "own options come after -- alone" in " ".join(result.stderr.split())
    assert "after --" not in invoke("-np", "two", "train.py").stderr


def test_json_is_all_that_it_prints(invoke):
    result = invoke("--json", "--format", "github", "train.py", "--", "--bad")
    found = json.loads(result.stdout)
    assert not found["ok"]
    assert [f["verdict"] for f in found["findings"]] == [f.verdict for f in FOUND]
    assert result.stderr.count("::error") == 2


def test_github_marks_the_lines_of_what_is_wrong(invoke):
    result = invoke("--format", "github", "src/train.py", "--", "--bad")
    assert result.exit_code == 1
    assert [line for line in result.stderr.splitlines() if line] == [
        "::error file=src/net/a.py,line=3,title=Averaged%2C once?::"
        "50 %25: not%0Aaveraged.",
        "::error file=src/train.py,title=By one?::Ranks 0 and 1 all write it.",
    ]


def test_github_is_told_of_nothing_where_nothing_is_wrong(invoke):
    result = invoke("--format", "github", "train.py")
    assert result.exit_code == 0
    assert "::error" not in result.output


# ------------------------------------------------------------ without the course


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """The folder of the programs of an environment in which its wheel is installed.

    For the rest, it sees the packages of the course's environment, but nothing of the
    course: what a .pth file of that one leads to isn't followed from here.
    """
    folder = tmp_path_factory.mktemp("alone")
    source = shutil.copytree(FOLDER, folder / "source" / "distcheck")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    offline = ["--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir", folder]
    subprocess.run([*pip, "wheel", *offline, source], check=True, timeout=300)
    (wheel,) = folder.glob("distcheck-*.whl")
    home = folder / "env"
    anew = [sys.executable, "-m", "venv", "--without-pip", home]
    subprocess.run(anew, check=True, timeout=120)
    python = home / "bin" / "python"
    here = ["--python", python, "install", "--no-index", "--no-deps", wheel]
    subprocess.run([*pip, *here], check=True, timeout=120)
    (site,) = home.glob("lib/python3.*/site-packages")
    (site / "packages.pth").write_text(f"{Path(numpy.__file__).parent.parent}\n")
    return python.parent


def in_folder(folder: Path, *command: object, **options) -> subprocess.CompletedProcess:
    """Run a command in an environment without the course's programs."""
    variables = {name: os.environ[name] for name in ("HOME",) if name in os.environ}
    variables |= {"PATH": "/usr/bin:/bin", "COLUMNS": "200"}
    return captured(
        [str(word) for word in command], cwd=folder, env=variables, timeout=800
    )


def test_nothing_of_the_course_is_there(installed, tmp_path):
    looks = "import distcheck, importlib.util as u; print(distcheck.__file__)"
    looks += "; print(u.find_spec('utils'))"
    result = in_folder(tmp_path, installed / "python", "-c", looks)
    file, utils = result.stdout.split()
    assert Path(file).is_relative_to(installed.parent)
    assert utils == "None"


@pytest.mark.parametrize("command", [("distcheck",), ("python", "-m", "distcheck")])
def test_it_explains_itself(installed, tmp_path, command):
    program, *words = command
    result = in_folder(tmp_path, installed / program, *words, "--help")
    assert result.returncode == 0
    assert "--in-place" in result.stdout


@pytest.mark.skipif(shutil.which("mpirun", path="/usr/bin:/bin"), reason="has one")
def test_without_mpirun_it_says_so(installed, tmp_path):
    shutil.copy(AUDITED / "by_hand.py", tmp_path)
    result = in_folder(tmp_path, installed / "distcheck", "by_hand.py")
    assert result.returncode == 2
    assert result.stderr.startswith("there is no mpirun here")
    assert "Traceback" not in result.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_it_runs_a_program(installed, tmp_path):
    """The folder has modules that are called as some that distcheck needs itself."""
    for name in ("psutil.py", "typer.py", "distcheck.py"):
        (tmp_path / name).write_text("raise SystemExit('not this one')\n")
    shutil.copy(AUDITED / "mirrored_loop.py", tmp_path / "train.py")
    before = sorted(os.listdir(tmp_path))
    command = [installed / "distcheck", "-np", "2", "--quick", "--json", "train.py"]
    result = in_folder(tmp_path, *command)
    assert result.returncode == 0, result
    verdicts = {f["id"]: f["verdict"] for f in json.loads(result.stdout)["findings"]}
    assert verdicts["together"] == verdicts["start"] == RIGHT
    assert sorted(os.listdir(tmp_path)) == before
