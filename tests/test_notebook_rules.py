"""Each rule for notebooks is broken once, on purpose, and must say so."""

import json
from collections.abc import Callable
from pathlib import Path

import nbformat
import pandas
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from utils.lessons import claims, notebook_rules
from utils.lessons.claims import Claim
from utils.lessons.notebook_rules import LEAST_MARGIN, audit, lint

Notebook = nbformat.NotebookNode
Change = Callable[[Notebook], object]


def a_source() -> Notebook:
    """A notebook that breaks no rule."""

    def code(name: str, source: str, *tags: str) -> Notebook:
        return new_code_cell(source, id=name, metadata={"tags": list(tags)})

    return new_notebook(
        metadata={
            "kernelspec": {"name": "python3", "display_name": "Python 3"},
        },
        cells=[
            new_markdown_cell("# Count to two", id="title"),
            new_markdown_cell(
                "In this notebook you will\n\n- count\n- add\n- look\n", id="aims"
            ),
            new_code_cell(
                "workers = 2",
                id="numbers",
                metadata={"tags": ["parameters"], "jupyter": {"source_hidden": True}},
            ),
            new_markdown_cell("**Predict.** How fast are two workers?", id="question"),
            code("run", "result = run('program.py', workers=workers)"),
            code("look", "plot(result)", "figure"),
            new_markdown_cell(ANSWER, id="answer"),
            code("claim", claiming("result.status == 0"), "claim"),
            code("shell", "%%bash\nmpirun -np 2 hostname"),
            new_markdown_cell("[The program](program.py)", id="link"),
            new_markdown_cell("## Summary\n\nWhat comes next?", id="summary"),
            new_markdown_cell(
                f"<details>\n{notebook_rules.WHERE_RUN}\n\nHere.\n\n</details>",
                id="where",
            ),
        ],
    )


ANSWER = (
    "**Answer.** Two workers are nearly twice as fast as one, because each computes "
    "half of the batch, and the time in which they wait for each other is short. On "
    "your machine it may be longer."
)


def claiming(condition: str) -> str:
    """The source of a cell: what it has to say is its last line."""
    *above, condition = condition.splitlines()
    return "\n".join([*above, f"claim('The run has ended well', {condition})"])


def a_claim(**facts) -> Notebook:
    """The output of a claim."""
    claim = Claim("The run has ended well", **facts)
    data, metadata = claim._repr_mimebundle_()
    return new_output("display_data", data, metadata=metadata)


def measured(value: float, side: str, bound: float) -> Change:
    """Let the claim be one about a number, as `claim` would show it."""
    by = claims.margin(value, side, bound)
    output = a_claim(true=by > 1, value=value, side=side, bound=bound, margin=by)
    return lambda notebook: cell(notebook, "claim").update(outputs=[output])


def a_copy() -> Notebook:
    """`a_source` as it is after it was executed, with nothing to find fault with."""
    notebook = a_source()
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for count, code_cell in enumerate(code, 1):
        code_cell.execution_count = count
    cell(notebook, "look").outputs = [
        new_output("display_data", {"image/png": "iVBORw0=", "text/plain": "a line"})
    ]
    cell(notebook, "claim").outputs = [a_claim(true=True)]
    cell(notebook, "shell").outputs = [new_output("stream", name="stdout", text="a\nb")]
    return notebook


def cell(notebook: Notebook, name: str) -> Notebook:
    return next(cell for cell in notebook.cells if cell.id == name)


def source(name: str, text: str) -> Change:
    return lambda notebook: cell(notebook, name).update(source=text)


def tags(name: str, *names: str) -> Change:
    return lambda notebook: cell(notebook, name).metadata.update(tags=list(names))


def stream(name: str, text: str, kind: str = "stdout") -> Change:
    """Let the cell `name` show `text`, below what it shows already."""
    output = new_output("stream", name=kind, text=text)
    return lambda notebook: cell(notebook, name).outputs.append(output)


# -------------------------------------------------------------- sources

