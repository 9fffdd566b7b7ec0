"""What several of the six steps' judges share."""

import functools
import shlex

from distcheck.judges.register import checks
from distcheck.judges.runs import Judge, Problem, Run
from distcheck.scenarios import BATCH_SIZE, SCENARIOS, TRAIN_IMAGES, VAL_BATCH_SIZE

step = checks(
    "fashion_mnist",
    options=(
        f"--epochs 1 --width 1 --train-images {TRAIN_IMAGES} --batch-size "
        f"{BATCH_SIZE} --val-batch-size {VAL_BATCH_SIZE}"
    ),
).part

OTHER, OPPOSITE = "other options", "opposite"


def whatever_the_options(judge: Judge) -> Judge:
    """The same, for a step that has to be right with other options, too."""

    @functools.wraps(judge)
    def judged(runs: dict[str, Run]) -> None:
        judge(runs)
        if OTHER not in runs:
            return
        try:
            judge({**runs, "two": runs[OTHER]})
        except Problem as problem:
            options = shlex.join(SCENARIOS[OTHER].options)
            problem.seen += f" This was seen with {options}; without, it was right."
            raise

    return judged
