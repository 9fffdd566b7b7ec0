"""What a learner sees of a check: at once, after a run, and in the progress file."""

import functools
import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from processes import course_command, ship_the_exercise

from distcheck.judges.runs import Problem
from distcheck.verdict import NOT_CHECKED, UNDECIDED, WRONG, Verdict
from utils.base import course
from utils.checking import checks, exercises
from utils.lessons import hints, markup, progress, work

SOURCE = (course.PACKAGE_ROOT / "solutions/fashion_mnist_solution.py").read_text()


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """A course of its own, with the exercise as shipped."""
    ship_the_exercise(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def solve(folder: Path, n: int, old: str = "", new: str = "") -> Path:
    path = folder / "exercises/fashion_mnist.py"
    text = markup.render(SOURCE, n)
    assert old in text
    path.write_text(text.replace(old, new) if old else text)
    return path


@pytest.mark.parametrize("step", exercises.find("fashion_mnist").parts)
def test_the_exercise_as_shipped_fails_each_check_at_once(copy, step):
    started = time.monotonic()
    (verdict,) = checks.report_on(step).verdicts
    assert verdict.id == f"step-{step}.todo"
    line = (
        (copy / "exercises/fashion_mnist.py").read_text().splitlines()[verdict.line - 1]
    )
    assert line.startswith(f"# TODO: Step {step}: ")
    assert verdict.seen == f"Line {verdict.line} still says `TODO: Step {step}`."
    # Nothing was run: the slowest machine does that in a fraction of a run.
    assert time.monotonic() - started < 5


def test_an_earlier_step_that_is_left_is_named(copy):
    path = solve(copy, 0, "# TODO: Step 3", "# Step 3")
    (verdict,) = checks.report_on(3).verdicts
    assert verdict.id == "step-3.todo"
    first = path.read_text().splitlines()[verdict.line - 1]
    assert first.startswith("# TODO: Step 1: ")


@pytest.fixture
def judged(monkeypatch):
    """Nothing is run, and all steps but those that are put into the set are right."""
    wrong = set()
    chosen = exercises.find("fashion_mnist")

    def judge(step, _):
        if step in wrong:
            raise Problem("sum", "They are added up.")

    monkeypatch.setattr(exercises.Exercise, "observe", lambda *_: {})
    for step, check in chosen.checks.items():
        changed = replace(check, judge=functools.partial(judge, step))
        monkeypatch.setitem(chosen.checks, step, changed)
    return wrong


def line_of(path: Path, words: str) -> int:
    lines = path.read_text().splitlines()
    return next(n for n, line in enumerate(lines, 1) if words in line)


def test_a_todo_that_is_left_in_a_right_program_is_a_remark(copy, judged):
    path = solve(copy, 3, "# Step 3", "# TODO: Step 3")
    report = checks.report_on(3)
    assert [(verdict.id, verdict.ok) for verdict in report.verdicts] == [
        ("step-3.right", True)
    ]
    line = line_of(path, "TODO: Step 3")
    assert report.remark == f"Line {line} still says `TODO: Step 3`."
    assert report.rows()[-1] == ("Remark", report.remark)
    assert report.as_json()["remark"] == report.remark
    assert report.diff is not None
    # What was found right is there, whatever a comment says.
    work.need_steps(1)
    with pytest.raises(work.StepMissing, match="step 4 is still to do"):
        work.need_steps(4)
    work.need_steps(3)
    # It is about what was asked for: steps 4 to 6 are still to do.
    assert checks.report_on(2).remark == ""


def test_a_todo_in_a_program_that_does_something_else_is_a_remark(copy, judged):
    path = solve(copy, 2, "# TODO: Step 3", "print('mine')\n# TODO: Step 3")
    judged.add(3)
    report = checks.report_on(3)
    assert report.verdicts[0].id == "step-3.sum"
    line = line_of(path, "TODO: Step 3")
    assert report.remark == f"Line {line} still says `TODO: Step 3`."
    assert not checks.report_on(3).ok


def test_without_a_todo_nothing_is_remarked(copy, judged):
    solve(copy, 3)
    assert checks.report_on(3).remark == ""
    assert "Remark" not in dict(checks.report_on(3).rows())


def test_only_comments_and_the_path_of_a_program_may_differ_from_ours(copy, judged):
    """Then it is known what it does; with one word changed, it has to run."""
    solve(copy, 2, "# TODO: Step 3", "# I'll do it tomorrow. TODO\n# TODO: Step 3")
    assert checks.report_on(3).verdicts[0].id == "step-3.todo"
    solve(copy, 2, "optimizer = tf", "optimiser = optimizer = tf")
    assert checks.report_on(3).ok


def test_checking_at_once_needs_no_tensorflow(copy):
    code = "import sys; from utils.checking.checks import report_on; report_on(1); "
    code += "sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_a_syntax_error_is_told_with_its_line(copy):
    path = copy / "exercises/fashion_mnist.py"
    path.write_text("import a\nif True\n    pass\n")
    (verdict,) = checks.report_on(3).verdicts
    assert (verdict.id, verdict.line) == ("step-3.syntax", 2)
    assert "expected ':'" in verdict.seen


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("x = " + "-" * 50_000 + "1", "nested too deeply"),
        ("x = 1" + "+1" * 40_000, "nested too deeply"),
        ("# coding: raw_unicode_escape\n", "declares the coding raw_unicode_escape"),
    ],
)
def test_what_python_reads_otherwise_or_not_at_all_is_told(copy, program, reason):
    (copy / "exercises/fashion_mnist.py").write_text(program)
    (verdict,) = checks.report_on(3).verdicts
    assert verdict.id == "step-3.syntax"
    assert reason in verdict.seen
    answer = course_command("check", "3")
    assert answer.returncode == 1
    assert "Traceback" not in answer.stdout + answer.stderr