BAD_SOURCES = {
    "is_valid": [
        (lambda n: n.update(nbformat_minor=4), "not nbformat 4.5"),
        (lambda n: cell(n, "look").update(id="run"), "used twice"),
        (lambda n: cell(n, "look").pop("outputs"), "no valid notebook"),
    ],
    "kernel_is_python3": [
        (lambda n: n.metadata.kernelspec.update(name="conda-env"), "choose python3")
    ],
    "tags_are_spelt_right": [(tags("look", "figrue"), "figure is meant")],
    "title_comes_first": [
        (source("title", "Count to two"), "# Title"),
        (source("link", "# Another title"), "# Title"),
    ],
    "aims_are_stated": [
        (source("aims", "We will count."), "state its aims"),
        (source("aims", "In this notebook you will\n\n- count"), "states 1 aims"),
    ],
    "summary_leads_on": [
        (source("summary", "The end?"), "close it with a section"),
        (source("summary", "## Summary\n\nThe end."), "the question that leads on"),
    ],
    "a_figure_is_shown": [(tags("look"), "no cell is tagged `figure`")],
    "no_cell_is_empty": [(source("look", " \n"), "is empty")],
    "it_has_one_aim": [
        (
            lambda n: n.cells.extend(
                new_markdown_cell("Word.", id=f"more-{number}") for number in range(80)
            ),
            "split it",
        )
    ],
    "answers_say_what_was_asked": [
        (
            source("answer", "**Answer.** Nearly twice, as it were."),
            "answers in 5 words",
        ),
        (source("answer", "Two workers are faster. " * 9), "has no answer"),
        (source("answer", f"{ANSWER.replace('Answer', 'Solution')}"), "has no answer"),
        (source("answer", f"**Predict.** And three?\n\n{ANSWER}"), "has no answer"),
        (
            source("answer", f"**Answer.** Twice. <details>{ANSWER}</details>"),
            "answers in 1 words",
        ),
    ],
    "cells_name_their_subject": [
        (source("link", "It is the program."), "begins with 'It'"),
        (source("link", "## Why?\n\nThat is why."), "begins with 'That'"),
        (source("answer", ANSWER.replace("Two", "Both")), "begins with 'Both'"),
        (source("link", "Half of it is gone."), "begins with 'Half of it'"),
    ],
    "one_parenthesis_a_cell": [
        (source("link", "One (here) and two (there)."), "has 2 parentheses")
    ],
    "english_is_usual": [
        (source("link", f"The worker {words}."), f"says '{said}")
        for words, said in [
            ("shall wait", "shall"),
            ("was ready in two epochs running", "in two epochs running"),
            ("comes to its end", "comes to its end"),
            ("or who has two devices", "who has"),
        ]
    ],
    "variables_name_what_they_hold": [
        (source("look", "told = plot(result)"), "calls a variable told"),
        (source("look", "for few in range(2):\n    plot(few)"), "calls a variable few"),
    ],
    "set_up_is_folded": [
        (lambda n: cell(n, "numbers").metadata.pop("jupyter"), "collapse its code")
    ],
    "it_says_where_it_was_run": [
        (lambda n: n.cells.pop(), "the folded box"),
        (
            lambda n: n.cells.append(new_markdown_cell("More.", id="m")),
            "the folded box",
        ),
    ],
    "parameters_come_first": [
        (tags("numbers"), "it calls run()"),
        (tags("shell", "parameters"), "several cells"),
        (lambda n: n.cells.insert(1, n.cells.pop(4)), "it calls run()"),
    ],
    "shell_failures_show": [
        (source("shell", "!mpirun -np 2 hostname"), "goes unnoticed"),
        (source("shell", "lines = !horovodrun -np 2 hostname"), "goes unnoticed"),
        (source("shell", "%sx mpirun"), "goes unnoticed"),
        (source("shell", "%%bash --no-raise-error\nfalse"), "hides its failure"),
        (source("shell", "%%bash\nfalse\ntrue"), "only its last command"),
        (source("shell", "%%bash\nfalse; true"), "only its last command"),
        (source("shell", "%%bash -e\nfalse | tail"), "a pipe hides failures"),
        (source("shell", "%%bash -e\nmpirun ls\necho"), "takes the lines below"),
    ],
    "claims_can_fail": [
        (source("claim", "result.status == 0"), "claims nothing"),
        (source("claim", claiming("True")), "claims nothing"),
        (source("claim", "claim('Nothing is said of it')"), "claims nothing"),
        (source("claim", "# nothing"), "claims nothing"),
        (tags("claim"), "tag it `claim`"),
        (source("look", f"if workers:\n    {claiming('x > 1')}"), "tag it `claim`"),
        (source("claim", "%%bash\ntest 1 = 1"), "claims nothing"),
    ],
    "claims_are_sentences": [
        (source("claim", f"claim({sentence}, seen == 2)"), "write a sentence")
        for sentence in (
            "'both workers have seen it'",
            "'Seen by both'",
            "'Both workers have seen it.'",
            "f'both of {workers} have seen it'",
            "sentence",
            "''",
        )
    ],
    "claims_ask_for_something": [
        (source("claim", claiming(text)), words)
        for text, words in [
            ("all(x > 0 for x in seen)", "also holds of nothing"),
            ("all([x > 0 for x in seen])", "also holds of nothing"),
            ("not any(seen)", "also holds of nothing"),
            ("bool(first and (apart == 0).all())", "also holds of nothing"),
            ("not wrong.any()", "also holds of nothing"),
            ("len(other) == 2 and all(seen)", "also holds of nothing"),
            ("all(x < y for x in (1, 2) for y in seen)", "also holds of nothing"),
            ("halves = []\nall(halves)", "also holds of nothing"),
            ("not facts or facts == 2", "by not facts"),
            ("results is None or results == 2", "by results is None"),
        ]
    ],
    "no_absolute_path": [
        (source("look", "plot('/home/me/picture.png')"), "/home/me"),
        (source("link", "It is in /tmp/results now."), "/tmp/results"),
    ],
}
BAD_FILES = [
    (source("link", "[Gone](gone.ipynb#part)"), "links to gone.ipynb#part"),
    (source("link", '<img src="gone.png">'), "links to gone.png"),
    (stream("look", "an old output"), "keeps its output"),
    (lambda n: cell(n, "look").update(execution_count=3), "keeps its output"),
    (lambda n: n.metadata.update(long="x" * 61_000), "at most 60 kB"),
]


