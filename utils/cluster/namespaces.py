"""Several hosts on one machine: each in network namespaces of its own, on one switch.

    with namespaces.hosts(2, mbit=100) as lan:
        lan.run("solutions/fashion_mnist_solution.py", epochs=1)

A host has a name, an address, a loopback and a network card of its own (network and UTS
namespaces of Linux); a virtual cable leads to a bridge, in yet another namespace. So
Open MPI, Horovod and ssh meet what they meet on a cluster, and nothing of the machine's
own network is touched. Disks and memory are shared, and so are the cores.

Namespaces here have no names: each lives as long as a process in it, and with it go
its cards, cables and addresses. The process of the switch is the first one in a
namespace of processes (as `init` is on a machine), and all that runs on the hosts is in
there: when the switch ends, the kernel ends them all. It ends as soon as nobody reads
what it prints: when its owner leaves, fails or is killed, whatever becomes of others.
Only files can be left, of a supervisor (base/supervise.py) that was killed itself; the
next one sweeps them.
"""

import argparse
import contextlib
import ctypes
import functools
import json
import os
import re
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from distcheck import errors, machine, mpi, programs, supervise
from utils.base import logs
from utils.cluster import elastic
from utils.running import launch
from utils.running.follow import follow
from utils.running.launchers import Horovodrun, Launcher, Mpirun
from utils.running.result import Run, RunFailed

CARD = "eth0"
ENTER, SSHD = "enter", "sshd"  # the two ways to start a process on another host
READY_SECONDS = 30

_CLONE_NEWUTS, _CLONE_NEWNET = 0x04000000, 0x40000000  # sched.h

# Options of unshare(1) for the switch.
_APART = ["--net", "--uts", "--mount", "--pid", "--fork", "--kill-child"]
_APART += ["--mount-proc"]


def address(number: int) -> str:
    """The address of host `number`, from 1 on; private to its switch."""
    return f"10.0.0.{number}"


def name(number: int) -> str:
    """The name of host `number`, which all hosts know, and no one else."""
    return f"host-{number}"


# ------------------------------------------------------------------ may we?


@functools.cache
def _rights() -> tuple[list[str] | None, str]:
    """Options of unshare(1) under which hosts can be made here; else None, and why."""
    if sys.platform != "linux":
        return None, "network namespaces are Linux's own"
    missing = [name for name in ("unshare", "nsenter", "ip") if not shutil.which(name)]
    if missing:
        return None, f"no {', '.join(missing)}: install util-linux and iproute2"
    trial = "ip link add name one type veth peer name two"
    trial += " && ip link add name switch type bridge"
    answer = ""
    for options in ([], ["--user", "--map-root-user"]):
        tried = subprocess.run(
            ["unshare", *options, *_APART, "sh", "-c", trial],
            capture_output=True,
            text=True,
        )
        if tried.returncode == 0:
            return options, ""
        answer = tried.stderr.strip().splitlines()[-1:] or ["no reason given"]
    return None, f"this system does not permit them ({answer[0]})"


def why_not() -> str:
    """Why there can be no hosts of their own here; "" where there can."""
    return _rights()[1]


def _start_agent() -> str:
    """How processes are started on other hosts here, if nobody says otherwise."""
    # Without root's rights, sshd can't change to the user that logs in.
    rights, _ = _rights()
    has_sshd = all(shutil.which(name, path=_SBIN) for name in ("sshd", "ssh-keygen"))
    return SSHD if has_sshd and not rights and shutil.which("ssh") else ENTER


_SBIN = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


# ------------------------------------------------------------------ the hosts


