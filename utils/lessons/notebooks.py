"""Execute the course's notebooks as a learner would, and keep the executed copies.

Each notebook runs in a scratch copy of the course, with the exercise that a learner
has when it begins; what it asks for is done when it asks (learner.py). It is then
audited (notebook_rules.py). What it became is kept in `executed/<profile>/` as ipynb
and HTML, with a fingerprint of all that the result depends on, so that nothing is
executed twice for the same proof.
"""

import hashlib
import os
import re
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from nbformat import NotebookNode

from distcheck import errors, files, machine, parts, supervise
from utils.base import course, profiles, sources
from utils.lessons import markup, notebook_rules, outline, work
from utils.training import fetch

# For a cell whose outputs are compared, on a busy machine. nbval waits so long for a
# dead kernel, too; its default is 2,000.
NBVAL_CELL_SECONDS = 300
DIFFERENT_LINES = 4  # of a cell's output that are quoted

# Jupyter chooses a kernel's ports before it starts it: where another program takes one
# meanwhile, the kernel ends, before the notebook begins. Then it is started anew.
STILLBORN = "Kernel died before replying"
STARTS = 3

OnCell = Callable[[int], None]  # is told the number of each cell as it begins


@dataclass(frozen=True)
class Result:
    """What came of one notebook; it is good when there are no findings.

    seconds: how long its execution took; cached: that it was an earlier one.
    ipynb, html: the executed copy.
    """

    notebook: str
    seconds: float
    findings: tuple[str, ...]
    cached: bool
    ipynb: Path
    html: Path

    @property
    def ok(self) -> bool:
        return not self.findings

    def as_json(self) -> dict:
        """The same as plain values, paths relative to the working directory."""
        paths = {"ipynb": files.shown(self.ipynb), "html": files.shown(self.html)}
        return {**asdict(self), **paths, "ok": self.ok}


def discover(numbers: Iterable[str] = ()) -> list[Path]:
    """The course's notebooks in order, or those with the given numbers.

    Raises UserError for a number that no notebook has, or if there are none at all.
    """
    folder = course.root() / "notebooks"
    paths = sorted(folder.glob("[0-9][0-9]_*.ipynb"))
    if not paths:
        raise errors.UserError(f"there are no notebooks in {files.shown(folder)}.")
    wanted = {number.zfill(2) for number in numbers}
    known = {path.name[:2] for path in paths}
    if unknown := sorted(wanted - known):
        raise errors.UserError(
            f"there is no notebook {', '.join(unknown)}: "
            f"choose from {', '.join(sorted(known))}."
        )
    return [path for path in paths if not wanted or path.name[:2] in wanted]


def step_of(notebook: Path) -> int:
    """The step that `notebook` teaches (`NN_step_K_...`), 0 if it teaches none."""
    match = re.match(r"\d\d_step_(\d+)", notebook.name)
    return int(match[1]) if match else 0


def parts_needed(notebook: Path) -> int:
    """How many parts of its exercise are done by the time that `notebook` ends."""
    name = outline.exercise_of(notebook.stem)
    if name != outline.FIRST:  # some are done in one lesson, some in two
        source = markup.source_of(name).read_text(encoding="utf-8")
        return parts_checked(notebook_rules.read(notebook), source)
    return max(step_of(path) for path in discover() if path.name <= notebook.name)


def parts_checked(lesson: NotebookNode, source: str) -> int:
    """How many parts of its exercise, with this source, a lesson has checked when it
    ends."""
    every = markup.parts_of(source)
    checked = [0]
    for _, cell in notebook_rules.cells_of(lesson, "code"):
        for part in re.findall(r"(?<!\w)check\((?:(\d+)|\"([A-Z])\")", cell.source):
            checked.append(parts.number(parts.of(*part)))
        if re.search(r"(?<!\w)check\(exercise=", cell.source):
            checked.append(len(every))
    return max(checked)


def asks_for_parts(notebook: Path) -> bool:
    """Does it ask for parts? Then it begins without any, else with all it needs."""
    return (
        bool(step_of(notebook)) or outline.exercise_of(notebook.stem) != outline.FIRST
    )


