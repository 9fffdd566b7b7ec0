"""How fast is it, and how near to what the machine could do? Side by side in one run.

    course bench launch pipeline

Behind `course bench` and `make bench`. Rows that are compared take turns, round by
round, and a ratio is taken within a round, so that a machine that slows down slows all
of them. What could not be measured is an error, never an empty cell.
"""

import contextlib
import csv
import functools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from distcheck import errors, files, machine, mpi, supervise
from distcheck.parts import title
from utils.base import course, profiles, texts
from utils.lessons import markup, outline
from utils.measure import cost_model, network_speed, records, speedrun
from utils.measure.table import IMAGES, SECONDS, TARGET, Row, Section, keep, recorded
from utils.running import launch
from utils.running.result import RunFailed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STEPS = records.PROGRAMS / "timed_steps.py"
RACE = records.PROGRAMS / "recipe.py"
ROUNDS = 5
# Rows that README's sentence is made of; the second name stands behind their number.
ONE_WORKER, AS_STARTED = (
    "1 worker on 1 core or GPU",
    "workers, as the course starts them",
)
TIME_LIMIT = 900.0  # seconds for one start of timed_steps.py
# The plain recipe may take so many times as long as the course's, and is then ended.
PATIENCE = 4.0


# ------------------------------------------------------------------ starting programs


def _own_mpirun(program: list[str], workers: int) -> list[str]:
    """mpirun as most people type it."""
    return ["mpirun", "-np", str(workers), *program]


def _gloo(program: list[str], workers: int) -> list[str]:
    return ["horovodrun", "--gloo", "-np", str(workers), *program]


def _start(command: list[str], folder: Path, environment: dict, limit: float) -> None:
    """Run a command to its end; its output is in FOLDER/output.txt.

    Raises UserError with the last lines of it if it fails or takes too long.
    """
    output = folder / "output.txt"
    with (
        output.open("wb") as file,
        supervise.owned(
            command,
            limit,
            env=mpi.clean_environment() | environment,
            stdout=file,
            stderr=subprocess.STDOUT,
        ) as process,
    ):
        status = process.wait()
    if status:
        tail = "\n".join(output.read_text(errors="replace").splitlines()[-10:])
        raise errors.UserError(
            f"`{' '.join(command[:4])} ...` ended with status {status}; nothing was "
            f"measured. Its last lines:\n{tail}"
        )


def _printed(program: str, options: dict[str, object], environment: dict):
    """What a program of utils/measure/programs prints in its last line, of JSON."""
    command = [sys.executable, "-m", f"utils.measure.programs.{program}"]
    with files.scratch() as folder:
        _start([*command, *launch.words((), options)], folder, environment, TIME_LIMIT)
        lines = (folder / "output.txt").read_text(errors="replace").splitlines()
    return json.loads(next(ln for ln in reversed(lines) if ln.startswith(("{", "["))))


def _timed(
    *options: object,
    workers: int,
    through: Callable | None = None,
    tasks: bool = False,
    compared_with: int = 1,
    environment: dict[str, str] | None = None,
) -> list[dict]:
    """What each worker of a start of timed_steps.py reported.

    through: makes the command that starts the workers; by default the course does.
    """
    words = [str(option) for option in options]
    if through is None:
        started = time.time()
        run = launch.run(
            STEPS,
            *words,
            workers=workers,
            tasks={"worker": workers} if tasks else None,
            compared_with=compared_with,
            time_limit=TIME_LIMIT,
            quiet=True,
            environment=environment,
        )
        return _reports(run.folder, workers, started)
    with files.scratch() as folder:
        program = [sys.executable, str(STEPS), *words, "--out", str(folder)]
        started = time.time()
        _start(through(program, workers), folder, environment or {}, TIME_LIMIT)
        return _reports(folder, workers, started)


def _reports(folder: Path, workers: int, started: float) -> list[dict]:
    reports = []
    for rank in range(workers):
        path = folder / f"timed-{rank}.json"
        if not path.exists():
            raise errors.UserError(f"worker {rank} of {workers} measured nothing.")
        reports.append(json.loads(path.read_text()))
    for report in reports:
        report["moments"]["command"] = started
    return reports


