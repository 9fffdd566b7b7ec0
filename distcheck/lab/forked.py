"""What a fork of the lab's server does: it becomes a worker, and runs the program."""

import faulthandler
import os
import shutil
import signal
import stat
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from distcheck import keras_2, machine, supervise, tasks, worker
from distcheck.recorder import first_import
from distcheck.recorder.graphs import Graphs
from distcheck.recorder.recorder import Recorder
from distcheck.recorder.source import Source
from distcheck.scenarios import Scenario

RAN = "ran"  # how the name of a file ends that is there when a program has ended well


@dataclass(frozen=True)
class Assignment:
    """What the workers of a scenario have to do.

    folder: of the scenario's reports. earlier: that of the scenario it comes after.
    graphs_wanted: does rank 0 build them, where the scenario has that?
    """

    scenario: Scenario
    recorder: type[Recorder] | None
    source: Source
    folder: Path
    earlier: Path
    script: str
    options: list[str]
    graphs_wanted: bool
    cluster: tasks.Cluster = field(default_factory=dict)


def become_worker(assigned: Assignment, environment: dict[str, str]) -> int:
    """Run the program as a worker. Returns its exit status if it is not recorded;
    else this process ends here, see `_run_recorded`.

    environment: of its messenger. By what mpirun has put there, MPI knows the rank.
    """
    supervise.die_with_parent(signal.SIGKILL)
    # So that all it starts can be found, see `Server._end_orphans`.
    supervise.adopt_orphans()
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    del os.environ[keras_2.VARIABLE]  # programs choose it themselves
    if assigned.recorder:  # which pretends what GPUs there are
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    rank = worker.rank()
    _pretend(assigned, rank)
    for number, name in ((1, "out"), (2, "err")):
        path = assigned.folder / f"rank.{rank}.{name}"
        os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600), number)
    stack = (assigned.folder / f"rank.{rank}.stack").open("w")
    faulthandler.register(signal.SIGUSR1, file=stack, all_threads=False)
    _enter_home(assigned, rank)
    sys.argv = [assigned.script, *assigned.options]
    sys.path[0] = str(Path(assigned.script).parent)
    if assigned.recorder is None:
        return _run_plainly(assigned.script)
    assigned.recorder.set_up(assigned.scenario, assigned.folder)
    _run_recorded(assigned, assigned.recorder, rank)


def _pretend(assigned: Assignment, rank: int) -> None:
    """Let a worker's environment say what its scenario is."""
    scenario = assigned.scenario
    if scenario.cuda_visible_devices:
        os.environ["CUDA_VISIBLE_DEVICES"] = scenario.cuda_visible_devices[rank]
    if scenario.cluster:
        task = tasks.tasks_of(assigned.cluster)[rank]
        os.environ.update(tasks.own_environment(task) | machine.HIDDEN)
        # As `course run` has it: a server needs a thread more than workers.
        os.environ["TF_NUM_INTEROP_THREADS"] = str(1 + len(assigned.cluster["worker"]))
        tempfile.tempdir = None  # TMPDIR is another one than the server's
    if scenario.local_ranks:
        os.environ["OMPI_COMM_WORLD_LOCAL_RANK"] = str(scenario.local_rank(rank))
        os.environ["OMPI_COMM_WORLD_LOCAL_SIZE"] = str(scenario.local_size(rank))
    if scenario.own_folders:
        os.environ["COURSE_RUN"] = str(_home(assigned, rank))


def _home(assigned: Assignment, rank: int) -> Path:
    """The folder in which a worker's program is run."""
    scenario, folder = assigned.scenario, assigned.folder
    if scenario.own_folders or scenario.own_disks:
        return folder / f"rank.{rank}.home"
    return folder / "home" if scenario.shared_disk else folder


def _enter_home(assigned: Assignment, rank: int) -> None:
    """Work in this worker's folder, with what an earlier scenario has left in it."""
    home = _home(assigned, rank)
    if assigned.scenario.after:
        # Where all seem to share one folder, it is as rank 0 saw it.
        left = _home(assigned, 0 if assigned.scenario.own_folders else rank)
        _copy_what_was_left(assigned.earlier / left.name, home)
    home.mkdir(exist_ok=True)
    os.chdir(home)


def _copy_what_was_left(left: Path, home: Path) -> None:
    """Copy a folder with its folders, regular files and links, but no pipes, sockets
    and devices: to read those may fail, or wait for ever."""

    def others(folder: str, names: list[str]) -> list[str]:
        modes = {name: os.lstat(Path(folder, name)).st_mode for name in names}
        kinds = (stat.S_IFDIR, stat.S_IFREG, stat.S_IFLNK)
        return [name for name, mode in modes.items() if stat.S_IFMT(mode) not in kinds]

    shutil.copytree(left, home, symlinks=True, ignore=others)
    for path in home.rglob("*"):
        # A link by a whole path would lead out of this worker's folder.
        if path.is_symlink() and (to := path.readlink()).is_relative_to(left):
            path.unlink()
            path.symlink_to(home / to.relative_to(left))


def _run_recorded(assigned: Assignment, of: type[Recorder], rank: int) -> NoReturn:
    """Run the program while a recorder watches it; ends this process, or waits until
    the server does that."""
    folder, scenario, source = assigned.folder, assigned.scenario, assigned.source
    recorder = of(folder, rank, assigned.script, scenario, source)
    graphs = None
    if scenario.build_graphs and rank == 0:
        graphs = recorder.graphs = Graphs(recorder, assigned.graphs_wanted)

    def got_keras_3(module: str) -> None:
        recorder.event("keras 3", module=module)

    recorder.run(first_import.watched(got_keras_3, source.IMPORT_TENSORFLOW))
    (folder / f"rank.{rank}.{RAN}").touch()
    if graphs:
        graphs.build()
    recorder.wait_for_the_end()


def _run_plainly(script: str) -> int:
    """Run a program as it is; return its exit status."""
    import horovod.tensorflow as hvd

    failure = worker.run_program(script)
    sys.stdout.flush()
    if failure:
        return failure["status"] & 0xFF or 1
    # As Python does when it ends: mpirun treats a process that exits without
    # MPI_Finalize as failed.
    if hvd.is_initialized():
        hvd.shutdown()
    return 0
