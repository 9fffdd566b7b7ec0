"""The page on clusters: its numbers are what its commands print; its files exist."""

import re
import runpy
import shlex
import sys

import pytest
from processes import captured

from distcheck import mpi
from utils.base import course
from utils.cluster import elastic, handed_in, namespaces, recorded, slurm, tried
from utils.measure import cost_model
from utils.running import launchers

PAGE = (course.PACKAGE_ROOT / "exercises" / "clusters.md").read_text()
PROGRAM = "solutions/cluster/one_node_or_many.py"
COMMANDS = re.findall(rf"^`(python {PROGRAM}.*)`\n\n((?:\|.*\n)+)", PAGE, re.M)
WIRES = runpy.run_path(str(course.PACKAGE_ROOT / PROGRAM))


def test_the_page_has_both_tables():
    assert len(COMMANDS) == 2


@pytest.mark.parametrize(("command", "table"), COMMANDS)
def test_a_table_is_what_its_command_prints(command, table):
    python, _, *words = shlex.split(command)
    assert python == "python"
    assert WIRES["table"](**vars(WIRES["options"](words))) + "\n" == table


def test_the_command_prints_its_table():
    command, table = COMMANDS[0]
    done = captured(
        [sys.executable, *shlex.split(command)[1:]], cwd=course.PACKAGE_ROOT
    )
    assert (done.returncode, done.stdout) == (0, table)


def test_the_bytes_are_those_of_the_networks():
    sentence = re.search(
        r"100 MB for (.*?), 180 MB for (.*?), 550 MB for (.*?)\.", PAGE
    )
    by_name = {row.network.name: row.network for row in cost_model.HOROVOD_2018}
    for name, megabytes in zip(sentence.groups(), (100, 180, 550), strict=True):
        assert by_name[name].bytes / 1e6 == pytest.approx(megabytes, rel=0.06)


def test_eight_fast_gpus_on_slow_ethernet_are_not_worth_more_than_two():
    efficiencies = WIRES["efficiencies"](workers=8, batch=64, faster=10)
    least, most = efficiencies["nodes, Ethernet 10 Gbit/s"]["ResNet-101"]
    assert 1 < 8 * least < 8 * most < 2


def test_the_files_that_the_page_names_are_there():
    named = set(re.findall(r"(?:solutions|utils|exercises)/[\w/]+\.\w+", PAGE))
    named |= {
        f"solutions/cluster/{name}" for name in ("mpijob.yaml", "slurm_mpirun.sh")
    }
    assert {
        name for name in named if not (course.PACKAGE_ROOT / name).exists()
    } == set()


def commands_for_hosts():
    """The commands that the page has for hosts a and b, as lists of words."""
    text = "\n".join(re.findall(r"^```\n(.*?)^```", PAGE, re.M | re.S))
    lines = text.replace("\\\n", " ").splitlines()
    return [shlex.split(line) for line in lines if " -np 8 " in line]


# This machine in their place.
HERE = {
    "8": "2",
    "a:4,b:4": "localhost:2",
    "eth0": launchers.loopback(),
    "10.0.0.0/24": "127.0.0.0/8",
}


