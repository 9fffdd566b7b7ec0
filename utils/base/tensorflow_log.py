"""Tell what TensorFlow logs on standard error from what a program prints.

Where there are GPUs, every process logs which libraries TensorFlow loads and which
device it makes: dozens of lines in which a program's own are lost. (Where there are
none, the environment's start-up file keeps TensorFlow quiet: utils/setup/install.py.)
"""

import re
from collections.abc import Iterable, Iterator

# By the letter: informations, warnings and errors. What is fatal (F) ends the process,
# so that is always shown.
_LOGGED = re.compile(
    r"(\[\d+\] )?("  # the rank, in a run's log
    r"[IWE]\d{4} \d\d:\d\d:\d+\.\d+ +\d+ \S+:\d+\] "
    r"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IWE] \S+:\d+\] "  # TensorFlow before 2.21
    r"|WARNING: All log messages before absl::InitializeLog\(\) "
    r"|To enable the following instructions: .* rebuild TensorFlow "  # of two lines
    r")"
)


def left_out(lines: Iterable[str]) -> Iterator[str]:
    """The lines without those that TensorFlow logs."""
    return (line for line in lines if not _LOGGED.match(line))
