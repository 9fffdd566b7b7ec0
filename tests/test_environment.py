"""The environment: what `make` sets up, what it repairs, and what it tells people.

The set-up is run for real, in copies of the course that hold nothing else; where it
would fetch and build for minutes, stand-ins for uv and Python note what they are asked.
"""

import dataclasses
import importlib
import importlib.metadata
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from processes import captured, wait_for

from utils.running import explain

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.prefix) / "bin"
BESIDE = ("jax", "torch", "xprof")
LOCKS = tuple(
    f"requirements{extra}" for extra in ("", "-spark", *(f"-{name}" for name in BESIDE))
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
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "utils" / "setup")
        names = ("install", "prerequisites")
        yield SimpleNamespace(**{n: importlib.import_module(n) for n in names})
    for name in names:
        del sys.modules[name]


@pytest.fixture
def course(tmp_path):
    """A copy of the course that holds what the set-up reads, and no more."""
    folder = tmp_path / "course"
    for part in ("utils/setup", "utils/running/messages"):
        shutil.copytree(ROOT / part, folder / part)
    for name in ("Makefile", "pyproject.toml", *(f"{lock}.lock" for lock in LOCKS)):
        shutil.copy(ROOT / name, folder)
    return folder


def command(course, *arguments, python=None, **variables):
    """How to run the set-up in an otherwise empty environment, without a network."""
    return {
        "args": [
            python or os.path.realpath(sys._base_executable),
            *("utils/setup/install.py", *arguments),
        ],
        "env": {
            "PATH": f"{course / 'bin'}:{os.environ['PATH']}",
            "HOME": str(course.parent),
            "https_proxy": "http://127.0.0.1:9",
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_RETRIES": "1",
            **variables,
        },
        "cwd": course,
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT,
        "text": True,
    }


def assert_names_the_commands(message):
    for system in ("Debian, Ubuntu", "Fedora", "macOS"):
        assert re.search(rf"{system}.*: +[\w-]+ \S", message), f"nothing for {system}"


# The finished environment