@pytest.mark.slow
@pytest.mark.parametrize("words", commands_for_hosts(), ids=" ".join)
def test_commands_for_hosts_start_workers(words, tmp_path):
    program = words[words.index("python") + 1]
    assert (course.PACKAGE_ROOT / program).exists()
    (tmp_path / "hosts").write_text("localhost slots=2\n")
    (tmp_path / "here.py").write_text("print('here')")
    line = [HERE.get(word, word) for word in words[: words.index("python")]]
    done = captured(
        [*line, sys.executable, "here.py"], cwd=tmp_path, env=mpi.clean_environment()
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("here") == 2


def test_there_are_commands_for_hosts():
    commands = commands_for_hosts()
    assert [words[0] for words in commands] == ["mpirun", "mpirun", "horovodrun"]
    for words in commands[:2]:
        assert {"btl_tcp_if_include", "oob_tcp_if_include", "ob1"} <= set(words)
        assert "NCCL_SOCKET_IFNAME=eth0" in words


def test_numbers_that_make_no_sense_are_refused(capsys):
    with pytest.raises(SystemExit):
        WIRES["options"](["--workers", "1"])
    assert "2 workers or more" in capsys.readouterr().err


def test_what_slurm_needs_is_said_in_the_same_words_everywhere():
    makefile = (course.PACKAGE_ROOT / "Makefile").read_text()
    assert slurm.PACKAGES in PAGE
    assert slurm.PACKAGES in makefile
    assert slurm.PACKAGES in slurm.LACKING


# ------------------------------------------------------------ what is handed in

MPIRUN = """mpirun -np 16 -H gpu1:8,gpu2:8 --bind-to none --mca pml ob1 \\
    --mca oob_tcp_if_include ib0 --mca btl_tcp_if_include ib0 \\
    -x NCCL_SOCKET_IFNAME=ib0 -x NCCL_DEBUG=WARN python train.py -np 2"""
BY_UCX = MPIRUN.replace("--mca pml ob1", "-x UCX_NET_DEVICES=mlx5_0:1")
BY_UCX = BY_UCX.replace("--mca btl_tcp_if_include ib0", "")
SBATCH = """#!/bin/bash
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@600
#SBATCH --requeue
"""
MPIJOB = (course.PACKAGE_ROOT / "solutions" / "cluster" / "mpijob.yaml").read_text()
MPIJOB = MPIJOB.replace("REGISTRY/", "registry.example/")
SPARK = """horovod.spark.run(
    train, args=(args,), num_proc=8, use_gloo=True, start_timeout=300, verbose=0
)"""


def mpirun(text):
    return handed_in.mpirun_problem(text, {"gpu1": 8, "gpu2": 8}, "ib0")


def sbatch(text):
    return handed_in.sbatch_problem(text, nodes=4, gpus=8, hours=24, warning=600)


def mpijob(text):
    return handed_in.mpijob_problem(text, pods=2, slots=2)


def spark(text):
    return handed_in.spark_problem(text, workers=8, seconds=300)


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        (mpirun, MPIRUN),
        (mpirun, MPIRUN.replace("-np 16", "-n 16").replace("=ib0", "==ib0")),
        (mpirun, MPIRUN.replace("-H ", "--host ").replace("WARN", "INFO")),
        (mpirun, MPIRUN.replace("-np", "--np").replace("--mca", "-mca")),
        (
            mpirun,
            MPIRUN.replace("mpirun", "a/mpirun").replace("python", "a/python3.12"),
        ),
        (mpirun, BY_UCX),
        (sbatch, SBATCH),
        (sbatch, SBATCH.replace("24:00:00", "1-00:00:00").replace("@600", "@900")),
        (sbatch, SBATCH.replace("24:00:00", "1-0").replace("USR1", "SIGUSR1")),
        (sbatch, SBATCH.replace("24:00:00", "1440 # minutes")),
        (sbatch, SBATCH.replace("--nodes=", "-N").replace("--time=", "-t ")),
        (
            sbatch,
            SBATCH.replace("node=8", "node 8").replace(
                "gpus-per-node ", "gpus-per-node=h100:"
            ),
        ),
        (mpijob, MPIJOB),
        (mpijob, MPIJOB.replace('cpu: "2"', "cpu: 4")),
        (mpijob, MPIJOB.replace('cpu: "2"', "cpu: 2000m")),
        (spark, SPARK),
        (spark, SPARK.replace("verbose=0", "nics=None")),
        (spark, SPARK.replace("train, args=(args,)", "fn=train, args=[args]")),
        (spark, SPARK.replace("args=(args,)", "(args,)")),
    ],
)
def test_what_is_right_is_found_right(problem, text):
    assert problem(text) == ""


