"""Report the numbers of a training whose functions stay compiled: gradients, updates,
weights and samples.

What runs in a graph is seen by operations that are put beside the program's own when
TensorFlow builds it, and that call Python. Of arrays only sketches are reported, of
samples digests.
"""

import functools
import hashlib
import math
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from distcheck.recorder import patches
from distcheck.recorder.audit import interventions, strategies
from distcheck.recorder.audit.horovod import HorovodCalls
from distcheck.recorder.recorder import Recorder
from distcheck.recorder.tensors import copies, elements_of, max_copy_difference

BUCKETS = 64  # numbers of a sketch
CLOSELY = 6  # updates that are looked at one by one; later ones are powers of two
MOST_SAMPLES = 500_000  # training samples of a process that are told apart
LARGE_ROW = 65_536  # bytes of a sample, of which no more than some are looked at
MOST_TOTALS = 20  # of the last sums and means before a gradient


class Tracer:
    """What a program trains.

    recorder: the audit's, by which it is reported. horovod: knows how many numbers were
    reduced. A group is a set of variables that are trained together, by its number.
    """

    def __init__(self, recorder: Recorder, horovod: HorovodCalls):
        self._recorder, self._horovod = recorder, horovod
        self._groups: dict[tuple, int] = {}
        self._variables: list[list] = []  # of each group
        # (group, replica) -> gradients since the last update
        self._calls: dict[tuple, int] = {}
        self._updates: dict[tuple, int] = {}  # (group, replica) -> updates so far
        self._steps = self._samples = 0  # updates, training samples
        # How many numbers the gradients have that were asked for since the last update.
        # Several tapes may come before several optimizers.
        self._asked, self._updated = 0, False
        self._began: float | None = None  # the time of the first update
        self._ended: float | None = None  # and of the last
        self._models: list = []
        self._losses: list = []
        self._optimizers: list = []
        self._thread = threading.local()

    def hook_tensorflow(self, tf) -> None:
        """Report gradients from now on."""
        self._recorder.replace(tf.GradientTape, "gradient", self._gradient)
        for owner, name in patches.reductions():
            self._recorder.after(owner, name, self._summed_up)
        patches.hook_updates_of_v1(self._recorder.replace, self.observe_update)
        compiled = patches.compiled_function()
        self._recorder.replace(compiled, "__init__", interventions.without_xla)

    def hook_keras(self, keras) -> None:
        """Report samples and labels from now on, of Keras 2 or 3."""
        self._recorder.replace(keras.Model, "__call__", self._forward)
        self._recorder.before(keras.losses.Loss, "__call__", self._loss)

    def observe_update(self, make_update: Callable, optimizer, pairs: list):
        """Make an update of Keras 2 or TensorFlow 1 (see `patches.hook_updates`)."""
        self._applied(optimizer, pairs)
        return make_update()

    def reduced(self, pairs, optimizer, *args) -> None:
        """Keras 3 has summed up gradients over replicas: what it is about to apply."""
        self._applied(optimizer, pairs)

    def _gradient(self, original):
        def observed(tape, target, sources, *args, **kwargs):
            totals = self._totals(sources)
            result, asked = original(tape, target, [sources, totals], *args, **kwargs)
            pairs = list(zip(totals, asked, strict=True))
            self._local(target, sources, result, pairs)
            return result

        return observed

    def _summed_up(self, result, numbers, *args, **kwargs) -> None:
        import tensorflow as tf

        taped = patches.records_gradients() and isinstance(numbers, tf.Tensor)
        if taped and getattr(result, "shape", None) == ():
            found = getattr(self._thread, "totals", [])
            self._thread.totals = [*found, numbers][-MOST_TOTALS:]

    def _totals(self, sources) -> list:
        """What the last sums and means were made of, on which a loss may depend. Not
        penalties on weights, which have the shape of a matrix of them (a vector may be
        as long as a batch) and not as many rows as the batch; nor what another graph
        has, in which no gradient can be asked for."""
        import tensorflow as tf

        flat = [v for v in tf.nest.flatten(sources) if v is not None]
        if not all(hasattr(v, "assign") for v in flat):
            return []  # the gradient of a penalty, perhaps, but of no update
        found = getattr(self._thread, "totals", [])
        shapes = [v.shape for v in flat if len(v.shape) > 1]
        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        rows = getattr(self._thread, "rows", None)
        return [
            tensor
            for tensor in found
            if (tensor.shape not in shapes or tensor.shape[0] == rows)
            and getattr(tensor, "graph", None) is graph
        ]

    def _group(self, variables) -> int | None:
        """The number of this set of variables; None if they are none."""
        flat = [v for v in variables if v is not None]
        if not flat or not all(hasattr(v, "assign") for v in flat):
            return None
        key = tuple(sorted(_identity(v) for v in flat))
        if key not in self._groups:
            self._groups[key] = len(self._groups)
            self._variables.append(flat)
        return self._groups[key]

    def _near(self, variables) -> int | None:
        """As above, for the variables of an update: those of the gradient that it has
        most in common with."""
        keys = {_identity(v) for v in variables}
        found = [n for key, n in self._groups.items() if keys == set(key)]
        found += [n for key, n in self._groups.items() if keys & set(key)]
        return found[0] if found else self._group(variables)

    def _local(self, target, sources, gradients, totals: list[tuple]) -> None:
        """A tape has computed gradients. totals: what was summed up for the loss, with
        the loss's gradient for each, or None."""
        import tensorflow as tf

        flat, grads = tf.nest.flatten(sources), tf.nest.flatten(gradients)
        group = self._group(flat)
        if group is None or len(flat) != len(grads):
            return
        if self._horovod.size is None:
            self._horovod.note_size()
        pairs = [(g, v) for g, v in zip(grads, flat, strict=True) if g is not None]
        if not pairs:
            return
        own, variables = zip(*pairs, strict=True)
        if self._updated:
            self._updated, self._asked, self._horovod.reduced = False, 0, 0
        self._asked += sum(map(elements_of, variables))
        losses = [t for t in tf.nest.flatten(target) if t is not None]
        loss = tf.add_n([tf.reduce_sum(tf.cast(t, tf.float32)) for t in losses])
        # How much all of a batch's losses count together: 1 in a mean, and less by a
        # factor of the number of workers in a mean that is divided by it. The same of
        # those that aren't 0, as they are where padding is masked; the mask itself, of
        # zeros and ones, is no loss.
        counts = []
        for t, g in totals:
            if g is not None:
                weights = tf.cast(_dense(g), tf.float32)
                is_zero = tf.equal(t, 0)
                is_mask = tf.reduce_all(is_zero | tf.equal(t, 1))
                weights = tf.where(is_mask, math.nan, weights)
                unmasked = tf.where(is_zero, 0.0, weights)
                size = tf.cast(tf.size(t), tf.float32)
                counts.append((tf.reduce_sum(weights), size, tf.reduce_sum(unmasked)))
        counts = tf.reshape(tf.convert_to_tensor(counts, tf.float32), (-1, 3))
        where = self._recorder.line()
        strategy = tf.distribute.get_strategy()
        facts = {
            "replicas": strategy.num_replicas_in_sync,
            "strategy": type(strategy).__name__,
        }

        def record(replica, loss, counts, *arrays):
            half = len(arrays) // 2
            self._recorder.event(
                "local",
                group=group,
                replica=int(replica),
                update=self._updates.get((group, int(replica)), 0) + 1,
                loss=float(loss),
                **facts,
                totals=counts.tolist(),
                sketch=sketch(arrays[:half]),
                weights=sketch(arrays[half:]),
                where=where,
            )

        self._emit(
            group,
            record,
            [loss, counts],
            lambda: [_dense(array) for array in (*own, *variables)],
        )

    def _applied(self, optimizer, pairs: list) -> None:
        """An optimizer is about to change variables."""
        import tensorflow as tf

        pairs = [(g, v) for g, v in pairs if g is not None]
        group = self._near([v for _, v in pairs])
        if group is None:
            return
        order = {_identity(v): i for i, v in enumerate(self._variables[group])}
        pairs.sort(key=lambda pair: order.get(_identity(pair[1]), len(order)))
        if optimizer not in self._optimizers:
            self._optimizers.append(optimizer)
        where, self._updated = self._recorder.line(), True
        reduced = self._horovod.reduced / self._asked if self._asked else 0.0
        rate = _rate(optimizer)
        rate = tf.constant(float("nan")) if rate is None else rate

        def record(replica, rate, *arrays):
            replica = int(replica)
            self._recorder.event(
                "applied",
                group=group,
                replica=replica,
                update=self._updates.get((group, replica), 0) + 1,
                rate=float(rate),
                reduced=reduced,
                sketch=sketch(arrays),
                where=where,
            )

        for_all = not tf.distribute.has_strategy()

        def count(replica):
            keys = {(group, int(replica))}
            if for_all:  # replicas have computed gradients of it, and apply none
                keys |= {key for key in self._calls if key[0] == group}
            for key in keys:
                self._updates[key] = self._updates.get(key, 0) + 1
            self._note_step()

        gradients = lambda: [_dense(g) for g, _ in pairs]  # noqa: E731
        self._emit(group, record, [tf.cast(rate, tf.float32)], gradients, count)

    def _note_step(self) -> None:
        self._ended = time.monotonic()
        if self._began is None:
            self._began = self._ended
            self._horovod.note_size()
        self._steps += 1
        self._recorder.beat()

    def _wanted(self, group: int, replica: int, counts: bool) -> bool:
        """Is this one looked at? counts: it is an update, else a gradient.

        There may be several gradients to an update, or no optimizer to see it.
        """
        key = group, replica
        number = self._updates.get(key, 0) + 1
        if not counts and number == 1:
            number = self._calls[key] = self._calls.get(key, 0) + 1
        return number <= CLOSELY or number & (number - 1) == 0

    def _emit(self, group, record, small, large, count=None) -> None:
        """Have `record` called when what is being built runs, or now; where nobody
        wants to know, without what is `large`."""
        import tensorflow as tf

        replica = strategies.replica()
        if tf.executing_eagerly():
            number = int(replica)
            if self._wanted(group, number, count is not None):
                arrays = [a.numpy() for a in (*small, *large())]
                record(number, *arrays)
            if count:
                count(number)
            return

        def wanted(replica):
            return self._wanted(group, int(replica), count is not None)

        is_wanted = tf.numpy_function(wanted, [replica], tf.bool)
        is_wanted.set_shape(())
        tensors = [*small, *large()]

        def yes():
            # It returns a number, so that what counts can come after it.
            def recorded(replica, *arrays):
                record(replica, *arrays)
                return True

            return tf.numpy_function(recorded, [replica, *tensors], tf.bool)

        done = tf.cond(is_wanted, yes, lambda: tf.constant(False))
        if count:
            with tf.control_dependencies([done]):
                tf.numpy_function(count, [replica], [])

    # ------------------------------------------------------------ data

    def _forward(self, original):
        import tensorflow as tf

        def observed(model, *args, **kwargs):
            inputs = patches.argument("inputs", 0, args, kwargs)
            flat = [t for t in tf.nest.flatten(inputs) if t is not None]
            depth = getattr(self._thread, "depth", 0)
            if not depth and flat and all(map(_is_real, flat)):
                shape = tf.TensorShape(flat[0].shape)
                self._thread.rows = shape[0] if shape.rank else None
                try:
                    self._look(_number_in(self._models, model), flat)
                except (TypeError, ValueError) as error:
                    why = repr(error)[:200]
                    self._recorder.event("unseen", of="samples", why=why)
            self._thread.depth = depth + 1
            try:
                return original(model, *args, **kwargs)
            finally:
                self._thread.depth = depth

        return observed

    def _look(self, model: int, flat: list) -> None:
        """Report the samples that a model is given."""
        where, training = self._recorder.line(), bool(patches.records_gradients())
        inside = self._recorder.activities

        def look(replica, *arrays):
            self._recorder.beat()
            if "predict" in inside:
                return
            if training and "evaluate" not in inside:
                mode = "train"
            elif "fit" in inside and "evaluate" not in inside:
                return  # by this, Keras builds a model before it trains it
            else:
                mode = "validate"
            rows = len(arrays[0]) if arrays[0].ndim else 1
            self._samples += rows if mode == "train" else 0
            known = self._samples <= MOST_SAMPLES
            self._recorder.event(
                "samples",
                mode=mode,
                model=model,
                replica=int(replica),
                count=rows,
                digests=_digests(arrays, rows) if known else None,
                where=where,
            )

        _have(look, flat)

    def _loss(self, loss, y_true, *args, **kwargs) -> None:
        """Augmented images may be the same, and not look so: what are their labels?"""
        if patches.records_gradients() and _is_real(y_true):
            if _number_in(self._losses, loss) == 0:  # of several outputs, one is enough
                _have(self._look_at_labels, [y_true])

    def _look_at_labels(self, replica, array) -> None:
        if self._samples <= MOST_SAMPLES and array.ndim:
            digests = _digests([array], len(array))
            self._recorder.event("labels", replica=int(replica), digests=digests)

    # ------------------------------------------------------------ the end

    def totals(self) -> dict:
        """How much was trained, and when."""
        began, ended = self._began, self._ended
        steps = {"updates": self._steps, "samples": self._samples}
        return {**steps, "began": began, "ended": ended}

    def values(self) -> dict:
        """What came of it."""
        return {
            "weights": [
                sketch([_first(v).numpy() for v in group]) for group in self._variables
            ],
            "copies": list(map(max_copy_difference, self._variables)),
            "statistics": self._statistics(),
            "frozen": self._frozen(),
            "rate": [rate_now(optimizer) for optimizer in self._optimizers],
        }

    def _statistics(self) -> list | None:
        """Of batch normalization: running means and variances, of all models."""
        variables = [
            variable
            for model in self._models
            for variable in _variables_of(model, "non_trainable_variables")
        ]
        return _sketch_of(v for v in variables if "moving_" in v.name)

    def _frozen(self) -> list | None:
        """Of the weights that could be trained and are not."""
        trained = {_identity(v) for group in self._variables for v in group}
        found = {
            _identity(v): v
            for model in self._models
            for v in _variables_of(model, "variables")
            if v.trainable and _identity(v) not in trained
        }
        return _sketch_of(found.values())


