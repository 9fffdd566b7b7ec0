"""Judge the tasks of exercises/bandwidth.py: by the collectives that the workers make,
and by the table that they print, on clocks that show made-up seconds.

What each way to measure gives on these clocks is worked out here (see
recorders/wires.py). So no verdict depends on how fast a machine is.
"""

import math
import re
from dataclasses import dataclass

from distcheck import lab
from distcheck.judges.compare import classify
from distcheck.judges.registry import exercise
from distcheck.judges.runs import Problem, Rank, Run
from distcheck.scenarios import SCENARIOS
from utils.checking.recorders.wires import (
    COUNTS,
    LATE,
    LATE_IN_WARM_UP,
    ROUNDS,
    SECONDS,
    WARM_UP,
)

TWO, THREE = "two wires", "three wires"
WORKERS, MORE_WORKERS = SCENARIOS[TWO].size, SCENARIOS[THREE].size
DTYPE, BYTES = "float64", 8  # of a number
LISTED = " ".join(map(str, COUNTS))  # as in a command

# In times of a warm round. Whoever measures with all together, and takes the slowest:
# each round waits for the last worker, who was late out of the one before, and it is
# itself late out of the last one.
RIGHT = 1 + LATE
# A worker that is never late does not see the end of that.
OWN = (ROUNDS * RIGHT - LATE) / ROUNDS
# One that did not wait for rank 0 after the warm-up.
APART = RIGHT + LATE_IN_WARM_UP / ROUNDS
RTOL_PRINTED = 0.015  # of what is printed with four digits, and divided

task = exercise(
    "bandwidth",
    options=(
        f"--counts {LISTED} --dtype {DTYPE} --warm-up {WARM_UP} --rounds {ROUNDS}"
    ),
).part


@dataclass(frozen=True)
class Row:
    """A row of the table: what is printed, in bytes, seconds and GB/s."""

    size: float
    count: int
    seconds: float
    algbw: float
    busbw: float


_NUMBER = r"(\S+)"
_ROW = re.compile(
    rf"^\s*{_NUMBER}\s+(\d{{1,9}})\s+{DTYPE}\s+" + r"\s+".join([_NUMBER] * 3)
)


def _rows(rank: Rank) -> list[Row]:
    """The rows that a worker printed, of finite numbers."""
    rows = []
    for line in rank.text("out").splitlines():
        found = _ROW.match(line)
        if found:
            try:
                size, us, algbw, busbw = map(float, found.group(1, 3, 4, 5))
            except ValueError:
                continue
            if all(map(math.isfinite, (size, us, algbw, busbw))):
                rows.append(Row(size, int(found[2]), us / 1e6, algbw, busbw))
    return rows


def _table(run: Run) -> dict[int, Row]:
    """What rank 0 printed: numbers in a message -> its row. Raises a Problem."""
    if run.outcome != lab.ENDED:
        run.raise_if_in_trouble()
    rows = {r.count: r for r in _rows(run.ranks[0]) if r.count in COUNTS}
    for count in COUNTS:
        if count not in rows:
            raise Problem(
                "no-row",
                f"Rank 0 printed no row for {count} numbers: bytes, count, type, "
                "microseconds and the two bandwidths.",
            )
    return rows


def _near(value: float, expected: float) -> bool:
    return math.isclose(value, expected, rel_tol=RTOL_PRINTED)


def _rounds(rank: Rank, count: int) -> list[dict]:
    """The all-reduces of messages of this size."""
    return [
        event
        for event in rank.all("collective_start")
        if "allreduce" in event["op"] and event["elements"] == count
    ]


@task(
    "A",
    scenarios=("two wires",),
    expected=(
        f"For each size, {WARM_UP} rounds are run that don't count, and then {ROUNDS} "
        "rounds are timed. The time of one round is printed."
    ),
)
def warms_up(runs: dict[str, Run]) -> None:
    """Some rounds of each size that don't count, then many; the time of one."""
    run = runs[TWO]
    rows = _table(run)
    for count in COUNTS:
        rounds = [_rounds(rank, count) for rank in run.ranks]
        made = len(rounds[0])
        line = rounds[0][-1]["line"] if made else None
        if made != WARM_UP + ROUNDS:
            raise Problem(
                "one-round" if made == 1 else "other-rounds",
                f"The program made {made} all-reduce(s) of {count} numbers; with "
                f"--warm-up {WARM_UP} --rounds {ROUNDS}, there should be "
                f"{WARM_UP + ROUNDS}.",
                line,
            )
        times = rows[count].seconds / SECONDS[count]
        least, most = OWN * (1 - RTOL_PRINTED), APART * (1 + RTOL_PRINTED)
        if least <= times <= most:
            continue
        seen = (
            f"For {count} numbers the program printed "
            f"{1e6 * rows[count].seconds:,.1f} us. On the clock of this check, one "
            f"timed round took {1e6 * SECONDS[count] * least:,.0f} to "
            f"{1e6 * SECONDS[count] * most:,.0f} us"
        )
        clocks = {event["clock"] for event in run.ranks[0].all("read")}
        name, why = "too-short", ". By how many rounds is the time divided?"
        if least <= times / ROUNDS <= most:
            name, why = (
                "not-divided",
                f": the program printed the time of all {ROUNDS} rounds.",
            )
        elif times > most:
            name, why = (
                "warm-up-counts",
                ", and a round of the warm-up took many times as long.",
            )
        elif clocks & _OF_PROCESSOR:
            name = "processor-time"
            why = (
                ". The program reads how long the processor has worked, but this time "
                "stops while a worker waits for bytes."
            )
        raise Problem(name, seen + why, line)


