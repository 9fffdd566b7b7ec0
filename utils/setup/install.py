"""Sets up everything the course needs, once. Every `make` target calls this first.

    python3 utils/setup/install.py [spark|jax|torch|xprof|wheel]
    python utils/setup/install.py conda [spark|jax|torch|xprof]

The first one sets up `.venv`, the second one completes the active conda environment.
`spark` adds Spark to it; each of the others makes an environment beside it: `jax` makes
`.venv-jax`. `wheel` keeps what was built of Horovod for other machines.

Environment variables: PYTHON=path (the Python to build on), GPU=1 (with CUDA and NCCL;
GPU=0 without; by default with, where there is a GPU of NVIDIA's), COURSE_WHEELS=folder
(where a built Horovod is looked for, by default `wheels`), COURSE_YES=1 (answer every
question with yes).

uv makes the environment and fills it from requirements.lock. What it can't know is
here: Horovod's patch and build, Open MPI's launcher, the kernel, a first sum.

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
import string
import subprocess
import sys
import time
from pathlib import Path

import prerequisites
from prerequisites import PYTHONS, SetupError

ROOT = Path(__file__).resolve().parent.parent.parent
LOCK = ROOT / "requirements.lock"
SPARK_LOCK = ROOT / "requirements-spark.lock"
BESIDE = {
    "jax": "Keras 3 with JAX: 160 MB to fetch",
    "torch": "PyTorch: 3 GB to fetch on Linux, with CUDA",
    "xprof": "TensorBoard's profiler: 140 MB to fetch",
}
PYPROJECT = ROOT / "pyproject.toml"
# What stops a set-up; on Windows, whose users are told what to do instead, not all.
INTERRUPTS = {
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP")
    if hasattr(signal, name)
}
CGROUP = Path("/sys/fs/cgroup")  # a container sees its own here
MESSAGES = ROOT / "utils" / "running" / "messages"
PATCH = Path(__file__).with_name("horovod.patch")
WHEELS = ROOT / "wheels"
FIRST_SUM = Path(__file__).with_name("first_sum.py")
QUIET_IMPORT = Path(__file__).with_name("quiet_import.py")
PATIENT = Path(__file__).with_name("patient.cpp")
LAB_SETTINGS = Path(__file__).with_name("jupyterlab") / "overrides.json"
LAB_WORKSPACE = Path(__file__).with_name("jupyterlab") / "workspace.json"
LAB_SERVER = Path(__file__).with_name("jupyterlab") / "server.json"

# The environment takes 3 GB, and building Horovod 1 GB more for a while.
NEEDED_GB = 5
NEEDED_WITH_CUDA_GB = 9
NEEDED_TO_GO_ON_GB = 1.5

# What stands where nobody has said whether to set up for GPUs.
DETECT = "detect"

# Variables of the caller's that would lead uv, pip, Open MPI or the build astray.
STRAY = "PIP_PREFIX PIP_TARGET PYTHONHOME PYTHONPATH __PYVENV_LAUNCHER__".split()

WITHOUT_GPUS = """\
This sets the course up with GPUs. Get what is missing and run the same command again;
or set it up without them, on cores, and later with them (GPU=1):
    GPU=0 make lab"""

# A compiler's own words for what is wrong, or CMake's, where the table has none.
FIRST_ERROR = re.compile(
    r"^ *\S+?[:(]\d+[:)].*?\berror: .*|^ *\S*error: .*|^ *CMake Error.*(?:\n .*|\n$)*",
    re.M,
)

LAUNCHER = """\
#!/bin/sh
# Open MPI runs as root only when it is told twice; containers often have no other user.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OPAL_PREFIX={prefix}
# TensorFlow shows all libraries its own hwloc. Open MPI, loaded before it, would take
# functions of that when it ends, and crash, unless it has found all of its own by then.
# This is for the workers alone: with it, Slurm's programs can't load their plugins.
# Without ssh, Open MPI would not even start workers on this machine.
command -v ssh > /dev/null || [ -n "$OMPI_MCA_plm" ] || export OMPI_MCA_plm=^rsh
exec {prefix}/bin/orterun -x LD_BIND_NOW=1 "$@"
"""

# What every Python of the environment does when it starts: it finds Open MPI (without
# ssh, see above), hides what TensorFlow logs, of which `course doctor` tells what
# matters, and has TensorFlow's faster convolutions, which are left off on processors
# that don't report certain instructions, as many virtual machines don't.
START_UP = """\
import os, sys; os.environ["OPAL_PREFIX"] = sys.prefix; \
any(os.path.exists(folder + "/ssh") for folder in os.get_exec_path()) or \
os.environ.setdefault("OMPI_MCA_plm", "^rsh"); \
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1"); \
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3"); \
__import__("course_quiet_import").install()
"""


class Home:
    """The environment to set up: the folder `prefix`, there already or not.

    `.setup` inside it holds uv if the machine has none, the log of all that ran, and
    the stamp: the Python, 1 if it is for GPUs, and a key for each finished stage.
    """

    def __init__(self, prefix, conda=False):
        self.prefix = Path(prefix)
        self.conda = conda
        self.bin = self.prefix / "bin"
        self.python = self.bin / "python"
        self.state = self.prefix / ".setup"
        self.log = self.state / "log"
        self.scratch = self.state / "scratch"  # empty at the start of every stage
        self.claim = None  # the open lock file, while this process is at work
        self.gpu = os.environ.get("GPU") or self.stamp()[1]
        if self.gpu not in ("0", "1", DETECT):
            raise SetupError(f"GPU={self.gpu} is neither GPU=1 nor GPU=0.")
        self.detected = self.gpu == DETECT and bool(prerequisites.driver())
        if self.gpu == DETECT:
            self.gpu = "1" if self.detected else "0"

    @property
    def site(self):
        return next(self.prefix.glob("lib/python3.*/site-packages"))

    def stamp(self):
        path = self.state / "stamp"
        return path.read_text().split("\n") if path.exists() else ["", DETECT]

    def done(self):
        """The keys of the finished stages; none when their Python is gone."""
        python, _, *keys = self.stamp()
        there = self.python.exists() and python == os.path.realpath(str(self.python))
        return keys if there else []

    def write_stamp(self, done):
        python = os.path.realpath(str(self.python))
        replace(self.state / "stamp", "\n".join([python, self.gpu, *done]))

    def run(self, *command, minutes, **variables):
        """Run `command`, its output going to the log, and own all that it starts.

        Raises SetupError with the end of its output when it fails or takes too long.
        """
        start, child = self.log.stat().st_size, None
        with self.log.open("a") as log:
            print("\n$", *command, file=log, flush=True)
            try:
                # Interrupted in the middle of Popen, nobody would own the child.
                with no_interrupts():
                    child = subprocess.Popen(
                        [str(word) for word in command],
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        env=self.environment(variables),
                        start_new_session=True,
                        preexec_fn=allow_interrupts,
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
                compiler = prerequisites.compiler(variables.get("CXX"))
                raise SetupError(explain(status, log.read(), shown(self.log), compiler))

    def environment(self, variables):
        """The caller's environment variables, with what the set-up needs."""
        settings = {
            "OPAL_PREFIX": str(self.prefix),
            "PATH": f"{self.bin}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_USER": "0",
            "PYTHONNOUSERSITE": "1",
            "UV_COMPILE_BYTECODE": "1",
            "UV_NO_PROJECT": "1",
            **variables,
        }
        kept = {name: os.environ[name] for name in os.environ if name not in STRAY}
        return {**kept, **settings}

    def uv(self):
        """The path of uv: the machine's own, or the locked one, fetched once."""
        folder = self.state / "uv"
        if not shutil.which("uv") and not (folder / "bin" / "uv").exists():
            self.run(sys.executable, "-m", "venv", "--clear", folder, minutes=10)
            pip = (folder / "bin" / "python", "-m", "pip", "install", "--no-input")
            self.run(*pip, "--require-hashes", "-r", self.listed("uv"), minutes=60)
        return shutil.which("uv") or str(folder / "bin" / "uv")

    def uv_pip(self, *arguments, minutes, **variables):
        """What Horovod's build and the course's own need is there already."""
        here = ("--python", self.python, "--no-build-isolation")
        variables["TMPDIR"] = str(self.scratch)  # /tmp is too small in places
        self.run(self.uv(), "pip", *arguments, *here, minutes=minutes, **variables)

    def listed(self, names):
        """A requirements file with the lock's entries, each with its hashes, of the
        packages whose names match a pattern."""
        path = self.scratch / "requirements.txt"
        entry = re.compile(rf"^(?:{names})==.*(?:\n .*)*\n", re.M)
        path.write_text("".join(entry.findall(LOCK.read_text())))
        return path


