"""What only a GPU can show. Skipped without one; `make gpu` runs these.

They were written where there was none, and have run once, on a machine with one GPU.
"""

import subprocess
import sys

import pytest
from processes import empty_course

from distcheck import machine
from utils.checking import doctor
from utils.checking.doctor import MISSING
from utils.measure import equality
from utils.running import launch

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.timeout(1800)]
GPUS = machine.gpus()
several = pytest.mark.skipif(GPUS < 2, reason="it takes two GPUs")

# Each worker says on what it computes, and adds up with the others.
PROGRAM = """
import horovod.tensorflow.keras as hvd
import horovod.tensorflow as hvd_tf
import tensorflow as tf

hvd.init()
gpus = tf.config.list_physical_devices("GPU")
if gpus:
    gpu = gpus[0] if len(gpus) == 1 else gpus[hvd.local_rank()]
    tf.config.set_visible_devices(gpu, "GPU")
    tf.config.experimental.set_memory_growth(gpu, True)
    print("uses", gpu.name)
own = tf.ones(1000) * (hvd.rank() + 1)
total = hvd_tf.allreduce(own, op=hvd_tf.Sum, device_dense=own.device)
print("sum", float(total[0]), "on", total.device)
"""


@pytest.fixture
def folder(tmp_path):
    with empty_course(tmp_path):
        (tmp_path / "program.py").write_text(PROGRAM)
        yield tmp_path


def said(run, word):
    return [line for line in run.log.read_text().splitlines() if f" {word} " in line]


def test_the_doctor_finds_nothing_missing():
    lines = [line for line in doctor.doctor().lines if line.name.startswith("gpu")]
    assert len(lines) == 2
    assert [line for line in lines if line.state == MISSING] == []


def test_one_worker_computes_on_the_gpu(folder):
    run = launch.run("program.py", workers=1)
    assert run.notices == []
    (line,) = said(run, "sum")
    assert "sum 1.0 on" in line
    assert "GPU:0" in line


@several
def test_each_worker_has_a_gpu_of_its_own(folder):
    run = launch.run("program.py", workers=GPUS)
    assert len({line.split()[-1] for line in said(run, "uses")}) == GPUS
    total = GPUS * (GPUS + 1) / 2
    assert sum(f"sum {total}" in line for line in said(run, "sum")) == GPUS


def test_more_workers_than_gpus_compute_on_cores(folder):
    run = launch.run("program.py", workers=GPUS + 1)
    assert said(run, "uses") == []
    assert all("CPU" in line for line in said(run, "sum"))
    assert any("compute on cores" in notice for notice in run.notices)


def test_a_gpu_that_is_given_by_name_is_found(folder):
    listing = subprocess.run(
        ["nvidia-smi", "-L"], capture_output=True, text=True, check=True
    )
    name = listing.stdout.splitlines()[-1].partition("UUID: ")[2].rstrip(")")
    run = launch.run(
        "program.py", workers=1, environment={"CUDA_VISIBLE_DEVICES": name}
    )
    (line,) = said(run, "uses")
    assert line.endswith("GPU:0")


def test_a_gpu_can_be_split_in_two():
    code = """
import tensorflow as tf
half = tf.config.LogicalDeviceConfiguration(memory_limit=2048)
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("GPU")[0], [half, half])
strategy = tf.distribute.MirroredStrategy(["GPU:0", "GPU:1"])
with strategy.scope():
    variable = tf.Variable(1.0)
add = lambda: tf.distribute.get_replica_context().all_reduce("sum", variable.value())
print([float(v) for v in strategy.experimental_local_results(strategy.run(add))])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=600
    )
    assert done.stdout.splitlines()[-1] == "[2.0, 2.0]", done.stderr[-2000:]


def test_all_ways_to_train_end_at_the_same_weights():
    assert equality.compare().all_same
