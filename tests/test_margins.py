"""`course margins`: the runs that are kept, and what their claims come to."""

import json

import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output, writes_json
from rich.console import Console

from distcheck.errors import UserError
from utils.lessons import claims, margins, notebook_rules, notebooks


@pytest.fixture
def tiny_course(own_course):
    """A course of two notebooks, of one cell each."""
    for name in ("00_one", "01_two"):
        write(own_course / "notebooks" / f"{name}.ipynb", f"claim({name!r})")
    return own_course


def write(path, source, *outputs, **facts):
    cell = new_code_cell(source, id="only", outputs=list(outputs), **facts)
    proof = {"proof": {"findings": []}}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(writes_json(new_notebook(cells=[cell], metadata=proof)))
    return path


def number(value, bound=1.0):
    """The output of a claim that `value` is below `bound`."""
    by = claims.margin(value, "below", bound)
    return output(claims.Claim("It is small", by > 1, value, "below", bound, by))


def output(claim):
    data, metadata = claim._repr_mimebundle_()
    return new_output("display_data", data, metadata=metadata)


@pytest.fixture
def executing(tiny_course, monkeypatch):
    """Lets no notebook run for real; what it would measure is given beforehand. Lists
    what was executed."""
    executed = []

    def install(*values):
        left = list(values)

        def prove_all(numbers, profile, force):
            assert force
            (notebook,) = notebooks.discover(numbers)
            executed.append((profile, numbers[0]))
            value = left.pop(0)
            if value is None:
                raise KeyboardInterrupt
            copy = tiny_course / "executed" / profile / notebook.name
            source = notebook_rules.read(notebook).cells[0].source
            write(copy, source, number(value), execution_count=1)
            return [notebooks.Result(notebook.stem, 1.0, (), False, copy, copy)]

        monkeypatch.setattr(notebooks, "prove_all", prove_all)
        return executed

    return install


def seen(report):
    return [(row.notebook[:2], row.claim.value, row.runs) for row in report.rows]


def test_each_claim_is_listed_where_it_came_nearest_to_untrue(executing):
    executed = executing(0.1, 0.5, 0.2, 0.05, 0.01, 0.25, 0.02, 0.25)
    report = margins.margins(runs=2)
    assert executed == [
        *[("ci", "00"), ("ci", "01"), ("cpu", "00"), ("cpu", "01")],
        *[("ci", "00"), ("ci", "01"), ("cpu", "00"), ("cpu", "01")],
    ]
    assert seen(report) == [("01", 0.5, 4), ("00", 0.2, 4)]
    assert [row.profile for row in report.rows] == ["ci", "cpu"]
    assert [row.wide for row in report.rows] == [False, True]
    assert not report.ok


def test_after_an_interruption_it_goes_on_where_it_was(executing, tiny_course):
    executed = executing(0.1, 0.2, 0.1, None, 0.3)
    with pytest.raises(KeyboardInterrupt):
        margins.margins(names=["ci"], runs=2)
    assert len(executed) == 4
    report = margins.margins(names=["ci"], runs=2)
    assert executed[3:] == [("ci", "01"), ("ci", "01")]
    assert seen(report) == [("01", 0.3, 2), ("00", 0.1, 2)]
    assert report.ok
    assert margins.margins(names=["ci"]) == report
    write(tiny_course / "notebooks" / "01_two.ipynb", "claim('changed')")
    assert seen(margins.margins(names=["ci"])) == [("00", 0.1, 2)]


def test_without_runs_it_reads_the_executed_copies(tiny_course):
    with pytest.raises(UserError, match="course margins --runs 5"):
        margins.margins()
    folder = tiny_course / "executed"
    plain = [output(claims.Claim("It is so", true)) for true in (True, False)]
    write(folder / "cpu" / "00_one.ipynb", "claim('00_one')", number(0.4), *plain)
    write(folder / "ci" / "01_two.ipynb", "claim('other')", number(0.5))
    report = margins.margins()
    assert [row.margin for row in report.rows] == [0, 2.5, float("inf")]
    assert seen(report)[1] == ("00", 0.4, 1)


def test_what_went_wrong_in_a_run_is_told(tiny_course):
    """A claim that is true has its margin whatever happened after it."""
    path = write(
        tiny_course / "executed" / "ci" / "runs" / "3" / "00_one.ipynb",
        "claim('00_one')",
        number(0.1),
        new_output("error", ename="KeyError", evalue="'loss'", traceback=[]),
        execution_count=1,
    )
    report = margins.margins()
    (finding,) = report.findings
    assert str(path.relative_to(tiny_course)) in finding
    assert "raised KeyError" in finding
    assert all(row.wide for row in report.rows)
    assert not report.ok


def test_the_table_marks_what_is_nearly_untrue(executing):
    executing(0.0, 0.4)
    report = margins.margins(names=["ci"], runs=1)
    console = Console(width=100, record=True)
    console.print(margins.table(report))
    text = console.export_text()
    nearest, other = (line for line in text.splitlines() if "small" in line)
    assert "2.5 !" in nearest
    assert "0.4, below the bound 1" in nearest
    assert "!" not in other
    assert "1 nearer than a factor of 3" in text
    rows = json.loads(json.dumps(report.as_json(), allow_nan=False))["rows"]
    assert [row["claim"]["margin"] for row in rows] == [2.5, "inf"]


@pytest.mark.slow
def test_a_claim_that_is_nearly_untrue_is_refused_on_ci_alone(tiny_course):
    """Executed for real, by a kernel."""
    path = tiny_course / "notebooks" / "00_one.ipynb"
    source = "from utils import claim\nclaim('It is small enough', 1, below=1.4)"
    write(path, source)
    (finding,) = notebooks.prove(path, "ci").findings
    assert "It is small enough (value 1, below the bound 1.4): its margin" in finding
    assert notebooks.prove(path, "cpu").findings == ()
    rows = margins.margins(["0"]).rows
    assert [(row.margin, row.runs) for row in rows] == [(1.4, 2)]
    write(path, source.replace("1.4", "0.9"))
    (finding,) = notebooks.prove(path, "cpu").findings
    assert "not true here: It is small enough (value 1, not below" in finding
