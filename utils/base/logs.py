"""Where a run keeps its files, without two workers writing into the same one."""

import os
import sys
import time
from pathlib import Path

from utils.base import course


def new_folder(name: str) -> Path:
    """Make `logs/<date>_<time>_<name>`; a number is added if it is there already."""
    stamp = time.strftime("%Y-%m-%d_%H-%M-%S")
    wanted = course.root() / "logs" / f"{stamp}_{name}"
    folder, number = wanted, 1
    while True:
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            number += 1
            folder = wanted.with_name(f"{wanted.name}_{number}")


def claim(log_dir: str | None, name: str) -> str:
    """Claim the file `name` in `log_dir` for this process alone; return its path.

    Without `log_dir`, the folder is that of the launcher (`course run`), else a new
    one below `logs/`. A file that is there already belongs to another worker or to
    an earlier run: it is left alone, and this process gets `history-1.csv` instead
    of `history.csv`, then `history-2.csv`, and so on.
    """
    if log_dir is not None:
        folder = Path(log_dir)
        folder.mkdir(parents=True, exist_ok=True)
    elif "COURSE_RUN" in os.environ:
        folder = Path(os.environ["COURSE_RUN"])
    else:
        folder = new_folder("run")
    wanted = folder / name
    path, number = wanted, 0
    while True:
        try:
            path.open("x").close()
        except FileExistsError:
            number += 1
            path = wanted.with_stem(f"{wanted.stem}-{number}")
            continue
        if number:
            print(f"{name} is taken; this process writes {path.name}.", file=sys.stderr)
        return str(path)
