"""What a notebook of this course must be: rules for its source and for its executed
copy.

A rule is a short function that takes a notebook and yields one sentence for each
breach, which says where, what, and what to do about it. `lint` and `audit` apply
them all. What a rule needs to know about a cell stands in its tags:

- `parameters`: the cell that papermill's parameters replace;
- `figure`: the cell shows a figure;
- `claim`: the cell says a sentence, and tries whether it is true, by `claim(...)`
  (claims.py), and shows nothing else;
- `nbval-ignore-output`: what the cell shows differs from run to run.
"""

import ast
import difflib
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from distcheck import parts
from utils.base import tensorflow_log
from utils.lessons import claims, work

# How the names of those notebooks begin that are deterministic enough to be published
# with their outputs; nbval compares these with what running them gives.
KEEPS_OUTPUTS = ("02", "after_each_step")

# What the engine that executes a notebook prints when it begins a cell, and its number.
AT_CELL = "At cell "

TAGS = {"parameters", "figure", "claim", "nbval-ignore-output"}

# How far a measured number has to be from its bound, as a ratio: claims.margin. More
# is asked for than CI, which measures once, on a machine that it may share, can refuse.
LEAST_MARGIN = 1.5
WANTED_MARGIN = 3.0

MIN_CLAIM_WORDS = 4
MIN_ANSWER_WORDS = 25
MAX_CELLS = 85
MAX_OUTPUT_LINES = 40
MAX_OUTPUT_ROWS = 50  # of tables: the course has 33 lessons
MAX_STDERR_LINES = 5
MAX_SOURCE_KB = 60
MAX_KEPT_KB = 1_000

Rule = Callable[[NotebookNode], Iterator[str]]


def read(path: Path) -> NotebookNode:
    """The notebook at `path`, as it is: nbformat.read would mend some faults."""
    return nbformat.v4.reads_json(path.read_text(encoding="utf-8"))


def cells_of(notebook: NotebookNode, kind: str) -> Iterator[tuple[str, NotebookNode]]:
    """The cells of `kind` (`code` or `markdown`), each with words for its place."""
    for number, cell in enumerate(notebook.cells, 1):
        if cell.cell_type == kind:
            first_line = (cell.source.strip().splitlines() or ["(empty)"])[0]
            yield f"cell {number} ({first_line[:40]})", cell


def tagged(cell: NotebookNode, tag: str) -> bool:
    return tag in cell.metadata.get("tags", [])


def is_folded(cell: NotebookNode) -> bool:
    """Does JupyterLab show the cell without its code?"""
    return cell.metadata.get("jupyter", {}).get("source_hidden", False)


# -------------------------------------------------------------- executed copies


def audit(
    executed: NotebookNode, private: tuple[str, ...] = (), least_margin: float = 1.0
) -> list[str]:
    """Every breach in an executed notebook; an empty list when all is well.

    private: names of places on this machine that no output may show.
    least_margin: of each claim about a measured number.
    """
    breaches = [breach for rule in AUDIT for breach in rule(executed)]
    breaches += _claims_have_margins(executed, least_margin)
    return breaches + list(_no_private_places(executed, private))


def missing_part(error) -> int:
    """The place, from 1, of the step or task that an error in a cell says is missing; 0
    if it says something else.

    error: with `ename` and `evalue`, as Jupyter has them.
    """
    match = re.search(r"\b(?:step (\d+)|task ([A-Z])\b)", error.evalue)
    if not match or error.ename != work.StepMissing.__name__:
        return 0
    return parts.number(parts.of(*match.groups()))


def parts_asked_for(executed: NotebookNode) -> int:
    """Up to which part a notebook has stopped for one that was missing."""
    places = (
        missing_part(outputs[-1])
        for _, cell in cells_of(executed, "code")
        for outputs in _stops(cell)
    )
    return max(places, default=0)