@pytest.mark.parametrize(
    ("problem", "old", "new", "says"),
    [
        (mpirun, "-np 16", "-np 2", "-np says 2"),
        (mpirun, "-np 16 ", "", "-np says nothing"),
        (mpirun, "gpu2:8", "gpu2", "-H says gpu1:8,gpu2;"),
        (mpirun, "oob_tcp_if_include ib0", "oob_tcp_if_include eth0", "is eth0"),
        (mpirun, "--mca btl_tcp_if_include ib0", "", "btl_tcp_if_include is not set"),
        (mpirun, "--mca pml ob1", "", "messages go by UCX"),
        (mpirun, "--mca pml ob1", "--mca pml ucx", "messages go by UCX"),
        (mpirun, "-x NCCL_SOCKET_IFNAME=ib0", "", "NCCL_SOCKET_IFNAME"),
        (mpirun, "_IFNAME=ib0", "_IFNAME=ib1", "NCCL_SOCKET_IFNAME is not ib0"),
        (mpirun, "NCCL_DEBUG=WARN", "NCCL_DEBUG=", "NCCL_DEBUG"),
        (mpirun, "python train.py", "train.py", "no program"),
        (mpirun, "mpirun", "'mpirun", "could not read"),
        (sbatch, "nodes=4", "nodes=1", "--nodes is 1"),
        (sbatch, "#SBATCH --gpus-per-node=8", "", "--gpus-per-node is not there"),
        (sbatch, "ntasks-per-node=8", "ntasks-per-node=4", "--ntasks-per-node is 4"),
        (sbatch, "24:00:00", "24:00", "asks for 0.4 hours"),
        (sbatch, "24:00:00", "1-24", "asks for 48 hours"),
        (sbatch, "24:00:00", "one day", "--time is one"),
        (sbatch, "24:00:00", "'24:00:00", "could not read"),
        (sbatch, "24:00:00", "12:00:00", "12 hours"),
        (
            sbatch,
            "gpus-per-node=8",
            "gpus-per-node=h100:4",
            "--gpus-per-node is h100:4",
        ),
        (sbatch, "B:USR1@600", "USR1@600", "batch script (B)"),
        (sbatch, "@600", "@60", "60 s before the end"),
        (sbatch, "#SBATCH --requeue", "# SBATCH --requeue", "--requeue"),
        (mpijob, "      replicas: 2", "      replicas: 3", "3 replicas"),
        (mpijob, "slotsPerWorker: 2", "slotsPerWorker: 4", "slotsPerWorker is 4"),
        (mpijob, 'cpu: "2"', 'cpu: "1"', "1 cores for 2 workers"),
        (mpijob, 'cpu: "2"', "cpu: 1500m", "1.5 cores for 2 workers"),
        (mpijob, 'cpu: "2"', "cpu: two", "no MPIJob"),
        (mpijob, "registry.example/", "REGISTRY/", "nobody has that"),
        (mpijob, "  mpiReplicaSpecs", "  replicaSpecs", "no MPIJob"),
        (mpijob, "spec:", "spec: [", "no MPIJob"),
        (spark, "train,", "train(args),", "not what it returns"),
        (spark, "(args,)", "args", "as a tuple"),
        (spark, "num_proc=8, ", "", "num_proc is not there"),
        (spark, "=300", "=30", "start_timeout is 30"),
        (spark, "use_gloo=True, ", "", "use_gloo"),
        (spark, "horovod.spark", "horovod", "no call"),
        (spark, "verbose=0", "verbose=", "could not read"),
    ],
)
def test_what_is_wrong_is_found_wrong(problem, old, new, says):
    text = {mpirun: MPIRUN, sbatch: SBATCH, mpijob: MPIJOB, spark: SPARK}[problem]
    assert old in text
    assert says in problem(text.replace(old, new))


TWO_HOSTS = """mpirun -np 2 -H host-1,host-2 --mca oob_tcp_if_include eth0 \\
    --mca btl_tcp_if_include eth0 python who_is_there.py"""
TWO_NODES = """#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --time=00:10:00
#SBATCH --signal=B:USR1@120
. solutions/cluster/slurm_resume.sh || exit
resume mpirun python train.py --log-dir $RUN
"""


def two_hosts(text):
    hosts = {"host-1": 1, "host-2": 1}
    return handed_in.mpirun_problem(text, hosts, "eth0", gpus=False)


def two_nodes(text):
    return handed_in.two_nodes_problem(text, signal=True)


def test_hosts_without_gpus_need_neither_nccl_nor_ucx():
    assert two_hosts(TWO_HOSTS) == ""
    assert "btl_tcp_if_include is ib0" in two_hosts(
        TWO_HOSTS.replace("btl_tcp_if_include eth0", "btl_tcp_if_include ib0")
    )


