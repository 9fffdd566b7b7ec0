"""What came of running a program: its log, its history, what its workers left."""

from collections import deque
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from distcheck import errors, files
from utils.base import tensorflow_log

LOG, TIMELINE = "log.txt", "timeline.json"


class RunFailed(errors.UserError):
    """A run that did not end well; `.run` is what there is of it."""

    def __init__(self, message: str, run: "Run"):
        super().__init__(message)
        self.run = run


@dataclass
class Run:
    """What came of starting a program on some workers.

    workers is the number of processes, status mpirun's exit status (0: all ended well),
    seconds the time from start to end, samples the processor readings of a watched run.
    """

    script: str
    workers: int
    command: str
    folder: Path
    status: int = -1
    seconds: float = 0.0
    notices: list[str] = field(default_factory=list)
    samples: list[dict] = field(default_factory=list)

    @property
    def log(self) -> Path:
        """The whole output of all workers, each line with its rank in front."""
        return self.folder / LOG

    @property
    def timeline(self) -> Path:
        """What Horovod did, and when, of a run started with `timeline=True`."""
        return self.folder / TIMELINE

    @cached_property
    def history(self):
        """pandas DataFrame, a row an epoch, of the worker that keeps history.csv."""
        return self.histories[0]

    @cached_property
    def histories(self) -> list:
        """One DataFrame for each worker that kept a history of its own.

        Raises UserError if none did.
        """
        import pandas

        paths = sorted(self.folder.glob("history*.csv"), key=lambda p: (len(p.stem), p))
        histories = [pandas.read_csv(path) for path in paths if path.stat().st_size]
        if not histories:
            raise errors.UserError(
                f"{self.script} wrote no history.csv: did it train for an epoch?"
            )
        return histories

    @property
    def images_per_second(self) -> float:
        """Median over the epochs after the first, which pays for building the graph;
        of the only epoch if there is just one."""
        speeds = self.history["images_per_second"]
        return float((speeds[1:] if len(speeds) > 1 else speeds).median())

    @property
    def seconds_per_epoch(self) -> float:
        """Seconds of training in an epoch; the median, as of images_per_second."""
        times = self.history["seconds"].diff().fillna(self.history["seconds"])
        return float((times[1:] if len(times) > 1 else times).median())

    def lines(self) -> list[str]:
        """What the workers printed, each line with its rank in front: the log without
        what TensorFlow itself logs in it."""
        with self.log.open(encoding="utf-8") as log:
            return [line.rstrip("\n") for line in tensorflow_log.left_out(log)]

    def tail(self, lines: int = 10) -> str:
        """The last lines that the workers printed."""
        with self.log.open(encoding="utf-8") as log:
            return "".join(deque(tensorflow_log.left_out(log), maxlen=lines)).rstrip()

    def recording(self, rank: int):
        """What `rank` recorded in a run started with `record=...`."""
        from utils.running import recording

        return recording.load(self.folder, rank)

    def as_json(self) -> dict:
        """What programs may want to know, as plain data."""
        return {
            "script": self.script,
            "workers": self.workers,
            "command": self.command,
            "status": self.status,
            "seconds": round(self.seconds, 3),
            "log": files.shown(self.log),
            "notices": self.notices,
            "history": (
                self.history.to_dict("records")
                if any(self.folder.glob("history*.csv"))
                else None
            ),
        }

    def __repr__(self) -> str:
        return (
            f"Run({self.script}, workers={self.workers}, status={self.status}, "
            f"seconds={self.seconds:.0f}, log={files.shown(self.log)})"
        )
