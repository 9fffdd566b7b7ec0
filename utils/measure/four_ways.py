"""Notebook 30: the six steps in four frameworks, and what the four programs end with.

The programs are in solutions/four_ways; each gets the same images, order and first
weights in a file, and leaves the weights and the losses that it ends with in another.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from utils.base import course
from utils.base.show import Table

FOLDER = course.PACKAGE_ROOT / "solutions" / "four_ways"
RECORDED = FOLDER / "recorded.json"

# Name -> its program. What stands between backticks below is found in there.
PROGRAMS = {
    "Horovod": "with_horovod.py",
    "tf.distribute": "with_strategy.py",
    "Keras 3, JAX": "with_keras_3.py",
    "PyTorch DDP": "with_ddp.py",
}
_ONE = "one process speaks"
STEPS = {
    "starts it": ("`mpirun -np 2`", "`python`", "`python`", "`torchrun`"),
    "1 a device each": (
        "`hvd.init()`, `hvd.local_rank()`",
        "`MirroredStrategy(`",
        "`DataParallel()`",
        '`init_process_group(`, `"LOCAL_RANK"`',
    ),
    "2 one voice": ("`if rank == 0`", _ONE, _ONE, "`if rank == 0`"),
    "3 average the gradients": (
        "`hvd.DistributedOptimizer(`",
        "`strategy.scope()`",
        "`set_distribution(`: XLA does",
        "`DistributedDataParallel(`",
    ),
    "4 the same start": (
        "`BroadcastGlobalVariablesCallback(0)`",
        "`strategy.scope()`: copies",
        "`set_distribution(`: one array",
        "`DistributedDataParallel(`: rank 0's",
    ),
    "5 share the epoch": (
        "`[rank::size]`, `// size`",
        "the global batch is dealt out",
        "the global batch is split",
        "`[rank::size]`, `// size`",
    ),
    "6 average the metrics": (
        "`MetricAverageCallback()`",
        "they are of all replicas",
        "they are of all devices",
        "`dist.all_reduce(`",
    ),
}


def table() -> Table:
    """The six steps, and what each is in the four programs."""
    return Table(["step", *PROGRAMS], [(step, *of) for step, of in STEPS.items()])


def read(path: Path) -> dict[str, np.ndarray]:
    """What a program left: `loss`, that of each epoch, and arr_0, arr_1, ..., the
    weights. Raises CourseError without it."""
    try:
        with np.load(path) as left:
            return {name: left[name] for name in left.files}
    except (OSError, ValueError) as error:
        raise course.CourseError(
            f"{course.shown(path)} can't be read: {error}. Run the program that leaves "
            "it first."
        ) from None


def apart(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> float:
    """The largest difference between the weights that two programs ended with, of those
    that both left."""
    names = [name for name in one if name.startswith("arr_") and name in other]
    return max(float(abs(one[name] - other[name]).max()) for name in names)


def recorded() -> tuple[dict[str, np.ndarray], str]:
    """What PyTorch's program left where it was run, as `read` gives it, and without the
    first matrix; and where that was, for people."""
    facts = json.loads(RECORDED.read_text(encoding="utf-8"))
    arrays = {name: np.float32(values) for name, values in facts["left"].items()}
    return arrays, facts["origin"]


def compared(ended: Mapping[str, Mapping[str, np.ndarray]]) -> Table:
    """A row for each program: the loss of its last epoch, and how far its weights are
    from those of the first one."""
    first = next(iter(ended.values()))
    rows = [
        (name, f"{left['loss'][-1]:.6f}", f"{apart(first, left):.1e}")
        for name, left in ended.items()
    ]
    head = ["", "loss of the last epoch", "weights differ from the first row's by"]
    return Table(head, rows)
