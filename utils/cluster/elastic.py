"""Let hosts die, leave and come in the middle of a training, and watch it go on.

from utils.cluster import elastic
elastic.run("exercises/survive.py", [elastic.dies(after=30), elastic.comes(after=60)])
"""

import contextlib
import dataclasses
import math
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from distcheck import errors, files, show
from utils.running import launch, launchers
from utils.running.result import Run, RunFailed
from utils.running.watch import worker_processes

DIES, LEAVES, COMES = "dies", "leaves", "comes"
RANK_0 = "the host of rank 0"  # at the moment: which one it is, Horovod decides
REFRESH = 2.0  # seconds between two states of the live figure
DISCOVERY_SECONDS = 10  # for a script that lists hosts


@dataclass(frozen=True)
class Incident:
    """What happens to a host once so many batches of a training are done.

    what: it DIES (its workers are killed), LEAVES (it is to be used no more, and its
    workers end by themselves) or COMES back. host: its name, or RANK_0; None for the
    one that has gone last.
    """

    what: str
    after: int
    host: str | None = launchers.HOST_NAMES[1]

    def __str__(self) -> str:
        host = self.host or "the host that is gone"
        return f"{host} {self.what} after {self.after} batches"


@dataclass(frozen=True)
class Happened:
    """An incident, with the name of its host, and when it happened, in seconds since
    1970."""

    incident: Incident
    time: float


@dataclass
class Story:
    """An elastic run, and what happened in it."""

    run: Run
    happened: list[Happened]

    @property
    def journal(self):
        """pandas DataFrame, a row a batch that was done, also of those done twice."""
        return journal(self.run.folder)

    @property
    def history(self):
        """pandas DataFrame, a row an epoch, of whoever was rank 0 at its end.

        Raises UserError if no epoch ended.
        """
        import pandas

        # An epoch whose end Horovod went back to has been written down twice, and the
        # second time without what is known of its training.
        rows = pandas.concat(self.run.histories)
        return rows.groupby("epoch", as_index=False).last()

    @property
    def lost(self) -> int:
        """How many images were trained on for nothing: done, but not yet committed."""
        rows = self.journal
        back = rows["images"].shift() - rows["begin"]
        return int(back[rows["epoch"].diff().eq(0) & back.gt(0)].sum())


def dies(after: int, host: str = launchers.HOST_NAMES[1]) -> Incident:
    """The host loses its power after so many batches: nobody on it says goodbye."""
    return _incident(DIES, after, host)


def leaves(after: int, host: str = launchers.HOST_NAMES[1]) -> Incident:
    """The host is taken out of the list of hosts, as clouds do with some notice."""
    return _incident(LEAVES, after, host)


def comes(after: int) -> Incident:
    """The host that has gone last is put into the list again."""
    return _incident(COMES, after, None)


def _incident(kind: str, after: int, host: str | None) -> Incident:
    """Raises UserError for a host that there isn't, and for what is no number."""
    if not isinstance(after, int) or after < 0:
        raise errors.UserError(
            f"after is {after!r}: say after how many batches, 0 or more."
        )
    if kind != COMES and host not in (*launchers.HOST_NAMES, RANK_0):
        raise errors.UserError(
            f"there is no host {host!r}: choose {' or '.join(launchers.HOST_NAMES)}."
        )
    return Incident(kind, after, host)


def run(
    script: str | os.PathLike,
    incidents: Incident | Sequence[Incident] = (),
    *arguments: object,
    workers: int = 2,
    figure: Callable[..., object] | None = None,
    **options: object,
) -> Story:
    """An elastic run of `script`, to whose hosts these incidents happen.

    figure: makes a figure of the journal and of what has happened, such as
        utils.figures.elastic.workers_and_loss; a notebook shows it live.
    Arguments and options as for `launch.run`.
    Raises UserError for an incident that did not happen, as the training was over
    before; RunFailed as `launch.run`.
    """
    if isinstance(incidents, Incident):
        incidents = [incidents]
    director = Director(
        sorted(incidents, key=lambda incident: incident.after), workers, figure
    )
    options = {"attend": director.attend, **options}
    result = launch.run(script, *arguments, workers=workers, elastic=True, **options)
    director.show(result.folder)
    if director.pending:
        raise errors.UserError(
            f"{director.pending[0]}: the training was over before, after "
            f"{len(journal(result.folder))} batches. Let it be longer, or this earlier."
        )
    return Story(result, director.happened)


def crash(
    script: str | os.PathLike, *arguments: object, after: int, **options: object
) -> RunFailed:
    """Run `script` with plain `mpirun`, and kill one worker after so many batches.

    Arguments and options as for `launch.run`. Returns how the run failed; raises
    UserError when it was over before.
    """

    def attend(running: Run) -> None:
        if batches_done(running.folder) >= after:
            for process in list(worker_processes(running.folder).values())[-1:]:
                process.kill()

    try:
        result = launch.run(script, *arguments, attend=attend, **options)
    except RunFailed as failed:
        if batches_done(failed.run.folder) < after:
            raise
        return failed
    raise errors.UserError(
        f"nobody was killed: the training was over before, after "
        f"{batches_done(result.folder)} batches. Let it be longer, or `after` smaller."
    )


