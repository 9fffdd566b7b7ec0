"""Devices for replicas, and what their gradients travel by: parts of a real processor;
GPUs that are only pretended."""

import json
import os
import sys
from unittest import mock

import pytest
from machines import Machine
from processes import captured

from distcheck import machine
from utils.training import devices

pytestmark = pytest.mark.slow

# In a process of its own: TensorFlow's devices can be configured once.
CODE = """
import json, sys
import tensorflow as tf
from distcheck.errors import UserError
from utils.training.devices import replica_devices

def tried(*asked):
    try:
        return replica_devices(*asked)
    except UserError as error:
        return str(error)

found = {"none": tried(0), "default": tried(), "three": tried(3)}
tf.zeros(1)
found["there"] = [device.name for device in tf.config.list_logical_devices("CPU")]
found["again"], found["late"] = tried(3), tried(2)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def ended():
    return captured(
        [sys.executable, "-c", CODE],
        env=os.environ | machine.HIDDEN | {machine.PRETEND: Machine(cores=2).counts},
    )


@pytest.fixture(scope="module")
def outcomes(ended):
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


def test_a_processor_is_split_into_as_many_devices_as_replicas(outcomes):
    assert outcomes["default"] == ["CPU:0", "CPU:1"]
    assert outcomes["three"] == outcomes["again"] == ["CPU:0", "CPU:1", "CPU:2"]
    assert outcomes["there"] == [f"/device:{name}" for name in outcomes["three"]]


def test_what_can_not_be_done_is_said(outcomes):
    assert outcomes["none"] == "replicas is 0: choose 1 or more."
    assert "too late to split the processor into 2 devices" in outcomes["late"]


def test_replicas_that_share_a_core_are_announced(ended):
    assert "NOTICE: 3 replicas on 2 cores" in ended.stderr


def test_more_replicas_than_gpus_compute_on_cores(monkeypatch, capsys):
    """The devices are pretended; what is done with their list is not."""
    import tensorflow as tf

    config = mock.MagicMock()
    monkeypatch.setattr(tf, "config", config)
    there = {"GPU": ["first", "second"], "CPU": ["processor"]}
    config.list_physical_devices = config.get_visible_devices = there.get
    config.get_logical_device_configuration.return_value = None
    assert devices.replica_devices() == ["GPU:0", "GPU:1"]
    assert devices.replica_devices(1) == ["GPU:0"]
    grown = config.experimental.set_memory_growth.call_args_list
    assert {call.args for call in grown} == {("first", True), ("second", True)}
    config.set_visible_devices.assert_not_called()
    assert capsys.readouterr().err == ""
    assert devices.replica_devices(3) == ["CPU:0", "CPU:1", "CPU:2"]
    config.set_visible_devices.assert_called_once_with([], "GPU")
    parts = [config.LogicalDeviceConfiguration.return_value] * 3
    config.set_logical_device_configuration.assert_called_once_with("processor", parts)
    assert "2 GPUs, and 3 replicas need one each" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("gpus", "asked", "way"),
    [([], None, "RING"), (["first"], None, "NCCL"), (["first"], "RING", "RING")],
)
def test_gradients_travel_by_nccl_where_there_are_gpus(gpus, asked, way, monkeypatch):
    import tensorflow as tf

    there = {"GPU": gpus, "CPU": ["processor"]}
    monkeypatch.setattr(tf.config, "get_visible_devices", there.get)
    assert devices.communication(asked).implementation.value == way


def test_a_figure_of_a_notebook_leaves_memory_to_the_program_it_starts_next():
    code = """
import tensorflow as tf
gpus, grows = ["GPU:0", "GPU:1"], []
tf.config.list_physical_devices = lambda kind=None: gpus
tf.config.experimental.set_memory_growth = lambda gpu, yes: grows.append((gpu, yes))
from utils import data, figures
figures.training.augmented(data.load(train_images=8), versions=1)
print(grows)
"""
    done = captured([sys.executable, "-c", code])
    assert done.stdout == "[('GPU:0', True), ('GPU:1', True)]\n", done.stderr
