"""`course`: what it prints and its exit status, 0 yes, 1 no, 2 used wrongly."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from nbformat.v4 import new_code_cell, new_notebook, writes_json
from processes import course_command

from distcheck.audit import WRONG, Finding, Report
from utils import cli
from utils.base.course import PACKAGE_ROOT
from utils.lessons import markup
from utils.measure.table import TITLES

COMMANDS = {
    *("doctor", "notebooks", "margins", "run", "watch", "steps"),
    *("check", "progress", "diff", "hint", "grade", "bench", "speedrun", "explain"),
}


@pytest.fixture
def tiny_course(own_course):
    """A course of two notebooks: 00 runs, 01 fails."""
    for name, source in (("00_good", "1 + 1;"), ("01_bad", "1 / 0")):
        cell = new_code_cell(source, id="only")
        path = own_course / "notebooks" / f"{name}.ipynb"
        path.write_text(writes_json(new_notebook(cells=[cell])))
    return own_course


def test_help_lists_every_command():
    answer = course_command("--help")
    assert answer.returncode == 0
    assert all(command in answer.stdout for command in COMMANDS)


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_explains_itself(command):
    answer = course_command(command, "--help")
    assert answer.returncode == 0
    assert f"course {command}" in answer.stdout


def test_bench_names_its_sections():
    words = re.findall(r"\w+", course_command("bench", "--help").stdout)
    assert {*TITLES} <= {*words}


@pytest.mark.parametrize(
    "program", ["import utils.cli", "from utils import data; data.load('sample', 100)"]
)
def test_help_and_images_do_not_wait_for_tensorflow(program):
    code = f"{program}; import sys; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["dance"], "No such command"),
        (["notebooks", "--quickly"], "No such option"),
        (["notebooks", "99"], "there is no notebook 99: choose from 00, 01"),
        (["notebooks", "--profile", "laptop"], "choose ci, cpu or gpu"),
        (["run", "a.py", "--epochs", "3"], "own options come after -- alone"),
        (["run", "-np", "2", "python", "a.py"], "leave out `python`"),
        (["audit", "a.py", "--epochs", "3"], "own options come after -- alone"),
        (["steps", "--exercise", "mirrored"], "--exercise goes with --out"),
        (["steps", "--out", "x", "--check"], "neither --check nor --start-over does"),
    ],
)
def test_wrong_usage_is_one_message_and_status_2(tiny_course, arguments, words):
    answer = course_command(*arguments)
    assert answer.returncode == 2
    assert words in answer.stderr
    assert "Traceback" not in answer.stderr
    assert answer.stdout == ""


def test_an_unknown_profile_in_the_environment_is_wrong_usage(tiny_course):
    answer = course_command("notebooks", COURSE_PROFILE="laptop")
    assert answer.returncode == 2
    assert answer.stderr.startswith("there is no profile 'laptop'")


def test_grade_writes_the_gradebook_and_says_where(bubblewrap, tmp_path, monkeypatch):
    root = PACKAGE_ROOT
    monkeypatch.chdir(tmp_path)
    (tmp_path / "class").mkdir()
    exercise = markup.render(
        (root / "solutions/fashion_mnist_solution.py").read_text(), 0
    )
    (tmp_path / "class" / "Ada.py").write_text(exercise)
    (tmp_path / "class" / "Bo.py").write_text("")
    answer = course_command("grade", "class", "--out", "grades")
    assert answer.returncode == 0, answer.stderr
    ada, bo = (line for line in answer.stdout.splitlines() if " of 6 " in line)
    assert "wrong" in ada
    assert "missing" in bo
    assert "Open grades/index.html" in answer.stdout
    book = (tmp_path / "grades" / "gradebook.csv").read_text()
    assert "step-1.todo step-2.todo" in book
    again = course_command("grade", "class", "--out", "grades", "--json")
    assert [row["total"] for row in json.loads(again.stdout)] == [0, 0]
    assert "are known from before" in again.stderr


@pytest.mark.slow
def test_grade_runs_nothing_unprotected_without_being_told_to(tmp_path, monkeypatch):
    """On a machine that has all but bubblewrap."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "class").mkdir()
    (tmp_path / "class" / "ada.py").write_text("raise SystemExit")
    (tmp_path / "bin").mkdir()
    for folder in ("/bin", "/usr/bin"):
        for program in Path(folder).iterdir():
            link = tmp_path / "bin" / program.name
            if program.name != "bwrap" and not link.is_symlink():
                link.symlink_to(program)
    command = ("grade", "class", "--out", "grades", "--until", "1")
    path = os.pathsep.join([str(Path(sys.executable).parent), str(tmp_path / "bin")])
    answer = course_command(*command, PATH=path)
    assert answer.returncode == 2
    assert "sudo apt install bubblewrap" in answer.stderr
    assert "--unprotected" in answer.stderr
    assert not (tmp_path / "grades").exists()
    answer = course_command(*command, "--unprotected", PATH=path)
    assert answer.returncode == 0, answer.stderr
    assert "wrong" in answer.stdout
    assert "NOT PROTECTED" in (tmp_path / "grades" / "reports" / "ada.html").read_text()


