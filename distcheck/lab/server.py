"""The process of the lab that has TensorFlow imported, and forks the workers.

    python -m distcheck.lab.server FOLDER

does every job in FOLDER/jobs.json, in each scenario that it asks for. With the name of
a source after it, FOLDER is instead a file that comes to name one folder after the
other: the server prepares the source, does the jobs of each folder, and never ends.

`running` has what is seen of a scenario that is on, and `outcomes` decides by that how
it has ended. Here is how it begins, `Server._start` and `_fork`, and its end,
`Server._end`.
"""

import contextlib
import functools
import gc
import importlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import cast

import psutil

from distcheck import files, lab, machine, mpi, supervise, tasks, worker
from distcheck.lab import forked, outcomes
from distcheck.lab.running import Running, Worker, family
from distcheck.recorder import horovod
from distcheck.recorder.recorder import recorder_of
from distcheck.recorder.source import Source
from distcheck.scenarios import Scenario

REQUEST_SECONDS = 60.0  # for a messenger to say what it wants
END_SECONDS = 5.0  # for what was killed to be gone


class Server:
    """Starts the scenarios, forks their workers, and ends them."""

    def __init__(self, place: Path):
        self.place = place  # the path of a Unix socket has to be short
        self.withdrawn: Path | None = None
        self.door = socket.socket(socket.AF_UNIX)
        self.door.bind(f"{self.place}/door")
        self.door.listen()
        self.door.setblocking(False)
        self.running: dict[str, Running] = {}
        self.begun = False

    def serve(self, folder: Path) -> None:
        """Do all jobs in `folder`, in order; as many scenarios at a time as the cores
        bear."""
        wanted = json.loads((folder / "jobs.json").read_text())
        self.may_compute = wanted["may_compute"]
        for number, job in enumerate(wanted["jobs"]):
            for name, facts in job["scenarios"].items():
                scenario, place = Scenario(**facts), folder / str(number) / name
                before = place.with_name(scenario.after) if scenario.after else None
                while self._busy(scenario.size) or self._still_writes(before):
                    self._poll()
                place.mkdir(parents=True)
                self._start(scenario, place, job)
        while self.running:
            self._poll()

    def stay(self, request: Path) -> None:
        """Do the jobs of each folder that the file `request` names, as it comes."""
        while True:
            self._poll()
            if not request.exists():
                continue
            folder = Path(request.read_text())
            request.unlink()
            self.withdrawn = folder / lab.WITHDRAWN
            with contextlib.suppress(lab.Withdrawn):
                self.serve(folder)
            for running in self.running.values():
                self._end(running, lab.WITHDRAWN)
            self.running.clear()
            self.withdrawn = None
            (folder / lab.SERVED).touch()

    def _still_writes(self, folder: Path | None) -> bool:
        """May the programs of the scenario in this folder still write their files? A
        worker makes the file "ran" at the end of its program; after that, rank 0 builds
        graphs, and writes nothing but reports."""
        if folder is None or str(folder) not in self.running:
            return False
        ran = [*folder.glob(f"rank.*.{forked.RAN}")]
        return len(ran) < self.running[str(folder)].size

    def _busy(self, workers: int) -> bool:
        """Would more than two workers have to share a core?

        Two may: half of the time, a worker waits for mpirun or for another worker. But
        not on a crowded machine, where those who wait take time from those who work.
        """
        working = sum(
            running.size - [*running.waits().values()].count(outcomes.AT_THE_END)
            for running in self.running.values()
        )
        crowded = os.getloadavg()[0] > 3 * machine.cores()
        most = (1 if crowded else 2) * machine.cores()
        return bool(working) and working + workers > most

    def _start(self, scenario: Scenario, folder: Path, job: dict) -> None:
        source = _prepared(job["source"])
        asks = [sys.executable, "-I", "-S"]
        asks += [str(Path(__file__).with_name("messenger.py"))]
        asks += [f"{self.place}/door", str(folder)]
        command = mpi.mpirun_line(scenario.size, asks, threads=1)
        command[1:1] = ["--oversubscribe"]
        # Of two that make Open MPI's folder in the same place at once, one may fail.
        scratch = {"TMPDIR": tempfile.mkdtemp(dir=self.place)}
        if shared := os.environ.get(supervise.SHARED_MEMORY):
            scratch[supervise.SHARED_MEMORY] = tempfile.mkdtemp(dir=shared)
        environment = {**os.environ, "COURSE_RUN": str(folder), **scratch}
        with (folder / "mpirun.txt").open("wb") as output:
            mpirun = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
            )
        counts = dict(scenario.cluster)
        assigned = forked.Assignment(
            scenario,
            recorder_of(scenario),
            source,
            folder,
            Path(job["earlier"] or folder.parent / scenario.after),
            job["reference"] if scenario.reference else job["script"],
            [*job["options"], *scenario.options],
            job["graphs_wanted"],
            tasks.free_cluster(counts) if counts else {},
        )
        served = tasks.has_servers(assigned.cluster)
        recorded = bool(assigned.recorder)
        watch = outcomes.Watch(scenario.size, recorded, served, self.may_compute)
        self.running[str(folder)] = Running(
            assigned, mpirun, [*scratch.values()], watch
        )

    def _poll(self) -> None:
        if self.withdrawn and self.withdrawn.exists():
            raise lab.Withdrawn
        with contextlib.suppress(BlockingIOError):
            while True:
                self._fork(self.door.accept()[0])
        for key, running in list(self.running.items()):
            running.tend()
            outcome = running.outcome()
            if outcome:
                self._end(running, outcome)
                del self.running[key]
        time.sleep(lab.POLL_SECONDS)

    def _fork(self, messenger: socket.socket) -> None:
        """Start the worker that a messenger asks for."""
        messenger.settimeout(REQUEST_SECONDS)
        with messenger.makefile("rb") as stream:
            line = stream.readline()
        if not line.endswith(b"\n"):
            line = b'{"key": ""}'  # it was ended before it had said all
        request = json.loads(line)
        running = self.running.get(request["key"])
        if running is None:  # ended while mpirun was still starting workers
            messenger.close()
            return
        if not self.begun:
            print(lab.BEGINS, flush=True)
            self.begun = True
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                for other in self.running.values():
                    for sibling in other.workers.values():
                        sibling.messenger.close()
                self.door.close()
                messenger.close()
                status = forked.become_worker(running.assigned, request["environment"])
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        messenger.setblocking(False)
        rank = worker.rank(request["environment"])
        running.workers[rank] = Worker(pid, messenger)

    def _end(self, running: Running, outcome: str) -> None:
        """End mpirun, the workers, and all that these have started; write down how the
        scenario ended."""
        living = running.living()
        if outcome in (lab.HUNG, lab.DEADLOCK, lab.TIME_UP):
            for process in living.values():  # they write down where they are
                os.kill(process.pid, signal.SIGUSR1)
            time.sleep(0.3)
        # Asking mpirun nicely would take a second, and it would remove its files.
        mpirun = running.mpirun.poll()
        running.mpirun.kill()
        # First all are told, as each takes a while to give its memory back.
        for process in living.values():
            os.kill(process.pid, signal.SIGKILL)
        running.mpirun.wait()
        for process in living.values():
            process.wait_for_its_end()
        self._end_orphans()
        facts = {
            "outcome": outcome,
            "script": running.assigned.script,
            "seconds": round(time.monotonic() - running.watch.started, 2),
            "mpirun": mpirun,
            "statuses": {rank: one.status for rank, one in running.workers.items()},
        }
        # Not into what somebody else may have made there, a pipe for example.
        path = running.assigned.folder / "outcome.json"
        files.write_whole(path, json.dumps(facts), mode=0o600)
        for scratch in running.scratch:
            shutil.rmtree(scratch, ignore_errors=True)

    def _end_orphans(self) -> None:
        """End what workers have left behind: while a worker lives, all that it has
        started is below it, and then below this process, see `adopt_orphans`. What
        can't be ended is left to the supervisor, which says so."""
        own = {running.mpirun.pid for running in self.running.values()}
        own |= {one.pid for r in self.running.values() for one in r.living().values()}
        deadline = time.monotonic() + END_SECONDS
        while orphans := {p.pid for p in psutil.Process().children()} - own:
            for process in (one for pid in orphans for one in family(pid)):
                with contextlib.suppress(psutil.Error):
                    process.kill()
            for pid in orphans:
                os.waitpid(pid, os.WNOHANG)
            if time.monotonic() > deadline:
                return
            time.sleep(0.01)


@functools.cache
def _prepared(source: str) -> Source:
    """A source, ready for the workers that this process forks."""
    module = cast(Source, importlib.import_module(source))
    module.prepare()
    # What is imported stays: workers need not look through it for garbage, and copy
    # its pages by that.
    gc.collect()
    gc.freeze()
    return module


def main() -> None:
    path, *stays = sys.argv[1:]
    worker.quiet()
    horovod.prepare()
    supervise.adopt_orphans()
    for source in stays:
        _prepared(source)
    gc.set_threshold(50_000)  # workers are too short to fill the memory with it
    with files.scratch() as place:
        server = Server(place)
        server.stay(Path(path)) if stays else server.serve(Path(path).resolve())


if __name__ == "__main__":
    main()