def install_packages(home):
    """Everything in the lock but uv and Horovod, into an environment made anew."""
    into = ("install", "--no-deps", "--requirements")
    if not home.conda:
        into = ("sync",)
        python = find_python(home)
        for item in home.prefix.iterdir():
            if item != home.state:
                remove(item)
        venv = (home.uv(), "venv", "--allow-existing", "--python", python, home.prefix)
        home.run(*venv, minutes=10)
    later = "uv|horovod" if home.gpu == "1" else "uv|horovod|nvidia-.*"
    listed = home.listed(rf"(?!(?:{later})==)[\w-]+")
    home.uv_pip(*into, listed, "--require-hashes", minutes=240)


def find_python(home):
    """What to build on, in words that uv knows: the Python named in PYTHON, else the
    one built on before, else the newest; else one that uv may fetch."""
    named, known = os.environ.get("PYTHON"), os.path.realpath(str(home.python))
    find = (home.uv(), "python", "find", "--system", "--show-version")
    for candidate in [named] if named else [known, *PYTHONS]:
        if (prerequisites.quietly(*find, candidate) or "").startswith(PYTHONS):
            return candidate
    if named or not prerequisites.agreed(
        "\nA Python for the course is missing. The program uv can fetch one into your\n"
        "home folder (30 MB; nothing else on this machine changes). Fetch it?"
    ):
        raise SetupError(prerequisites.python_problem())
    home.run(home.uv(), "python", "install", PYTHONS[0], minutes=30)
    return PYTHONS[0]