def every_cell_ran_in_order(notebook: NotebookNode) -> Iterator[str]:
    """Neither papermill's exit status nor its metadata tells: after `sys.exit(0)` it
    calls the cells that it never ran completed."""
    cells = list(cells_of(notebook, "code"))
    never = [place for place, cell in cells if cell.execution_count is None]
    if never:
        more = f" and {len(never) - 1} more" if len(never) > 1 else ""
        yield f"{never[0]}{more} never ran: let nothing before it end the notebook"
        return
    expected = 0
    for place, cell in cells:
        expected += 1 + len(_stops(cell))
        if cell.execution_count != expected:
            yield (
                f"{place} ran as number {cell.execution_count}, not {expected}: "
                "run all cells from the top, in a new kernel"
            )


def no_error(notebook: NotebookNode) -> Iterator[str]:
    for place, cell in cells_of(notebook, "code"):
        for error in _errors(cell):
            yield f"{place} raised {error.ename}: {error.evalue.strip()[:300]}"


def stops_are_kind(notebook: NotebookNode) -> Iterator[str]:
    """Where it has stopped at a part that was not done, it has shown the message alone,
    or below the table of a check; see utils.lessons.learner."""
    for place, cell in cells_of(notebook, "code"):
        for outputs in _stops(cell):
            *earlier, error = outputs
            if "\n".join(error.traceback) != f"{error.ename}: {error.evalue}":
                yield f"{place} stops with a stack trace: show the message alone"
            if len(earlier) > 1 or any(o.output_type == "stream" for o in earlier):
                yield f"{place} stops, and shows more than the message: split it"


def figures_are_there(notebook: NotebookNode) -> Iterator[str]:
    for place, cell in _cells_that_ran(notebook):
        has_figure = any(
            kind.startswith("image/")
            for output in cell.outputs
            for kind in output.get("data", {})
        )
        if tagged(cell, "figure") and not has_figure:
            yield f"{place} shows no figure: return or display it, or drop its tag"
        if has_figure and not tagged(cell, "figure"):
            yield f"{place} shows a figure: tag it `figure`, so that a loss is seen"


def claims_are_true(notebook: NotebookNode) -> Iterator[str]:
    for place, cell in _cells_that_ran(notebook):
        said = list(claims.shown(cell.outputs))
        if tagged(cell, "claim") and not 0 < len(said) == len(cell.outputs):
            texts = " ".join(text.strip() for text in _texts(cell))[:100]
            yield (
                f"{place} should show claims and nothing else, not "
                f"{texts or 'nothing'}: call claim(sentence, ...)"
            )
        for claim in said:
            if not claim.true:
                yield f"{place} says what is not true here: {claim.said}"


def _claims_have_margins(notebook: NotebookNode, least: float) -> Iterator[str]:
    for place, cell in cells_of(notebook, "code"):
        for claim in claims.shown(cell.outputs):
            if claim.true and claim.margin is not None and claim.margin < least:
                yield (
                    f"{place} is nearly untrue: {claim.said}: its margin is "
                    f"{claim.margin:.3g}, let it be {least:g} at least"
                )


def outputs_are_short(notebook: NotebookNode) -> Iterator[str]:
    for place, cell in cells_of(notebook, "code"):
        rows = lines = 0
        for text in _texts(cell):
            if "<tr" in text:  # a row may take many lines of HTML
                rows += text.count("<tr")
            else:
                lines += len(text.splitlines())
        if lines > MAX_OUTPUT_LINES:
            yield f"{place} shows {lines} lines: show at most {MAX_OUTPUT_LINES}"
        if rows > MAX_OUTPUT_ROWS:
            yield f"{place} shows {rows} rows: show at most {MAX_OUTPUT_ROWS}"


def stderr_is_short(notebook: NotebookNode) -> Iterator[str]:
    for place, cell in cells_of(notebook, "code"):
        lines = sum(
            len(list(tensorflow_log.left_out(_text(output).splitlines())))
            for output in cell.outputs
            if output.get("name") == "stderr"
        )
        if lines > MAX_STDERR_LINES:
            yield (
                f"{place} shows {lines} lines of standard error: keep them in the "
                f"log, show at most {MAX_STDERR_LINES}"
            )


