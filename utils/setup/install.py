"""Sets up everything the course needs, once. Every `make` target calls this first.

    python3 utils/setup/install.py         set up `.venv`, or see that nothing is left
    python utils/setup/install.py conda    complete the active conda environment, which
                                           environment.yml began

Environment variables: PYTHON=path (the Python 3.11 to build on), GPU=1 (with CUDA and
NCCL; GPU=0 goes back), COURSE_YES=1 (answer every question with yes).

This uses only the standard library, as it starts before anything is installed, and
plain syntax, so that any Python from 3.6 can start it.
"""

import contextlib
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import prerequisites
from lock import AFTER_TENSORFLOW, FROM_CONDA, LOCK, ROOT, locked, replace
from prerequisites import SetupError

PYPROJECT = ROOT / "pyproject.toml"

# The environment takes 2.3 GB, and building Horovod 1 GB more for a while.
NEEDED_GB = 4
NEEDED_TO_GO_ON_GB = 1.5

END_SECONDS = 5  # for a child to end by itself before it is killed

# Variables of the caller's that would lead pip, Open MPI or the build astray.
STRAY = (
    "OPAL_PREFIX",
    "PIP_PREFIX",
    "PIP_TARGET",
    "PYTHONHOME",
    "PYTHONPATH",
    "__PYVENV_LAUNCHER__",
)

HOROVOD_PARTS = {
    "HOROVOD_WITH_TENSORFLOW": "1",
    "HOROVOD_WITH_MPI": "1",
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_WITHOUT_PYTORCH": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
}

ALL_REDUCE = """\
import horovod.tensorflow as hvd
import tensorflow as tf

hvd.init()
assert hvd.mpi_built(), "Horovod was built without MPI"
assert hvd.gloo_built(), "Horovod was built without Gloo"
total = hvd.allreduce(tf.constant(hvd.rank() + 1.0), op=hvd.Sum)
assert total == hvd.size() * (hvd.size() + 1) / 2, total
print(f"rank {hvd.rank()} of {hvd.size()} has the sum {float(total)}", flush=True)
"""

LAUNCHER = """\
#!/bin/sh
# Open MPI runs as root only when it is told twice; containers often have no other user.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OPAL_PREFIX={prefix}
exec {prefix}/bin/orterun "$@"
"""

# What every Python of the environment does when it starts.
START_UP = "import os, sys"
FIND_OPEN_MPI = 'os.environ["OPAL_PREFIX"] = sys.prefix'
NO_WORD_OF_MISSING_GPUS = (
    'os.path.exists("/dev/nvidiactl") or '
    'os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")'
)
# TensorFlow leaves its faster convolutions off on processors that don't report
# certain instructions, as many virtual machines don't.
FAST_CONVOLUTIONS = 'os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")'


class Stage(NamedTuple):
    """A part of the set-up, done again when it or a part before it changes.

    `action` takes the Home to work on; `files` are what the stage depends on.
    """

    title: str
    action: object
    files: tuple = ()


