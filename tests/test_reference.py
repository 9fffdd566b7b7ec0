"""What the text says of the reference run is what was recorded of it."""

import ast
import json
from collections import Counter

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from distcheck import errors
from utils.lessons import notebook_rules, notebooks, reference

LESSONS = notebooks.discover()


def names_shown(path) -> list[str]:
    """The numbers that a lesson shows beside the reference."""
    names = []
    for _, cell in notebook_rules.cells_of(notebook_rules.read(path), "code"):
        for statement in notebook_rules._parsed(cell):
            for node in ast.walk(statement):
                if (
                    isinstance(node, ast.Call)
                    and ast.unparse(node.func) == "beside_reference"
                ):
                    names += [keyword.arg for keyword in node.keywords]
    return names


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem[:2])
def test_numbers_in_the_text_are_those_that_were_recorded(path):
    recorded = reference.read().numbers
    for place, text, name in reference.quoted(notebook_rules.read(path)):
        assert name in recorded, f"{place} quotes {name}: record the lesson"
        number = recorded[name]
        assert reference.agrees(text, number), f"{place} says {text} for {number}"


def test_each_number_is_recorded_and_has_one_name_in_the_whole_course():
    names = Counter(name for path in LESSONS for name in names_shown(path))
    assert not [name for name, times in names.items() if times > 1]
    assert set(reference.read().numbers) == set(names)


def test_each_lesson_has_run_on_the_machine_that_is_named():
    lessons = reference.read().lessons
    assert set(lessons) == {path.stem for path in LESSONS}
    assert reference.read().machine


@pytest.mark.parametrize(
    ("text", "number", "so"),
    [
        ("1.9", 1.9089, True),
        ("1.9", 1.96, False),
        ("1.91", 1.9089, True),
        ("1.90", 1.9089, False),
        ("2", 1.9089, True),
        ("1,200", 1187.2, True),
        ("1,190", 1187.2, True),
        ("1,187", 1187.2, True),
        ("1,188", 1187.2, False),
        ("1,000", 1187.2, True),
        ("2,000", 1187.2, False),
        ("0.02", 0.0183, True),
        ("0.02", 0.0263, False),
        ("10", 0.4, False),
        ("0", 0.4, True),
    ],
)
def test_a_number_is_quoted_as_it_would_be_rounded(text, number, so):
    assert reference.agrees(text, number) is so


def test_what_the_text_quotes_is_found():
    text = "1.9<!--speedup--> times as fast, 95%<!--efficiency-->, or 1,187<!--n-->."
    found = reference.quoted(new_notebook(cells=[new_markdown_cell(text)]))
    assert [(text, name) for _, text, name in found] == [
        ("1.9", "speedup"),
        ("95", "efficiency"),
        ("1,187", "n"),
    ]


def test_numbers_are_shown_beside_those_of_the_reference():
    known = reference.Reference(
        "", {"15_some": {"numbers": {"speedup": 1.9089, "images": 1187.2}}}
    )
    shown = reference.Beside({"speedup": 1.5, "images": 900.0, "new_one": 2.0}, known)
    assert repr(shown).splitlines() == [
        "            reference  yours",
        "speedup          1.91    1.5",
        "images          1,187    900",
        "new one  not recorded      2",
    ]
    data, metadata = shown._repr_mimebundle_()
    output = new_output("display_data", data, metadata=metadata)
    copy = new_notebook(cells=[new_code_cell("1", outputs=[output])])
    assert reference.measured(copy) == shown.numbers


def test_a_lesson_is_recorded_and_the_others_are_kept(tmp_path, monkeypatch):
    copy = tmp_path / "15_some.ipynb"
    shown = reference.Beside({"speedup": 1.5}, reference.Reference("", {}))
    data, metadata = shown._repr_mimebundle_()
    output = new_output("display_data", data, metadata=metadata)
    cells = [new_code_cell("1", id="one", outputs=[output])]
    copy.write_text(json.dumps(new_notebook(cells=cells)))
    monkeypatch.setattr(reference, "FILE", tmp_path / "reference.json")
    monkeypatch.setattr(notebooks, "discover", lambda numbers: [copy])
    findings: tuple[str, ...] = ()

    def prove(notebook, profile):
        assert profile == "cpu"
        return notebooks.Result("15_some", 61.4, findings, True, copy, copy)

    monkeypatch.setattr(notebooks, "prove", prove)
    other = {"seconds": 5, "numbers": {"other": 2.0}}
    known = {"machine": "m", "lessons": {"16_other": other}}
    reference.FILE.write_text(json.dumps(known))
    reference.record(["15"])
    now = reference.read()
    some = {"seconds": 61, "numbers": {"speedup": 1.5}}
    assert now.lessons == {"15_some": some, "16_other": other}
    assert now.numbers == {"other": 2.0, "speedup": 1.5}
    assert "profile cpu" in now.machine

    findings = ("cell 3 raised KeyError",)
    with pytest.raises(errors.UserError, match="15_some: cell 3 raised KeyError"):
        reference.record(["15"])
    assert reference.read() == now
