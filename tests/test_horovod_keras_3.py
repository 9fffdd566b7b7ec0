"""solutions/four_ways/horovod_keras_3.py, on two workers: what its callers rely on."""

import json
import subprocess
import sys
from pathlib import Path

import kept_evidence
import numpy as np
import pytest

from utils.base import course

PROGRAM = Path(__file__).with_name("keras_3_with_horovod.py")
WRAPPER = course.PACKAGE_ROOT / "solutions/four_ways/horovod_keras_3.py"
KINDS = ("momentum", "clipped", "accumulated", "loss scaled")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def left(tmp_path_factory):
    """What each of two workers ended with, now or before (see kept_evidence.py)."""

    def train():
        folder = tmp_path_factory.mktemp("keras_3")
        mpirun = ["mpirun", "-np", "2", "--oversubscribe", "--bind-to", "none"]
        command = [*mpirun, sys.executable, PROGRAM, folder]
        subprocess.run(command, check=True, timeout=400, capture_output=True)
        return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]

    return kept_evidence.value(train, modules=(), others=(PROGRAM, WRAPPER))


def apart(one, other):
    """The largest difference of two networks' weights."""
    pairs = zip(one, other, strict=True)
    return max(float(abs(np.subtract(a, b)).max()) for a, b in pairs)


@pytest.mark.parametrize("kind", KINDS)
def test_two_workers_train_as_one_does_with_their_batches(left, kind):
    assert apart(left[0]["together"][kind], left[1]["together"][kind]) == 0
    assert apart(left[0]["together"][kind], left[0]["alone"][kind]) < 1e-6


def test_all_begin_with_the_weights_of_one_and_keep_their_own_random_numbers(left):
    name = "apart, then broadcast"
    assert apart(left[0]["apart"], left[1]["apart"]) > 0.1
    assert apart(left[0][name], left[1][name]) == 0
    assert left[0]["seeds"] != left[1]["seeds"]


def test_metrics_are_the_mean_of_all_workers(left):
    own = [worker["own"][0] for worker in left]
    assert own[0] != own[1]
    assert [worker["mean"] for worker in left] == [pytest.approx(np.mean(own))] * 2
    assert left[0]["averaged"] == left[1]["averaged"]


def test_a_saved_model_is_loaded_without_horovod(left):
    assert left[0]["loaded as"] == "<class 'keras.src.optimizers.sgd.SGD'>"


def test_what_would_hang_or_break_is_refused_with_the_cure(left):
    for worker in left:
        hangs, breaks = worker["refused"]
        assert "DistributedOptimizer(LossScaleOptimizer(" in hangs
        assert "jit_compile=False" in breaks
