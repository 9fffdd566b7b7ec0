"""Report what a program with Keras 3 and JAX does on the devices of its one process.

The lab has TensorFlow imported and the Python of the course, and such a program needs
neither: the worker that the lab forks becomes a process of `main`, with the Python of
the environment beside the course's. Nothing is decided here, and nothing of the program
is changed.
"""

import contextlib
import faulthandler
import os
import re
import signal
import sys
from importlib.machinery import PathFinder
from pathlib import Path

from distcheck import errors, supervise
from distcheck.events import OF_EVERY_PROGRAM, Event
from distcheck.recorder.recorder import Recorder
from distcheck.scenarios import Scenario, register
from utils.running import beside

JAX = "jax"
CHOICES_OF_JAX = ("KERAS_BACKEND", "XLA_FLAGS", "JAX_NUM_CPU_DEVICES", "JAX_PLATFORMS")
KERAS, TRAINER = "keras", "keras.src.backend.jax.trainer"
COUNT_FLAG = r"xla_force_host_platform_device_count=(\d{1,4})"


class Keras(Event):
    """The program is about to import Keras."""

    chosen: str | None
    """The backend that it has chosen by then."""


class Fit(Event):
    """`Model.fit` begins."""

    devices: int
    """How many JAX has."""
    asked: int
    """How many the program has asked it for; 0 if it hasn't."""


class Trains(Event):
    """A training step was given a batch."""

    rows: int
    """How many images are in it."""
    parts: list[int]
    """How many of them each device has."""
    rate: float
    """The learning rate of the step."""


class Model(Event):
    """At the end of the program: the copies of the weights."""

    copies: int
    """How many devices have a copy of each, at least."""
    apart: float
    """The largest difference between two copies of a weight."""
    off: float
    """How far the first update is from that of a single device, as a share of its
    length."""


class DevicesRecorder(Recorder):
    """Reports the backend that Keras is imported with; of each training step, how many
    images each device got; and in the end the weights' copies, and how far the first
    update is from the one that a single device makes of the same batch."""

    schema = OF_EVERY_PROGRAM | {
        "keras": Keras,
        "fit": Fit,
        "trains": Trains,
        "model": Model,
    }

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._model = None
        self._first: dict = {}  # of the first step: batch, weights before and after
        self._wrapped = None
        self._over = False  # what the recorder trains itself is not reported

    @classmethod
    def needs(cls) -> tuple[Path, ...]:
        """The environment beside the course's."""
        why = beside.problem(JAX)
        if why:
            raise errors.UserError(why)
        return (beside.folder(JAX),)

    @classmethod
    def set_up(cls, scenario: Scenario, reports: Path) -> None:
        """Become a process of the Python that has JAX: this one has TensorFlow."""
        python = str(beside.program(JAX))
        code = f"from {__name__} import main; main()"
        # Not what Keras was told to compute with in this home.
        keras_home = {"KERAS_HOME": str(reports / "keras")}
        environment = {n: v for n, v in os.environ.items() if n not in CHOICES_OF_JAX}
        os.execve(
            python,
            [python, "-c", code, str(reports), *sys.argv],
            environment | keras_home,
        )

    @contextlib.contextmanager
    def at_work(self):
        """Record what the program does that runs in this block."""
        finder = _Watched({KERAS: self._begins, TRAINER: self._hook})
        sys.meta_path.insert(0, finder)
        try:
            yield
        finally:
            self._report_end()

    def _begins(self, module) -> None:
        if module is None:  # before it is imported
            self.event("keras", chosen=os.environ.get("KERAS_BACKEND"))

    def _hook(self, module) -> None:
        if module is not None:
            self.before(module.JAXTrainer, "fit", self._fit)
            self.replace(module.JAXTrainer, "make_train_function", self._prepare)

    def _fit(self, *args, **kwargs) -> None:
        import jax

        flag = re.search(COUNT_FLAG, os.environ.get("XLA_FLAGS", ""))
        asked = int(flag[1]) if flag else 0
        self.event("fit", devices=jax.device_count(), asked=asked)

    def _prepare(self, original):
        def observed(model, *args, **kwargs):
            original(model, *args, **kwargs)
            if model.train_function is not self._wrapped and not self._over:
                step = self._wrapped = self._step(model, model.train_function)
                model.train_function = step

        return observed

    def _step(self, model, original):
        import numpy as np

        def observed(state, iterator):
            seen = []
            before = None
            if not self._first:
                before = [[np.array(value) for value in part] for part in state[:2]]
            rate = _rate(model.optimizer, state[2])
            logs, after = original(state, _Telling(iterator, seen.append))
            x = seen[0][0]
            self.event("trains", rows=len(x), parts=_parts(x), rate=rate)
            if before is not None:
                self._model = model
                batch = [np.array(part) for part in seen[0][:2]]
                now = [np.array(value) for value in after[0]]
                self._first = dict(before=before, after=now, batch=batch, rate=rate)
            return logs, after

        return observed

    def _report_end(self) -> None:
        if not self._first:
            return
        copies = [_values(variable.value) for variable in self._model.variables]
        self.event(
            "model",
            copies=min(len(values) for values in copies),
            apart=max(
                float(abs(value - values[0]).max(initial=0.0))
                for values in copies
                for value in values
            ),
            off=self._off(**self._first),
        )

    def _off(self, before, after, batch, rate) -> float:
        """How far the first update of the weights is from that of one device, as a
        share of its length."""
        import keras
        import numpy as np

        self._over = True
        keras.distribution.set_distribution(None)
        alone = keras.models.clone_model(self._model)
        for variables, values in zip(
            (alone.trainable_variables, alone.non_trainable_variables),
            before,
            strict=True,
        ):
            for variable, value in zip(variables, values, strict=True):
                variable.assign(value)
        own = self._model.optimizer
        optimizer = type(own).from_config(own.get_config())
        optimizer.learning_rate = rate
        alone.compile(optimizer, loss=self._model.loss)
        alone.train_on_batch(*batch)
        values = [np.array(variable.value) for variable in alone.trainable_variables]
        change = _distance(values, before[0])
        off = _distance(values, after)
        return off / change if change else off


