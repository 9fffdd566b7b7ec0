"""Which rows of the long tables a job of CI runs: all would take it longer than it has.

The tables are the wrong and the right programs, the attacks on the grader, the faults
that `course audit` finds, the clinic's cases, and the failures that are caused to see
whether `course explain` knows them.
"""

import functools
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ONE_IN = 4


@functools.cache
def commit() -> int:
    """What is tested, as a number."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    return int(subprocess.check_output(command, text=True), 16)


def drawn(rows: Sequence, python: int = sys.version_info.minor) -> list:
    """In CI, one row in four; elsewhere all.

    Which rows these are, depends on the commit and on Python: the workflow's jobs, for
    four releases of Python in a row, run all rows of each commit.

    python: 11 for Python 3.11.
    """
    begin = (commit() + python) % ONE_IN
    return list(rows[begin::ONE_IN] if os.environ.get("CI") else rows)
