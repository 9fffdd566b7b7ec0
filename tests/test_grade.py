"""Grading a class, with an examination that is made up."""

import csv
import json
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from distcheck import files
from distcheck.errors import UserError
from distcheck.verdict import NOT_CHECKED, RIGHT, UNDECIDED, WRONG, Verdict
from utils.base import course
from utils.grading import grade as module
from utils.grading import gradebook
from utils.grading.examined import Examined
from utils.grading.grade import grade
from utils.lessons import markup, outline

SOURCE = course.PACKAGE_ROOT / "solutions" / "fashion_mnist_solution.py"
NAMES = ("alicia", "benedict", "constanza", "dietmar", "xanthippe", "wolfhard")


def rendered(n: int) -> str:
    return markup.render(SOURCE.read_text(), n)


def verdicts(done: int) -> tuple[Verdict, ...]:
    return tuple(
        Verdict(n, f"step-{n}.{state.split()[0]}", state, "This.", "That.")
        for n, state in (
            (n, RIGHT if n <= done else WRONG if n == done + 1 else NOT_CHECKED)
            for n in range(1, 7)
        )
    )


class Examination:
    """Tells from the TODOs how far a program is; counts what it was asked."""

    def __init__(self):
        self.programs: list[str] = []
        self.paths: list[Path] = []
        self.stop_at = None

    def __call__(self, program: Path) -> Examined:
        text = program.read_text()
        self.paths.append(program)
        if len(self.programs) + 1 == self.stop_at:
            raise KeyboardInterrupt
        self.programs.append(text)
        if "break the grader" in text:
            raise RuntimeError(f"no sandbox in {program.parent}")
        todo = [int(n) for n in re.findall(r"TODO: Step (\d)", text)]
        status = "wrong" if todo else "ok"
        seconds = 10 + len(self.programs) / 7  # another one each time
        log = "\n".join(f"line {n} \udcff" for n in range(500))
        done = min(todo, default=7) - 1
        return Examined(verdicts(done), status, ("No network.",), log, seconds)


@pytest.fixture
def examination() -> Examination:
    return Examination()


@pytest.fixture
def handed_in(tmp_path) -> Path:
    """The submissions of six learners, of whom two did the same, one nothing."""
    folder = tmp_path / "submissions"
    folder.mkdir()
    (folder / "alicia.py").write_text(rendered(6))
    (folder / "benedict").mkdir()
    (folder / "benedict/benedict.py").write_text(rendered(2))
    with zipfile.ZipFile(folder / "constanza.zip", "w") as archive:
        archive.writestr("constanza/fashion_mnist.py", rendered(4))
    (folder / "dietmar.py").write_text(rendered(2))
    (folder / "wolfhard.py").write_text("")
    (folder / "xanthippe").mkdir()
    (folder / "xanthippe/xanthippe_1.py").write_text("1")
    (folder / "xanthippe/xanthippe_2.py").write_text("2")
    return folder


@pytest.fixture
def out(tmp_path) -> Path:
    return tmp_path / "grades"