def add_horovod(home):
    """Horovod, from a wheel that fits if there is one, else built from its source."""
    found = fitting_wheel(home)
    if found:
        print(f"found: {shown(found)},", end=" ", flush=True)
    anew = ("install", "--no-deps", "--no-cache", "--reinstall")
    home.uv_pip(*anew, found or build_horovod(home), minutes=10)
    if found:
        try:
            home.run(home.python, FIRST_SUM, minutes=5)
        except SetupError as error:
            raise SetupError(
                f"{error}\n\n{shown(found)} does not work on this system. Move it\n"
                "away, and run the same command again: Horovod will be built here."
            ) from None


def wheels_folder():
    return Path(os.environ.get("COURSE_WHEELS") or WHEELS)


def fitting_wheel(home):
    """The wheel of Horovod for this environment's Python and TensorFlow, and for GPUs
    or not; None without one. The first sum shows whether it works here."""
    version = horovod_version(home).replace("+", r"\+")
    tag = home.site.parent.name.replace("python", "cp").replace(".", "")
    machine = "arm64" if sys.platform == "darwin" else platform.machine()
    name = re.compile(rf"horovod-{version}-{tag}-{tag}-\w+_{machine}\.whl")
    there = sorted(wheels_folder().glob("*.whl"))
    return next((path for path in there if name.fullmatch(path.name)), None)


def horovod_version(home):
    """Horovod's version, and behind the + what it is built against."""
    locked = dict(
        re.findall(r"^(horovod|tensorflow)==([\w.]+)", LOCK.read_text(), re.M)
    )
    nccl = ".nccl" if home.gpu == "1" else ""
    return f"{locked['horovod']}+tf{locked['tensorflow']}{nccl}"


def build_horovod(home):
    """A wheel of Horovod from its source release, patched, against the TensorFlow just
    installed. It stays beside the log, where `wheel` finds it."""
    problems = compiler_problems(home)
    if problems:
        raise SetupError(problems)
    folder = patched_source(home)
    # What stands behind the + of its version.
    local = horovod_version(home).partition("+")[2]
    (folder / "setup.cfg").write_text(f"[egg_info]\ntag_build = +{local}\n")
    built = home.state / "built"
    remove(built)
    wheel = (home.python, "-m", "pip", "wheel", "--no-input", "--no-deps", folder)
    into = ("--no-build-isolation", "--no-cache-dir", "--wheel-dir", built)
    temporary = {"TMPDIR": str(home.scratch)}  # /tmp is too small in places
    home.run(*wheel, *into, minutes=90, **temporary, **build_variables(home))
    return next(built.glob("*.whl"))


