"""Report the strategies of tf.distribute that a program makes, and what they are made
from: the devices that it lists, and TF_CONFIG.
"""

import json
import os
import sys
from collections import Counter

from distcheck.recorder import patches
from distcheck.recorder.recorder import Recorder


class Strategies:
    """The strategies of a program.

    running: the line of the last `strategy.run`.
    """

    def __init__(self, recorder: Recorder):
        self._recorder = recorder
        self._config = os.environ.get("TF_CONFIG", "")
        self.running: str | None = None

    def watch(self) -> None:
        """Report from now on what the program does to TF_CONFIG."""

        def audit(name: str, arguments: tuple) -> None:
            if name not in ("os.putenv", "os.unsetenv"):
                return
            variable, *value = map(os.fsdecode, arguments)
            if variable == "TF_CONFIG":
                same = bool(value) and _as_json(value[0]) == _as_json(self._config)
                facts = {"same": same, "cleared": not value}
                self._recorder.event("TF_CONFIG", **facts, where=self._recorder.line())

        sys.addaudithook(audit)

    def hook_tensorflow(self, tf) -> None:
        """Report from now on strategies that are made, and devices that are listed."""
        patches.hook_strategies(self._recorder.after, self._made)
        self._recorder.before(patches.strategy(), "run", self._runs)
        for module in (tf.config, tf.config.experimental):
            for name in ("list_physical_devices", "list_logical_devices"):
                self._recorder.after(module, name, self._listed)

    def _made(self, kind: str, strategy) -> None:
        devices = strategy.extended.worker_devices
        self._recorder.event(
            "strategy",
            kind=kind,
            replicas=strategy.num_replicas_in_sync,
            devices=[device.rpartition("device:")[2] for device in devices],
            where=self._recorder.line(),
        )

    def _runs(self, *args, **kwargs) -> None:
        self.running = self._recorder.line()

    def _listed(self, found: list, *args, **kwargs) -> None:
        if self._recorder.line():  # else TensorFlow asks for itself
            count = Counter(device.device_type for device in found)
            self._recorder.event("devices", count=count)


def _as_json(text: str):
    try:
        return json.loads(text)
    except ValueError:
        return text


def replica():
    """The number of the replica that computes, a tensor; 0 where there is only one, and
    -1 outside of all."""
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    if not tf.distribute.has_strategy():
        return tf.constant(0)
    if context is None:
        return tf.constant(-1)
    return tf.convert_to_tensor(context.replica_id_in_sync_group)