def results(folder: Path) -> dict[str, bytes]:
    """All files but the kept examinations."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.parent.name != ".cache"
    }


def kept(folder: Path) -> list[Path]:
    return sorted((folder / ".cache").glob("*.json"))


def rows(out: Path) -> list[dict]:
    with (out / "gradebook.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def contents(folder):
    """What must not change, by path; the time of the last reading may."""
    return {
        path: (
            path.stat().st_mode,
            path.stat().st_mtime_ns,
            path.is_file() and path.read_bytes(),
        )
        for path in folder.rglob("*")
    }


@pytest.mark.parametrize("jobs", [1, 3])
def test_a_class(handed_in, out, examination, jobs):
    before = contents(handed_in)
    grades = grade(handed_in, out, jobs=jobs, examine=examination)
    assert [(graded.learner, graded.status, graded.total) for graded in grades] == [
        ("alicia", "ok", 6),
        ("benedict", "wrong", 2),
        ("constanza", "wrong", 4),
        ("dietmar", "wrong", 2),
        ("wolfhard", "missing", 0),
        ("xanthippe", "refused", 0),
    ]
    assert [row["total"] for row in rows(out)] == ["6", "2", "4", "2", "0", "0"]
    assert len(examination.programs) == 3  # the same program once
    assert {path.name for path in examination.paths} == {"fashion_mnist.py"}
    assert len({path.parent for path in examination.paths}) == 3
    assert not any(path.exists() for path in examination.paths)
    names = [*NAMES[:4], "wolfhard", "xanthippe"]
    pages = [f"reports/{name}.html" for name in names]
    assert sorted(results(out)) == sorted(
        [*pages, "gradebook.csv", "index.html", "nbgrader.csv"]
    )
    assert contents(handed_in) == before
    assert json.dumps([graded.as_json() for graded in grades])


def test_the_same_again_is_the_same_and_runs_nothing(handed_in, out, examination):
    grade(handed_in, out, jobs=2, examine=examination)
    before = results(out)
    again = Examination()
    grade(handed_in, out, examine=again)
    assert again.programs == []
    assert results(out) == before


def test_pages_for_who_may_hand_in_again_show_no_answer(handed_in, out, examination):
    grade(handed_in, out, examine=examination)
    page = out / "reports/benedict.html"  # steps 1 and 2 are done
    answer = "optimizer = hvd.DistributedOptimizer(optimizer)"
    assert answer in page.read_text()
    again = Examination()
    grade(handed_in, out, compared=False, examine=again)
    assert again.programs == []
    assert "2 of 6 points" in page.read_text()
    assert answer not in page.read_text()
    assert "Beside the course" not in page.read_text()


def test_a_class_that_is_at_step_3_is_graded_and_compared_there(
    handed_in, out, examination
):
    asked = []

    def examine(program, parts):
        asked.append(parts)
        whole = examination(program)
        judged = whole.verdicts[: len(parts)]
        status = "ok" if all(verdict.ok for verdict in judged) else "wrong"
        return replace(whole, verdicts=judged, status=status)

    grades = grade(handed_in, out, examine=examine, until="3")
    assert set(asked) == {(1, 2, 3)}
    assert [(graded.status, graded.total, graded.max) for graded in grades[:3]] == [
        ("ok", 3, 3),
        ("wrong", 2, 3),
        ("ok", 3, 3),
    ]
    header = list(rows(out)[0])
    assert header[1:6] == ["step_1", "step_2", "step_3", "total", "max"]
    page = (out / "reports/benedict.html").read_text()  # steps 1 and 2 are done
    assert "program after step 3" in page
    assert "optimizer = hvd.DistributedOptimizer(optimizer)" in page
    assert "BroadcastGlobalVariablesCallback" not in page
    # What was found out up to step 3 is not what is to be found out of all six.
    whole = Examination()
    assert grade(handed_in, out, examine=whole)[0].max == 6
    assert len(whole.programs) == 3
    page = (out / "reports/benedict.html").read_text()
    assert "BroadcastGlobalVariablesCallback" in page


def test_a_step_that_there_is_not_can_not_be_graded_up_to(handed_in, out, examination):
    with pytest.raises(UserError, match="no `7`: fashion_mnist has steps 1, 2"):
        grade(handed_in, out, examine=examination, until="7")
    with pytest.raises(UserError, match="no `3`: mirrored has tasks A, B"):
        grade(handed_in, out, "mirrored", examine=examination, until="3")
    assert not out.exists()


def test_only_what_changed_is_run_again(handed_in, out, examination, monkeypatch):
    grade(handed_in, out, examine=examination)
    (handed_in / "dietmar.py").write_text(rendered(3))
    (handed_in / "alicia.py").rename(handed_in / "renamed.py")
    again = Examination()
    assert grade(handed_in, out, examine=again)[2].total == 3
    assert again.programs == [rendered(3)]

    monkeypatch.setattr(module, "VERSION", "another")
    checked_anew = Examination()
    grade(handed_in, out, examine=checked_anew)
    assert len(checked_anew.programs) == 4


def test_the_version_is_that_of_all_that_decides(tmp_path, monkeypatch):
    package = shutil.copytree(course.PACKAGE, tmp_path / "utils")
    shutil.copytree(course.PACKAGE_ROOT / "distcheck", tmp_path / "distcheck")
    monkeypatch.setattr(course, "PACKAGE_ROOT", tmp_path)
    versions = [module._checker_version()]
    for path in (
        tmp_path / "requirements.lock",
        package / "grading" / "sandbox.py",
        tmp_path / "distcheck" / "judges" / "steps" / "step_3.py",
        package / "checking" / "judges" / "scaled.py",
        package / "checking" / "recorders" / "survive.py",
        tmp_path / "distcheck" / "recorder" / "horovod.py",
        tmp_path / "distcheck" / "lab" / "messenger.py",
        package / "training" / "survival.py",  # which a program may import
    ):
        path.open("a").write("another = 1\n")
        versions.append(module._checker_version())
    assert len(set(versions)) == len(versions)
    for path in (
        package / "figures" / "speed.py",
        package / "lessons" / "notebook_rules.py",
        package / "grading" / "report.py",
    ):
        path.open("a").write("another = 1\n")
        assert module._checker_version() == versions[-1]


@pytest.mark.parametrize("jobs", [1, 2])
def test_stopped_and_gone_on(handed_in, out, examination, jobs, capsys):
    examination.stop_at = 3
    with pytest.raises(KeyboardInterrupt):
        grade(handed_in, out, jobs=jobs, examine=examination)
    done = len(kept(out))
    # A second thread may have ended at the same moment.
    assert done == 2 if jobs == 1 else done <= 2
    assert f"Stopped after {done} of 3 programs" in capsys.readouterr().err
    assert results(out) == {}  # no half gradebook
    rest = Examination()
    grade(handed_in, out, jobs=jobs, examine=rest)
    assert len(rest.programs) == 3 - done
    assert len(rows(out)) == 6


def test_what_ends_after_the_stop_is_not_kept(handed_in, out):
    begun = threading.Barrier(2, timeout=20)
    stopped = threading.Event()

    def examine(program):
        begun.wait()
        if "TODO" not in program.read_text():
            raise KeyboardInterrupt
        stopped.wait(1)  # a Ctrl-C reaches the other program as well, which dies of it
        return Examined((), "crashed", (), "", 1.0, "It died.")

    with pytest.raises(KeyboardInterrupt):
        grade(handed_in, out, jobs=2, examine=examine)
    assert kept(out) == []


def test_stopped_later_it_leaves_the_former_results(handed_in, out, examination):
    grade(handed_in, out, examine=examination)
    before = results(out)
    (handed_in / "dietmar.py").write_text(rendered(3))
    stopped = Examination()
    stopped.stop_at = 1
    with pytest.raises(KeyboardInterrupt):
        grade(handed_in, out, examine=stopped)
    assert results(out) == before


def test_killed_and_gone_on(handed_in, out):
    driver = f"""
