"""Run programs in the environments beside the course's, which TITLES names.

`make jax` makes `.venv-jax`, and so on; why they are apart says utils/setup/install.py.
"""

import shlex
from pathlib import Path

from distcheck import errors, files, mpi, supervise
from utils.base import course

TITLES = {
    "jax": "Keras 3 with JAX",
    "torch": "PyTorch",
    "xprof": "TensorBoard's profiler, XProf",
}


def folder(name: str) -> Path:
    """An environment, there or not. name: one of TITLES."""
    return course.PACKAGE_ROOT / f".venv-{name}"


def program(name: str, word: str = "python") -> Path:
    """A program of an environment: its Python if nothing else is named."""
    return folder(name) / "bin" / word


def problem(name: str) -> str | None:
    """Why nothing can run there, with the command that mends it; None if it can."""
    if program(name).exists():
        return None
    return (
        f"{TITLES[name]} is not installed: `make {name}` adds it, in an environment of "
        "its own."
    )


def run(name: str, word: str, *arguments: object, time_limit: float = 300.0) -> None:
    """Run a program of an environment, such as `python` or `torchrun`; show the line
    that does so in the working directory, and what it says.

    time_limit: seconds. Raises UserError where the environment is missing, and for a
    program that fails or takes longer.
    """
    why = problem(name)
    if why:
        raise errors.UserError(why)
    command = [str(program(name, word)), *map(str, arguments)]
    # Beside the learner's files, as in a checkout; elsewhere if these are a copy.
    typed = course.root() / f".venv-{name}" / "bin" / word
    line = shlex.join([files.shown(typed), *command[1:]])
    print(f"$ {line}", flush=True)
    environment = {**mpi.clean_environment(), "OMP_NUM_THREADS": "1"}
    with supervise.owned(
        command, time_limit, env=environment, **supervise.READ_LINES
    ) as process:
        said = process.stdout.read()
        status = process.wait()
    print(said, end="", flush=True)
    if status == supervise.TIMED_OUT:
        raise errors.UserError(f"`{line}` did not end within {time_limit:.0f} s.")
    if status:
        raise errors.UserError(f"`{line}` failed, with exit status {status}.")
