"""The Slurm scripts, on a real Slurm of this machine's own, if it is installed.

Two nodes are one machine here: that each gets its tasks is real, that a network lies
between them is not.
"""

import contextlib
import csv
import os
import re
import runpy
import shutil
import subprocess
import tempfile
from pathlib import Path

import psutil
import pytest
from processes import wait_for

from distcheck import errors
from utils.base import course
from utils.cluster import slurm, tried

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

MPIRUN, SRUN = (f"solutions/cluster/slurm_{name}.sh" for name in ("mpirun", "srun"))
SCRIPTS = sorted((course.PACKAGE_ROOT / "solutions" / "cluster").glob("*.sh"))

# Takes the options that the scripts give, says who it is, and waits if it is told to.
GREETING = """\
import argparse, os, time
from pathlib import Path
from mpi4py import MPI

parser = argparse.ArgumentParser()
parser.add_argument("--checkpoint")
parser.add_argument("--log-dir", type=Path)
parser.add_argument("--then", default="end")
args = parser.parse_args()
world = MPI.COMM_WORLD
node, threads = os.environ["SLURMD_NODENAME"], os.environ["OMP_NUM_THREADS"]
words = node, world.rank, world.size, threads
args.log_dir.mkdir(parents=True, exist_ok=True)
(args.log_dir / f"{world.rank}.txt").write_text(" ".join(map(str, words)))
world.Barrier()
if args.then == "wait":
    time.sleep(1000)
if args.then == "fail":
    raise SystemExit(3)
"""

# The course's program with a small network. It stands still in its
# second epoch, until Slurm has started it again.
TINY = f"""\
import os, runpy, time
os.environ["TF_USE_LEGACY_KERAS"] = "1"  # before `survival` imports TensorFlow
from utils.training import networks, survival
networks.use_instead(networks.tiny)
write = survival.Journal.on_train_batch_end
def wait(self, batch, logs=None):
    write(self, batch, logs)
    if self.state.epoch == 1 and "SLURM_RESTART_COUNT" not in os.environ:
        time.sleep(1000)
survival.Journal.on_train_batch_end = wait
runpy.run_path({str(course.PACKAGE_ROOT / "solutions" / "survive_solution.py")!r})
"""


@pytest.fixture(scope="module")
def two_nodes():
    """A running cluster of two nodes, which leaves nothing. Its folder is in a private
    one, as a notebook's temporary files are."""
    if why := slurm.missing():
        pytest.skip(f"{why}; here the scripts were only read by bash -n.")
    with tempfile.TemporaryDirectory() as private, contextlib.ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tempfile, "tempdir", private)
            cluster = stack.enter_context(slurm.cluster(nodes=2, time_limit=300))
        yield cluster
    processes = [p for p in psutil.process_iter() if str(cluster.folder) in _line(p)]
    assert not processes
    assert not cluster.folder.exists()


def _line(process):
    try:
        return " ".join([*process.cmdline(), process.environ().get("SLURM_CONF", "")])
    except psutil.Error:
        return ""


@pytest.fixture
def place(own_course):
    """A course folder with the scripts and the two programs."""
    (own_course / "solutions").symlink_to(course.PACKAGE_ROOT / "solutions")
    (own_course / "greeting.py").write_text(GREETING)
    (own_course / "tiny.py").write_text(TINY)


def greetings(job):
    return sorted(p.read_text() for p in Path(f"logs/slurm-{job}").glob("?.txt"))


def output(job):
    return Path(f"survive-{job}.out").read_text()


def submit(two_nodes, script, *arguments, program="greeting.py", more="", **options):
    export = f"ALL,PROGRAM={program}{more}"
    return two_nodes.submit(script, *arguments, export=export, **options)


def time_is_nearly_up(two_nodes, job):
    """What --signal does two minutes before the end, now."""
    two_nodes.command("scancel", "--batch", "--signal=USR1", job)


