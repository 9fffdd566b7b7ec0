"""What this machine can run, and the fix for what it can't: `course doctor`.

Nothing is guessed: two processes are started with `mpirun`, add two numbers with
Horovod, and tell what they found on the way (utils.checking.probe).
"""

import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
from packaging.specifiers import SpecifierSet

from distcheck import errors, machine, mpi, supervise
from distcheck.show import Page, Table
from utils.base import course, profiles
from utils.checking import gpu, probe
from utils.lessons import outline
from utils.running import explain, launch
from utils.training import fetch

OK, LIMITED, MISSING = "ok", "limited", "missing"

PROBE_SECONDS = 90.0  # two processes import TensorFlow at once; it may be a cold start
GPU_SECONDS = 300.0  # the same, and for some GPUs TensorFlow has to compile first
NEEDED_MEMORY = 2 * launch.MEMORY_PER_WORKER + 0.6e9  # two workers and a notebook
NEEDED_DISK = 1e9  # the data, the logs and the executed notebooks
SMALLEST_FILE = fetch.FILES["y_test"][0]
DISTRIBUTION = "distributed-training-course"  # as pyproject.toml calls it
SET_UP = "run `make setup`, which says what is missing"


@dataclass(frozen=True)
class Line:
    """One thing that was looked at.

    name: what outline.toml calls it in `needs`; what, found: for people.
    state: OK, LIMITED (the course runs, but ...) or MISSING; fix: what to do, if
    there is anything.
    """

    name: str
    what: str
    found: str
    state: str = OK
    fix: str = ""


@dataclass(frozen=True)
class Lesson:
    """A lesson and whether it will run here; the minutes to set aside."""

    number: str
    title: str
    minutes: int
    verdict: str


@dataclass(frozen=True, repr=False)
class Report(Page):
    """The lines, the lessons, and the profile in force.

    Shows itself as tables in a terminal and in a notebook.
    """

    lines: list[Line]
    lessons: list[Lesson]
    profile: profiles.Settings

    @property
    def ok(self) -> bool:
        """Nothing is missing; what is limited still runs."""
        return all(line.state != MISSING for line in self.lines)

    @property
    def summary(self) -> str:
        if not self.ok:
            return (
                "Something is missing. Fix it as described above, then run this again."
            )
        if any(line.state == LIMITED for line in self.lines):
            return "The course runs here, with the limits named above."
        return "The course runs here."

    def line(self, name: str) -> Line:
        """The line called `name`."""
        return next(line for line in self.lines if line.name == name)

    def as_json(self) -> dict:
        """The same as plain values."""
        return {"ok": self.ok, "summary": self.summary, **asdict(self)}

    @property
    def parts(self) -> list[str | Table]:
        """What was looked at, the lessons, what to do, and the sum of it all."""
        lines = [(line.what, line.found, line.state) for line in self.lines]
        lessons = [
            (lesson.number, lesson.title, str(lesson.minutes), lesson.verdict)
            for lesson in self.lessons
        ]
        fixes = [
            f"{line.what} ({line.state}): {line.fix}."
            for line in self.lines
            if line.fix
        ]
        return [
            Table(("What", "Found", "State"), lines),
            Table(("Lesson", "Title", "Minutes", "Runs here?"), lessons),
            *fixes,
            self.summary,
        ]


def doctor() -> Report:
    """Look at this machine; about 15 seconds, most of it TensorFlow's import. Where
    there are GPUs it is twice that, or minutes, if TensorFlow compiles for them.

    Raises UserError when COURSE_PROFILE names no profile.
    """
    profile = profiles.in_force()
    own_lines: list[Line] = []
    # Two things that wait: for a network that may be absent, for TensorFlow.
    looking = threading.Thread(target=lambda: own_lines.extend(_lines_of_machine()))
    looking.start()
    facts = _probe()
    looking.join()
    count = machine.gpus()
    gpu_facts = _gpu_facts(count) if count else {}
    hidden = "CUDA_VISIBLE_DEVICES" in os.environ
    installed = count if hidden else machine.installed()
    gpus = gpu.read(gpu.ask())
    if count:
        gpus = gpu.seen(gpus, os.environ.get("CUDA_VISIBLE_DEVICES"))
    gpu_lines = _gpu_lines(installed, gpus, gpu_facts)
    lines = [*_lines_of_software(facts), *own_lines, *gpu_lines]
    return Report(lines, _lessons(lines), profile)