FRIGHTENING = re.compile(
    r"\b\w*Warning: "  # Python's
    # absl's, as TensorFlow's Python side uses it; the exception announces its log
    r"|^(WARNING|ERROR):(?! All log messages before absl::)"
    r"|^\d{4}-\d\d-\d\d [\d:.]+: [WEF] "  # TensorFlow's C++ side
    r"|Traceback \(most recent call last\)",
    re.MULTILINE,
)


def nothing_frightens(notebook: NotebookNode) -> Iterator[str]:
    for place, cell in cells_of(notebook, "code"):
        for text in _texts(cell):
            if match := FRIGHTENING.search(text):
                line = text[match.start() :].splitlines()[0]
                yield f"{place} shows a warning: mend its cause: {line[:120]}"


def _no_private_places(
    notebook: NotebookNode, private: tuple[str, ...]
) -> Iterator[str]:
    for place, cell in cells_of(notebook, "code"):
        stopped = [error.evalue for *_, error in _stops(cell)]
        for text in [*_texts(cell), *stopped]:
            names = [name for name in private if name in text]
            match = ABSOLUTE_PATH.search(text)
            if names or match:
                leak = names[0] if names else match[0]
                yield f"{place} shows a place on this machine: use shown(): {leak}"


AUDIT: tuple[Rule, ...] = (
    no_error,
    every_cell_ran_in_order,
    stops_are_kind,
    figures_are_there,
    claims_are_true,
    outputs_are_short,
    stderr_is_short,
    nothing_frightens,
)


def _cells_that_ran(notebook: NotebookNode) -> Iterator[tuple[str, NotebookNode]]:
    """The code cells, without those of which another rule says that they never ran."""
    for place, cell in cells_of(notebook, "code"):
        if cell.execution_count is not None:
            yield place, cell


def _errors(cell: NotebookNode) -> list[NotebookNode]:
    return [o for o in cell.get("outputs", []) if o.output_type == "error"]


def _stops(cell: NotebookNode) -> list[list[NotebookNode]]:
    """What a cell has shown each time that it has stopped at a missing part."""
    return cell.metadata.get("stopped", [])


def _texts(cell: NotebookNode) -> list[str]:
    """What a reader sees of each output of `cell`, pictures and errors aside."""
    return [_text(o) for o in cell.outputs if o.output_type != "error"]


def _text(output: NotebookNode) -> str:
    if output.output_type == "stream":
        return output.text
    data = output.get("data", {})
    page = re.sub(r"<style.*?</style>", "", data.get("text/html", ""), flags=re.S)
    return page or data.get("text/plain") or ""


# -------------------------------------------------------------- sources


def lint(path: Path) -> list[str]:
    """Every breach in the source of the notebook at `path`; none when all is well."""
    notebook = read(path)
    if invalid := list(is_valid(notebook)):
        return invalid
    keeps = path.name.startswith(KEEPS_OUTPUTS)
    breaches = [breach for rule in LINT for breach in rule(notebook)]
    breaches += (outputs_are_kept if keeps else outputs_are_cleared)(notebook)
    breaches += links_lead_somewhere(notebook, path.parent)
    kilobytes, limit = (
        path.stat().st_size / 1000,
        MAX_KEPT_KB if keeps else MAX_SOURCE_KB,
    )
    if kilobytes > limit:
        breaches.append(f"it has {kilobytes:.0f} kB: at most {limit} kB, split it")
    return breaches


def is_valid(notebook: NotebookNode) -> Iterator[str]:
    """Format 4.5 brings stable cell ids; the other rules rely on its form."""
    if (notebook.nbformat, notebook.nbformat_minor) != (4, 5):
        yield "it is not nbformat 4.5: save it with a current JupyterLab"
        return
    ids = [cell.get("id") for cell in notebook.cells]
    for cell_id in {i for i in ids if ids.count(i) > 1}:
        yield f"the cell id {cell_id} is used twice: rename one"
        return
    try:
        nbformat.validate(notebook)
    except nbformat.ValidationError as error:
        yield f"it is no valid notebook: {str(error).splitlines()[0]}"


def kernel_is_python3(notebook: NotebookNode) -> Iterator[str]:
    name = notebook.metadata.get("kernelspec", {}).get("name")
    if name != "python3":
        yield f"its kernel is {name}: choose python3, which every environment has"


