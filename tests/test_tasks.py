"""Clusters of real processes: how they end, what they say, that nothing survives."""

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from processes import (
    assert_none_is_left,
    course_command,
    descendants_of_runs_in,
    empty_course,
    in_a_plain_shell,
    program,
    wait_for,
    wait_until_none_is_left,
)

from distcheck import errors, machine, supervise, tasks
from utils.running import launch, watch
from utils.running.result import RunFailed

# Each task greets, and then does what the test asks for.
PROGRAM = """\
import json, os, signal, sys, time
from pathlib import Path

me = json.loads(os.environ["TF_CONFIG"])["task"]
me = f"{me['type']} {me['index']}"
what, who = sys.argv[1:3] if len(sys.argv) > 2 else ("end", me)
print(f"this is {me}", flush=True)
Path(me).touch()
while len(list(Path.cwd().glob("* [0-9]"))) < int(os.environ.get("TASKS", "2")):
    time.sleep(0.01)
first = not Path(f"{me} again").exists()
Path(f"{me} again").touch()
if what == "raise" and me == who:
    raise ValueError("no such garment")
if what == "die" and me == who:
    os.kill(os.getpid(), signal.SIGKILL)
if what == "die once" and me == who and first:
    os.kill(os.getpid(), signal.SIGKILL)
if what in ("raise", "die", "sleep") and me != who:
    time.sleep(1000)
if what == "serve" and me != who:
    time.sleep(1000)
print(f"{me} is done", flush=True)
"""

START = (
    "from utils import run; "
    "run('program.py', 'sleep', 'nobody', tasks={'worker': 2}, time_limit=120)"
)
TWO = {"worker": ["127.0.0.1:5001", "127.0.0.1:5002"]}


@pytest.fixture
def folder(tmp_path):
    """An empty course with a program in it, and no process left after."""
    program(tmp_path, PROGRAM)
    with empty_course(tmp_path):
        yield tmp_path
    assert_none_is_left(tmp_path)


def test_every_task_learns_who_it_is_and_the_log_tells_them_apart(folder, capsys):
    run = launch.run("program.py", tasks={"worker": 2})
    assert (run.status, run.workers) == (0, 2)
    assert sorted(run.log.read_text().splitlines()) == [
        "[0] this is worker 0",
        "[0] worker 0 is done",
        "[1] this is worker 1",
        "[1] worker 1 is done",
    ]
    assert capsys.readouterr().out.startswith("$ ")


def test_tasks_share_the_cores_and_have_addresses_of_their_own(folder, monkeypatch):
    monkeypatch.setattr(machine, "cores", lambda: 6)
    text = (
        "import os; print({n: v for n, v in os.environ.items() if n[:3] in 'OMP_TF_'})"
    )
    program(folder, text, "seen.py")
    run = launch.run("seen.py", tasks={"ps": 1, "chief": 1, "worker": 1})
    lines = run.log.read_text().splitlines()
    environments = {int(line[1]): eval(line[4:]) for line in lines}
    assert environments
    for rank, variables in environments.items():
        task = tasks.this_task(variables)
        assert task.rank == rank
        assert list(task.cluster) == ["chief", "worker", "ps"]
        assert variables["TF_NUM_INTRAOP_THREADS"] == "6"  # one of them trains
        addresses = [a for listed in task.cluster.values() for a in listed]
        assert len(set(addresses)) == 3


def test_no_port_is_chosen_that_an_outgoing_connection_may_take_meanwhile():
    listed = tasks.free_cluster({"worker": 50})["worker"]
    ports = {int(address.partition(":")[2]) for address in listed}
    assert len(ports) == 50
    assert ports <= set(tasks.PORTS)
    system = Path("/proc/sys/net/ipv4/ip_local_port_range")
    if system.exists():
        first, last = map(int, system.read_text().split())
        assert not set(tasks.PORTS) & set(range(first, last + 1))


def test_the_command_shown_does_the_same_from_a_plain_shell(folder):
    run = launch.run("program.py", tasks={"worker": 2})
    for path in folder.glob("worker*"):
        path.unlink()
    printed = in_a_plain_shell(run.command)
    assert "worker 0 is done" in printed
    assert "worker 1 is done" in printed


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("raise", "ValueError: no such garment, in line 14"),
        ("die", "it was ended by signal 9, Killed"),
    ],
)
def test_a_task_that_fails_ends_the_run_and_is_named(folder, what, message):
    with pytest.raises(RunFailed, match=f"^worker 1 failed: {message}") as error:
        launch.run("program.py", what, "worker 1", tasks={"worker": 2}, time_limit=60)
    assert "[1] this is worker 1" in str(error.value)
    assert "[0]" not in str(error.value)
    assert error.value.run.status == (1 if what == "raise" else 128 + signal.SIGKILL)
    assert not descendants_of_runs_in(folder)


def test_the_time_limit_ends_the_run(folder):
    with pytest.raises(RunFailed, match="time limit of 3 s") as error:
        launch.run("program.py", "sleep", "", tasks={"worker": 2}, time_limit=3)
    assert error.value.run.status == supervise.TIMED_OUT
    assert not descendants_of_runs_in(folder)


