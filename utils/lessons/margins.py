"""How near the claims of the lessons are to untrue, in one run or in many.

Each run of a lesson that is made for this is kept as an executed copy of its own,
`executed/<profile>/runs/<number>/NN_name.ipynb`. So what was done is not done again
after an interruption, and one can look into a run whose claim was nearly untrue.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nbformat import NotebookNode

from distcheck import errors, files
from utils.base import course, profiles
from utils.lessons import claims, notebook_rules, notebooks

PROFILES = ("ci", "cpu")  # those that every machine can run


@dataclass(frozen=True)
class Row:
    """A claim in the run in which it came nearest to untrue.

    runs: in how many it was made.
    """

    notebook: str
    cell: str
    claim: claims.Claim
    profile: str
    runs: int

    @property
    def margin(self) -> float:
        """Without a number it is either infinite or 0."""
        if self.claim.margin is None:
            return float("inf") if self.claim.true else 0.0
        return self.claim.margin

    @property
    def wide(self) -> bool:
        return self.margin >= notebook_rules.WANTED_MARGIN

    def as_json(self) -> dict:
        """The same as plain values."""
        return {**vars(self), "claim": self.claim.as_json()}


@dataclass(frozen=True)
class Report:
    """rows: the claims, nearest to untrue first. findings: what else went wrong."""

    rows: tuple[Row, ...]
    findings: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.findings and all(row.wide for row in self.rows)

    def as_json(self) -> dict:
        """The same as plain values."""
        rows = [row.as_json() for row in self.rows]
        return {"ok": self.ok, "rows": rows, "findings": self.findings}


def margins(
    numbers: Iterable[str] = (), names: Sequence[str] = (), runs: int = 0
) -> Report:
    """The margins of the notebooks with the given numbers, or all.

    names: of the profiles; by default ci and cpu.
    runs: executes each notebook, with each profile, until so many runs of it are kept;
        a run of what the notebook was before it was changed doesn't count. With 0,
        the runs that are kept are read; where there are none, the executed copy.
    Raises UserError for an unknown number or profile, and where nothing is kept.
    """
    chosen = notebooks.discover(numbers)
    names = [profiles.profile(name).name for name in names or PROFILES]
    for run in range(1, runs + 1):
        for name in names:
            for notebook in chosen:
                _run(notebook, name, run)
    copies = [
        (notebook, name, copy)
        for notebook in chosen
        for name in names
        for copy in _copies(notebook, name)
    ]
    if not copies:
        raise errors.UserError(
            "no executed copy of these notebooks as they are now was found: "
            "`course margins --runs 5` makes some."
        )
    findings = tuple(
        f"{files.shown(copy.path)}: {finding}"
        for _, _, copy in copies
        for finding in (
            *copy.node.metadata["proof"]["findings"],
            *notebook_rules.audit(copy.node),
        )
    )
    rows = sorted(_rows(copies), key=lambda row: row.margin)
    return Report(tuple(rows), findings)


@dataclass(frozen=True)
class _Copy:
    path: Path
    node: NotebookNode


def _place(notebook: Path, profile: str, run: int) -> Path:
    folder = course.root() / "executed" / profile
    return folder / "runs" / str(run) / notebook.name


def _run(notebook: Path, profile: str, run: int) -> None:
    """Execute `notebook` and keep the copy, unless run number `run` is kept."""
    place = _place(notebook, profile, run)
    if not _read(notebook, [place]):
        (result,) = notebooks.prove_all([notebook.name[:2]], profile, force=True)
        place.parent.mkdir(parents=True, exist_ok=True)
        files.write_whole(place, result.ipynb.read_bytes())


def _copies(notebook: Path, profile: str) -> list[_Copy]:
    """What is kept of executions of `notebook` as it is now."""
    folder = _place(notebook, profile, 0).parent.parent
    kept = _read(notebook, sorted(folder.glob(f"*/{notebook.name}")))
    return kept or _read(notebook, [folder.parent / notebook.name])


def _read(notebook: Path, paths: Iterable[Path]) -> list[_Copy]:
    def code(node: NotebookNode) -> list[str]:
        return [cell.source for _, cell in notebook_rules.cells_of(node, "code")]

    now = code(notebook_rules.read(notebook))
    copies = [_Copy(p, notebook_rules.read(p)) for p in paths if p.exists()]
    return [copy for copy in copies if code(copy.node) == now]


def _rows(copies: Iterable[tuple[Path, str, _Copy]]) -> Iterator[Row]:
    made: dict[tuple, list[Row]] = {}
    for notebook, profile, copy in copies:
        for place, cell in notebook_rules.cells_of(copy.node, "code"):
            for number, claim in enumerate(claims.shown(cell.outputs)):
                row = Row(notebook.stem, place, claim, profile, 1)
                made.setdefault((notebook, cell.id, number), []).append(row)
    for rows in made.values():
        nearest = min(rows, key=lambda row: row.margin)
        yield replace(nearest, runs=len(rows))


def table(report: Report):
    """A rich table: the claims about numbers, nearest to untrue first; below it what
    else went wrong."""
    from rich.console import Group
    from rich.markup import escape
    from rich.table import Table

    grid = Table("Margin", "Lesson", "Claim", "Value, bound", "Profile", "Runs")
    for column in (0, 5):
        grid.columns[column].justify = "right"
    plain = [row for row in report.rows if row.claim.margin is None and row.wide]
    for row in report.rows:
        if row not in plain:
            color = "" if row.wide else "[yellow]" if row.claim.true else "[red]"
            grid.add_row(
                f"{color}{row.margin:.3g}{'' if row.wide else ' !'}",
                row.notebook[:2],
                f"{color}{escape(row.claim.sentence)}",
                row.claim.numbers.replace("value ", ""),
                row.profile,
                str(row.runs),
            )
    narrow = sum(not row.wide for row in report.rows)
    wanted = notebook_rules.WANTED_MARGIN
    return Group(
        grid,
        f"{narrow} nearer than a factor of {wanted:g}: give them other bounds, or say "
        "less."
        if narrow
        else f"All are a factor of {wanted:g} from untrue, or more.",
        f"Claims without a number, true in every run: {len(plain)}.",
        *(f"[red]{escape(finding)}[/]" for finding in report.findings),
    )
