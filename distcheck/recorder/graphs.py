"""Build the graphs that training would have run, of a program observed eagerly.

The checks let functions run eagerly, so what no graph can do passes there, and fails
as soon as the learner trains. So, unless the program itself runs functions eagerly,
one worker notes the training and validation steps that Keras would have compiled, and
each tf.function of the program's own script: of each the first call that returned. Such
a function is a training step if in this call a model was trained on a batch, or an
optimizer made an update. When the program has ended, it builds their graphs for the
arguments of these calls, and reports what fails.

While it builds, only the hooks of Horovod's functions are left, and the one that notes
where callbacks are made. Nothing that is built is executed, and no other worker is
waited for.
"""

import functools
import traceback
from dataclasses import dataclass
from typing import Any

from distcheck.recorder import patches
from distcheck.recorder.writer import Place


@dataclass(frozen=True)
class _Step:
    """What Keras compiles to train or to validate a model.

    iterator: the specification of the one that it takes its batches from.
    """

    model: Any
    training: bool
    iterator: Any
    function = None

    def build(self) -> None:
        kind = "train" if self.training else "test"
        setattr(self.model, f"{kind}_function", None)
        function = getattr(self.model, f"make_{kind}_function")(force=True)
        # It is no function of TensorFlow where the model is to run eagerly.
        if hasattr(function, "get_concrete_function"):
            function.get_concrete_function(self.iterator)


@dataclass(frozen=True)
class _Call:
    """The first call of a function that the program itself has compiled."""

    compiled: Any
    training: bool
    args: tuple
    kwargs: dict

    @property
    def function(self) -> str:
        return getattr(patches.python_function(self.compiled), "__name__", "a function")

    def build(self) -> None:
        self.compiled.get_concrete_function(*self.args, **self.kwargs)


class Graphs:
    """The functions of an observed program that would have been compiled."""

    def __init__(self, recorder, wanted: bool):
        self._recorder, self._wanted = recorder, wanted
        self._called: dict[tuple, _Step | _Call] = {}
        self._instances: list = []  # a method doesn't keep its own alive

    def watch(self) -> None:
        """Note from now on what is called."""
        import tensorflow as tf

        replace = self._recorder.replace
        for kind in ("train", "test"):
            maker = functools.partial(self._keras, kind == "train")
            replace(tf.keras.Model, f"make_{kind}_function", maker)
        replace(patches.compiled_function(), "__call__", self._call)
        self._recorder.before(patches.compiled_function(), "__get__", self._bind)

    def _keras(self, training: bool, original):
        import tensorflow as tf

        def observed(model, *args, **kwargs):
            function = original(model, *args, **kwargs)
            if isinstance(function, _Noting):  # Keras had it still
                return function

            def note(iterator):
                specification = tf.type_spec_from_value(iterator)
                step = _Step(model, training, specification)
                self._called.setdefault((id(model), training), step)

            return _Noting(function, note)

        return observed

    def _call(self, original):
        def observed(compiled, *args, **kwargs):
            before = self._recorder.work_done()
            result = original(compiled, *args, **kwargs)
            code = getattr(patches.python_function(compiled), "__code__", None)
            own = code is not None and code.co_filename == self._recorder.script
            if own and not patches.program_runs_eagerly():
                training = self._recorder.work_done() > before
                call = _Call(compiled, training, args, kwargs)
                self._called.setdefault((id(compiled),), call)
            return result

        return observed

    def _bind(self, compiled, instance, owner) -> None:
        self._instances.append(instance)

    def build(self) -> None:
        """Build all of them, if they are wanted, and report how that went."""
        import tensorflow as tf

        calls = list(self._called.values()) if self._wanted else []
        self._recorder.event("graphs", count=len(calls))
        self._recorder.only_building()
        tf.config.run_functions_eagerly(False)
        for call in calls:
            error = line = None
            try:
                call.build()
            except Exception as raised:
                error, places = _in_words(raised)
                line = self._recorder.line_of(places)
            facts = {"function": call.function, "training": call.training}
            self._recorder.event("graph", error=error, line=line, **facts)


class _Noting:
    """A function of Keras whose calls that return are noted."""

    def __init__(self, function, note):
        self.function, self.note = function, note

    def __call__(self, iterator):
        result = self.function(iterator)
        if not patches.program_runs_eagerly():
            self.note(iterator)
        return result


def _in_words(error: Exception) -> tuple[str, list[Place]]:
    """The error in words, and the lines that led to it, the innermost first."""
    frames = traceback.extract_tb(error.__traceback__)
    places: list[Place] = [(f.filename, f.lineno) for f in reversed(frames)]
    message = f"{type(error).__name__}: {error}"
    # AutoGraph runs a translation of the program; it knows what that stands for.
    translated: Any = getattr(error, "ag_error_metadata", None)
    if translated is not None:
        message = translated.cause_message
        stack = translated.translated_stack
        places = [(f.filename, f.lineno) for f in stack] + places
    return message, places
