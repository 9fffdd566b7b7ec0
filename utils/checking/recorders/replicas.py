"""Report what the replicas of a program with tf.distribute do while they train.

Nothing is decided here, and nothing of the program is changed; only that the course's
large network gives way to its small one, as no check depends on the network. Functions
stay graphs: what runs in them is seen by an operation that is put before each training
step of a model.
"""

import ast
import contextlib
import hashlib
import re
import threading
from collections import Counter
from pathlib import Path
from typing import ClassVar

from distcheck.events import OF_EVERY_PROGRAM, Arrays, Event, Strategy
from distcheck.recorder import patches
from distcheck.recorder.recorder import Recorder
from distcheck.recorder.tensors import copies, max_copy_difference, variables_of
from distcheck.recorder.writer import frames
from distcheck.scenarios import Scenario, register


class Fit(Strategy):
    """`Model.fit` begins, with the strategy of its model."""


class Places(Event):
    """Before the program begins: what the function `places` has found in it."""

    lines: dict[str, int]


class Makes(Event):
    """Variables that are trained were made; once for each line."""

    scoped: bool
    """Was a strategy there to see it?"""


class Validates(Event):
    """A replica is given a batch, without training."""

    replica: int
    step: int
    """How many batches it had before."""
    images: list[str]
    """A digest of each."""


class Trains(Validates):
    """A replica is given a batch to train on."""

    rate: float | None
    """The learning rate, from replica 0."""


class Model(Event):
    """At the end of the program: the copies of what was trained."""

    weights: int
    """On how many devices each of the weights is, at least."""
    state: int
    """The same of the optimizer's variables."""
    apart: float
    """The largest difference between two copies of a weight."""


class Truth(Event):
    """At the end of the program: the model's metrics, over each test image once."""

    loss: float
    accuracy: float


class ReplicaRecorder(Recorder):
    """Reports strategies, where variables are made, the images that each replica
    trains and validates on, and the weights."""

    schema = OF_EVERY_PROGRAM | {
        "strategy": Strategy,
        "fit": Fit,
        "places": Places,
        "makes": Makes,
        "trains": Trains,
        "validates": Validates,
        "model": Model,
        "truth": Truth,
    }
    arrays: ClassVar[Arrays] = {
        "weights": "Before the first and the second training step: .0 and .1."
    }

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._lock = threading.Lock()  # replicas report from several threads
        self._steps: Counter[int] = Counter()  # replica -> training steps so far
        self._looks: Counter[int] = Counter()  # likewise of batches without training
        self._model = self._optimizer = None
        self._home = ""  # the function of the program that makes the strategy
        self._made: set[tuple] = set()  # where variables were made, as reported

    def event(self, what: str, **facts) -> None:
        if what == "failed":
            facts["error"] = essence(facts["error"])
        super().event(what, **facts)

    @contextlib.contextmanager
    def at_work(self):
        """Record what the program does that runs in this block."""
        import tensorflow as tf

        from utils.training import networks

        networks.use_instead(lambda: networks.small_cnn((28, 28, 1)))
        self.event("places", lines=places(self.script))
        patches.hook_strategies(self.after, self._strategy)
        self.replace(tf.keras.Model, "__call__", self._forward)
        self.before(tf.keras.Model, "fit", self._fit)
        self.before(patches.optimizer(), "apply_gradients", self._update)
        try:
            with tf.variable_creator_scope(self._makes):
                yield
        finally:
            self._report_end()

    def _makes(self, next_creator, **kwargs):
        """A variable is made: from which line, and does a strategy see it?"""
        import tensorflow as tf

        variable = next_creator(**kwargs)
        if variable.trainable and variable.shape.rank:
            facts = self._line_at_home(), tf.distribute.has_strategy()
            if facts not in self._made:
                self._made.add(facts)
                self.event("makes", line=facts[0], scoped=facts[1])
        return variable

    def _frames(self) -> list:
        """The frames of the program that are being executed, innermost first."""
        return [f for f in frames() if f.f_code.co_filename == self.script]

    def _line_at_home(self) -> int | None:
        """The line where the function that made the strategy is now; without one, the
        innermost line of the program."""
        frames = self._frames()
        home = [f for f in frames if f.f_code.co_name == self._home] or frames
        return home[0].f_lineno if home else None

    def _strategy(self, kind: str, strategy) -> None:
        for frame in self._frames()[:1]:
            self._home = frame.f_code.co_name
        self.event("strategy", kind=kind, replicas=strategy.num_replicas_in_sync)

    def _forward(self, original):
        import tensorflow as tf

        def observed(model, *args, **kwargs):
            inputs = patches.argument("inputs", 0, args, kwargs)
            real = tf.is_tensor(inputs) and not tf.keras.backend.is_keras_tensor(inputs)
            if self.activities or not real:
                return original(model, *args, **kwargs)
            context = tf.distribute.get_replica_context()
            replica = context.replica_id_in_sync_group if context else -1
            # Whoever trains records gradients, whatever he says of `training`.
            if patches.records_gradients():
                self._model = model
                weights = [tf.convert_to_tensor(v) for v in model.trainable_variables]
                tf.numpy_function(self._trains, [replica, inputs, *weights], [])
            else:
                tf.numpy_function(self._validates, [replica, inputs], [])
            with self.inside("forward"):
                return original(model, *args, **kwargs)

        return observed

    def _trains(self, replica, images, *weights) -> None:
        """A replica begins a step: called from the graph."""
        # Where a callback or a schedule sets the rate, `fit` begins with another.
        rate = _rate(self._optimizer) if replica <= 0 else None
        step = self._batch("trains", self._steps, int(replica), images, rate=rate)
        if step < 2 and replica <= 0:
            with self._lock:
                self.keep(f"weights.{step}", weights)

    def _validates(self, replica, images) -> None:
        """A replica looks at images without training: called from the graph."""
        self._batch("validates", self._looks, int(replica), images)

    def _batch(self, what: str, done: Counter, replica: int, images, **facts) -> int:
        """Report the images of a replica's batch; how many were there before it?"""
        with self._lock:
            step = done[replica]
            done[replica] += 1
            facts["images"] = digests(images)
            self.event(what, replica=replica, step=step, **facts)
        return step

    def _fit(self, model, *args, **kwargs) -> None:
        self._optimizer = getattr(model, "optimizer", None)
        strategy = model.distribute_strategy
        count = strategy.num_replicas_in_sync
        self.event("fit", kind=type(strategy).__name__, replicas=count)

    def _update(self, optimizer, *args, **kwargs) -> None:
        self._optimizer = optimizer

    def _report_end(self) -> None:
        if self._model is None:
            return
        state = [] if self._optimizer is None else variables_of(self._optimizer)
        self.event(
            "model",
            weights=_copies(self._model.trainable_variables),
            state=_copies([v for v in state if len(v.shape)]),
            apart=max_copy_difference(self._model.trainable_variables),
        )
        self.event("truth", **self._truth())

    def _truth(self) -> dict:
        """The loss and the accuracy on all test images, counted once each."""
        import numpy as np
        import tensorflow as tf

        from utils.training import data

        dataset = data.load("auto")
        images = data.standardise(tf.constant(dataset.x_test), dataset)
        with self.inside("report"):  # what the recorder looks at is not reported
            predictions = self._model(images, training=False).numpy()
        if abs(predictions.sum(axis=-1) - 1).max() > 1e-3:  # logits
            predictions = tf.nn.softmax(predictions).numpy()
        chances = predictions[np.arange(len(predictions)), dataset.y_test]
        losses = -np.log(np.maximum(chances, 1e-7))
        right = predictions.argmax(axis=-1) == dataset.y_test
        return {"loss": float(losses.mean()), "accuracy": float(right.mean())}


