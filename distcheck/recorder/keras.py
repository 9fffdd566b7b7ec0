"""Record how a program trains a model of Keras 2: its batches, losses, gradients,
weights and updates. Step 3 compares gradients and updates; step 4 compares weights.

Functions run eagerly, so that every value can be seen, and the same building of graphs
is not waited for on every worker. Whether they can be built, one worker tries in the
end (see `graphs`).
"""

import functools
import inspect
import os
import types
from dataclasses import dataclass
from typing import Any

import numpy as np

from distcheck.recorder import interventions, patches
from distcheck.recorder.devices import DeviceRecorder
from distcheck.recorder.gradients import Gradients
from distcheck.recorder.images import UNKNOWN, moments, recognize
from distcheck.recorder.tensors import elements_of, is_batch, variables_of
from distcheck.recorder.writer import frames


@dataclass
class _Batch:
    """What models have answered to a batch of images, one after the other."""

    training: bool
    images: list[int]
    models: list
    tensors: list
    """What they were given, and their answers."""

    def goes_on(self, model, training: bool, inputs: list, images: list[int]) -> bool:
        """Does another model get the same batch, or what has become of it?

        images: which ones its inputs are.
        """
        if training != self.training or any(model is m for m in self.models):
            return False
        if any(given is tensor for given in inputs for tensor in self.tensors):
            return True
        if UNKNOWN in self.images or len(images) != len(self.images) or not images:
            return False
        return images == self.images or set(images) == {UNKNOWN}


