"""See which worker keeps which processor core, or which GPU, busy."""

import contextlib
import json
import shutil
import subprocess
import time
from pathlib import Path

import psutil

from utils.base import course
from utils.base.machine import gpus

GPU_SECONDS = 2.0  # between two questions to nvidia-smi


def worker_processes(folder: Path) -> dict[int, psutil.Process]:
    """The living workers of a run, in order: rank -> process."""
    workers = {}
    for path in folder.glob("workers/*.json"):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            process = psutil.Process(json.loads(path.read_text())["pid"])
            # By now, its number may be that of a stranger.
            if Path(process.environ().get("COURSE_RUN", "")) == folder.absolute():
                workers[int(path.stem)] = process
    return dict(sorted(workers.items()))


class Watch:
    """Samples the workers of the run in `folder`."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._processes: dict[int, psutil.Process] = {}
        self._gpu_of: dict[int, str] = {}
        self._asked = float("-inf")
        self._has_gpus = gpus() > 0 and shutil.which("nvidia-smi") is not None

    def sample(self) -> list[dict]:
        """A reading for each living worker.

        Keys: time (s, monotonic), rank, pid, device ("GPU 0" or "core 1"),
        percent (of one core, since the last sample), memory (bytes).
        """
        if self._has_gpus and time.monotonic() - self._asked > GPU_SECONDS:
            self._gpu_of = gpu_of_process()
            self._asked = time.monotonic()
        readings = []
        for rank, process in worker_processes(self.folder).items():
            # psutil measures from call to call on the same object.
            process = self._processes.setdefault(process.pid, process)
            with contextlib.suppress(psutil.NoSuchProcess):
                readings.append(
                    {
                        "time": time.monotonic(),
                        "rank": rank,
                        "pid": process.pid,
                        "device": self._device(process),
                        "percent": process.cpu_percent(),
                        "memory": process.memory_info().rss,
                    }
                )
        return readings

    def _device(self, process: psutil.Process) -> str:
        if process.pid in self._gpu_of:
            return self._gpu_of[process.pid]
        # macOS does not tell which core a process is on.
        core = process.cpu_num() if hasattr(process, "cpu_num") else "?"
        return f"core {core}"


def gpu_of_process() -> dict[int, str]:
    """Which GPU each process computes on, as `nvidia-smi` tells: pid -> "GPU 0"."""
    number_of = {uuid: index for index, uuid in _nvidia_smi("gpu=index,uuid")}
    return {
        int(pid): f"GPU {number_of.get(uuid, uuid)}"
        for pid, uuid in _nvidia_smi("compute-apps=pid,gpu_uuid")
    }


def _nvidia_smi(query: str) -> list[list[str]]:
    answer = subprocess.run(
        ["nvidia-smi", f"--query-{query}", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        timeout=10,
        check=True,
    )
    return [line.split(", ") for line in answer.stdout.splitlines() if line.strip()]


def newest_run() -> Path:
    """The folder of the run that is on now, of several the one that began last.

    Raises CourseError when none is on.
    """
    folders = sorted((course.root() / "logs").glob("*/workers"), reverse=True)
    running = [f.parent for f in folders if worker_processes(f.parent)]
    if not running:
        raise course.CourseError(
            "no run is on now: start one in a notebook or another terminal first."
        )
    return running[0]


def watch_newest() -> None:
    """Show the workers of the run that is on now, until it ends or Ctrl-C.

    Raises CourseError when no run is on.
    """
    from rich.live import Live

    watch = Watch(newest_run())
    with Live(refresh_per_second=2) as live, contextlib.suppress(KeyboardInterrupt):
        while readings := watch.sample():
            live.update(_table(readings))
            time.sleep(1)
    print("The run has ended.")


def _table(readings: list[dict]):
    from rich.table import Table

    table = Table("rank", "process", "device", "% of a core", "memory")
    for reading in readings:
        table.add_row(
            str(reading["rank"]),
            str(reading["pid"]),
            reading["device"],
            f"{reading['percent']:.0f}",
            f"{reading['memory'] / 1e6:.0f} MB",
        )
    return table
