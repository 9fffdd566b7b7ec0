"""Points, and the tables of them."""

import csv
import io
import random
import unicodedata

import pytest

from distcheck.errors import UserError
from distcheck.verdict import NOT_CHECKED, RIGHT, UNDECIDED, WRONG, Verdict
from utils.grading import gradebook
from utils.grading.gradebook import STATUSES, Grade


def grade(*states: str, status: str = "wrong", worth=(1, 2, 0.1), **more) -> Grade:
    verdicts = tuple(
        Verdict(n, f"step-{n}.{state.split()[0]}", state, "This.", "That.")
        for n, state in enumerate(states, start=1)
    )
    more = {"learner": "alice", "slug": "alice"} | more
    return Grade(
        status=status, worth=dict(enumerate(worth, 1)), verdicts=verdicts, **more
    )


def read(text: str) -> list[dict]:
    return list(csv.DictReader(io.StringIO(text), strict=True))


@pytest.mark.parametrize(
    ("graded", "points", "total"),
    [
        (grade(RIGHT, RIGHT, RIGHT, status="ok"), (1, 2, 0.1), 3.1),
        (grade(RIGHT, WRONG, NOT_CHECKED), (1, 0, 0), 1),
        (grade(RIGHT, UNDECIDED, WRONG), (1, None, 0), None),
        (grade(status="missing"), (0, 0, 0), 0),
        (grade(status="refused"), (0, 0, 0), 0),
        (grade(RIGHT, UNDECIDED, WRONG, status="refused"), (0, 0, 0), 0),
        (grade(status="hung"), (0, 0, 0), 0),
        (grade(status="grader error"), (None, None, None), None),
        (grade(RIGHT, RIGHT, RIGHT, status="grader error"), (None,) * 3, None),
        (grade(RIGHT, RIGHT, RIGHT, worth=(0.1, 0.2, 0.3)), (0.1, 0.2, 0.3), 0.6),
        (grade(RIGHT, RIGHT, RIGHT, worth=(0.1,) * 3), (0.1,) * 3, 0.3),
    ],
)
def test_points(graded, points, total):
    assert graded.points == points
    assert graded.total == total


def test_findings_are_what_is_wrong_or_undecided():
    graded = grade(RIGHT, WRONG, UNDECIDED, NOT_CHECKED, worth=(1, 1, 1, 1))
    assert graded.findings == ("step-2.wrong", "step-3.could")


def test_the_gradebook():
    grades = [
        grade(RIGHT, WRONG, NOT_CHECKED, seconds=14.26),
        grade(status="grader error", learner="bob"),
        grade(RIGHT, UNDECIDED, WRONG, learner="carol", seconds=3.0),
        grade(status="missing", learner='d "the\nd", d; e'),
    ]
    text = gradebook.gradebook(grades, "abc")
    assert text.splitlines()[:3] == [
        '"learner","step_1","step_2","step_3","total","max","status","findings",'
        '"checker_version","duration_s"',
        '"alice",1,0,0,1,3.1,"wrong","step-2.wrong","abc",14.3',
        '"bob","","","","",3.1,"grader error","","abc",""',
    ]
    rows = read(text)
    assert [row["total"] for row in rows] == ["1", "", "", "0"]
    assert rows[2]["findings"] == "step-2.could step-3.wrong"
    assert rows[3]["learner"] == 'd "the\nd", d; e'


def test_the_columns_of_an_exercise_with_tasks_have_their_letters():
    verdicts = (
        Verdict("A", "task-A.right", RIGHT, "This.", "This."),
        Verdict("B", "task-B.sum", WRONG, "This.", "That."),
    )
    worth = {"A": 1, "B": 2}
    (row,) = read(gradebook.gradebook([Grade("a", "a", "wrong", worth, verdicts)], "v"))
    assert list(row)[1:3] == ["task_A", "task_B"]
    assert (row["task_A"], row["task_B"], row["findings"]) == ("1", "0", "task-B.sum")


