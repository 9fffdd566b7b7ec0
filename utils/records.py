"""Measurements that take too long to wait for: kept in `utils/recorded/`, shipped with
the course, and shown with the machine and the command that they come from.

Nothing there is typed by hand: the command that a record names writes it anew.
"""

import json
import platform
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from utils import course, launch, profiles

FOLDER = Path(__file__).with_name("recorded")


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
    kept = {
        "machine": machine(),
        "command": command,
        "date": time.strftime("%Y-%m-%d"),
        "notes": list(notes),
        "results": results,
    }
    folder = folder or FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    half = path.with_suffix(".half")
    half.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    half.replace(path)
    return path


def load(name: str, folder: Path | None = None) -> Record:
    """The record called `name`. Raises CourseError if there is none, or half of one."""
    path = (folder or FOLDER) / f"{name}.json"
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        kept["notes"] = tuple(kept["notes"])
        return Record(**kept)
    except FileNotFoundError:
        raise course.CourseError(
            f"there is no record {course.shown(path)}: was it ever measured?"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise course.CourseError(
            f"{course.shown(path)} is not a record: {error}. Make it anew."
        ) from None


def machine() -> str:
    """This machine in a line: processor, cores, what it computes with, memory, GPUs."""
    name = processor()
    cores = launch.cores()
    parts = [f"{cores} core{'s' if cores > 1 else ''} of {name}"]
    if sets := _instruction_sets():
        parts.append(sets)
    parts.append(f"{psutil.virtual_memory().total / 2**30:.0f} GiB")
    gpus = profiles.gpus()
    parts.append(f"{gpus} GPU{'s' if gpus > 1 else ''}" if gpus else "no GPU")
    parts.append(platform.system())
    return ", ".join(parts)


def processor() -> str:
    """The processor's name, as the system tells it."""
    said = _cpuinfo("model name") or platform.processor() or platform.machine()
    return " ".join(said.replace("(R)", "").replace("(TM)", "").split())


def flags() -> set[str]:
    """The processor's instruction sets, where the system tells them (Linux, x86)."""
    return set(_cpuinfo("flags").split())


def _instruction_sets() -> str:
    there = flags()
    names = {"avx2": "AVX2", "avx512f": "AVX-512", "avx512_vnni": "VNNI"}
    names |= {"avx512_bf16": "bfloat16", "amx_bf16": "AMX"}
    return " ".join(said for flag, said in names.items() if flag in there)


def _cpuinfo(key: str) -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""  # macOS has no such file
    found = (line.partition(":") for line in lines)
    return next((value.strip() for name, _, value in found if name.strip() == key), "")