@pytest.mark.slow
@pytest.mark.parametrize("launch", LAUNCHES)
@pytest.mark.parametrize("user", ["me", "nobody"])
def test_each_launch_adds_up_over_its_processes(launch, user, setup, tmp_path):
    shutil.copy(setup.install.FIRST_SUM, tmp_path / "program.py")
    owner = [sys.executable, "-m", "distcheck.supervise", "--time-limit", "240", "--"]
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
def test_mpirun_starts_workers_without_ssh(tmp_path):
    """As in many containers, where Open MPI on its own would refuse to start any."""
    for name in ("sh", "env", "echo"):
        (tmp_path / name).symlink_to(shutil.which(name))
    run = [BIN / "mpirun", "-np", "2", "--oversubscribe", "sh", "-c", "echo here"]
    variables = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    options = {"capture_output": True, "text": True, "timeout": 60}
    answer = subprocess.run(run, env=variables, **options)
    assert answer.stdout.split() == ["here", "here"], answer.stderr
    # And so it is: the launcher itself still refuses.
    run[0] = BIN / "orterun"
    variables |= {"OPAL_PREFIX": sys.prefix, "OMPI_ALLOW_RUN_AS_ROOT": "1"}
    variables["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
    answer = subprocess.run(run, env=variables, **options)
    assert "plm_rsh_agent" in answer.stderr


@pytest.mark.slow
def test_a_notebook_finds_mpirun_wherever_jupyter_was_started():
    answer = captured(
        [BIN / "jupyter", "run", "--kernel", "python3"],
        input="import shutil, sys; print(shutil.which('mpirun'), sys.prefix)",
        env={"PATH": "/usr/bin:/bin", "HOME": os.environ["HOME"]},
    )
    assert answer.stdout.split() == [str(BIN / "mpirun"), sys.prefix], answer.stderr
    kernel = Path(sys.prefix, "share", "jupyter", "kernels", "python3", "kernel.json")
    assert "distributed training" in kernel.read_text()


@pytest.mark.parametrize(("setting", "expected"), [(None, "1"), ("0", "0")])
def test_every_python_has_fast_convolutions_unless_told_otherwise(setting, expected):
    environment = {k: v for k, v in os.environ.items() if k != "TF_ENABLE_ONEDNN_OPTS"}
    if setting:
        environment["TF_ENABLE_ONEDNN_OPTS"] = setting
    code = "import os; print(os.environ['TF_ENABLE_ONEDNN_OPTS'])"
    answer = subprocess.check_output([sys.executable, "-c", code], env=environment)
    assert answer.decode().strip() == expected


# The lock


def locked(lock):
    """A lock's requirements, each for some or all platforms."""
    text = (ROOT / f"{lock}.lock").read_text()
    assert "://" not in text
    assert "index" not in text
    entries = re.findall(
        r"^(\S.*) \\\n((?: +--hash=sha256:[0-9a-f]{64}.*\n)+)", text, re.M
    )
    assert sum(1 + hashes.count("\n") for _, hashes in entries) == text.count("\n")
    return [Requirement(requirement) for requirement, _ in entries]


@pytest.mark.parametrize("lock", LOCKS)
def test_lock_pins_what_is_required_with_hashes_and_without_addresses(lock):
    lines = (ROOT / f"{lock}.txt").read_text().splitlines()
    for wanted in [Requirement(line) for line in lines if line[0] != "#"]:
        name = canonicalize_name(wanted.name)
        versions = [str(pin.specifier)[2:] for pin in locked(lock) if pin.name == name]
        assert versions
        assert all(map(wanted.specifier.contains, versions)), "type `make lock`"


def test_what_is_installed_is_what_is_locked():
    cuda = "nvidia-nccl-cu12" in {d.name for d in importlib.metadata.distributions()}
    for pin in locked("requirements"):
        elsewhere = pin.name == "uv" or (pin.name.startswith("nvidia-") and not cuda)
        if not elsewhere and (pin.marker is None or pin.marker.evaluate()):
            assert pin.specifier.contains(importlib.metadata.version(pin.name)), pin


def test_spark_changes_nothing_of_the_course():
    added = {pin.name for pin in locked("requirements-spark")}
    assert added == {"pyspark", "py4j", "pyarrow"}
    assert not added & {pin.name for pin in locked("requirements")}


def test_conda_brings_a_python_of_the_course_s(setup):
    first, *_ = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    assert first.partition("=")[2] in setup.prerequisites.PYTHONS


def test_conda_names_the_course_s_packages_as_they_are_locked(tmp_path, monkeypatch):
    import conda

    written = (ROOT / "environment.yml").read_text()
    *_, packages = yaml.safe_load(written)["dependencies"]
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    required = [Requirement(line) for line in lines if line[0] != "#"]
    # pip would build Horovod unpatched; conda itself brings the other two.
    wanted = {canonicalize_name(r.name) for r in required} - {"horovod", "pip", "uv"}
    pins = {str(pin) for pin in locked("requirements") if pin.name in wanted}
    assert sorted(str(Requirement(line)) for line in packages["pip"]) == sorted(pins)
    assert {Requirement(pin).name for pin in pins} == wanted

    # What `make lock` calls writes exactly that, whatever stood there before.
    stale = re.sub(r"(?m)^    - .*==.*\n", "    - numpy==1.0\n", written, count=3)
    assert stale != written
    monkeypatch.setattr(conda, "FILE", tmp_path / "environment.yml")
    conda.FILE.write_text(stale)
    conda.main()
    assert conda.FILE.read_text() == written, "type `make lock`"


# The work itself, with stand-ins for uv and Python: its order, what is asked for

FAKE_UV = """\
#!/bin/sh
for last; do :; done
case "$*" in
"python find"*) sed -n "s|^$last ||p" pythons ;;
"python install"*) echo "fetch $last" >> journal; echo "$last $last.0" >> pythons ;;
venv*)
    echo "venv $4" >> journal
    mkdir -p $last/bin $last/lib/python3.12/site-packages
    cp fake_python $last/bin/python; cp fake_python $last/bin/orterun ;;
*horovod-0.28.1*) echo horovod >> journal ;;
*--editable*) echo course >> journal ;;
*) echo "$2" >> journal; echo "$*" > packages; cat $TMPDIR/*.txt >> packages || true ;;
esac
"""
FAKE_PYTHON = """\
#!/bin/sh
case "$*" in
*"pip download"*)
    folder=$(expr "$*" : '.*--dest \\([^ ]*\\)')
    tar -czf $folder/horovod-0.28.1.tar.gz horovod-0.28.1 ;;
*"pip wheel"*)
    echo build >> journal; echo "$*" > build; env >> build
    cat $TMPDIR/horovod-0.28.1/horovod/tensorflow/*/*.py > built
    [ ! -e script ] || . ./script; echo built >> journal
    folder=$(expr "$*" : '.*--wheel-dir \\([^ ]*\\)'); mkdir $folder
    local=$(sed -n 's/tag_build = //p' $TMPDIR/horovod-0.28.1/setup.cfg)
    touch $folder/horovod-0.28.1$local-cp312-cp312-linux_$(uname -m).whl ;;
*first_sum*) echo sum >> journal; [ ! -e wrong_sum ] ;;
esac
"""
ALL = ["venv 3.12", "sync", "build", "built", "horovod", "course", "sum"]


def heed_signals():
    """Undo what a caller in the background hands down: ignored signals."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@pytest.fixture
def work(course):
    """The set-up of `course` with the stand-ins; `script` is what its build runs."""
    (course / "pythons").write_text("3.12 3.12.9\n3.11 3.11.9\n/old/python 3.9.2\n")
    (course / "fake_python").write_text(FAKE_PYTHON)
    (course / "bin").mkdir()
    (course / "bin" / "uv").write_text(FAKE_UV)
    (course / "fake_python").chmod(0o755)
    (course / "bin" / "uv").chmod(0o755)
    # The lines that the patch finds, and no others.
    patch = (course / "utils" / "setup" / "horovod.patch").read_text()
    for part in patch.split("--- a/")[1:]:
        name, *lines = part.splitlines()
        file = course / "horovod-0.28.1" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        found = (line[1:] for line in lines[2:] if line[:1] in (" ", "-"))
        file.write_text("".join(f"{line}\n" for line in found))
    started = []

    def start(*arguments, **variables):
        options = command(course, *arguments, **variables)
        process = subprocess.Popen(**options, preexec_fn=heed_signals)
        started.append(process)
        return process

    def finish(*arguments, status=0, **variables):
        output, _ = start(*arguments, **variables).communicate(timeout=60)
        assert started[-1].returncode == status, output
        return output

    def journal():
        """What was done since the last time."""
        path = course / "journal"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return lines

    yield SimpleNamespace(
        folder=course,
        prefix=course / ".venv",
        script=course / "script",
        start=start,
        finish=finish,
        journal=journal,
    )
    for process in started:
        process.kill()
        process.communicate()


def test_a_first_call_does_all_and_a_second_one_nothing(work):
    assert "processes ... 0 s" in work.finish(MAKEFLAGS="-j99", PYTHONPATH="/astray")
    assert work.journal() == ALL
    log = work.prefix / ".setup" / "log"
    log.write_text("the log of the first call")
    assert work.finish() == ".venv is ready.\n"
    assert work.journal() == []
    assert log.read_text() == "the log of the first call"

    command, *packages = (work.folder / "packages").read_text().splitlines()
    assert "--require-hashes" in command
    pins = {line.split("==")[0] for line in packages if "==" in line}
    everything = {pin.name for pin in locked("requirements")}
    left_out = {name for name in everything if name.startswith("nvidia-")}
    assert everything - pins == left_out | {"uv", "horovod"}

    build = (work.folder / "build").read_text()
    assert "--no-cache-dir" in build
    assert "HOROVOD_WITH_MPI=1" in build
    assert "HOROVOD_WITH_GLOO=1" in build
    assert "HOROVOD_WITH_TENSORFLOW=1" in build
    assert not re.search("HOROVOD_GPU|/astray|-j99", build)
    patched = (work.folder / "built").read_text()
    assert patched.count("K = keras.backend") == 2
    assert "from keras import" not in patched


def test_gpus_are_remembered_until_they_are_unwanted(work):
    toolkit = work.folder / "cuda"
    (toolkit / "bin").mkdir(parents=True)
    nvcc = toolkit / "bin" / "nvcc"
    nvcc.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 13.0'\n")
    nvcc.chmod(0o755)
    cuda = {"HOROVOD_CUDA_HOME": str(toolkit)}
    assert "CUDA toolkit 12" in work.finish(GPU="1", status=1, **cuda)
    nvcc.write_text(nvcc.read_text().replace("13.0", "12.9"))
    nccl = (
        work.prefix / "lib" / "python3.12" / "site-packages" / "nvidia" / "nccl" / "lib"
    )
    uv = work.folder / "bin" / "uv"
    uv.write_text(uv.read_text().replace('echo "$2"', f'mkdir -p {nccl}; echo "$2"'))
    work.finish(GPU="1", **cuda)
    assert "nvidia-nccl-cu12==" in (work.folder / "packages").read_text()
    build = (work.folder / "build").read_text()
    assert "HOROVOD_GPU_OPERATIONS=NCCL" in build
    assert f"HOROVOD_NCCL_LIB={nccl}" in build
    assert "-Wl,-rpath,$ORIGIN/../../nvidia/nccl/lib" in build
    for name in ("CXX", "CUDAHOSTCXX"):
        assert f"{name}={shutil.which('c++')}\n" in build
    assert f"PATH={toolkit}/bin:" in build
    assert os.readlink(nccl / "libnccl.so") == "libnccl.so.2"
    work.journal()
    work.finish(**cuda)
    assert work.journal() == []
    work.finish(GPU="0")
    assert work.journal()[1:] == ALL[1:]
    assert "nvidia-" not in (work.folder / "packages").read_text()
    work.finish(GPU="1", HOROVOD_NCCL_HOME="/opt/nccl", **cuda)
    assert "HOROVOD_NCCL_LIB" not in (work.folder / "build").read_text()


@pytest.mark.parametrize(
    ("cores", "gigabytes", "limits", "jobs"),
    [
        (8, 1, {}, 1),
        (8, 6, {}, 3),
        (2, 64, {}, 2),
        (64, 256, {"cpu.max": "200000 100000"}, 2),
        (64, 256, {"memory.max": str(8 * 2**30)}, 4),
        (4, 64, {"cpu.max": "max 100000", "memory.max": "max"}, 4),
        (4, 64, {"cpu.max": "50000 100000"}, 1),
    ],
)
def test_horovod_is_built_within_what_there_is(
    setup, monkeypatch, tmp_path, cores, gigabytes, limits, jobs
):
    for name, text in limits.items():
        (tmp_path / name).write_text(f"{text}\n")
    monkeypatch.setattr(setup.install, "CGROUP", tmp_path)
    pages = {"SC_PHYS_PAGES": gigabytes * 2**18, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(os, "sysconf", pages.get)
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    variables = setup.install.build_variables(SimpleNamespace(gpu="0"))
    assert variables["MAKEFLAGS"] == f"-j{jobs}"


def test_a_patch_that_no_longer_fits_is_an_error(work):
    callbacks = work.folder / "horovod-0.28.1/horovod/tensorflow/keras/callbacks.py"
    callbacks.write_text(callbacks.read_text().replace("from keras import", "import"))
    message = work.finish(status=1)
    assert "keras/callbacks.py: patch does not apply" in message
    assert "build" not in work.journal()


def test_a_conda_environment_is_completed_and_keeps_what_it_has(work):
    prefix = work.folder / "conda"
    make = [sys.executable, "-m", "venv", "--without-pip", prefix]
    subprocess.run(make, check=True, timeout=60)
    for name in ("python", "orterun"):
        (prefix / "bin" / name).unlink(missing_ok=True)
        shutil.copy(work.folder / "fake_python", prefix / "bin" / name)
    active = {"python": prefix / "bin" / "python3", "CONDA_PREFIX": str(prefix)}
    (prefix / "bin" / "python3").unlink()
    (prefix / "bin" / "python3").symlink_to(os.path.realpath(sys._base_executable))
    work.finish("conda", **active)
    assert work.journal() == ["install", *ALL[2:]]
    assert (prefix / "bin" / "mpirun").exists()
    work.finish("conda", "spark", **active)
    assert work.journal() == ["install"]
    assert "requirements-spark.lock" in (work.folder / "packages").read_text()


@pytest.mark.parametrize("name", BESIDE)
def test_what_comes_beside_the_course_is_in_an_environment_of_its_own(work, name):
    work.finish()
    work.journal()
    before = sorted(work.prefix.rglob("*"))
    assert f".venv-{name} is ready." in work.finish(name)
    assert sorted(work.prefix.rglob("*")) == before
    asked, _ = (work.folder / "packages").read_text().split("\n", 1)
    folder = work.folder / f".venv-{name}"
    assert f"requirements-{name}.lock --python {folder}/bin/python" in asked
    (found,) = folder.rglob("course.pth")
    assert found.read_text() == f"{work.folder}\n"


@pytest.mark.parametrize("minor", range(10, 14))
def test_what_comes_beside_the_course_has_the_versions_of_the_course(minor):
    python = {"python_version": f"3.{minor}", "python_full_version": f"3.{minor}.1"}

    def versions(lock):
        return {
            pin.name: str(pin.specifier)
            for pin in locked(lock)
            if not pin.marker or pin.marker.evaluate(python)
        }

    ours = versions("requirements")
    for name in BESIDE:
        theirs = versions(f"requirements-{name}")
        assert "tensorflow" not in theirs
        assert theirs == theirs | {pin: ours[pin] for pin in theirs if pin in ours}


def test_a_change_repeats_what_depends_on_it(work):
    work.finish()
    work.journal()
    (work.folder / "pyproject.toml").write_text("# another")
    work.finish()
    assert work.journal() == ["course", "sum"]
    leftover = work.prefix / "bin" / "leftover"
    leftover.touch()
    with (work.folder / "requirements.lock").open("a") as lock:
        lock.write("# another\n")
    work.finish()
    assert work.journal()[1:] == ALL[1:]
    assert not leftover.exists()


def test_without_its_python_or_moved_all_is_made_anew(work):
    work.finish()
    work.journal()
    (work.prefix / "bin" / "python").unlink()
    work.finish()
    assert work.journal() == ALL
    moved = work.folder / "elsewhere"
    shutil.copytree(work.folder, moved)
    subprocess.run(**command(moved), check=True, timeout=60)
    assert (moved / "journal").read_text().splitlines()[1:] == ALL[1:]


def test_a_failed_stage_is_repeated_and_no_other(work):
    work.script.write_text("seq 3000; echo no luck; exit 3")
    message = work.finish(status=1)
    assert "no luck" in message
    assert "(3)" in message
    assert "\n    88\n" not in message
    assert work.journal() == ALL[:3]
    work.script.unlink()
    work.finish()
    assert work.journal() == ALL[2:]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_set_up_ends_all_and_goes_on_later(work, number):
    child = work.folder / "child"
    work.script.write_text(f"sleep 1000 & echo $! > {child}; wait")
    process = work.start()
    wait_for(lambda: child.exists() and child.read_text(), what="the build to start")
    process.send_signal(number)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Stopped. The same command goes on" in output
    assert "Traceback" not in output
    assert_gone(int(child.read_text()))
    work.script.unlink()
    assert work.journal() == ALL[:3]
    work.finish()
    assert work.journal() == ALL[2:]


def assert_gone(process_id):
    """The process has ended, whether or not its parent has taken notice."""

    def gone():
        try:
            return psutil.Process(process_id).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    wait_for(gone, what=f"process {process_id} to end")


def test_an_interrupt_while_a_command_is_started_leaves_nothing(
    setup, tmp_path, monkeypatch
):
    home = setup.install.Home(tmp_path / "home")
    home.state.mkdir(parents=True)
    home.log.write_text("")
    started, start = [], subprocess.Popen

    def interrupted(*command, **options):
        child = start(*command, **options)
        started.append(child.pid)
        # To this thread, as set-ups have no other; pytest's workers may.
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        return child

    with setup.install.claimed(home):
        monkeypatch.setattr(subprocess, "Popen", interrupted)
        with pytest.raises(KeyboardInterrupt):
            home.run("sleep", 1000, minutes=1)
    assert_gone(*started)


def test_a_command_that_takes_too_long_is_ended(setup, tmp_path):
    home = setup.install.Home(tmp_path / "home")
    home.state.mkdir(parents=True)
    home.log.write_text("")
    started = tmp_path / "started"
    nap = f"sleep 1000 & echo $! > {started}; wait"
    with setup.install.claimed(home):
        with pytest.raises(setup.install.SetupError, match="no end after"):
            home.run("sh", "-c", nap, minutes=0.02)
    assert_gone(int(started.read_text()))


@pytest.mark.parametrize("killed", [True, False])
def test_two_at_once_do_the_work_once_also_after_a_kill(work, killed):
    begun, until_go = work.folder / "begun", "until [ -e go ]; do sleep 0.1; done"
    work.script.write_text(f"touch begun; {until_go}")
    first = work.start()
    wait_for(begun.exists, what="the build to start")
    if killed:  # what it has started is still at work
        first.kill()
        first.wait()
    second = work.start()
    assert "waiting for its end" in second.stdout.readline()
    (work.folder / "go").touch()
    for process in (first, second):
        process.communicate(timeout=60)
    assert second.returncode == 0
    again = ["build", "built"] if killed else []
    assert work.journal() == [*ALL[:4], *again, *ALL[4:]]


def test_a_wheel_saves_the_compiler_where_it_fits(work):
    assert "wheels/horovod-0.28.1+tf2.21.0-cp312" in work.finish("wheel")
    (wheel,) = (work.folder / "wheels").iterdir()
    work.journal()
    from_wheel = [*ALL[:2], "horovod", "sum", *ALL[5:]]

    shutil.rmtree(work.prefix)
    told = work.finish(CXX="false")
    assert f"found: wheels/{wheel.name}," in told
    assert "without a C++ compiler, checks take a fifth longer" in told
    assert work.journal() == from_wheel
    assert "Horovod was not built here" in work.finish("wheel", status=1)

    shutil.rmtree(work.prefix)
    shared = wheel.parent.rename(work.folder / "elsewhere")
    work.finish(COURSE_WHEELS=str(shared))
    assert work.journal() == from_wheel

    for other in ("tf2.20.0-cp312-cp312", "tf2.21.0-cp311-cp311"):
        shutil.rmtree(work.prefix)
        (name,) = shared.iterdir()
        name.rename(name.with_name(f"horovod-0.28.1+{other}-linux_x86_64.whl"))
        work.finish(COURSE_WHEELS=str(shared))
        assert work.journal() == ALL
        shutil.rmtree(work.prefix)
        told = work.finish(COURSE_WHEELS=str(shared), CXX="false", status=1)
        assert "working C++ compiler" in told
        assert "build" not in work.journal()


def test_a_wheel_that_does_not_work_here_is_named(work):
    work.finish("wheel")
    work.journal()
    shutil.rmtree(work.prefix)
    (work.folder / "wrong_sum").touch()
    told = work.finish(status=1)
    assert re.search(r"wheels/horovod-\S+\.whl does not work on this system", told)
    assert work.journal() == [*ALL[:2], "horovod", "sum"]


def nvidia(work, driver):
    """A machine with a GPU, as far as nvidia-smi says."""
    program = work.folder / "bin" / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho {driver}; echo {driver}\n")
    program.chmod(0o755)


def test_a_gpu_is_set_up_for_or_what_is_missing_is_named(work):
    nvidia(work, "470.57.02")
    path = f"{work.folder}/bin:/usr/bin:/bin"
    told = work.finish(status=1, HOROVOD_CUDA_HOME="/nowhere", PATH=path)
    assert "470.57.2, is too old for CUDA 12" in told
    assert re.search(r"\n    (sudo )?(apt|dnf) install|micromamba create", told)
    assert "GPU=0 make lab" in told
    assert work.journal() == []

    nvidia(work, "550.54.14")
    toolkit = work.folder / "cuda" / "bin"
    toolkit.mkdir(parents=True)
    nvcc = toolkit / "nvcc"
    nvcc.write_text("#!/bin/sh\necho release 12.4; [ $1 = --version ]\n")
    nvcc.chmod(0o755)
    cuda = {"HOROVOD_CUDA_HOME": str(toolkit.parent), "PATH": path}
    told = work.finish(status=1, **cuda)
    assert "takes none of the C++ compilers here" in told
    assert "GPU=0 make lab" in told
    assert work.journal() == []

    nvcc.write_text("#!/bin/sh\necho release 12.4\n")
    nccl = work.prefix / "lib/python3.12/site-packages/nvidia/nccl/lib"
    uv = work.folder / "bin" / "uv"
    uv.write_text(uv.read_text().replace('echo "$2"', f'mkdir -p {nccl}; echo "$2"'))
    assert "for the NVIDIA GPUs of this machine" in work.finish(**cuda)
    assert "HOROVOD_GPU_OPERATIONS=NCCL" in (work.folder / "build").read_text()
    assert work.journal() == ALL
    assert work.finish(**cuda) == ".venv is ready.\n"

    shutil.rmtree(work.prefix)
    work.finish(GPU="0", **cuda)
    assert "HOROVOD_GPU" not in (work.folder / "build").read_text()
    assert work.finish(**cuda) == ".venv is ready.\n"


@pytest.mark.parametrize("administrator", [True, False])
@pytest.mark.parametrize("manager", ["apt", "dnf"])
def test_cuda_s_compiler_is_got_by_one_command(
    setup, monkeypatch, administrator, manager
):
    told = (setup.prerequisites.TOOLKITS, {"dnf", "sudo"} if administrator else {"dnf"})
    toolkits, there = told
    if manager == "apt":
        there -= {"dnf"}
    monkeypatch.setattr(shutil, "which", lambda name: name if name in there else None)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    said = setup.prerequisites.get_for_cuda(*toolkits)
    if administrator:
        assert f"\n    sudo {manager} install " in said
    else:
        assert "\n    micromamba create --prefix ~/cuda" in said
        assert "cuda-nvcc=12" in said
    assert len(re.findall(r"^    ", said, re.M)) == 1


def test_the_newest_python_is_taken_unless_one_is_named(work):
    assert work.finish(PYTHON="3.11")
    assert work.journal()[0] == "venv 3.11"
    shutil.rmtree(work.prefix)
    (work.folder / "pythons").write_text("")
    message = work.finish(status=1)
    assert "Missing: a Python from 3.10 to 3.13" in message
    assert "COURSE_YES=1" in message
    assert_names_the_commands(message)
    assert "no package for" not in message
    work.finish(COURSE_YES="1")
    assert work.journal()[:2] == ["fetch 3.13", "venv 3.13"]


def test_a_python_that_is_too_new_is_named_with_the_way_on(setup, monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 14, 1))
    told = setup.prerequisites.python_problem()
    assert "TensorFlow 2.21 has no package for Python 3.14 yet." in told
    assert "sudo apt install python3.13 python3.13-venv" in told
    assert "make setup COURSE_YES=1" in told
    assert_names_the_commands(told)


# What people are told


@pytest.mark.parametrize(
    ("arguments", "variables", "told"),
    [
        ([], {"CXX": "false"}, "working C++ compiler"),
        ([], {"PATH": ""}, "working C++ compiler, make or git"),
        ([], {"GPU": "1", "HOROVOD_CUDA_HOME": "/nowhere"}, "CUDA toolkit 12"),
        ([], {"GPU": "yes"}, "GPU=yes is neither"),
        ([], {"PYTHON": "/old/python"}, "PYTHON=/old/python is not a Python from 3.10"),
        (["conda"], {}, "conda activate"),
        (["conda"], {"CONDA_PREFIX": "/somewhere/else"}, "conda activate"),
        ([], {"COURSE_WHEELS": "/nowhere"}, "COURSE_WHEELS=/nowhere is not a folder"),
        (["--fast"], {}, "install.py [spark|jax|torch|xprof|wheel]"),
        (["spark", "jax"], {}, "install.py [spark|jax|torch|xprof|wheel]"),
    ],
)
def test_what_cannot_work_is_refused(work, arguments, variables, told):
    message = work.finish(*arguments, status=1, **variables)
    assert told in message
    assert "Traceback" not in message
    if "Debian, Ubuntu:" in message:
        assert_names_the_commands(message)
    assert work.journal() == []


def test_what_others_made_is_left_alone(work):
    (work.prefix / "theirs").mkdir(parents=True)
    assert "rm -r .venv" in work.finish(status=1)
    assert [path.name for path in work.prefix.iterdir()] == ["theirs"]
    spaced = work.folder.rename(work.folder.with_name("my course"))
    answer = subprocess.run(**command(spaced), timeout=60)
    assert f"space or a colon in its path:\n    {spaced}" in answer.stdout


def test_the_oldest_python_here_starts_it(work):
    for python in sorted(Path.home().glob(".pyenv/versions/3.[6-9].*/bin/python")):
        assert "C++" in work.finish(status=1, python=python, CXX="false")


def test_without_uv_and_what_could_fetch_it(setup, monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert setup.prerequisites.uv_problem() is None
    with monkeypatch.context() as patch:
        patch.setattr(sys, "version_info", (3, 6, 15))
        assert_names_the_commands(setup.prerequisites.uv_problem())
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "ensurepip" in setup.prerequisites.uv_problem()


@pytest.mark.slow
def test_without_a_network(course):
    """All that is there is the name of a proxy."""
    folders = os.environ["PATH"].split(os.pathsep)
    path = os.pathsep.join(f for f in folders if not shutil.which("uv", path=f))
    for _ in range(2):
        answer = subprocess.run(**command(course, PATH=path), timeout=300)
        assert "The reason, in .venv/.setup/log" in answer.stdout
        assert "proxy that https_proxy names doesn't answer" in answer.stdout
        assert "unset https_proxy" in answer.stdout


def test_without_disk_space(setup, course, tmp_path):
    nowhere = tmp_path / "not" / "yet"
    assert setup.prerequisites.disk_problem(nowhere, needed_gb=0) is None
    small = ["unshare", "--map-root-user", "--mount", "sh", "-ec"]
    if subprocess.run([*small[:-1], "-c", "true"], capture_output=True).returncode:
        pytest.skip("no mount namespaces here to make a small disk in")
    (tmp_path / "disk").mkdir()
    commands = (
        f"mount -t tmpfs -o size=20m tmpfs {tmp_path}/disk; "
        f"cp -r {course} {tmp_path}/disk; cd {tmp_path}/disk/course; "
        f"{sys.executable} utils/setup/install.py"
    )
    result = captured([*small, commands])
    assert result.returncode == 1
    assert "Disk space is missing: 5 GB needed, 0.0 GB free" in result.stderr
    assert_names_the_commands(result.stderr)


def test_what_is_known_of_a_failure_is_told_instead_of_its_end(setup):
    for output, remedy in (
        ("OSError: [Errno 28] No space left on device", "The disk is full"),
        ("  cause: dns error", "index, or another server, can't be reached"),
        ("invalid peer certificate: UnknownIssuer", "UV_SYSTEM_CERTS=1"),
        ("host_config.h(143): error: unsupported GNU version!", "CUDAHOSTCXX=g++-13"),
        (
            "WARNING: Retrying (Retry(total=4",
            "index, or another server, can't be reached",
        ),
    ):
        log = f"Building wheel\n{output}\nerror: subprocess-exited\n" + "more\n" * 50
        message = setup.install.explain(1, log, "the log", "g++ 12")
        assert output.strip() in message
        assert remedy in message
        assert "more" not in message


def test_the_set_up_reads_the_same_table_of_messages_as_the_course(setup):
    def plain(message):
        entry = dataclasses.asdict(message)
        entry["not"] = entry.pop("unlike")
        return {key: value for key, value in entry.items() if value}

    def entry(read):
        lists = {k: tuple(v) for k, v in read.items() if isinstance(v, list)}
        return {key: value for key, value in {**read, **lists}.items() if value}

    table = [message for message in explain.messages() if not message.general]
    ours = {message.id: plain(message) for message in table}
    assert {read["id"]: entry(read) for read in setup.install.messages()} == ours


def test_the_set_up_names_what_a_line_names_as_the_course_does(setup):
    named = [m for m in explain.messages() if any(map(str.isupper, m.regex.groupindex))]
    read = {message["id"]: message for message in setup.install.messages()}
    changed = 0
    for message in (m for m in named if m.id in read and "\n" not in m.line):
        told = message.told_of(message.line)
        match = re.search(message.pattern, message.line)
        ours = setup.install.filled(read[message.id], match)
        assert ours["meaning"] == told.meaning
        assert ours["cause"] == told.cause
        assert tuple(ours["cure"]) == told.cure
        changed += ours != read[message.id]
    assert changed > 100


COMPILERS = {
    "g++": "horovod/common/common.h:343:18: error: 'logic_error' is no member of 'std'",
    "clang": "/x/horovod/common/common.h:9:2: fatal error: 'y.h' file not found",
    "nvcc": '/x/horovod/common/ops/cuda_kernels.cu(9): error: "y" is undefined',
    "cmake": "CMake Error at CMakeLists.txt:160 (enable_language):\n  No CUDA toolset",
}


@pytest.mark.parametrize("error", COMPILERS.values(), ids=COMPILERS)
def test_when_horovod_can_t_be_built_the_compiler_s_own_words_are_shown(setup, error):
    later = "next.h:1:1: error: a later one\n" + "a line of CMake\n" * 50
    output = f"Building wheels for collected packages: horovod\nnote: fine\n  {error}\n"
    compiler = setup.prerequisites.compiler()
    told = setup.install.explain(1, output + later, ".venv/.setup/log", compiler)
    assert f"The first error in .venv/.setup/log:\n    {error.strip()}\n" in told
    assert "a later one" not in told
    cxx = os.environ.get("CXX", "c++")
    version = subprocess.check_output([cxx, "--version"], text=True)
    assert f"The compiler: {version.splitlines()[0]}\n" in told
    assert "CXX=g++-12 make setup" in told


@pytest.mark.parametrize(
    ("system", "machine", "libc", "advice"),
    [
        ("win32", "AMD64", "", "wsl --install"),
        ("cygwin", "x86_64", "", "wsl --install"),
        ("freebsd14", "amd64", "", "use Linux on"),
        ("linux", "i686", "glibc", "64-bit"),
        ("darwin", "x86_64", "", "Apple's own"),
        ("linux", "x86_64", "", "Debian, Ubuntu or Fedora"),
        ("linux", "x86_64", "glibc", None),
        ("linux", "aarch64", "glibc", None),
        ("darwin", "arm64", "", None),
    ],
)
def test_on_each_platform(setup, system, machine, libc, advice):
    problem = setup.prerequisites.platform_problem(system, machine, libc)
    assert advice in problem if advice else problem is None


# make, CI


def test_bare_make_lists_the_commands():
    answer = captured(["make"], cwd=ROOT)
    targets = re.search(r"\.PHONY: help (.*)", (ROOT / "Makefile").read_text())[1]
    commands = re.findall(r"^make ([\w-]+) +\S", answer.stdout, re.MULTILINE)
    assert commands == targets.split()


def test_make_without_any_python(course, tmp_path):
    for name in ("make", "sh"):
        (tmp_path / name).symlink_to(shutil.which(name))
    run = {"cwd": course, "env": {"PATH": str(tmp_path)}, "capture_output": True}
    answer = subprocess.run(["make", "setup"], **run, text=True, timeout=60)
    assert answer.returncode == 2
    assert "Python is missing" in answer.stderr
    for command in ("apt install", "dnf install", "brew install"):
        assert command in answer.stderr


CI_RUNS = (
    *("spark", "cluster", "sandbox", "browser", "types"),
    *("course", "site", "headers", "test"),
)


@pytest.mark.parametrize("failing", [*CI_RUNS, None])
def test_ci_runs_what_the_readme_says_and_fails_with_it(failing, tmp_path):
    """A `make` that only notes what it is asked for stands in for hours of work."""
    data, script = tmp_path / "shared" / "data", tmp_path / "course" / ".ci" / "run"
    data.mkdir(parents=True)
    script.parent.mkdir(parents=True)
    shutil.copy(ROOT / ".ci" / "run", script)
    make = tmp_path / "make"
    make.write_text(
        f'#!/bin/sh\necho "$1 CI=$CI $COURSE_DATA" >> asked\n[ "$1" != "{failing}" ]\n'
    )
    make.chmod(0o755)
    answer = subprocess.run([script], env={"PATH": f"{tmp_path}:/usr/bin"}, timeout=60)
    targets = (tmp_path / "course" / "asked").read_text().splitlines()
    last = CI_RUNS.index(failing) + 1 if failing else len(CI_RUNS)
    assert targets == [f"{target} CI=true {data}" for target in CI_RUNS[:last]]
    assert (answer.returncode == 0) == (failing is None)


def test_github_runs_the_same_commands(setup):
    """On each Python that the course supports."""
    workflow = yaml.safe_load((ROOT / ".github/workflows/course.yml").read_text())
    job = workflow["jobs"]["course"]
    pythons = job["strategy"]["matrix"]["python"]
    assert sorted(pythons) == sorted(setup.prerequisites.PYTHONS)
    github_runs = [step["run"] for step in job["steps"] if "run" in step]
    ci_runs = re.findall(r"^make .*", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert ci_runs == [f"make {target}" for target in CI_RUNS]
    assert github_runs == ['make setup PYTHON="$(command -v python)"', ".ci/run"]


def test_other_systems_are_skipped_with_a_word_where_none_can_be_made(tmp_path):
    for name in ("headers", "systems", "gpu-build"):
        skipped = captured(
            [sys.executable, ROOT / "tests" / "systems.py", name],
            env={"PATH": str(tmp_path)},
        )
        assert (skipped.returncode, skipped.stderr) == (0, "")
        assert skipped.stdout.startswith(f"{name}: skipped, as it takes root and mmdeb")
