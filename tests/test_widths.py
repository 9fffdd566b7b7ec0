"""Every program that takes `--width` takes 10 by itself where it computes on a GPU, and
1 on a processor, with a learning rate divided by the width: at that of width 1, the
wide network diverges. The GPU is pretended; each program is run as far as its data."""

import json
import sys

import pytest
from processes import captured

from utils.base import course

ROOT = course.PACKAGE_ROOT
PROGRAMS = [
    path.relative_to(ROOT).as_posix()
    for folder in ("exercises", "solutions")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if '"--width"' in path.read_text()
]
# Runs all of them in one process, without what starts devices or waits for others.
ASK = """
import json, os, runpy, sys
from types import SimpleNamespace
from unittest.mock import MagicMock

os.environ["TF_USE_LEGACY_KERAS"] = "1"
import tensorflow as tf

from utils import data

on_gpu, *programs = json.loads(sys.argv[1])
gpus = [SimpleNamespace(name="/physical_device:GPU:0")] if on_gpu else []
real = tf.config.list_physical_devices
tf.config.list_physical_devices = lambda kind: gpus if kind == "GPU" else real(kind)
for name in ("set_visible_devices", "set_logical_device_configuration"):
    setattr(tf.config, name, lambda *_: None)
tf.config.experimental.set_memory_growth = lambda *_: None
tf.distribute.MirroredStrategy = MagicMock()
tf.distribute.MultiWorkerMirroredStrategy = MagicMock()
for name in ("horovod.spark", "horovod.spark.task"):
    sys.modules[name] = MagicMock()
sys.modules["horovod.spark.task"].get_available_devices.return_value = []

def as_far_as_the_data(path):
    # The arguments that a program has when it asks for its data.
    def stop(*_, **__):
        frame = sys._getframe(1)
        while "args" not in frame.f_locals:
            frame = frame.f_back
        raise StopIteration(frame.f_locals["args"])

    data.load = data.load_cifar10 = stop
    sys.argv = [path]
    try:
        names = runpy.run_path(path, run_name="asked")
        # One that does nothing by itself: its function gets what was typed.
        typed = dict(width=None, base_lr=None, seed=1, data="x", train_images=1)
        names["train"](SimpleNamespace(**typed))
    except StopIteration as stopped:
        args = vars(stopped.value)
        return args["width"], args["lr"] if "lr" in args else args["base_lr"]

found = {}
for path in programs:
    if "keras_3" in path:  # the Keras of another environment
        keras = sys.modules["keras"] = MagicMock()
        devices = ["gpu:0"] if on_gpu else ["cpu:0", "cpu:1"]
        keras.distribution.list_devices.return_value = devices
    found[path] = as_far_as_the_data(path)
print(json.dumps(found))
"""


def test_there_are_programs_that_take_a_width():
    assert len(PROGRAMS) >= 15
    for name in ("exercises/mirrored.py", "solutions/multi_worker.py"):
        assert name in PROGRAMS


def ask(on_gpu):
    """The width and the learning rate that each program takes by itself."""
    # That of another Keras comes last: it stands in for the package.
    programs = sorted(PROGRAMS, key=lambda path: "keras_3" in path)
    asked = captured(
        [sys.executable, "-c", ASK, json.dumps([on_gpu, *programs])],
        cwd=ROOT,
        timeout=300,
    )
    assert asked.returncode == 0, asked.stderr[-3000:]
    return json.loads(asked.stdout.splitlines()[-1])


def test_a_gpu_has_the_wide_network_and_a_tenth_of_the_rate():
    small = ask(on_gpu=False)
    assert set(small) == set(PROGRAMS)
    assert {width for width, _ in small.values()} == {1}
    assert ask(on_gpu=True) == {
        path: [10, pytest.approx(rate / 10)] for path, (_, rate) in small.items()
    }