class KerasRecorder(DeviceRecorder):
    """Records trainings with `Model.fit` or with loops of a program's own."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._forwards = 0
        self._gradients = Gradients(self.keep)
        self._step = 0  # grows from one training step to the next
        self._executions = 0  # of one or more steps, between which no callback comes
        self._begun = False  # has it begun to train?
        self._models: list = []  # those that are trained, one after the other
        self._batch: _Batch | None = None  # the last one
        self._optimizers: list = []  # of the first update
        self._scaled: tuple = (None, 1.0)  # the last scaled loss, and the scale
        self._resumed = False  # has anything been computed after the first update?
        self._broadcasts = 0
        # What collectives were given and gave, since the last batch to train on.
        self._given: list = []
        self._reduced: list = []
        self._handed_out = False  # had weights come from elsewhere by the first batch?
        self._trainable: list = []  # all such variables, of whatever model
        self._first_values: dict[int, Any] = {}  # of each, by its handle
        self._before_exchange: dict[int, Any] | None = None  # weights, by their handle
        self._known: dict[bool, Any] = {}  # moments: for training, for validation

    def hook_training(self, tf) -> None:
        """Record batches, gradients and updates from now on."""
        self.replace(tf.keras.Model, "__call__", self._forward)
        self.replace(tf.keras.Model, "fit", self._fit)
        predict = functools.partial(self.within, "predict")
        self.replace(tf.keras.Model, "predict", predict)
        self.replace(tf.GradientTape, "gradient", self._gradient)
        patches.hook_updates(self.replace, self._observe_update)
        for owner, name in patches.loss_scalers():
            self.after(owner, name, self._note_scale)

    def intervene(self, tf) -> None:
        """Shorten a training to seconds."""
        self.replace(patches.convolution(), "__init__", interventions.narrow)
        groups = tf.keras.layers.GroupNormalization
        self.replace(groups, "__init__", interventions.few_groups)
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
        import tensorflow as tf

        def observed(model, *args, **kwargs):
            inputs = patches.argument("inputs", 0, args, kwargs)
            if "forward" in self.activities or not is_batch(inputs):
                return original(model, *args, **kwargs)
            training = bool(patches.argument("training", 1, args, kwargs))
            with self.inside("forward"):
                result = original(model, *args, **kwargs)
            batch = self.answer(model, training, inputs)
            batch.tensors += tf.nest.flatten([inputs, result])
            if self.scenario.rank0_always_wrong and not training:
                labels = self._labels(batch, result)
                if labels is not None:
                    change = interventions.always_wrong_or_right
                    return change(labels, self.rank, result)
            return result

        return observed

    def answer(self, model, training: bool, inputs) -> _Batch:
        """Report a batch that a model has answered, unless another one has before."""
        import tensorflow as tf

        images, batch = self.numbers_of(inputs, training), self._batch
        if not training and self._is_aside(inputs, images):
            return _Batch(training, images, [model], [])
        if batch and batch.goes_on(model, training, tf.nest.flatten(inputs), images):
            batch.models.append(model)
        else:
            batch = self._batch = _Batch(training, images, [model], [])
            self._report(training, images)
        if training:
            self._note_trained(batch.models)
        return batch

    def _is_aside(self, inputs, images: list[int]) -> bool:
        """Is this no validation but a part of a training step, such as what a teacher
        says of its images?

        images: which ones of the validation they are.
        """
        if "fit" in self.activities:
            return not {"evaluate", "predict", "epoch end"} & set(self.activities)
        seen = self.numbers_of(inputs, training=True)
        return set(images) == {UNKNOWN} and UNKNOWN not in seen

    def _gradient(self, original):
        import tensorflow as tf

        def observed(tape, target, sources, *args, **kwargs):
            result = original(tape, target, sources, *args, **kwargs)
            scaled, scale = self._scaled
            scale = scale if target is scaled else 1.0
            found = tf.nest.flatten(result)
            symbolic = any(tf.is_symbolic_tensor(g) for g in found if g is not None)
            # What is taken before any batch is not that of a training; nor is what a
            # Jacobian is made of.
            if self._forwards and not symbolic:
                if self._gradients.take(tf.nest.flatten(sources), found, scale):
                    self._report_loss(target, scale)
            return result

        return observed

    def _note_scale(self, scaled, optimizer, loss) -> None:
        """A loss was multiplied, so that no gradient of half precision vanishes."""
        self._scaled = scaled, float(optimizer.loss_scale)

    def _report_loss(self, target, scale: float) -> None:
        """Report the loss whose gradient is taken, beside the mean cross-entropy over
        the batch and the penalty for large weights, where its images are known."""
        import tensorflow as tf

        batch = self._batch
        if batch is None or not batch.training:
            return
        answer = batch.tensors[-1]
        labels = self._labels(batch, answer)
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
            value=float(sum(np.sum(part) for part in tf.nest.flatten(target))) / scale,
            cross_entropy=float(-right.mean()),
            penalty=float(sum(np.sum(part) for m in batch.models for part in m.losses)),
        )

    def _labels(self, batch: _Batch, predictions):
        """The labels of images to which a network has answered with a number for each
        class; None if it hasn't, or they aren't known."""
        source, images = self.source, batch.images
        if source is None or UNKNOWN in images:
            return None
        if np.shape(predictions) != (len(images), source.CLASSES):
            return None
        _, labels = source.training() if batch.training else source.validation()
        return labels[images]

    def _observe_update(self, make_update, optimizer, pairs: list):
        """Make an update. pairs: of gradients and variables. One before any batch is
        not of a training: it makes the optimizer's variables."""
        if "update" in self.activities or not self._forwards:
            return make_update()
        self.begin_step()  # what comes next isn't of this one
        with self.inside("update"):
            if self._gradients.apply(pairs):
                if self._gradients.updates == 1 and self._reduced:
                    self.keep("given", self._given)
                    self.keep("reduced", self._reduced)
                kind, wrapped = type(optimizer).__name__, patches.is_wrapped(optimizer)
                self.event("update", wrapped=wrapped, optimizer=kind)
            result = make_update()
        if self._models and not self._resumed:
            self.keep("updated", self._weights())
            if not any(optimizer is known for known in self._optimizers):
                self._optimizers.append(optimizer)
                if not (self._broadcasts or self._handed_out):
                    interventions.perturb_state(variables_of(optimizer), self.rank)
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

    def begin_step(self) -> None:
        """A training step begins."""
        self._step += 1

    def begin_execution(self, *args) -> None:
        """`fit` begins one or more training steps, which callbacks don't interrupt."""
        self.begin_step()
        self._executions += 1

    def has_updated(self) -> bool:
        """Has an optimizer made an update?"""
        return self._gradients.updates > 0

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

    def report_batch(self, model, training: bool, inputs) -> None:
        """Report a batch that is only counted."""
        self.begin_step()
        self._report(training, self.numbers_of(inputs, training))
        if training:
            self._note_trained([model])

    def _report(self, training: bool, images: list[int]) -> None:
        """Report a batch, and what the optimizers have left for it."""
        if training:
            self._begins()
            self._given, self._reduced = [], []
        self.event(
            "forward",
            training=training,
            fit="fit" in self.activities,
            aside=not {"predict", "epoch end"}.isdisjoint(self.activities),
            step=self._step,
            images=images,
            rate=self._rate() if training else None,
        )
        begun = not training or "fit" not in self.activities or self._executions > 1
        if self._gradients.updates and not self._resumed and begun:
            self._resumed = True
            self.keep("resumed", self._weights())
            self.keep("state", self._state())
        self._forwards += training

    def _note_trained(self, models: list) -> None:
        """Note the weights of these models, which have got a batch to train on.

        Each batch before the first update writes these anew, so that the last one
        before it counts. With `count_only` there is no update: the first counts.
        """
        counted = self.scenario.count_only and self._forwards > 1
        if counted or self._gradients.updates:
            return
        self._models = list(models)
        weights = self._trained_weights()
        self.keep("start", self._weights())
        exchanged = self._before_exchange is not None
        self._handed_out = exchanged or self._have_changed(weights)
        before = self._before_exchange or {}
        self.keep("initial", [before.get(id(w.handle), w.numpy()) for w in weights])

    def _rate(self) -> float | None:
        """The learning rate, once it is known who updates, where it is a number."""
        optimizer = self._optimizers[0] if self._optimizers else None
        rate: Any = getattr(optimizer, "learning_rate", None)
        try:
            return float(rate)
        except (TypeError, ValueError):
            return None

    def _trained_weights(self) -> list:
        found = {id(w): w for model in self._models for w in model.trainable_weights}
        return list(found.values())

    def _weights(self) -> list:
        return [w.numpy() for w in self._trained_weights()]

    def _state(self) -> list:
        """The optimizers' variables with more than one number in them."""
        variables = [v for known in self._optimizers for v in variables_of(known)]
        return [v.numpy() for v in variables if len(v.shape) and v.dtype.is_floating]

    def _modules_of(self, package: str) -> list[str]:
        """The modules of a package that the program has names for."""
        found = set()
        for frame in frames():
            if frame.f_code.co_filename == self.script:
                for value in (*frame.f_globals.values(), *frame.f_locals.values()):
                    if isinstance(value, types.ModuleType):
                        found.add(value.__name__)
        return sorted(name for name in found if name.startswith(package))
