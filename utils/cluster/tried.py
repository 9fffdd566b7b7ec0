"""What a learner wrote for a cluster, tried on the small one of this machine.

`line` types a command on the first of two hosts (namespaces.py), `pods` lets hosts be
the pods of an MPIJob, and `script` submits a batch script to two nodes (slurm.py).
Where this machine can't have them, the text is only read (handed_in.py), and that is
said.
"""

import dataclasses
import re
import shlex
import time
from dataclasses import dataclass
from pathlib import Path

from distcheck import errors, mpi
from distcheck.recorder.files import files_in
from utils.base import course, logs
from utils.cluster import handed_in, namespaces, recorded, slurm

LAST_LINES = 8
WAIT_SECONDS = 240.0
NOTHING = handed_in.NOTHING


@dataclass(frozen=True)
class Tried:
    """right: did it do what was asked? None: there was nothing to try. words: what it
    did, or what to change."""

    right: bool | None
    words: str

    def __repr__(self) -> str:
        return f"Right. {self.words}" if self.right else self.words


def line(text: str, time_limit: float = 120.0) -> Tried:
    """Try a line that is to start who_is_there.py on two hosts, a worker on each."""
    if not text.strip():
        return Tried(None, NOTHING)
    if why := namespaces.why_not():
        hosts = {namespaces.name(number): 1 for number in (1, 2)}
        problem = handed_in.mpirun_problem(text, hosts, namespaces.CARD, gpus=False)
        return _only_read(why, problem)
    with namespaces.hosts(2) as lan:
        status, output = lan.type(text, time_limit)
    wanted = [f"rank {n - 1} is on {namespaces.name(n)}" for n in lan.numbers]
    if status == 0 and all(words in output for words in wanted):
        return Tried(True, f"The line printed:\n{_end(output)}")
    if status is None:
        why = f"Nothing had come of it after {time_limit:g} s, so it was ended."
    elif status:
        why = f"It ended with status {status}."
    else:
        why = "It ran, but not with one worker on each host."
    return Tried(False, f"{why} Its last words:\n{_end(output) or '(none)'}")


def script(text: str, interrupted: bool = False) -> Tried:
    """Submit a batch script, whose training is to have a worker on each of two nodes,
    and to leave its journal and its checkpoints in $RUN.

    interrupted: after its first checkpoint it gets USR1, as if its time were nearly up;
    then it is to go back to the queue, and to go on.
    """
    if not re.sub(r"#!.*", "", text).strip():
        return Tried(None, NOTHING)
    if why := slurm.missing():
        return _only_read(why, handed_in.two_nodes_problem(text, interrupted))
    folder = logs.new_folder("slurm").resolve()
    try:
        facts = _of_job(text, folder, interrupted)
    except errors.UserError as error:
        return Tried(False, f"{error}\n{_end(_said(folder))}".strip())
    done = recorded.of_job(facts, folder)
    problem = _problem(facts, done, interrupted)
    if problem:
        return Tried(False, f"{problem} Its last words:\n{_end(_said(folder))}")
    again = ", and went on after it was interrupted" if interrupted else ""
    return Tried(
        True,
        f"On {facts['NodeList']}, each batch was done by 2 workers together{again}. "
        f"Kept: {', '.join(done['checkpoints'])}.",
    )


