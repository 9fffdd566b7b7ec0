"""Hostile programs in the sandbox: what they try fails, and nothing of them is left."""

import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from processes import captured, descendants_of_runs_in, wait_for

from distcheck import errors, files, supervise
from utils.base import course
from utils.grading import sandbox
from utils.grading.sandbox import Limits

# Every attack on the machine's resources is bounded by itself, too.
ENDLESS_LOOP = "while True: pass"
FORKS = """\
import os, time
for _ in range(300):
    if not os.fork():
        time.sleep(20)
time.sleep(20)
"""
SOON = 15  # seconds: by themselves, the programs would end after 20
FORKS_OF_FORKS = """\
import os, time
for _ in range(8):
    os.fork()
time.sleep(20)
"""
MEMORY = """\
import time
held = [bytearray(10 << 20) for _ in range(200)]
time.sleep(20)
"""
HIDDEN_MEMORY = """\
import os, time
files = [os.memfd_create(str(number)) for number in range(10)]
for file in files:
    for _ in range(50):
        os.write(file, bytes(1 << 20))
time.sleep(20)
"""
SHARED_MEMORY = """\
import os, time
held = bytearray(100 << 20)
children = [os.fork() for _ in range(6)]
time.sleep(1)
"""
ONE_FILE = """\
with open("large", "wb") as file:
    for _ in range(1000):
        file.write(bytes(1 << 20))
"""
MANY_FILES = """\
import time
for number in range(100):
    with open(f"file{number}", "wb") as file:
        file.write(bytes(1 << 20))
time.sleep(20)
"""
EMPTY_FILES = """\
import os, time
for number in range(2000):
    open(str(number), "w").close()
time.sleep(20)
"""
NESTED_FOLDERS = """\
import os, time
for _ in range(200):
    os.mkdir(100 * "d")
    os.chdir(100 * "d")
time.sleep(20)
"""
OUTPUT = """\
for _ in range(100_000):
    print("output" * 1000)
"""
ESCAPEE = """\
import os, time
if not os.fork():
    os.setsid()
    if not os.fork():
        open("escaped", "w").close()
        time.sleep(1000)
    os._exit(0)
while not os.path.exists("escaped"):
    time.sleep(0.01)
"""


def left_in_temporary_files():
    """Folders of processes that have ended, and of this one."""
    paths = set()
    for parent in {tempfile.gettempdir(), "/dev/shm"}:
        for path in Path(parent).glob(f"{files.SCRATCH}*-*"):
            owner = files.owner(path)
            if owner in (None, os.getpid()) or not psutil.pid_exists(owner):
                paths.add(path)
    return paths


def mounts():
    path = Path("/proc/self/mounts")
    return path.read_text() if path.exists() else ""


@pytest.fixture
def folder(bubblewrap):
    """Where to run. The folder around it lets anybody in: only the sandbox doesn't.

    Afterwards nothing is left, and the next command finds all in order.
    """
    around = Path(tempfile.mkdtemp())
    around.chmod(0o777)
    place = around / "own"
    place.mkdir()
    before = left_in_temporary_files()
    yield place
    processes = descendants_of_runs_in(place)
    for process in processes:
        process.kill()
    assert not processes
    assert str(around) not in mounts()
    sandbox.remove(place)
    place.mkdir()
    assert run(place, ["sh", "-c", "echo fine"]).output == "fine\n"
    sandbox.remove(around)
    assert not around.exists()
    # Others on this machine may be about to tidy up as well.
    wait_for(lambda: left_in_temporary_files() <= before, what="temporary files to go")


def run(folder, command, protected=True, readable=(), environment=None, **limits):
    """Run it, known to `descendants_of_runs_in`."""
    return sandbox.run(
        command,
        folder,
        readable=readable,
        environment={"COURSE_RUN": str(folder)} | (environment or {}),
        limits=Limits(**{"seconds": 20, **limits}),
        protected=protected,
    )


def python(folder, code, protected=True, **options):
    return run(folder, [sys.executable, "-c", code], protected, **options)


protected_or_not = pytest.mark.parametrize(
    "protected", [True, False], ids=["protected", "unprotected"]
)