class Home:
    """The environment to set up: the folder `prefix`, there already or not.

    `.setup` inside it holds the log of all that ran, and the stamp: which stages are
    done, on which Python, with or without GPUs.
    """

    def __init__(self, prefix, conda=False):
        self.prefix = Path(prefix)
        self.conda = conda
        self.bin = self.prefix / "bin"
        self.python = self.bin / "python"
        self.site = self.prefix / "lib" / "python3.11" / "site-packages"
        self.state = self.prefix / ".setup"
        self.log = self.state / "log"
        self.stamp = self.state / "stamp.json"
        self.scratch = self.state / "scratch"  # empty at the start of every stage
        self.claim = None  # the open lock file, while this process is at work
        self.base_python = None  # what to build on
        self.gpu = os.environ.get("GPU") or self.read_stamp().get("gpu", "0")
        if self.gpu not in ("0", "1"):
            raise SetupError(f"GPU={self.gpu} is neither GPU=1 nor GPU=0.")

    def read_stamp(self):
        try:
            return json.loads(self.stamp.read_text())
        except FileNotFoundError:
            return {}

    def write_stamp(self, done):
        python = os.path.realpath(str(self.python)) if done else self.base_python
        stamp = {"python": python, "gpu": self.gpu, "done": done}
        replace(self.stamp, json.dumps(stamp, indent=1))

    def done(self):
        """The keys of the finished stages; none when their Python is gone."""
        stamp = self.read_stamp()
        python = self.python.exists() and os.path.realpath(str(self.python))
        return stamp["done"] if python and python == stamp.get("python") else []

    def run(self, *command, minutes, **variables):
        """Run `command`, its output going to the log, and own all that it starts.

        Raises SetupError with the end of its output when it fails or takes too long.
        """
        start = self.log.stat().st_size
        with self.log.open("a") as log:
            print("\n$", *command, file=log, flush=True)
            child = None
            try:
                with stopping_later():  # or a child could be started and not known
                    child = subprocess.Popen(
                        [str(word) for word in command],
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        env=self.environment(variables),
                        start_new_session=True,
                        # Should this process be killed, its child keeps the claim.
                        pass_fds=[self.claim.fileno()],
                    )
                status = child.wait(minutes * 60)
            except subprocess.TimeoutExpired:
                status = f"no end after {minutes} minutes"
            finally:
                if child:
                    end_group(child)
        if status != 0:
            with self.log.open(errors="replace") as log:
                log.seek(start)
                raise SetupError(explain(status, log.read(), shown(self.log)))

    def environment(self, variables):
        """The caller's environment variables, with what the set-up needs."""
        inherited = {
            name: value for name, value in os.environ.items() if name not in STRAY
        }
        settings = {
            "PATH": f"{self.bin}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_USER": "0",
            "PYTHONNOUSERSITE": "1",
        }
        return {**inherited, **settings, **variables}

    def pip_install(self, requirements, *options, minutes, **variables):
        """Install exactly `requirements`, each file checked against its hashes."""
        listed = self.scratch / "requirements.txt"
        listed.write_text(requirements)
        pip = (self.python, "-m", "pip", "install", "--no-input", "--no-deps")
        exact = ("--require-hashes", "--requirement", listed)
        # What is built doesn't fit into /tmp everywhere.
        variables["TMPDIR"] = str(self.scratch)
        self.run(*pip, *options, *exact, minutes=minutes, **variables)


def install_packages(home):
    """Everything in the lock but Horovod, into an environment made anew."""
    without = list(AFTER_TENSORFLOW)
    if home.gpu == "0":
        without.append("nvidia-*")
    if home.conda:
        without.extend(FROM_CONDA)
    else:
        for item in home.prefix.iterdir():
            if item != home.state:
                remove(item)
        home.run(home.base_python, "-m", "venv", home.prefix, minutes=10)
        home.pip_install(locked("pip"), minutes=30)
    home.pip_install(locked("*", without), minutes=240)


def build_horovod(home):
    """Horovod from its source release, against the TensorFlow just installed."""
    home.pip_install(
        locked("horovod"),
        "--no-binary=horovod",
        "--no-build-isolation",
        # pip would reuse a build made for another TensorFlow.
        "--no-cache-dir",
        "--ignore-installed",
        minutes=90,
        **build_variables(home),
    )