@dataclass
class Lan:
    """Hosts on one switch, numbered from 1.

    switch: pid of its process. pids: of the switch (0) and of each host's first process
    as they are called in there, by which its namespaces are entered. agent: SSHD or
    ENTER. folder: temporary, with `ssh` in it. mbit: how many megabits a second a host
    may send; None: as many as the machine can.
    """

    switch: int
    pids: list[int]
    agent: str
    folder: Path
    mbit: float | None = None

    @property
    def numbers(self) -> range:
        return range(1, len(self.pids))

    @property
    def addresses(self) -> list[str]:
        return [address(number) for number in self.numbers]

    @property
    def agent_in_words(self) -> str:
        """How processes are started on other hosts, in a sentence."""
        if self.agent == SSHD:
            return "Each host runs an sshd; processes are started through ssh."
        return (
            "No sshd in force here: a stand-in for `ssh` enters the other host's "
            "namespaces (nsenter). All the rest goes over the network."
        )

    def inside(self, number: int, command: list[str]) -> list[str]:
        """The command that runs `command` on a host; 0 is the switch."""
        user = ["--user", "--preserve-credentials"] if _rights()[0] else []
        room = ["nsenter", "--target", str(self.switch), *user, "--mount", "--pid"]
        chdir = ["env", f"--chdir={Path.cwd()}"]
        return [*room, *_enter(self.pids[number]), *chdir, *command]

    def do(self, number: int, *command: str) -> str:
        """Run a short command on a host and return what it prints.

        Raises UserError with what it said if it fails.
        """
        done = subprocess.run(
            self.inside(number, list(command)),
            capture_output=True,
            text=True,
            timeout=READY_SECONDS,
        )
        if done.returncode:
            raise errors.UserError(
                f"on host {number}, `{shlex.join(command)}` ended with status "
                f"{done.returncode}: {done.stderr.strip()}"
            )
        return done.stdout

    def shape(self, mbit: float | None) -> None:
        """Let every host send at most `mbit` megabits a second.

        None: as the machine can. Counted are whole frames, headers too. A token bucket
        (tc-tbf(8)) holds back what comes too fast. Raises UserError for what is not
        positive.
        """
        check_positive(mbit)
        for number in self.numbers:
            with contextlib.suppress(errors.UserError):  # there may be none
                self.do(number, "tc", "qdisc", "del", "dev", CARD, "root")
            if mbit is not None:
                words = ["root", "tbf", "rate", f"{round(1e6 * mbit)}bit"]
                words += ["burst", str(burst(mbit)), "limit", str(QUEUE)]
                self.do(number, "tc", "qdisc", "add", "dev", CARD, *words)
        self.mbit = mbit

    def cut(self, number: int) -> None:
        """Pull a host's cable out of the switch."""
        self.do(0, "ip", "link", "set", f"port{number}", "down")

    def mend(self, number: int) -> None:
        """Put the cable back, and wait until the host can be reached."""
        self.do(0, "ip", "link", "set", f"port{number}", "up")
        self.reach(number)

    def reach(self, number: int) -> None:
        """Wait until a host answers another; raise UserError if it does not.

        A cable that was put in carries nothing for a moment, and Open MPI asks once.
        """
        other = 2 if number == 1 else 1
        if other not in self.numbers:
            return
        deadline = time.monotonic() + READY_SECONDS
        while True:
            try:
                self.do(other, sys.executable, "-S", "-c", ANSWERS, address(number))
                return
            except errors.UserError:
                if time.monotonic() > deadline:
                    raise

    def bytes_sent(self, number: int) -> int:
        """What has gone out through a host's network card so far."""
        # The ninth number of a card's line (proc_net_dev, kernel's procfs.rst).
        for line in self.do(number, "cat", "/proc/net/dev").splitlines():
            name, _, counters = line.partition(":")
            if name.strip() == CARD:
                return int(counters.split()[8])
        raise errors.UserError(f"host {number} has no {CARD}.")

    def throughput(self) -> float:
        """Megabits a second that a program gets from host 1 to host 2, measured.

        Half a second's worth at the bandwidth that was set, else 200 megabytes.
        """
        volume = 200e6 if self.mbit is None else max(2e6, self.mbit * 1e6 / 8 / 2)
        python = [sys.executable, "-S", "-c"]
        receiver = self.inside(2, [*python, RECEIVE, address(2)])
        with supervise.owned(receiver, READY_SECONDS, **supervise.READ_LINES) as server:
            server.stdout.readline()  # it listens
            self.do(1, *python, SEND, address(2), str(round(volume)))
            received, seconds = map(float, server.stdout.readline().split())
        return 8e-6 * received / seconds

    # -------------------------------------------------------------- programs

    def run(
        self,
        script: str | os.PathLike,
        *arguments: object,
        workers: int | None = None,
        mca: Mapping[str, object] | None = None,
        **options: object,
    ) -> Run:
        """Run `script` under `mpirun`, typed on host 1, with a worker on each host.

        workers: on so many hosts; by default on all. mca: more parameters of Open MPI.
        Each worker computes with one thread. All else is as for `utils.run`.
        """
        workers = workers or len(self.addresses)
        launcher = Mpirun(workers, network_options(workers, mca))
        return self._follow(
            launcher, _new_folder(script), {}, script, *arguments, **options
        )

    def run_elastic(
        self,
        script: str | os.PathLike,
        *arguments: object,
        environment: Mapping[str, str] | None = None,
        **options: object,
    ) -> Run:
        """Run `script` elastically under `horovodrun`, typed on host 1, on all hosts
        that answer; as `run` otherwise.

        `horovodrun` asks a script every second, which tries to reach each host: so one
        that is cut off is gone, and one that is back has come. Workers give a silent
        host up after 10 s; Horovod's own choice is 30 s.
        """
        folder = _new_folder(script)
        names = [name(number) for number in self.numbers]
        finder = folder / "hosts_that_answer.py"
        finder.write_text(FINDER.format(python=sys.executable, names=names))
        finder.chmod(0o755)
        launcher = Horovodrun(len(names), finder, CARD, options=["--disable-cache"])
        options["environment"] = {GLOO_TIMEOUT: "10", **(environment or {})}
        private = {SSH_OPTIONS: SSH_NOTICES}
        return self._follow(launcher, folder, private, script, *arguments, **options)

    def type(self, line: str, time_limit: float = 120.0) -> tuple[int | None, str]:
        """Run a line as if somebody typed it in a shell on host 1: its status, or None
        if it was still running after `time_limit` seconds and was ended; and what it
        printed. Its `python` is this one, with the course's packages."""
        line = re.sub(r"(?<=\s)python(?=\s)", lambda _: sys.executable, line)
        environment = mpi.clean_environment() | mpi.thread_variables(1)
        environment |= mpi.AS_ROOT
        environment["OMPI_MCA_mpi_yield_when_idle"] = "1"
        environment["PATH"] = f"{self.folder}{os.pathsep}{environment['PATH']}"
        with (
            tempfile.TemporaryFile("w+", errors="replace") as file,
            supervise.owned(
                self.inside(1, ["bash", "-c", line]),
                time_limit,
                env=environment,
                stdout=file,
                stderr=file,
            ) as process,
        ):
            status = process.wait()
            file.seek(0)
            output = file.read()
        return None if status == supervise.TIMED_OUT else status, output

    def _follow(
        self,
        launcher: Launcher,
        folder: Path,
        private: Mapping[str, str],
        script: str | os.PathLike,
        /,
        *arguments: object,
        attend: Callable[[Run], None] | None = None,
        time_limit: float = launch.TIME_LIMIT,
        quiet: bool = False,
        environment: Mapping[str, str] | None = None,
        **options: object,
    ) -> Run:
        """Start a launcher on host 1 and wait for its end."""
        # One core for each host; all of them would choose the same GPUs.
        hidden = machine.HIDDEN if machine.gpus({}) else {}
        variables = mpi.thread_variables(1) | hidden | dict(environment or {})
        private = {"COURSE_RUN": str(folder), **private}
        program = [str(script), *launch.words(arguments, options)]
        command = launcher.command(program, folder, variables, private)
        result = Run(Path(script).name, launcher.workers, command.shown, folder)
        environment = mpi.clean_environment() | command.variables
        # Both launchers take the first `ssh` of the path to reach the other hosts.
        environment["PATH"] = f"{self.folder}{os.pathsep}{environment['PATH']}"
        line = self.inside(1, command.line)
        return follow(line, result, environment, time_limit, attend, quiet=quiet)


