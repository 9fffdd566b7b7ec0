"""The workers of a check have an owner: when it ends, however, they are gone."""

import signal
import subprocess
import sys

import psutil
import pytest
from processes import descendants_of_runs_in, wait_for, wait_until_none_is_left

from utils import lab

pytestmark = pytest.mark.slow

SLEEPER = "import time\nprint('here', flush=True)\ntime.sleep(1000)\n"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_no_worker_survives_its_owner(tmp_path, number):
    program = tmp_path / "sleeper.py"
    program.write_text(SLEEPER)
    code = "import pathlib, sys; from utils import lab; "
    code += "lab.perform(pathlib.Path(sys.argv[1]), [lab.Job(sys.argv[2], ('two',))])"
    owner = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path), str(program)],
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    outputs = [tmp_path / "0" / "two" / f"rank.{rank}.out" for rank in (0, 1)]
    wait_for(
        lambda: all(path.exists() and path.read_text() for path in outputs),
        what="both workers to greet",
    )
    workers = psutil.Process(owner.pid).children(recursive=True)
    assert len(workers) >= 5  # supervisor, lab, mpirun, two workers
    owner.send_signal(number)
    owner.wait(20)
    wait_until_none_is_left(tmp_path)
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert not alive
    assert not descendants_of_runs_in(tmp_path)


def test_odd_numbers_tell_every_way_of_dividing_apart():
    """What the checks of step 5 rest on."""
    rounds = 3 * lab.VAL_STEPS
    assert lab.STEPS % 2
    assert lab.VAL_STEPS % 2
    # Rounding up is something else than rounding, at some number of workers.
    assert any(
        -(-lab.STEPS // n) not in (lab.STEPS // n, round(lab.STEPS / n))
        for n in (1, 2, 3)
    )
    assert any(
        -(-rounds // n) not in (rounds // n, round(rounds / n)) for n in (1, 2, 3)
    )
    assert any(3 * (lab.VAL_STEPS // n) != rounds // n for n in (1, 2, 3))