def written(folder: Path, notebook: Notebook, name: str = "03_count.ipynb") -> Path:
    (folder / "program.py").touch()
    path = folder / name
    # nbformat.write would refuse what is invalid, or mend it.
    path.write_text(json.dumps(notebook))
    return path


def every(cases: dict) -> list:
    return [
        pytest.param(*case, id=f"{rule}-{number}")
        for rule, cases_of_rule in cases.items()
        for number, case in enumerate(cases_of_rule)
    ]


def test_a_good_source_has_no_breach(tmp_path):
    assert lint(written(tmp_path, a_source())) == []


@pytest.mark.parametrize(
    "text",
    [
        "%%bash -e\n# Two commands\ntrue\nfalse",
        "%%bash\ntrue ||\\\n  false",
        "%%bash -e -o pipefail\nmpirun -np 2 hostname | sort",
        "%time plot(result) != 3",
    ],
)
def test_shell_lines_whose_failure_shows_are_fine(tmp_path, text):
    notebook = a_source()
    source("shell", text)(notebook)
    assert lint(written(tmp_path, notebook)) == []


@pytest.mark.parametrize(
    "text",
    [
        "Is that so? [It](program.py) is (see `f(x)`, and [here](program.py)).",
        "Item by item, and it is short. Who reads the file?",
        "<details>\n\nOne (here), two (there).\n\n</details>\n\nThree (at last).",
    ],
)
def test_sentences_that_say_all_are_fine(tmp_path, text):
    notebook = a_source()
    source("link", text)(notebook)
    assert lint(written(tmp_path, notebook)) == []


@pytest.mark.parametrize(
    "text",
    [
        "len(seen) == workers and all(x > 0 for x in seen)",
        "len(seen) == 2 and not any(x < 0 for x in seen.values())",
        "bool(len(apart) > 1 and (apart[1:] == 0).all())",
        "halves = first, second\nall(1.5 < ratio < 2.7 for ratio in halves)",
        "all(accuracy(rank) > 0.5 for rank in range(workers))",
        "max(apart) < 0.1 or min(apart) > 2",
        "copies and all((copy == [1, 2]).all() for copy in copies)",
    ],
)
def test_claims_that_nothing_does_not_meet_are_fine(tmp_path, text):
    notebook = a_source()
    source("claim", claiming(text))(notebook)
    assert lint(written(tmp_path, notebook)) == []


def test_what_one_claim_of_a_cell_counts_is_there_for_the_others(tmp_path):
    notebook = a_source()
    counted = "claim('All of them were seen', len(seen) == workers)"
    source("claim", f"{counted}\n{claiming('all(seen)')}")(notebook)
    assert lint(written(tmp_path, notebook)) == []


