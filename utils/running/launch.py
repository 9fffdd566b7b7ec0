"""Start a program on N workers with `mpirun`, watch it, and end all of it.

`run` is behind both `course run` and the notebooks. It shows the plain `mpirun` line
that it stands for, one live line of progress, at most ten lines of output at the
end, and returns a `Run`. The workers' whole output is in the run's log.

With `tasks` the processes are a cluster as TensorFlow's own strategies have it, each
told by TF_CONFIG who it is; `distcheck.tasks` then stands in for mpirun.
"""

import ast
import difflib
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from distcheck import errors, files, machine, programs
from distcheck import tasks as clusters
from distcheck.machine import cores
from distcheck.mpi import clean_environment, thread_variables
from utils.base import logs
from utils.base.course import TIME_LIMIT
from utils.running import launchers
from utils.running.follow import follow
from utils.running.launchers import Horovodrun, Launcher, Mpirun, Tasks, both_hosts
from utils.running.result import TIMELINE, Run
from utils.running.watch import Watch

MEMORY_PER_WORKER = 0.7e9  # bytes: TensorFlow, the data and the width-1 network


def _check(script: Path, launcher: Launcher, on_gpus: bool) -> list[str]:
    """Refuse what can't work; return what the user should know about the rest."""
    workers, processes = launcher.workers, launcher.processes
    tree = programs.parse_program(script)
    notices = []
    if launcher.horovod and workers > 1 and not _starts_a_library(tree):
        notices.append(
            f"{script.name} never calls hvd.init(): its {workers} workers run side by "
            "side, each as if it were alone."
        )
    if on_gpus:
        return notices
    if workers > cores():
        notices.append(
            f"{workers} workers on {cores()} cores take turns: expect no speed-up "
            f"beyond {cores()} workers."
        )
    needed = processes * MEMORY_PER_WORKER
    free = psutil.virtual_memory().available
    if needed > free:
        raise errors.UserError(
            f"{processes} workers need about {needed / 1e9:.0f} GB of memory; "
            f"{free / 1e9:.1f} GB are free. Start fewer workers or close programs."
        )
    return notices


def _why_on_cores(workers: int, compared_with: int, gpus: int, elastic: bool) -> str:
    """Why workers leave the GPUs alone that there are; "" if they use them, one each.

    Two on a GPU would take turns and share its memory, and NCCL refuses them. What is
    compared with workers on cores computes on cores, too.
    """
    if gpus and elastic:
        return (
            "Both hosts of an elastic run are this machine, and their workers would "
            "choose the same GPUs: they compute on cores."
        )
    have = "is 1 GPU" if gpus == 1 else f"are {gpus} GPUs"
    if gpus and workers > gpus:
        return (
            f"There {have}, and {workers} workers need one each: they compute on cores."
        )
    if gpus and compared_with > gpus:
        return (
            f"There {have}, too few for the {compared_with} workers that this run is "
            "compared with: all compute on cores."
        )
    return ""


def _refuse_unknown(options: Mapping[str, object], script: Path) -> None:
    """Raise UserError for a word that is neither the program's nor `run`'s.

    What a program knows is told by the texts in it that begin with `--`; one without
    such texts may read its arguments as it likes.
    """
    nodes = ast.walk(programs.parse_program(script))
    texts = [node.value for node in nodes if isinstance(node, ast.Constant)]
    flags = {text for text in texts if isinstance(text, str) and text.startswith("--")}
    program_options = [flag[2:].replace("-", "_") for flag in flags]
    run_options = [
        name
        for name, parameter in inspect.signature(run).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    ]
    for name in options:
        if name in program_options:
            continue
        near = difflib.get_close_matches(
            name, [*run_options, *program_options], n=1, cutoff=0.75
        )
        if near or program_options:
            hint = f" Did you mean `{near[0]}`?" if near else ""
            raise errors.UserError(
                f"neither `run` nor {script.name} knows `{name}`.{hint}"
            )


def _script_of_hosts(discovery: str | os.PathLike | None) -> str:
    """The text of the script that lists hosts. Raises UserError for what is none."""
    if discovery is None:
        return launchers.DISCOVER
    if not Path(discovery).is_file():
        raise errors.UserError(f"there is no file {files.shown(Path(discovery))}.")
    return Path(discovery).read_text()


def _starts_a_library(tree: ast.Module) -> bool:
    """Does the program itself call an `init`, or import MPI, which starts itself?"""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name == "init":
                return True
        if isinstance(node, ast.ImportFrom) and node.module == "mpi4py":
            return True
    return False