def pods(text: str, changes: str, count: int, slots: int) -> Tried:
    """Try an MPIJob with changes to it, which is to start who_is_there.py.

    `count` hosts are its pods. They get what the MPI operator would give them: a list
    of hosts with their slots, and the launcher's command.
    """
    import yaml

    if not changes.strip():
        return Tried(None, NOTHING)
    try:
        job = handed_in.merged(text, changes)
    except ValueError as error:
        return Tried(False, f"It can't be read: {error}.")
    if problem := handed_in.mpijob_problem(job, count, slots):
        return Tried(False, problem)
    replicas = yaml.safe_load(job)["spec"]["mpiReplicaSpecs"]
    (launcher,) = replicas["Launcher"]["template"]["spec"]["containers"]
    command = [str(word) for word in (*launcher["command"], *launcher["args"])]
    if not any(word.endswith("who_is_there.py") for word in command):
        return Tried(False, "The launcher's args don't name who_is_there.py.")
    if why := namespaces.why_not():
        return _only_read(why, "")
    with namespaces.hosts(count) as lan:
        names = [namespaces.name(number) for number in lan.numbers]
        hosts = "".join(f"{name} slots={slots}\n" for name in names)
        (lan.folder / "hostfile").write_text(hosts)
        # The operator names its list of hosts by this variable.
        given = f"OMPI_MCA_orte_default_hostfile={lan.folder / 'hostfile'}"
        root = shlex.quote(str(course.root()))
        status, output = lan.type(
            f"cd {root} && {given} {shlex.join(command)}", WAIT_SECONDS
        )
    wanted = [f"is on {name}" for name in names] * slots
    found = re.findall(r"^rank \d+ (is on \S+)$", output, re.M)
    if status == 0 and sorted(found) == sorted(wanted):
        return Tried(True, f"{count} hosts as pods printed:\n{_end(output)}")
    return Tried(False, f"Its status is {status}. Its last words:\n{_end(output)}")


def submit(text: str) -> list[str]:
    """What a batch script printed on two nodes, as lines; no training is expected.

    Raises UserError where Slurm is not installed, and for a job that fails.
    """
    folder = logs.new_folder("slurm").resolve()
    facts = _of_job(text, folder, interrupted=False)
    output = _said(folder)
    if facts["JobState"] != "COMPLETED":
        raise errors.UserError(f"the job ended as {facts['JobState']}:\n{output}")
    return output.splitlines()


def _of_job(text: str, folder: Path, interrupted: bool) -> dict[str, str]:
    """Submit a script, wait for its end, and return what Slurm knows of it then."""
    path = folder / "job.sh"
    path.write_text(text.lstrip())
    options = {"chdir": course.root(), "output": folder / "said.txt"}
    options |= {"export": f"ALL,RUN={folder}", "open_mode": "append"}
    with slurm.cluster(nodes=2) as here:
        # One core for each node, as the nodes are one machine.
        variables = mpi.thread_variables(1)
        variables |= {"OMPI_MCA_mpi_yield_when_idle": "1"}
        here = dataclasses.replace(here, environment=here.environment | variables)
        job = here.submit(path, **options)
        if interrupted:
            _interrupt_after_a_checkpoint(here, job, folder)
        return here.wait(job, WAIT_SECONDS)


def _interrupt_after_a_checkpoint(here: slurm.Cluster, job: int, folder: Path) -> None:
    """What --signal=B:USR1@... does near the end of a job's time, now."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not any(name.endswith(".index") for name in files_in(folder)):
        if here.facts(job)["JobState"] in slurm.ENDED:
            return
        if time.monotonic() > deadline:
            raise errors.UserError(f"job {job} kept no checkpoint in $RUN.")
        time.sleep(0.2)
    here.command("scancel", "--batch", "--signal=USR1", job)


def _problem(facts: dict[str, str], done: dict, interrupted: bool) -> str:
    if facts["JobState"] != "COMPLETED":
        return f"The job ended as {facts['JobState']}."
    if facts["NumNodes"] != "2":
        return f"The job had {facts['NumNodes']} node, not 2."
    if not done["workers"]:
        return "There is no journal in $RUN: give the program --log-dir $RUN."
    if done["workers"] != [2]:
        return f"Batches were done by {done['workers']} workers, not by 2 together."
    if not done["checkpoints"]:
        return "No checkpoint is in $RUN."
    if interrupted and facts["Restarts"] == "0":
        return "After USR1 the job did not go back to the queue."
    return ""


def _only_read(why: str, problem: str) -> Tried:
    words = f"Not tried here: {why}. It was only read, and asks for what it should."
    return Tried(not problem, problem or words)


def _said(folder: Path) -> str:
    path = folder / "said.txt"
    return path.read_text(errors="replace") if path.exists() else ""


def _end(output: str) -> str:
    """The last lines, without progress bars."""
    lines = output.replace("\b", "\r").splitlines()
    kept = [row for row in lines if row.strip() and not recorded.UNSAID.search(row)]
    return "\n".join(kept[-LAST_LINES:])