def needs_pmix(two_nodes):
    try:
        two_nodes.command("srun", "--mpi=pmix", "true")
    except errors.UserError as error:
        pytest.skip(f"this Slurm starts nothing with PMIx: {error}")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_bash_can_read_the_script(script):
    subprocess.run(["bash", "-n", script], check=True, timeout=10)


@pytest.mark.parametrize("script", [MPIRUN, SRUN])
def test_a_script_asks_for_what_going_on_needs(script):
    text = (course.PACKAGE_ROOT / script).read_text()
    options = dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(.*))?$", text, re.M))
    assert options["signal"].startswith("B:USR1@")
    assert {"requeue", "time", "nodes", "ntasks-per-node"} <= set(options)
    assert options["open-mode"] == "append"


@pytest.mark.parametrize("script", [MPIRUN, SRUN])
def test_two_tasks_meet_on_one_node(two_nodes, place, script):
    if script == SRUN:
        needs_pmix(two_nodes)
    job = submit(two_nodes, script)
    facts = two_nodes.wait(job)
    assert facts["JobState"] == "COMPLETED", output(job)
    node = facts["NodeList"]
    assert greetings(job) == [f"{node} 0 2 1", f"{node} 1 2 1"]


@pytest.mark.parametrize("script", [MPIRUN, SRUN])
def test_other_numbers_of_nodes_tasks_and_cores_are_options(two_nodes, place, script):
    if script == SRUN:
        needs_pmix(two_nodes)
    job = submit(two_nodes, script, nodes=2, ntasks_per_node=1, cpus_per_task=2)
    facts = two_nodes.wait(job)
    assert facts["JobState"] == "COMPLETED", output(job)
    assert greetings(job) == ["node-0 0 2 2", "node-1 1 2 2"]


def test_srun_refuses_to_start_tasks_that_do_not_find_each_other(two_nodes, place):
    job = submit(two_nodes, SRUN, more=",PMI=pmi2")
    facts = two_nodes.wait(job)
    assert facts["JobState"] == "FAILED"
    assert "srun --mpi=pmi2 starts no 2 tasks that find each other" in output(job)
    assert greetings(job) == []


def test_a_job_that_asks_for_too_much_is_not_waited_for(two_nodes, place):
    job = submit(two_nodes, MPIRUN, nodes=3)
    with pytest.raises(errors.UserError, match="will never start"):
        two_nodes.wait(job)


def test_the_job_fails_as_its_program_does(two_nodes, place):
    job = submit(two_nodes, MPIRUN, "--then", "fail")
    facts = two_nodes.wait(job)
    assert (facts["JobState"], facts["ExitCode"]) == ("FAILED", "3:0")


def test_a_job_that_gets_nowhere_in_its_time_is_not_begun_again(two_nodes, place):
    job = submit(two_nodes, MPIRUN, "--then", "wait")
    wait_for(lambda: len(greetings(job)) == 2, what="both tasks to greet")
    time_is_nearly_up(two_nodes, job)
    facts = two_nodes.wait(job)
    assert (facts["JobState"], facts["Restarts"]) == ("FAILED", "0")
    assert "No checkpoint was made within the time limit" in output(job)


def test_a_training_goes_on_after_its_time_limit(two_nodes, place):
    options = {"epochs": 2, "train-images": 60, "batch-size": 10, "data": "sample"}
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    job = submit(two_nodes, MPIRUN, *words, program="tiny.py")
    checkpoints = Path(f"logs/slurm-{job}/checkpoints")
    wait_for(
        lambda: list(checkpoints.glob("*.index")),
        seconds=150,
        what="the first checkpoint",
    )
    time_is_nearly_up(two_nodes, job)
    facts = two_nodes.wait(job, time_limit=200)
    assert (facts["JobState"], facts["Restarts"]) == ("COMPLETED", "1"), output(job)
    assert "goes back to the queue" in output(job)
    histories = [Path(f"logs/slurm-{job}", f"history{n}.csv") for n in ("", "-1")]
    epochs = [[int(row["epoch"]) for row in read(path)] for path in histories]
    assert epochs == [[0], [1]]  # it went on, and did none twice
    assert (checkpoints / "ckpt-2.index").exists()