# Ends well if a host answers; a refusal is an answer, too.
ANSWERS = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], 22), timeout=0.5)
except ConnectionRefusedError:
    pass
"""
RECEIVE = """
import socket, sys, time
server = socket.create_server((sys.argv[1], 5000))
print("listening", flush=True)
connection, _ = server.accept()
began, count = time.monotonic(), 0
connection.sendall(b"!")  # nothing may arrive before the clock runs
while data := connection.recv(1 << 20):
    count += len(data)
print(count, time.monotonic() - began)
"""
SEND = """
import socket, sys
left = int(sys.argv[2])
with socket.create_connection((sys.argv[1], 5000)) as connection:
    connection.recv(1)
    while left > 0:
        connection.sendall(bytes(min(left, 1 << 20)))
        left -= 1 << 20
"""

# Else ssh waits forever for a host that was cut off, and horovodrun waits for ssh.
SSH_OPTIONS = "COURSE_SSH_OPTIONS"
SSH_NOTICES = "-o ServerAliveInterval=1 -o ServerAliveCountMax=3"
GLOO_TIMEOUT = "HOROVOD_GLOO_TIMEOUT_SECONDS"

# What `horovodrun --host-discovery-script` runs: any answer will do, a refusal too.
FINDER = """\
#!{python} -S
import socket

