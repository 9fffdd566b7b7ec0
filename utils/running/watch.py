"""See which worker is on which processor core, or has memory on which GPUs."""

import contextlib
import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import psutil

from distcheck import errors
from distcheck.machine import gpus
from utils.base import course

GPU_SECONDS = 2.0  # between two questions to nvidia-smi
# The machine's own numbering of processes, as the kernel names it.
MACHINE_PIDS = "pid:[4026531836]"
UNSEEN = (
    "Which worker has which GPU can't be seen here, as the driver numbers processes\n"
    "as the host does. (A container shares these numbers if started with --pid=host.)"
)


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
    """Samples the workers of the run in `folder`. on_gpus: may they compute on GPUs?"""

    def __init__(self, folder: Path, on_gpus: bool = True):
        self.folder = folder
        self._processes: dict[int, psutil.Process] = {}
        self._gpus_of: dict[int, dict[str, float]] = {}
        self._in_use: dict[str, float] = {}
        self._asked = float("-inf")
        self._asks = on_gpus and gpus() > 0 and shutil.which("nvidia-smi") is not None

    def sample(self) -> list[dict]:
        """A reading for each living worker.

        Keys: time (s, monotonic), rank, pid, core ("core 1"), percent (of one core,
        since the last sample), memory (bytes), gpus (MiB of this worker on each GPU:
        {"GPU 0": 900.0}) and, where whose they are can't be seen, in_use (MiB of all
        processes likewise; else {}).
        """
        workers = worker_processes(self.folder)
        if self._asks and time.monotonic() - self._asked > GPU_SECONDS:
            self._gpus_of = gpus_of_processes()
            pids = {process.pid for process in workers.values()}
            seen = pids & self._gpus_of.keys() or numbered_as_by_the_driver()
            self._in_use = {} if seen else gpus_in_use()
            self._asked = time.monotonic()
        readings = []
        for rank, process in workers.items():
            # psutil measures from call to call on the same object.
            process = self._processes.setdefault(process.pid, process)
            with contextlib.suppress(psutil.NoSuchProcess):
                # macOS does not tell which core a process is on.
                core = process.cpu_num() if hasattr(process, "cpu_num") else "?"
                readings.append(
                    {
                        "time": time.monotonic(),
                        "rank": rank,
                        "pid": process.pid,
                        "core": f"core {core}",
                        "percent": process.cpu_percent(),
                        "memory": process.memory_info().rss,
                        "gpus": self._gpus_of.get(process.pid, {}),
                        "in_use": self._in_use,
                    }
                )
        return readings


def gpus_of_processes() -> dict[int, dict[str, float]]:
    """The GPUs that each process has memory on, and how many MiB of it: pid ->
    {"GPU 0": 900.0}. Where the driver doesn't tell how many, it is 1 on each."""
    number_of = {uuid: index for index, uuid in _rows("gpu=index,uuid")}
    found: dict[int, dict[str, float]] = {}
    for pid, uuid, memory in _rows("compute-apps=pid,gpu_uuid,used_memory"):
        if pid.isdecimal():
            held = float(memory) if memory.isdecimal() else 1.0
            found.setdefault(int(pid), {})[f"GPU {number_of.get(uuid, uuid)}"] = held
    return found


def gpus_in_use() -> dict[str, float]:
    """The memory of all processes on each GPU, in MiB: {"GPU 0": 900.0}."""
    rows = _rows("gpu=index,memory.used")
    return {f"GPU {index}": float(used) for index, used in rows if used.isdecimal()}


def numbered_as_by_the_driver() -> bool:
    """Has a process here the number that the driver knows it by, the host's? It hasn't
    in a container with numbers of its own."""
    try:
        return os.readlink("/proc/self/ns/pid") == MACHINE_PIDS
    except OSError:  # not Linux
        return True


def nvidia_smi(query: str, seconds: float = 10) -> str:
    """What it answers, a line a row; "" where it doesn't in this time, which must not
    end a training."""
    command = ["nvidia-smi", f"--query-{query}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout if answer.returncode == 0 else ""


def _rows(query: str) -> list[list[str]]:
    lines = nvidia_smi(query).splitlines()
    return [line.split(", ") for line in lines if line.strip()]


def newest_run() -> Path:
    """The folder of the run that is on now, of several the one that began last.

    Raises UserError when none is on.
    """
    folders = sorted((course.root() / "logs").glob("*/workers"), reverse=True)
    running = [f.parent for f in folders if worker_processes(f.parent)]
    if not running:
        raise errors.UserError(
            "no run is on now: start one in a notebook or another terminal first."
        )
    return running[0]


def watch_newest() -> None:
    """Show the workers of the run that is on now, until it ends or Ctrl-C.

    Raises UserError when no run is on.
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

    in_use = readings[0]["in_use"]
    memory = ", ".join(f"{name}: {mib:,.0f} MiB" for name, mib in in_use.items())
    caption = f"In use on each GPU: {memory}. {UNSEEN}" if in_use else None
    header = ("rank", "process", "device", "% of a core", "memory")
    table = Table(*header, caption=caption)
    for reading in readings:
        table.add_row(
            str(reading["rank"]),
            str(reading["pid"]),
            ", ".join(reading["gpus"]) or reading["core"],
            f"{reading['percent']:.0f}",
            f"{reading['memory'] / 1e6:.0f} MB",
        )
    return table
