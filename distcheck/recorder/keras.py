"""Record how a program trains a model of Keras 2: its batches, losses, gradients,
weights and updates. Step 3 compares gradients and updates; step 4 compares weights.

Functions run eagerly, so that every value can be seen, and the same building of graphs
is not waited for on every worker. Whether they can be built, one worker tries in the
end (see `graphs`).
"""

import inspect
import os
import types
from typing import Any

import numpy as np

from distcheck.recorder import interventions, patches
from distcheck.recorder.devices import DeviceRecorder
from distcheck.recorder.images import UNKNOWN, moments, recognize
from distcheck.recorder.interventions import UPDATES
from distcheck.recorder.tensors import elements_of, is_batch, variables_of
from distcheck.recorder.writer import frames


class KerasRecorder(DeviceRecorder):
    """Records trainings with `Model.fit` or with loops of a program's own."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._forwards = self._gradients_kept = self._updates_begun = 0
        self._begun = False  # has it begun to train?
        self.model: Any = None  # the one that is trained
        self._optimizer: Any = None
        self._resumed = False  # has anything been computed after the first update?
        self._broadcasts = 0
        self._handed_out = False  # had weights come from elsewhere by the first batch?
        self._trainable: list = []  # all such variables, of whatever model
        self._first_values: dict[int, Any] = {}  # of each, by its handle
        self._before_exchange: dict[int, Any] | None = None  # weights, by their handle
        self._known: dict[bool, Any] = {}  # moments: for training, for validation
        self._predictions: Any = None  # last in training: a model, images, its answer

    def hook_training(self, tf) -> None:
        """Record batches, gradients and updates from now on."""
        self.replace(tf.keras.Model, "__call__", self._forward)
        self.replace(tf.keras.Model, "fit", self._fit)
        self.replace(tf.GradientTape, "gradient", self._gradient)
        patches.hook_updates(self.replace, self._observe_update)

    def intervene(self, tf) -> None:
        """Shorten a training to seconds."""
        self.replace(tf.keras.layers.Conv2D, "__init__", interventions.narrow)
        self.after(patches.optimizer(), "__init__", interventions.updates_without_xla)
        interventions.skip_steps(self, self.scenario.count_only)

    def create_variable(self, next_creator, **kwargs):
        """Each variable is made by this, with the next creator of TensorFlow's scope.
        What is trained differs between ranks in the beginning."""
        variable = next_creator(**kwargs)
        if variable.trainable and variable.shape.rank:  # optimizers have single numbers
            self._trainable.append(variable)
        if interventions.perturb_initial_weights(variable, self.rank):
            self._first_values[id(variable.handle)] = variable.numpy()
        return variable

    def _forward(self, original):
        def observed(model, *args, **kwargs):
            inputs = patches.argument("inputs", 0, args, kwargs)
            if "forward" in self.activities or not is_batch(inputs):
                return original(model, *args, **kwargs)
            training = bool(patches.argument("training", 1, args, kwargs))
            with self.inside("forward"):
                result = original(model, *args, **kwargs)
            images = self.report_batch(model, training, inputs)
            if training:
                self._predictions = model, images, result
            elif self.scenario.rank0_always_wrong:
                labels = self._labels(images, result, training)
                if labels is not None:
                    change = interventions.always_wrong_or_right
                    return change(labels, self.rank, result)
            return result

        return observed

    def _gradient(self, original):
        import tensorflow as tf

        def observed(tape, target, sources, *args, **kwargs):
            result = original(tape, target, sources, *args, **kwargs)
            flat = tf.nest.flatten(result)
            # Only the first gradient before each update is kept: so the arrays "local"
            # and "applied" of one number belong to the same update; after an update
            # without one, none is kept. What is taken before any batch, or of one
            # variable alone, is not that of a training.
            update = self._updates_begun
            is_first = self._gradients_kept == update
            if self._forwards and is_first and update < UPDATES and len(flat) > 1:
                self._gradients_kept += 1
                self._report_loss(target)
                self.keep(f"local.{update}", [g for g in flat if g is not None])
            return result

        return observed

    def _report_loss(self, target) -> None:
        """Report the loss whose gradient is taken, beside the mean cross-entropy over
        the batch and the penalty for large weights, where its images are known."""
        import tensorflow as tf

        if self._predictions is None:
            return
        model, images, answer = self._predictions
        labels = self._labels(images, answer, training=True)
        if labels is None:
            return
        # As Keras' losses do: logits are exact where a chance is nearly 0.
        logs = np.asarray(patches.logits_of(answer), np.float64)
        if np.allclose(logs.sum(axis=1), 1, atol=1e-3):  # chances
            logs = np.log(logs + 1e-7)
        logs -= logs.max(axis=1, keepdims=True)
        logs -= np.log(np.exp(logs).sum(axis=1, keepdims=True))
        right = logs[range(len(labels)), labels.astype(int)]
        self.event(
            "loss",
            value=float(sum(np.sum(part) for part in tf.nest.flatten(target))),
            cross_entropy=float(-right.mean()),
            penalty=float(sum(np.sum(part) for part in model.losses)),
        )

    def _labels(self, images: list[int], predictions, training: bool):
        """The labels of images to which a network has answered with a number for each
        class; None if it hasn't, or they aren't known."""
        source = self.source
        if source is None or UNKNOWN in images:
            return None
        if np.shape(predictions) != (len(images), source.CLASSES):
            return None
        _, labels = source.training() if training else source.validation()
        return labels[images]

    def _observe_update(self, make_update, optimizer, pairs: list):
        """Make an update. pairs: of gradients and variables. One before any batch is
        not of a training: it makes the optimizer's variables."""
        if "update" in self.activities or not self._forwards:
            return make_update()
        with self.inside("update"):
            self._before_update(optimizer, pairs)
            result = make_update()
        self._after_update(optimizer)
        return result

    def _fit(self, original):
        signature = inspect.signature(original)

        def observed(*args, **kwargs):
            arguments = signature.bind(*args, **kwargs).arguments
            names = ("verbose", "steps_per_epoch", "validation_steps", "epochs")
            arguments = {name: arguments.get(name) for name in names}
            self.event("fit", **arguments, modules=self._modules_of("horovod"))
            self._begins()
            with self.inside("fit"):
                try:
                    return original(*args, **kwargs)
                finally:
                    self.event("fitted")
                    self._report_output()

        return observed

    def _begins(self) -> None:
        """It begins to train, by calling fit or with a batch, if it hasn't yet."""
        if not self._begun:
            self._begun = True
            self._report_output()

    def _report_output(self) -> None:
        """Report how much the program has printed so far, by both ways."""
        sizes = [os.fstat(number).st_size for number in (1, 2)]
        self.event("output", sizes=sizes)

    def snapshot_before_exchange(self, tensors) -> None:
        """Note the weights as they are before a collective first carries any: as many
        numbers as one of them has, or as all of them have, or the variables."""
        if self._before_exchange is not None or not self._trainable:
            return
        sizes = [elements_of(variable) for variable in self._trainable]
        carried = [elements_of(tensor) for tensor in tensors]
        in_place = any("resource" in str(getattr(t, "dtype", "")) for t in tensors)
        if in_place or set(carried) & set(sizes) or sum(carried) >= sum(sizes):
            values = {id(v.handle): v.numpy() for v in self._trainable}
            self._before_exchange = values

    def _have_changed(self, weights) -> bool:
        """Are they other ones than they were made with, read from a file perhaps?"""
        first = self._first_values
        return any(
            not np.array_equal(first[id(w.handle)], w.numpy())
            for w in weights
            if id(w.handle) in first
        )

    def numbers_of(self, inputs, training: bool) -> list[int]:
        """Which images these are, see `recognize`; [] without a source."""
        if self.source is None:
            return []
        if training not in self._known:
            source = self.source
            images, _ = source.training() if training else source.validation()
            self._known[training] = moments(images)
        return recognize(inputs, self._known[training])

    def report_batch(self, model, training: bool, inputs) -> list[int]:
        """Report a batch; returns the numbers of its images."""
        images = self.numbers_of(inputs, training)
        if training:
            self._begins()
        self.event(
            "forward",
            training=training,
            fit="fit" in self.activities,
            images=images,
            rate=self._rate() if training else None,
        )
        if self._updates_begun and not self._resumed:
            self._resumed = True
            self.keep("resumed", self._weights())
            self.keep("state", self._state())
        if not training:
            return images
        self._forwards += 1
        # Each forward pass before the first update writes these anew, so that the last
        # one before it counts. With `count_only` there is no update: the first counts.
        if self._forwards == 1 or not (self._updates_begun or self.scenario.count_only):
            self.model = model
            self.keep("start", self._weights())
            weights = model.trainable_weights
            exchanged = self._before_exchange is not None
            self._handed_out = exchanged or self._have_changed(weights)
            before = self._before_exchange or {}
            initial = [before.get(id(w.handle), w.numpy()) for w in weights]
            self.keep("initial", initial)
        return images

    def _rate(self) -> float | None:
        """The learning rate, once it is known who updates, where it is a number."""
        rate: Any = getattr(self._optimizer, "learning_rate", None)
        try:
            return float(rate)
        except (TypeError, ValueError):
            return None

    def _weights(self) -> list:
        return [w.numpy() for w in self.model.trainable_weights]

    def _state(self) -> list:
        """The optimizer's variables with more than one number in them."""
        variables = [] if self._optimizer is None else variables_of(self._optimizer)
        return [v.numpy() for v in variables if len(v.shape) and v.dtype.is_floating]

    def _before_update(self, optimizer, pairs: list) -> None:
        number, self._updates_begun = self._updates_begun, self._updates_begun + 1
        if number == 0:
            self._optimizer = optimizer
        if number < UPDATES:
            self.keep(f"applied.{number}", [g for g, _ in pairs if g is not None])
        kind, wrapped = type(optimizer).__name__, patches.is_wrapped(optimizer)
        self.event("update", wrapped=wrapped, optimizer=kind)

    def _after_update(self, optimizer) -> None:
        if self._updates_begun != 1 or self.model is None:
            return
        self.keep("updated", self._weights())
        if not (self._broadcasts or self._handed_out):
            interventions.perturb_state(variables_of(optimizer), self.rank)

    def _modules_of(self, package: str) -> list[str]:
        """The modules of a package that the program has names for."""
        found = set()
        for frame in frames():
            if frame.f_code.co_filename == self.script:
                for value in (*frame.f_globals.values(), *frame.f_locals.values()):
                    if isinstance(value, types.ModuleType):
                        found.add(value.__name__)
        return sorted(name for name in found if name.startswith(package))