def test_the_table_of_nbgrader():
    grades = [grade(RIGHT, WRONG, RIGHT), grade(status="grader error", learner="bob")]
    text = gradebook.nbgrader(grades, "fashion_mnist")
    columns = (
        "assignment,duedate,timestamp,student_id,last_name,first_name,email,"
        "raw_score,late_submission_penalty,score,max_score"
    )
    assert text.splitlines()[0].replace('"', "") == columns
    assert [list(row.values()) for row in read(text)] == [
        ["fashion_mnist", "", "", "alice", "", "", "", "1.1", "0", "1.1", "3.1"],
        ["fashion_mnist", "", "", "bob", "", "", "", "", "0", "", "3.1"],
    ]


FULLWIDTH = "\uff1d\uff0b\uff0d\uff20"  # = + - @


def hostile_texts(count: int) -> list[str]:
    draw = random.Random(7)
    alphabet = "=+-@\t\r\n'\",; \x00|ab\u3000\xa0é王"
    alphabet += FULLWIDTH + "\ufe66\u207a\ufe62\ufe63\uff07"
    return ["".join(draw.choices(alphabet, k=draw.randint(0, 6))) for _ in range(count)]


def test_no_text_becomes_a_formula_and_each_comes_back():
    texts = [*hostile_texts(3000), "=cmd()", " =1", "\u3000+1", "'=1", "@a"]
    texts += [f"{character}cmd()" for character in FULLWIDTH]
    texts = sorted(set(texts))
    grades = [grade(RIGHT, learner=text, worth=(1,)) for text in texts]
    for table, column in (
        (gradebook.gradebook(grades, "-v"), "learner"),
        (gradebook.nbgrader(grades, "=e"), "student_id"),
    ):
        rows = list(csv.reader(io.StringIO(table, newline=""), strict=True))
        place = rows[0].index(column)
        for text, row in zip(texts, rows[1:], strict=True):
            text = text.replace("\0", "\N{REPLACEMENT CHARACTER}")
            assert row[place] in (text, f"'{text}")
            assert gradebook._uncell(row[place]) == text
            for cell in row:
                plain = unicodedata.normalize("NFKC", cell).lstrip(" ")
                assert not plain.startswith(tuple("=+-@\t\r\n")), cell
        assert len({row[place] for row in rows}) == len(texts) + 1


def test_ids_are_drawn_once_and_kept(tmp_path):
    names = ["alice", "=cmd()", "'=cmd()", 'x "y", z', "王伟"]
    path = tmp_path / "learners.csv"
    first = gradebook.ids(names, path)
    assert len(set(first.values())) == len(names)
    path.write_text(gradebook.learners(first), encoding="utf-8")
    assert gradebook.ids(names[:2], path) == first
    more = gradebook.ids([*names, "bob"], path)
    assert {name: more[name] for name in names} == first
    assert set(more) - set(first) == {"bob"}
    assert gradebook.ids(names, tmp_path / "none.csv").values() != first.values()
    # As a spreadsheet program saves it.
    path.write_text("\ufeff" + gradebook.learners(first).replace("\n", "\r\n"))
    assert gradebook.ids(names, path) == first


@pytest.mark.parametrize(
    "text",
    ["", "id,name\na,b\n", "id;learner\na;b\n", "id,learner\nx,a\nx,b\n",
     "id,learner\n,a\n", 'id,learner\n"x', "id,learner\nx\n", "\0",
     "learner,id\na,b\n"],
)  # fmt: skip
def test_a_table_of_ids_that_is_none_is_an_error(tmp_path, text):
    path = tmp_path / "learners.csv"
    path.write_text(text)
    with pytest.raises(UserError, match=r"learners\.csv"):
        gradebook.ids(["a"], path)
    assert path.read_text() == text


def test_statuses_are_the_documented_ones():
    for status in STATUSES:
        assert status in gradebook.__doc__.replace("\n                     ", " ")
