"""The commands that start workers, and the environment that they start from.

Three launchers have one face: `Mpirun`, `Horovodrun` and `Tasks`. Each is made with
what is particular to it; then

    command = launcher.command(["program.py", "--epochs", "3"], folder, variables, {})

is what a person would type, and what is started in its place so that the run can be
followed: its workers report to `folder`, and print to files in `folder`/ranks.
"""

import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil

from distcheck import errors, files, mpi
from distcheck import tasks as clusters

# ------------------------------------------------------------------ the launchers


@dataclass(frozen=True)
class Command:
    """shown: what a person would type for it. line: what is started, with these
    variables of the environment beside those of every run."""

    shown: str
    line: list[str]
    variables: dict[str, str]


class Launcher(Protocol):
    """processes: how many it starts; workers: how many of them train. horovod: are they
    Horovod's? inter_op: threads that start operations, see `thread_variables`."""

    processes: int
    workers: int
    horovod: bool = True
    inter_op: int = 0

    def command(
        self,
        program: Sequence[str],
        folder: Path,
        variables: Mapping[str, str],
        private: Mapping[str, str],
    ) -> Command:
        """The command that starts a program on all workers.

        program: script and arguments. folder: of the run. variables: what its workers
        are to have in their environment; private: as well, but not worth showing.
        """


def _worker(program: Sequence[str]) -> list[str]:
    """The program in a process that reports to the run."""
    return [sys.executable, "-u", "-m", "utils.running.worker", *program]


class Mpirun(Launcher):
    """options: more for `mpirun`, such as the hosts of a cluster."""

    def __init__(self, workers: int, options: Sequence[str] = ()):
        self.processes = self.workers = workers
        self.options = options

    def command(self, program, folder, variables, private) -> Command:
        shown = self._line(["python", *program], variables)
        line = self._line(_worker(program), {**variables, **private})
        line[:1] = [mpi.mpirun(), "--output-filename", f"{folder / 'ranks'}:nocopy"]
        return Command(shlex.join(shown), line, dict(private))

    def _line(self, program: list[str], variables: Mapping[str, str]) -> list[str]:
        line = mpi.mpirun_line(self.workers, program, None, variables)
        return [*line[:3], *self.options, *line[3:]]


class Horovodrun(Launcher):
    """`horovodrun` for elastic training, on the hosts that a script prints.

    discovery: the script. interface: the network card that all hosts have.
    reset_limit: after how many changes of workers the run is ended; None: never.
    """

    # Seconds that a host is left alone on which a worker died, at least and at most.
    COOLDOWN = (2, 10)

    def __init__(
        self,
        workers: int,
        discovery: Path,
        interface: str,
        reset_limit: int | None = None,
        options: Sequence[str] = (),
    ):
        self.processes = self.workers = workers
        line = ["horovodrun", "--gloo", "--network-interface", interface, *options]
        line += ["-np", str(workers), "--min-np", "1", "--max-np", str(workers)]
        line += ["--blacklist-cooldown-range", *map(str, self.COOLDOWN)]
        if reset_limit is not None:
            line += ["--reset-limit", str(reset_limit)]
        self.line = [*line, "--host-discovery-script"]
        self.discovery = discovery

    def command(self, program, folder, variables, private) -> Command:
        pairs = [f"{name}={value}" for name, value in variables.items()]
        shown = [*self.line, files.shown(self.discovery), "python", *program]
        line = [*self.line, str(self.discovery), *_worker(program)]
        output = {"COURSE_OUTPUT": str(folder / "ranks")}
        return Command(
            " ".join([*pairs, shlex.join(shown)]),
            line,
            {**variables, **private, **output},
        )


