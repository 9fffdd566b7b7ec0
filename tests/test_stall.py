"""What is read from the log of a run that got stuck, and of one that did not."""

import json
import os

import pytest

from utils.running.result import Run
from utils.running.stall import Stall

WARNING = """One or more tensors were submitted by subset of ranks.
Missing ranks:
0: [HorovodBroadcast]
1!: [HorovodAllreduce]
"""
STUCK = "".join(
    f"[0] {line}\n"
    for line in [
        *WARNING.replace("0: [HorovodBroadcast]\n", "").splitlines(),
        "[a line that TensorFlow logs]",
        *WARNING.splitlines(),
        "Traceback (most recent call last):",
    ]
)


@pytest.fixture
def stall(tmp_path):
    def stall(log, status):
        (tmp_path / "log.txt").write_text(log)
        return Stall(Run("p.py", 2, "mpirun", tmp_path, status))

    return stall


def test_a_stall_shows_the_last_warning_and_who_is_missing(stall):
    stuck = stall(STUCK, 1)
    assert repr(stuck) == stuck.warning == WARNING.rstrip()
    assert stuck.missing == {0: "HorovodBroadcast", 1: "HorovodAllreduce"}


def test_a_run_without_a_stall_shows_what_its_workers_said_and_how_it_ended(stall):
    log = "[1] rank 1 has 0.41\n[0] TensorFlow speaks\n[0] rank 0 is through\n"
    well = stall(log, 0)
    assert well.missing == {}
    said = "rank 1 has 0.41\nrank 0 is through\n"
    assert repr(well) == f"{said}All 2 workers ended well."
    assert repr(stall(log, 1)).startswith(f"{said}Horovod, or mpirun, ended the run")


def test_workers_that_are_left_are_counted(stall, tmp_path):
    stuck = stall(STUCK, 1)
    with pytest.raises(ValueError, match="noted no worker"):
        stuck.processes_left  # noqa: B018
    (tmp_path / "workers").mkdir()
    for number, pid in enumerate((os.getpid(), 2**22 + 1)):  # no such process
        note = tmp_path / f"workers/{number}.json"
        note.write_text(json.dumps({"pid": pid}))
    assert stuck.processes_left == 1