def _speed(reports: list[dict], case: str, images: int) -> list[float]:
    """Images per second of all workers together, a number for each round.

    images: of a worker and step.
    """
    by_worker = (report["step_seconds"][case] for report in reports)
    return [
        sum(images / s for s in seconds) for seconds in zip(*by_worker, strict=True)
    ]


def _in_turn(
    makers: dict[str, Callable[[], float | dict[str, float]]],
    rounds: int,
    tell,
    unit: str = IMAGES,
) -> list[Row]:
    """A row for each maker of values; they take turns, another one first each round.

    One that returns several, name -> value, makes as many rows.
    """
    values: dict[str, list[float]] = {}
    names = list(makers)
    for turn in range(rounds):
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            tell(f"round {turn + 1} of {rounds}: {name}")
            result = makers[name]()
            for row, value in (
                result if isinstance(result, dict) else {name: result}
            ).items():
                values.setdefault(row, []).append(value)
    return [Row(name, series, unit) for name, series in values.items()]


# ------------------------------------------------------------------ the sections


@dataclass(frozen=True)
class Plan:
    """How much is measured, and on what.

    steps: timed steps of a case in a round; batch, width: of the network; seconds: for
    each pipeline in a round.
    """

    rounds: int = ROUNDS
    workers: int = 2
    steps: int = 30
    batch: int = 64
    width: int = 1
    seconds: float = 2.0
    data: str = "auto"
    train_images: int | None = None
    epochs: int = 3

    @property
    def options(self) -> dict[str, object]:
        """What to train on, as options of the programs."""
        size = {} if self.train_images is None else {"train_images": self.train_images}
        return {"data": self.data, **size}

    @property
    def dataset(self) -> list[str]:
        """The same as words of their command line."""
        return launch.words((), self.options)

    @classmethod
    def of_machine(cls, rounds: int = ROUNDS) -> "Plan":
        """A worker for each GPU, or for each core with less than two GPUs."""
        gpus = machine.gpus()
        workers = gpus if gpus > 1 else max(2, machine.cores())
        return cls(rounds, workers=workers, width=profiles.in_force().width)


ALONE, TOGETHER = "alone", "together"


