"""Sets the course up on a host of notebooks, such as Colab or Kaggle.

The first cell of a hosted copy (`course hosted`) runs this in the host's kernel. It
makes the course's environment with `make setup`, built on that kernel's own Python,
and then lets the kernel pass for a Python of the environment: imports find its
packages first, `!mpirun` and `!course` are its commands, and what the course starts is
started with its Python.

The kernel is the host's and stays it. A kernel that is started anew knows nothing of
this. And what a kernel has imported by itself, such as IPython, and on Colab numpy and
matplotlib, is the host's here: a process can't load the compiled parts of another
version. What the course starts has the environment's.

Like utils/setup/install.py this uses only the standard library and plain syntax.
"""

import contextlib
import importlib
import os
import shutil
import signal
import site
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

# No process can load a second one of these, so the first one has to be ours.
ONCE = ("tensorflow", "keras", "tf_keras", "horovod")

# A host's kernel may have imported these before its first cell, and a kernel started
# anew has done so again. The environment's TensorFlow refuses older ones than its own.
ANEW = ("google.protobuf", "google._upb")

# Colab tells uv by these how its own image was made; the files that they name are gone.
NOT_FOR_UV = "UV_CONSTRAINT UV_BUILD_CONSTRAINT UV_PRERELEASE UV_SYSTEM_PYTHON".split()

# Of the host's environment variables, what would put its packages before ours in the
# processes that the course starts.
STRAY = ("PYTHONPATH", "PYTHONHOME")


class HostError(Exception):
    """Something that the reader can mend. The message says what is wrong and how."""

    def _render_traceback_(self):
        return [f"{type(self).__name__}: {self}"]


def main():
    prefix = ROOT / ".venv"
    refuse_early_imports(prefix)
    set_up()
    enter(prefix)
    os.chdir(str(ROOT / "notebooks"))
    here = os.path.relpath(str(ROOT), os.path.realpath(os.path.expanduser("~")))
    print(f"The course is set up. Your programs are in ~/{here}/exercises.")


def set_up():
    """`make setup` for this kernel's Python, what it prints shown as it comes.

    Its stages have time limits of their own. Done before, it takes a second.
    """
    if not shutil.which("make"):
        raise HostError("make is missing: !apt-get install --yes make g++ git")
    # In a kernel that has passed for another Python, the host's is still known by this.
    python = getattr(sys, "_base_executable", sys.executable)
    kept = {name: os.environ[name] for name in os.environ if name not in NOT_FOR_UV}
    with subprocess.Popen(
        ["make", "--no-print-directory", "-C", str(ROOT), "setup", "PYTHON=" + python],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=kept,
        start_new_session=True,
    ) as make:
        try:
            # In pieces, because a line is begun with a stage and ended with it.
            for piece in iter(lambda: os.read(make.stdout.fileno(), 4096), b""):
                print(piece.decode(errors="replace"), end="", flush=True)
        except BaseException:
            # Stopped by the reader. The set-up ends what it has started.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(make.pid, signal.SIGTERM)
            raise
    if make.returncode:
        raise HostError(
            "The set-up failed; above is why. Then run this cell again. (What stands "
            "there before `make` goes into a cell of its own: %env GPU=0)"
        )


def refuse_early_imports(prefix):
    """Raise HostError if the kernel has imported what must come from `prefix`."""
    early = [name for name in ONCE if is_foreign(name, prefix)]
    if early:
        raise HostError(
            f"This kernel has imported the host's {', '.join(early)} already. Restart "
            "the kernel and run this cell before any other."
        )


def enter(prefix):
    """Let this process pass for one of the environment in the folder `prefix`."""
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    packages = prefix / "lib" / version / "site-packages"
    if not packages.is_dir():
        raise HostError(
            f"The environment in {prefix} was not made for this kernel's {version}. "
            f"Delete it and run this cell again: !rm -r {prefix}"
        )
    for name in ANEW:
        if is_foreign(name, prefix):
            for module in list(sys.modules):
                if module == name or module.startswith(name + "."):
                    del sys.modules[module]
    # The environment's own start-up file, which addsitedir runs, asks for the prefix.
    sys.prefix = sys.exec_prefix = str(prefix)
    sys.executable = str(prefix / "bin" / "python")
    known = list(sys.path)
    site.addsitedir(str(packages))
    added = [folder for folder in sys.path if folder not in known]
    sys.path[:] = added + known
    if added:  # else it has been done before
        sys.path.insert(0, str(ROOT))  # a host may have another package `utils`
        path = os.environ.get("PATH", os.defpath)
        os.environ["PATH"] = str(prefix / "bin") + os.pathsep + path
    for name in STRAY:
        os.environ.pop(name, None)
    importlib.invalidate_caches()


def is_foreign(name, prefix):
    """Is a module imported, and not from `prefix`?"""
    module = sys.modules.get(name)
    places = [getattr(module, "__file__", None), *getattr(module, "__path__", [])]
    return module is not None and not any(
        place and Path(place).is_relative_to(prefix) for place in places
    )


if __name__ == "__main__":
    main()