def build_variables(home):
    """What Horovod's build is told through environment variables."""
    # Horovod compiles eight files at once unless MAKEFLAGS is set, and each takes up
    # to 2 GB of memory.
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    jobs = max(1, min(os.cpu_count() or 1, memory // 2**31))
    variables = {**HOROVOD_PARTS, "MAKEFLAGS": f"-j{jobs}"}
    if not home.conda:
        variables["OPAL_PREFIX"] = str(home.prefix)
    if home.gpu == "1":
        variables["HOROVOD_GPU_OPERATIONS"] = "NCCL"
        if "HOROVOD_NCCL_HOME" not in os.environ:
            variables.update(packaged_nccl(home.site / "nvidia" / "nccl"))
    return variables


def packaged_nccl(folder):
    """Variables that make the build use the NCCL that comes with TensorFlow's CUDA
    packages; a link there gives the library the name that linkers look for."""
    library = folder / "lib"
    if not (library / "libnccl.so").exists():
        (library / "libnccl.so").symlink_to("libnccl.so.2")
    return {
        "HOROVOD_NCCL_INCLUDE": str(folder / "include"),
        "HOROVOD_NCCL_LIB": str(library),
        "HOROVOD_NCCL_LINK": "SHARED",
        "LDFLAGS": f"{os.environ.get('LDFLAGS', '')} -Wl,-rpath,{library}",
    }


def install_course(home):
    """The course's own package, its Jupyter kernel, its launchers."""
    pip = (home.python, "-m", "pip", "install", "--no-input", "--no-deps")
    home.run(*pip, "--no-build-isolation", "--editable", ROOT, minutes=10)

    kernel = (home.python, "-m", "ipykernel", "install", "--sys-prefix")
    title = ("--name", "python3", "--display-name", "Python 3 (distributed training)")
    # `!mpirun` must work wherever Jupyter was started from.
    path = ("--env", "PATH", f"{home.bin}{os.pathsep}${{PATH}}")
    home.run(*kernel, *title, *path, minutes=10)

    start_up = [START_UP, NO_WORD_OF_MISSING_GPUS, FAST_CONVOLUTIONS]
    if not home.conda:
        start_up.append(FIND_OPEN_MPI)
        launcher = LAUNCHER.format(prefix=shlex.quote(str(home.prefix)))
        for name in ("mpirun", "mpiexec"):
            replace(home.bin / name, launcher, mode=0o755)
    replace(home.site / "course.pth", "; ".join(start_up) + "\n")


def check_all_reduce(home):
    """Two processes add up a number through what was just built."""
    program = ALL_REDUCE
    if home.gpu == "1":
        program += 'assert hvd.nccl_built(), "Horovod was built without NCCL"\n'
    mpirun = (home.bin / "mpirun", "-np", 2, "--oversubscribe", "--bind-to", "none")
    home.run(*mpirun, home.python, "-c", program, minutes=5)


STAGES = (
    Stage("600 MB of Python packages", install_packages, (LOCK,)),
    Stage("Horovod, built from source in 3 to 10 minutes", build_horovod),
    Stage("the course and its Jupyter kernel", install_course, (PYPROJECT,)),
    Stage("a first sum over two processes", check_all_reduce),
)


def set_up(home, stages, check_machine):
    """Do the stages that are not done yet, one process at a time.

    `check_machine(home)` is called before anything is written; it raises SetupError
    when something is missing.
    """
    keys = fingerprints(home, stages)
    if home.done() == keys:
        return
    check_machine(home)
    home.state.mkdir(parents=True, exist_ok=True)
    with claimed(home):
        done = home.done()
        while done != keys[: len(done)]:
            done.pop()
        if done == keys:
            return  # another process did it meanwhile
        home.write_stamp(done)
        home.log.write_text("")
        print(f"Setting up {shown(home.prefix)}; details in {shown(home.log)}")
        while done != keys:
            stage, key = stages[len(done)], keys[len(done)]
            started = time.monotonic()
            print(f"  {stage.title} ...", end=" ", flush=True)
            remove(home.scratch)
            home.scratch.mkdir()
            stage.action(home)
            done.append(key)
            home.write_stamp(done)
            print(duration(time.monotonic() - started), flush=True)
        remove(home.scratch)


def fingerprints(home, stages):
    """A key for each stage, made of all that it and those before it depend on."""
    key = hashlib.sha256(Path(__file__).read_bytes())
    key.update(f"{home.prefix} {home.gpu}".encode())
    keys = []
    for stage in stages:
        key.update(stage.title.encode())
        for file in stage.files:
            key.update(file.read_bytes())
        keys.append(key.hexdigest())
    return keys


@contextlib.contextmanager
def claimed(home):
    """Hold the environment for this process alone, waiting for others to end."""
    import fcntl  # not on Windows, whose users are told what to do instead

    with (home.state / "lock").open("w") as home.claim:
        try:
            fcntl.flock(home.claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("Another set-up is at work here; waiting for its end.", flush=True)
            fcntl.flock(home.claim, fcntl.LOCK_EX)
        yield


def check_machine(home):
    """Raise SetupError with everything that is missing; decide what to build on."""
    if re.search(r"[\s:]", str(home.prefix)):
        raise SetupError(
            "Horovod can't be built in a folder with a space or a colon in its path:\n"
            f"    {home.prefix}\n"
            "Move or rename it, and run the same command again."
        )
    if not home.conda and not home.state.exists() and any(home.prefix.glob("*")):
        raise SetupError(
            f"{shown(home.prefix)} was made by something else. Delete it, or move it\n"
            f"away, and run the same command again:\n    rm -r {shown(home.prefix)}"
        )
    needed_gb = NEEDED_TO_GO_ON_GB if home.done() else NEEDED_GB
    problems = [
        prerequisites.compiler_problem(),
        prerequisites.disk_problem(home.prefix, needed_gb),
        prerequisites.cuda_problem() if home.gpu == "1" else None,
    ]
    if home.conda:
        home.base_python = sys.executable
    else:
        known = home.read_stamp().get("python")
        # The environment's own Python goes when the environment is made anew.
        home.base_python = prerequisites.find_python(known, not_from=home.bin)
    if not home.base_python:
        problems.append(prerequisites.python_problem())
    if any(problems):
        raise SetupError("\n\n".join(filter(None, problems)))


def conda_home():
    """The active conda environment, if environment.yml made it."""
    prefix = os.environ.get("CONDA_PREFIX", "")
    if not prefix or os.path.realpath(prefix) != os.path.realpath(sys.prefix):
        raise SetupError(
            "No conda environment is active, or its Python isn't the one running:\n"
            "    conda activate distributed-training"
        )
    home = Home(prefix, conda=True)
    if sys.version_info[:2] != (3, 11) or not (home.bin / "mpirun").exists():
        raise SetupError(
            f"{prefix} lacks Python 3.11 or Open MPI. Make the environment with\n"
            "    conda env create --file environment.yml"
        )
    return home


def explain(status, output, log):
    """Why a command failed: the end of its output, and a remedy where one is known."""
    end = "\n".join("    " + line for line in output.strip().splitlines()[-12:])
    text = f"The set-up failed ({status}). The end of {log}:\n{end}"
    if re.search(r"No space left on device|Disk quota exceeded", output):
        free_gb = shutil.disk_usage(str(ROOT)).free / 1e9
        return f"{text}\n\n{prerequisites.disk_full(ROOT, NEEDED_GB, free_gb)}"
    if re.search(r"Retrying \(Retry|Max retries exceeded|ConnectionError", output):
        return (
            f"{text}\n\n"
            "The Python package index can't be reached. A first set-up downloads\n"
            "600 MB; after that the course needs no network. Connect, or name your\n"
            "network's proxy, and run the same command again:\n"
            "    Debian, Ubuntu, Fedora, macOS:  export https_proxy=http://HOST:PORT"
        )
    return text


def stops():
    """The signals that ask this process to stop, unless its caller ignores them."""
    names = ("SIGINT", "SIGTERM", "SIGHUP")
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    return [n for n in numbers if signal.getsignal(n) != signal.SIG_IGN]


@contextlib.contextmanager
def stopping_later():
    """Let no signal break into what is done here; KeyboardInterrupt comes after it."""
    arrived = []
    before = {
        number: signal.signal(number, lambda *_: arrived.append(True))
        for number in stops()
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if arrived:
        raise KeyboardInterrupt


def end_group(child):
    """End `child` and its process group, whatever happens meanwhile."""
    with contextlib.suppress(ProcessLookupError):
        try:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(END_SECONDS)
        finally:
            os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def remove(path):
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(str(path))
    elif path.exists() or path.is_symlink():
        path.unlink()


def shown(path):
    return os.path.relpath(str(path))


def duration(seconds):
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"


def main():
    problem = prerequisites.platform_problem(
        sys.platform, platform.machine(), platform.libc_ver()[0]
    )
    if problem:
        raise SetupError(problem)
    arguments = sys.argv[1:]
    if arguments not in ([], ["conda"]):
        raise SetupError(__doc__)
    home = conda_home() if arguments else Home(ROOT / ".venv")
    set_up(home, STAGES, check_machine)
    print(f"{shown(home.prefix)} is ready.", flush=True)


def start(program):
    """Call `program()`; what stops it becomes a message and an exit status."""
    for number in stops():
        signal.signal(number, signal.default_int_handler)
    try:
        program()
    except (SetupError, OSError, subprocess.SubprocessError) as error:
        sys.exit(f"\n{error}")
    except KeyboardInterrupt:
        print("\nStopped. The same command goes on from here.", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    start(main)