def test_a_script_for_two_nodes_is_read():
    assert two_nodes(TWO_NODES) == ""
    once = re.sub("#SBATCH --signal.*\n", "", TWO_NODES)
    assert handed_in.two_nodes_problem(once, signal=False) == ""
    for old, new, says in (
        ("#!/bin/bash\n", "", "first line"),
        ("nodes=2", "nodes=1", "--nodes is 1"),
        ("00:10:00", "soon", "--time is soon"),
        ("mpirun ", "", "Neither mpirun nor srun"),
        ("$RUN", "kept", "$RUN"),
        ("B:USR1", "USR1", "batch script (B)"),
        (". solutions/cluster/slurm_resume.sh || exit\n", "", "waits for USR1"),
    ):
        assert old in TWO_NODES
        assert says in two_nodes(TWO_NODES.replace(old, new))


def test_what_was_not_written_is_not_tried():
    for attempt in (tried.line("\n"), tried.script("#!/bin/bash\n")):
        assert (attempt.right, repr(attempt)) == (None, tried.NOTHING)


def test_without_hosts_or_slurm_what_was_written_is_read(monkeypatch):
    monkeypatch.setattr(tried.namespaces, "why_not", lambda: "no namespaces")
    monkeypatch.setattr(tried.slurm, "missing", lambda: "no Slurm")
    for attempt in (tried.line(TWO_HOSTS), tried.script(TWO_NODES, interrupted=True)):
        assert attempt.right
        assert "only read" in repr(attempt)
    assert not tried.line(TWO_HOSTS.replace("-np 2", "-np 4")).right
    assert not tried.script(TWO_NODES.replace("nodes=2", "nodes=4")).right


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_line_is_typed_on_the_first_of_two_hosts(monkeypatch):
    if why := namespaces.why_not():
        pytest.skip(why)
    program = course.PACKAGE_ROOT / "solutions" / "cluster" / "who_is_there.py"
    text = TWO_HOSTS.replace("who_is_there.py", str(program))
    assert tried.line(text).right
    alone = tried.line(text.replace("host-1,host-2", "host-1:2"))
    assert not alone.right
    assert "rank 1 is on host-1" in repr(alone)


# ------------------------------------------------------------ what was recorded


@pytest.mark.parametrize(
    "name",
    ["slurm", "slurm_tasks", "slurm_workers", "spark", "cut_off", "lost_host"],
)
def test_a_recorded_run_says_where_it_comes_from(name):
    origin = recorded.read(name)["origin"]
    assert re.search(r"^The record of a real run.* on \d+ \w+ 20\d\d", origin)


def test_recorded_workers_trained_together():
    job = recorded.read("slurm")
    assert (job["workers"], job["facts"]["JobState"]) == ([2], "COMPLETED")
    assert "Time is nearly up: job 1 goes back to the queue." in job["said"]
    assert job["checkpoints"] == ["ckpt-1", "ckpt-2"]
    results = recorded.read("spark")["results"]
    assert [worker["images"] for worker in results] == [320, 320]
    assert len({worker["digest"] for worker in results}) == 1


def test_a_recorded_host_was_lost():
    cut, _ = recorded.cut_off("lost_host")
    journal = elastic.journal(cut.run.folder)
    assert journal["workers"].unique().tolist() == [2, 1]
    assert journal["time"].iloc[0] < cut.time < journal["time"].iloc[-1]
    assert recorded.cut_off("cut_off")[0].waited > 3


def test_what_is_recorded_of_a_job_is_what_it_left(tmp_path):
    (tmp_path / "journal.csv").write_text("time,host,workers\n1,a,1\n2,a,2\n")
    bar = "1/5 [=>..] - ETA: 3s - loss: 1\b\b\n5/5 [====] - 9s - loss: 1\n"
    (tmp_path / "said.txt").write_text(f"NOTICE: a sample\n{bar}\nthe end\n")
    (tmp_path / "ckpt-1.index").touch()
    facts = {"JobState": "FAILED", "NodeList": "a", "Restarts": "0", "More": "x"}
    assert recorded.of_job(facts, tmp_path) == {
        "facts": {"JobState": "FAILED", "NodeList": "a", "Restarts": "0"},
        "said": ["5/5 [====] - 9s - loss: 1", "the end"],
        "workers": [1, 2],
        "checkpoints": ["ckpt-1"],
    }