import sys, time
sys.path.insert(0, {str(course.PACKAGE_ROOT / "tests")!r})
from pathlib import Path
import test_grade
examination = test_grade.Examination()
def slowly(program):
    if len(examination.programs) == 2:
        print("two are done", flush=True)
        time.sleep(100)
    return examination(program)
test_grade.grade(Path({str(handed_in)!r}), Path({str(out)!r}), examine=slowly)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", driver],
        cwd=course.PACKAGE_ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "two are done\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert len(kept(out)) == 2
    assert results(out) == {}
    rest = Examination()
    grade(handed_in, out, examine=rest)
    assert len(rest.programs) == 1


@pytest.mark.parametrize("damage", ["{", "", "[]", "{}", '{"verdicts": 3}', "\xff"])
def test_what_was_kept_badly_is_run_again(handed_in, out, examination, damage):
    grade(handed_in, out, examine=examination)
    kept(out)[0].write_text(damage, encoding="latin-1")
    again = Examination()
    grade(handed_in, out, examine=again)
    assert len(again.programs) == 1


def test_a_grader_error_is_nobodys_zero(handed_in, out, examination):
    (handed_in / "benedict/benedict.py").write_text("# break the grader")
    grades = grade(handed_in, out, examine=examination)
    assert [graded.status for graded in grades][:3] == ["ok", "grader error", "wrong"]
    assert grades[1].points == (None,) * 6
    assert "RuntimeError: no sandbox in ." in grades[1].reason
    row = rows(out)[1]
    assert {row[f"step_{n}"] for n in range(1, 7)} | {row["total"]} == {""}
    page = (out / "reports/benedict.html").read_text()
    assert "no sandbox" in page
    before = results(out)
    again = Examination()
    grade(handed_in, out, examine=again)
    assert again.programs == ["# break the grader"]  # it was not kept
    assert results(out) == before


def test_what_the_machine_could_not_decide_is_tried_again(handed_in, out):
    programs = []

    def examine(program):
        programs.append(program)
        last = Verdict(6, "step-6.undecided", UNDECIDED, "This.", "No memory.")
        return Examined((*verdicts(6)[:5], last), "ok", (), "", 1.0)

    graded, *_ = grade(handed_in, out, examine=examine)
    assert graded.points == (1, 1, 1, 1, 1, None)
    assert (graded.total, rows(out)[0]["total"]) == (None, "")
    grade(handed_in, out, examine=examine)
    assert len(programs) == 6
    assert kept(out) == []


