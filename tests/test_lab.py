"""The workers of a check: what they are called hung for, and that they have an owner.

When it ends, however, they are gone.
"""

import json
import signal
import subprocess
import sys

import numpy as np
import psutil
import pytest
from processes import descendants_of_runs_in, wait_for, wait_until_none_is_left

from distcheck import lab
from distcheck.lab.outcomes import SLEEPING_FACTOR
from distcheck.recorder import keras
from distcheck.recorder.images import UNKNOWN
from distcheck.scenarios import STEPS, TRAIN_IMAGES, VAL_STEPS
from utils.checking import images
from utils.training import data

pytestmark = pytest.mark.slow

SLEEPER = "import time\nprint('here', flush=True)\ntime.sleep(1000)\n"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_no_worker_survives_its_owner(tmp_path, number):
    program = tmp_path / "sleeper.py"
    program.write_text(SLEEPER)
    code = "import pathlib, sys; from distcheck import lab; "
    code += "job = lab.Job(sys.argv[2], ('two',), 'utils.checking.images'); "
    code += "lab.perform(pathlib.Path(sys.argv[1]), [job])"
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


MAY_COMPUTE = 3.0


def outcomes(folder, scenario, programs):
    """How these programs, name -> text, end in a scenario."""
    for name, code in programs.items():
        (folder / f"{name}.py").write_text(code)
    paths = [str(folder / f"{name}.py") for name in programs]
    jobs = [lab.Job(path, (scenario,), images.__name__) for path in paths]
    lab.perform(folder, jobs, MAY_COMPUTE)
    return [
        json.loads((folder / str(number) / scenario / "outcome.json").read_text())
        for number in range(len(jobs))
    ]


def test_only_who_says_nothing_for_long_is_hung(tmp_path):
    """A worker that gets nothing of a busy machine looks like one that sleeps."""
    programs = {
        "starved": f"import time; time.sleep({1.5 * MAY_COMPUTE})",
        "asleep": "import time; time.sleep(1000)",
        "busy": "while True: pass",
    }
    ends = outcomes(tmp_path, "one", programs)
    assert [end["outcome"] for end in ends] == [lab.ENDED, lab.HUNG, lab.HUNG]
    assert ends[1]["seconds"] > SLEEPING_FACTOR * MAY_COMPUTE
    assert ends[2]["seconds"] > MAY_COMPUTE


def test_a_world_without_reports_ends_as_its_mpirun_does(tmp_path):
    programs = {
        "ends": "print('here')",
        "fails": "raise SystemExit(3)",
        "asleep": "import time; time.sleep(1000)",
    }
    ends = outcomes(tmp_path, "plain", programs)
    assert [end["outcome"] for end in ends] == [lab.ENDED, lab.FAILED, lab.HUNG]
    assert set(ends[0]["statuses"].values()) == {0}
    assert 3 in ends[1]["statuses"].values()


OPTIMIZERS = """
import horovod.tensorflow.keras as hvd
import tensorflow as tf
hvd.init()
assert len(tf.config.list_physical_devices("GPU")) == 4
own = tf.keras.optimizers.SGD(0.1, jit_compile=True)
assert not own.jit_compile
assert not hvd.DistributedOptimizer(own).jit_compile
"""


def test_pretended_gpus_have_no_update_compiled_with_xla(tmp_path):
    """To build that takes a check longer than all else in a training step."""
    (end,) = outcomes(tmp_path, "two", {"optimizers": OPTIMIZERS})
    assert end["outcome"] == lab.ENDED, (tmp_path / "0/two/rank.0.err").read_text()