def launching(plan: Plan, tell: Callable[[str], None]) -> Section:
    """One worker, the machine's limit for N, and N in all ways to start them."""
    n, images = plan.workers, plan.batch
    alone, together = (f"{w}:{plan.batch}x{plan.width}" for w in (ALONE, TOGETHER))
    common = ("--steps", plan.steps, *plan.dataset)

    def horovod(**settings):
        options = ("--with", "horovod", "--cases", together, *common)
        return sum(_speed(_timed(*options, workers=n, **settings), together, images))

    def course_and_limit():
        # In the same processes, a third of the steps at a time: the share of the limit
        # is the closest comparison here, and a minute changes the speed of a machine.
        options = ("--with", "horovod", "--cases", alone, together, "--rounds", 3)
        options += ("--steps", max(1, plan.steps // 3), *plan.dataset)
        reports = _timed(*options, workers=n)
        rows = {limit: alone, f"{n} {AS_STARTED}": together}
        return {
            name: statistics.median(_speed(reports, case, images))
            for name, case in rows.items()
        }

    def single():
        options = ("--cases", alone, *common)
        reports = _timed(*options, workers=1, compared_with=n)
        return sum(_speed(reports, alone, images))  # of one round

    def mirrored():
        options = ("--with", "mirrored", "--replicas", n, "--cases", alone, *common)
        reports = _timed(*options, workers=1)
        return sum(_speed(reports, alone, images * n))

    def multi_worker():
        options = ("--with", "multi_worker", "--cases", alone, *common)
        return sum(_speed(_timed(*options, workers=n, tasks=True), alone, images))

    def whole_machine():
        options = ("--cases", alone, *common)
        reports = _timed(*options, workers=1)
        return sum(_speed(reports, alone, images))

    equal_shares = mpi.thread_variables(machine.share(n))
    limit = f"{n} workers that don't talk: the limit"
    rows = _in_turn(
        {
            ONE_WORKER: single,
            "the course's start, and the limit": course_and_limit,
            f"{n} workers, plain `mpirun -np {n}`": lambda: horovod(
                through=_own_mpirun
            ),
            f"{n} workers, `horovodrun --gloo`": lambda: horovod(
                through=_gloo, environment=equal_shares
            ),
            f"MirroredStrategy, {n} replicas": mirrored,
            f"MultiWorkerMirroredStrategy, {n} processes": multi_worker,
            "1 worker with the whole machine": whole_machine,
        },
        plan.rounds,
        tell,
    )
    section = Section("launch", rows)
    section.compare(limit)
    return section


def pipeline(plan: Plan, tell: Callable[[str], None]) -> Section:
    """The input pipeline alone, on one thread, against the usual ones."""
    titles = {
        "course": "the course's, by whole batches",
        "image_by_image": "tf.data, image by image",
        "keras_generator": "Keras' ImageDataGenerator",
    }
    tell("three pipelines in turn")
    options = {"rounds": plan.rounds, "seconds": plan.seconds, "data": plan.data}
    options |= {"batch_size": plan.batch}
    speeds = _printed("pipelines", options, mpi.thread_variables(1))
    rows = [Row(titles[name], values, IMAGES) for name, values in speeds.items()]
    section = Section("pipeline", rows)
    section.compare(titles["keras_generator"])
    return section


def start_up(plan: Plan, tell: Callable[[str], None]) -> Section:
    """From the command to the first batch, part by part."""
    case = f"{TOGETHER}:{plan.batch}x{plan.width}"
    parts = {
        "mpirun and Python": ("command", "born"),
        "import TensorFlow and the course": ("born", "imported"),
        "import Horovod, hvd.init()": ("imported", "started"),
        "load the data": ("started", "loaded"),
        "build the network": ("loaded", "built"),
        "first batch, with its graph": ("built", "first_batch"),
        "command to first batch": ("command", "first_batch"),
    }
    values: dict[str, list[float]] = {part: [] for part in parts}
    for turn in range(plan.rounds):
        tell(f"start {turn + 1} of {plan.rounds}")
        options = ("--with", "horovod", "--cases", case, *plan.dataset)
        reports = _timed(*options, "--steps", 1, workers=plan.workers)
        moments = reports[0]["moments"]
        for part, (begin, end) in parts.items():
            values[part].append(moments[end] - moments[begin])
    return Section("start", [Row(part, v, SECONDS) for part, v in values.items()])


def loop(plan: Plan, tell: Callable[[str], None]) -> Section:
    """What a learner waits for, again and again."""
    count = len(outline.exercise(outline.FIRST).parts)
    program = f"{outline.FIRST}_after_step_{count:02}.py"
    check = ("check", "--script", str(course.PACKAGE_ROOT / "solutions" / program))
    rows = _in_turn(
        {
            "course --help": lambda: _seconds("--help"),
            "course check N, the median step": lambda: statistics.median(
                _seconds(*check, str(step + 1)) for step in range(count)
            ),
            f"course check, all {count} steps": lambda: _seconds(*check),
            "course check --watch, save to verdict, the median step": lambda: (
                statistics.median(_after_saves())
            ),
        },
        plan.rounds,
        tell,
        SECONDS,
    )
    return Section("loop", [*rows, start_up(plan, tell).rows[-1]])


def _seconds(*words: str) -> float:
    """How long a command of the course takes, to its end, with the start of the
    supervisor that owns it."""
    with files.scratch() as folder:
        began = time.monotonic()
        command = [sys.executable, "-m", "utils.cli", *words]
        _start(command, folder, {}, TIME_LIMIT)
        return time.monotonic() - began


def _after_saves() -> list[float]:
    """How long after a save `course check --watch` says that a step is right: for each
    step, as it is done."""
    # Here, as it imports all judges, and most who read this module's tables need none.
    from utils.checking import on_save

    source = markup.source_of(outline.FIRST).read_text(encoding="utf-8")
    seconds = []
    with files.scratch() as folder:
        program = folder / f"{outline.FIRST}.py"
        # Not the exercise as it comes, which needn't run to be found wrong: TensorFlow
        # is imported before the first save, as it is for a learner.
        program.write_text(markup.render(source, 0) + "print()\n", encoding="utf-8")
        command = [sys.executable, "-m", "utils.cli", "check", "1", "--watch"]
        command += ["--script", str(program)]
        environment = {**os.environ, "COLUMNS": "200"}
        with supervise.owned(
            command, TIME_LIMIT, env=environment, **supervise.READ_LINES
        ) as process:
            _wait_for(process, on_save.AGAIN)
            for step in outline.exercise(outline.FIRST).parts:
                began = time.monotonic()
                program.write_text(markup.render(source, step), encoding="utf-8")
                _wait_for(process, f"{title(step)} is right.")
                seconds.append(time.monotonic() - began)
    return seconds


def _wait_for(process: subprocess.Popen, words: str) -> None:
    """Read what a command prints, up to these words. Raises UserError if it ends
    without them."""
    read = []
    for line in process.stdout:
        read.append(line)
        if words in line:
            return
    raise errors.UserError(f"it ended without {words!r}: {''.join(read[-20:])}")


# Where the time of a step goes: part -> the operations in it, by their first letters.
PARTS = {
    "convolutions": ("Conv2D",),
    "batch normalization": ("FusedBatchNorm",),
    "dropout: random numbers, and choosing by them": (
        "RandomUniform",
        "GreaterEqual",
        "SelectV2",
    ),
    "ReLU, additions, pooling": ("Relu", "Add", "Mul", "MaxPool"),
}


def profile(plan: Plan, tell: Callable[[str], None]) -> Section:
    """One worker on one core: which operations the time of a step goes to."""
    whole, rest = "the whole step", "everything else"
    values: dict[str, list[float]] = {name: [] for name in (*PARTS, rest, whole)}
    case = f"{ALONE}:{plan.batch}x{plan.width}"
    for turn in range(plan.rounds):
        tell(f"round {turn + 1} of {plan.rounds}")
        options = ("--cases", case, *plan.dataset, "--steps", plan.steps)
        (report,) = _timed(*options, "--profile", workers=1, compared_with=plan.workers)
        (step,) = report["step_seconds"][case]
        (operations,) = report["operation_seconds"][case]
        remaining = step
        for part, begin in PARTS.items():
            matching = [s for kind, s in operations.items() if kind.startswith(begin)]
            values[part].append(1000 * sum(matching))
            remaining -= sum(matching)
        values[rest].append(1000 * remaining)
        values[whole].append(1000 * step)
    section = Section("profile", [Row(name, v, "ms") for name, v in values.items()])
    section.compare(whole)
    return section


def precision(plan: Plan, tell: Callable[[str], None]) -> Section:
    """One worker on one core or GPU: fewer bits, XLA, oneDNN."""
    case = f"{ALONE}:{plan.batch}x{plan.width}"
    base = ("--cases", case, "--steps", plan.steps, *plan.dataset)

    def speed(*options, **environment):
        reports = _timed(
            *base,
            *options,
            workers=1,
            compared_with=plan.workers,
            environment=environment or None,
        )
        return sum(_speed(reports, case, plan.batch))

    normal = "float32"
    makers: dict[str, Callable[[], float]] = {normal: speed}
    notes = []
    if machine.bfloat16():
        makers["bfloat16"] = lambda: speed("--precision", "mixed_bfloat16")
    else:
        notes.append(
            "bfloat16: not measured, as this processor is not known to have it."
        )
    if machine.gpus():
        makers["float16"] = lambda: speed("--precision", "mixed_float16")
    else:
        notes.append("float16: not measured, as there is no GPU.")
        makers["oneDNN off"] = lambda: speed(TF_ENABLE_ONEDNN_OPTS="0")
    makers["XLA on"] = lambda: speed("--jit")
    section = Section("precision", _in_turn(makers, plan.rounds, tell), notes)
    section.compare(normal)
    return section


# Of the section on GPUs: title -> Keras' policy, and what else it takes.
PRECISIONS = {
    "float32": ("float32", {"NVIDIA_TF32_OVERRIDE": "0"}),
    "TF32": ("float32", {}),
    "mixed precision": ("mixed_float16", {}),
}
GPU_BATCH, GPU_WIDTH = 128, 10


def gpu(plan: Plan, tell: Callable[[str], None]) -> Section:
    """WRN-16-10 on one GPU, by precision, against the device's own peak; and on more of
    them. Raises UserError without a GPU."""
    gpus = machine.gpus()
    if not gpus:
        raise errors.UserError("there is no GPU here, so there is nothing to measure.")
    alone, together = (f"{way}:{GPU_BATCH}x{GPU_WIDTH}" for way in (ALONE, TOGETHER))
    common = ("--steps", plan.steps, "--data", plan.data)

    def speed(policy, environment, workers=1):
        case = alone if workers == 1 else together
        way = "single" if workers == 1 else "horovod"
        options = ("--with", way, "--cases", case, "--precision", policy, *common)
        reports = _timed(*options, workers=workers, environment=environment)
        return sum(_speed(reports, case, GPU_BATCH))

    makers = {
        name: functools.partial(speed, *settings)
        for name, settings in PRECISIONS.items()
    }
    more = [count for count in (2, 4, 8, 16) if count < gpus] + [gpus] * (gpus > 1)
    for count in more:
        settings = PRECISIONS["mixed precision"]
        name = f"{count} GPUs, mixed precision"
        makers[name] = functools.partial(speed, *settings, count)
    rows = _in_turn(makers, plan.rounds, tell)
    section = Section("gpu", rows)
    section.compare("float32", "TF32", "mixed precision")
    if more:
        section.compare("mixed precision", *(row.name for row in rows[-len(more) :]))
    for row in rows[: len(PRECISIONS)]:
        tell(f"the device's peak, {row.name}")
        peak = _peak(*PRECISIONS[row.name])
        section.notes.append(share_of_peak(row, peak))
    return section


def share_of_peak(row: Row, peak: float) -> str:
    """How much of what a device can compute (TFLOP/s) the training was, in words."""
    # A step forwards takes two operations for each mac; backwards twice as many.
    operations = 3 * 2 * cost_model.wide_resnet(GPU_WIDTH).macs
    reached = statistics.median(row.values) * operations / 1e12
    return (
        f"{row.name}: {reached:.1f} TFLOP/s, {reached / peak:.0%} of the {peak:.1f} "
        "that products of large matrices reach on this GPU."
    )


def _peak(policy: str, environment: dict[str, str]) -> float:
    """TFLOP/s of one GPU, the best round."""
    return max(_printed("products", {"precision": policy}, environment))


def accuracy(plan: Plan, tell: Callable[[str], None]) -> Section:
    """The time from the command to TARGET, in two epochs running, by both recipes,
    which are started alike."""
    course_recipe, plain_recipe = "the course's recipe", "the plain recipe"
    seconds: dict[str, list[float]] = {course_recipe: [], plain_recipe: []}
    epochs: dict[str, list] = {course_recipe: [], plain_recipe: []}
    ended, notes = False, []
    size = [*plan.dataset, "--width", str(plan.width)]
    for turn in range(plan.rounds):
        tell(f"round {turn + 1} of {plan.rounds}: {course_recipe}")
        run = launch.run(
            RACE, *size, workers=plan.workers, quiet=True, epochs=plan.epochs
        )
        notes += run.notices
        _reached(run.history, course_recipe)
        # What is trained ends with the second epoch above the target.
        seconds[course_recipe].append(run.seconds)
        epochs[course_recipe].append(len(run.history))
        tell(f"round {turn + 1} of {plan.rounds}: {plain_recipe}")
        limit = PATIENCE * run.seconds
        try:
            run = launch.run(
                RACE,
                "--plain",
                *size,
                workers=plan.workers,
                time_limit=limit,
                quiet=True,
            )
        except RunFailed as failed:
            if failed.run.status != supervise.TIMED_OUT:
                raise
            run, ended = failed.run, True
            notes.append(
                f"The plain recipe was ended after {PATIENCE:g} times the "
                "course's time; it had not got there."
            )
        seconds[plain_recipe].append(run.seconds)
        epochs[plain_recipe].append(_epochs(run.folder / "history.csv"))
    rows = [
        Row(name, v, SECONDS, facts={"epochs": epochs[name]})
        for name, v in seconds.items()
    ]
    rows[1].at_least = ended
    section = Section("accuracy", rows, list(dict.fromkeys(notes)))
    section.compare(course_recipe)
    return section


# What one thing at a time does to the course's recipe: what is changed -> options.
CHANGES = {
    "the course's recipe": {},
    "without momentum, ten times the rate": {"momentum": 0, "peak_lr": 0.5},
    "the peak rate from the first step to the last": {"policy": "constant"},
    "a constant rate of 0.02": {"policy": "constant", "peak_lr": 0.02},
    "batches of 32": {"batch_size": 32},
    "label smoothing 0.1": {"label_smoothing": 0.1},
}


def recipe(plan: Plan, tell: Callable[[str], None]) -> Section:
    """Validation accuracy when the course's recipe ends, with one thing changed."""
    images = plan.train_images or 12_000
    notes = [f"Each was trained on {images:,} images for {plan.epochs} epochs."]

    def accuracy_with(**options) -> float:
        run = launch.run(
            RACE,
            workers=plan.workers,
            quiet=True,
            epochs=plan.epochs,
            train_images=images,
            width=plan.width,
            data=plan.data,
            target_accuracy=1,
            **options,
        )
        notes.extend(run.notices)  # that there were fewer images, perhaps
        return 100 * float(run.history["val_accuracy"].iloc[-1])

    makers = {
        name: functools.partial(accuracy_with, **options)
        for name, options in CHANGES.items()
    }
    rows = _in_turn(makers, plan.rounds, tell, "%")
    return Section("recipe", rows, list(dict.fromkeys(notes)))


def _reached(history, name: str) -> None:
    if not (history["val_accuracy"].tail(2) > TARGET).all() or len(history) < 2:
        raise errors.UserError(
            f"{name} did not get above {TARGET} in two epochs running, in "
            f"{len(history)} epochs: there is no time to report."
        )


def _epochs(history: Path) -> int:
    return max(0, len(history.read_text().splitlines()) - 1) if history.exists() else 0


SECTIONS = {
    "launch": launching,
    "pipeline": pipeline,
    "start": start_up,
    "loop": loop,
    "profile": profile,
    "precision": precision,
    "accuracy": accuracy,
    "recipe": recipe,
    "speedrun": speedrun.of_bench,
    "gpu": gpu,
    "network": network_speed.of_bench,
}


# ------------------------------------------------------------------ the whole


def bench(
    sections: Sequence[str] = (),
    rounds: int = ROUNDS,
    out: Path | None = None,
    record: bool = False,
    tell: Callable[[str], None] = lambda text: None,
    plan: Plan | None = None,
    draw: Callable[[Section], "Figure"] | None = None,
) -> list[Section]:
    """Measure these sections, and write each as soon as it is done. By default all,
    that on GPUs where there is one; the others have a device for each worker, or
    compute on cores.

    out: the folder for bench.md, bench.csv and the figures. record: keep the results as
    the course's own, which notebooks and BENCHMARKS.md show. draw: makes a section's
    figure. Raises UserError for an unknown section, and when something can't be
    measured.
    """
    unknown = [name for name in sections if name not in SECTIONS]
    if unknown or rounds < 1:
        raise errors.UserError(
            f"no section {', '.join(unknown)}: choose from {', '.join(SECTIONS)}."
            if unknown
            else f"rounds is {rounds}: choose 1 or more."
        )
    plan = plan or Plan.of_machine(rounds)
    out = out or course.root() / "logs" / f"bench_{time.strftime('%Y-%m-%d_%H-%M-%S')}"
    out.mkdir(parents=True, exist_ok=True)
    done = []
    everything = [name for name in SECTIONS if name != "gpu" or machine.gpus()]
    for name in sections or everything:
        with _enough_devices(plan.workers if name != "gpu" else 1):
            section = SECTIONS[name](plan, lambda text, n=name: tell(f"{n}: {text}"))
        done.append(section)
        write(done, out)
        if draw:
            draw(section).savefig(out / f"{name}.png", dpi=120)
        if record:
            keep(section, f"course bench {name} --rounds {plan.rounds}")
            for path, update in PAGES.items():
                files.write_whole(path, update(path.read_text(encoding="utf-8")))
    return done


@contextlib.contextmanager
def _enough_devices(workers: int) -> Iterator[None]:
    """In this block, leave the GPUs alone if there are fewer than workers, so that one
    worker and several compute on the same."""
    before = {name: os.environ.get(name) for name in machine.HIDDEN}
    if 0 < machine.gpus() < workers:
        os.environ.update(machine.HIDDEN)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def write(sections: Sequence[Section], out: Path) -> None:
    """Write bench.md and bench.csv, which has a line for each row and round."""
    parts = [f"# Benchmark\n\nOn {machine.summary()}."]
    for section in sections:
        parts.append("\n\n".join([section.markdown(), *section.warnings()]))
    (out / "bench.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    with (out / "bench.csv").open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(("section", "row", "round", "value", "unit", "ratio", "ratio_to"))
        for section in sections:
            for row in section.rows:
                ratios = row.ratios or [""] * len(row.values)
                for turn, pair in enumerate(zip(row.values, ratios, strict=True), 1):
                    value, ratio = pair
                    line = (section.name, row.name, turn, value, row.unit, ratio)
                    rows.writerow((*line, row.base))


# The page with the recorded tables, and which are on it; README has two sentences.
PAGE, README = course.PACKAGE_ROOT / "BENCHMARKS.md", course.PACKAGE_ROOT / "README.md"
ON_PAGE = [name for name in SECTIONS if name != "network"]
BEGIN, END = "<!-- course bench --record writes this -->", "<!-- until here -->"


def with_records(page: str) -> str:
    """The text of PAGE with the recorded tables between its two marks.

    Raises UserError if a mark is missing.
    """
    parts = []
    for name in ON_PAGE:
        if (records.FOLDER / f"bench_{name}.json").exists():
            section, record = recorded(name)
            parts += [section.markdown(), record.origin]
    return texts.between(PAGE.name, page, BEGIN, END, "\n\n".join(parts))


SENTENCE = "<!-- bench_launch.json says this -->"


SPEEDRUN = "<!-- bench_speedrun.json says this -->"


def with_sentences(readme: str) -> str:
    """The README with how fast two workers are, and how soon they get to an accuracy,
    each in a sentence between two marks.

    Raises UserError if a mark is missing.
    """
    section, record = recorded("launch")
    rows = {row.name: row for row in section.rows}
    ours = next(row for name, row in rows.items() if name.endswith(AS_STARTED))
    one = rows[ONE_WORKER]
    speed, alone, most = (
        statistics.median(row.values) for row in (ours, one, rows[one.base])
    )
    text = (
        f"{ours.name}, train {speed:,.0f} images a second, {speed / alone:.2f} times "
        f"as many as one; {one.base.partition(':')[0]}, {most:,.0f}, which is the "
        f"machine's limit. {record.origin}"
    )
    readme = texts.between(README.name, readme, SENTENCE, END, text)
    return texts.between(README.name, readme, SPEEDRUN, END, speedrun.sentence())


PAGES = {PAGE: with_records, README: with_sentences}
