"""Report what the tasks of a TF_CONFIG cluster do: the strategy, the images that each
of them trains on, the weights, and the files that each leaves.

Functions stay graphs, as in replicas.py, and nothing of the program is changed. Each
task has a folder of its own, as if it were on a machine of its own.
"""

import contextlib
import functools
import re
from pathlib import Path
from typing import ClassVar

from distcheck.events import (
    HOROVOD,
    OF_EVERY_PROGRAM,
    Arrays,
    Event,
    FilesWritten,
    Finite,
    Strategy,
)
from distcheck.recorder import patches
from distcheck.recorder.files import files_in
from distcheck.recorder.recorder import Recorder
from distcheck.scenarios import Scenario, register
from utils.checking.recorders.replicas import digests
from utils.checking.recorders.scaled import arrays_in, share


class Trains(Event):
    """A worker is given a batch to train on."""

    workers: int
    """How many are in step."""
    step: int
    """How many batches it had before."""
    images: list[str]
    """A digest of each."""


class Serves(Event):
    """The task starts a server."""

    job: str
    """Its type, such as `ps`."""
    index: int
    """Its number among the tasks of this type."""


class Orders(Event):
    """The chief calls a method of its coordinator, by which it directs the workers."""

    name: str


class Placed(Event):
    """At the end of the program: where the weights are."""

    names: list[str]
    servers: list[int]
    """The number of the parameter server that has each of them; -1 for none."""
    updates: int
    """How many updates the optimizer has made."""


class Left(FilesWritten):
    """At the end of the program: the files in the task's folder."""

    weights: Finite
    """The share of the weights that is in them."""


class TaskRecorder(Recorder):
    """Reports what one task does."""

    schema = OF_EVERY_PROGRAM | {
        **{what: HOROVOD[what] for what in ("collective_start", "collective_end")},
        "strategy": Strategy,
        "trains": Trains,
        "serves": Serves,
        "orders": Orders,
        "placed": Placed,
        "files_written": Left,
    }
    arrays: ClassVar[Arrays] = {
        "weights": "Before the first and the last training step: .first, .last."
    }

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._steps = 0
        self._model = self._optimizer = None

    @contextlib.contextmanager
    def at_work(self):
        """Record what the program does that runs in this block."""
        import tensorflow as tf

        patches.hook_strategies(self.after, self._strategy)
        start = "the start of the cluster"
        for owner, name, what in (
            (*patches.multi_worker_start(), start),
            (patches.collective_launcher(), "all_reduce", "all_reduce"),
            (patches.collective_launcher(), "all_gather", "all_gather"),
        ):
            self.replace(owner, name, functools.partial(self._together, what))
        self.replace(tf.keras.Model, "__call__", self._forward)
        self._watch_servers()
        try:
            yield
        finally:
            self._report_end()

    def _watch_servers(self) -> None:
        """Look at what there is beside parameter servers only."""
        server, strategy = patches.server(), patches.parameter_server_strategy()
        self.before(server, "__init__", self._server)
        for owner, name, what in (
            (server, "join", "join() of its server"),
            (strategy, "__init__", "the start of the cluster"),
        ):
            self.replace(owner, name, functools.partial(self._together, what))
        coordinator, remote_value = patches.coordinator_and_remote_value()
        for owner, name in (
            (coordinator, "create_per_worker_dataset"),
            (coordinator, "schedule"),
            (coordinator, "join"),
            (remote_value, "fetch"),
        ):
            self.before(owner, name, functools.partial(self._ordered, name))
        self.before(patches.optimizer(), "apply_gradients", self._update)

    def _server(
        self, server, cluster, job_name=None, task_index=None, *_, **__
    ) -> None:
        self.event("serves", job=str(job_name), index=int(task_index or 0))

    def _ordered(self, order: str, *args, **kwargs) -> None:
        """A chief tells the workers something: reported each time."""
        self.event("orders", name=order)

    def _update(self, optimizer, *args, **kwargs) -> None:
        self._optimizer = optimizer

    def _strategy(self, kind: str, strategy) -> None:
        self.event("strategy", kind=kind, replicas=strategy.num_replicas_in_sync)

    def _together(self, what: str, original):
        """What all tasks have to call: report before and after, outside of graphs."""

        def observed(*args, **kwargs):
            import tensorflow as tf

            if not tf.executing_eagerly():
                return original(*args, **kwargs)
            facts = {
                "op": what,
                "name": f"of {self.rank}" if "join" in what else None,
                "root": None,
                "elements": 0,
            }
            self.event("collective_start", given=None, **facts)
            result = original(*args, **kwargs)
            self.event("collective_end", op=what, got=None)
            return result

        return observed

    def _forward(self, original):
        import tensorflow as tf

        def observed(model, *args, **kwargs):
            inputs = patches.argument("inputs", 0, args, kwargs)
            real = tf.is_tensor(inputs) and not tf.keras.backend.is_keras_tensor(inputs)
            # Whoever trains records gradients, whatever he says of `training`.
            if self.activities or not real or not patches.records_gradients():
                return original(model, *args, **kwargs)
            self._model = model
            context = tf.distribute.get_replica_context()
            workers = context.num_replicas_in_sync if context else 1
            if any("/job:ps" in v.device for v in model.trainable_variables):
                return original(model, *args, **kwargs)  # it will run elsewhere
            weights = [tf.convert_to_tensor(v) for v in model.trainable_variables]
            tf.numpy_function(self._trains, [workers, inputs, *weights], [])
            with self.inside("forward"):
                return original(model, *args, **kwargs)

        return observed

    def _trains(self, workers, images, *weights) -> None:
        """A worker begins a step: called from the graph."""
        self.event(
            "trains", workers=int(workers), step=self._steps, images=digests(images)
        )
        self.keep("weights.last" if self._steps else "weights.first", weights)
        self._steps += 1

    def _report_end(self) -> None:
        """Report the weights, and what of them is in the files that it left."""
        folder, found = Path.cwd(), 0.0
        if self._model is not None:
            variables = self._model.trainable_variables
            self.event(
                "placed",
                names=[v.name for v in variables],
                servers=[_server_of(v.device) for v in variables],
                updates=int(self._optimizer.iterations.numpy())
                if self._optimizer is not None
                else 0,
            )
            # Mirrored ones: to read another would take all workers.
            weights = [v.numpy() for v in self._model.trainable_variables]
            found = share(weights, arrays_in(folder))
        self.event("files_written", files=sorted(files_in(folder)), weights=found)


def _server_of(device: str) -> int:
    """The number of the parameter server that a device belongs to; -1: of none."""
    match = re.search(r"/job:ps/.*task:(\d+)", device)
    return int(match[1]) if match else -1


def _cluster(**counts: int) -> Scenario:
    return Scenario(
        sum(counts.values()),
        recorder=TaskRecorder.dotted_name(),
        own_disks=True,
        cluster=tuple(counts.items()),
    )


register({"cluster": _cluster(worker=2), "servers": _cluster(chief=1, worker=2, ps=2)})