@pytest.mark.parametrize(("change", "words"), [*every(BAD_SOURCES), *BAD_FILES])
def test_a_breach_in_a_source_is_reported(tmp_path, change, words):
    notebook = a_source()
    change(notebook)
    breaches = lint(written(tmp_path, notebook))
    assert any(words in breach for breach in breaches), breaches


def test_the_notebook_that_keeps_its_outputs_must_have_them_folded(tmp_path):
    name = f"{notebook_rules.KEEPS_OUTPUTS[0]}_count.ipynb"
    notebook = a_copy()
    breaches = lint(written(tmp_path, notebook, name))
    assert [breach.partition(" (")[0] for breach in breaches] == [
        "cell 6",
        "cell 8",
        "cell 9",
    ]
    assert all("before it is run" in breach for breach in breaches)
    for code in (cell(notebook, known) for known in ("look", "claim", "shell")):
        code.metadata["jupyter"] = {"outputs_hidden": True}
    assert lint(written(tmp_path, notebook, name)) == []
    breaches = lint(written(tmp_path, a_source(), name))
    assert any("save it with its outputs" in breach for breach in breaches)


# -------------------------------------------------------------- executed copies


def error(name: str, ename: str, evalue: str, traceback: list[str]) -> Change:
    output = new_output("error", ename=ename, evalue=evalue, traceback=traceback)
    return lambda notebook: cell(notebook, name).outputs.append(output)


BAD_COPIES = {
    "every_cell_ran_in_order": [
        (lambda n: cell(n, "shell").update(execution_count=None), "never ran"),
        (lambda n: cell(n, "shell").update(execution_count=9), "ran as number 9"),
    ],
    "no_error": [(error("run", "KeyError", "'loss'", ["Trace"]), "raised KeyError")],
    "figures_are_there": [
        (lambda n: cell(n, "look").update(outputs=[]), "shows no figure"),
        (tags("look"), "tag it `figure`"),
    ],
    "claims_are_true": [
        (
            lambda n: cell(n, "claim").update(outputs=[a_claim(true=False)]),
            "says what is not true here: The run has ended well",
        ),
        (measured(2, "below", 1), "well (value 2, not below the bound 1)"),
        (measured(0.1, "above", 1), "well (value 0.1, not above the bound 1)"),
        (measured(float("nan"), "below", 1), "(value nan, not below the bound 1)"),
        (lambda n: cell(n, "claim").update(outputs=[]), "not nothing"),
        (stream("claim", "hello"), "not ✓ The run has ended well hello"),
    ],
    "outputs_are_short": [(stream("run", "line\n" * 41), "shows 41 lines")],
    "stderr_is_short": [(stream("run", "line\n" * 6, "stderr"), "6 lines of standard")],
    "nothing_frightens": [
        (stream("run", "a.py:3: UserWarning: old", "stderr"), "UserWarning: old"),
        (stream("run", "fine\nWARNING:absl:slow"), "WARNING:absl:slow"),
        (stream("run", "2026-01-02 03:04:05.6: W core/a.cc:7] no GPU"), "no GPU"),
        (stream("run", "Traceback (most recent call last):"), "Traceback"),
    ],
}
LOGGED = """\
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795632105.220180   19509 port.cc:153] oneDNN operations are on.
"""
SHOWS_A_PLACE = [
    (stream("run", "saved to /home/me/logs"), "/home/me"),
    (stream("run", "saved to secret-folder/logs"), "secret-folder"),
    (
        lambda n: cell(n, "look").outputs[0].data.update({"text/html": "/tmp/x/y"}),
        "/tmp/x",
    ),
]


def test_a_good_copy_has_no_breach():
    assert audit(a_copy(), private=("secret-folder",)) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (measured(1.0, "below", 1.4), "(value 1, below the bound 1.4): its margin is"),
        (measured(1.4, "above", 1.0), "its margin is 1.4, let it be 1.5 at least"),
        (measured(1.0, "below", 1.6), ""),
        (measured(0.0, "below", 1.0), ""),
    ],
)
def test_a_claim_that_is_nearly_untrue_is_reported_where_a_margin_is_asked_for(
    change, words
):
    notebook = a_copy()
    change(notebook)
    assert audit(notebook) == []
    breaches = audit(notebook, least_margin=LEAST_MARGIN)
    assert len(breaches) == bool(words)
    assert words in " ".join(breaches)