@pytest.mark.parametrize("victim", ["owner", "supervisor", "launcher", "worker 1"])
def test_killing_a_part_ends_the_whole(folder, victim):
    import psutil

    owner = subprocess.Popen(
        [sys.executable, "-c", START],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    wait_for(lambda: len(list(folder.glob("worker ? again"))) == 2, what="greetings")
    (supervisor,) = psutil.Process(owner.pid).children()
    (launcher,) = supervisor.children()
    (run,) = folder.glob("logs/*")
    {
        "owner": owner,
        "supervisor": supervisor,
        "launcher": launcher,
        "worker 1": watch.worker_processes(run)[1],
    }[victim].kill()
    output, _ = owner.communicate(timeout=30)
    assert owner.returncode != 0
    if victim == "worker 1":
        assert "worker 1 failed: it was ended by signal 9" in output
    wait_until_none_is_left(folder)


def test_a_chief_that_ended_well_ends_its_servers(folder, monkeypatch):
    monkeypatch.setenv("TASKS", "3")
    cluster = {"chief": 1, "worker": 1, "ps": 1}
    run = launch.run("program.py", "serve", "chief 0", tasks=cluster, time_limit=60)
    assert run.status == 0
    assert "[0] chief 0 is done" in run.log.read_text()
    assert "worker 0 is done" not in run.log.read_text()


def test_without_servers_all_tasks_must_end(folder):
    program(
        folder,
        "import os, time\n"
        "time.sleep('\"index\": 1' in os.environ['TF_CONFIG'])\n"
        "print('done')",
        "late.py",
    )
    run = launch.run("late.py", tasks={"worker": 2})
    assert sorted(run.log.read_text().splitlines()) == ["[0] done", "[1] done"]


def test_workers_in_step_are_all_started_again(folder):
    two = {"worker": 2}
    run = launch.run("program.py", "die once", "worker 1", tasks=two, restarts=1)
    lines = run.log.read_text().splitlines()
    message = "worker 1 was ended by signal 9, Killed; all tasks are started again"
    assert lines.count(f"[1] --- {message} ---") == 1
    assert lines.count("[0] this is worker 0") == 2
    assert lines.count("[1] this is worker 1") == 2
    assert lines.count("[1] worker 1 is done") == 1
    with pytest.raises(RunFailed, match="worker 1 failed: it was ended") as e:
        launch.run("program.py", "die", "worker 1", tasks=two, restarts=1)
    assert e.value.run.log.read_text().count("[1] this is worker 1") == 2


# The worker dies once; the chief ends when it is back; servers never end.
CHIEF_WAITS = """\
import json, os, signal, time
from pathlib import Path

kind = json.loads(os.environ["TF_CONFIG"])["task"]["type"]
print(f"this is the {kind}", flush=True)
if kind == "worker" and not Path("died").exists():
    Path("died").touch()
    os.kill(os.getpid(), signal.SIGKILL)
if kind == "worker":
    Path("back").touch()
while kind != "chief" or not Path("back").exists():
    time.sleep(0.01)
"""


def test_beside_servers_only_the_task_that_failed_is_started_again(folder):
    program(folder, CHIEF_WAITS, "chief_waits.py")
    cluster = {"chief": 1, "ps": 1, "worker": 1}
    run = launch.run("chief_waits.py", tasks=cluster, restarts=1, time_limit=60)
    lines = run.log.read_text().splitlines()
    message = "worker 0 was ended by signal 9, Killed; it is started again"
    assert lines.count(f"[1] --- {message} ---") == 1
    assert lines.count("[1] this is the worker") == 2
    assert lines.count("[0] this is the chief") == 1


def test_a_tolerated_task_may_fail_but_not_all_of_them(folder):
    two = {"worker": 2}
    run = launch.run("program.py", "die once", "worker 1", tasks=two, tolerate="worker")
    assert "[0] worker 0 is done" in run.log.read_text()
    assert "worker 1 was ended by signal 9, Killed; the others go on" in run.tail()
    program(folder, "1 / 0", "all.py")
    with pytest.raises(RunFailed, match="failed: ZeroDivisionError"):
        launch.run("all.py", tasks=two, tolerate="worker")


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ({"boss": 1}, "no tasks of type 'boss'"),
        ({"worker": 0}, "worker must be 1 or more, not 0"),
        ({"worker": "2"}, "worker must be 1 or more"),
        ({"chief": 2}, "one chief, not 2"),
        ({"ps": 2}, "needs a worker"),
        ({}, "needs a worker"),
    ],
)
def test_a_cluster_that_makes_no_sense_is_refused(folder, counts, message):
    with pytest.raises(errors.UserError, match=message):
        launch.run("program.py", tasks=counts)
    assert not (folder / "logs").exists()


def test_only_tasks_that_there_are_can_be_tolerated(folder):
    with pytest.raises(errors.UserError, match="tolerate is 'workers'"):
        launch.run("program.py", tasks={"worker": 2}, tolerate="workers")