def prove(
    notebook: Path,
    profile: str,
    *,
    force: bool = False,
    on_cell: OnCell = lambda cell: None,
) -> Result:
    """Execute `notebook` unless its result is known already; audit the result.

    force: execute it even though the result is known.
    After the time limit of the profile all its processes are ended.
    """
    if not force:
        known = kept(notebook, profile)
        if known and known.cached and known.ok:
            return known

    contents = scratch_files(notebook)
    proof = fingerprint(notebook, contents, profile)
    ipynb, html = _copies(notebook, profile)
    executed = _execute(notebook, contents, profile, on_cell)
    # What it trained on is known afterwards: it may have fetched the data itself.
    executed.metadata["proof"] |= {"of": proof, "data": _data_in_use()}
    _keep(executed, ipynb, html, notebook.parent)
    return _result_of(ipynb, html, profile)


def kept(notebook: Path, profile: str) -> Result | None:
    """What is kept of an earlier execution of `notebook`, None if there is nothing.

    It is `cached` if it would come out the same today: nothing it depends on changed.
    """
    ipynb, html = _copies(notebook, profile)
    if not (ipynb.exists() and html.exists()):
        return None
    facts = notebook_rules.read(ipynb).metadata["proof"]
    proof = fingerprint(notebook, scratch_files(notebook), profile)
    same = facts["of"] == proof and facts["data"] == _data_in_use()
    return replace(_result_of(ipynb, html, profile), cached=same)


def _copies(notebook: Path, profile: str) -> tuple[Path, Path]:
    """Where the executed copies of `notebook` are kept: ipynb, HTML. Those of a
    pretended machine are apart from those of this one."""
    folder = "_".join([profile, *machine.pretence().split()])
    ipynb = course.root() / "executed" / folder / notebook.name
    return ipynb, ipynb.with_suffix(".html")


def scratch_files(notebook: Path) -> dict[str, bytes]:
    """The files of a scratch copy: path in the course -> content.

    The learner's work is not among them: exercises that have an annotated source are
    rendered from it, as they are when the notebook begins.
    """
    root = course.root()
    contents = {}
    for folder in ("notebooks", "exercises", "solutions"):
        for path in sorted((root / folder).rglob("*")):
            name = path.relative_to(root)
            hidden = any(part.startswith((".", "__")) for part in name.parts)
            if path.is_file() and not hidden:
                contents[name.as_posix()] = path.read_bytes()
    done = 0 if asks_for_parts(notebook) else parts_needed(notebook)
    work.need_answers(*markup.sources(root))
    for source in markup.sources(root):
        exercise = markup.exercise_of(source)
        its_own = exercise.stem == outline.exercise_of(notebook.stem)
        text = markup.program(source, done if its_own else 0, exercise)
        contents[exercise.relative_to(root).as_posix()] = text.encode()
    return contents


def fingerprint(notebook: Path, contents: dict[str, bytes], profile: str) -> str:
    """A hash of all that the result of `notebook` depends on, the data aside."""
    digest = hashlib.sha256()

    def add(name: str, content: bytes) -> None:
        digest.update(f"{name} {len(content)}\n".encode())
        digest.update(content)

    settings = [profiles.profile(profile, alone) for alone in (False, True)]
    add("profile", repr(settings).encode())
    add("python", sys.version.encode())
    for name, content in contents.items():
        if not name.endswith(".ipynb") or Path(name).name == notebook.name:
            add(name, content)
    add("outline", outline.FILE.read_bytes())
    lock = course.root() / "requirements.lock"
    for path in [*sources.files_of(_modules_behind(notebook, contents)), lock]:
        if path.exists():
            add(os.path.relpath(path, course.PACKAGE_ROOT), path.read_bytes())
    return digest.hexdigest()


def _modules_behind(notebook: Path, contents: dict[str, bytes]) -> set[str]:
    """All modules of the course, but the figures that neither the notebook's code nor a
    program names: nothing else draws them, except for the command line."""
    cells = notebook_rules.cells_of(notebook_rules.read(notebook), "code")
    texts = [cell.source for _, cell in cells]
    texts += [text.decode() for name, text in contents.items() if name.endswith(".py")]
    words = {
        word for text in texts if "figures" in text for word in re.findall(r"\w+", text)
    }
    figures = {m for m in sources.modules() if m.startswith("utils.figures")}
    named = {figure for figure in figures if figure.split(".")[-1] in words}
    packages = {"utils", "utils.figures"}  # which stand for all of their modules
    return (sources.modules() - figures | named) - packages


