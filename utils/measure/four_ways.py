"""The way on: the six steps in four frameworks, and what the four programs end with.

The programs are in solutions/four_ways; each gets the same images, order and first
weights in a file, and leaves the weights and the losses that it ends with in another.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from distcheck import errors, files
from distcheck.show import Table
from utils.base import course
from utils.running import beside
from utils.running.launch import run
from utils.training import data

FOLDER = course.PACKAGE_ROOT / "solutions" / "four_ways"
RECORDED = FOLDER / "recorded.json"

# Name -> its program. What stands between backticks below is found in there.
PROGRAMS = {
    "Horovod": "with_horovod.py",
    "tf.distribute": "with_strategy.py",
    "Keras 3, JAX": "with_keras_3.py",
    "PyTorch DDP": "with_ddp.py",
}
STARTERS = ("mpirun", "python", "python", "torchrun")
_ONE = "one process speaks"
STEPS = {
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
    """The six steps, and what each is in the four programs; above, what starts them."""
    heads = [
        f"{name} ({starter})" for name, starter in zip(PROGRAMS, STARTERS, strict=True)
    ]
    return Table(["step", *heads], [(step, *of) for step, of in STEPS.items()])


# By which words a step is known, in a program of whatever framework.
SIGNS = {
    "1 a device each": (
        *("hvd.init(", "local_rank(", "set_visible_devices(", "Strategy("),
        *("DataParallel()", "init_process_group(", "LOCAL_RANK"),
    ),
    "2 one voice": (
        "rank() == 0",
        "rank == 0",
        "is_root",
        "is_chief",
        "process_index(",
    ),
    "3 average the gradients": (
        *("DistributedOptimizer(", "DistributedGradientTape(", ".scope()"),
        *("set_distribution(", "DistributedDataParallel(", "strategy.run("),
    ),
    "4 the same start": (
        *("BroadcastGlobalVariables", "broadcast_variables(", "broadcast_object("),
        *(".scope()", "set_distribution(", "DistributedDataParallel("),
    ),
    "5 share the epoch": (
        *("rank::size", "// size", "// workers", "size()", "shard(", "global_batch"),
        *("DistributedSampler(", "num_replicas_in_sync", "device_count("),
        "experimental_distribute_dataset(",
    ),
    "6 average the metrics": (
        *("MetricAverage", "allreduce(", "all_reduce(", "strategy.reduce("),
    ),
}
MOST_LINES = 3  # of a step


def lined_up(program: str | Path) -> Table:
    """The six steps, and the lines of a program that name each, by their words alone:
    what a line does isn't looked at."""
    lines = list(enumerate(Path(program).read_text(encoding="utf-8").splitlines(), 1))
    rows = []
    for step, signs in SIGNS.items():
        found = [
            f"{number}: {line.strip()[:60]}"
            for number, line in lines
            if any(sign in line.partition("#")[0] for sign in signs)
        ]
        more = [f"and {len(found) - MOST_LINES} more"] * (len(found) > MOST_LINES)
        rows.append((step, "; ".join(found[:MOST_LINES] + more) or "no line"))
    return Table(["step", f"lines of {Path(program).name}"], rows)


def write_start(path: Path, train_images: int) -> dict[str, np.ndarray]:
    """Write what all four programs begin with, and return it: images x and labels y in
    their order, the global batch, the weights of two layers: w1, b1, w2, b2."""
    dataset, draw = data.load(train_images=train_images), np.random.default_rng(1)
    order = draw.permutation(len(dataset.x_train))
    start = {
        "x": np.float32(dataset.x_train.reshape(-1, 784)[order] / 255),
        "y": dataset.y_train[order],
        "batch": np.array(64),
    }
    for number, (rows, columns) in enumerate([(784, 32), (32, 10)], 1):
        weights = draw.normal(0, rows**-0.5, (rows, columns))
        start[f"w{number}"] = np.float32(weights)
        start[f"b{number}"] = np.zeros(columns, "float32")
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **start)
    return start


def train(
    name: str, start: Path, folder: Path = FOLDER, workers: int = 2
) -> dict[str, np.ndarray]:
    """Run one of PROGRAMS, with what `write_start` wrote; return what it leaves.

    folder: where the programs are, as it is to be shown.
    PyTorch's, where PyTorch isn't installed, leaves what was recorded.
    """
    program = folder / PROGRAMS[name]
    left = start.with_name(f"{program.stem}.npz")
    if name == "Keras 3, JAX":
        beside.run("jax", "python", program, start, left)
    elif name == "PyTorch DDP" and beside.problem("torch"):
        print("Not run here.", beside.problem("torch"))
        arrays, origin = recorded()
        print("What is compared was recorded:", origin)
        np.savez(left, **arrays)
    elif name == "PyTorch DDP":
        per_node = ("--nproc-per-node", workers)
        beside.run("torch", "torchrun", *per_node, program, start, left)
    else:
        processes = workers if name == "Horovod" else 1
        run(program, start, left, workers=processes, quiet=True)
    return read(left)


def train_changed(
    start: Path, fault: str, line: str, instead: str, workers: int = 2
) -> dict[str, np.ndarray]:
    """Run a copy of Horovod's program, beside `start`, in which `instead` replaces
    `line`, and return what it leaves. Raises ValueError for a line that isn't there."""
    text = (FOLDER / PROGRAMS["Horovod"]).read_text(encoding="utf-8")
    if line not in text:
        raise ValueError(f"{line!r} is not in {PROGRAMS['Horovod']}")
    copy = start.with_name(f"{fault.replace(' ', '_')}.py")
    copy.write_text(text.replace(line, instead), encoding="utf-8")
    left = copy.with_suffix(".npz")
    run(copy, start, left, workers=workers, quiet=True)
    return read(left)


def first_weights(start: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The weights of `write_start`, under the names that programs leave them with."""
    names = enumerate(("w1", "b1", "w2", "b2"))
    return {f"arr_{number}": start[name] for number, name in names}


def read(path: Path) -> dict[str, np.ndarray]:
    """What a program left: `loss`, that of each epoch, and arr_0, arr_1, ..., the
    weights. Raises UserError without it."""
    try:
        with np.load(path) as left:
            return {name: left[name] for name in left.files}
    except (OSError, ValueError) as error:
        raise errors.UserError(
            f"{files.shown(path)} can't be read: {error}. Run the program that leaves "
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
