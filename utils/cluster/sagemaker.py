"""This machine in the place of SageMaker's container: folders for S3, and `mpirun`.

`channels` makes what S3 would hold, and `start` calls the entry point as the container
does: under mpirun, with the hyperparameters as arguments and with variables that say
where all is. `estimator_problem` reads what an estimator is to be called with.
"""

import gzip
import os
import struct
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from distcheck import machine, mpi, supervise
from utils.base import course, logs
from utils.cluster.tried import NOTHING, Tried
from utils.training import data

PROGRAM = course.PACKAGE_ROOT / "solutions" / "cluster" / "sagemaker_train.py"
TIME_LIMIT = 240.0
LAST_LINES = 8

# GPUs of kinds of hosts that SageMaker rents out for training: their number, and what
# they are. A part of AWS's list.
INSTANCES = {
    "ml.g4dn.xlarge": (1, "T4"),
    "ml.g4dn.12xlarge": (4, "T4"),
    "ml.g5.xlarge": (1, "A10G"),
    "ml.g5.12xlarge": (4, "A10G"),
    "ml.g5.48xlarge": (8, "A10G"),
    "ml.g6.12xlarge": (4, "L4"),
    "ml.g6.48xlarge": (8, "L4"),
    "ml.p4d.24xlarge": (8, "A100"),
    "ml.p5.48xlarge": (8, "H100"),
}


def channels(images: int = 256) -> Path:
    """A new folder in which `train` and `validation` are what S3 would hold: some of
    Fashion-MNIST's images, in its four files."""
    folder = logs.new_folder("sagemaker").resolve()
    dataset = data.load("sample", images)
    for name, part, pixels, labels in (
        ("train", "train", dataset.x_train, dataset.y_train),
        ("validation", "t10k", dataset.x_test, dataset.y_test),
    ):
        (folder / name).mkdir()
        count = len(labels)
        header = struct.pack(">4i", 2051, count, 28, 28)
        for kind, content in (
            ("images-idx3", header + np.asarray(pixels, np.uint8).tobytes()),
            (
                "labels-idx1",
                struct.pack(">2i", 2049, count)
                + np.asarray(labels, np.uint8).tobytes(),
            ),
        ):
            path = folder / name / f"{part}-{kind}-ubyte.gz"
            path.write_bytes(gzip.compress(content))
    return folder


def start(
    folder: Path, variables: Mapping[str, object], workers: int = 2, epochs: int = 1
) -> Tried:
    """Call the entry point as the container would, with these variables alone."""
    if not variables:
        return Tried(None, NOTHING)
    words = ["--epochs", str(epochs), "--batch-size", "16"]
    words += ["--checkpoint-dir", str(folder / "checkpoints")]
    command = [mpi.mpirun(), "-np", str(workers), "--bind-to", "none"]
    command += [sys.executable, str(PROGRAM), *words]
    environment = {
        name: value
        for name, value in mpi.clean_environment().items()
        if not name.startswith("SM_")
    }
    environment |= mpi.thread_variables(machine.share(workers))
    environment |= mpi.AS_ROOT | machine.HIDDEN
    environment |= {"OMPI_MCA_mpi_yield_when_idle": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment |= {name: os.fspath(value) for name, value in variables.items()}
    log = folder / "said.txt"
    with (
        log.open("w") as file,
        supervise.owned(
            command, TIME_LIMIT, env=environment, cwd=folder, stdout=file, stderr=file
        ) as process,
    ):
        status = process.wait()
    lines = [row for row in log.read_text(errors="replace").splitlines() if row.strip()]
    refused = [row for row in lines if row.startswith("refused: ")]
    if refused:
        return Tried(False, refused[0])
    if status:
        return Tried(False, "\n".join([f"status {status}:", *lines[-LAST_LINES:]]))
    left = sorted({path.parent.name for path in folder.rglob("saved_model.pb")})
    trained = [row for row in lines if "val_accuracy" in row]
    return Tried(
        bool(left),
        f"{workers} workers trained: {trained[-1].strip() if trained else ''}"
        if left
        else "It trained, but its model is not in this folder.",
    )


def estimator_problem(arguments: Mapping, hosts: int, gpus: int) -> str:
    """What is wrong with what an estimator is to be called with: the course's entry
    point on so many hosts, with a worker for each of so many GPUs of a host."""
    if not arguments:
        return NOTHING
    if Path(str(arguments.get("entry_point"))).name != PROGRAM.name:
        return f"entry_point is {arguments.get('entry_point')}, not {PROGRAM.name}."
    if not arguments.get("role"):
        return "Without a role, SageMaker may read and write nothing."
    if arguments.get("instance_count") != hosts:
        return f"instance_count is {arguments.get('instance_count')}, not {hosts}."
    kind = arguments.get("instance_type")
    if kind not in INSTANCES:
        return f"instance_type is {kind}, which is not in the table."
    if INSTANCES[kind][0] != gpus:
        return f"{kind} has {INSTANCES[kind][0]} GPUs, not {gpus}."
    mpi = (arguments.get("distribution") or {}).get("mpi", {})
    if not mpi.get("enabled"):
        return "distribution does not enable mpi: each host would train alone."
    if mpi.get("processes_per_host") != gpus:
        return (
            f"processes_per_host is {mpi.get('processes_per_host')}: a worker for each "
            f"GPU makes {gpus}."
        )
    if not isinstance(arguments.get("max_run"), int):
        return "max_run is missing: a job that hangs would cost money for a day."
    return ""