def _data_in_use() -> list[str]:
    """The files of the real data that are at hand, each with its size."""
    folder = os.environ.get("COURSE_DATA") or fetch.cache_folder()
    kinds = (".gz", ".npz", ".ndjson")
    paths = sorted(p for p in Path(folder).rglob("*") if p.suffix in kinds)
    return [f"{path.name} {path.stat().st_size}" for path in paths]


# -------------------------------------------------------------- execution


def _execute(
    notebook: Path,
    contents: dict[str, bytes],
    profile: str,
    on_cell: OnCell,
) -> NotebookNode:
    """Run `notebook` in a scratch copy; return the copy with `metadata.proof`."""
    with files.scratch() as place:
        scratch = place.resolve()
        for path, content in contents.items():
            target = scratch / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        (scratch / "exercises").mkdir(exist_ok=True)
        keeps_outputs = notebook.name.startswith(notebook_rules.KEEPS_OUTPUTS)
        run = _compare if keeps_outputs else _papermill
        started = time.monotonic()
        executed, findings = run(
            scratch / notebook.parent.name / notebook.name,
            _environment(scratch, profile),
            profiles.profile(profile).time_limit,
            on_cell,
        )
    executed.metadata.pop("papermill", None)  # it holds paths of this machine
    executed.cells = [
        cell
        for cell in executed.cells
        if not notebook_rules.tagged(cell, "papermill-error-cell-tag")
    ]
    executed.metadata["proof"] = {
        "seconds": round(time.monotonic() - started, 1),
        "findings": findings,
    }
    return executed


def _environment(scratch: Path, profile: str) -> dict[str, str]:
    """The environment of a notebook's kernel, free of what this user set up."""
    environment = dict(os.environ, COURSE_PROFILE=profile)
    environment.pop("PYTEST_ADDOPTS", None)
    commands = Path(sys.executable).parent  # whose mpirun belongs to this Python
    environment["PATH"] = os.pathsep.join([str(commands), environment["PATH"]])
    environment["IPYTHONDIR"] = str(scratch / ".ipython")
    environment["JUPYTER_RUNTIME_DIR"] = str(scratch / ".jupyter")
    if "COURSE_DATA" in environment:  # it may be relative to where the user is
        environment["COURSE_DATA"] = str(Path(environment["COURSE_DATA"]).resolve())
    return environment


def _papermill(
    notebook: Path, environment: dict, time_limit: float, on_cell: OnCell
) -> tuple[NotebookNode, list[str]]:
    """Execute with papermill; return the executed copy and what ended it badly."""
    output = notebook.parent.parent / "executed.ipynb"  # not one more notebook
    last_lines: deque[str] = deque(maxlen=20)

    def follow(line: str) -> None:
        if line.startswith(notebook_rules.AT_CELL):
            on_cell(int(line.removeprefix(notebook_rules.AT_CELL)))
        else:
            last_lines.append(line.strip())

    command = [sys.executable, "-m", "papermill", notebook.name, f"../{output.name}"]
    command += ["--kernel", "python3", "--no-progress-bar"]
    command += ["--engine", "learner"]
    status = _supervised(command, notebook.parent, environment, time_limit, follow)
    executed = notebook_rules.read(output if output.exists() else notebook)
    findings = []
    if status == supervise.TIMED_OUT:
        findings.append(f"it was stopped after its time limit of {time_limit:g} s")
    elif status and not any(notebook_rules.no_error(executed)):
        reason = next(filter(None, reversed(last_lines)), "no reason given")
        findings.append(f"papermill failed with status {status}: {reason}")
    return executed, findings