# -------------------------------------------------------------- the machine


def _lines_of_machine() -> list[Line]:
    return [*_pretence(), _core_line(), _memory_line(), _disk_line(), _data_line()]


def _pretence() -> list[Line]:
    """What of this machine is pretended, if anything."""
    if not (found := machine.pretence()):
        return []
    fix = f"unset {machine.PRETEND} to look at this machine itself"
    return [Line("pretended", "Pretended", found, LIMITED, fix)]


def _core_line() -> Line:
    cores, quota = machine.cores(), _cgroup("cpu.max", "cpu/cpu.cfs_quota_us")
    found = str(cores)
    if quota and quota < cores:
        found, cores = f"{cores}, of which this container may use {quota:g}", quota
    if cores >= 2:
        return Line("cores", "Processor cores", found)
    return Line(
        "cores",
        "Processor cores",
        found,
        LIMITED,
        "everything runs, but two workers take turns on one core, so there is no "
        "speed-up. Give the virtual machine or container a second core",
    )


def _memory_line() -> Line:
    free, limit = psutil.virtual_memory().available, _cgroup("memory.max", None)
    if limit:
        free = min(free, limit)
    found = f"{free / 1e9:.1f} GB free of {psutil.virtual_memory().total / 1e9:.1f} GB"
    if free >= NEEDED_MEMORY:
        return Line("memory", "Memory", found)
    fix = f"close programs until {NEEDED_MEMORY / 1e9:.0f} GB are free"
    return Line("memory", "Memory", found, MISSING, fix)


def _cgroup(version_2: str, version_1: str | None) -> float | None:
    """A container's limit: cores for `cpu.max`, bytes for `memory.max`; None without
    one."""
    top = Path("/sys/fs/cgroup")
    if (top / version_2).exists():
        value, *period = (top / version_2).read_text().split()
    elif version_1 and (top / version_1).exists():
        value, period = (top / version_1).read_text().strip(), ["100000"]
    else:
        return None
    if value in ("max", "-1"):
        return None
    return int(value) / (int(period[0]) if period else 1)


def _disk_line() -> Line:
    free = shutil.disk_usage(course.root()).free
    found = f"{free / 1e9:.0f} GB free"
    if free >= NEEDED_DISK:
        return Line("disk", "Disk", found)
    fix = f"free {NEEDED_DISK / 1e9:.0f} GB on the disk with the course"
    return Line("disk", "Disk", found, MISSING, fix)


def _data_line() -> Line:
    cache = fetch.cache_folder() / "fashion-mnist"
    given = os.environ.get("COURSE_DATA")
    if given or all((cache / name).exists() for name, _ in fetch.FILES.values()):
        try:
            fetch.fashion_mnist()
        except errors.UserError as error:
            return Line("data", "Data", "unusable", MISSING, str(error).rstrip("."))
        where = "the folder of COURSE_DATA" if given else "the course's cache"
        return Line("data", "Data", f"Fashion-MNIST, checked, in {where}")
    if _published_data_answers():
        return Line("data", "Data", "Fashion-MNIST, downloaded when first used (31 MB)")
    return Line(
        "data",
        "Data",
        "a sample of Fashion-MNIST, which comes with the course",
        LIMITED,
        "everything runs, but on 6,400 images at most. Connect to the network, or set "
        "COURSE_DATA to a folder with the four .gz files of Fashion-MNIST",
    )


def _published_data_answers() -> bool:
    """Try to get the smallest of the files, from one place after the other."""
    for place in fetch.places():
        try:
            fetch.download(f"{place}/{SMALLEST_FILE}")
            return True
        except fetch.WrongFile:
            continue
    return False


# -------------------------------------------------------------- the software