def tags_are_spelt_right(notebook: NotebookNode) -> Iterator[str]:
    """A misspelt tag would switch a rule off."""
    for number, cell in enumerate(notebook.cells, 1):
        for tag in set(cell.metadata.get("tags", [])) - TAGS:
            for meant in difflib.get_close_matches(tag.lower(), TAGS, n=1):
                yield f"cell {number} has the tag {tag}: {meant} is meant"


def outputs_are_cleared(notebook: NotebookNode) -> Iterator[str]:
    for place, cell in cells_of(notebook, "code"):
        if cell.outputs or cell.execution_count is not None:
            yield (
                f"{place} keeps its output: clear it with "
                "jupyter nbconvert --clear-output --inplace NOTEBOOK"
            )


def outputs_are_kept(notebook: NotebookNode) -> Iterator[str]:
    """nbval compares nothing for a cell without an execution count. Who reads it is to
    find the answers themselves: JupyterLab unfolds an output when its cell runs."""
    for breach in every_cell_ran_in_order(notebook):
        yield f"{breach}; then save it with its outputs, for nbval to compare"
    for place, cell in cells_of(notebook, "code"):
        folded = cell.metadata.get("jupyter", {}).get("outputs_hidden", False)
        if cell.outputs and not folded:
            yield f"{place} shows its answer before it is run: collapse its output"


def title_comes_first(notebook: NotebookNode) -> Iterator[str]:
    titles = [
        number
        for number, cell in enumerate(notebook.cells)
        if cell.cell_type == "markdown" and re.search(r"^# ", cell.source, re.MULTILINE)
    ]
    if titles != [0]:
        yield "its first cell, and no other, must hold the title: # Title"


def aims_are_stated(notebook: NotebookNode) -> Iterator[str]:
    opening = "\n".join(cell.source for cell in notebook.cells[:3])
    if "In this notebook you will" not in opening:
        yield "state its aims at the top: In this notebook you will ..."
        return
    aims = re.findall(r"^[-*] ", opening, re.MULTILINE)
    if not 3 <= len(aims) <= 4:
        yield f"it states {len(aims)} aims: state three or four, as a list"


def summary_leads_on(notebook: NotebookNode) -> Iterator[str]:
    """It closes with a summary whose question leads to the next notebook."""
    text = "\n".join(cell.source for _, cell in cells_of(notebook, "markdown"))
    _, heading, summary = text.partition("\n## Summary\n")
    if not heading:
        yield "close it with a section ## Summary"
    elif "?" not in summary:
        yield "let its summary close with the question that leads on"


def a_figure_is_shown(notebook: NotebookNode) -> Iterator[str]:
    if not any(tagged(cell, "figure") for cell in notebook.cells):
        yield "no cell is tagged `figure`: show something that a reader can look at"


def no_cell_is_empty(notebook: NotebookNode) -> Iterator[str]:
    for number, cell in enumerate(notebook.cells, 1):
        if not cell.source.strip():
            yield f"cell {number} is empty: remove it"


def it_has_one_aim(notebook: NotebookNode) -> Iterator[str]:
    """Lessons 02 and 28, the longest, set the limit: most of their cells are short."""
    if len(notebook.cells) > MAX_CELLS:
        yield f"it has {len(notebook.cells)} cells: at most {MAX_CELLS}, split it"


def parameters_come_first(notebook: NotebookNode) -> Iterator[str]:
    cells = [cell for _, cell in cells_of(notebook, "code")]
    holders = [n for n, cell in enumerate(cells) if tagged(cell, "parameters")]
    runs = [n for n, c in enumerate(cells) if re.search(r"(?<![\w.])run\(", c.source)]
    if len(holders) > 1:
        yield "several cells are tagged `parameters`: papermill uses one"
    if runs and (not holders or holders[0] > runs[0]):
        yield "it calls run(): tag the cell above that sets the numbers `parameters`"