def patched_source(home):
    """The folder of Horovod's source release, with our patch, in `home.scratch`."""
    pip = (home.python, "-m", "pip", "download", "--no-input", "--no-deps")
    source = ("--no-binary=:all:", "--no-build-isolation", "--dest", home.scratch)
    listed = home.listed("horovod")
    home.run(*pip, *source, "--require-hashes", "-r", listed, minutes=30)
    (archive,) = home.scratch.glob("horovod-*.tar.gz")
    shutil.unpack_archive(str(archive), str(home.scratch))
    folder = home.scratch / archive.name[: -len(".tar.gz")]
    # In a folder that the course's repository ignores, git would do nothing, silently.
    apply = ("git", "-C", folder, "apply", "--verbose", PATCH)
    home.run(*apply, minutes=1, GIT_CEILING_DIRECTORIES=str(home.scratch))
    return folder


def container_limit(name):
    """What a file of this container's control group allows: cores or bytes. Without
    such a file, or where it says "max", any number."""
    with contextlib.suppress(OSError, ValueError):
        amount, *period = (CGROUP / name).read_text().split()
        return int(amount) / int(period[0] if period else 1)
    return float("inf")


def build_variables(home):
    """What Horovod's build is told through environment variables."""
    # Horovod compiles eight files at once unless MAKEFLAGS is set, and each takes up
    # to 2 GB of memory.
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    memory = min(memory, container_limit("memory.max"))
    cores = min(os.cpu_count() or 1, container_limit("cpu.max"))
    jobs = max(1, int(min(cores, memory / 2**31)))
    variables = {"MAKEFLAGS": f"-j{jobs}", "HOROVOD_WITHOUT_PYTORCH": "1"}
    for part in ("TENSORFLOW", "MPI", "GLOO"):
        variables[f"HOROVOD_WITH_{part}"] = "1"
    # Old code, of which today's compilers think little.
    variables["CXXFLAGS"] = f"{os.environ.get('CXXFLAGS', '')} -w"
    libraries = ["../../../..", "../../tensorflow"]
    if home.gpu == "1":
        cuda = prerequisites.cuda_home()
        variables["HOROVOD_GPU_OPERATIONS"] = "NCCL"
        variables["HOROVOD_CUDA_HOME"] = cuda
        # Horovod takes the C++ compiler for the code around kernels, too.
        compiler = prerequisites.host_compiler(cuda)
        variables["CXX"] = variables["CUDAHOSTCXX"] = compiler
        # Horovod asks the first nvcc on PATH for what it can compile.
        path = home.environment({})["PATH"]
        variables["PATH"] = f"{cuda}/bin{os.pathsep}{path}"
        if "HOROVOD_NCCL_HOME" not in os.environ:
            libraries.append("../../nvidia/nccl/lib")
            variables.update(packaged_nccl(home.site / "nvidia" / "nccl"))
    # As seen from Horovod's own library, so that a wheel works in any environment.
    origin = "@loader_path" if sys.platform == "darwin" else "$ORIGIN"
    paths = " ".join(f"-Wl,-rpath,{origin}/{folder}" for folder in libraries)
    variables["LDFLAGS"] = f"{os.environ.get('LDFLAGS', '')} {paths}"
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
    }


def install_course(home):
    """The course's own package, its Jupyter kernel, its launchers."""
    home.uv_pip("install", "--no-deps", "--editable", ROOT, minutes=10)

    kernel = (home.python, "-m", "ipykernel", "install", "--sys-prefix")
    title = ("--name", "python3", "--display-name", "Python 3 (distributed training)")
    # `!mpirun` must work wherever Jupyter was started from.
    path = ("--env", "PATH", f"{home.bin}{os.pathsep}${{PATH}}")
    home.run(*kernel, *title, *path, minutes=10)

    launcher = LAUNCHER.format(prefix=shlex.quote(str(home.prefix)))
    for name in ("mpirun", "mpiexec"):
        replace(home.bin / name, launcher, mode=0o755)
    replace(home.site / "course_quiet_import.py", QUIET_IMPORT.read_text())
    replace(home.site / "course.pth", START_UP)
    if prerequisites.compiler_problem():
        print(
            "without a C++ compiler, checks take a fifth longer;", end=" ", flush=True
        )
    else:
        compiler = (os.environ.get("CXX", "c++"), "-O2", "-shared", "-fPIC")
        library = home.prefix / "lib" / "patient.so"
        home.run(*compiler, "-o", library, PATIENT, minutes=1)
    set_up_jupyterlab(home)