@protected_or_not
@pytest.mark.parametrize(
    ("code", "breach", "limits"),
    [
        pytest.param(ENDLESS_LOOP, "time", {"seconds": 1}, id="loop"),
        pytest.param(FORKS, "processes", {"processes": 30}, id="forks"),
        pytest.param(FORKS_OF_FORKS, "processes", {"processes": 30}, id="fork-bomb"),
        pytest.param(MEMORY, "memory", {"memory": 300e6}, id="memory"),
        pytest.param(ONE_FILE, "files", {"file_bytes": 3e6}, id="one-file"),
        pytest.param(MANY_FILES, "files", {"file_bytes": 3e6}, id="many-files"),
        pytest.param(EMPTY_FILES, "files", {"file_bytes": 3e6}, id="empty-files"),
        pytest.param(OUTPUT, "output", {"output_bytes": 1e5}, id="output"),
    ],
)
def test_whoever_takes_too_much_is_ended(folder, protected, code, breach, limits):
    ended = python(folder, code, protected, **limits)
    assert ended.breach == breach, ended
    assert ended.seconds < SOON
    assert len(ended.output) < sandbox.SHOWN_OUTPUT + 100
    if breach == "time":
        assert ended.status == supervise.TIMED_OUT


@protected_or_not
def test_folders_nested_too_deeply_to_be_counted_are_too_much(folder, protected):
    assert python(folder, NESTED_FOLDERS, protected).breach == "files"


@protected_or_not
def test_nothing_escapes_its_end(folder, protected):
    assert python(folder, ESCAPEE, protected).status == 0
    assert (folder / "escaped").exists()


def test_a_file_beyond_the_limit_is_cut_off(folder):
    python(folder, ONE_FILE, file_bytes=3e6)
    assert (folder / "large").stat().st_size <= 3e6


def test_too_much_is_too_much_even_if_its_writer_has_ended(folder):
    fill = ["sh", "-c", "head -c 2999000 /dev/zero > nearly-all"]
    assert run(folder, fill, file_bytes=3e6).breach == "files"


def test_memory_that_processes_share_counts_once(folder):
    assert python(folder, SHARED_MEMORY, memory=300e6).breach is None


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="needs Linux")
def test_memory_that_belongs_to_no_process_counts(folder):
    assert python(folder, HIDDEN_MEMORY, memory=200e6).breach == "memory"


def test_a_machine_that_runs_out_of_memory_ends_it(folder, monkeypatch):
    little = SimpleNamespace(total=100, available=4, shared=0)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: little)
    assert run(folder, ["sleep", "20"]).breach == "memory"
    monkeypatch.undo()


def test_disk_space_that_no_file_shows_is_noticed(folder, monkeypatch):
    free = iter([100] + 100 * [49])
    monkeypatch.setattr(
        shutil, "disk_usage", lambda _: SimpleNamespace(free=next(free))
    )
    assert run(folder, ["sleep", "20"]).breach == "files"
    monkeypatch.undo()


def test_status_output_and_results_come_back(folder):
    code = "print('said'); open('result', 'w').write('kept'); raise SystemExit(3)"
    ended = python(folder, code)
    assert (ended.status, ended.breach, ended.output) == (3, None, "said\n")
    assert (folder / "result").read_text() == "kept"
    assert run(folder, ["sh", "-c", "kill -9 $$"]).status == 128 + 9
    assert run(folder, ["no-such-program"]).status == 127
    # Python ignores broken pipes, which other programs must not inherit.
    assert run(folder, ["sh", "-c", "yes | head -n 1"]).output == "y\n"


def test_of_a_long_output_both_ends_are_kept(folder):
    ended = python(folder, "print('first', 'x' * 50_000, 'last')")
    assert ended.breach is None
    assert ended.output.startswith("first")
    assert ended.output.endswith("last\n")
    assert len(ended.output) < sandbox.SHOWN_OUTPUT + 100


def test_results_can_be_read_whatever_was_done_to_their_folder(folder):
    run(folder, ["sh", "-c", "mkdir a; echo kept > a/b; chmod 0 a/b a ."])
    assert (folder / "a" / "b").read_text() == "kept\n"