def shell_failures_show(notebook: NotebookNode) -> Iterator[str]:
    """A failing `!mpirun` passes unseen, and `%%bash` heeds its last command only."""
    for place, cell in cells_of(notebook, "code"):
        if re.search(r"^\s*(\w+\s*=\s*)?(!|%sx|%system|%%sx|%%!)", cell.source, re.M):
            yield f"{place}: a failing `!` line goes unnoticed: use run() or %%bash"
        first, _, body = cell.source.strip().partition("\n")
        if first.startswith("%%bash"):
            commands = re.sub(r"\\\n|^\s*#.*\n", "", body, flags=re.M).strip()
            if "--no-raise-error" in first:
                yield f"{place} hides its failure: drop --no-raise-error"
            if re.search(r"[\n;]", commands) and " -e" not in first:
                yield f"{place}: only its last command can fail: begin it %%bash -e"
            if re.search(r"[^|]\|[^|]", commands) and "pipefail" not in first:
                yield f"{place}: a pipe hides failures: begin it %%bash -e -o pipefail"
            # bash reads the cell from its standard input, and so would mpirun.
            for line in commands.splitlines()[:-1]:
                whole = line.count('"') % 2 == 0
                if line.startswith("mpirun") and whole and "< /dev/null" not in line:
                    yield f"{place}: mpirun takes the lines below: give it < /dev/null"


def claims_can_fail(notebook: NotebookNode) -> Iterator[str]:
    for place, cell in cells_of(notebook, "code"):
        calls = _claims_made(_parsed(cell))
        if tagged(cell, "claim") != bool(calls):
            yield (
                f"{place} claims something: tag it `claim`"
                if calls
                else f"{place} claims nothing: call claim(sentence, ...)"
            )
        for call in calls:
            if len(call.args) != 2 or isinstance(call.args[1], ast.Constant):
                yield f"{place} claims nothing: give a comparison, or a value and bound"


def claims_are_sentences(notebook: NotebookNode) -> Iterator[str]:
    for place, cell in cells_of(notebook, "code"):
        for call in _claims_made(_parsed(cell)):
            said = ast.unparse(call.args[0]).lstrip("f")[1:-1] if call.args else ""
            long_enough = len(said.split()) >= MIN_CLAIM_WORDS
            if not long_enough or said[0].islower() or said.endswith("."):
                yield (
                    f"{place} claims {said!r}: write a sentence, with a capital, "
                    "without its full stop"
                )


def claims_ask_for_something(notebook: NotebookNode) -> Iterator[str]:
    """`all` of nothing is True, and so is `not any`; and `nothing or ...` says that
    nothing was run. What is empty in other ways can't be told from a source."""
    for place, cell in cells_of(notebook, "code"):
        body = _parsed(cell)
        claimed = [part for call in _claims_made(body) for part in call.args[1:]]
        counted = _names_counted(body, claimed)
        for asked, of in (found for part in claimed for found in _universal(part)):
            if not (_names(of) & counted or _surely_some(of)):
                yield (
                    f"{place} also holds of nothing: beside {ast.unparse(asked)} "
                    "let it ask for the right len(...)"
                )
        for escape in (found for part in claimed for found in _escapes(part)):
            yield (
                f"{place} also holds where nothing was run, by {ast.unparse(escape)}: "
                "claim nothing there"
            )


def _parsed(cell: NotebookNode) -> list[ast.stmt]:
    """The statements of a cell; none where it holds more than Python: magics."""
    try:
        return ast.parse(cell.source).body
    except SyntaxError:
        return []


def _claims_made(body: list[ast.stmt]) -> list[ast.Call]:
    """The calls of `claim`."""
    return [
        node
        for statement in body
        for node in ast.walk(statement)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "claim"
    ]