def test_what_tensorflow_logs_on_gpus_is_neither_long_nor_frightening():
    notebook = a_copy()
    stream("run", "\n".join([*LOGGED.splitlines()] * 9), "stderr")(notebook)
    assert audit(notebook) == []
    stream("run", "line\n" * 6, "stderr")(notebook)
    assert len(audit(notebook)) == 1


def test_a_style_sheet_is_not_output():
    notebook = a_copy()
    page = {"text/html": f"<style>{'a {}' + chr(10) * 50}</style><b>short</b>"}
    cell(notebook, "run").outputs = [new_output("display_data", page)]
    assert audit(notebook) == []


@pytest.mark.parametrize(("rows", "words"), [(49, ""), (50, "shows 51 rows")])
def test_the_rows_of_a_table_are_counted(rows, words):
    notebook = a_copy()
    page = {"text/html": pandas.DataFrame({"images/s": range(rows)})._repr_html_()}
    cell(notebook, "run").outputs = [new_output("display_data", page)]
    assert words in " ".join(audit(notebook))
    assert len(audit(notebook)) == bool(words)


def test_the_home_in_the_image_is_no_place_on_this_machine():
    notebook = a_copy()
    stream("run", "keys in /home/learner/.ssh")(notebook)
    assert audit(notebook) == []
    stream("run", "keys in /home/learners/.ssh")(notebook)
    assert len(audit(notebook)) == 1


def test_a_cell_that_never_ran_is_reported_once():
    notebook = a_copy()
    cell(notebook, "look").update(execution_count=None, outputs=[])
    cell(notebook, "claim").update(execution_count=None, outputs=[])
    (breach,) = audit(notebook)
    assert "and 1 more never ran" in breach


@pytest.mark.parametrize(("change", "words"), [*every(BAD_COPIES), *SHOWS_A_PLACE])
def test_a_breach_in_a_copy_is_reported(change, words):
    notebook = a_copy()
    change(notebook)
    breaches = audit(notebook, private=("secret-folder",))
    assert any(words in breach for breach in breaches), breaches


def test_every_rule_is_broken_by_some_example():
    broken_below = {"stops_are_kind"}
    assert {rule.__name__ for rule in notebook_rules.LINT} == set(BAD_SOURCES)
    assert {rule.__name__ for rule in notebook_rules.AUDIT} == {
        *BAD_COPIES,
        *broken_below,
    }


# -------------------------------------------------------------- where it has stopped


MESSAGE = "step 2 is still to do"


def stopped(*, trace: str = "", shown: tuple = (), message: str = MESSAGE) -> Notebook:
    """`a_copy` whose cell `claim` stopped once, before its step was done."""
    notebook = a_copy()
    end = new_output(
        "error",
        ename="StepMissing",
        evalue=message,
        traceback=[f"StepMissing: {message}{trace}"],
    )
    cell(notebook, "claim").metadata["stopped"] = [[*shown, end]]
    for name in ("claim", "shell"):
        cell(notebook, name).execution_count += 1
    return notebook


def table() -> nbformat.NotebookNode:
    """What a check shows."""
    return new_output("display_data", {"text/plain": "Step 2: wrong"})


@pytest.mark.parametrize("shown", [(), (table(),)])
def test_it_may_stop_with_a_message_or_below_the_table_of_a_check(shown):
    notebook = stopped(shown=shown)
    assert audit(notebook) == []
    assert notebook_rules.parts_asked_for(notebook) == 2


@pytest.mark.parametrize(
    ("notebook", "words"),
    [
        (stopped(trace="\n  at line 3"), "stops with a stack trace"),
        (stopped(shown=(table(), table())), "stops, and shows more than the message"),
        (
            stopped(shown=(new_output("stream", name="stdout", text="a run"),)),
            "stops, and shows more than the message",
        ),
        (stopped(message="step 2 is missing in /home/me/work"), "/home/me"),
    ],
)
def test_other_stops_are_reported(notebook, words):
    breaches = audit(notebook)
    assert any(words in breach for breach in breaches), breaches


def test_what_is_asked_for():
    assert notebook_rules.parts_asked_for(a_copy()) == 0
    task = new_output(
        "error", ename="StepMissing", evalue="task C is not right yet.", traceback=[]
    )
    assert notebook_rules.missing_part(task) == 3
    other = new_output("error", ename="KeyError", evalue="step 3", traceback=[])
    assert notebook_rules.missing_part(other) == 0