def _probe() -> dict:
    """What two processes under `mpirun` found out, or one alone if they can't start.

    Keys as in probe.py, `alone` (only one process could say anything), `last` (the
    last line about an error, else the last line at all), and `known` (what the table of
    messages says of it).
    """
    program = [sys.executable, "-m", "utils.checking.probe"]
    environment = mpi.clean_environment()  # what runs get
    if machine.gpus():  # they are another matter, see _gpu_facts
        environment |= machine.HIDDEN
    facts = {}
    if mpirun := _mpirun():
        line = mpi.mpirun_line(2, program, threads=1)
        facts = _facts_from([mpirun, *line[1:]], environment)
    if "tensorflow" in facts:
        return facts
    return {**facts, **_facts_from(program, environment), "alone": True}


def _gpu_facts(installed: int) -> dict:
    """What two workers with a GPU each found out, or one where there is one GPU."""
    if not (mpirun := _mpirun()):
        return {}
    program = [sys.executable, "-m", "utils.checking.probe", "--gpu"]
    line = mpi.mpirun_line(min(2, installed), program, threads=None)
    environment = mpi.clean_environment()
    return _facts_from([mpirun, *line[1:]], environment, GPU_SECONDS)


def _facts_from(
    command: list[str], environment: dict[str, str], limit: float = PROBE_SECONDS
) -> dict:
    facts: dict = {}
    with supervise.owned(
        command,
        limit,
        env=environment,
        **supervise.READ_LINES,
    ) as process:
        lines = process.stdout.read().splitlines()
    for line in lines:
        if line.startswith(probe.MARK):
            facts |= json.loads(line.removeprefix(probe.MARK))
    # mpirun closes with a paragraph of its own; what a worker said is above it.
    texts = [line.strip() for line in lines if re.search(r"[a-z]", line)]
    errors = [line for line in texts if "error" in line.lower()]
    if errors or texts:
        facts["last"] = (errors or texts)[-1]
        if known := explain.known("\n".join(lines)):
            facts["known"] = known
    return facts


def _lines_of_software(facts: dict) -> list[Line]:
    return [
        _python_line(),
        _package_line(facts, "tensorflow", "TensorFlow"),
        _horovod_line(facts),
        _mpi_line(),
        _all_reduce_line(facts),
    ]


def _python_line() -> Line:
    version = platform.python_version()
    needed = importlib.metadata.metadata(DISTRIBUTION)["Requires-Python"]
    if SpecifierSet(needed).contains(version):
        return Line("python", "Python", version)
    fix = f"the course needs Python {needed}: run `make setup`, which can fetch it"
    return Line("python", "Python", version, MISSING, fix)


def _package_line(facts: dict, name: str, what: str) -> Line:
    if name in facts:
        return Line(name, what, facts[name])
    reason = facts.get("last", "no reason given")
    found = f"not importable: {reason[:200]}"
    return Line(name, what, found, MISSING, _with_known(SET_UP, facts))


def _with_known(fix: str, facts: dict) -> str:
    """What to do, with what is known of the error, if it is."""
    return f"{fix}. {known}" if (known := facts.get("known")) else fix


def _horovod_line(facts: dict) -> Line:
    line = _package_line(facts, "horovod", "Horovod")
    if line.state == MISSING:
        return line
    built = [name for name in ("MPI", "Gloo", "NCCL") if facts["built"][name]]
    found = f"{line.found} with {', '.join(built) or 'neither MPI nor Gloo'}"
    if not {"MPI", "Gloo"} <= set(built):
        return Line("horovod", "Horovod", found, MISSING, SET_UP)
    return Line("horovod", "Horovod", found)


def _mpi_line() -> Line:
    version = _version_of(_mpirun())
    if version:
        return Line("mpi", "MPI", version)
    return Line("mpi", "MPI", "no mpirun", MISSING, SET_UP)


def _mpirun() -> str:
    """The mpirun that runs use; "" if there is none."""
    try:
        return mpi.mpirun()
    except errors.UserError:
        return ""


