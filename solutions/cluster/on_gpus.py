"""Run a program, but only where TensorFlow sees a GPU.

    mpirun -np 2 python solutions/cluster/on_gpus.py solutions/survive_solution.py

Without this, a job that was given GPUs by an image without CUDA, or on a node whose
driver is too old, would hold them, and train on cores; nobody would be told.
"""

import os
import runpy
import sys
from pathlib import Path

# As the program itself says, which is too late once TensorFlow is imported.
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

import tensorflow as tf


def main():
    if not tf.config.list_physical_devices("GPU"):
        sys.exit(
            "TensorFlow sees no GPU here, so nothing is trained. Does nvidia-smi see "
            "one? Then this TensorFlow is the one for processors: `make setup GPU=1`. "
            "Else none was asked for, or CUDA_VISIBLE_DEVICES hides it."
        )
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