# ------------------------------------------------------------ arrays in few numbers


def sketch(arrays) -> list[float]:
    """BUCKETS sums of the numbers with fixed random signs.

    A linear map: the sketch of a mean of gradients is the mean of their sketches, and
    two sketches differ about as much as what they are of.
    """
    total = np.zeros(BUCKETS)
    for number, array in enumerate(arrays):
        flat = np.asarray(array, np.float64).ravel()
        size = -(-flat.size // BUCKETS) * BUCKETS
        padded = np.zeros(size)
        padded[: flat.size] = flat
        total += (padded * _signs(number % 97, size)).reshape(-1, BUCKETS).sum(0)
    return total.tolist()


@functools.cache
def _signs(number: int, size: int) -> np.ndarray:
    draw = np.random.Generator(np.random.PCG64(number * 10**9 + size))
    return draw.integers(0, 2, size, np.int8) * 2 - 1


def _sketch_of(variables: Iterable) -> list | None:
    """Of variables of Keras 2's or 3's; None if there are none."""
    values: list[Any] = [_first(getattr(v, "value", v)) for v in variables]
    values = [v() if callable(v) and not hasattr(v, "numpy") else v for v in values]
    return sketch([v.numpy() for v in values]) if values else None


def _digests(arrays, rows: int) -> str:
    """A digest of each row, 12 characters each, joined. An array with another number
    of rows belongs to each of them as a whole."""
    digests, flat = [], []
    common = hashlib.blake2b(digest_size=6)
    for array in map(np.ascontiguousarray, (a for a in arrays if a.ndim)):
        if len(array) != rows:
            common.update(_raw(array))
            continue
        array = array.reshape(rows, math.prod(array.shape[1:]))
        flat.append(array[:, :: max(1, array[:1].nbytes // LARGE_ROW)])
    for row in range(rows):
        digest = common.copy()
        for array in flat:
            digest.update(_raw(array[row]))
        digests.append(digest.hexdigest())
    return "".join(digests)


def _raw(array) -> bytes:
    return repr(array.tolist()).encode() if array.dtype == object else array.tobytes()


# ------------------------------------------------------------ tensors and variables


def _have(called: Callable, tensors: list) -> None:
    """Have a function called with the replica and with what is in tensors, when what is
    being built runs, or now."""
    import tensorflow as tf

    tensors = [strategies.replica(), *map(_dense, tensors)]
    tf.numpy_function(called, tensors, [])


def _number_in(known: list, thing) -> int:
    """Its number among those that are known, of which it is one from now on."""
    if not any(one is thing for one in known):
        known.append(thing)
    return next(i for i, one in enumerate(known) if one is thing)


def _first(variable):
    """A variable, of one that replicas have copies of the first."""
    return copies(variable)[0]


def _variables_of(model, which: str) -> list:
    """Those of a model that Keras lists by this name. Among them, Keras 2 lists the
    table of a layer that looks words up, which is no variable."""
    return [v for v in getattr(model, which, []) if hasattr(v, "trainable")]


def _identity(variable) -> int:
    return id(_first(patches.value_of(variable)))


def _dense(tensor):
    import tensorflow as tf

    return tf.convert_to_tensor(tensor)


def _is_real(tensor) -> bool:
    """Numbers, or what will be in a graph, not the placeholder of a network."""
    import tensorflow as tf

    if type(tensor).__name__ in ("KerasTensor", "SparseTensor", "RaggedTensor"):
        return False
    return tf.is_tensor(tensor) or type(tensor).__module__ == "numpy"


def _rate(optimizer):
    """The learning rate as a tensor; None if it can't be known."""
    import tensorflow as tf

    rate: Any = patches.rate_of(optimizer)
    if callable(rate) and not hasattr(rate, "assign"):
        rate = (
            rate(optimizer.iterations) if hasattr(optimizer, "iterations") else rate()
        )
    rate = getattr(rate, "value", rate) if hasattr(rate, "path") else rate
    try:
        return None if rate is None else tf.convert_to_tensor(rate)
    except (TypeError, ValueError):
        return None


def rate_now(optimizer) -> float | None:
    """The learning rate, where it is a number now."""
    rate: Any = None if optimizer is None else _rate(optimizer)
    return float(rate.numpy()) if hasattr(rate, "numpy") else None
