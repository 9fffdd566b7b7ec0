"""solutions/multi_worker.py: two real workers, and what becomes of a killed one."""

import re
import zipfile

import numpy as np
import pytest
from processes import empty_course

from utils import figures
from utils.base import course
from utils.running import launch

# Seconds when idle; the limits are for machines that do other work as well.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

PROGRAM = course.PACKAGE_ROOT / "solutions" / "multi_worker.py"
TINY = {"train_images": 260, "batch_size": 32, "data": "sample", "time_limit": 350}


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    with empty_course(tmp_path_factory.mktemp("course")) as place:
        yield place


@pytest.fixture(scope="module")
def run(folder):
    return launch.run(
        PROGRAM, "--keep-seen", tasks={"worker": 2}, epochs=1, quiet=True, **TINY
    )


@pytest.fixture(scope="module")
def killed(folder):
    return launch.run(
        PROGRAM,
        *("--die-at-epoch", 2, "--die-task", 1, "--epochs", 2),
        tasks={"worker": 2},
        restarts=1,
        quiet=True,
        **TINY,
    )


def weights_at_the_end(run):
    pairs = re.findall(
        r"^\[(\d)\] Weights at the end: (\w+)", run.log.read_text(), re.M
    )
    return dict(pairs)


def test_both_workers_end_with_the_same_weights(run):
    digests = weights_at_the_end(run)
    assert set(digests) == {"0", "1"}
    assert digests["0"] == digests["1"]


def test_worker_0_alone_is_chief_keeps_the_history_and_the_model(run):
    log = run.log.read_text()
    assert "[0] worker 0, chief: True, replicas in all: 2" in log
    assert "[1] worker 1, chief: False, replicas in all: 2" in log
    assert list(run.history["epoch"]) == [0]
    assert len(run.histories) == 1
    assert [zipfile.is_zipfile(m) for m in run.folder.rglob("model*")] == [True]


def test_with_the_policy_data_every_image_is_seen_once(run):
    seen = figures.cluster.seen(run)
    numbers = np.concatenate(list(seen.values()))
    assert set(seen) == {0, 1}
    # A global batch has 64 images: 4 of 260 are left over.
    assert len(numbers) == len(set(numbers)) == 256
    assert figures.cluster.shards({"DATA": run}).axes


def test_a_killed_worker_costs_no_finished_epoch(killed):
    log = killed.log.read_text()
    assert log.count("was ended by signal 9, Killed; all tasks are started again") == 1
    epochs = [list(history["epoch"]) for history in killed.histories]
    assert epochs == [[0], [1]]
    digests = weights_at_the_end(killed)
    assert digests["0"] == digests["1"]
    assert figures.cluster.lives(killed).axes


UNEQUAL = """
import os

os.environ["TF_USE_LEGACY_KERAS"] = "1"
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
images = 3 if strategy.cluster_resolver.task_id == 0 else 5


def part(context):
    data = tf.data.Dataset.from_tensors((tf.ones(4), tf.ones(1)))
    return data.repeat(images).batch(1)


with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(4,))])
    model.compile("sgd", "mse")
shares = strategy.distribute_datasets_from_function(part)
model.fit(shares, steps_per_epoch=5, verbose=0)
print("Updates:", model.optimizer.iterations.numpy())
print("Weights at the end:", model.get_weights()[0].tobytes().hex())
"""


def test_a_worker_with_fewer_batches_does_not_leave_the_other_waiting(folder):
    """TensorFlow gives it empty ones until all have done their steps."""
    (folder / "unequal.py").write_text(UNEQUAL)
    run = launch.run("unequal.py", tasks={"worker": 2}, quiet=True, time_limit=200)
    digests = weights_at_the_end(run)
    assert set(digests) == {"0", "1"}
    assert digests["0"] == digests["1"]
    assert run.log.read_text().count("Updates: 5") == 2