class _Telling:
    """An iterator that tells what it gives."""

    def __init__(self, iterator, tell):
        self._iterator, self._tell = iterator, tell

    def __iter__(self):
        return self

    def __next__(self):
        value = next(self._iterator)
        self._tell(value)
        return value


class _Watched:
    """Calls a function with None before a module is first imported, and with the
    module after that. watching: the functions by the modules' names."""

    def __init__(self, watching):
        self._watching = watching

    def find_spec(self, name, path=None, target=None):
        tell = self._watching.pop(name, None)
        spec = PathFinder.find_spec(name, path, target) if tell else None
        if spec is None:
            return None
        tell(None)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            tell(module)

        spec.loader.exec_module = exec_module
        return spec


def _distance(one, other) -> float:
    """Between two lists of arrays: the root of the sum of squares."""
    squares = (float(((a - b) ** 2).sum()) for a, b in zip(one, other, strict=True))
    return sum(squares) ** 0.5


def _values(array) -> list:
    """The copies of an array, one for each device that has one."""
    import numpy as np

    return [np.array(shard.data) for shard in array.addressable_shards]


def _parts(x) -> list[int]:
    """How many images of a batch each device has."""
    return [len(shard.data) for shard in getattr(x, "addressable_shards", ())]


def _rate(optimizer, values) -> float:
    """The learning rate that a step will have; values: of the optimizer's variables."""
    for variable, value in zip(optimizer.variables, values, strict=True):
        if variable.name == "learning_rate":
            return float(value)
    return float(optimizer.learning_rate)  # it follows a schedule


def main() -> None:
    folder, script, *options = sys.argv[1:]
    supervise.die_with_parent(signal.SIGKILL)
    stack = Path(folder, "rank.0.stack").open("w")
    faulthandler.register(signal.SIGUSR1, file=stack, all_threads=False)
    sys.argv = [script, *options]
    sys.path[0] = str(Path(script).parent)
    recorder = DevicesRecorder(Path(folder), 0, script)
    recorder.run()
    recorder.wait_for_the_end()


DEVICES = 2
_DEVICES = Scenario(1, recorder=DevicesRecorder.dotted_name())
register({"devices": _DEVICES})