def read(path):
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    ("gpus", "chosen"),
    [
        ([], []),
        (["GPU:0"], ["GPU:0"]),  # Slurm shows each task one
        (["GPU:0", "GPU:1", "GPU:2"], ["GPU:1"]),
    ],
)
def test_a_task_of_slurm_chooses_its_gpu_and_finds_the_others(
    monkeypatch, gpus, chosen
):
    import tensorflow as tf

    variables = {"JOB_ID": 12_003, "PROCID": 3, "LOCALID": 1, "STEP_NUM_TASKS": 4}
    variables |= {"STEP_NODELIST": "n[1-2]", "STEP_TASKS_PER_NODE": "2(x2)"}
    for name, value in variables.items():
        monkeypatch.setenv(f"SLURM_{name}", str(value))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "as Slurm has it")
    taken, resolvers = [], []
    for place, name, instead in (
        (tf.config, "list_physical_devices", lambda kind: gpus),
        (tf.config, "set_visible_devices", lambda gpu, kind: taken.append(gpu)),
        (tf.config.experimental, "set_memory_growth", lambda gpu, grows: None),
        (tf.distribute, "MultiWorkerMirroredStrategy", resolvers.append),
    ):
        monkeypatch.setattr(place, name, instead)
    program = course.PACKAGE_ROOT / "solutions" / "cluster" / "slurm_workers.py"
    with pytest.raises(AttributeError, match="experimental_local_results"):
        runpy.run_path(str(program))  # to where it would compute
    assert taken == chosen
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "as Slurm has it"
    (resolver,) = resolvers
    addresses = ["n1:10048", "n1:10049", "n2:10048", "n2:10049"]
    assert resolver.cluster_spec().as_dict() == {"worker": addresses}
    assert (resolver.task_type, resolver.task_id) == ("worker", 3)
    assert resolver.num_accelerators() == {"GPU": len(chosen)}


OWN_SCRIPT = """\
#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --time=00:10:00
#SBATCH --signal=B:USR1@60
#SBATCH --requeue
. solutions/cluster/slurm_resume.sh || exit
resume mpirun python tiny.py --epochs 2 --train-images 60 --batch-size 10 \\
    --data sample --log-dir $RUN --checkpoint $RUN/checkpoints
"""


def test_a_script_that_a_learner_wrote_is_submitted_and_judged(place):
    if why := slurm.missing():
        pytest.skip(f"{why}.")
    attempt = tried.script(OWN_SCRIPT, interrupted=True)
    assert attempt.right, attempt
    assert "went on after it was interrupted" in repr(attempt)
    alone = OWN_SCRIPT.replace("resume mpirun ", "").replace("tiny.py", "greeting.py")
    attempt = tried.script(re.sub("--(epochs|train-images|batch-size) .*", "", alone))
    assert not attempt.right
    wrong = tried.script(OWN_SCRIPT.replace("--time=00:10:00", "--time=soon"))
    assert not wrong.right
    assert "sbatch" in repr(wrong)


def test_where_slurm_is_missing_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name, path=None: None)
    with pytest.raises(errors.UserError, match=r"not installed.*apt install slurm"):
        with slurm.cluster():
            pass


def test_a_cluster_that_does_not_start_says_why(monkeypatch):
    if why := slurm.missing():
        pytest.skip(f"{why}.")
    before = set(Path(os.environ.get("TMPDIR", "/tmp")).glob("slurm-*"))
    wrong = slurm.CONFIGURATION.replace("SelectType=", "NoSuchOption=")
    monkeypatch.setattr(slurm, "CONFIGURATION", wrong)
    monkeypatch.setattr(slurm, "START_SECONDS", 1.0)
    with pytest.raises(errors.UserError, match="NoSuchOption"):
        with slurm.cluster():
            pass
    assert set(Path(os.environ.get("TMPDIR", "/tmp")).glob("slurm-*")) <= before