class Director:
    """Lets the incidents happen, and shows what comes of them."""

    def __init__(
        self,
        incidents: list[Incident],
        workers: int,
        figure: Callable[..., object] | None = None,
    ):
        self.pending = incidents
        self.places = launchers.share_hosts(workers)
        self.happened: list[Happened] = []
        self._make_figure = figure
        self._shown_figure = None
        self._shown = time.monotonic()

    def attend(self, running: Run) -> None:
        """Do what is due; to be called again and again."""
        while self.pending and batches_done(running.folder) >= self.pending[0].after:
            self._happen(self.pending.pop(0), running.folder)
        if time.monotonic() - self._shown > REFRESH:
            self.show(running.folder)

    def _happen(self, incident: Incident, folder: Path) -> None:
        hosts = launchers.read_hosts(folder)
        if incident.host == RANK_0:
            host = journal(folder)["host"].iloc[-1]
            incident = dataclasses.replace(incident, host=host)
        if incident.host is None:
            gone = [before.incident.host for before in self.happened]
            host = (gone or launchers.HOST_NAMES)[-1]
            incident = dataclasses.replace(incident, host=host)
        if incident.what == COMES:
            hosts[incident.host] = self.places[incident.host]
        else:
            hosts.pop(incident.host, None)
        launchers.write_hosts(folder, hosts)
        if incident.what == DIES:
            for process in workers_on(incident.host, folder):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        self.happened.append(Happened(incident, time.time()))

    def show(self, folder: Path) -> None:
        """In a notebook, show or renew the figure, once there is something to show."""
        self._shown = time.monotonic()
        if not self._make_figure or not show.in_notebook() or not batches_done(folder):
            return
        from IPython.display import DisplayHandle

        figure = self._make_figure(journal(folder), self.happened)
        if self._shown_figure is None:
            self._shown_figure = DisplayHandle()
            self._shown_figure.display(figure)
        else:
            self._shown_figure.update(figure)


def workers_on(host: str, folder: Path) -> list[psutil.Process]:
    """The living workers of an elastic run that are on a host."""
    workers = []
    for process in psutil.process_iter(["environ"]):
        environment = process.info["environ"] or {}
        if (
            environment.get("COURSE_RUN") == str(folder)
            and environment.get("HOROVOD_HOSTNAME") == host
        ):
            workers.append(process)
    return workers


def discovery_problem(script: str | os.PathLike) -> str:
    """What is wrong with a script that lists hosts, in a sentence; "" if it is right.

    Right is one that prints NAME:SLOTS for each line `NAME slots=SLOTS` of the file
    `hosts` in its own folder, whichever hosts these are. It is run on lists of hosts
    that there aren't, twice, as hosts come and go.
    """
    path = Path(script)
    if not path.is_file():
        return f"There is no file {files.shown(path)}."
    text = path.read_text()
    if not text.startswith("#!"):
        return (
            "It does not begin with #! and what is to run it, such as "
            "`#!/usr/bin/env python3`: the system would not know."
        )
    for hosts in ({"node-7": 4, "node-8": 4}, {"node-8": 2}, {}):
        with tempfile.TemporaryDirectory() as folder:
            launchers.write_hosts(Path(folder), hosts)
            copy = launchers.discovery_script(text, Path(folder))
            problem = _listed_wrongly(copy, [f"{n}:{s}" for n, s in hosts.items()])
        if problem:
            return problem
    return ""


def _listed_wrongly(script: Path, wanted: list[str]) -> str:
    """What is wrong with what a script prints; "" if these are the lines."""
    try:
        done = subprocess.run(
            [str(script)],
            cwd=script.parent.parent,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DISCOVERY_SECONDS,
        )
    except OSError as error:
        return f"It can't be run: {error.strerror}."
    except subprocess.TimeoutExpired:
        return f"It did not end within {DISCOVERY_SECONDS} s."
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        return f"It ended with status {done.returncode}, and said: {said}"
    printed = done.stdout.splitlines()
    if sorted(printed) != sorted(wanted):
        have = "`, `".join(printed) or "nothing"
        return (
            f"With {len(wanted)} hosts in its list it printed `{have}`; horovodrun "
            f"wants `{'`, `'.join(wanted) or 'nothing'}`, each on a line."
        )
    return ""


def batches_done(folder: Path) -> int:
    """How many lines the journals of a run have, of whichever worker."""
    lines = 0
    for path in folder.glob("journal*.csv"):
        with contextlib.suppress(FileNotFoundError):
            lines += max(0, path.read_bytes().count(b"\n") - 1)
    return lines


def journal(folder: Path):
    """The journals of a run as one pandas DataFrame, a row a batch, in their order."""
    import pandas

    paths = [p for p in folder.glob("journal*.csv") if p.stat().st_size]
    if not paths:
        raise errors.UserError("the run has no journal: did it train at all?")
    rows = pandas.concat([pandas.read_csv(path) for path in paths])
    return rows.sort_values("time", ignore_index=True)


# ------------------------------------------------------------ how often to save


def share_lost(interval: float, saving: float, failures: float) -> float:
    """Which share of the time goes into saving, and into doing again what was lost.

    interval: between two checkpoints, saving: of one, failures: between two crashes,
    all in the same unit. A crash loses half an interval on average. A first
    approximation, for intervals that are short against the time between crashes:
    Young, 1974, "A first order approximation to the optimum checkpoint interval",
    Communications of the ACM 17(9), p. 530.
    """
    return saving / interval + interval / (2 * failures)


def best_interval(saving: float, failures: float) -> float:
    """The interval that loses least: the square root of 2 x saving x failures (Young,
    1974, as for `share_lost`)."""
    return math.sqrt(2 * saving * failures)