def _version_of(mpirun: str) -> str:
    """Which MPI answers to `mpirun --version`; "" if none does."""
    if not mpirun:
        return ""
    try:
        answer = subprocess.run(
            [mpirun, "--version"], capture_output=True, text=True, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    first_line = answer.stdout.partition("\n")[0]
    version = re.search(r"Open.*?(\d+\.\d+[\w.]*)", first_line)
    return f"Open MPI {version[1]}" if version else first_line


def _all_reduce_line(facts: dict) -> Line:
    what = "Two processes"
    if facts.get("sum") == 3 and not facts.get("alone"):
        return Line("all-reduce", what, "added 1 and 2 with Horovod: 3")
    found = f"could not add 1 and 2: {facts.get('last', 'no answer in time')[:200]}"
    fix = f"{SET_UP}. After that, `mpirun -np 2 hostname` must print two lines"
    return Line("all-reduce", what, found, MISSING, _with_known(fix, facts))


def _gpu_lines(installed: int, gpus: list[gpu.Gpu], facts: dict) -> list[Line]:
    """installed: how many GPUs; gpus: what is known of them; facts: of `_gpu_facts`."""
    if not installed:
        found = "none; none is needed, because workers use processor cores"
        if machine.has_cudnn() and not gpus:
            found = "none seen, although cuDNN is installed, which only GPUs need"
            fix = (
                "`nvidia-smi` lists the GPUs that NVIDIA's driver sees. Install driver "
                "525.60 or newer, or go back to processor cores with `make setup GPU=0`"
            )
            return [Line("gpus", "GPUs", found, LIMITED, fix)]
        return [Line("gpus", "GPUs", found)]
    visible = facts.get("gpus", 0)
    if visible < installed:
        return [
            Line(
                "gpus",
                "GPUs",
                f"{installed}, of which TensorFlow sees {visible}",
                LIMITED,
                f"`make setup GPU=1` installs what GPUs need; {gpu.ON_CORES}",
            )
        ]
    forbids, limits = gpu.problems(gpus, facts)
    if installed > 1 and not facts.get("nccl"):
        limits.append(
            "Horovod has no NCCL, so its workers exchange data through main memory"
        )
    if installed == 1:
        users = "one worker; several workers use processor cores"
    else:
        users = "one worker each"
    found = f"{gpu.described(gpus, facts) or installed}; for {users}"
    state = MISSING if forbids else LIMITED if limits else OK
    fix = ". ".join([*forbids, *limits])
    return [Line("gpus", "GPUs", found, state, fix), _gpu_sum_line(facts)]


def _gpu_sum_line(facts: dict) -> Line:
    what, workers = "Sums on GPUs", facts.get("workers", 0)
    if not facts.get("right"):
        found = f"a convolution failed: {facts.get('last', 'no answer')[:200]}"
        if "right" not in facts and "seconds" not in facts:
            found = f"no convolution in {GPU_SECONDS:.0f} s: it may still be compiling"
        fix = _with_known(f"{gpu.WARM_UP}; {gpu.ON_CORES}", facts)
        return Line("gpu-sum", what, found, MISSING, fix)
    found = f"a first convolution in {facts['seconds']:.1f} s"
    if facts.get("sum") != workers * (workers + 1) / 2:
        found += f"; no all-reduce: {facts.get('last', 'no answer in time')[:200]}"
        fix = f"`NCCL_DEBUG=INFO course doctor` says more; {gpu.ON_CORES}"
        return Line("gpu-sum", what, found, MISSING, _with_known(fix, facts))
    how = "NCCL" if facts.get("nccl") else "Horovod, in memory"
    added = f"{workers} workers added 1 and 2" if workers > 1 else "an all-reduce"
    return Line("gpu-sum", what, f"{found}; {added} with {how}")


# -------------------------------------------------------------- the notebooks


def _lessons(lines: list[Line]) -> list[Lesson]:
    state = {line.name: line for line in lines}
    lessons = []
    for notebook in outline.read().notebooks.values():
        needed = [state[name] for name in notebook.needs]
        missing = [line.what for line in needed if line.state == MISSING]
        limited = [line.what for line in needed if line.state == LIMITED]
        verdict = "yes"
        if missing:
            verdict = f"not before this is fixed: {', '.join(missing)}"
        elif limited:
            verdict = f"yes, with a limit: {', '.join(limited)}"
        lesson = Lesson(notebook.number, notebook.title, notebook.minutes, verdict)
        lessons.append(lesson)
    return lessons
