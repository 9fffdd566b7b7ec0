"""What real runs gave, for those who lack what they take (Slurm, Spark, namespaces).

A folder of solutions/cluster/recorded is a run: facts.json, with `origin`, a sentence
on when and with what it was made; and files that the run left, such as its journal.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path

from utils.base import course
from utils.cluster.namespaces import CutOff
from utils.running.result import Run

FOLDER = course.PACKAGE_ROOT / "solutions" / "cluster" / "recorded"
UNSAID = re.compile("^NOTICE: | - ETA: ")


def read(name: str) -> dict:
    """The facts of a recorded run; `origin` says where they come from."""
    return json.loads((FOLDER / name / "facts.json").read_text())


def cut_off(name: str) -> tuple[CutOff, str]:
    """A run in which a host was cut off, and its origin."""
    facts = read(name)
    run = Run("survive_solution.py", 2, facts["command"], FOLDER / name)
    cut = CutOff(run, facts["time"], facts["waited"], facts["said"])
    return cut, facts["origin"]


def of_job(facts: Mapping[str, str], folder: Path) -> dict:
    """What is recorded of a job of Slurm, which has left its files in a folder.

    facts: that Slurm knows of it. Returned are three of them; what it `said`, without
    progress bars and notices; with how many `workers` a batch was ever done; and the
    names of its `checkpoints`.
    """
    rows = [
        line.split(",")
        for path in folder.glob("journal*.csv")
        for line in path.read_text().splitlines()
    ]
    said = (folder / "said.txt").read_text().replace("\b", "\r").splitlines()
    return {
        "facts": {key: facts[key] for key in ("JobState", "NodeList", "Restarts")},
        "said": [line for line in said if line.strip() and not UNSAID.search(line)],
        "workers": sorted({int(row[2]) for row in rows if row[2].isdigit()}),
        "checkpoints": sorted(path.stem for path in folder.rglob("*.index")),
    }