def set_up_jupyterlab(home):
    """A first start that is quiet, and has lesson and exercise side by side. It comes
    with the environment: what the user's home says of JupyterLab is left alone.

    Who closes a notebook shuts its kernel down, and so ends what runs in it. And
    terminals are shells that keep PATH: those of a server that no terminal started, as
    in a container, would be login shells, which set it anew and don't find `course`.
    """
    settings = home.prefix / "share" / "jupyter" / "lab" / "settings"
    workspaces = settings.with_name("workspaces")
    configuration = home.prefix / "etc" / "jupyter"
    for folder in (settings, workspaces, configuration):
        folder.mkdir(parents=True, exist_ok=True)
    replace(settings / LAB_SETTINGS.name, LAB_SETTINGS.read_text())
    there = {"LabApp": {"workspaces_dir": str(workspaces)}}
    there |= json.loads(LAB_SERVER.read_text())
    replace(configuration / "jupyter_lab_config.json", json.dumps(there))
    if not any(workspaces.iterdir()):  # what JupyterLab keeps there is the learner's
        open_it = ("lab", "workspaces", "import", "--name", "default", LAB_WORKSPACE)
        where = {"JUPYTERLAB_WORKSPACES_DIR": str(workspaces)}
        home.run(home.python, "-m", "jupyter", *open_it, minutes=5, **where)


def check_all_reduce(home):
    """Two processes add up a number through what was just built."""
    mpirun = (home.bin / "mpirun", "-np", 2, "--oversubscribe", "--bind-to", "none")
    home.run(*mpirun, home.python, FIRST_SUM, minutes=5)
    if home.gpu == "1":
        nccl = "import horovod.tensorflow as hvd; assert hvd.nccl_built(), 'no NCCL'"
        home.run(home.python, "-c", nccl, minutes=5)


# Title, what is done for it, and the files that it depends on. A stage is done again
# when it or one before it changes.
STAGES = (
    ("750 MB of Python packages", install_packages, [LOCK]),
    ("Horovod, built from source in 2 to 10 minutes", add_horovod, [PATCH]),
    (
        "the course and its Jupyter kernel",
        install_course,
        [PYPROJECT, QUIET_IMPORT, PATIENT, LAB_SETTINGS, LAB_WORKSPACE, LAB_SERVER],
    ),
    ("a first sum over two processes", check_all_reduce, [FIRST_SUM]),
)


def set_up(home):
    """Do the stages that are not done yet, one process at a time."""
    keys, key = [], hashlib.sha256(Path(__file__).read_bytes())
    key.update(f"{home.prefix} {home.gpu}".encode())
    for _, _, files in STAGES:
        key.update(b"".join(file.read_bytes() for file in files))
        keys.append(key.hexdigest())
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
        home.log.write_text("")
        print(f"Setting up {shown(home.prefix)}; details in {shown(home.log)}")
        if home.detected:
            print("for the NVIDIA GPUs of this machine (with GPU=0: without them)")
        while done != keys:
            title, action, _ = STAGES[len(done)]
            home.write_stamp(done)
            started = time.monotonic()
            print(f"  {title} ...", end=" ", flush=True)
            remove(home.scratch)
            home.scratch.mkdir()
            action(home)
            done.append(keys[len(done)])
            minutes, seconds = divmod(round(time.monotonic() - started), 60)
            print(f"{minutes} min {seconds} s" if minutes else f"{seconds} s")
        home.write_stamp(done)
        remove(home.scratch)


