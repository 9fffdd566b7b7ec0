"""What the checks find right, trains: compiled, and with nobody watching.

The checks run functions eagerly, and change what they observe. Here every program of
the four tables of right ones runs as it does for a learner, under a real mpirun, those
with tf.distribute in one process with two replicas. It has to end well, and to leave
a loss for every epoch.

All train on the few images of a check. As in the checks, the course's large network
gives way to a small one: that of fashion_mnist.py has no blocks (check_tables.py); in
the others it is the recorder's, by two lines before the program.
"""

import csv
import dataclasses
import math
import re

import pytest
from check_tables import TABLES, Program, observe, title

from distcheck import lab
from distcheck.judges.runs import Run
from utils.checking import exercises

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

TINY = "from utils import networks\nnetworks.use_instead(networks.tiny)\n"
SMALL = "from utils import networks\n"
SMALL += "networks.use_instead(lambda: networks.small_cnn((28, 28, 1)))\n"
MAY_COMPUTE = 50.0  # seconds of processor that no program needs, as nothing is reported
REPLICAS = (exercises.find("mirrored").name, exercises.find("custom_loop").name)


def plain(program: Program, network: str = "") -> Program:
    """The same, to be run by itself."""
    scenario = "plain replicas" if program.exercise in REPLICAS else "plain"
    return dataclasses.replace(
        program, text=network + program.text, scenarios=(scenario,)
    )


NETWORKS = {
    "fashion_mnist": "",
    "scaled": TINY,
    "survive": TINY,
    "mirrored": SMALL,
    "custom_loop": SMALL,
}
PROGRAMS = [
    plain(program, network)
    for name, network in NETWORKS.items()
    for program in TABLES[name].right
]


@pytest.fixture(scope="module")
def ran(tmp_path_factory, request):
    return observe(
        request, tmp_path_factory.mktemp("programs"), may_compute=MAY_COMPUTE
    )


@pytest.mark.parametrize("program", PROGRAMS, ids=title)
def test_a_right_program_trains_by_itself(program, ran):
    (run,) = ran[program].values()
    printed = [rank.text("out") + rank.text("err") for rank in run.ranks]
    story = "\n".join([f"{run.statuses}", *(text[-3000:] for text in printed)])
    assert run.outcome == lab.ENDED, story
    assert set(run.statuses.values()) == {0}, story
    losses = losses_of(run)
    assert len(losses) == epochs_of(program), story
    assert all(math.isfinite(loss) and loss > 0 for loss in losses), losses


def epochs_of(program: Program) -> int:
    options = program.its.options
    return int(options[options.index("--epochs") + 1])


def losses_of(run: Run) -> list[float]:
    """The loss of each epoch: from history.csv, or as a loop of its own prints it."""
    path = run.folder / "history.csv"
    rows = list(csv.DictReader(path.open())) if path.exists() else []
    if rows:
        return [float(row["loss"]) for row in rows]
    printed = run.ranks[0].text("out")
    return [
        float(loss)
        for loss in re.findall(r"^Epoch \d+/\d+: loss (\S+)$", printed, re.M)
    ]
