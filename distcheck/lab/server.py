"""The process of the lab that has TensorFlow imported, and forks the workers.

    python -m distcheck.lab.server FOLDER

does every job in FOLDER/jobs.json, in each scenario that it asks for. With the name of
a source after it, FOLDER is instead a file that comes to name one folder after the
other: the server prepares the source, does the jobs of each folder, and never ends.

`launches` has the mpirun of a scenario, `running` what is seen of one that is on, and
`outcomes` decides by that how it has ended. Here is how it begins, `Server._start` and
`_fork`, and its end, `Server._end`.
"""

import contextlib
import functools
import gc
import importlib
import itertools
import json
import os
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import cast

import psutil

from distcheck import files, lab, machine, supervise, tasks, worker
from distcheck.lab import forked, outcomes
from distcheck.lab.launches import Launch
from distcheck.lab.running import Running, Worker, family
from distcheck.recorder import horovod
from distcheck.recorder.recorder import recorder_of
from distcheck.recorder.source import Source
from distcheck.scenarios import Scenario

REQUEST_SECONDS = 60.0  # for a messenger to say what it wants
END_SECONDS = 5.0  # for what was killed to be gone
MOSTLY = 2  # workers in a scenario


class Server:
    """Starts the scenarios, forks their workers, and ends them."""

    def __init__(self, place: Path):
        self.place = place  # the path of a Unix socket has to be short
        self.withdrawn: Path | None = None
        self.door = socket.socket(socket.AF_UNIX)
        self.door.bind(f"{self.place}/door")
        self.door.listen()
        self.door.setblocking(False)
        self.running: list[Running] = []
        self.spare: Launch | None = None  # for the next scenario
        self.numbers = itertools.count()  # of launches
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
                    self.launch_ahead(scenario.size)
                    self._poll()
                place.mkdir(parents=True)
                self._start(scenario, place, job)
        while self.running:
            self._poll()

    def stay(self, request: Path) -> None:
        """Do the jobs of each folder that the file `request` names, as it comes."""
        while True:
            self.launch_ahead(MOSTLY)
            self._poll()
            if not request.exists():
                continue
            folder = Path(request.read_text())
            request.unlink()
            self.withdrawn = folder / lab.WITHDRAWN
            with contextlib.suppress(lab.Withdrawn):
                self.serve(folder)
            for running in self.running:
                self._end(running, lab.WITHDRAWN)
            self.running.clear()
            self.withdrawn = None
            (folder / lab.SERVED).touch()

    def _still_writes(self, folder: Path | None) -> bool:
        """May the programs of the scenario in this folder still write their files? A
        worker makes the file "ran" at the end of its program; after that, rank 0 builds
        graphs, and writes nothing but reports."""
        for running in self.running:
            if running.assigned.folder == folder:
                ran = [*running.assigned.folder.glob(f"rank.*.{forked.RAN}")]
                return len(ran) < running.size
        return False

    def _busy(self, workers: int) -> bool:
        """Would more than two workers have to share a core?

        Two may: half of the time, a worker waits for mpirun or for another worker. But
        not on a crowded machine, where those who wait take time from those who work.
        """
        working = sum(
            running.size - [*running.waits().values()].count(outcomes.AT_THE_END)
            for running in self.running
        )
        crowded = os.getloadavg()[0] > 3 * machine.cores()
        most = (1 if crowded else 2) * machine.cores()
        return bool(working) and working + workers > most

    def _start(self, scenario: Scenario, folder: Path, job: dict) -> None:
        source = _prepared(job["source"])
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
        if self.spare and self.spare.mpirun.poll() is not None:
            self._end_spare()  # it has ended meanwhile
        self.running.append(Running(assigned, self.launch_ahead(scenario.size), watch))
        self.spare = None

    def launch_ahead(self, size: int) -> Launch:
        """See to it that there is a spare launch of so many ranks; return it."""
        if self.spare and self.spare.size != size:
            self._end_spare()
        self.spare = self.spare or Launch(size, self.place, next(self.numbers))
        return self.spare

    def _end_spare(self) -> None:
        if self.spare:
            self.spare.end()
            self.spare.tidy()
        self.spare = None

    def _launches(self) -> list[Launch]:
        spare = [self.spare] if self.spare else []
        return [running.launch for running in self.running] + spare

    def _poll(self) -> None:
        if self.withdrawn and self.withdrawn.exists():
            raise lab.Withdrawn
        with contextlib.suppress(BlockingIOError):
            while True:
                self._meet(self.door.accept()[0])
        for running in [*self.running]:
            for rank in [*running.launch.waiting]:
                self._fork(running, rank)
            running.tend()
            outcome = running.outcome()
            if outcome:
                self._end(running, outcome)
                self.running.remove(running)
        time.sleep(lab.POLL_SECONDS)

    def _meet(self, messenger: socket.socket) -> None:
        """Have a messenger wait until a worker is wanted of its launch."""
        messenger.settimeout(REQUEST_SECONDS)
        with messenger.makefile("rb") as stream:
            line = stream.readline()
        if not line.endswith(b"\n"):
            line = b'{"number": null}'  # it was ended before it had said all
        request = json.loads(line)
        for launch in self._launches():
            if launch.number == request["number"]:
                rank = worker.rank(request["environment"])
                launch.waiting[rank] = messenger, request["environment"]
                return
        messenger.close()  # ended while mpirun was still starting messengers

    def _fork(self, running: Running, rank: int) -> None:
        """Start a worker for the messenger that waits as this rank."""
        messenger, environment = running.launch.waiting.pop(rank)
        if not self.begun:
            print(lab.BEGINS, flush=True)
            self.begun = True
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                self._close_sockets()
                messenger.close()
                status = forked.become_worker(running.assigned, environment)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        messenger.setblocking(False)
        running.workers[rank] = Worker(pid, messenger)

    def _close_sockets(self) -> None:
        """In a fork: they are the server's."""
        self.door.close()
        for launch in self._launches():
            for messenger, _ in launch.waiting.values():
                messenger.close()
        for running in self.running:
            for one in running.workers.values():
                one.messenger.close()

    def _end(self, running: Running, outcome: str) -> None:
        """End mpirun, the workers, and all that these have started; write down how the
        scenario ended."""
        living = running.living()
        if outcome in (lab.HUNG, lab.DEADLOCK, lab.TIME_UP):
            for process in living.values():  # they write down where they are
                os.kill(process.pid, signal.SIGUSR1)
            time.sleep(0.3)
        mpirun = running.launch.mpirun.poll()
        running.launch.end()
        # First all are told, as each takes a while to give its memory back.
        for process in living.values():
            os.kill(process.pid, signal.SIGKILL)
        for process in living.values():
            process.wait_for_its_end()
        self._end_orphans()
        printed = running.launch.printed()
        running.launch.tidy()
        facts = {
            "outcome": outcome,
            "script": running.assigned.script,
            "seconds": round(time.monotonic() - running.watch.started, 2),
            "mpirun": mpirun,
            "statuses": {rank: one.status for rank, one in running.workers.items()},
        }
        # Not into what somebody else may have made there, a pipe for example.
        folder = running.assigned.folder
        files.write_whole(folder / "mpirun.txt", printed, mode=0o600)
        files.write_whole(folder / "outcome.json", json.dumps(facts), mode=0o600)

    def _end_orphans(self) -> None:
        """End what workers have left behind: while a worker lives, all that it has
        started is below it, and then below this process, see `adopt_orphans`. What
        can't be ended is left to the supervisor, which says so."""
        own = {launch.mpirun.pid for launch in self._launches()}
        own |= {one.pid for r in self.running for one in r.living().values()}
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
    supervise.adopt_orphans()
    with files.scratch() as place:
        server = Server(place)
        server.launch_ahead(MOSTLY)
        horovod.prepare()
        for source in stays:
            _prepared(source)
        gc.set_threshold(50_000)  # workers are too short to fill the memory with it
        server.stay(Path(path)) if stays else server.serve(Path(path).resolve())


if __name__ == "__main__":
    main()
