"""Rows and sections of a benchmark: what was measured together, and how it compares."""

import statistics
from dataclasses import asdict, dataclass, field

from distcheck.show import Table
from utils.measure import records

APART = 0.25  # of the median: rounds further apart than that are warned of


TARGET = 0.85  # validation accuracy to be above in two epochs running


IMAGES, SECONDS = "images/s", "s"


@dataclass
class Row:
    """A line of the benchmark: a value for each round, and its ratio to another row's.

    base: the name of the row that the ratios are taken to; "" without. at_least: the
    values are bounds, as the measurement was ended. facts: more about it.
    """

    name: str
    values: list[float]
    unit: str
    base: str = ""
    ratios: list[float] = field(default_factory=list)
    at_least: bool = False
    facts: dict = field(default_factory=dict)

    @property
    def spread(self) -> float:
        """How far apart the rounds are: largest less smallest, over the median."""
        numbers = self.ratios or self.values
        return (max(numbers) - min(numbers)) / statistics.median(numbers)


@dataclass
class Section:
    """Rows that were measured together. notes: what could not be, and why."""

    name: str
    rows: list[Row]
    notes: list[str] = field(default_factory=list)

    def compare(self, base: str, *names: str) -> None:
        """Set the ratios of these rows (default: all others) to the row `base`."""
        by_name = {row.name: row for row in self.rows}
        for row in self.rows:
            if row.name != base and (not names or row.name in names):
                pairs = zip(row.values, by_name[base].values, strict=True)
                row.base = base
                row.ratios = [value / base_value for value, base_value in pairs]

    def warnings(self) -> list[str]:
        """A sentence for each row whose rounds disagree."""
        return [
            f"The rounds of {row.name!r} are {row.spread:.0%} apart."
            for row in self.rows
            if row.spread > APART
        ]

    def shown(self) -> Table:
        header = (TITLES[self.name], "median", "lowest to highest", "ratio", "rounds")
        return Table(header, [_cells(row) for row in self.rows])

    def markdown(self) -> str:
        """The table as Markdown, with its notes."""
        table = self.shown()
        lines = [table.header, ("---",) * len(table.header), *table.rows]
        text = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
        return "\n\n".join([text, *self.notes])


def _cells(row: Row) -> tuple[str, ...]:
    more = "more than " if row.at_least else ""
    ratio = ""
    if row.ratios:
        middle = f"{more}{statistics.median(row.ratios):.2f}"
        if len(row.ratios) > 1:
            middle += f" ({min(row.ratios):.2f} to {max(row.ratios):.2f})"
        ratio = f"{middle} of {row.base}"
    return (
        row.name,
        f"{more}{_number(statistics.median(row.values))} {row.unit}",
        f"{_number(min(row.values))} to {_number(max(row.values))}",
        ratio,
        str(len(row.values)),
    )


def _number(value: float) -> str:
    """With three digits that mean something."""
    digits = max(0, 2 - len(str(int(abs(value)))) + 1) if abs(value) >= 1 else 3
    return f"{value:,.{digits}f}"


# The sections of the benchmark, in their order.
TITLES = {
    "launch": "Training, all workers together",
    "pipeline": "Input pipeline alone, one thread",
    "start": "From the command to the first batch",
    "loop": "What a learner waits for",
    "profile": "Where a step's time goes, one worker on one core",
    "precision": "One worker on one core or GPU",
    "accuracy": f"Time to {TARGET} validation accuracy, twice running",
    "recipe": "Validation accuracy, one thing changed",
    "speedrun": "Speedrun: test images that it gets wrong, one thing changed",
    "gpu": "WRN-16-10 on GPUs, 128 images a step on each",
    "network": "Two hosts of one core each, by the network between them",
}


def keep(section: Section, command: str) -> None:
    """Keep a section as one of the course's records."""
    rows = [asdict(row) for row in section.rows]
    for row in rows:
        del row["ratios"]  # `recorded` finds them from the values
    notes = (*section.notes, *section.warnings())
    records.save(f"bench_{section.name}", {"rows": rows}, command, notes)


def recorded(name: str) -> tuple[Section, records.Record]:
    """A recorded section, and where it comes from."""
    record = records.load(f"bench_{name}")
    rows = [Row(**row) for row in record.results["rows"]]
    section = Section(name, rows, list(record.notes))
    for row in rows:
        if row.base:
            section.compare(row.base, row.name)
    return section, record