@pytest.mark.slow
def test_notebooks_says_no_if_one_fails_and_runs_the_rest(tiny_course):
    answer = course_command("notebooks", "--profile", "ci")
    assert answer.returncode == 1
    assert "00_good ..." in answer.stderr
    good, bad = (
        next(line for line in answer.stdout.splitlines() if f"│ {name}" in line)
        for name in ("00_good", "01_bad")
    )
    assert "ok" in good
    assert "failed" in bad
    assert "01_bad: cell 1 (1 / 0) raised ZeroDivisionError" in answer.stdout
    assert "executed/ci/" in answer.stdout


@pytest.mark.slow
def test_notebooks_says_yes_and_does_nothing_twice(tiny_course):
    first = course_command("notebooks", "0", "--profile", "ci", "--json")
    again = course_command("notebooks", "00", "--profile", "ci", "--json")
    assert (first.returncode, again.returncode) == (0, 0)
    (was,), (is_now,) = json.loads(first.stdout), json.loads(again.stdout)
    assert (was["cached"], is_now["cached"]) == (False, True)
    assert was["html"] == "executed/ci/00_good.html"
    assert was | {"cached": True} == is_now
    output = course_command("notebooks", "00", "--profile", "ci").stdout
    assert "before, nothing changed" in output


FULL = "OSError: [Errno 28] No space left on device"
DISK_FULL = f"[1] {FULL}\n"
SLOTS = "There are not enough slots available in the system to satisfy the 4\n"


def test_explain_reads_a_log_a_pipe_or_the_newest_run(tiny_course):
    (tiny_course / "log").write_text(f"[0] hello\n{DISK_FULL}")
    answer = course_command("explain", "log")
    assert (answer.returncode, answer.stderr) == (0, "")
    first, second, *rest = answer.stdout.splitlines()
    assert (first, second) == ("log, 2 lines:", f"Rank 1, line 2 of the log: {FULL}")
    assert any("The disk is full" in line for line in rest)
    with (tiny_course / "log").open() as log:
        piped = course_command("explain", stdin=log).stdout.splitlines()
    assert piped == ["standard input, 2 lines:", second, *rest]
    assert "there is no run" in course_command("explain").stderr
    for day, text in (("25", DISK_FULL), ("26", "[0] ShoeError: 'x'\n")):
        folder = tiny_course / "logs" / f"2026-11-{day}_09-00-00_program"
        folder.mkdir(parents=True)
        (folder / "log.txt").write_text(text)
    answer = course_command("explain")
    assert answer.returncode == 1
    assert answer.stdout.startswith(f"{folder.relative_to(tiny_course)}/log.txt, 1 li")
    assert "unknown to the course" in answer.stdout
    # What mpirun says belongs to the run, and what is no error hides none.
    (folder / "log.txt").write_text("[0] hello\n")
    assert "looks like an error" in course_command("explain").stdout
    (folder / "launcher.txt").write_text(SLOTS)
    answer = json.loads(course_command("explain", "--json").stdout)
    (found,) = answer["found"]
    assert (found["id"], found["ranks"]) == ("mpi.not-enough-slots", [])
    assert found["cure"]
    assert answer["lines"] == 2


def test_explain_is_instant_and_refuses_what_is_not_there(tiny_course):
    answer = course_command("explain", "nothing")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert "there is no log nothing" in answer.stderr
    script = "import sys; from utils.running import explain; explain.messages(); "
    script += "assert not {'tensorflow', 'pandas', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_audit_says_what_is_known_of_an_error(monkeypatch, capsys):
    def audited(**options):
        raise cli.UserError(f"train.py failed before it trained: {FULL}")

    monkeypatch.setattr(cli.distcheck_cli, "audited", audited)
    with pytest.raises(cli.UserError, match="The disk is full") as raised:
        cli.audit(script=Path("train.py"))
    assert str(raised.value).startswith("train.py failed before it trained")
    finding = Finding("end", "Did every worker finish?", WRONG, FULL)
    report = Report("train.py", 2, [finding], 1.0)
    monkeypatch.setattr(cli.distcheck_cli, "audited", lambda **options: report)
    for as_json in (False, True):
        with pytest.raises(typer.Exit):
            cli.audit(script=Path("train.py"), as_json=as_json)
        assert ("The disk is full" in capsys.readouterr().out) is not as_json


def test_a_diff_in_a_pipe_has_its_lines_whole(monkeypatch, capsys):
    """Rich takes a pipe for a terminal of 80 columns, and cuts code there."""
    line = f"-x = {'+'.join('1' * 100)}"
    monkeypatch.setattr("utils.lessons.work.yours_and_ours", lambda *_: line)
    monkeypatch.setenv("COLUMNS", "80")
    cli.diff(1, "scaled")
    assert capsys.readouterr().out == f"{line}\n"