def test_what_is_refused_is_not_tried_again(handed_in, out):
    programs = []

    def examine(program):
        programs.append(program)
        last = Verdict(6, "step-6.tampered", UNDECIDED, "This.", "It replaced print.")
        return Examined((*verdicts(6)[:5], last), "refused", (), "", 1.0, "print")

    graded, *_ = grade(handed_in, out, examine=examine)
    assert (graded.total, rows(out)[0]["total"]) == (0, "0")
    grade(handed_in, out, examine=examine)
    assert len(programs) == 3


def test_a_page_that_can_not_be_made_is_nobody_else_s_trouble(
    handed_in, out, examination, monkeypatch
):
    facts = module.report._facts

    def fails_for_constanza(grade, course_text):
        if grade.learner == "constanza" and grade.program:
            raise TypeError("not this one")
        return facts(grade, course_text)

    monkeypatch.setattr(module.report, "_facts", fails_for_constanza)
    for _ in range(2):
        grades = grade(handed_in, out, examine=examination)
        assert [
            graded.status for graded in grades if graded.learner == "constanza"
        ] == ["grader error"]
        assert [row["total"] for row in rows(out)] == ["6", "2", "", "2", "0", "0"]
        assert "not this one" in (out / "reports/constanza.html").read_text()
    assert len(kept(out)) == 2  # hers is not kept


@pytest.mark.parametrize("status", ["crashed", "hung", "refused"])
def test_an_examination_may_end_without_verdicts(handed_in, out, status):
    examined = Examined((), status, ("No network.",), "log", 3.0, "it ended itself")
    graded, *_ = grade(handed_in, out, examine=lambda program: examined)
    assert (graded.status, graded.total) == (status, 0)
    assert graded.reason == "it ended itself"
    assert len(kept(out)) == 3


def test_jobs_are_done_at_the_same_time(handed_in, out, examination):
    barrier = threading.Barrier(3, timeout=20)

    def examine(program):
        barrier.wait()
        return examination(program)

    assert grade(handed_in, out, jobs=3, examine=examine)[0].status == "ok"


def test_a_single_job_is_done_by_the_caller(handed_in, out, examination):
    def examine(program):
        assert threading.current_thread() is threading.main_thread()
        return examination(program)

    assert grade(handed_in, out, examine=examine)[0].status == "ok"


def test_an_anonymous_grading_names_nobody(handed_in, out, examination):
    grades = grade(handed_in, out, anonymous=True, examine=examination)
    files = {
        path.relative_to(out).as_posix(): path.read_bytes()
        for path in out.rglob("*")
        if path.is_file()
    }
    assert len(files) > len(NAMES) + 3  # a page for each, and those of the class
    for name in NAMES:
        assert name.encode() in files["learners.csv"]
        for path, content in files.items():
            assert name not in path
            assert path == "learners.csv" or name.encode() not in content.lower()
    assert (out / "learners.csv").stat().st_mode & 0o077 == 0
    with (out / "learners.csv").open(newline="", encoding="utf-8") as file:
        whose = {row["id"]: row["learner"] for row in csv.DictReader(file)}
    assert sorted(whose.values()) == sorted(NAMES)
    assert {whose[graded.learner]: graded.total for graded in grades}["constanza"] == 4
    # The order of the names is not the order of the rows.
    assert [row["learner"] for row in rows(out)] == sorted(whose)

    before = results(out)
    (handed_in / "hugo.py").write_text(rendered(6))
    grade(handed_in, out, anonymous=True, examine=examination)
    with (out / "learners.csv").open(newline="", encoding="utf-8") as file:
        more = {row["id"]: row["learner"] for row in csv.DictReader(file)}
    assert whose.items() < more.items()
    (handed_in / "hugo.py").unlink()
    (out / "learners.csv").write_bytes(before["learners.csv"])
    for path in (out / "reports").glob(f"{(set(more) - set(whose)).pop()}.*"):
        path.unlink()
    grade(handed_in, out, anonymous=True, examine=Examination())
    assert results(out) == before


def test_names_and_ids_do_not_mix(handed_in, out, examination):
    grade(handed_in, out, examine=examination)
    before = results(out)
    with pytest.raises(UserError, match="another grading"):
        grade(handed_in, out, anonymous=True, examine=examination)
    assert results(out) == before


