"""The pages: complete, escaped, and in need of nothing else."""

import base64
import hashlib
import re
import time
from html.parser import HTMLParser

import pytest

from distcheck.verdict import NOT_CHECKED, RIGHT, UNDECIDED, WRONG, Verdict
from utils.grading import report
from utils.grading.gradebook import Grade
from utils.lessons import hints

EVIL = (
    "<script>alert('x')</script><img src=x onerror=y>&lt;\"'\u202e\x1b[31m{{ 7777*3 }}"
)
EVIL += "\n# no heading\n```\n[a](javascript:b) ``<b>`` `<i>` | --> ]]>"
HALF = "\ud800"  # of a character; no file can hold it
EVIL += HALF
VOID = {"meta", "br", "img", "input", "link", "hr"}


class Page(HTMLParser):
    """A page as a browser reads it; fails on what is not closed."""

    def __init__(self, text: str):
        super().__init__(convert_charrefs=True)
        self.tags, self.attributes, self.text, self.open = [], [], "", []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        self.text += " " * (tag in ("td", "th", "p", "dt", "dd"))

    def handle_data(self, data):
        if "style" not in self.open:
            self.text += data

    def handle_comment(self, data):
        raise AssertionError(f"a comment: {data}")


def grade(learner="alice", status="wrong", states=(RIGHT, WRONG, NOT_CHECKED), **more):
    verdicts = tuple(
        Verdict(
            n,
            f"step-{n}.{state.split()[0]}",
            state,
            f"`expected` {n}",
            f"seen {n}",
            line=2 if state == WRONG else None,
            evidence=(f"evidence {n}",) if state == WRONG else (),
        )
        for n, state in enumerate(states, start=1)
    )
    facts = {
        "learner": learner,
        "slug": "alice",
        "worth": {1: 1, 2: 1, 3: 1},
        "verdicts": verdicts,
        "program": "import this\nx = 1\n",
        "isolation": ("No network.",),
        "log": "began\nended",
        "seconds": 14.0,
    }
    return Grade(status=status, **facts | more)


def pages(*grades: Grade) -> dict[str, str]:
    return report.pages(grades, "fashion_mnist", "abc123")


def test_a_report_says_it_all():
    texts = pages(grade())
    hint = hints.of()[2][0].split(".")[0]
    assert texts.keys() == {"index.html", "reports/alice.html"}
    text = Page(texts["reports/alice.html"]).text
    for wanted in (
        *("alice", "1 of 3 points", "wrong", "not checked yet"),
        *("expected", "seen 1", "seen 2", "x = 1", "evidence 2", "step-2.wrong"),
        *("No network.", "14.0 s", "began\nended", "hvd.init()", "import this"),
        *("course check --script fashion_mnist.py", "abc123"),
    ):
        assert wanted in text, wanted
    assert " ".join(hint.split()) in " ".join(text.split())
    assert "step-3" not in text
    assert "<code>expected</code>" in texts["reports/alice.html"]


def test_the_hint_is_that_for_the_fault():
    fault = Verdict(3, "step-3.sum", WRONG, "the mean", "the sum")
    graded = grade(verdicts=(fault,), worth={3: 1})
    text = Page(pages(graded)["reports/alice.html"]).text
    hint = hints.about(fault.id)
    assert hint != hints.of()[3][0]
    assert " ".join(hint.split()).partition("`")[0] in " ".join(text.split())


def test_a_todo_that_is_left_is_a_remark_below_what_is_right():
    graded = grade(program="x = 1\n# TODO: Step 1: do it\n# TODO: Step 2: do it\n")
    text = Page(pages(graded)["reports/alice.html"]).text
    assert "Remark: Line 2 still says TODO: Step 1." in text
    assert text.count("Remark") == 1  # step 2 is wrong, and says why


@pytest.mark.parametrize("status", ["missing", "refused", "grader error"])
def test_a_report_without_a_run(status):
    graded = grade(
        status=status,
        states=(),
        program=None,
        isolation=(),
        log="",
        seconds=None,
        reason="it is a link",
        files=("a_b.py",),
    )
    texts = pages(graded)
    text = Page(texts["reports/alice.html"]).text
    points = "unknown of 3 points" if status == "grader error" else "0 of 3 points"
    for wanted in (status, points, "It is a link.", "a_b.py"):
        assert wanted in text
    assert "What was found" not in text
    assert "How it ran" not in text
    assert "not run" in Page(texts["index.html"]).text


def test_the_class():
    grades = [
        grade("alice", "ok", (RIGHT, RIGHT, RIGHT), slug="a"),
        grade("bob", slug="b"),
        grade("carol", slug="c"),
        grade("dave", "wrong", (WRONG, UNDECIDED, NOT_CHECKED), slug="d"),
        grade("eve", "missing", (), slug="e", program=None),
    ]
    index = pages(*grades)["index.html"]
    page = Page(index)
    text = " ".join(page.text.split())
    assert "5 submissions: 1 ok 3 wrong 1 missing" in text
    assert "bob 1 of 3 wrong right wrong not yet" in text
    assert "dave unknown of 3 wrong wrong unknown not yet" in text
    assert "eve 0 of 3 missing not run not run not run" in text
    assert "How many are right 3 of 5 1 of 5 1 of 5" in text
    assert re.search(
        r"step-2.wrong 2 bob, carol step-1.wrong 1 dave step-2.could", text
    )
    links = [value for name, value in page.attributes if name == "href"]
    assert [link for link in links if "reports" in link][:5] == [
        f"reports/{slug}.html" for slug in "abcde"
    ]


