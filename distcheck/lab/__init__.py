"""Have programs run on workers that report what they do: where the checks get their
facts.

Who starts whom, from the command to the worker:

    course check                  or a test: writes down the jobs, see `perform`
      distcheck/supervise.py      ends everything below it, whatever happens
        lab/server.py             imports TensorFlow once; for each scenario of a job:
          mpirun                  a real one, which starts for each rank
            lab/messenger.py      that asks the server for a worker, and ends as it ends
          lab/forked.py           the worker, forked by the server: runs the program

If mpirun started the workers itself, each of them would import TensorFlow first, which
takes longer than all else that a check does. A fork of the server becomes rank N in
this way: a messenger that mpirun started as rank N sends its environment to the server,
by a Unix socket; the fork takes that for its own before it starts MPI, which looks
there for its rank. The messenger waits, and ends as the fork does, if
that ends by itself.

Who writes what, and who reads it. In the folder of the jobs:

    jobs.json          `prepare`                       the server
    lab.txt            the server and its libraries;   `perform`, if the server fails
                       its supervisor, and its forks
    reference.py       `Exercise.job`, if needed       a worker, as its program

In FOLDER/<number of the job>/<scenario>/, where worker N has rank N:

    rank.N.jsonl       the recorder: what happened     the server (its end); judges
    rank.N.NAME.npy    the recorder: its `arrays`      judges; half.rank.N.NAME.npy,
                                                       not yet whole, nobody
    rank.N.out, .err   the program                     the server (how much?); judges
    rank.N.stack       worker N, if it is asked        judges: where was it in the end?
    rank.N.home/       the program: its files          all ranks' recorders; the
                                                       scenario that comes after
    home/              with `shared_disk`, all ranks'  the scenario that comes after
    rank.N.ran         worker N, if all went well      the server: then the scenario
                                                       that comes after may begin
    mpirun.txt         mpirun                          judges, if it failed
    outcome.json       the server, when all is over    judges

Judges read them with `distcheck.judges.runs`, after all processes have ended.
"""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from distcheck import errors, files, keras_2, mpi, supervise
from distcheck.recorder.recorder import recorder_of
from distcheck.scenarios import SCENARIOS

# How a scenario ends; `outcomes` decides it.
#   ended     the last event of all workers is "ended"; of a program that is not
#             recorded: mpirun ended well
#   failed    a worker or mpirun has ended before, or too few workers ever came
#   deadlock  all wait, for different things, and sleep; as below, the seconds for which
#             they sleep are added up since the last report
#   hung      one of three, of the workers that don't wait in a collective, or of all
#             if all wait: since the last report of any worker they have
#             slept for outcomes.SLEEPING_FACTOR * MAY_COMPUTE seconds; one of them has
#             computed for MAY_COMPUTE since then; or one of them has computed for
#             outcomes.COMPUTING_LIMIT in all
#   flood     a worker has printed more than OUTPUT on one of its two outputs
#   time-up   TIME_LIMIT has passed, while they still did something
# Beside servers of tf.distribute, rank 0 alone has to end.
ENDED, FAILED, DEADLOCK, HUNG = "ended", "failed", "deadlock", "hung"
FLOOD, TIME_UP = "flood", "time-up"

MAY_COMPUTE = 25.0  # seconds of processor that a worker may use without a report
OUTPUT = 1_000_000  # bytes that a worker may print on one of its outputs
# Seconds until the server ends a scenario that it can say nothing else of: many times
# what a right program takes, as a machine may be slow, or busy.
TIME_LIMIT = 600.0
START = 60.0  # seconds to import TensorFlow
POLL_SECONDS = 0.02

# Lets waiting workers of MPI yield the processor, where the set-up has built it.
YIELD_SHIM = Path(sys.prefix, "lib", "patient.so")

# Printed before the first worker is there; what fails before that, no program did.
BEGINS = "The first worker begins."

# In the folder of its jobs, a server that stays is told by a file that nobody wants
# them done any more, and tells by another that it has done with them.
SERVED, WITHDRAWN = "served", "withdrawn"


class Withdrawn(Exception):
    """The jobs were ended, as nobody wants them done any more."""