def _compare(
    notebook: Path, environment: dict, time_limit: float, on_cell: OnCell
) -> tuple[NotebookNode, list[str]]:
    """Execute with nbval, which compares with the outputs that the notebook keeps.

    They are what running it gives, then, so the notebook is its own executed copy.
    """
    lines: list[str] = []

    def follow(line: str) -> None:
        if ended := re.match(r".*::Cell (\d+) ", line):
            on_cell(int(ended[1]) + 1)
        lines.append(line.strip())

    command = [sys.executable, "-m", "pytest", "--nbval", notebook.name, "-v"]
    command += ["--nbval-kernel-name", "python3", "--color", "no"]
    command += ["--nbval-cell-timeout", str(NBVAL_CELL_SECONDS)]
    # Shuffled cells would fail; nothing is to be written beside the notebook; and a
    # summary, which pytest gives in full where CI is set, would say all of it twice.
    command += ["-p", "no:randomly", "-p", "no:cacheprovider", "-rN"]
    status = _supervised(command, notebook.parent, environment, time_limit, follow)
    findings = _what_differs(lines)
    if status == supervise.TIMED_OUT:
        findings.append(f"nbval was stopped after its time limit of {time_limit:g} s")
    elif status and not findings:
        findings.append(f"nbval failed with status {status}: {' '.join(lines[-3:])}")
    return notebook_rules.read(notebook), findings


def _what_differs(lines: Iterable[str]) -> list[str]:
    """A finding for each cell that nbval says has failed, with some lines that differ.

    pytest marks those of the new output with -, of the one that is stored with +.
    """
    cells: list[list[str]] = []
    for line in lines:
        marked = re.match(r"([-+]) (.+)", line)
        if re.match(r"Cell \d+: ", line):
            cells.append([f"code {line[0].lower()}{line[1:]}"])
        elif cells and marked and len(cells[-1]) <= DIFFERENT_LINES:
            whose = "now" if marked[1] == "-" else "stored"
            cells[-1].append(f"{whose} {marked[2][:80]!r}")
    return [
        f"nbval: {', '.join(cell)}: if the new output is right, store it: "
        "jupyter nbconvert --execute --inplace NOTEBOOK"
        for cell in cells
    ]


def _supervised(
    command: list[str],
    folder: Path,
    environment: dict[str, str],
    time_limit: float,
    follow: Callable[[str], None],
) -> int:
    """Run `command` in `folder`, show each line of its output to `follow`; return its
    exit status. Whatever happens, none of its processes is left.

    It is run anew where its kernel did not come to life.
    """
    for _ in range(STARTS):
        stillborn = False
        with supervise.owned(
            command,
            time_limit,
            cwd=folder,
            env=environment,
            **supervise.READ_LINES,
        ) as process:
            for line in process.stdout:
                stillborn |= STILLBORN in line
                follow(line)
            process.wait()
        if not stillborn:
            break
    if process.returncode == supervise.STOPPED:  # by another thread's interrupt
        raise KeyboardInterrupt
    return process.returncode


# -------------------------------------------------------------- executed copies


def _keep(executed: NotebookNode, ipynb: Path, html: Path, beside: Path) -> None:
    """Write the executed copy, HTML first, each in one go."""
    import nbformat

    page, _ = _exporter().from_notebook_node(
        executed, {"metadata": {"name": ipynb.stem, "path": str(beside)}}
    )
    # Pages lead to pages.
    page = re.sub(r'(href="\d\d_\w+)\.ipynb', r"\1.html", page)
    ipynb.parent.mkdir(parents=True, exist_ok=True)
    for path, text in ((html, page), (ipynb, nbformat.writes(executed) + "\n")):
        files.write_whole(path, text)


# nbconvert's page, with the code folded that JupyterLab shows folded.
PAGE = """{% extends 'lab/index.html.j2' %}
{% block input %}
{%- if cell.metadata.get('jupyter', {}).get('source_hidden') -%}
<details><summary>Folded code</summary>{{ super() }}</details>
{%- else -%}
{{ super() }}
{%- endif -%}
{% endblock input %}"""


def _exporter():
    """nbconvert's for pages that need no other file.

    Where it embeds images, it parses each piece of HTML by itself, and so ends a folded
    block at its first blank line: a cell with such a block keeps its images outside.
    """
    from jinja2 import pass_context
    from nbconvert import HTMLExporter

    class Exporter(HTMLExporter):
        @pass_context
        def markdown2html(self, context, source):
            self.embed_images = "<details>" not in source
            return super().markdown2html(context, source)

    # Output comes in pieces, which may end within a word: joined, as Jupyter does.
    joined = ["nbconvert.preprocessors.CoalesceStreamsPreprocessor"]
    return Exporter(embed_images=True, preprocessors=joined, raw_template=PAGE)