def _names(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def _surely_some(node: ast.AST) -> bool:
    """A list or tuple that is written out, or what was compared with one, element by
    element; or `range(workers)`: no run has none."""
    if isinstance(node, ast.Call):
        return ast.unparse(node) == "range(workers)"
    if isinstance(node, ast.Compare):
        return any(map(_surely_some, node.comparators))
    return isinstance(node, ast.List | ast.Tuple) and bool(node.elts)


def _names_counted(body: list[ast.stmt], claimed: list[ast.expr]) -> set[str]:
    """The names in a cell of what can't be empty if all that is claimed is true: what
    is compared by its length, or stands for itself in an `and`; and what was written
    out above."""
    counted: set[str] = set()
    for node in (node for part in claimed for node in ast.walk(part)):
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
            counted |= {part.id for part in node.values if isinstance(part, ast.Name)}
        if isinstance(node, ast.Compare):
            for part in ast.walk(node):
                if isinstance(part, ast.Call) and ast.unparse(part.func) == "len":
                    counted |= _names(part.args[0])
    for statement in body:
        if isinstance(statement, ast.Assign) and _surely_some(statement.value):
            counted |= set().union(*map(_names, statement.targets))
    return counted


def _universal(value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Each part of an expression that is true of nothing, and what it is asked of."""
    for node in ast.walk(value):
        asked, name = node, "all"
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            asked, name = node.operand, "any"
        if not isinstance(asked, ast.Call):
            continue
        if isinstance(asked.func, ast.Name) and asked.func.id == name:
            of = asked.args[0]
            loops = of.generators if isinstance(of, ast.GeneratorExp) else []
            yield from ((node, loop.iter) for loop in loops)
            if not loops:
                yield node, of
        elif isinstance(asked.func, ast.Attribute) and asked.func.attr == name:
            yield node, asked.func.value


def _escapes(value: ast.expr) -> Iterator[ast.expr]:
    """What makes an expression true because there is nothing."""
    for node in ast.walk(value):
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or):
            for part in node.values:
                negated = isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.Not)
                if negated or ast.unparse(part).endswith(" is None"):
                    yield part


# All but the home in the image of the Containerfile, which is the same everywhere.
ABSOLUTE_PATH = re.compile(
    r"(?<![\w.:/~])/(?!home/learner\b)(home|root|Users|tmp|opt|mnt|var)/[\w.-]+"
)


def no_absolute_path(notebook: NotebookNode) -> Iterator[str]:
    for number, cell in enumerate(notebook.cells, 1):
        if match := ABSOLUTE_PATH.search(cell.source):
            yield f"cell {number} holds an absolute path, {match[0]}: drop it"


def links_lead_somewhere(notebook: NotebookNode, folder: Path) -> Iterator[str]:
    for place, cell in cells_of(notebook, "markdown"):
        prose = re.sub(r"```.*?```|`[^`]*`", "", cell.source, flags=re.S)
        targets = re.findall(r"\]\(([^)\s]+)|(?:src|href)=\"([^\"]+)\"", prose)
        for target in (markdown or html for markdown, html in targets):
            file = target.partition("#")[0]
            if file and ":" not in file and not (folder / file).exists():
                yield f"{place} links to {target}, which is not there: mend the link"


# How the text speaks: CONTRIBUTING.md has the reasons.

WHERE_RUN = "<summary>Where this was run</summary>"
PREDICT = re.compile(r"\*\*Predict[.:]")

# What these words stand for is in another cell when a cell begins with them.
POINTS_BACK = re.compile(r"(It|That|This|These|Those|Both|Each|Of|By|Half of it)\b")

# English of people who grew up with another language, as regular expressions.
UNUSUAL = (
    r"\bshall\b",
    r"\bso many (?!of|that|more)\w+ will\b",
    r"\bin \w+ epochs running\b",
    r"\bcosts on\b",
    r"\ba slightly other\b",
    r"\bby per ?cents\b",
    r"\bstands? in (a|the|its|your|all) \b",
    r"\bcomes? to (its|their) ends?\b",
    r"(?<![-\w])[Ww]ho (has|wants|needs|is to|reads|writes|looks|trains)\b(?!.*\?)",
    r"\bfor so many\?",
    r"\bof what it is another\b",
)

# Variables that name nothing of the field's.
PRIVATE_NAMES = {
    *("late", "wide", "told", "how", "said", "few", "ways", "asks", "own", "theirs"),
    *("ours", "whose", "what", "which", "many", "much", "heard", "seen_by"),
}


def prose(source: str) -> str:
    """The text of a Markdown cell without code, comments, and the targets of links."""
    without_code = re.sub(r"```.*?```|<!--.*?-->|\$\$.*?\$\$", " ", source, flags=re.S)
    without_links = re.sub(r"\]\([^)]*\)", "]", without_code)
    return re.sub(r"`[^`\n]*`|\$[^$\n]*\$|<[^>]*>", "_", without_links)


def unfolded(source: str) -> str:
    """The text of a cell without what is folded."""
    return re.sub(r"<details>.*?</details>", " ", source, flags=re.S)


def words_shown(source: str) -> int:
    """How many words of a cell are read without unfolding anything."""
    return len(re.findall(r"\w+", prose(unfolded(source))))


def answers_say_what_was_asked(notebook: NotebookNode) -> Iterator[str]:
    """An answer is read after a run and a figure: its question has scrolled away."""
    asked = None
    for place, cell in cells_of(notebook, "markdown"):
        text = cell.source.strip()
        if text.startswith("**Answer.**"):
            words = words_shown(text) - 1
            if words < MIN_ANSWER_WORDS:
                yield (
                    f"{place} answers in {words} words: repeat what was asked, and say "
                    f"why, in at least {MIN_ANSWER_WORDS}"
                )
            asked = None
        if PREDICT.search(text):
            if asked:
                yield f"{asked} has no answer: let a cell begin with **Answer.**"
            asked = place
    if asked:
        yield f"{asked} has no answer: let a cell begin with **Answer.**"


def cells_name_their_subject(notebook: NotebookNode) -> Iterator[str]:
    for place, cell in cells_of(notebook, "markdown"):
        text = re.sub(r"^#+ .*\n+", "", cell.source.strip(), flags=re.M)
        text = re.sub(r"^\*\*[\w ]+\.\*\* *", "", text.lstrip())
        if match := POINTS_BACK.match(text):
            yield (
                f"{place} begins with {match[0]!r}: name what that is, which is in "
                "another cell"
            )


def one_parenthesis_a_cell(notebook: NotebookNode) -> Iterator[str]:
    for place, cell in cells_of(notebook, "markdown"):
        count = prose(unfolded(cell.source)).count("(")
        if count > 1:
            yield f"{place} has {count} parentheses: make sentences of all but one"


def english_is_usual(notebook: NotebookNode) -> Iterator[str]:
    for place, cell in cells_of(notebook, "markdown"):
        for pattern in UNUSUAL:
            for match in re.finditer(pattern, prose(cell.source)):
                yield f"{place} says {match[0]!r}: write it as people say it"


def variables_name_what_they_hold(notebook: NotebookNode) -> Iterator[str]:
    for place, cell in cells_of(notebook, "code"):
        named = {
            node.id
            for statement in _parsed(cell)
            for node in ast.walk(statement)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        for name in sorted(named & PRIVATE_NAMES):
            yield f"{place} calls a variable {name}: take the field's word for it"


def set_up_is_folded(notebook: NotebookNode) -> Iterator[str]:
    for place, cell in cells_of(notebook, "code"):
        if tagged(cell, "parameters") and not is_folded(cell):
            yield f"{place} is set-up: collapse its code"


def it_says_where_it_was_run(notebook: NotebookNode) -> Iterator[str]:
    cells = [cell.source for _, cell in cells_of(notebook, "markdown")]
    if not cells or WHERE_RUN not in cells[-1]:
        yield f"its last cell is to be the folded box: {WHERE_RUN}"


LINT: tuple[Rule, ...] = (
    is_valid,
    kernel_is_python3,
    tags_are_spelt_right,
    title_comes_first,
    aims_are_stated,
    summary_leads_on,
    a_figure_is_shown,
    no_cell_is_empty,
    parameters_come_first,
    shell_failures_show,
    claims_can_fail,
    claims_are_sentences,
    claims_ask_for_something,
    no_absolute_path,
    # How it speaks.
    it_has_one_aim,
    answers_say_what_was_asked,
    cells_name_their_subject,
    one_parenthesis_a_cell,
    english_is_usual,
    variables_name_what_they_hold,
    set_up_is_folded,
    it_says_where_it_was_run,
)