@dataclass(frozen=True)
class Job:
    """A program to run, and in which scenarios."""

    script: str
    """The program's path."""

    scenarios: tuple[str, ...]
    """Their names."""

    source: str
    """The module of the images that the program is given, a `Source`."""

    options: tuple[str, ...] = ()
    """Its command line."""

    reference: str = ""
    """The program for one device, where a scenario compares with it."""

    earlier: str = ""
    """The folder of the scenario that another one of these comes after, where that is
    not run in this job."""

    graphs_wanted: bool = True
    """Are graphs built, where a scenario has that? Without, none fails."""

    def as_json(self) -> dict:
        """Plain values, with all that the scenarios are."""
        scenarios = {name: asdict(SCENARIOS[name]) for name in self.scenarios}
        return asdict(self) | {"scenarios": scenarios}


def command(folder: Path) -> list[str]:
    """The command that does the jobs in `folder`."""
    return [sys.executable, "-m", "distcheck.lab.server", str(folder)]


def environment() -> dict[str, str]:
    """What the command needs in its environment, beside what every process has."""
    return {
        keras_2.VARIABLE: "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "OMP_NUM_THREADS": "1",
        "TF_NUM_INTRAOP_THREADS": "1",
        "TF_NUM_INTEROP_THREADS": "1",
        # With it, TensorFlow 2.21 fails at the first convolution of an empty batch,
        # which is what a replica gets when there are fewer images than replicas.
        "TF_ENABLE_ONEDNN_OPTS": "0",
        "CUDA_VISIBLE_DEVICES": "-1",
        "PYTHONUNBUFFERED": "1",
        "HOROVOD_STALL_CHECK_DISABLE": "1",
        # An environment that was not set up by the course has none.
        **({"LD_PRELOAD": str(YIELD_SHIM)} if YIELD_SHIM.exists() else {}),
    }


def prepare(folder: Path, jobs: list[Job], may_compute: float = MAY_COMPUTE) -> None:
    """Write down the jobs in `folder`, for `command`.

    may_compute: seconds of processor that a worker may use without a report.
    Raises UserError where a recorder lacks what its programs need.
    """
    for name in {name for job in jobs for name in job.scenarios}:
        if recorder := recorder_of(SCENARIOS[name]):
            recorder.needs()
    wanted = {"jobs": [job.as_json() for job in jobs], "may_compute": may_compute}
    (folder / "jobs.json").write_text(json.dumps(wanted))


def perform(folder: Path, jobs: list[Job], may_compute: float = MAY_COMPUTE) -> None:
    """Do the jobs; what was observed is then in `folder/<number>/<scenario>/`.

    Raises UserError if the lab itself fails, or lasts for too long. An interrupt ends
    all its processes, without an outcome: the supervisor sees its standard input end.
    """
    prepare(folder, jobs, may_compute)
    limit = START + TIME_LIMIT * sum(len(job.scenarios) for job in jobs)
    with _owned(command(folder), folder, limit) as supervisor:
        supervisor.wait()
    if supervisor.returncode:
        raise _failure(folder, supervisor.returncode)


@contextlib.contextmanager
def staying(source: str) -> Iterator[Callable]:
    """Give what is used like `perform`, for as long as the block lasts: it has its jobs
    done by one server, which imports TensorFlow and prepares the source once.

    It takes `wanted`, too: once this says no, it ends the jobs and raises Withdrawn.
    """
    with files.scratch() as scratch:
        place = scratch.resolve()
        request = place / "request"

        def perform(
            folder: Path,
            jobs: list[Job],
            may_compute: float = MAY_COMPUTE,
            wanted: Callable[[], bool] = lambda: True,
        ) -> None:
            prepare(folder, jobs, may_compute)
            files.write_whole(request, str(folder))
            while not (folder / SERVED).exists():
                if supervisor.poll() is not None:
                    raise _failure(place, supervisor.returncode)
                if not wanted():
                    (folder / WITHDRAWN).touch()
                time.sleep(POLL_SECONDS)
            if (folder / WITHDRAWN).exists():
                raise Withdrawn

        line = [*command(request), source]
        with _owned(line, place, float("inf")) as supervisor:
            yield perform


@contextlib.contextmanager
def _owned(line: list[str], folder: Path, limit: float) -> Iterator[subprocess.Popen]:
    """The supervisor of a server, which ends with the block; what they print is in
    `folder/lab.txt`."""
    surroundings = {**mpi.clean_environment(), **environment()}
    with (
        (folder / "lab.txt").open("wb") as output,
        supervise.owned(
            line, limit, env=surroundings, stdout=output, stderr=output
        ) as supervisor,
    ):
        yield supervisor


def _failure(folder: Path, status: int) -> errors.UserError:
    last = (folder / "lab.txt").read_text(errors="replace")[-2000:]
    return errors.UserError(f"the check itself failed with status {status}:\n{last}")