def test_results_belong_to_the_caller_and_no_link_in_them_is_followed(
    folder, tmp_path_factory
):
    secret = tmp_path_factory.mktemp("private") / "secret"
    secret.write_text("secret")
    secret.chmod(0o640)
    if os.geteuid() == 0:  # whoever else it belongs to, keeps it
        os.chown(secret, 12_345, 12_345)
    before = secret.stat()
    run(folder, ["sh", "-c", f"ln -s {secret} link; echo > file; chmod 777 . file"])
    for path in (folder, folder / "file"):
        assert path.stat().st_uid == os.geteuid()
        assert not path.stat().st_mode & 0o022
    assert os.readlink(folder / "link") == str(secret)
    assert (secret.stat().st_mode, secret.stat().st_uid) == (
        before.st_mode,
        before.st_uid,
    )


def test_the_environment_is_its_own(folder, monkeypatch):
    monkeypatch.setenv("COURSE_SECRET", "password")
    environment = {"ASKED_FOR": "this", "PYTHONPATH": str(folder)}
    ended = run(folder, ["env"], environment=environment)
    variables = dict(line.split("=", 1) for line in ended.output.splitlines())
    names = {"PATH", "HOME", "TMPDIR", "LANG", "PWD"}
    assert set(variables) == names | {"ASKED_FOR", "PYTHONPATH", "COURSE_RUN"}
    assert variables["ASKED_FOR"] == "this"


def test_modules_in_the_folder_are_not_imported_outside_of_it(folder):
    trap = f"open({str(folder.parent / 'trapped')!r}, 'w')"
    for name in ("psutil", "json", "ctypes", "sitecustomize"):
        (folder / f"{name}.py").write_text(trap)
    run(folder, ["true"], environment={"PYTHONPATH": str(folder)})
    assert not (folder.parent / "trapped").exists()


def sees_other_files(folder, protected):
    other = folder.parent / "other"
    other.mkdir(exist_ok=True)
    (other / "solution.py").write_text("secret")
    return "secret" in run(folder, ["cat", f"{other}/solution.py"], protected).output


def writes_elsewhere(folder, protected):
    path = folder.parent / "written"
    run(folder, ["sh", "-c", f"mkdir -p {path.parent}; touch {path}"], protected)
    return path.exists()


def sees_other_processes(folder, protected):
    nap = [sys.executable, "-c", "import time; time.sleep(20)", "secret"]
    with subprocess.Popen(nap, env={"COURSE_SECRET": "secret"}) as other:
        command = "cat /proc/*/cmdline /proc/*/environ | grep -c secre[t]"
        ended = run(folder, ["sh", "-c", command], protected)
        other.kill()
    return "matches" in ended.output or ended.output.splitlines()[-1] != "0"


def reaches_the_network(folder, protected):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        code = f"import socket; socket.create_connection({address}, 2)"
        ended = python(folder, code, protected)
    assert ended.status == 0 or "refused" in ended.output
    return ended.status == 0


def has_rights(folder, protected):
    """Is it root, by any of its numbers, or has it kept what root may do?"""
    lines = run(folder, ["cat", "/proc/self/status"], protected).output.splitlines()
    status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    ids = {*status["Uid"].split(), *status["Gid"].split(), *status["Groups"].split()}
    rights = int(status["CapPrm"], 16) | int(status["CapEff"], 16)
    return "0" in ids or rights != 0


@pytest.mark.parametrize(
    "attack",
    [
        sees_other_files,
        writes_elsewhere,
        sees_other_processes,
        reaches_the_network,
        has_rights,
    ],
)
def test_the_sandbox_keeps_it_out_and_nothing_else_would(folder, attack):
    assert not attack(folder, protected=True)
    if attack is not has_rights or os.geteuid() == 0:
        assert attack(folder, protected=False)