def test_a_run_started_by_a_task_is_no_task_itself(folder, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "{}")
    monkeypatch.setenv("DISTCHECK_TASK", "5")
    program(folder, "import os; print(os.environ.get('TF_CONFIG'))", "mpi.py")
    assert launch.run("mpi.py", workers=1).tail() == "[0] None"


def test_the_command_line_starts_tasks_too(folder):
    good = course_command("run", "program.py", "--tasks", "worker=2")
    assert good.returncode == 0
    assert "worker 1 is done" in good.stdout
    bad = course_command("run", "program.py", "--tasks", "worker:2")
    assert bad.returncode == 2
    assert "write them as chief=1,worker=2,ps=1" in bad.stderr


def config(cluster=TWO, kind="worker", index=0, **more):
    return {"cluster": cluster, "task": {"type": kind, "index": index}, **more}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{'cluster': {}}", "not JSON.* at character 2 .*double quotes only"),
        ("[]", 'no "cluster"'),
        ({"task": {"type": "worker", "index": 0}}, 'no "cluster"'),
        (config(cluster=[]), 'no "cluster"'),
        (config(cluster={}), "its cluster is empty"),
        ({"cluster": TWO}, 'no "task" with "type" and "index"'),
        ({"cluster": TWO, "task": {"type": "worker"}}, 'no "task" with'),
        ({"cluster": TWO, "task": 1}, 'no "task" with'),
        (config(kind="ps"), "task is of type 'ps'; its cluster has worker only"),
        (config(cluster={"boss": ["a:1"]}), "tasks of type 'boss'"),
        (config(index=2), "task is worker 2; .* 2 of that type, counted from 0 to 1"),
        (config(index=-1), "task is worker -1"),
        (config(index="1"), r"task is worker '1'; .*a number, without quotes"),
        (config(index=True), "task is worker True"),
        (config(cluster={"worker": "a:1"}), "must be a list"),
        (config(cluster={"worker": []}), "must be a list"),
        (config(cluster={"worker": ["localhost"]}), "'localhost', is not host:port"),
        (config(cluster={"worker": ["host:x"]}), "is not host:port"),
        (config(cluster={"worker": [":80"]}), "is not host:port"),
        (config(cluster={"worker": ["a:0"]}), "port of worker 0, 0, is out of range"),
        (config(cluster={"worker": ["a:65536"]}), "65536, is out of range"),
        (
            config(cluster={"worker": ["a:1"], "ps": ["a:1"]}),
            "worker 0 and ps 0 both have the address a:1",
        ),
        (config(cluster={"chief": ["a:1", "a:2"]}, kind="chief"), "several chiefs"),
    ],
)
def test_a_malformed_tf_config_is_explained(text, message):
    text = text if isinstance(text, str) else json.dumps(text)
    with pytest.raises(errors.UserError, match=message) as error:
        tasks.this_task({"TF_CONFIG": text})
    # The example that the message gives is right.
    example = str(error.value).partition("A right one: ")[2]
    assert tasks.this_task({"TF_CONFIG": example}).rank == 0


def test_who_is_the_chief():
    def task(kind, index, cluster=TWO):
        text = json.dumps(config(cluster, kind, index))
        return tasks.this_task({"TF_CONFIG": text})

    assert task("worker", 0).is_chief
    assert not task("worker", 1).is_chief
    with_chief = {**TWO, "chief": ["a:1"]}
    assert task("chief", 0, with_chief).is_chief
    assert not task("worker", 0, with_chief).is_chief
    assert task("worker", 0, with_chief).rank == 1
    assert task("worker", 1).address == "127.0.0.1:5002"
    assert tasks.this_task({}).is_chief


def test_an_address_that_is_taken_is_named(monkeypatch):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        cluster = {"worker": [f"127.0.0.1:{port}"]}
        monkeypatch.setenv("TF_CONFIG", json.dumps(config(cluster)))
        with pytest.raises(errors.UserError, match=f"127.0.0.1:{port}: Address alr"):
            tasks.enter()
    assert tasks.enter().address == f"127.0.0.1:{port}"
    elsewhere = config({"worker": ["192.0.2.1:5001"]})
    monkeypatch.setenv("TF_CONFIG", json.dumps(elsewhere))
    with pytest.raises(errors.UserError, match="can't listen at its address 192"):
        tasks.enter()


def test_each_task_that_computes_gets_a_gpu_of_its_own(monkeypatch, pretend):
    cluster = {"chief": ["a:1"], "worker": ["a:2", "a:3"], "ps": ["a:4"]}

    def seen():
        return {
            str(task): tasks.own_environment(task).get("CUDA_VISIBLE_DEVICES")
            for task in tasks.tasks_of(cluster)
        }

    pretend(gpus=0)
    assert set(seen().values()) == {None}
    pretend(gpus=2)
    alone = {"chief 0": "-1", "worker 0": "0", "worker 1": "1", "ps 0": "-1"}
    assert seen() == alone
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, MIG-5a1e-0001")
    assert seen() == {**alone, "worker 0": "3", "worker 1": "MIG-5a1e-0001"}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert set(seen().values()) == {"-1"}  # too few: all compute on cores