def add_spark(home):
    """What lesson 24 asks for; nothing of what is there is changed."""
    print("Spark: 400 MB to fetch, unless it is there already ...", flush=True)
    with claimed(home):
        exact = ("--no-deps", "--require-hashes", "--requirements", SPARK_LOCK)
        home.scratch.mkdir(exist_ok=True)
        home.uv_pip("install", *exact, minutes=60)
        remove(home.scratch)


def keep_wheel(home):
    """Copy the wheel of what was built to where other set-ups look for one."""
    built = next((home.state / "built").glob("*.whl"), None)
    if built is None:
        raise SetupError(
            f"Horovod was not built here, but taken from {shown(wheels_folder())}. To\n"
            f"build it: move that folder away, rm -r {shown(home.prefix)}, make wheel"
        )
    WHEELS.mkdir(exist_ok=True)
    shutil.copy2(str(built), str(WHEELS))
    print(f"{shown(WHEELS / built.name)} is for {home.site.parent.name}.", flush=True)


def add_beside(home, name):
    """What lessons 19 and 30 ask for, in an environment of its own, in which the
    course's package is found. In the course's, TensorFlow would import JAX each time,
    PyTorch would bring another NCCL than the one that Horovod was built with, and
    XProf fifty packages."""
    folder, lock = ROOT / f".venv-{name}", ROOT / f"requirements-{name}.lock"
    print(f"{BESIDE[name]}, unless it is there already ...", flush=True)
    with claimed(home):
        home.scratch.mkdir(exist_ok=True)
        anew = ("venv", "--quiet", "--allow-existing", "--python", home.python, folder)
        home.run(home.uv(), *anew, minutes=10)
        exact = ("pip", "sync", "--require-hashes", lock)
        there = folder / "bin" / "python"
        temporary = {"TMPDIR": str(home.scratch)}  # /tmp is too small in places
        home.run(home.uv(), *exact, "--python", there, minutes=240, **temporary)
        site = next(folder.glob("lib/python3.*/site-packages"))
        replace(site / "course.pth", f"{ROOT}\n")
        remove(home.scratch)
    print(f"{shown(folder)} is ready.", flush=True)


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
    """Raise SetupError with everything that is missing."""
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
    if "COURSE_WHEELS" in os.environ and not wheels_folder().is_dir():
        raise SetupError(f"COURSE_WHEELS={wheels_folder()} is not a folder.")
    needed_gb = NEEDED_WITH_CUDA_GB if home.gpu == "1" else NEEDED_GB
    if home.done():
        needed_gb = NEEDED_TO_GO_ON_GB
    problems = [
        # Whether one of these fits is known as soon as there is a Python.
        None if any(wheels_folder().glob("*.whl")) else compiler_problems(home),
        prerequisites.disk_problem(home.prefix, needed_gb),
        prerequisites.uv_problem(),
        prerequisites.driver_problem() if home.detected else None,
    ]
    if any(problems):
        problems.append(WITHOUT_GPUS if home.gpu == "1" else None)
        raise SetupError("\n\n".join(filter(None, problems)))


def compiler_problems(home):
    """What is missing to build Horovod here; None when nothing is."""
    problems = [prerequisites.compiler_problem()]
    if home.gpu == "1":
        problems.append(prerequisites.cuda_problem())
    return "\n\n".join(filter(None, problems)) or None


def conda_home():
    """The active conda environment, if environment.yml made it."""
    prefix = os.environ.get("CONDA_PREFIX", "")
    if os.path.realpath(prefix) == os.path.realpath(sys.prefix):
        if platform.python_version().startswith(PYTHONS):
            return Home(prefix, conda=True)
    raise SetupError(
        "No conda environment of this course is active, or another Python runs this:\n"
        "    conda env create --file environment.yml\n"
        "    conda activate distributed-training"
    )


