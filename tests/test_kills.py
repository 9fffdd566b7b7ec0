"""A command that is killed or interrupted at a random moment leaves nothing behind.

KILLS=200 pytest -s tests/test_kills.py            (make soak)
KILLS_SEED=7 pytest -s tests/test_kills.py         (the rounds of this seed again)
"""

import contextlib
import itertools
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest
from filelock import FileLock, Timeout
from processes import program, ship_the_exercise, with_variable, working_in

from distcheck import files, supervise

ROUNDS = int(os.environ.get("KILLS", 6))
SEED = int(os.environ.get("KILLS_SEED", time.time()))
LAST_MOMENT = 10.0  # seconds after its start at which a command may be killed
END_SECONDS = 180.0  # for it to end: after a worker's death, an audit goes on with one
SETTLE_SECONDS = 10.0  # for what belonged to a killed command to go
MARK = "COURSE_KILLS"  # the variable by which all that a round starts is known

TRAINS = "exercises/fashion_mnist.py"
COMMANDS = {
    "run": ("run", "-np", "2", "program.py", "--", "escape"),
    "check": ("check",),
    "audit": ("audit", "-np", "2", TRAINS, "--", "--train-images=640", "--epochs=1"),
}


def marked(mark: str) -> list[psutil.Process]:
    """The living processes that were started with this mark, at whatever depth."""
    return with_variable(MARK, lambda value: value == mark)


def left_behind(folder: Path, temporary: Path, mark: str) -> list[str]:
    """What is left of a command, each as a sentence; its processes are ended."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while (processes := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    left = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            left.append(f"process {process.pid}: {' '.join(process.cmdline())}")
            process.kill()
    left += [f"half-written: {path}" for path in folder.rglob(files.HALVES)]
    for path in folder.rglob("*.lock"):
        try:
            FileLock(path, timeout=0).acquire().lock.release()
        except Timeout:
            left.append(f"locked: {path}")
    supervise.sweep()  # as the next command does
    return left + [f"temporary: {path}" for path in temporary.iterdir()]


def kill(command: subprocess.Popen, mark: str, rng: random.Random) -> str:
    """Interrupt a command as a terminal does, or kill it or any process of it but the
    program's own `sleep`, which nobody waits for."""
    processes = sorted(marked(mark), key=lambda process: process.pid)
    assert command.pid in [process.pid for process in processes]
    processes = [p for p in processes if p.info["name"] != "sleep"]
    if rng.random() < 1 / 3:
        os.killpg(command.pid, signal.SIGINT)
        return "interrupted"
    victim = rng.choice([psutil.Process(command.pid), rng.choice(processes)])
    with contextlib.suppress(psutil.NoSuchProcess):
        words = " ".join(victim.cmdline()[-4:])
        victim.kill()
        return f"killed {words}"
    return "had just ended"


@pytest.fixture
def temporary(monkeypatch):
    """A folder of its own for temporary files, also those of this process. Its name is
    short, since that of a socket may have 107 characters."""
    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr("tempfile.tempdir", None)
        yield Path(folder)


@pytest.mark.slow
@pytest.mark.timeout(ROUNDS * 240)
def test_nothing_is_left_of_a_command_that_is_killed(tmp_path, temporary):
    print(f"KILLS={ROUNDS} KILLS_SEED={SEED}")
    for number, name in zip(range(ROUNDS), itertools.cycle(COMMANDS)):
        rng = random.Random(f"{SEED} {number}")
        mark, place = f"{os.getpid()}-{number}", tmp_path / str(number)
        place.mkdir()
        ship_the_exercise(place, steps=6)
        program(place)
        with working_in(place), (place / "output.txt").open("wb") as output:
            command = subprocess.Popen(
                [sys.executable, "-m", "utils.cli", *COMMANDS[name]],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**os.environ, MARK: mark},
            )
            moment, what = rng.uniform(0, LAST_MOMENT), "ended before"
            try:
                command.wait(moment)
            except subprocess.TimeoutExpired:
                what = kill(command, mark, rng)
            finally:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    command.wait(END_SECONDS)
                left = left_behind(place, temporary, mark)
                command.kill()
                command.wait()
        said = (place / "output.txt").read_text(errors="replace")
        assert what != "ended before" or command.returncode == 0, said
        print(f"{number}: {name} after {moment:.2f} s: {what}; {left}")
        assert not left


def test_what_is_left_is_found(tmp_path, temporary, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "SETTLE_SECONDS", 0)
    assert left_behind(tmp_path, temporary, "x") == []
    nap = subprocess.Popen(["sleep", "100"], env={**os.environ, MARK: "x"})
    (temporary / "forgotten").touch()
    try:
        with files.whole(tmp_path / "weights"), FileLock(tmp_path / "progress.lock"):
            found = left_behind(tmp_path, temporary, "x")
    finally:
        nap.kill()
        nap.wait()
    for what in (f"process {nap.pid}", "half-written", "locked", "temporary"):
        assert sum(sentence.startswith(what) for sentence in found) == 1, found
    assert left_behind(tmp_path, temporary, "x") != []  # what was forgotten
