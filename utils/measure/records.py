"""Measurements that take too long to wait for: kept in the folder `recorded`, shipped
with the course, and shown with the machine and the command that they come from.

Nothing there is typed by hand: the command that a record names writes it anew.
"""

import json
import time
from dataclasses import dataclass
from pathlib import Path

from distcheck import files

FOLDER = Path(__file__).with_name("recorded")
PROGRAMS = Path(__file__).with_name("programs")  # what is timed


@dataclass(frozen=True)
class Record:
    """results: what was measured, plain data. machine, command, date: on what, by what
    and when. notes: what limits the meaning."""

    results: dict
    machine: str
    command: str
    date: str
    notes: tuple[str, ...] = ()

    @property
    def origin(self) -> str:
        """A line to stand under every figure or table of recorded numbers."""
        return f"Recorded {self.date} with `{self.command}` on {self.machine}."


def save(
    name: str,
    results: dict,
    command: str,
    notes: tuple[str, ...] = (),
    folder: Path | None = None,
) -> Path:
    """Keep results as `name`.json, whole or not at all; returns the path.

    folder: where; by default where `load` looks.
    """
    from distcheck import machine  # not above: `course --help` needs no psutil

    record = {
        "machine": machine.summary(),
        "command": command,
        "date": time.strftime("%Y-%m-%d"),
        "notes": list(notes),
        "results": results,
    }
    folder = folder or FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    files.write_whole(path, json.dumps(record, indent=1) + "\n")
    return path


def load(name: str, folder: Path | None = None) -> Record:
    """The record called `name`."""
    path = (folder or FOLDER) / f"{name}.json"
    facts = json.loads(path.read_text(encoding="utf-8"))
    return Record(**facts | {"notes": tuple(facts["notes"])})
