"""How fast 1, 2, ... workers are: measured now, or recorded for those who can't wait.

    python -m utils.measure.scaling    records all of it anew

Each worker computes with the same share of the cores, however many workers there are,
unless it is said otherwise. Speeds are those of a run's epochs after the first.
"""

import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas

from distcheck import errors, files, machine
from utils.measure import cost_model, records
from utils.running import launch
from utils.running.result import Run

STOPWATCH = records.PROGRAMS / "timed_steps.py"

AUTOTUNE = {
    "HOROVOD_AUTOTUNE": "1",
    "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "1",
    "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": "4",
    "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "8",
}


def measure(
    program: Path | str,
    workers: Iterable[int],
    train_images: int,
    **options: object,
) -> dict[int, Run]:
    """Run a program that shares its epoch on 1, 2, ... workers: workers -> Run. Each
    worker has the same share of the machine: that of one in the largest team.

    train_images: of an epoch, whoever trains on them. options: of `launch.run`.
    """
    counts = list(workers)
    return {
        count: launch.run(
            program,
            workers=count,
            compared_with=max(counts),
            train_images=train_images,
            **options,
        )
        for count in counts
    }


def limit(
    program: Path | str, workers: int, train_images: int, **options: object
) -> float:
    """Images per second of so many workers that don't talk: what the machine can give.

    program: one that starts Horovod and shares nothing, such as that after step 2. Each
        worker trains on all train_images by itself; all are taken to be as fast as
        rank 0.
    options: of `launch.run`.
    """
    run = launch.run(program, workers=workers, train_images=train_images, **options)
    return workers * run.images_per_second


def speeds(runs: dict[int, Run]) -> dict[int, float]:
    """workers -> images per second of all of them together."""
    return {count: run.images_per_second for count, run in runs.items()}


def table(speed: dict[int, float], most: float | None = None) -> pandas.DataFrame:
    """A row for each number of workers: images per second, speed-up against one worker,
    and efficiency, the speed-up over the workers.

    most: the limit of the largest number; adds its share that was reached.
    Raises UserError without the speed of one worker.
    """
    if 1 not in speed:
        raise errors.UserError("a speed-up is against one worker: measure that, too.")
    frame = pandas.DataFrame(
        {
            "images/s": {count: round(value) for count, value in speed.items()},
            "speed-up": {n: round(value / speed[1], 2) for n, value in speed.items()},
            "efficiency": {
                n: f"{value / speed[1] / n:.0%}" for n, value in speed.items()
            },
        }
    ).rename_axis("workers")
    if most is not None:
        last = max(speed)
        frame["of the limit"] = ""
        frame.loc[last, "of the limit"] = f"{speed[last] / most:.0%}"
    return frame


def step_times(
    workers: int, cases: Sequence[str], rounds: int = 2, steps: int = 4, **options
) -> list[cost_model.Point]:
    """Measure steps of several kinds in turn, in the same processes; a Point for each
    case and round.

    cases: such as "together:64x1" or "alone:16x2", which is WAY:BATCHxWIDTH: with
        gradients shared or not, images per worker, and the network's width.
    options: of `launch.run`.
    """
    run = launch.run(
        files.shown(STOPWATCH),
        "--with",
        "horovod",
        "--cases",
        *cases,
        workers=workers,
        rounds=rounds,
        steps=steps,
        warm_up=1,
        **options,
    )
    return points(run)


def points(run: Run) -> list[cost_model.Point]:
    """The points that a run of timed_steps.py measured; of each step the slowest
    worker's time. Raises UserError where it measured nothing."""
    paths = sorted(run.folder.glob("timed-*.json"))
    reports = [json.loads(path.read_text())["step_seconds"] for path in paths]
    if not reports:
        raise errors.UserError(f"{run.script} measured no step; see its log.")
    all_points = []
    for case in reports[0]:
        way, size = case.split(":")
        batch, width = map(int, size.split("x"))
        network = cost_model.wide_resnet(width)
        for seconds in zip(*(report[case] for report in reports), strict=True):
            all_points.append(
                cost_model.Point(
                    run.workers, batch, network, max(seconds), way == "together"
                )
            )
    return all_points


