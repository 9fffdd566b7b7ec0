"""What several of the six steps' judges share."""

import functools
import shlex

from utils.checking import lab
from utils.checking.judges.register import checks
from utils.checking.judges.runs import (
    Judge,
    Problem,
    Run,
)

step = checks(
    "fashion_mnist",
    options=(
        f"--epochs 1 --width 1 --train-images {lab.TRAIN_IMAGES} --batch-size "
        f"{lab.BATCH_SIZE} --val-batch-size {lab.VAL_BATCH_SIZE}"
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
            options = shlex.join(lab.WORLDS[OTHER].options)
            problem.seen += f" This was seen with {options}; without, it was right."
            raise

    return judged
