"""The `mpirun` of TF_CONFIG clusters: start every task of a cluster, end all of them.

    python -m distcheck.tasks --output FOLDER --cluster \\
        '{"worker": ["127.0.0.1:5001", "127.0.0.1:5002"]}' -- python program.py

A *task* is a process of a cluster; its TF_CONFIG names all tasks' addresses, and which
one it is. Here the tasks of one machine are started. Each writes to its own files
FOLDER/1/rank.N/stdout and stderr, as mpirun's do, where N counts chief, workers,
evaluators and parameter servers, in this order.

All tasks must end well, but where there are parameter servers (ps): servers never end
by themselves, so the chief alone decides, and its end ends them. A task that fails ends
all; the exit status is that of this task.

With --restarts a task that fails is started again: alone beside parameter servers, else
together with all the others, as workers in step can't go on without one of them. With
--tolerate the others just go on.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from distcheck import machine, supervise
from distcheck.errors import UserError

TYPES = ("chief", "worker", "evaluator", "ps")
# Below the ports that Linux (from 32768) and macOS (from 49152) give to outgoing
# connections: those could be taken again before a task has started.
PORTS = range(20_000, 32_768)
POLL_SECONDS = 0.05
EXAMPLE = (
    '{"cluster": {"worker": ["127.0.0.1:5001", "127.0.0.1:5002"]}, '
    '"task": {"type": "worker", "index": 0}}'
)

Cluster = dict[str, list[str]]  # type of task -> the address of each, as "host:port"


@dataclass(frozen=True)
class Task:
    """A process of a cluster: which one it is, and where all of them are.

    Without a task of type chief, worker 0 is the chief.
    """

    type: str
    index: int
    cluster: Cluster

    @property
    def is_chief(self) -> bool:
        """Is this the task that also does what only one may do, such as saving?"""
        if "chief" in self.cluster:
            return self.type == "chief"
        return (self.type, self.index) == ("worker", 0)

    @property
    def address(self) -> str:
        return self.cluster[self.type][self.index]

    @property
    def rank(self) -> int:
        """Its number among all tasks: chief first, ps last."""
        return tasks_of(self.cluster).index(self)

    @property
    def computes(self) -> bool:
        """Does it train? Beside parameter servers, a chief only gives out the work."""
        return self.type == "worker" or (
            self.type == "chief" and "ps" not in self.cluster
        )

    def __str__(self) -> str:
        return f"{self.type} {self.index}"


def tasks_of(cluster: Cluster) -> list[Task]:
    """All tasks of a cluster, by rank."""
    return [
        Task(kind, index, cluster)
        for kind in TYPES
        for index in range(len(cluster.get(kind, [])))
    ]


# ------------------------------------------------------------------ TF_CONFIG


def this_task(environment: Mapping[str, str] = os.environ) -> Task:
    """Which task of which cluster this process is, as TF_CONFIG says.

    Without TF_CONFIG it is worker 0 of a cluster of its own, as TensorFlow has it.
    Raises UserError that says what is wrong with a TF_CONFIG that TensorFlow would
    refuse with a stack trace, or wait with forever.
    """
    if not environment.get("TF_CONFIG"):
        return Task("worker", 0, {"worker": ["127.0.0.1:0"]})
    text = environment["TF_CONFIG"]
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise _wrong(
            f"it is not JSON: {error.msg} at character {error.pos + 1} of {text!r}. "
            "JSON has double quotes only"
        ) from None
    if not isinstance(config, dict) or not isinstance(config.get("cluster"), dict):
        raise _wrong('it has no "cluster", which holds the addresses of all tasks')
    cluster = config["cluster"]
    _check_cluster(cluster)
    task = config.get("task")
    if not isinstance(task, dict) or not {"type", "index"} <= set(task):
        raise _wrong(
            'it has no "task" with "type" and "index", which say who this process is'
        )
    kind, index = task["type"], task["index"]
    if kind not in cluster:
        raise _wrong(
            f"its task is of type {kind!r}; its cluster has {', '.join(cluster)} only"
        )
    count = len(cluster[kind])
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < count:
        raise _wrong(
            f"its task is {kind} {index!r}; its cluster has {count} of that type, "
            f"counted from 0 to {count - 1} (a number, without quotes)"
        )
    return Task(kind, index, cluster)


def _check_cluster(cluster: dict) -> None:
    owners: dict[str, str] = {}
    if not cluster:
        raise _wrong("its cluster is empty")
    for kind, addresses in cluster.items():
        if kind not in TYPES:
            raise _wrong(
                f"its cluster has tasks of type {kind!r}; there are {', '.join(TYPES)}"
            )
        if not isinstance(addresses, list) or not addresses:
            raise _wrong(f"the addresses of {kind!r} must be a list, one for each task")
        for index, address in enumerate(addresses):
            who = f"{kind} {index}"
            host, colon, port = str(address).rpartition(":")
            if not (colon and host and port.isdecimal()):
                raise _wrong(f"the address of {who}, {address!r}, is not host:port")
            if not 1 <= int(port) <= 65535:
                raise _wrong(
                    f"the port of {who}, {port}, is out of range: take 1024 to 65535"
                )
            if address in owners:
                raise _wrong(
                    f"{owners[address]} and {who} both have the address {address}: "
                    "give each a port of its own"
                )
            owners[address] = who
    if len(cluster.get("chief", [])) > 1:
        raise _wrong("its cluster has several chiefs: there can be one")


def _wrong(problem: str) -> UserError:
    return UserError(f"TF_CONFIG can't be used: {problem}. A right one: {EXAMPLE}")


def enter() -> Task:
    """`this_task()`, once its address is known to be free: call it before TensorFlow.

    Raises UserError, also when this task's own address is taken, or is not one of
    this machine. TensorFlow would share the port with the other process, and the
    cluster would wait forever.
    """
    task = this_task()
    if not os.environ.get("TF_CONFIG"):
        return task
    host, _, port = task.address.rpartition(":")
    try:
        family, kind, _, _, place = socket.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_STREAM
        )[0]
        with socket.socket(family, kind) as trial:
            # The port of a task that ended a moment ago is free.
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(place)
    except OSError as error:
        raise UserError(
            f"{task} can't listen at its address {task.address}: {error.strerror}. "
            "If an earlier run still has the port, end it; else choose another port, "
            "in the TF_CONFIG of all tasks."
        ) from None
    return task


def counts(text: str) -> dict[str, int]:
    """ "chief=1,worker=2" as {"chief": 1, "worker": 2}. Raises UserError."""
    parts = [part.strip().partition("=") for part in text.split(",")]
    if not all(number.isdecimal() for _, _, number in parts):
        raise UserError(f"tasks are {text!r}: write them as chief=1,worker=2,ps=1.")
    return {kind: int(number) for kind, _, number in parts}


def free_cluster(counts: Mapping[str, int]) -> Cluster:
    """Addresses on this machine for so many tasks of each type, in the order of TYPES.

    counts: such as {"chief": 1, "worker": 2, "ps": 1}. Raises UserError for a type
    that there isn't, a number that makes no sense, and a cluster without a worker.
    """
    for kind, count in counts.items():
        if kind not in TYPES:
            raise UserError(
                f"there are no tasks of type {kind!r}: choose from {', '.join(TYPES)}."
            )
        if not isinstance(count, int) or count < 1:
            raise UserError(f"tasks: {kind} must be 1 or more, not {count!r}.")
    if counts.get("chief", 1) > 1:
        raise UserError(f"tasks: there is one chief, not {counts['chief']}.")
    if not {"chief", "worker"} & set(counts):
        raise UserError("tasks: a cluster needs a worker, such as worker=2.")
    # Shuffled, so that two runs that start at the same time take different ones.
    ports = filter(_is_free, random.Random().sample(PORTS, len(PORTS)))
    return {
        kind: [f"127.0.0.1:{next(ports)}" for _ in range(counts[kind])]
        for kind in sorted(counts, key=TYPES.index)
    }


def _is_free(port: int) -> bool:
    with socket.socket() as trial, contextlib.suppress(OSError):
        trial.bind(("127.0.0.1", port))
        return True
    return False


def own_environment(
    task: Task, environment: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """The variables that make a process this task.

    environment: what it has besides. Where there are GPUs, each task that computes sees
    one of them, the others none: TensorFlow would take hold of all. Where there are
    fewer than such tasks, nobody sees any, as two can't share one.
    """
    config = {
        "cluster": task.cluster,
        "task": {"type": task.type, "index": task.index},
    }
    variables = {"TF_CONFIG": json.dumps(config)}
    if gpus := machine.gpus(environment):
        visible = environment.get("CUDA_VISIBLE_DEVICES")
        names = (
            list(map(str, range(gpus))) if visible is None else machine.names(visible)
        )
        computing = [t for t in tasks_of(task.cluster) if t.computes]
        if task.computes and len(computing) <= gpus:
            variables["CUDA_VISIBLE_DEVICES"] = names[computing.index(task)]
        else:
            variables |= machine.HIDDEN
    return variables


# ------------------------------------------------------------------ running them


class Running:
    """The process that is a task now, and what it is started again with."""

    def __init__(self, task: Task, command: list[str], output: Path):
        self.task = task
        self.command = command
        self.folder = output / "1" / f"rank.{task.rank}"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.start()

    def start(self) -> None:
        self.ended_well = False
        environment = dict(os.environ, **own_environment(self.task))
        environment["DISTCHECK_TASK"] = str(self.task.rank)
        with (
            (self.folder / "stdout").open("ab") as out,
            (self.folder / "stderr").open("ab") as err,
        ):
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=environment,
                preexec_fn=supervise.die_with_parent,
            )

    def say(self, text: str) -> None:
        """Put a line of the launcher's into what the task says."""
        with (self.folder / "stderr").open("a") as err:
            err.write(f"--- {self.task} {text} ---\n")

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(supervise.GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def how_it_ended(status: int) -> str:
    """A Popen's return code in words."""
    if status >= 0:
        return f"ended with status {status}"
    with contextlib.suppress(ValueError):
        name = signal.strsignal(-status)
        return f"was ended by signal {-status}, {name}"
    return f"was ended by signal {-status}"


def run_cluster(
    cluster: Cluster,
    command: list[str],
    output: Path,
    restarts: int = 0,
    tolerate: str | None = None,
) -> int:
    """Run `command` as every task of `cluster`; return the exit status of the whole.

    restarts: after how many failures tasks are started again. tolerate: tasks of this
    type may fail as long as one task ends well.
    """
    running = [Running(task, command, output) for task in tasks_of(cluster)]
    try:
        while True:
            for member in list(running):
                status = member.process.poll()
                if status is None or member.ended_well:
                    continue
                if status == 0:
                    member.ended_well = True
                elif restarts > 0:
                    restarts -= 1
                    alone = has_servers(cluster)
                    restarted = [member] if alone else running
                    who = "it is" if alone else "all tasks are"
                    member.say(f"{how_it_ended(status)}; {who} started again")
                    for other in restarted:
                        other.end()
                    for other in restarted:
                        other.start()
                    break
                elif member.task.type == tolerate and _deciding(
                    running, without=member
                ):
                    member.say(f"{how_it_ended(status)}; the others go on")
                    running.remove(member)
                else:
                    print(
                        f"rank {member.task.rank}, {member.task}, failed: "
                        f"it {how_it_ended(status)}",
                        flush=True,
                    )
                    return status if status > 0 else 128 - status
            if all(member.ended_well for member in _deciding(running)):
                return 0
            time.sleep(POLL_SECONDS)
    finally:
        for member in running:
            member.end()


def _deciding(running: list[Running], without: Running | None = None) -> list[Running]:
    """The tasks whose good end is the end of the whole."""
    kinds = {"chief"} if has_servers(running[0].task.cluster) else set(TYPES) - {"ps"}
    return [r for r in running if r.task.type in kinds and r is not without]


def has_servers(cluster: Cluster) -> bool:
    """Do the workers and ps serve a chief? Then they never end by themselves."""
    return {"chief", "ps"} <= set(cluster)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    option = parser.add_argument
    option("--cluster", type=json.loads, required=True, metavar="JSON")
    option("--output", type=Path, required=True, metavar="FOLDER")
    option("--restarts", type=int, default=0, metavar="K")
    option("--tolerate", choices=TYPES)
    option("command", nargs="+", metavar="-- COMMAND")
    arguments = parser.parse_args()
    return run_cluster(**vars(arguments))


if __name__ == "__main__":
    sys.exit(main())
