"""The table of messages, and what `course explain` makes of a log."""

import re

import failures
import pytest

from distcheck import errors
from utils.base import course
from utils.lessons import outline
from utils.running import explain

MESSAGES = explain.messages()

# ------------------------------------------------------------ the table

REPORT = re.compile(r"[\w.-]+/[\w.-]+#\d+")


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.id)
def test_an_entry_explains_its_line_and_no_other(message):
    found = explain.find(message.line.splitlines())
    assert found.id == message.id, f"an earlier entry, {found.id}, explains it"
    for line in message.unlike:
        assert not message.found_in(line.splitlines()), line


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.id)
def test_an_entry_refers_to_what_there_is(message):
    if message.lesson:
        numbers = {lesson.number for lesson in outline.read().notebooks.values()}
        page = course.PACKAGE_ROOT / message.lesson
        assert message.lesson in numbers or page.is_file()
    for report in message.reports:
        assert REPORT.fullmatch(report)
    for text in (message.meaning, message.cause, message.apart):
        assert not text or text.endswith("."), text


ENTRY = """\
[[message]]
id = "mpi.some-thing"
pattern = 'some (thing|body)'
meaning = "It is."
cause = "It was."
cure = ["Let it be."]
line = "something"
seen = "here"
"""


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('meaning = "It is."\n', "", "meaning is missing"),
        ('["Let it be."]', "[]", "cure is missing"),
        ('["Let it be."]', '"Let it be."', "is of another kind"),
        ('["Let it be."]', '["a", "b", "c"]', "at most 2 lines"),
        ("|body)", "|body", "pattern: missing )"),
        ("mpi.some-thing", "Something", "an id is layer.what"),
        ('"here"', '"there"', "seen is one of"),
        ('seen = "here"', 'seen = "here"\nhope = "yes"', "there is no key 'hope'"),
        ('seen = "here"', 'seen = "here"\nconsequence = 1', "is of another kind"),
        (
            'seen = "here"',
            'seen = "here"\nconsequence = true\nwarning = true',
            "a consequence or a warning",
        ),
        (ENTRY, ENTRY + ENTRY, "is there already"),
    ],
)
def test_an_entry_that_is_wrong_is_named(tmp_path, old, new, told):
    assert old in ENTRY
    for name in explain.FILES:
        (tmp_path / name).write_text("")
    (tmp_path / "setup.toml").write_text(ENTRY)
    assert [one.id for one in explain.messages(tmp_path)] == ["mpi.some-thing"]
    (tmp_path / "setup.toml").write_text(ENTRY.replace(old, new))
    explain.messages.cache_clear()
    with pytest.raises(errors.UserError, match=re.escape(told)) as raised:
        explain.messages(tmp_path)
    assert str(raised.value).startswith("setup.toml: ")
    assert "ome" in str(raised.value)


def test_a_pattern_of_several_lines_ends_in_the_last_one():
    message = explain.Message(
        "python.index", r"local_rank\(\)\][^$]*\nIndexError", *("",) * 2, (), "", "here"
    )
    lines = ["gpus[hvd.local_rank()]", "~~~~^^^^", "IndexError: list index"]
    assert message.found_in(lines)
    assert not message.found_in(lines[:2])
    assert not message.found_in([*lines, "That was it."])
    assert not message.found_in(lines[1:])


# ------------------------------------------------------------ what really failed


def test_every_failure_is_explained_by_an_entry_and_was_caused():
    ids = {message.id for message in MESSAGES}
    for failure in failures.failures():
        assert failure.id in ids, failure.name
        assert failure.log.exists(), f"python tests/failures.py {failure.name}"