def everything_evil() -> Grade:
    return grade(
        EVIL,
        program=EVIL + "\r\nmore\r" + EVIL,
        log=EVIL,
        isolation=(EVIL,),
        reason=EVIL,
        files=(EVIL,),
        verdicts=tuple(
            Verdict(n, EVIL, state, EVIL, EVIL, line=1, evidence=(EVIL, EVIL))
            for n, state in enumerate((RIGHT, WRONG, UNDECIDED), start=1)
        ),
    )


def test_nothing_of_a_learner_becomes_html():
    harmless = pages(grade(states=(RIGHT, WRONG, UNDECIDED), reason="r", files=("f",)))
    texts = pages(everything_evil())
    for name, text in texts.items():
        assert "\u202e" not in text
        assert "\x1b" not in text
        assert text.encode()  # a page is to be written
        assert "[U+202E]" in text
        assert "23331" not in text
        page = Page(text)
        assert "alert('x')" in page.text
        allowed = set(Page(harmless[name]).tags) | {"code", "bdi", "tr", "td"}
        assert set(page.tags) <= allowed
        assert not {"script", "img", "link", "iframe", "i", "b"} & set(page.tags)
        names = {name for name, _ in page.attributes}
        assert not [name for name in names if name.startswith("on")]
        assert not {"src", "style", "srcset"} & names


def test_pages_need_nothing_and_allow_nothing():
    for text in pages(grade()).values():
        page = Page(text)
        policy = dict(page.attributes)["content"]
        policy = next(v for n, v in page.attributes if n == "content" and "-src" in v)
        style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)[1]
        digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
        assert "default-src 'none'" in policy
        assert f"style-src 'sha256-{digest}'" in policy
        assert "unsafe" not in policy
        assert "http" not in re.sub(r"http-equiv", "", text)
        assert "url(" not in style
        assert "@import" not in style
        assert ("name", "viewport") in page.attributes
        links = [value for name, value in page.attributes if name in ("href", "src")]
        assert all(re.fullmatch(r"[a-z0-9/.-]+", link) for link in links)


def test_every_wide_table_scrolls_by_itself():
    for text in pages(grade()).values():
        assert text.count("<table") == text.count('<div class="scroll"')


def test_two_programs_side_by_side():
    left = "a\nb\nc\nd\n" + "same\n" * 20 + "x\n"
    right = "a\nB\nc\nd\nnew\n" + "same\n" * 20
    assert report.compare(left, right, context=1) == [
        ("", 1, "a", 1, "a"),
        ("changed", 2, "b", 2, "B"),
        ("", 3, "c", 3, "c"),
        ("", 4, "d", 4, "d"),
        ("only the course's", None, "", 5, "new"),
        ("", 5, "same", 6, "same"),
        ("skip", None, "", None, ""),
        ("", 24, "same", 25, "same"),
        ("only handed in", 25, "x", None, ""),
    ]
    assert report.compare(left, left) == []


def test_the_solution_itself_has_no_difference():
    text = report.solution("fashion_mnist", 3)
    assert "solutions/" not in text
    texts = pages(grade(program="\ufeff" + text.replace("\n", "\r\n")))
    assert "There is no difference" in Page(texts["reports/alice.html"]).text


def test_an_endless_program_does_not_take_endless_time():
    for program in (
        "\n" * 900_000,
        "x = 1\n" * 150_000,
        "y" * 1_000_000,
        "\u2028" * 9**5,
    ):
        started = time.monotonic()
        texts = pages(grade(program=program, log=report.cut(program)))
        assert time.monotonic() - started < 20
        assert "too long" in texts["reports/alice.html"]
        assert all(len(text) < 60_000 for text in texts.values())
    started = time.monotonic()
    pages(grade(program="\n\n    )\n" * 300))
    assert time.monotonic() - started < 20


def test_a_log_is_cut():
    lines = [f"line {n}" for n in range(1000)]
    cut = report.cut("\r\n".join(lines) + "\n").split("\n")
    assert cut == [*lines[:20], "[920 lines left out]", *lines[-60:]]
    assert report.cut("\n".join(lines[:81])) == "\n".join(lines[:81])
    assert report.cut("x" * 1000) == "x" * 300 + " [...]"
    assert report.cut("") == ""


def test_a_line_that_is_not_there_is_no_error():
    wrong = Verdict(2, "step-2.wrong", WRONG, "a", "b", line=99)
    verdicts = (grade().verdicts[0], wrong, grade().verdicts[2])
    assert "Line 99" in pages(grade(verdicts=verdicts))["reports/alice.html"]
