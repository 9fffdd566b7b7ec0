"""The files that a program has left."""

import contextlib
import os
from pathlib import Path


def files_in(folder: Path) -> dict[str, os.stat_result]:
    """What the disk says of each file in a folder, by the path from there."""
    found = {}
    # Unlike rglob, os.walk goes on where another worker deletes a folder meanwhile.
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent, name)
            with contextlib.suppress(FileNotFoundError):
                if path.is_file():
                    found[str(path.relative_to(folder))] = path.stat()
    return found


def changes_in(folder: Path) -> dict[str, int]:
    """The files in a folder, with the times of their last change, in ns."""
    return {name: facts.st_mtime_ns for name, facts in files_in(folder).items()}