for name in {names}:
    try:
        socket.create_connection((name, 22), timeout=0.5)
    except ConnectionRefusedError:
        pass
    except OSError:
        continue
    print(name + ":1")
"""


def network_options(workers: int, mca: Mapping[str, object] | None = None) -> list[str]:
    """Options of `mpirun` for a worker on each of the first hosts.

    The network card is named, as Open MPI would try all that it finds, and only TCP is
    allowed, as it would notice the memory that these hosts share.
    """
    options = ["-H", ",".join(name(number) for number in range(1, workers + 1))]
    words = {"btl": "tcp,self", "btl_tcp_if_include": CARD, "oob_tcp_if_include": CARD}
    for key, value in (words | dict(mca or {})).items():
        options += ["--mca", key, str(value)]
    return options


def _new_folder(script: str | os.PathLike) -> Path:
    """A folder for a run. Raises UserError for what is no program."""
    programs.parse_program(Path(script))
    return logs.new_folder(Path(script).stem)


# ------------------------------------------------------------------ a host is lost


@dataclass
class CutOff:
    """A run in which a host was cut off, and when, in seconds since 1970.

    waited: seconds from then to the end of the run. said: the launcher's last words,
    if it ended the run by itself; None when it was still waiting and was ended.
    """

    run: Run
    time: float
    waited: float
    said: str | None


def cut_off(
    lan: Lan,
    start: Callable[..., Run],
    script: str | os.PathLike,
    *arguments: object,
    after: int = 10,
    patience: float = 15.0,
    **options: object,
) -> CutOff:
    """Start a program that keeps a journal, and pull the last host's cable after so
    many batches.

    start: `lan.run` or `lan.run_elastic`; arguments and options are theirs. patience:
        seconds; a run that still waits then is ended.
    Raises UserError when the training was over before, and RunFailed when it failed
    before.
    """
    last = lan.numbers[-1]
    moments = []

    def attend(running: Run) -> None:
        if not moments and elastic.batches_done(running.folder) >= after:
            lan.cut(last)
            moments.append(time.time())
        if moments and time.time() - moments[0] > patience:
            raise RunFailed(STILL_WAITING, running)

    said = None
    try:
        run = start(script, *arguments, attend=attend, **options)
    except RunFailed as failed:
        if not moments:
            raise
        run = failed.run
        if str(failed) != STILL_WAITING:
            said = (run.folder / "launcher.txt").read_text(errors="replace").strip()
    else:
        said = "" if moments else None
    finally:
        lan.mend(last)
    if not moments:
        raise errors.UserError(
            f"nobody was cut off: the training was over before, after "
            f"{elastic.batches_done(run.folder)} batches. Let it be longer."
        )
    return CutOff(run, moments[0], time.time() - moments[0], said)


def gist(said: str | None) -> str:
    """The first words of what a launcher said in the end; or that it said nothing."""
    if said is None:
        return "it was still waiting, without a word."
    lines = [line for line in said.splitlines() if line.strip("- ")]
    return lines[0] if lines else "it ended well, without a word."


STILL_WAITING = "it was still waiting"
# Parameters of Open MPI: ask a silent host after 3 s, then each second, three times.
# By default it is 300 s, then every 20 s, nine times.
QUICK_TO_NOTICE = {
    "oob_tcp_keepalive_time": 3,
    "oob_tcp_keepalive_intvl": 1,
    "oob_tcp_keepalive_probes": 3,
}


# ------------------------------------------------------------------ how fast


def check_positive(mbit: float | None) -> None:
    """Raises UserError for what is neither a positive number nor None."""
    if mbit is None or (isinstance(mbit, int | float) and mbit > 0):
        return
    raise errors.UserError(
        f"a network of {mbit!r} Mbit/s: choose a number above 0, or None."
    )


def title(mbit: float | None) -> str:
    """A bandwidth in words."""
    return "unshaped" if mbit is None else f"{mbit:g} Mbit/s"


QUEUE = 8_000_000  # bytes that may wait: more than a step sends, so that none is lost


def burst(mbit: float) -> int:
    """Bytes that a host may send at once after a rest: those of a millisecond, and no
    fewer than a segment of 64 KiB that the card is handed."""
    return max(2**16, round(1e6 * mbit / 8 / 1000))


def _enter(pid: int) -> list[str]:
    """The command that runs what follows it on the host of this process."""
    return ["nsenter", "--target", str(pid), "--net", "--uts"]


@contextlib.contextmanager
def hosts(
    count: int = 2, mbit: float | None = None, agent: str | None = None
) -> Iterator[Lan]:
    """So many hosts, connected; leaving the block ends them and all that runs on them.

    mbit: as for `Lan.shape`. agent: how processes are started on other hosts, SSHD
        or ENTER; by default SSHD where that is installed and permitted.
    Raises UserError where the system does not permit namespaces.
    """
    if why_not():
        raise errors.UserError(f"no hosts of their own here: {why_not()}.")
    if not isinstance(count, int) or not 1 <= count <= 250:
        raise errors.UserError(f"{count!r} hosts? Choose a number from 1 to 250.")
    agent = agent or _start_agent()
    room = ["unshare", *_rights()[0], *_APART, sys.executable]
    room += ["-m", "utils.cluster.namespaces", str(count), agent]
    with supervise.owned(room, launch.TIME_LIMIT, **supervise.READ_LINES) as process:
        output = []
        for line in process.stdout:
            if line.startswith("{"):
                break
            output.append(line)
        else:
            raise errors.UserError(f"the hosts did not come up:\n{''.join(output)}")
        facts = json.loads(line)
        (unshare,) = psutil.Process(process.pid).children()
        (switch,) = unshare.children()
        try:
            lan = Lan(switch.pid, facts["pids"], agent, Path(facts["folder"]))
            for number in lan.numbers:
                lan.reach(number)
            if mbit is not None:
                lan.shape(mbit)
            yield lan
        finally:
            with contextlib.suppress(psutil.NoSuchProcess):
                switch.kill()  # and so all; `unshare` would not pass a request on


# ---------------------------------------------- inside, in the process of the switch


def _become_host(name: str) -> None:
    """Leave the namespaces of the switch for new ones."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET | _CLONE_NEWUTS):
        raise OSError(ctypes.get_errno(), "unshare")
    socket.sethostname(name)
    # A host that was cut off is given up after seconds, not minutes: horovodrun tries
    # to talk to it three times, and nothing else goes on meanwhile.
    with contextlib.suppress(OSError):  # some containers forbid it
        Path("/proc/sys/net/ipv4/tcp_syn_retries").write_text("1")