def test_of_the_course_and_the_home_it_sees_only_this_python(folder):
    readable = [sys.prefix, sys.base_prefix, os.path.realpath(sys.base_prefix), "/usr"]
    system = {
        "bin",
        "dev",
        "etc",
        "lib",
        "lib32",
        "lib64",
        "proc",
        "sbin",
        "sys",
        "tmp",
    }
    roots = {Path(path).parts[1] for path in [*readable, str(folder)]}
    assert set(run(folder, ["ls", "-A", "/"]).output.split()) <= system | roots
    places = [
        course.PACKAGE_ROOT,
        course.PACKAGE_ROOT.parent,
        Path.home(),
        Path("/var"),
    ]
    patterns = " ".join(f"{place}/* {place}/.[!.]*" for place in places)
    paths = run(folder, ["sh", "-c", f"ls -d {patterns} 2>&-"]).output.splitlines()
    for path in paths:
        assert any(f"{place}/".startswith(f"{path}/") for place in [*readable, folder])
    attempt = "cat ../../solutions/* ../solutions/* ../../../../etc/shadow"
    assert run(folder, ["sh", "-c", attempt]).output.count("No such file") == 3


def test_it_sees_what_it_is_shown_and_can_not_change_it(folder):
    shown = folder.parent / "shown"
    shown.mkdir()
    (shown / "data").write_text("data")
    shown.chmod(0o777)
    (folder.parent / "link").symlink_to(shown)
    within = folder / "within"
    within.mkdir()
    (within / "data").write_text("data")
    places = [shown, folder.parent / "link" / "data", within]
    command = "".join(
        f"cat {place}/data || cat {place}; echo x > {place}/new; rm -rf {place}; "
        for place in places
    )
    output = run(folder, ["sh", "-c", f"({command}) 2>&-"], readable=places).output
    assert output == "data" * len(places)
    assert [path.name for path in shown.iterdir()] == ["data"]
    assert [path.name for path in within.iterdir()] == ["data"]
    with pytest.raises(errors.UserError, match="no-such-file"):
        run(folder, ["true"], readable=[folder / "no-such-file"])


@pytest.mark.parametrize("victim", ["-1", "0", "1", "os.getppid()"])
def test_it_can_end_only_itself(folder, victim):
    # As the same user, where we may choose: then only the numbers protect it.
    user = {"user": sandbox.NOBODY} if os.geteuid() == 0 else {}
    with subprocess.Popen(["sleep", "20"], **user) as neighbor:
        code = f"import os; print('first', flush=True); os.kill({victim}, 9)"
        ended = python(folder, code)
        assert ended.output.startswith("first")
        assert ended.status != supervise.TIMED_OUT
        assert neighbor.poll() is None
        neighbor.kill()


def test_a_loopback_of_its_own_works(folder):
    code = """\
import os, socket
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
client.send(b"over")
print(server.accept()[0].recv(4).decode(), [name for _, name in socket.if_nameindex()])
"""
    # A kernel may have tunnels in every network; they lead nowhere.
    ended = python(folder, code)
    assert ended.output.startswith("over ['lo'"), ended


def test_temporary_files_are_private_and_bounded(folder):
    code = "import os; print(sorted(os.listdir('/tmp')), os.listdir('/dev/shm'))"
    # Of what is there outside, no more than what is shown.
    readable = [folder, Path(sys.prefix), Path(sys.base_prefix)]
    names = {p.parts[2] for p in readable if p.is_relative_to("/tmp")}
    assert python(folder, code).output == f"{sorted(names)} []\n"
    fill = "for n in 1 2 3 4 5; do head -c 900000 /dev/zero > /tmp/$n || echo $n; done"
    ended = run(folder, ["sh", "-c", fill], file_bytes=2e6)
    assert "No space left" in ended.output
    assert ended.breach is None


def test_a_program_that_gains_rights_gains_none(folder):
    shell = folder / "sh"
    shutil.copy("/bin/sh", shell)
    shell.chmod(shell.stat().st_mode | stat.S_ISUID)
    ended = run(folder, ["./sh", "-p", "-c", "id -u; cat /proc/self/status"])
    lines = ended.output.splitlines()
    assert lines[0] != "0"
    assert "NoNewPrivs:\t1" in lines