def digests(images) -> list[str]:
    """What tells images apart, one for each."""
    return [hashlib.md5(image.tobytes()).hexdigest()[:12] for image in images]


def essence(error: str) -> str:
    """An error of TensorFlow in its own words, without the numbers of the variables
    that it names, and without where in memory things are."""
    error = re.sub(r"<tf\.Variable '([^']*)'[^>]*>", r"\1", error)
    return re.sub(r"<(?:\w+\.)*(\w+) object at 0x\w+>", r"\1", error)


def places(script: str) -> dict[str, int]:
    """Lines of a program that a finding may be about, by what they hold: "base_lr" is
    where that option is first read, "step_loss" the last `return` of that function,
    "loss =" where that name is last assigned, "validate: loss =" likewise inside of
    a function."""
    lines: dict[str, int] = {}

    def visit(node, function: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef):
                visit(child, child.name)
                continue
            if isinstance(child, ast.Attribute) and ast.unparse(child.value) == "args":
                lines.setdefault(child.attr, child.lineno)
            if isinstance(child, ast.Return) and function:
                lines[function] = child.lineno
            if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
                inside = f"{function}: " if function else ""
                lines[f"{inside}{child.id} ="] = child.lineno
            visit(child, function)

    visit(ast.parse(Path(script).read_bytes()), "")
    return lines


def _copies(variables) -> int:
    """On how many devices each of these variables has a copy; the fewest counts."""
    return min(
        (len({value.device for value in copies(v)}) for v in variables), default=0
    )


def _rate(optimizer) -> float | None:
    rate = getattr(optimizer, "learning_rate", None)
    return None if rate is None else float(getattr(rate, "numpy", lambda: rate)())


REPLICAS = 2


def _replicas(number: int, **facts) -> Scenario:
    facts = {"recorder": ReplicaRecorder.dotted_name()} | facts
    return Scenario(1, options=("--replicas", str(number)), **facts)


register(
    {
        "replicas": _replicas(REPLICAS),
        "reference": _replicas(1, reference=True),
        "plain replicas": _replicas(REPLICAS, recorder=""),
    }
)
