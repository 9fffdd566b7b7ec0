"""A scenario that is on: its mpirun, its workers, and what is seen of them."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from distcheck import events, evidence, files, supervise
from distcheck.lab import forked, outcomes
from distcheck.recorder.recorder import schema_of


@dataclass
class Worker:
    """A process that was forked. status: None if it lives, or was ended by the lab."""

    pid: int
    messenger: socket.socket
    alive: bool = True
    status: int | None = None

    def wait_for_its_end(self) -> None:
        """Wait for the end of a worker that was killed."""
        os.waitpid(self.pid, 0)
        self.alive = False
        self.messenger.close()


@dataclass
class Running:
    """A scenario that is on. scratch: folders that go with it."""

    assigned: forked.Assignment
    mpirun: subprocess.Popen
    scratch: list[str]
    watch: outcomes.Watch
    workers: dict[int, Worker] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return self.assigned.scenario.size

    def living(self) -> dict[int, Worker]:
        return {rank: one for rank, one in self.workers.items() if one.alive}

    def waits(self) -> dict[int, str | None]:
        """What each worker waits for, AT_THE_END for nothing more; None: it works."""
        waits: dict[int, str | None] = {}
        for rank in self.workers:
            report = self.assigned.folder / f"rank.{rank}.jsonl"
            last = last_event(report, schema_of(self.assigned.scenario))
            waits[rank] = None
            if last.get("what") == "collective_start":
                waits[rank] = f"{last['op']} {last['name']} {last['elements']}"
            elif last.get("what") == "ended":
                waits[rank] = outcomes.AT_THE_END
        return waits

    def outcome(self) -> str | None:
        """How the scenario has ended; None while it goes on."""
        now, waits, mpirun = time.monotonic(), self.waits(), self.mpirun.poll()
        gone = len(self.workers) - len(self.living())
        found = self.watch.ended(now, waits, mpirun, gone, self._most_printed())
        if found or not self.watch.is_due(now):
            return found
        families = {rank: family(one.pid) for rank, one in self.living().items()}
        computed = {
            rank: sum(map(computed_by, all_)) for rank, all_ in families.items()
        }
        awake = {
            rank for rank, all_ in families.items() if any(map(supervise.awake, all_))
        }
        return self.watch.gets_nowhere(now, waits, self._reported(), computed, awake)

    def _most_printed(self) -> int:
        """Bytes that a worker has printed on one of its outputs."""
        paths = self.assigned.folder.glob("rank.*")
        printed = (p for p in paths if p.suffix in (".out", ".err"))
        return max((path.lstat().st_size for path in printed), default=0)

    def _reported(self) -> int:
        """Bytes of what the workers have reported, or of what they have printed, where
        nothing watches them."""
        kinds = ("jsonl",) if self.assigned.recorder else ("out", "err")
        paths = (
            path
            for kind in kinds
            for path in self.assigned.folder.glob(f"rank.*.{kind}")
        )
        return sum(path.lstat().st_size for path in paths)

    def tend(self) -> None:
        """Pass on how workers ended; end those whose messenger was ended.

        So mpirun, which knows the messengers alone, ends all workers when one fails: it
        ends their messengers, whose sockets are at their end then."""
        for one in self.living().values():
            ended, status = os.waitpid(one.pid, os.WNOHANG)
            if ended:
                one.alive, one.status = False, os.waitstatus_to_exitcode(status)
                with contextlib.suppress(OSError):
                    one.messenger.sendall(json.dumps(one.status).encode() + b"\n")
                one.messenger.close()
                continue
            with contextlib.suppress(BlockingIOError):
                if not one.messenger.recv(1):
                    os.kill(one.pid, signal.SIGKILL)
                    one.wait_for_its_end()


def family(pid: int) -> list[psutil.Process]:
    """A process, and all that it has started; none if it has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    return []


def computed_by(process: psutil.Process) -> float:
    """Seconds of processor that it has used, and its children that have ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return sum(process.cpu_times()[:4])
    return 0.0


def last_event(path: Path, schema: events.Schema) -> dict:
    """The last whole line of a report; {} if there is none, or none that a worker
    reports."""
    try:
        with files.open_regular(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - evidence.MOST_LINE))
            lines = file.read(evidence.MOST_LINE).split(b"\n")
        return evidence.event(lines[-2], schema) if len(lines) > 1 else {}
    except (OSError, files.Unfit, evidence.Unreadable):
        return {}