def test_without_a_number_later_steps_read_not_checked_yet(copy):
    report = checks.report_on()
    assert [v.state for v in report.verdicts] == ["wrong", *[NOT_CHECKED] * 5]
    answer = course_command("check")
    assert answer.returncode == 1
    assert answer.stdout.count("not checked yet") == 5


def test_the_first_failure_shows_the_nudge_and_hints_go_deeper(copy):
    texts = [" ".join(text.split()) for text in hints.of()[1]]
    assert checks.report_on(1).hint == texts[0]
    answer = course_command("hint", "1")
    assert answer.returncode == 0
    assert "Place" in answer.stdout
    assert checks.report_on(1).hint == texts[1]
    assert "Nearly the code" in course_command("hint", "1").stdout
    assert progress.hints_shown("fashion_mnist", 1) == 3


def test_the_hint_is_about_what_was_found(copy):
    (copy / "exercises/fashion_mnist.py").write_text("import a\nif True\n    pass\n")
    report = checks.report_on(3)
    assert report.verdicts[0].id == "step-3.syntax"
    assert report.hint == " ".join(hints.about("step-3.syntax").split())
    # It is none of the three, which come next.
    assert progress.hints_shown("fashion_mnist", 3) == 0
    assert hints.of()[3][0] in progress.hint(3).data


def test_what_could_not_be_decided_uses_up_no_hint(copy, monkeypatch):
    """No hint of the step helps with a check that was ended from outside."""
    seen = "The workers were killed from outside."
    verdict = Verdict(3, "step-3.killed", UNDECIDED, "The mean.", seen)
    monkeypatch.setattr(exercises.Exercise, "judge", lambda *_: {3: verdict})
    report = checks.report_on(3)
    assert report.undecided
    assert report.hint == ""
    assert "course hint" not in repr(report)
    assert progress.hints_shown("fashion_mnist", 3) == 0


def test_a_wrong_step_stops_a_notebook_after_its_table(copy, capsys):
    with pytest.raises(work.StepMissing, match="step 2 is not right yet"):
        checks.check(2)
    assert "still says `TODO: Step 2`" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["check", "7"], ["check", "--script", "no.py"]])
def test_what_can_not_be_checked_is_status_2(copy, arguments):
    answer = course_command(*arguments)
    assert answer.returncode == 2
    assert "there is no" in answer.stderr


def test_progress_is_kept_and_shown(copy):
    assert progress.Progress().done == 0
    verdicts = checks.report_on(2).verdicts
    record = json.loads((copy / "progress.json").read_text())
    assert record["checks"]["fashion_mnist 2"]["id"] == verdicts[0].id == "step-2.todo"
    answer = course_command("progress")
    assert answer.returncode == 0
    all_parts = sum(len(exercise.parts) for exercise in exercises.EXERCISES.values())
    assert answer.stdout.count("not checked yet") == all_parts - 1
    assert "wrong" in answer.stdout


def test_other_programs_leave_the_progress_alone(copy):
    other = copy / "other.py"
    other.write_text(markup.render(SOURCE, 0))
    assert not checks.report_on(1, script=other).ok
    assert not (copy / "progress.json").exists()


def test_an_unreadable_progress_file_is_put_aside(copy, capsys):
    (copy / "progress.json").write_text("{")
    assert progress.Progress().done == 0
    assert "is kept as progress_kept_" in capsys.readouterr().err
    assert [path.read_text() for path in copy.glob("progress_kept_*")] == ["{"]


@pytest.mark.slow
def test_a_step_done_passes_and_shows_the_difference(copy):
    solve(copy, 1, "gpus", "graphics")
    answer = course_command("check", "1")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "right" in answer.stdout
    assert "+gpus = tf.config" in answer.stdout
    assert progress.Progress().done == 1


@pytest.mark.slow
def test_a_deadlock_names_the_ranks_the_calls_and_the_line(copy):
    call = "callbacks.append(hvd.callbacks.BroadcastGlobalVariablesCallback(0))"
    path = solve(copy, 4, call, f"if hvd.rank() == 0:\n    {call}")
    answer = course_command("check", "4", "--json")
    assert answer.returncode == 1
    (verdict,) = json.loads(answer.stdout)["verdicts"]
    assert verdict["id"] == "step-4.deadlock"
    lines = path.read_text().splitlines()
    fit, made = (lines.index(line) + 1 for line in ("model.fit(", f"    {call}"))
    assert verdict["line"] == made
    assert f"rank 0 waits for the others in broadcast in line {made}" in verdict["seen"]
    assert f"rank 1 waits for the others in allreduce in line {fit}" in verdict["seen"]


@pytest.mark.slow
def test_a_crash_names_the_rank_the_error_and_the_line(copy):
    path = solve(copy, 2, "optimizer = tf", "1 / (1 - hvd.rank())\noptimizer = tf")
    (verdict,) = checks.report_on(2).verdicts
    assert verdict.id == "step-2.crashed"
    line = path.read_text().splitlines().index("1 / (1 - hvd.rank())") + 1
    assert verdict.line == line
    assert "Rank 1 of 2 failed" in verdict.seen
    assert "ZeroDivisionError" in verdict.seen


def test_what_is_known_of_an_error_is_said_beside_it():
    def rows(*evidence):
        verdict = Verdict(1, "step-1.crashed", WRONG, "It runs.", "It fails.", 3)
        verdicts = [replace(verdict, evidence=evidence)]
        return dict(checks.Report("x.py", "fashion_mnist", verdicts, 1.0).rows())

    known = rows("OSError: [Errno 28] No space left on device")["What to do"]
    assert "The disk is full" in known
    assert "What to do" not in rows("KeyError: 'garment'")
