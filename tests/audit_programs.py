"""The tables of audited programs: tests/audited/*.py, faults.toml and twins.toml."""

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import tomli

from distcheck import audit, lab, mpi, supervise

FOLDER = Path(__file__).parent / "audited"
RIGHT = sorted(FOLDER.glob("*.py"))
FAULTS = tomli.loads((FOLDER / "faults.toml").read_text())["program"]
TWINS = tomli.loads((FOLDER / "twins.toml").read_text())["program"]


@contextlib.contextmanager
def served() -> Iterator[None]:
    """While this lasts, audited workers are forked from one process."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(Path(__file__).with_name("audit_server.py"))]
        with (
            supervise.owned(
                [*command, folder],
                7200,  # seconds: all audits of a busy machine
                env={**mpi.clean_environment(), **lab.environment()},
                stdout=subprocess.PIPE,
                text=True,
            ) as process,
        ):
            assert process.stdout.readline() == "ready\n"

            def watched(script: Path, arguments) -> list[str]:
                asks = [sys.executable, "-I", "-S", messenger_path()]
                return [*asks, f"{folder}/door", json.dumps([str(script), *arguments])]

            with mock.patch.object(audit, "watched", watched):
                yield


def messenger_path() -> str:
    """Of what mpirun starts in the place of a worker."""
    return str(Path(lab.__file__).with_name("messenger.py"))


def edited(base: str, edits: list[list[str]]) -> str:
    """A program's text with each edit made just once where it fits."""
    text = (FOLDER / f"{base}.py").read_text()
    for old, new in edits:
        assert text.count(old) == 1, f"{base}: {old!r} is there {text.count(old)} times"
        text = text.replace(old, new)
    return text