def run(
    script: str | os.PathLike,
    *arguments: object,
    workers: int = 2,
    tasks: Mapping[str, int] | None = None,
    restarts: int = 0,
    tolerate: str | None = None,
    elastic: bool = False,
    reset_limit: int | None = None,
    discovery: str | os.PathLike | None = None,
    attend: Callable[["Run"], None] | None = None,
    compared_with: int = 1,
    time_limit: float = TIME_LIMIT,
    record: int = 0,
    fingerprint: bool = False,
    timeline: bool = False,
    watch: bool = False,
    quiet: bool = False,
    environment: Mapping[str, str] | None = None,
    **options: object,
) -> Run:
    """Run `script` on `workers` workers under `mpirun` and wait for its end.

    tasks: instead, run it as the tasks of a TF_CONFIG cluster on this machine, such as
        {"chief": 1, "worker": 2, "ps": 1}. The next two are for this form alone.
    restarts: after how many failures the task that failed is started again, and, in a
        cluster without servers, all the others with it.
    tolerate: a failed task of this type, such as "worker", does not end the others.
    arguments, options: the program's own; `epochs=3` becomes `--epochs 3`.
    elastic: let `horovodrun` start the workers, half of them as if on another host, so
        that training goes on when a host is lost (utils.cluster.elastic).
    reset_limit: after how many such changes an elastic run is ended.
    discovery: a script that lists the hosts of an elastic run: NAME:SLOTS for each line
        `NAME slots=SLOTS` of the file `hosts` in its own folder. A copy of it is run.
    attend: called with the run again and again while it is on.
    compared_with: how many workers the run has that this one is compared with. Each
        worker gets the share of the cores that one of the larger team has
        (`machine.share`). Workers compute on GPUs, with the threads that TensorFlow
        takes by itself, if they see one for each worker of either run (`environment`
        may hide them), and else on cores.
    time_limit: seconds, after which every process is ended.
    record: let each worker keep its weights of so many batches, of a large network a
        sample of them (`Run.recording`).
    fingerprint: let each worker note what must be the same on all (fingerprint.py).
    timeline: let Horovod write down what it does, and when (`Run.timeline`).
    watch: sample which core each worker loads, which GPUs it has (`Run.samples`).
    quiet: show nothing while it runs.
    environment: variables for the workers, such as {"HOROVOD_CYCLE_TIME": "5"}.

    Raises UserError for a program, a number of workers or a word that can't be, and
    RunFailed when a worker fails, the time is up or the run is stopped; by then no
    process is left. An interrupt (Ctrl-C, the stop button) ends the run likewise.
    """
    if tolerate is not None and tolerate not in (tasks or {}):
        raise errors.UserError(
            f"tolerate is {tolerate!r}, a type that the run has no tasks of."
        )
    if tasks is not None and (timeline or elastic):
        raise errors.UserError("timeline and elastic are Horovod's: not with tasks.")
    if not isinstance(workers, int) or workers < 1:
        raise errors.UserError(f"workers must be 1 or more, not {workers!r}.")
    if not isinstance(compared_with, int) or compared_with < 1:
        raise errors.UserError(
            f"compared_with is a number of workers, not {compared_with!r}."
        )
    if elastic and workers < 2:
        raise errors.UserError("an elastic run begins with 2 workers or more.")
    if tasks is not None:
        cluster = clusters.free_cluster(tasks)
        launcher: Launcher = Tasks(cluster, restarts, tolerate)
    else:
        launcher = Mpirun(workers)
    script = Path(script)
    environment, surroundings = dict(environment or {}), clean_environment()
    gpus = machine.gpus(surroundings | environment)
    why_on_cores = _why_on_cores(launcher.workers, compared_with, gpus, elastic)
    on_gpus = gpus > 0 and not why_on_cores
    notices = _check(script, launcher, on_gpus)
    _refuse_unknown(options, script)
    folder = logs.new_folder(script.stem)
    if elastic:
        text = _script_of_hosts(discovery)
        hosts = both_hosts(workers, folder, text)
        launcher = Horovodrun(workers, *hosts, reset_limit)

    threads = None if on_gpus else machine.share(launcher.workers, compared_with)
    if why_on_cores:
        environment |= machine.HIDDEN
        notices.insert(0, why_on_cores)
    variables = thread_variables(threads, launcher.inter_op) | environment
    if timeline:
        variables["HOROVOD_TIMELINE"] = files.shown(folder / TIMELINE)
    private = {"COURSE_RUN": str(folder)}
    if record:
        private["COURSE_RECORD"] = str(record)
    if fingerprint:
        private["COURSE_FINGERPRINT"] = "1"
    program = [str(script), *words(arguments, options)]
    command = launcher.command(program, folder, variables, private)
    result = Run(script.name, launcher.processes, command.shown, folder)
    result.notices += notices
    watching = Watch(folder, on_gpus) if watch else None
    return follow(
        command.line,
        result,
        surroundings | command.variables,
        time_limit,
        attend,
        watching,
        quiet,
    )


def words(arguments: Sequence[object], options: Mapping[str, object]) -> list[str]:
    """A program's own arguments and options: `epochs=3` becomes `--epochs 3`."""
    option_words = [str(argument) for argument in arguments]
    for name, value in options.items():
        option_words += [f"--{name.replace('_', '-')}", str(value)]
    return option_words
