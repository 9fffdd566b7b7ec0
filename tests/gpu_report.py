"""Try out everything that needs a GPU, and put what happened into a folder: `make gpu`.

The folder is for whoever reports how the course runs on a GPU: the course itself was
written on machines without one.
"""

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from distcheck import files, machine, supervise
from distcheck.show import Table
from utils.base import course

COURSE = (sys.executable, "-m", "utils.cli")


@dataclass(frozen=True)
class Part:
    """name: of its output, NAME.txt; what: for people; hours: after which it is
    ended."""

    name: str
    what: str
    command: tuple[str, ...]
    hours: float = 1.0


def parts(folder: Path) -> list[Part]:
    """What is done, in order; what tells most comes first."""
    bench = (*COURSE, "bench", "gpu", "--rounds", "3", "--out", str(folder / "bench"))
    tests = (sys.executable, "-m", "pytest", "-m", "gpu", str(course.root() / "tests"))
    return [
        Part("nvidia-smi", "driver and GPUs", ("nvidia-smi", "-q"), 0.1),
        Part("topology", "what joins the GPUs", ("nvidia-smi", "topo", "-m"), 0.1),
        Part("doctor", "what this machine can run", (*COURSE, "doctor"), 0.2),
        Part("tests", "the tests that need a GPU", tests),
        Part("bench", "images per second", bench, 2.0),
        Part(
            "notebooks",
            "all notebooks, profile gpu",
            (*COURSE, "notebooks", "--profile", "gpu"),
            12.0,
        ),
    ]


def run(part: Part, folder: Path) -> tuple[str, str]:
    """Do a part; its output goes to the folder. How it ended, and its minutes."""
    started = time.monotonic()
    with (
        (folder / f"{part.name}.txt").open("wb") as output,
        supervise.owned(
            list(part.command),
            3600 * part.hours,
            env=dict(os.environ, COLUMNS="100"),
            stdout=output,
            stderr=subprocess.STDOUT,
        ) as process,
    ):
        status = process.wait()
    words = {0: "well", supervise.TIMED_OUT: f"not within {part.hours:g} hours"}
    ended = words.get(status, f"with status {status}")
    return ended, f"{(time.monotonic() - started) / 60:.1f}"


def report(rows: list[tuple[str, ...]]) -> str:
    """The first page of the folder, in Markdown."""
    table = Table(("What", "It ended", "Minutes", "Output"), rows)
    lines = [table.header, ("---",) * len(table.header), *table.rows]
    text = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    return (
        f"# The course on GPUs\n\nOn {machine.summary()}.\n\n{text}\n\n"
        "Speeds are in `bench/bench.md`. Attach the folder, zipped, to an issue; look "
        "first whether you mind any path or name in it.\n"
    )


def main() -> int:
    """Returns 0 if everything ended well, else 1."""
    if not machine.gpus():
        print("There is no GPU here that TensorFlow can use: `course doctor` says why.")
        return 1
    folder = course.root() / "logs" / f"gpu_{time.strftime('%Y-%m-%d_%H-%M-%S')}"
    folder.mkdir(parents=True)
    rows = []
    for part in parts(folder):
        print(f"{part.what} ...", flush=True)
        rows.append((part.what, *run(part, folder), f"`{part.name}.txt`"))
        print(f"    ended {rows[-1][1]}, after {rows[-1][2]} minutes", flush=True)
        (folder / "REPORT.md").write_text(report(rows), encoding="utf-8")
    print(f"The report is in {files.shown(folder)}.")
    return int(any(ended != "well" for _, ended, *_ in rows))


if __name__ == "__main__":
    sys.exit(main())