def _result_of(ipynb: Path, html: Path, profile: str) -> Result:
    """Audit an executed copy. On `ci`, what is nearly untrue is refused, too: it would
    come out untrue on another machine."""
    executed = notebook_rules.read(ipynb)
    facts = executed.metadata["proof"]
    least_margin = notebook_rules.LEAST_MARGIN if profile == "ci" else 1.0
    findings = notebook_rules.audit(executed, _private(), least_margin)
    source = course.root() / "notebooks" / ipynb.name
    if asks_for_parts(source) and not findings:
        asked, needed = notebook_rules.parts_asked_for(executed), parts_needed(source)
        if asked != needed:
            findings = [
                f"it asks for {asked} of {needed} parts: call need_steps or check, "
                "which stop it when they are not done"
            ]
    return Result(
        notebook=ipynb.stem,
        seconds=facts["seconds"],
        findings=(*facts["findings"], *findings),
        cached=False,
        ipynb=ipynb,
        html=html,
    )


def _private() -> tuple[str, ...]:
    """Names of places on this machine that no reader should see."""
    places = [course.root(), Path.home(), Path(sys.prefix), course.PACKAGE_ROOT]
    places.append(Path(tempfile.gettempdir(), files.SCRATCH))
    if "COURSE_DATA" in os.environ:
        places.append(Path(os.environ["COURSE_DATA"]).resolve())
    return tuple(str(place) for place in places if len(place.parts) > 2)


# -------------------------------------------------------------- the whole course


def prove_all(
    numbers: Iterable[str] = (),
    profile: str | None = None,
    force: bool = False,
    jobs: int = 1,
) -> list[Result]:
    """Prove the notebooks with the given numbers, or all, and say how far it is.

    jobs: how many at a time. What they measure is then that of a busy machine.
    Raises UserError for an unknown number or profile.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    chosen = discover(numbers)
    name = profiles.profile(profile).name if profile else profiles.in_force().name
    console = Console(stderr=True)
    columns = ("{task.description}", "cell {task.completed} of {task.total}")
    results = {}
    with (
        Progress(
            *map(TextColumn, columns),
            BarColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        ) as bar,
        supervise.pool(jobs) as run,
    ):

        def prove_one(notebook: Path) -> Result:
            if not console.is_terminal:
                console.print(f"{notebook.stem} ...")
            cells = len(notebook_rules.read(notebook).cells)
            task = bar.add_task(f"{notebook.stem} ({name})", total=cells)
            result = prove(
                notebook,
                name,
                force=force,
                on_cell=lambda cell: bar.update(task, completed=cell),
            )
            bar.remove_task(task)
            return result

        for notebook, result in run(prove_one, chosen):
            console.print(_line(result))
            results[notebook] = result
    return [results[notebook] for notebook in chosen]


def _line(result: Result) -> str:
    how = "known already" if result.cached else f"{result.seconds:.0f} s"
    return f"{result.notebook}: {'ok' if result.ok else 'failed'} ({how})"


def table(results: list[Result]):
    """A rich table: notebook, minutes, verdict; below it what was found, and where
    the executed copies are."""
    from rich.console import Group
    from rich.markup import escape
    from rich.table import Table

    grid = Table("Notebook", "Minutes", "Verdict", "Executed")
    grid.columns[1].justify = "right"
    for result in results:
        verdict = "[green]ok" if result.ok else "[red]failed"
        when = "before, nothing changed" if result.cached else "now"
        grid.add_row(result.notebook, f"{result.seconds / 60:.1f}", verdict, when)
    findings = [
        f"[red]{result.notebook}[/]: {escape(finding)}"
        for result in results
        for finding in result.findings
    ]
    folders = {files.shown(result.html.parent) for result in results}
    where = [f"Executed copies: {escape(folder)}/" for folder in sorted(folders)]
    return Group(grid, *findings, *where)
