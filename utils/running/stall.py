"""Let a program get stuck, and see what Horovod says of it: lesson 04."""

import json
import re
from dataclasses import dataclass

import psutil

from utils.running.launch import run
from utils.running.result import Run, RunFailed

# Seconds after which Horovod warns of a collective that somebody is missing from, and
# gives up: by itself it warns after 60, and waits forever.
PATIENCE = {
    "HOROVOD_STALL_CHECK_TIME_SECONDS": "3",
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "6",
}
TIME_LIMIT = 300.0  # seconds for a run
MISSING = re.compile(r"^(\d+)!?: \[(\w[^\]]*)\]", re.MULTILINE)


@dataclass(frozen=True, repr=False)
class Stall:
    """What became of a run; shows itself as Horovod's last warning or, of a run without
    one, as the lines in which workers speak of themselves, and whether all ended well.
    """

    run: Run

    @property
    def warning(self) -> str:
        """Horovod's last warning of a stall, without the rank before each line. The
        first one may name one rank only, if the other one was late."""
        log = re.sub(r"^\[0\] ", "", self.run.log.read_text(), flags=re.MULTILINE)
        found = re.findall(r"One or more tensors.*?\n(?=\[|Trace)", log, re.DOTALL)
        return found[-1].rstrip() if found else ""

    @property
    def missing(self) -> dict[int, str]:
        """rank -> the collective that others wait for it in, as the warning says."""
        found = MISSING.findall(self.warning)
        return {int(rank): collective for rank, collective in found}

    @property
    def processes_left(self) -> int:
        """How many of the run's workers are still there. Raises ValueError if none was
        ever noted: then there is nothing to count."""
        notes = [path.read_text() for path in self.run.folder.glob("workers/*.json")]
        if not notes:
            raise ValueError("this run has noted no worker")
        return sum(psutil.pid_exists(json.loads(note)["pid"]) for note in notes)

    @property
    def spoken(self) -> list[str]:
        """The lines in which a worker says what it has, such as `rank 1 is through`."""
        return re.findall(
            r"^\[\d+\] (rank \d+ .*)", self.run.log.read_text(), re.MULTILINE
        )

    def __repr__(self) -> str:
        if self.warning:
            return self.warning
        end = f"All {self.run.workers} workers ended well."
        if self.run.status:
            end = "Horovod, or mpirun, ended the run with an error: see its log."
        return "\n".join([*self.spoken, end])


def run_impatiently(program, workers: int = 2) -> Stall:
    """Run a program, and let Horovod give up after six seconds in which a collective
    waits for somebody. Unlike `run`, it takes a program that fails."""
    options = {"workers": workers, "quiet": True, "time_limit": TIME_LIMIT}
    try:
        return Stall(run(program, environment=PATIENCE, **options))
    except RunFailed as failed:
        return Stall(failed.run)