def test_pages_of_a_former_class_are_left_and_named(
    handed_in, out, examination, capsys
):
    grade(handed_in, out, examine=examination)
    (handed_in / "alicia.py").unlink()
    capsys.readouterr()
    grade(handed_in, out, examine=examination)
    assert (out / "reports/alicia.html").exists()
    assert ": alicia.html\n" in capsys.readouterr().err
    assert "alicia" not in (out / "index.html").read_text()


@pytest.mark.parametrize("where", ["submissions", "submissions/grades", ".", "link/x"])
def test_results_do_not_go_into_the_submissions(
    handed_in, tmp_path, examination, where
):
    (tmp_path / "link").symlink_to(handed_in)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError, match="one in the other"):
        grade(handed_in, tmp_path / where, examine=examination)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_of_something_else_is_left_alone(handed_in, out, examination):
    out.mkdir()
    (out / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="no grading; none of them was touched"):
        grade(handed_in, out, examine=examination)
    assert [path.name for path in out.iterdir()] == ["thesis.txt"]
    with pytest.raises(UserError, match="is a file"):
        grade(handed_in, out / "thesis.txt", examine=examination)
    assert examination.programs == []


def test_what_else_is_in_a_grading_is_left_alone(handed_in, out, examination):
    out.mkdir()
    grade(handed_in, out, examine=examination)
    (out / "notes.txt").write_text("mine")
    grade(handed_in, out, examine=examination)
    assert (out / "notes.txt").read_text() == "mine"


def test_an_exercise_that_cannot_be_graded_is_an_error(handed_in, out, monkeypatch):
    def never(program):
        raise AssertionError

    with pytest.raises(UserError, match="ring_allreduce"):
        grade(handed_in, out, exercise="ring_allreduce", examine=never)
    with pytest.raises(UserError, match="there is no exercise"):
        grade(handed_in, out, exercise="../../x", examine=never)
    exercise = outline.exercise("fashion_mnist")
    short = replace(exercise, points={1: 1, 2: 1})
    monkeypatch.setattr(outline, "exercise", lambda name: short)
    with pytest.raises(
        UserError, match="1, 2 for fashion_mnist, whose parts are 1, 2, 3"
    ):
        grade(handed_in, out, examine=never)
    assert not out.exists()


def test_a_class_is_not_slowed_down_by_many(tmp_path, out, examination):
    folder = tmp_path / "many"
    folder.mkdir()
    for n in range(60):
        (folder / f"learner {n}.py").write_text(rendered(n % 7) + f"# {n}\n")
    started = time.monotonic()
    assert len(grade(folder, out, jobs=2, examine=examination)) == 60
    assert time.monotonic() - started < 30


def test_the_log_is_kept_short(handed_in, out, examination):
    grade(handed_in, out, examine=examination)
    assert all(path.stat().st_size < 20_000 for path in kept(out))
    page = (out / "reports/alicia.html").read_text()
    assert "[420 lines left out]" in page
    assert "line 499 [U+DCFF]" in page


def test_two_gradings_at_once_give_each_learner_one_id(
    handed_in, out, examination, monkeypatch
):
    draw = gradebook.ids

    def slowly(names, path):
        drawn = draw(names, path)
        time.sleep(0.5)
        return drawn

    def learners(_):
        grades = grade(handed_in, out, anonymous=True, examine=examination)
        return {grade.learner for grade in grades}

    monkeypatch.setattr(gradebook, "ids", slowly)
    with ThreadPoolExecutor() as threads:
        first, second = threads.map(learners, range(2))
    assert first == second


def test_when_one_result_can_not_be_written_all_are_the_former_ones(
    handed_in, out, examination, monkeypatch
):
    grade(handed_in, out, examine=examination)
    (handed_in / "alicia.py").unlink()
    before = results(out)
    monkeypatch.setattr(gradebook, "nbgrader", lambda *_: "\udcff")
    with pytest.raises(UnicodeEncodeError):
        grade(handed_in, out, examine=examination)
    assert results(out) == before
    assert list(out.rglob(files.HALVES)) == []


def test_the_class_to_try_grading_on_can_be_made(tmp_path):
    script = Path(__file__).with_name("make_class.py")
    subprocess.run([sys.executable, script, tmp_path / "class"], check=True, timeout=60)
    submissions = module.collect(tmp_path / "class", "fashion_mnist")
    assert len(submissions) == 30
    assert {submission.status for submission in submissions} == {
        "handed in",
        "missing",
        "refused",
    }
