"""What the programs of lesson 27 printed, as tables and numbers."""

import json
import re
from math import log2

import pandas

from distcheck.errors import UserError
from utils.running.result import Run

COLUMNS = ("bytes", "count", "type", "us", "algbw", "busbw")


def table(printed: Run | str) -> pandas.DataFrame:
    """The rows that rank 0 printed of exercises/bandwidth.py or solutions/in_place.py.

    printed: a run, or what is in its log. A row a size: bytes, count, type, us
    (microseconds of a round), algbw and busbw (GB/s).
    Raises UserError where there is no row.
    """
    text = printed.log.read_text() if isinstance(printed, Run) else printed
    rows = []
    for line in text.splitlines():
        words = line.removeprefix("[0]").split()
        if len(words) == len(COLUMNS) and re.fullmatch(r"float\d+", words[2]):
            rows.append(
                [int(words[0]), int(words[1]), words[2], *map(float, words[3:])]
            )
    if not rows:
        raise UserError(
            "there is no row with bytes, count, type, us, algbw and busbw in what rank "
            f"0 printed. The end of it: {text[-300:]!r}."
        )
    return pandas.DataFrame(rows, columns=COLUMNS)


def read_off(rows: pandas.DataFrame) -> tuple[float, float]:
    """(latency in seconds, bandwidth in bytes a second) of a table: the time of its
    smallest message, and the bytes of its largest over its time."""
    first, last = rows.iloc[0], rows.iloc[-1]
    return first.us / 1e6, 1e6 * last.bytes / last.us


def results(run: Run) -> dict[str, list[tuple[list, list]]]:
    """What solutions/collectives.py printed: name -> for each worker, what it gave and
    what it got."""
    found: dict[str, dict[int, tuple[list, list]]] = {}
    line = re.compile(r"\[(\d+)\] ([\w-]+): (\[.*\]) -> (\[.*\])")
    for rank, name, given, got in line.findall(run.log.read_text()):
        found.setdefault(name, {})[int(rank)] = json.loads(given), json.loads(got)
    return {name: [own[rank] for rank in sorted(own)] for name, own in found.items()}


# An all-reduce on n workers: how many messages one after the other, and how many times
# its bytes pass in these. Sources: see cost_model.py.
LAWS = {
    "ring": lambda n: (2 * (n - 1), 2 * (n - 1) / n),
    "tree": lambda n: (2 * log2(n), 2 * log2(n)),
    "recursive doubling": lambda n: (log2(n), log2(n)),
}


def seconds(law: str, n: int, size: float, latency: float, bandwidth: float) -> float:
    """Of an all-reduce of `size` bytes on n workers, a power of two: messages times
    latency (seconds each), and bytes over bandwidth (bytes a second).

    In the tree each number goes up to one worker and down again, whole, level by level.
    """
    messages, share = LAWS[law](n)
    return messages * latency + share * size / bandwidth
