"""What several of the six steps' judges share: the exercise that they check, and that
a step has to be right with other options, too."""

import functools
import shlex
from collections.abc import Callable

from distcheck.judges.registry import exercise
from distcheck.judges.runs import Judge, Missing, Problem, Run
from distcheck.scenarios import (
    BATCH_SIZE,
    OTHER_OPTIONS,
    TRAIN_IMAGES,
    VAL_BATCH_SIZE,
)

step = exercise(
    "fashion_mnist",
    options=(
        f"--epochs 1 --width 1 --train-images {TRAIN_IMAGES} --batch-size "
        f"{BATCH_SIZE} --val-batch-size {VAL_BATCH_SIZE}"
    ),
).part

OTHER, OPPOSITE = "other options", "opposite"


def whatever_the_options(judge_run: Callable[[Run], None]) -> Judge:
    """A decorator for what judges a single run: it judges the run without
    OTHER_OPTIONS, and then the one with them."""

    @functools.wraps(judge_run)
    def judge(runs: dict[str, Run]) -> None:
        judge_run(runs["two"])
        if OTHER not in runs:  # tests run most wrong programs without
            return
        try:
            try:
                judge_run(runs[OTHER])
            except Missing:
                # What it is in trouble with is told to be of these options, too.
                runs[OTHER].raise_if_in_trouble()
                raise
        except Problem as problem:
            added = shlex.join(OTHER_OPTIONS)
            problem.seen += f" This was seen with {added}; without, it was right."
            raise

    return judge