def tuned(log: Path | str) -> pandas.DataFrame:
    """What Horovod's autotuning tried, from its HOROVOD_AUTOTUNE_LOG: a row for each
    try, with cycle (ms), fusion (MB) and score (bytes a microsecond). Where the program
    trained until the search was over, the last row is what it chose.

    Raises UserError for a log without a try: the program ended too soon.
    """
    tries = pandas.read_csv(log)
    if tries.empty:
        raise errors.UserError(
            f"{files.shown(log)} holds no try: let the program train for more steps."
        )
    names = {"cycle_time_ms": "cycle", "tensor_fusion_threshold": "fusion"}
    return tries.rename(columns=names)[["cycle", "fusion", "score"]].round(2)


# Enough to tell the cost model's five numbers apart, and to see the strong and the weak
# scaling of a step of 64 images.
BATCHES = {1: (16, 64, 256), 2: (16, 64), 4: (16, 64)}  # by width
STEP = 64


def record() -> Path:
    """Measure on 1, 2, ... workers, as many as there are cores and one more, what takes
    too long for a notebook, and keep it as the record "scaling"; returns its path."""
    os.environ.update(machine.HIDDEN)  # a core stands in for a GPU
    cores = machine.cores()
    counts = sorted({1, *(2**n for n in range(1, 10) if 2**n <= cores), cores})
    sizes = [
        f"{batch}x{width}" for width, numbers in BATCHES.items() for batch in numbers
    ]
    shares = {count: f"{STEP // count}x1" for count in [*counts, cores + 1]}
    measured = []
    for count, share in shares.items():
        ways = ["alone"] if count == 1 else ["alone", "together"]
        # All sizes where the cores are full, for the fit; else those of the curves.
        cases = sizes if count in (1, cores) else [f"{STEP}x1"]
        cases = [f"{way}:{case}" for way in ways for case in cases]
        cases += [f"{ways[-1]}:{share}"] * (f"{ways[-1]}:{share}" not in cases)
        measured += step_times(count, cases, compared_with=cores)
    whole_run = launch.run(
        files.shown(STOPWATCH),
        "--cases",
        f"alone:{STEP}x1",
        workers=1,
        steps=20,
    )
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "autotune.csv"
        launch.run(
            files.shown(STOPWATCH),
            "--with",
            "horovod",
            "--cases",
            "together:16x1",
            workers=max(2, cores),
            steps=400,
            environment=AUTOTUNE | {"HOROVOD_AUTOTUNE_LOG": str(log)},
        )
        tries = tuned(log).to_dict("records")
    results = {
        "points": as_plain(measured),
        "all_cores": {
            "cores": cores,
            "points": as_plain(points(whole_run)),
        },
        "autotune": tries,
    }
    notes = (f"One core a worker; the {cores + 1} workers share {cores} cores.",)
    return records.save("scaling", results, "python -m utils.measure.scaling", notes)


def as_plain(points: Iterable[cost_model.Point]) -> list[dict]:
    """Points as a record keeps them: of each case, the seconds of all rounds."""
    cases: dict[tuple, list[float]] = {}
    for point in points:
        case = (point.workers, point.batch, point.network, point.talks)
        cases.setdefault(case, []).append(round(point.seconds, 5))
    return [
        {
            "workers": workers,
            "batch": batch,
            "width": int(network.name.rpartition("-")[2]),
            "talks": talks,
            "seconds": seconds,
        }
        for (workers, batch, network, talks), seconds in cases.items()
    ]


def from_plain(rows: Iterable[dict]) -> list[cost_model.Point]:
    """The points of a record."""
    return [
        cost_model.Point(
            row["workers"],
            row["batch"],
            cost_model.wide_resnet(row["width"]),
            seconds,
            row["talks"],
        )
        for row in rows
        for seconds in row["seconds"]
    ]


def step_speeds(
    measured: Sequence[cost_model.Point], weak: bool = False, talks: bool = True
) -> dict[int, float]:
    """workers -> images per second of steps of WRN-16-1, the median of the rounds.

    weak: each worker takes STEP images; else they share them. talks: False for workers
    that share no gradients. One worker has nobody to talk to and is in all of these.
    """
    network = cost_model.wide_resnet(1)
    seconds: dict[int, list[float]] = {}
    for point in measured:
        share = STEP if weak else STEP // point.workers
        same = point.talks == talks or point.workers == 1
        if point.network == network and point.batch == share and same:
            seconds.setdefault(point.workers, []).append(point.seconds)
    return {
        count: count * (STEP if weak else STEP // count) / statistics.median(times)
        for count, times in sorted(seconds.items())
    }


if __name__ == "__main__":
    try:
        print(files.shown(record()))
    except errors.UserError as error:
        sys.exit(str(error))
