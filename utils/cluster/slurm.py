"""A Slurm cluster of this machine alone, to try batch scripts on before they queue.

    with slurm.cluster(nodes=2) as here:
        job = here.submit("solutions/cluster/slurm_mpirun.sh", "--epochs", 2, nodes=2)
        here.wait(job)

Its controller, its nodes and its keys are its own, in a temporary folder and on free
ports; nothing needs root. All of it ends, and is removed, with the block.
"""

import contextlib
import os
import pwd
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from distcheck import machine, mpi, supervise
from distcheck.errors import UserError

DAEMONS = ("munged", "slurmctld", "slurmd")
COMMANDS = ("sbatch", "srun", "scontrol", "scancel", "sinfo")
# With PMIx, by which srun can start the tasks of the course's Open MPI.
PACKAGES = "slurm-wlm munge libpmix-dev"
LACKING = f"on Debian and Ubuntu, `sudo apt install {PACKAGES}` gets it"
START_SECONDS = 20.0  # for the nodes to report that they are idle
# Why a job waits that asks for more than there will ever be.
HOPELESS = (
    "PartitionConfig",
    "PartitionNodeLimit",
    "PartitionTimeLimit",
    "BadConstraints",
)
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL")

# Nodes are names; all are this machine, each on a port of its own. Tracking processes
# by cgroup would need root. A requeued job waits for cred_expire, here the least, and
# then for the scheduler, which looks once a second instead of once a minute.
CONFIGURATION = """\
ClusterName=course
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
TmpFS={folder}/temporary-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
KillWait=2
JobRequeue=1
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """What of Slurm is not installed here, in words; "" if nothing is."""
    gone = [name for name in (*DAEMONS, *COMMANDS) if not _which(name)]
    if not gone:
        return ""
    return f"Slurm is not installed here ({', '.join(gone)}): {LACKING}"


def _path() -> str:
    """PATH with the folders of daemons, which only root has there."""
    path = mpi.clean_environment()["PATH"]
    return os.pathsep.join([path, "/usr/sbin", "/usr/local/sbin"])


def _which(name: str) -> str | None:
    return shutil.which(name, path=_path())


@dataclass(frozen=True)
class Cluster:
    """A running cluster: its folder, and the environment that its commands need."""

    folder: Path
    environment: dict[str, str]

    def command(self, *words: object) -> str:
        """Run a Slurm command and return what it prints. Raises UserError if it
        fails."""
        line = [str(word) for word in words]
        done = subprocess.run(
            line,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        if done.returncode:
            raise UserError(
                f"`{shlex.join(line)}` failed (status {done.returncode}): "
                f"{(done.stderr or done.stdout).strip()}"
            )
        return done.stdout

    def submit(self, script: Path | str, *arguments: object, **options: object) -> int:
        """Submit a batch script and return the job's number.

        arguments: the script's own. options: sbatch's; `ntasks_per_node=2` becomes
            `--ntasks-per-node=2`. Relative to the working directory, as for sbatch.
        """
        option_words = [
            f"--{name.replace('_', '-')}={v}" for name, v in options.items()
        ]
        answer = self.command("sbatch", "--parsable", *option_words, script, *arguments)
        return int(answer.split(";")[0])

    def facts(self, job: int) -> dict[str, str]:
        """What Slurm knows of a job, such as JobState, ExitCode, Restarts, NodeList."""
        answer = self.command("scontrol", "--oneliner", "show", "job", job)
        return dict(word.split("=", 1) for word in answer.split() if "=" in word)

    def wait(self, job: int, time_limit: float = 120.0) -> dict[str, str]:
        """Wait until a job has ended, and return its facts; a job that goes back to
        the queue has not. Raises UserError after `time_limit` seconds, and for a job
        that would never start."""
        deadline = time.monotonic() + time_limit
        while (facts := self.facts(job))["JobState"] not in ENDED:
            if facts["JobState"] == "PENDING" and facts["Reason"] in HOPELESS:
                raise UserError(
                    f"job {job} will never start (reason: {facts['Reason']}): it asks "
                    "for more than this cluster has."
                )
            if time.monotonic() > deadline:
                raise UserError(
                    f"job {job} is {facts['JobState']} (reason: {facts['Reason']}) "
                    f"after {time_limit:g} s."
                )
            time.sleep(0.2)
        return facts


@contextlib.contextmanager
def cluster(
    nodes: int = 1, cpus: int = 2, time_limit: float = 600.0
) -> Iterator[Cluster]:
    """A cluster of `nodes` nodes, node-0 and so on, that say they have `cpus` cores.

    time_limit: seconds after which it is ended, whoever still uses it. Raises
    UserError where Slurm is not installed, or where it does not start.
    """
    if why := missing():
        raise UserError(f"{why}.")
    # Sockets need a short path, and munge one that nobody else can write to.
    with tempfile.TemporaryDirectory(prefix="slurm-") as place:
        folder = Path(place)
        folder.chmod(0o755)
        _write(folder, nodes, cpus)
        environment = {
            name: value
            for name, value in mpi.clean_environment().items()
            if not name.startswith(("SLURM", "SBATCH", "SRUN", "COURSE_R"))
        }
        environment |= {
            "PATH": _path(),
            "SLURM_CONF": str(folder / "slurm.conf"),
            "VENV": sys.prefix,  # the scripts activate the environment in use
            **machine.HIDDEN,  # all nodes are this machine, and would choose the same
        }
        running = Cluster(folder, environment)
        with (
            (folder / "daemons.txt").open("wb") as output,
            supervise.owned(
                ["sh", str(folder / "start.sh")],
                time_limit,
                env=running.environment,
                stdout=output,
                stderr=output,
            ) as process,
        ):
            _wait_for_nodes(running, nodes, process)
            yield running


def _write(folder: Path, nodes: int, cpus: int) -> None:
    """Write the cluster's configuration, its key, and the script that starts it."""
    names = [f"node-{number}" for number in range(nodes)]
    for name in ("state", *(f"temporary-{node}" for node in names)):
        (folder / name).mkdir()
    host = socket.gethostname().split(".")[0]
    controller, *ports = _free_ports(1 + nodes)
    user = pwd.getpwuid(os.geteuid()).pw_name
    lines = CONFIGURATION.format(folder=folder, host=host, port=controller, user=user)
    for name, port in zip(names, ports, strict=True):
        lines += (
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} "
            f"CPUs={cpus}\n"
        )
    (folder / "slurm.conf").write_text(lines)
    key = folder / "munge.key"
    key.touch(0o600)
    key.write_bytes(os.urandom(128))
    paths = {"socket": "munge.socket", "key-file": "munge.key", "pid-file": "munge.pid"}
    paths |= {"log-file": "munge.log", "seed-file": "munge.seed"}
    # Forced: it dislikes a folder within one that nobody else may enter.
    munged = ["munged", "--foreground", "--force", "--num-threads=2"]
    munged += [f"--{option}={folder / name}" for option, name in paths.items()]
    daemons = [["slurmctld", "-D", "-c"]]
    daemons += [["slurmd", "-D", "-N", name] for name in names]
    lines = [f"{shlex.join(munged)} 2>/dev/null &"]  # its log says it all again
    lines += [f"{shlex.join(daemon)} &" for daemon in daemons]
    (folder / "start.sh").write_text("\n".join([*lines, "wait", ""]))


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on at the moment."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in sockets]


def _wait_for_nodes(slurm: Cluster, nodes: int, process: subprocess.Popen) -> None:
    """Return when all nodes are idle; raise UserError with what the daemons said."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(UserError):  # the controller is not up yet
            states = slurm.command("sinfo", "--noheader", "-N", "-o", "%T").split()
            if states.count("idle") == nodes:
                return
        time.sleep(0.1)
    log = (slurm.folder / "daemons.txt").read_text(errors="replace").splitlines()
    raise UserError(
        f"the nodes of the Slurm cluster were not idle after {START_SECONDS:g} s. "
        "Its last words:\n" + "\n".join(log[-10:])
    )