LEAVES = """
import os, subprocess, time
from pathlib import Path
nap = subprocess.Popen(["sleep", "1000"], start_new_session=True)
orphan = os.fork()
if orphan == 0:
    os.setsid()
    if os.fork() == 0:
        Path({place!r}, f"orphan {{os.getpid()}}").touch()
        time.sleep(1000)
    os._exit(0)
os.waitpid(orphan, 0)
Path({place!r}, f"nap {{nap.pid}}").touch()
while len(list(Path({place!r}).glob("* *"))) < 2: time.sleep(0.05)
{ends}
"""
# Looks for them when the scenario has ended in which they were left.
LOOKS = """
import time
from pathlib import Path
left, deadline = Path({place!r}), time.monotonic() + 60
while not Path({outcome!r}).exists() and time.monotonic() < deadline: time.sleep(0.05)
found = [path.name.split()[1] for path in left.glob("* *")]
assert len(found) == 2, found
alive = [pid for pid in found if Path(f"/proc/{{pid}}").exists()]
assert not alive, alive
"""


@pytest.mark.parametrize("ends", ["", "os._exit(3)"], ids=["well", "dies"])
def test_what_a_worker_leaves_behind_ends_with_its_scenario(tmp_path, ends):
    """In sessions of their own, with and without a parent."""
    (left := tmp_path / "left").mkdir()
    outcome = tmp_path / "0" / "one" / "outcome.json"
    programs = {
        "leaves": LEAVES.format(place=str(left), ends=ends),
        "looks": LOOKS.format(place=str(left), outcome=str(outcome)),
    }
    first, second = outcomes(tmp_path, "one", programs)
    assert first["outcome"] == (lab.FAILED if ends else lab.ENDED)
    err = (tmp_path / "1" / "one" / "rank.0.err").read_text()
    assert second["outcome"] == lab.ENDED, err


def test_who_was_killed_is_told_from_who_was_ended(tmp_path):
    code = "import os, signal, time\nif os.environ['OMPI_COMM_WORLD_RANK'] == '1':\n"
    code += "    os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(1000)"
    (end,) = outcomes(tmp_path, "pair", {"killed": code})
    assert (end["outcome"], end["statuses"]) == (lab.FAILED, {"0": None, "1": -9})


@pytest.fixture
def dataset(monkeypatch):
    """That of a check, with which `data.load` answers."""
    monkeypatch.setattr(data, "_instead", None)
    images.prepare()
    return data.load()


def test_an_image_is_known_again_however_it_was_moved(tmp_path, dataset):
    """Who draws what rests on that: each of them, and no other."""
    recorder = keras.KerasRecorder(tmp_path, 0, "program.py", source=images)
    draw = np.random.default_rng(1)
    count = TRAIN_IMAGES
    for dtype in (np.float64, np.float32, np.float16):
        shifts = draw.choice([-data.SHIFT, 0, data.SHIFT], (count, 2)).astype(np.int32)
        flips = draw.random(count) < 0.5
        moved = data.flip_and_shift(dataset.x_train, flips, shifts).numpy()
        pixels = ((moved - dataset.mean) / dataset.std).astype(dtype)
        assert recorder.numbers_of(pixels, True) == list(range(count))
        assert recorder.numbers_of([pixels[..., None], None], True)[:2] == [0, 1]
    assert recorder.numbers_of(dataset.x_val / 255, False) == list(range(10))
    strange = [draw.random((4, 28, 28)), pixels[:4] ** 2, 0 * pixels[:4]]
    for other in strange:
        assert recorder.numbers_of(other, True) == [UNKNOWN] * 4
    assert recorder.numbers_of("words", True) == []
    assert recorder.numbers_of(None, True) == []


def test_odd_numbers_tell_every_way_of_dividing_apart():
    """What the checks of step 5 rest on."""
    rounds = 3 * VAL_STEPS
    assert STEPS % 2
    assert VAL_STEPS % 2
    # Rounding up is something else than rounding, at some number of workers.
    assert any(-(-STEPS // n) not in (STEPS // n, round(STEPS / n)) for n in (1, 2, 3))
    assert any(
        -(-rounds // n) not in (rounds // n, round(rounds / n)) for n in (1, 2, 3)
    )
    assert any(3 * (VAL_STEPS // n) != rounds // n for n in (1, 2, 3))
