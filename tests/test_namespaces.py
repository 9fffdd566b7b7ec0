"""Hosts in network namespaces, for real: who is where, what goes over the cable, what
becomes of a host that is cut off, and that nothing is left behind."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from processes import captured, empty_course, program, wait_for

from distcheck import errors, supervise
from utils import figures
from utils.base import course
from utils.cluster import elastic, namespaces
from utils.measure import bench, cost_model, network_speed
from utils.running.result import RunFailed

if namespaces.why_not():
    pytest.skip(f"no hosts: {namespaces.why_not()}", allow_module_level=True)

pytestmark = pytest.mark.slow

# Each worker says where it is, and all add up four megabytes.
TALK = """\
import socket, numpy, psutil
from mpi4py import MPI

card = psutil.net_if_addrs()["eth0"][0].address
print(socket.gethostname(), card, flush=True)
numbers = numpy.ones(1_000_000, "f")
MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, numbers)
assert set(numbers) == {2.0}
"""
# Trains for ever, as it were; the first worker keeps a journal.
TRAIN = """\
import os, time, numpy
from mpi4py import MPI

numbers = numpy.ones(1000, "f")
while True:
    MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, numbers)
    time.sleep(0.01)
    if MPI.COMM_WORLD.rank == 0:
        with open(os.environ["COURSE_RUN"] + "/journal.csv", "a") as file:
            print("batch", file=file)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    with empty_course(tmp_path_factory.mktemp("course")) as folder:
        program(folder, TALK, "talk.py")
        program(folder, TRAIN, "train.py")
        yield folder


@pytest.fixture(scope="module", params=[namespaces.ENTER, namespaces.SSHD])
def lan(request, folder):
    """Two hosts, once with each way to start processes on the other."""
    if request.param == namespaces.SSHD != namespaces._start_agent():
        pytest.skip("sshd is not installed here, or root's rights are missing")
    before = machine()
    with namespaces.hosts(2, agent=request.param) as lan:
        yield lan
        processes = psutil.Process(lan.switch).children(recursive=True)
    assert processes
    assert not any(map(supervise._alive, processes))
    assert gone(lan)
    assert machine() == before


def machine():
    """What hosts must leave as it was: the machine's cards, addresses, mounts."""
    answers = [
        captured(["ip", *words]).stdout
        for words in (["-o", "link"], ["-o", "address"], ["netns", "list"])
    ]
    mounts = Path("/proc/self/mounts").read_text()
    return answers, mounts, Path("/etc/hosts").read_text()


def gone(lan):
    """Neither a process nor a file of these hosts is there."""
    return not psutil.pid_exists(lan.switch) and not lan.folder.exists()


def test_each_worker_has_a_host_and_they_talk_over_the_cable(lan):
    before = [lan.bytes_sent(number) for number in lan.numbers]
    run = lan.run("talk.py", quiet=True, time_limit=60)
    lines = {line[4:] for line in run.log.read_text().splitlines()}
    assert lines == {"host-1 10.0.0.1", "host-2 10.0.0.2"}
    for number, count in zip(lan.numbers, before, strict=True):
        assert lan.bytes_sent(number) - count > 4_000_000
    assert run.command.startswith("mpirun -np 2 -H host-1,host-2 ")
    assert run.command.endswith(" python talk.py")


def test_processes_come_to_the_other_host_as_the_agent_says(lan):
    listening = "LISTEN" in lan.do(2, "ss", "-Hltn", "sport = :22")
    assert listening == (lan.agent == namespaces.SSHD)
    assert ("sshd;" in lan.agent_in_words) == (lan.agent == namespaces.SSHD)
    answer = lan.do(1, str(lan.folder / "ssh"), "host-2", "hostname")
    assert answer == "host-2\n"


def test_no_more_goes_through_than_the_shape_lets_through(lan):
    lan.shape(20)
    try:
        volume = 2e6  # bytes, of which a burst goes at once
        limit = 20 * volume / (volume - namespaces.burst(20))
        assert lan.throughput() <= limit
    finally:
        lan.shape(None)
    assert "tbf" not in lan.do(1, "tc", "qdisc", "show", "dev", "eth0")


