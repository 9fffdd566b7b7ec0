"""Failures, caused for real: the logs that `course explain` has to explain.

    python tests/failures.py [NAME ...]    # causes them again, all or these

failures/NAME.toml has the id of the message that explains it (`id`), a `command` for
bash, and what else is needed: `program`, the text of program.py in the folder in which
the command runs; `or_else`, the id of what explains it as well, where it isn't the same
each time; `rank`, on which it fails; `seconds`, after which it is ended, by
default 120; `needs`, what a machine must have that not every machine has.
failures/NAME.log is all that it printed, where this machine is made neutral: the
environment is VENV, the folder is HERE, and the machine is called HOST.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from socket import gethostname

import tomli

from distcheck import keras_2, supervise
from utils.running import explain

FOLDER = Path(__file__).with_suffix("")


@dataclass(frozen=True)
class Failure:
    """A way to fail; see above."""

    name: str
    id: str
    command: str
    program: str = ""
    or_else: str = ""
    rank: int | None = None
    seconds: float = 120.0
    needs: str = ""

    @property
    def log(self) -> Path:
        return FOLDER / f"{self.name}.log"


def failures() -> list[Failure]:
    """All of them, by name."""
    return [
        Failure(path.stem, **tomli.loads(path.read_text(encoding="utf-8")))
        for path in sorted(FOLDER.glob("*.toml"))
    ]


def of_this_commit() -> list[Failure]:
    """One in thirty of those that every machine can cause, with each commit others:
    `make test` has no time to cause all."""
    command = ["git", "-C", str(FOLDER), "rev-parse", "HEAD"]
    commit = int(subprocess.check_output(command, text=True), 16)
    return [one for one in failures() if not one.needs][commit % 30 :: 30]


def cause(failure: Failure) -> str:
    """Let it happen; return what was printed, without what names this machine."""
    with tempfile.TemporaryDirectory() as here:
        Path(here, "program.py").write_text(failure.program.lstrip("\n"))
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path}
        # pytest asks for Keras 2, for what trains in its own process.
        environment.pop(keras_2.VARIABLE, None)
        with (
            tempfile.TemporaryFile() as output,
            supervise.owned(
                ["bash", "-c", failure.command],
                failure.seconds,
                cwd=here,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            ) as process,
        ):
            process.wait()
            output.seek(0)
            text = output.read().decode(errors="replace")
    for own, neutral in (
        (os.path.realpath(here), "HERE"),
        (here, "HERE"),
        (sys.prefix, "VENV"),
        (sys.base_prefix, "PYTHON"),
        (gethostname(), "HOST"),
    ):
        text = text.replace(own, neutral)
    # Horovod names its sources by where they were when it was built.
    return re.sub(r"/\S*/(?=horovod-[\d.]+/)", "", text)


def is_explained(failure: Failure, found: explain.Explanation) -> bool:
    """Whether what was found in its log is what it is, on the rank on which it is."""
    if found.first is None or found.first.message is None:
        return False
    on = failure.rank is None or found.first.ranks == [failure.rank]
    return found.first.message.id in (failure.id, failure.or_else) and on


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    names = parser.parse_args().names
    chosen = [one for one in failures() if not names or one.name in names]
    if unknown := set(names) - {one.name for one in chosen}:
        sys.exit(f"There is no {', '.join(sorted(unknown))} in {FOLDER}.")
    for failure in chosen:
        text = cause(failure)
        failure.log.write_text(text, encoding="utf-8")
        found = explain.explain(text.splitlines())
        right = is_explained(failure, found)
        print(f"{failure.name}: {'right' if right else 'NOT RIGHT'}\n{found}\n")


if __name__ == "__main__":
    main()
