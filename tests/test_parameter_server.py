"""solutions/parameter_server.py: a chief, two workers, two servers, and a death."""

import re

import pytest
from processes import empty_course

from utils import figures
from utils.base import course
from utils.running import launch
from utils.running.result import RunFailed

# Seconds when idle; the limits are for machines that do other work as well.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

PROGRAM = course.PACKAGE_ROOT / "solutions" / "parameter_server.py"
TINY = {"train_images": 640, "batch_size": 32, "data": "sample", "time_limit": 350}
CLUSTER = {"chief": 1, "worker": 2, "ps": 2}


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    with empty_course(tmp_path_factory.mktemp("course")) as place:
        yield place


@pytest.fixture(scope="module")
def run(folder):
    """Worker 1 is killed in the first of two epochs, and is not replaced."""
    return launch.run(
        PROGRAM,
        *("--kill-worker", 1, "--steps", 60, "--epochs", 2),
        tasks=CLUSTER,
        tolerate="worker",
        quiet=True,
        **TINY,
    )


def test_all_steps_are_done_although_a_worker_died(run):
    steps = figures.cluster.steps(run)
    assert len(steps) == 120
    assert "worker 1 was ended by signal 9, Killed; the others go on" in (
        run.log.read_text()
    )
    # Both worked; the second epoch is one worker's alone.
    assert steps["worker"].nunique() == 2
    assert steps.loc[steps["epoch"] == 1, "worker"].nunique() == 1
    assert list(run.history["epoch"]) == [0, 1]
    assert run.history["loss"][1] < run.history["loss"][0]


def test_every_report_adds_up_to_the_updates_of_the_weights(run):
    steps = figures.cluster.steps(run)
    updates = int(re.search(r"Updates of the weights: (\d+)", run.log.read_text())[1])
    # A step that was cut off after its update, but before its report, is done again.
    assert updates in (120, 121)
    assert steps["wrote"].max() == updates
    assert (steps["stale"] >= 0).all()
    # A worker that is alone reads what it has just written.
    alone = steps[steps["epoch"] == 1]
    assert (alone["stale"] == 0).all()


def test_a_large_variable_is_cut_so_that_both_servers_hold_a_part(run):
    table = figures.cluster.variables(run)
    parts = table[table["name"].str.startswith("dense/kernel")]
    assert list(parts["bytes"]) == [1600 * 256 * 4 // 2] * 2
    assert set(parts["ps"]) == {0, 1}
    others = table[~table["name"].str.contains("part")]
    assert set(others["ps"]) == {0, 1}
    convolutions = (9 + 1) * 32 + (9 * 32 + 1) * 64
    dense = (1600 + 1) * 256 + (256 + 1) * 10
    assert table["bytes"].sum() == 4 * (convolutions + dense)


def test_the_figures_are_drawn(run):
    assert figures.cluster.placement(run).axes
    assert figures.cluster.timeline(run).axes
    assert figures.cluster.staleness({"a worker died": run}).axes


def test_keras_fit_trains_on_the_same_cluster(folder):
    run = launch.run(
        PROGRAM,
        *("--api", "keras", "--steps", 10, "--epochs", 1),
        tasks={"chief": 1, "worker": 1, "ps": 1},
        quiet=True,
        **TINY,
    )
    assert list(run.history["epoch"]) == [0]
    assert run.history["accuracy"].between(0, 1).all()


def test_without_servers_it_says_what_to_start(folder):
    with pytest.raises(RunFailed, match="needs a chief, workers and servers"):
        launch.run(PROGRAM, tasks={"worker": 1}, quiet=True, **TINY)
