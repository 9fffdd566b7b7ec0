"""The glossary explains the words of the notebooks, which link to it."""

import re

import pytest

from utils.base import course
from utils.lessons import notebook_rules, notebooks

TEXT = (course.PACKAGE_ROOT / "exercises" / "glossary.md").read_text()
ENTRIES = dict(
    re.findall(r"^## (.+)\n\n?(.+\n(?:.*\n)*?)\n?(?=## |\Z)", TEXT, re.MULTILINE)
)
# They are everyday words as well: to link each use of "size" would mean nothing.
EVERYDAY = {"rank", "ring", "size", "step", "task", "update", "elastic", "commit"}


def anchor(term: str) -> str:
    """The address of a heading within its page."""
    return term.lower().replace(" ", "-")


@pytest.fixture(scope="module")
def cells() -> list[tuple[str, str]]:
    """Each cell of text, in the order in which they are read: its place, its text.

    Left out are the aims of a notebook, which name what is explained further down.
    """
    return [
        (f"{path.name[:2]}, {place}", cell.source)
        for path in notebooks.discover()
        for place, cell in notebook_rules.cells_of(
            notebook_rules.read(path), "markdown"
        )
        if "In this notebook you will" not in cell.source
    ]


def links(text: str) -> list[str]:
    return re.findall(r"\]\(\.\./exercises/glossary\.md#([^)]*)\)", text)


def uses(term: str, text: str) -> bool:
    """Does a text use the term? Headings, titles of lessons and code don't count; the
    case of letters does where the term has capitals, because ZeRO isn't zero."""
    prose = re.sub(r"\[[^\]]*\]\([^)]*ipynb[^)]*\)", " ", text)
    prose = re.sub(r"```[^`]*```|`[^`]*`|^#.*$|\]\([^)]*\)", " ", prose, flags=re.M)
    words = r"\s+".join(map(re.escape, term.split()))
    case = re.IGNORECASE if term.islower() else 0
    return re.search(rf"(?<![\w-]){words}s?(?![\w-])", prose, case) is not None


def test_each_word_stands_once_in_alphabetical_order_with_an_example():
    headings = re.findall(r"^## (.+)$", TEXT, re.MULTILINE)
    assert headings == list(ENTRIES) == sorted(headings, key=str.lower)
    for term, entry in ENTRIES.items():
        meaning, _, example = entry.partition("*Example:* ")
        sentences = re.split(r"[.]\s", meaning.strip() + " ")[:-1]
        assert 1 <= len(sentences) <= 3, (term, sentences)
        assert len(meaning.split()) <= 50, term
        assert 3 <= len(example.split()) <= 35, term


def test_every_link_to_it_leads_to_a_word(cells):
    anchors = {anchor(term) for term in ENTRIES}
    linked = [(place, name) for place, text in cells for name in links(text)]
    assert [link for link in linked if link[1] not in anchors] == []
    assert {name for _, name in linked} == anchors


@pytest.mark.parametrize("term", sorted(set(ENTRIES) - EVERYDAY))
def test_a_word_is_linked_where_it_is_used_first(cells, term):
    place, text = next(cell for cell in cells if uses(term, cell[1]))
    assert anchor(term) in links(text), f"{place} uses {term!r} first: link to it there"


def test_the_use_of_a_word_is_told_from_what_only_looks_like_it():
    assert uses("pin", "Pin the GPU.")
    assert uses("global batch", "The *global\nbatch* grows.")
    assert not uses("pin", "# Pin it\n\n`pin` is spinning, [here](pin.md).")
    assert not uses("rank", "The local-rank")
    assert uses("ZeRO", "Stage 3 of ZeRO.")
    assert not uses("ZeRO", "Zero, because a seed makes them equal.")