def _do(*command: str) -> None:
    subprocess.run(command, check=True)


def _build(count: int, agent: str) -> dict:
    """Make the switch of the namespace that this process is in, and its hosts."""
    _do("ip", "link", "set", "lo", "up")
    _do("ip", "link", "add", "name", "switch", "type", "bridge")
    _do("ip", "link", "set", "switch", "up")
    pids = [os.getpid()]
    for number in range(1, count + 1):
        host = subprocess.Popen(
            ["sleep", "infinity"],
            preexec_fn=functools.partial(_become_host, name(number)),
        )
        pids.append(host.pid)
        port, ip = f"port{number}", [*_enter(host.pid), "ip"]
        peer = ["type", "veth", "peer", "name", CARD, "netns", str(host.pid)]
        _do("ip", "link", "add", "name", port, *peer)
        _do("ip", "link", "set", port, "master", "switch", "up")
        _do(*ip, "link", "set", "lo", "up")
        _do(*ip, "address", "add", f"{address(number)}/24", "dev", CARD)
        _do(*ip, "link", "set", CARD, "up")
    # In the supervisor's folder for temporary files, which it removes in the end.
    folder = Path(tempfile.mkdtemp())
    names = {"127.0.0.1": "localhost"}
    names |= {address(number): name(number) for number in range(1, count + 1)}
    (folder / "hosts").write_text("".join(f"{a} {n}\n" for a, n in names.items()))
    _do("mount", "--bind", str(folder / "hosts"), "/etc/hosts")  # in here alone
    client = _with_sshd(folder, pids) if agent == SSHD else _stand_in(folder, pids)
    (folder / "ssh").write_text(f"#!/bin/sh\n{client}")
    (folder / "ssh").chmod(0o755)
    return {"pids": pids, "folder": str(folder)}