_OF_PROCESSOR = {"process_time", "thread_time"}


@task(
    "B",
    scenarios=("two wires",),
    expected=(
        "After the warm-up, all workers start together, and the time of the slowest "
        "worker is printed."
    ),
)
def lets_the_slowest_count(runs: dict[str, Run]) -> None:
    """All start together; what is printed is the slowest worker's time."""
    run = runs[TWO]
    for count, row in _table(run).items():
        times = row.seconds / SECONDS[count]
        rounds = _rounds(run.ranks[0], count)
        if _near(times, RIGHT):
            continue
        took = {
            "if all start together, the slowest worker took": RIGHT,
            "rank 0 took": OWN,
            "the mean over the workers is": (RIGHT + (WORKERS - 1) * OWN) / WORKERS,
        }
        listed = ", ".join(
            f"{words} {1e6 * share * SECONDS[count]:,.0f} us"
            for words, share in took.items()
        )
        mean = took["the mean over the workers is"]
        fault = classify(times, {"own-time": OWN, "mean": mean}, _near)
        raise Problem(
            fault or ("not-together" if times > RIGHT else "other-time"),
            f"For {count} numbers, rank 0 printed {1e6 * row.seconds:,.0f} us. On the "
            f"clock of this check: {listed}. A worker that does not wait for rank "
            f"0, which is late after the warm-up, measures "
            f"{1e6 * APART * SECONDS[count]:,.0f} us.",
            rounds[-1]["line"] if rounds else None,
        )


@task(
    "C",
    scenarios=("two wires",),
    expected=(
        f"The program prints a message's size in bytes, {BYTES} for each number of "
        f"{DTYPE}, and the algorithm bandwidth in bytes per second."
    ),
)
def counts_bytes(runs: dict[str, Run]) -> None:
    """The size of a message is in bytes, whatever its type; and so is the bandwidth."""
    for count, row in _table(runs[TWO]).items():
        size = count * BYTES
        if row.size != size:
            names = {count: "elements", 4 * count: "four-bytes"}
            raise Problem(
                names.get(int(row.size), "other-size"),
                f"A message of {count} numbers of type {DTYPE} has {size} bytes, but "
                f"the program printed {row.size:g}.",
            )
        right = size / row.seconds / 1e9 if row.seconds else math.inf
        if _near(row.algbw, right):
            continue
        known = {"bits": 8, "elements": 1 / BYTES, "four-bytes": 4 / BYTES}
        raise Problem(
            classify(row.algbw / right, known, _near) or "other-bandwidth",
            f"{size} bytes in {1e6 * row.seconds:,.1f} us are {right:.4g} GB/s, with "
            f"10^9 bytes to a GB. The program printed an algorithm bandwidth of "
            f"{row.algbw:.4g}.",
        )


@task(
    "D",
    scenarios=("two wires", "three wires"),
    expected=(
        "The program prints the bus bandwidth, which counts the bytes that each of "
        f"{WORKERS} workers, or of {MORE_WORKERS}, has to send. Only rank 0 prints."
    ),
)
def counts_the_wires(runs: dict[str, Run]) -> None:
    """The bus bandwidth is by how many workers there are; rank 0 alone prints."""
    for name in (TWO, THREE):
        if name not in runs:  # the checks of other tasks don't need both
            continue
        run = runs[name]
        workers = run.size
        rows = _table(run)
        right = 2 * (workers - 1) / workers
        for row in rows.values():
            ratio = row.busbw / row.algbw if row.algbw else math.nan
            if _near(ratio, right):
                continue
            known = {"same-as-algbw": 1, "one-way": (workers - 1) / workers}
            raise Problem(
                classify(ratio, known, _near) or "other-factor",
                f"With {workers} workers, each has to send {right:.4g} times the bytes "
                f"of its message. But the bus bandwidth that the program printed, "
                f"{row.busbw:.4g}, is {ratio:.4g} times the algorithm bandwidth, "
                f"{row.algbw:.4g}.",
            )
        others = [rank.number for rank in run.ranks[1:] if _rows(rank)]
        if others:
            raise Problem(
                "all-print", f"Rank {others[0]} printed the same rows as rank 0."
            )