def test_mpi_waits_for_a_host_that_was_cut_off(lan):
    cut = namespaces.cut_off(
        lan, lan.run, "train.py", after=5, patience=5, quiet=True, time_limit=120
    )
    assert cut.said is None
    assert cut.waited >= 5


def test_mpi_notices_if_it_asks_often_enough(lan):
    cut = namespaces.cut_off(
        lan,
        lan.run,
        "train.py",
        after=5,
        patience=40,
        quiet=True,
        time_limit=120,
        mca=namespaces.QUICK_TO_NOTICE,
    )
    assert "lost communication with a remote daemon" in cut.said
    # The cable is back.
    lan.run("talk.py", quiet=True, time_limit=60)


def test_a_training_that_is_over_before_is_no_cut(lan):
    with pytest.raises(errors.UserError, match="nobody was cut off"):
        namespaces.cut_off(lan, lan.run, "talk.py", quiet=True, time_limit=60)


def test_a_failing_program_is_a_failing_run(lan, folder):
    program(folder, "raise ValueError('no such garment')", "fails.py")
    with pytest.raises(RunFailed, match="ValueError: no such garment"):
        lan.run("fails.py", quiet=True, time_limit=60)
    with pytest.raises(errors.UserError, match="there is no program"):
        lan.run("missing.py")


def test_what_can_not_be_is_refused(lan):
    for wrong in (0, -3, "fast"):
        with pytest.raises(errors.UserError, match="choose a number above 0"):
            lan.shape(wrong)
    with pytest.raises(errors.UserError, match="a number from 1"):
        namespaces.hosts(0).__enter__()
    with pytest.raises(errors.UserError, match=r"on host 2, `false`.*status 1"):
        lan.do(2, "false")


# ------------------------------------------------------------ nothing is left

OWNER = """\
import json
from utils.cluster import namespaces

with namespaces.hosts(3) as lan:
    print(json.dumps([lan.switch, str(lan.folder)]), flush=True)
    lan.run("train.py", quiet=True, time_limit=100)
"""


def test_nothing_is_left_after_an_exception(folder):
    before = machine()
    with contextlib.suppress(ZeroDivisionError), namespaces.hosts(2) as lan:
        assert not gone(lan)
        raise ZeroDivisionError
    assert gone(lan)
    assert machine() == before


@pytest.mark.parametrize("whom", ["the owner", "the owner and its supervisors"])
def test_nothing_is_left_when_it_is_killed(folder, whom):
    before = machine()
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER], cwd=folder, stdout=subprocess.PIPE, text=True
    )
    with owner:
        switch, place = json.loads(owner.stdout.readline())
        lan = namespaces.Lan(switch, [], "", Path(place))
        runs = set(folder.glob("logs/*/journal.csv"))
        wait_for(lambda: set(folder.glob("logs/*/journal.csv")) - runs, what="training")
        processes = psutil.Process(owner.pid).children(recursive=True)
        supervisors = psutil.Process(owner.pid).children()
        owner.kill()
        if whom != "the owner":
            for process in supervisors:
                process.kill()
    wait_for(lambda: not any(map(supervise._alive, processes)), what="all to end")
    if whom != "the owner":  # nobody was left to remove its files: the next ones do
        with namespaces.hosts(1):
            pass
    wait_for(lambda: gone(lan), what="the files to go")
    assert machine() == before


# ------------------------------------------------------------ with fewer rights

ASK = """\
from utils.cluster import namespaces

print(namespaces.why_not() or namespaces._start_agent())
with namespaces.hosts(2, mbit=100) as lan:
    print(lan.run("talk.py", quiet=True, time_limit=200).tail())
"""


def ask(*before):
    """What ASK says with the rights that the command `before` leaves it."""
    return captured([*before, sys.executable, "-c", ASK])