class Tasks(Launcher):
    """A cluster of processes that each have a TF_CONFIG.

    restarts: after how many failures a task is started again. tolerate: tasks of this
    type may fail.
    """

    horovod = False

    def __init__(
        self, cluster: clusters.Cluster, restarts: int = 0, tolerate: str | None = None
    ):
        tasks = clusters.tasks_of(cluster)
        self.processes, self.workers = len(tasks), sum(t.computes for t in tasks)
        self.cluster, self.restarts, self.tolerate = cluster, restarts, tolerate
        # Steps that wait for weights hold a thread; a ps needs one more than workers.
        self.inter_op = 1 + len(cluster.get("worker", [])) if "ps" in cluster else 0

    def command(self, program, folder, variables, private) -> Command:
        line = [sys.executable, "-m", "distcheck.tasks"]
        line += ["--cluster", json.dumps(self.cluster)]
        line += ["--output", f"{folder / 'ranks'}", "--restarts", str(self.restarts)]
        line += ["--tolerate", self.tolerate] if self.tolerate else []
        line += ["--", *_worker(program)]
        shown = plain_tasks(self.cluster, ["python", *program], variables)
        return Command(shown, line, {**variables, **private})


def plain_tasks(
    cluster: clusters.Cluster, program: list[str], variables: dict[str, str]
) -> str:
    """The shell commands that start the tasks of a cluster by hand.

    A script for one shell; in one of its own, each task needs the first line, too.
    """
    pairs = [f"{name}={value}" for name, value in variables.items()]
    first = [" ".join(["export", *pairs])] if pairs else []
    surroundings = {**os.environ, **variables}
    lines = []
    for task in clusters.tasks_of(cluster):
        variables_of_task = clusters.own_environment(task, surroundings).items()
        words = [f"{name}={shlex.quote(value)}" for name, value in variables_of_task]
        lines.append(" ".join([*words, shlex.join(program)]))
    if clusters.has_servers(cluster):  # they would never end by themselves
        chief, *servers = lines
        lines = [*(f"{line} &" for line in servers), chief, "kill $(jobs -p)"]
    else:
        lines = [*(f"{line} &" for line in lines), "wait"]
    return "\n".join([*first, *lines])


# ------------------------------------------------ hosts that come and go, made here

# A run's folder has a file `hosts`, with a line `NAME slots=SLOTS` for each host that
# is there, as Open MPI has it, and a script that makes `NAME:SLOTS` of each, which
# `horovodrun` asks every second. Both hosts are this machine, by two of its names: to
# Horovod, they are two.
HOST_NAMES = ("localhost", "127.0.0.1")
HOSTS, DISCOVERY = "hosts", "discover_hosts"
DISCOVER = """\
#!/bin/sh
exec sed 's/ slots=/:/' "$(dirname "$0")/hosts"
"""


def share_hosts(workers: int) -> dict[str, int]:
    """How many workers each host has place for: the first takes the odd one."""
    return {HOST_NAMES[0]: workers - workers // 2, HOST_NAMES[1]: workers // 2}


def read_hosts(folder: Path) -> dict[str, int]:
    """The hosts that are there, in a run's folder: name -> slots."""
    lines = (folder / HOSTS).read_text().splitlines()
    pairs = [line.split(" slots=") for line in lines]
    return {name: int(slots) for name, slots in pairs}


def write_hosts(folder: Path, hosts: dict[str, int]) -> None:
    """Say which hosts are there."""
    lines = "".join(f"{name} slots={slots}\n" for name, slots in hosts.items())
    files.write_whole(folder / HOSTS, lines)


def discovery_script(text: str, folder: Path) -> Path:
    """Write a script that lists hosts into the folder that has the file of hosts."""
    script = folder / DISCOVERY
    script.write_text(text)
    script.chmod(0o755)
    return script


def both_hosts(
    workers: int, folder: Path, discovery: str = DISCOVER
) -> tuple[Path, str]:
    """Let both hosts be there, with places for so many workers.

    Writes the file of hosts and the script (its text is `discovery`) into the run's
    folder; returns the script, and the network interface by which the hosts talk.
    """
    write_hosts(folder, share_hosts(workers))
    return discovery_script(discovery, folder), loopback()


def loopback() -> str:
    """The network interface by which a machine talks to itself."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address == "127.0.0.1" for entry in addresses):
            return name
    raise errors.UserError("this machine has no loopback interface (127.0.0.1).")