def explain(status, output, log, compiler):
    """Why a command failed: what is known of its first known error; else a compiler's
    first error; else the end of its output."""
    line, message = known(output)
    if message:
        cures = "\n".join("    " + cure for cure in message["cure"])
        return (
            f"The set-up failed ({status}). The reason, in {log}:\n    {line}\n"
            f"{message['meaning']} {message['cause']}\n{cures}\n"
            "Then run the same command again: it goes on from here."
        )
    wrong = FIRST_ERROR.search(output)
    if wrong and "Building wheel" in output:
        return (
            f"Horovod could not be built. The first error in {log}:\n"
            f"    {wrong.group().strip()}\n"
            f"The compiler: {compiler}\n"
            "Try another one that is installed here, such as the next older one:\n"
            "    CXX=g++-12 make setup\n"
            "or put a wheel of Horovod into the folder wheels (INSTALL.md says how).\n"
            f"Either way, please open an issue with {log}."
        )
    end = "\n".join("    " + line for line in output.strip().splitlines()[-12:])
    return f"The set-up failed ({status}). The end of {log}:\n{end}"


def known(output):
    """The first line that an error of the course's table explains, and that entry,
    with what the line says in the place of words such as PACKAGE: the same that
    `Message.told_of` does in utils/running/explain.py."""
    # `re` itself remembers far fewer patterns than these.
    table = [
        (re.compile(message["pattern"]), message)
        for message in messages()
        if not message.get("consequence") and not message.get("warning")
    ]
    for line in dict.fromkeys(output.splitlines()):
        for pattern, message in table:
            match = pattern.search(line)
            if match:
                return line.strip(), filled(message, match)
    return None, None


def filled(message, match):
    """An entry, with the groups of a match in the place of their names in capitals."""
    known = {
        name.rstrip(string.digits): value
        for name, value in match.groupdict().items()
        if name.isupper() and value and re.fullmatch(r"[\w.:/@+-]+", value)
    }
    if not known:
        return message
    words = re.compile(r"\b(?:{})\b".format("|".join(known)))

    def fill(text):
        return words.sub(lambda word: known[word.group()], text)

    told = {key: fill(message[key]) for key in ("meaning", "cause")}
    return dict(message, cure=[fill(line) for line in message["cure"]], **told)


def messages():
    """The course's table of messages, as dictionaries, in the order in which it is
    searched: what happens here, and then what happens later."""
    entries = []
    for name in ("setup", "launch", "horovod", "keras", "tensorflow"):
        text = (MESSAGES / f"{name}.toml").read_text(encoding="utf-8")
        for line in text.splitlines():
            if line == "[[message]]":
                entries.append({})
            elif " = " in line and not line.startswith("#"):
                key, _, value = line.partition(" = ")
                # What isn't between single quotes is the same in TOML and in JSON.
                literal = value.startswith("'")
                entries[-1][key] = value[1:-1] if literal else json.loads(value)
    return entries


@contextlib.contextmanager
def no_interrupts():
    """What would stop this process waits until the end of the block."""
    signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTS)
    try:
        yield
    finally:
        allow_interrupts()


def allow_interrupts():
    signal.pthread_sigmask(signal.SIG_UNBLOCK, INTERRUPTS)


def end_group(child):
    """End `child` and its process group; who doesn't end by itself is killed."""
    with no_interrupts():
        for number, seconds in ((signal.SIGTERM, 5), (signal.SIGKILL, None)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(seconds)


def remove(path):
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(str(path))
    elif path.exists() or path.is_symlink():
        path.unlink()


def replace(path, text, mode=0o644):
    """Write `text` to `path` all at once."""
    beside = path.with_name(path.name + ".new")
    beside.write_text(text)
    beside.chmod(mode)
    os.replace(str(beside), str(path))


def shown(path):
    return os.path.relpath(str(path))


def main():
    problem = prerequisites.platform_problem(
        sys.platform, platform.machine(), platform.libc_ver()[0]
    )
    if problem:
        raise SetupError(problem)
    wishes = sys.argv[1:]
    in_conda = wishes[:1] == ["conda"]
    added = wishes[1:] if in_conda else wishes
    if added not in ([], ["spark"], ["wheel"], *([name] for name in BESIDE)):
        raise SetupError(__doc__)
    home = conda_home() if in_conda else Home(ROOT / ".venv")
    set_up(home)
    for name in added:
        if name == "spark":
            add_spark(home)
        elif name == "wheel":
            keep_wheel(home)
        else:
            add_beside(home, name)
    print(f"{shown(home.prefix)} is ready.", flush=True)


def start(program):
    """Call `program()`; what stops it becomes a message and an exit status."""
    for number in INTERRUPTS:
        if signal.getsignal(number) != signal.SIG_IGN:
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