@pytest.mark.skipif(os.geteuid() != 0, reason="without root, all tests show this")
def test_hosts_need_no_roots_rights_where_users_may_have_namespaces(folder):
    answer = ask("setpriv", "--bounding-set=-sys_admin,-net_admin", "--inh-caps=-all")
    if "does not permit" in answer.stdout:
        pytest.skip(f"users may not have namespaces here: {answer.stdout}")
    assert answer.returncode == 0, answer.stderr
    agent, *workers = answer.stdout.splitlines()
    assert agent == namespaces.ENTER
    assert sorted(workers) == ["[0] host-1 10.0.0.1", "[1] host-2 10.0.0.2"]


def test_where_namespaces_are_forbidden_that_is_said(folder):
    forbid = 'echo 0 > /proc/sys/user/max_net_namespaces; exec "$@"'
    answer = ask("unshare", "--user", "--map-root-user", "sh", "-c", forbid, "sh")
    if "Read-only" in answer.stderr:
        pytest.skip("this container lets nobody forbid namespaces")
    assert answer.stdout.startswith("this system does not permit them (")
    assert "UserError: no hosts of their own here: this system" in answer.stderr
    assert answer.returncode == 1


# ------------------------------------------------------------ training


def test_the_prediction_is_that_of_the_cost_model():
    network = cost_model.wide_resnet(1)
    slow, silent = 8e-6 * network.bytes, 64.0  # Mbit/s that take a second; images/s

    def images(mbit, hidden):
        return network_speed.predicted(silent, 2, 32, network, mbit, hidden)

    # A step of 64 images computes for a second.
    assert images(1e9, False) == pytest.approx(64, rel=1e-3)
    assert images(slow, False) == pytest.approx(64 / 2)
    assert images(slow, True) == pytest.approx(64 / (1 + 1 - cost_model.BACKWARD))


def test_training_on_two_hosts_is_measured(folder, monkeypatch):
    monkeypatch.setattr(network_speed, "BANDWIDTHS", (20,))
    plan = bench.Plan(rounds=1, steps=2, batch=8, data="sample", train_images=60)
    section = network_speed.of_bench(plan, lambda text: None)
    assert [row.name for row in section.rows] == ["1 host", "2 hosts, 20 Mbit/s"]
    assert section.rows[1].base == "1 host"
    measured = network_speed.from_bench(section)
    two_hosts = measured["2 hosts, 20 Mbit/s"]
    assert two_hosts.images_per_second == section.rows[1].values[0]
    assert two_hosts.sent > two_hosts.gradients == 6 * cost_model.wide_resnet(1).bytes
    # A step lasts at least as long as its gradients need, which is a quarter second.
    rest = cost_model.wide_resnet(1).bytes - namespaces.burst(20)
    assert two_hosts.images_per_second < 2 * 8 / (8e-6 * rest / 20)
    assert two_hosts.predicted[0] <= two_hosts.predicted[1]
    table = network_speed.table(measured)
    assert list(table.index) == list(measured)
    points = figures.cluster.speeds(measured).axes[0].lines[0]
    one_host = measured["1 host"].images_per_second
    assert list(points.get_ydata()) == [two_hosts.images_per_second / one_host]


def test_an_elastic_training_goes_on_without_the_host_that_was_cut_off(folder):
    survive = course.PACKAGE_ROOT / "solutions" / "survive_solution.py"
    with namespaces.hosts(2) as lan:
        cut = namespaces.cut_off(
            lan,
            lan.run_elastic,
            survive,
            after=10,
            patience=500,
            quiet=True,
            time_limit=540,
            epochs=1,
            train_images=640,
            data="sample",
            batch_size=8,
        )
    assert cut.said == ""
    journal = elastic.journal(cut.run.folder)
    assert set(journal["workers"][journal["time"] < cut.time]) == {2}
    assert set(journal["workers"][journal["time"] > cut.time + 5]) == {1}
    assert journal["images"].iloc[-1] == journal["images"].max() >= 640 - 2 * 8
    assert figures.cluster.lost_host(cut).axes[0].lines
