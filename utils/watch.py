"""See which worker keeps which processor core, or which GPU, busy."""

import contextlib
import json
import subprocess
import time
from pathlib import Path

import psutil


def worker_processes(folder: Path) -> dict[int, psutil.Process]:
    """The living workers of a run, in order: rank -> process."""
    found = {}
    for path in folder.glob("workers/*.json"):
        with contextlib.suppress(psutil.NoSuchProcess):
            found[int(path.stem)] = psutil.Process(json.loads(path.read_text())["pid"])
    return dict(sorted(found.items()))


class Watch:
    """Samples the workers of the run in `folder`."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._processes: dict[int, psutil.Process] = {}

    def sample(self) -> list[dict]:
        """A reading for each living worker.

        Keys: time (s, monotonic), rank, core (its number; where the system tells),
        percent (of one core, since the last sample), memory (bytes).
        """
        readings = []
        for rank, process in worker_processes(self.folder).items():
            # psutil measures from call to call on the same object.
            process = self._processes.setdefault(process.pid, process)
            with contextlib.suppress(psutil.NoSuchProcess):
                readings.append(
                    {
                        "time": time.monotonic(),
                        "rank": rank,
                        "core": getattr(process, "cpu_num", lambda: None)(),
                        "percent": process.cpu_percent(),
                        "memory": process.memory_info().rss,
                    }
                )
        return readings


def gpu_processes() -> list[dict]:
    """Which process uses which GPU, as `nvidia-smi` tells: pid, gpu, memory (MiB).

    Empty where there is no `nvidia-smi`.
    """
    query = ["nvidia-smi", "--query-compute-apps=pid,gpu_bus_id,used_memory"]
    try:
        answer = subprocess.run(
            [*query, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (FileNotFoundError, subprocess.SubprocessError):
        return []
    rows = [line.split(", ") for line in answer.stdout.splitlines() if line.strip()]
    return [
        {"pid": int(pid), "gpu": gpu, "memory": memory} for pid, gpu, memory in rows
    ]
