"""The commands that start workers, and the environment that they start from."""

import os
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from utils.base import course
from utils.base.machine import cores
from utils.running import tasks as clusters


def mpirun_line(
    workers: int,
    program: list[str],
    threads: int | None,
    variables: Mapping[str, str] | None = None,
) -> list[str]:
    """The `mpirun` command that suits this machine, as an argument list.

    variables: what else of the environment the workers are to have.

    Workers that wait in MPI spin, and steal the core that another computes on;
    yielding gives it back. Binding is left to the kernel, as each worker has more
    threads than the one that computes.
    """
    line = ["mpirun", "-np", str(workers), "--bind-to", "none"]
    line += ["--mca", "mpi_yield_when_idle", "1"]
    if workers > cores():
        line += ["--oversubscribe"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        line += ["--allow-run-as-root"]
    for name, value in (thread_variables(threads) | dict(variables or {})).items():
        line += ["-x", f"{name}={value}"]
    return line + program


def thread_variables(threads: int | None, inter_op: int = 0) -> dict[str, str]:
    """What holds TensorFlow to so many threads; None: what it takes by itself.

    inter_op: threads that start operations; by default as many as compute, so that
        replicas in one process run side by side.
    """
    if not threads:
        return {}
    return {
        "OMP_NUM_THREADS": str(threads),
        "TF_NUM_INTRAOP_THREADS": str(threads),
        "TF_NUM_INTEROP_THREADS": str(inter_op or threads),
    }


def plain_tasks(
    cluster: clusters.Cluster, program: list[str], variables: dict[str, str]
) -> str:
    """The shell commands that start the tasks of a cluster by hand.

    Each line could as well be typed in a terminal, or on a machine, of its own.
    """
    pairs = [f"{name}={value}" for name, value in variables.items()]
    first = [" ".join(["export", *pairs])] if pairs else []
    lines = []
    for task in clusters.tasks_of(cluster):
        own = clusters.own_environment(task).items()
        words = [f"{name}={shlex.quote(value)}" for name, value in own]
        lines.append(" ".join([*words, shlex.join(program)]))
    if clusters.has_servers(cluster):  # they would never end by themselves
        chief, *servers = lines
        lines = [*(f"{line} &" for line in servers), chief, "kill $(jobs -p)"]
    else:
        lines = [*(f"{line} &" for line in lines), "wait"]
    return "\n".join([*first, *lines])


def _path() -> str:
    """PATH with this Python's own folder first: its mpirun belongs to it."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])


def mpirun() -> str:
    mpirun = shutil.which("mpirun", path=_path())
    if mpirun is None:
        raise course.CourseError("there is no mpirun here; `make setup` installs it.")
    return mpirun


def clean_environment() -> dict[str, str]:
    """This process's environment, for a run of its own.

    A worker of a run must not believe to be a worker of the run that started it.
    """
    ours = ("OMPI_", "PMIX_", "HOROVOD_RANK", "TF_CONFIG", "COURSE_TASK")
    kept = {n: v for n, v in os.environ.items() if not n.startswith(ours)}
    # No message goes by libfabric's way (it is for one-sided communication), but to
    # close it takes a second at the end of every run.
    return kept | {"PATH": _path(), "OMPI_MCA_btl": "^ofi"}
