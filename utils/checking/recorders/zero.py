"""Report what the workers of exercises/zero.py do: what each of them hands in and
receives between a gradient and its update, what its optimizer updates, with which
gradient and how much state, and the weights before each gradient and in the end.
"""

from typing import ClassVar

from distcheck.events import HOROVOD, Arrays, Event
from distcheck.recorder import patches
from distcheck.recorder.horovod import HorovodRecorder
from distcheck.recorder.tensors import elements_of, variables_of
from distcheck.scenarios import Scenario, register

MOST_STEPS = 8  # of which arrays are kept; a check takes fewer


class Gradient(Event):
    """A gradient was taken."""

    elements: int
    """How many numbers it has."""


class Received(Event):
    """A collective has ended, after the first gradient."""

    op: str
    elements: int
    """How many numbers came out of it; of several tensors, of the largest."""


class Update(Event):
    """An optimizer has updated what it was given."""

    optimizer: str
    """Its class."""
    elements: int
    """How many numbers it has updated."""
    state: int
    """How many numbers it keeps, without single ones."""


class ZeroRecorder(HorovodRecorder):
    """Reports the updates of a program that applies its gradients itself."""

    schema = HOROVOD | {"gradient": Gradient, "received": Received, "update": Update}
    # NAME.0, NAME.1, ... are of the first, the second, ... gradient or update.
    arrays: ClassVar[Arrays] = {
        "local": "The gradient that `tf.GradientTape.gradient` has returned.",
        "weights": "What it was taken of, as it was then.",
        "given": "The gradient that the optimizer is to apply.",
        "before": "What the optimizer is to update with that, as it is before.",
        "end": "The weights at the end of the program.",
    }

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._sources: list = []  # what gradients were taken of
        self._gradients_kept = self._applied = 0

    def hook_training(self, tf) -> None:
        self.after(tf.GradientTape, "gradient", self._gradient)
        self.replace(patches.optimizer(), "apply_gradients", self._update)

    def hook_callbacks(self, tf) -> None:
        """A loop of its own has no callbacks."""

    def intervene(self, tf) -> None:
        """Nor has it steps of Keras'."""

    def create_variable(self, next_creator, **kwargs):
        """All begin as the program has it: the optimizer's own copy of a part must not
        differ from the weights."""
        return next_creator(**kwargs)

    def collective(self, kind: str, function):
        call = super().collective(kind, function)

        def counted(*args, **kwargs):
            result = call(*args, **kwargs)
            if self._gradients_kept and not self.building:
                received = result if isinstance(result, list | tuple) else [result]
                self.event(
                    "received",
                    op=kind,
                    elements=max(elements_of(tensor) for tensor in received),
                )
            return result

        return counted

    def _gradient(self, result, tape, target, sources, *args, **kwargs) -> None:
        import tensorflow as tf

        if self._gradients_kept < MOST_STEPS:
            self._sources = tf.nest.flatten(sources)
            self.keep(f"local.{self._gradients_kept}", tf.nest.flatten(result))
            self.keep(f"weights.{self._gradients_kept}", self._sources)
        self._gradients_kept += 1
        self.event("gradient", elements=sum(map(elements_of, self._sources)))

    def _update(self, original, position: int = 0):
        def observed(optimizer, grads_and_vars, *args, **kwargs):
            pairs = list(grads_and_vars)
            if "update" in self.activities:
                return original(optimizer, pairs, *args, **kwargs)
            number, self._applied = self._applied, self._applied + 1
            if number < MOST_STEPS:
                self.keep(f"given.{number}", [gradient for gradient, _ in pairs])
                self.keep(f"before.{number}", [variable for _, variable in pairs])
            with self.inside("update"):
                result = original(optimizer, pairs, *args, **kwargs)
            state = variables_of(optimizer)
            self.event(
                "update",
                optimizer=type(optimizer).__name__,
                elements=sum(elements_of(variable) for _, variable in pairs),
                state=sum(elements_of(v) for v in state if len(v.shape)),
            )
            return result

        return observed

    def report_end(self) -> None:
        if self._sources:
            self.keep("end", self._sources)


# Three, so that a part is not what is left of the other.
_PARTS = Scenario(3, recorder=ZeroRecorder.dotted_name(), build_graphs=True)
register({"parts": _PARTS})
