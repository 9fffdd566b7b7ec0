"""The handbook says what the lessons ask, in their time, and nothing else."""

import re
import subprocess
import sys
import time

import psutil
import pytest
import room

from distcheck import errors
from utils.base import course
from utils.grading import hand_out
from utils.lessons import handbook, outline

LESSONS = [
    lesson
    for lesson in outline.read().notebooks.values()
    if handbook.page(lesson).exists()
]
PAGES = sorted(handbook.FOLDER.glob("*.md"))


def minutes_of_tables(text: str) -> list[int]:
    """For each table with a column of minutes, their sum."""
    sums = []
    for table in re.split(r"\n\n+", text):
        rows = [re.split(r" *\| *", line.strip("| ")) for line in table.splitlines()]
        if "Minutes" in rows[0]:
            column = rows[0].index("Minutes")
            sums.append(sum(int(row[column]) for row in rows[2:] if row[column]))
    return sums


def test_what_is_generated_is_up_to_date():
    for path, text in handbook.generated().items():
        assert path.read_text() == text, (
            f"{path.name}: python -m utils.lessons.handbook"
        )


def test_what_a_learner_costs_is_what_was_measured():
    assert room.with_record(room.PAGE.read_text()) == room.PAGE.read_text()
    group = {"learners": 10, "row": 4, "open": 5e3, "first": [20.0, 30.0, 50.0]}
    results = {"lab": 100.0, "kernel": 400.0, "run": 500.0, "lesson": 60.0 * 10}
    results |= {"alone": 10.0, "class": {**group, "all": 100.0, "most": 9e3}}
    alone, together = (dict(table.rows) for table in room.shown(results).parts)
    assert alone["a learner in the middle of a run"] == "1,000 MB"
    assert alone["learners on a core, if none waits for another"] == str(
        round(room.minutes() / 10)
    )
    assert together["4 at a time run"] == "9,000 MB"
    assert together["the first 4, from the run's start to its result"] == "20 to 50 s"
    assert together["that is, of what one alone takes"] == "3.0 times"
    assert together["3 rows of 4 have run"] == "after 100 s"


def test_a_kernel_says_what_failed_and_ends():
    with room.Kernel() as kernel:
        assert kernel.execute("1 + 1") > 0
        with pytest.raises(errors.UserError, match="no such thing"):
            kernel.execute("raise ValueError('no such thing')")
    assert not psutil.pid_exists(kernel.process.pid)


def test_memory_is_counted_in_a_process_and_its_children():
    code = "import subprocess, sys; keep = b'x' * 60_000_000; "
    code += "subprocess.run([sys.executable, '-c', "
    code += "'keep = b\"x\" * 30_000_000; input()'])"
    parent = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
    try:
        with room.peak(psutil.Process(parent.pid)) as seen:
            ends = time.monotonic() + 60
            while seen.others < 30 and time.monotonic() < ends:
                time.sleep(0.1)
        assert 60 < seen.own < 120
        assert 30 < seen.others < 90
    finally:
        parent.stdin.close()
        parent.wait(60)


def test_each_page_on_a_lesson_is_on_one_that_there_is():
    numbered = {path.stem for path in PAGES if path.name[0].isdigit()}
    assert numbered == {lesson.name for lesson in LESSONS}
    assert len(LESSONS) >= 20


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.number)
def test_a_page_has_its_parts(lesson):
    text = handbook.page(lesson).read_text()
    assert text.startswith(f"# {lesson.number} ")
    for part in ("Aims", "Say before", "Where people get stuck", "What to skip"):
        assert f"\n## {part}\n" in text, part


FAULT = r"(?:step-\d|task-[A-Z])\.[\w-]+"


def test_faults_that_it_names_are_those_of_checks():
    tables = (course.PACKAGE_ROOT / "tests").glob("wrong_*programs.toml")
    known = set(re.findall(FAULT, "".join(p.read_text() for p in tables)))
    for page in PAGES:
        named = set(re.findall(FAULT, page.read_text()))
        assert named <= known, f"{page.name}: {named - known}"


def test_timetables_add_up():
    plans = handbook.timetables()
    assert len(plans) == 5
    for plan in plans:
        for number, day in enumerate(plan.days, 1):
            minutes = sum(minutes for _, minutes in day)
            assert 0 < minutes <= plan.minutes, f"{plan.title}, day {number}: {minutes}"
    days = [day for plan in plans for day in plan.days]
    shown = [
        table for table in minutes_of_tables(handbook.TIMETABLES.read_text()) if table
    ]
    assert shown == [sum(minutes for _, minutes in day) for day in days]


def test_the_plan_of_a_lesson_takes_its_minutes():
    plans = {
        lesson: minutes_of_tables(handbook.page(lesson).read_text())
        for lesson in LESSONS
    }
    for lesson, sums in plans.items():
        assert all(total == lesson.minutes for total in sums), lesson.name
    assert any(plans.values())


def test_a_lesson_that_is_none_is_named(tmp_path, monkeypatch):
    (tmp_path / "timetables.toml").write_text(
        '[[timetables]]\ntitle = "T"\nminutes = 9\nbefore = ""\ndays = [["98"]]\n'
    )
    monkeypatch.setattr(handbook, "FOLDER", tmp_path)
    with pytest.raises(errors.UserError, match="no lesson 98"):
        handbook.timetables()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_its_links_lead_somewhere(page):
    text = page.read_text()
    for target, _, anchor in re.findall(r"\]\(([^)#:\s]*)(#([^)\s]+))?\)", text):
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
            slugs = {
                re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
                for heading in headings
            }
            assert anchor in slugs, (target, anchor)
    for name in re.findall(r"`((?:exercises|solutions|utils|tests)/[\w/.]+)`", text):
        assert (course.PACKAGE_ROOT / name).exists(), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_its_programs_have_no_slip_of_the_pen(page):
    programs = re.findall(r"```(python|bash)\n(.*?)```", page.read_text(), re.DOTALL)
    for language, text in programs:
        if language == "python":
            compile(text, page.name, "exec")
        else:
            subprocess.run(["bash", "-n"], input=text, text=True, check=True)


def test_what_is_said_of_a_class_without_answers_is_so():
    text = (handbook.FOLDER / "grading.md").read_text()
    for name, number in hand_out.SHOWN_BY.items():
        assert f"| `{name}.py` | {number} |" in text
    assert f"| all others | {hand_out.EVERYTHING} |" in text