def test_it_ends_with_its_supervisor(folder):
    command = ["sh", "-c", "touch up; sleep 1000"]
    thread = threading.Thread(target=lambda: run(folder, command))
    thread.start()
    wait_for((folder / "up").exists)
    for child in psutil.Process().children():
        if "distcheck.supervise" in child.cmdline():
            child.kill()
    thread.join(60)
    assert not thread.is_alive()
    wait_for(lambda: not descendants_of_runs_in(folder))


def test_it_ends_with_its_caller(folder):
    code = (
        "import os, sys; from pathlib import Path; from utils.grading import sandbox; "
        "sandbox.run(['sh', '-c', 'touch up; sleep 1000'], Path(sys.argv[1]), "
        "environment={'COURSE_RUN': sys.argv[1]})"
    )
    line = [sys.executable, "-c", code, str(folder)]
    with subprocess.Popen(line, cwd=course.PACKAGE_ROOT) as caller:
        wait_for((folder / "up").exists)
        assert descendants_of_runs_in(folder)
        caller.kill()
    wait_for(lambda: not descendants_of_runs_in(folder))


def test_without_bubblewrap_nothing_runs_and_what_to_do_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    for attempt in (lambda: sandbox.run(["touch", "ran"], tmp_path), check_afresh):
        with pytest.raises(errors.UserError, match="apt install bubblewrap"):
            attempt()
    assert not (tmp_path / "ran").exists()


def test_a_bubblewrap_that_may_not_is_reported(tmp_path, monkeypatch):
    refusing = tmp_path / "bwrap"
    refusing.write_text("#!/bin/sh\necho bwrap: No permissions >&2\nexit 1\n")
    refusing.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(errors.UserError, match="here: bwrap: No permissions"):
        check_afresh()


def check_afresh():
    """As in a process that has not checked yet."""
    sandbox.check.__wrapped__()


def test_an_ordinary_user_gets_the_same_sandbox(folder):
    """On a machine where we are root; where we aren't, the other tests show it."""
    if os.geteuid() != 0:
        pytest.skip("we are an ordinary user")
    code = (
        "import json, sys; from dataclasses import asdict; from pathlib import Path; "
        "from utils.grading import sandbox; sandbox.check(); "
        "ended = sandbox.run(['sh', '-c', sys.argv[2]], Path(sys.argv[1])); "
        "print(json.dumps(asdict(ended)))"
    )
    todo = "id -u; echo $$; ls -A ..; readlink /proc/self/ns/net; touch ran; kill -9 0"
    options = {
        "user": sandbox.NOBODY,
        "group": sandbox.NOBODY,
        "extra_groups": [],
        "cwd": "/",
        "env": {"PYTHONPATH": os.pathsep.join([str(course.PACKAGE_ROOT), *sys.path])},
    }
    # The Python of this environment may lie in a folder that only root may enter.
    for interpreter in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        try:
            check = [interpreter, "-B", "-c", "import utils.grading.sandbox"]
            if not subprocess.run(check, capture_output=True, **options).returncode:
                break
        except OSError:
            continue
    else:
        pytest.skip("no Python here that an ordinary user may run")
    os.chown(folder, sandbox.NOBODY, sandbox.NOBODY)
    (folder.parent / "secret").touch()
    done = captured([interpreter, "-B", "-c", code, str(folder), todo], **options)
    if "can't make a sandbox here" in done.stderr:
        pytest.skip(done.stderr[-500:])
    assert not done.returncode, done.stderr
    ended = json.loads(done.stdout)
    assert ended["status"] == 128 + 9  # and not the supervisor, who is the same user
    user, number, seen, network = ended["output"].split()
    assert user == str(sandbox.NOBODY)
    assert int(number) < 10
    assert seen == folder.name  # and not the secret beside it
    assert network != os.readlink("/proc/self/ns/net")
    assert (folder / "ran").exists()


def test_a_trivial_command_starts_soon_and_watching_costs_little(folder):
    spent = time.process_time()
    assert run(folder, ["sleep", "1"]).seconds < SOON
    assert time.process_time() - spent < 0.5