def _stand_in(folder: Path, pids: list[int]) -> str:
    """A script for `ssh [OPTIONS] HOST [OPTIONS] COMMAND` that needs no sshd."""
    for number, pid in enumerate(pids[1:], 1):
        for host_name in (name(number), address(number)):
            (folder / host_name).write_text(str(pid))
    skip = "OPTIND=1; while getopts nqTtxo:p:i: option; do :; done\n"
    skip += "shift $((OPTIND - 1))\n"
    return (
        f"{skip}"
        f'pid=$(cat {shlex.quote(str(folder))}/"$1") || exit 255\n'
        f"shift\n{skip}"
        f'exec nsenter --target "$pid" --net --uts sh -c "$*"\n'
    )


def _with_sshd(folder: Path, pids: list[int]) -> str:
    """Start an sshd on each host, with keys of its own; return a script for `ssh`."""
    for key in ("host_key", "key"):
        keygen = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "course"]
        _do(*keygen, "-f", str(folder / key))
    shutil.copy(folder / "key.pub", folder / "authorized_keys")
    host_key = (folder / "host_key.pub").read_text()
    (folder / "known_hosts").write_text(f"{name('*')},{address('*')} {host_key}")
    _write_options(
        folder / "sshd_config",
        HostKey=folder / "host_key",
        AuthorizedKeysFile=folder / "authorized_keys",
        AuthenticationMethods="publickey",
        PermitRootLogin="prohibit-password",
        StrictModes="no",  # the folder may lie below one that all may write into
        UsePAM="no",
        UseDNS="no",
        PidFile="none",
        PrintLastLog="no",
        MaxStartups=100,
        # What Open MPI leaves when it is killed goes where it is removed.
        SetEnv=f"TMPDIR={folder.parent}",
    )
    _write_options(
        folder / "ssh_config",
        IdentityFile=folder / "key",
        IdentitiesOnly="yes",
        UserKnownHostsFile=folder / "known_hosts",
        GlobalKnownHostsFile="/dev/null",
        BatchMode="yes",
        LogLevel="ERROR",
    )
    # Debian's sshd wants a folder in /run: a /run of its own spares the machine's.
    _do("mount", "-t", "tmpfs", "none", "/run")
    Path("/run/sshd").mkdir()
    sshd = [shutil.which("sshd", path=_SBIN), "-D", "-f", str(folder / "sshd_config")]
    servers = {}
    for number, pid in enumerate(pids[1:], 1):
        log = folder / f"sshd-{number}.log"
        log.touch()
        servers[log] = subprocess.Popen([*_enter(pid), *sshd, "-E", str(log)])
    for log, server in servers.items():
        while "listening" not in log.read_text():
            if server.poll() is not None:
                sys.exit(f"sshd ended with status {server.poll()}:\n{log.read_text()}")
            time.sleep(0.02)  # `main` has a time limit
    client = shlex.join([shutil.which("ssh"), "-F", str(folder / "ssh_config")])
    return f'exec {client} ${SSH_OPTIONS} "$@"\n'


def _write_options(path: Path, **options: object) -> None:
    path.write_text("".join(f"{name} {value}\n" for name, value in options.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("count", type=int)
    parser.add_argument("agent", choices=[ENTER, SSHD])
    arguments = parser.parse_args()
    # The first process of a namespace gets no signal that it has no handler for.
    signal.signal(signal.SIGALRM, lambda *_: sys.exit("they took too long."))
    signal.alarm(READY_SECONDS)
    print(json.dumps(_build(arguments.count, arguments.agent)), flush=True)
    signal.alarm(0)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # as all orphans come to it
    owner = select.poll()
    owner.register(sys.stdout, 0)
    owner.poll()  # ends when the other end of this pipe is closed


if __name__ == "__main__":
    main()
