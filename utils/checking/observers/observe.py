"""Report what a program does while it trains, from inside.

Each worker of a check (lab.py) runs the learner's file as it is and writes a line
of JSON for everything that the checks want to know: which device was made visible,
which collectives were called from which line, what each callback read. Arrays go to
.npy files beside it. Nothing is decided here; the judges compare the workers.

Most hooks are observations: they note what goes into a function and what comes out of
it. The others are interventions, and have a part of `Observer` to themselves. Some make
workers differ, so that a program that forgets to bring them together is found out: they
start from other weights, go on with another state of the optimizer, and compute other
metrics. Some let a check take seconds: GPUs are pretended, convolutions have few
channels, and most steps are skipped.

Functions run eagerly, so that every value can be seen, and the same building of
graphs is not waited for on every worker. Whether they can be built, one worker tries in
the end (utils.checking.observers.graphs).
"""

import contextlib
import functools
import itertools
import json
import os
import shutil
import signal
import sys
import threading
import time
import types
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from utils.checking.evidence import MOST_ITEMS, MOST_TEXT
from utils.checking.observers import graphs as observe_graphs

# As they are now: what a program replaces later is neither silenced nor misled by that.
_dumps, _write, _clock = json.dumps, os.write, time.monotonic

NOISE = 0.05  # of a weight's spread: how far apart the workers start
METRIC_SHIFT = 1 / 64  # how far apart their validation metrics are, at least
CHANNELS = 2  # of a convolution, at most
SMALL = 8  # numbers in a tensor whose values are reported
UPDATES = 3  # so many are compared: as many as two workers have steps in an epoch
UNKNOWN = -1  # instead of an image's number
ALIKE = 5e-4  # how far apart the moments of an image may be found, relative

# (owner, name) -> the function that has to be there still when a program has ended.
_relied_on: dict[tuple[Any, str], Callable] = {
    (json, "dumps"): _dumps,
    (os, "write"): _write,
}

_current: "Observer | None" = None


def prepare() -> None:
    """Import what the programs import, ready to be observed.

    To be called once, before Horovod is imported: its functions are methods that are
    bound, and copied under many names, while it is.
    """
    from horovod.common.basics import HorovodBasics

    for name in ("init", "shutdown", "barrier"):
        if hasattr(HorovodBasics, name):
            _wrap(HorovodBasics, name, lambda o, f, n: o.collective(n, f))
    for name in ("rank", "size", "local_rank", "local_size", "cross_rank"):
        _wrap(HorovodBasics, name, lambda o, f, n: o.asked(n, f))
    for name in ("_process_set_size", "_process_set_rank"):
        _wrap(HorovodBasics, name, lambda o, f, n: o.remembered(n, f))

    import horovod._keras
    import horovod.tensorflow.keras

    _wrap(horovod._keras, "create_distributed_optimizer", lambda o, f, n: o.wraps(f))
    from horovod.tensorflow import mpi_ops

    library = mpi_ops.MPI_LIB
    for name in ("allreduce", "grouped_allreduce", "allgather", "grouped_allgather"):
        _wrap(library, f"horovod_{name}", lambda o, f, n: o.collective(n[8:], f))
    for name in ("broadcast", "broadcast_inplace", "broadcast_inplace_resource"):
        _wrap(library, f"horovod_{name}", lambda o, f, n: o.collective("broadcast", f))
    for name in ("alltoall", "reducescatter", "grouped_reducescatter", "join"):
        _wrap(library, f"horovod_{name}", lambda o, f, n: o.collective(n[8:], f))


def _wrap(owner, name: str, handler) -> None:
    """Replace `owner.name` by a function that lets the observer make the call."""
    original = getattr(owner, name)

    def observed(*args, **kwargs):
        if _current is None:
            return original(*args, **kwargs)
        return handler(_current, original, name)(*args, **kwargs)

    observed.__name__ = name
    # Where a pipeline asks for the rank, AutoGraph would translate it.
    observed.autograph_info__ = None
    setattr(owner, name, observed)
    _relied_on[owner, name] = observed


class Reporter:
    """Writes what a worker does to `folder/rank.N.jsonl`; programs with several threads
    report from each of them.

    script: the program whose lines are named.
    """

    def __init__(self, folder: Path, rank: int, script: str):
        self.folder, self.rank, self.script = folder, rank, script
        self._file = os.open(
            folder / f"rank.{rank}.jsonl", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600
        )
        self._keeping = threading.Lock()
        self._methods: list[tuple] = []  # as they were before this replaced them
        self._relied_on = dict(_relied_on)

    def event(self, what: str, **facts) -> None:
        """Report that something happened, with the line of the program, if any."""
        facts = {"what": what, "time": _clock(), "line": self.line(), **facts}
        facts = {
            name: fact[:MOST_TEXT] if isinstance(fact, str) else fact
            for name, fact in facts.items()
        }
        _write(self._file, (_dumps(facts, default=_as_json) + "\n").encode())

    def line(self) -> int | None:
        """The innermost line of the program that is being executed."""
        frame = sys._getframe(1)
        while frame is not None:
            if frame.f_code.co_filename == self.script:
                return frame.f_lineno
            frame = frame.f_back
        return None

    def keep(self, name: str, arrays) -> None:
        """Keep arrays, flattened and joined, as `rank.N.name.npy` (float32)."""
        flat = [np.asarray(a, np.float32).ravel() for a in arrays]
        joined = np.concatenate(flat) if flat else np.zeros(0, np.float32)
        # If the process is killed here, the former file is still whole.
        whole = self.folder / f"rank.{self.rank}.{name}.npy"
        half = whole.with_name(f"half.{whole.name}")  # which nobody reads
        with self._keeping:
            np.save(half, joined)
            half.replace(whole)

    def replace(self, owner, name: str, make) -> None:
        """Replace a method by `make(original)`."""
        original = getattr(owner, name)
        self._methods.append((owner, name, original))
        hook = self._relied_on[owner, name] = make(original)
        setattr(owner, name, hook)

    def report_replaced(self) -> None:
        """Report what the program has replaced of that by which it is observed."""
        for (owner, name), function in self._relied_on.items():
            if getattr(owner, name, None) is not function:
                owner_name = getattr(owner, "__name__", type(owner).__name__)
                self.event("tampered", replaced=f"{owner_name}.{name}")

    def wait_for_the_end(self) -> None:
        """Report that the program has ended; never returns.

        The goodbyes of Horovod and MPI would take a second; the lab ends the world when
        all workers are here.
        """
        self.event("ended", cpu=os.times()[:2])
        while True:
            signal.pause()


def _as_json(value):
    """What stands for a value that JSON has no form for."""
    if hasattr(value, "item") and getattr(value, "ndim", 1) == 0:  # of NumPy
        return value.item()
    return repr(value)[:MOST_TEXT]


def local_size(local_rank: int, gpus: int) -> int:
    """How many workers to pretend on a machine: one for each of its GPUs."""
    return max(gpus, local_rank + 1)


def name_of(gpu: int) -> str:
    """What CUDA_VISIBLE_DEVICES may call a pretended GPU, here a part of one (MIG)."""
    return f"MIG-{gpu:08x}-5a1e-5ca1-ab1e-{gpu:012x}"


class Observer(Reporter):
    """Reports what a worker of a Horovod program does.

    local_rank: the one to pretend, gpus: how many GPUs to pretend (see
    `_pretend_gpus`). count_only: see `_skip_steps`. devices_only: it ends where
    TensorFlow takes hold of its devices. opposite: see `_opposite`.
    """

    metric_shift = METRIC_SHIFT
    graphs: observe_graphs.Graphs | None = None  # to be built in the end

    def __init__(
        self,
        folder: Path,
        rank: int,
        script: str,
        local_rank: int | None = None,
        gpus: int = 0,
        count_only: bool = False,
        devices_only: bool = False,
        opposite: bool = False,
        apart: bool = False,
    ):
        super().__init__(folder, rank, script)
        self.opposite, self.apart = opposite, apart
        self.local_rank, self.gpus, self.count_only = local_rank, gpus, count_only
        self.devices_only = devices_only
        self._reported: set[tuple] = set()
        self._answers: dict[tuple, int] = {}  # of Horovod, to who and how many we are
        self._lines: dict[int, int | None] = {}  # id of a callback -> where it was made
        self._forwards = self._gradients = self._updates = 0
        self._begun = False  # has it begun to train?
        self._model = self._optimizer = None
        self._resumed = False  # has anything been computed after the first update?
        self._broadcasts = 0
        self._handed_out = False  # had weights come from elsewhere by the first batch?
        self._trainable: list = []  # all such variables, of whatever model
        self._first_values: dict[int, object] = {}  # of each, by its handle
        self._made: dict[int, object] | None = None  # see _note_made
        self._known: dict[bool, object] = {}  # moments: for training, for validation
        self._guess = None  # the last for training: a model, images, its answer
        self._evaluations = 0
        self._computed: dict = {}  # the metrics of the last one that was computed
        self._before = self._there()  # files, by when they were changed
        self._files: set[str] = set()  # that it had written by the end of an epoch
        self._inside: list[str] = []
        self.building = False  # are only graphs built by now?

    # ------------------------------------------------------------ Horovod

    def asked(self, name: str, function):
        """Who am I, and how many are we? Each place that asks is reported once."""
        remembered = self.remembered(name, function)

        def ask(*args, **kwargs):
            key = (name, self.line())
            reported = key in self._reported
            self._reported.add(key)
            try:
                answer = remembered(*args, **kwargs)
            except ValueError:
                if not self._answers:
                    self.event("asked", name=name, too_early=True, answer=None)
                raise
            if name.startswith("local") and self.local_rank is not None:
                answer = self.local_rank
                if name == "local_size":
                    answer = local_size(self.local_rank, self.gpus)
            if not reported and key[1] is not None:
                self.event("asked", name=name, too_early=False, answer=answer)
            return answer

        return ask

    def remembered(self, name: str, function):
        """For graphs that are built in the end, when the program may have shut Horovod
        down: what it answered before."""

        def ask(*args, **kwargs):
            key = (name, *args)
            if not (self.building and key in self._answers):
                self._answers[key] = function(*args, **kwargs)
            return self._answers[key]

        return ask

    def collective(self, kind: str, function):
        """What all workers have to call together: report before and after."""

        def call(*args, **kwargs):
            tensor = args[0] if args else None
            tensors = tensor if isinstance(tensor, list | tuple) else [tensor]
            if any(hasattr(t, "op") and not hasattr(t, "numpy") for t in tensors):
                return function(*args, **kwargs)  # a graph that is being built
            if self.building:
                return tensor  # the others have ended
            self._note_made(tensors)
            root = kwargs.get("root_rank")
            small = _values(tensors)
            if kind == "broadcast":
                self._broadcasts += 1
            facts = {"op": kind, "name": kwargs.get("name"), "root": root}
            facts["elements"] = sum(_elements(t) for t in tensors)
            facts["line"] = self._line_of_callback() or self.line()
            self.event("enter", given=small, **facts)
            result = function(*args, **kwargs)
            results = result if isinstance(result, list | tuple) else [result]
            got = _values(results) if small is not None else None
            if self.apart:
                self._share_files()
            self.event("leave", op=kind, got=got)
            return result

        return call

    def _line_of_callback(self) -> int | None:
        """Where the program made the callback that is at work, if one is."""
        frame = sys._getframe(1)
        while frame is not None and frame.f_code.co_filename != self.script:
            line = self._lines.get(id(frame.f_locals.get("self")))
            if line is not None:
                return line
            frame = frame.f_back
        return None

    def _horovod_modules(self) -> list[str]:
        """Those of Horovod's modules that the program has names for."""
        found, frame = set(), sys._getframe(1)
        while frame is not None:
            if frame.f_code.co_filename == self.script:
                for value in (*frame.f_globals.values(), *frame.f_locals.values()):
                    if isinstance(value, types.ModuleType):
                        found.add(value.__name__)
            frame = frame.f_back
        return sorted(name for name in found if name.startswith("horovod"))

    def wraps(self, function):
        """A distributed optimizer is made."""

        def wrap(*args, **kwargs):
            self.event("wrapped")
            return function(*args, **kwargs)

        return wrap

    # ------------------------------------------------------------ TensorFlow, Keras

    @contextlib.contextmanager
    def at_work(self):
        """Observe the program that runs in this block."""
        global _current
        import tensorflow as tf

        observe_graphs.eagerly()
        _current = self
        self._hook_devices()
        self._hook_training(tf)
        self._skip_steps(tf)
        self._hook_callbacks(tf)
        if self.graphs:
            self.graphs.watch()
        try:
            with tf.variable_creator_scope(self._perturb_weights):
                yield
        finally:
            self.report_replaced()
            self._report_end()

    def _hook_devices(self) -> None:
        from tensorflow.python.eager import context

        def initialize(original):
            def observed(ctx, *args, **kwargs):
                if getattr(ctx, "_physical_devices", None) is None:
                    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
                    # Whatever GPUs there are, a check computes on the processor.
                    os.putenv("CUDA_VISIBLE_DEVICES", "-1")
                    original(ctx, *args, **kwargs)
                    if chosen is None:
                        os.unsetenv("CUDA_VISIBLE_DEVICES")
                    else:
                        os.putenv("CUDA_VISIBLE_DEVICES", chosen)
                    self._pretend_gpus(ctx, chosen)
                    return None
                return original(ctx, *args, **kwargs)

            return observed

        def ensure(original):
            def observed(ctx):
                if not ctx._initialized:
                    ctx._initialize_physical_devices()
                    self.event("devices", **self._devices(ctx))
                    if self.devices_only:
                        self.report_replaced()
                        self.wait_for_the_end()
                return original(ctx)

            return observed

        def pin(original):
            def observed(ctx, *args, **kwargs):
                self.event("pinned")
                return original(ctx, *args, **kwargs)

            return observed

        self.replace(context.Context, "set_visible_devices", pin)
        self.replace(context.Context, "_initialize_physical_devices", initialize)
        self.replace(context.Context, "ensure_initialized", ensure)

    def _devices(self, ctx) -> dict:
        """Numbers of the pretended GPUs that are visible, and that may grow."""
        number = dict(zip(self._pretended, self._physical, strict=True))
        growth = [number[d] for d in self._pretended if ctx._memory_growth_map.get(d)]
        if os.environ.get("TF_FORCE_GPU_ALLOW_GROWTH", "").lower() == "true":
            growth = list(number.values())
        visible = [number[d] for d in ctx._visible_device_list if d in number]
        return {"visible": visible, "growth": growth}

    @contextlib.contextmanager
    def inside(self, activity: str):
        """Note that the program is in a "forward", an "update" or a "fit" now."""
        self._inside.append(activity)
        try:
            yield
        finally:
            self._inside.remove(activity)

    def _hook_training(self, tf) -> None:
        from tf_keras.src.optimizers import optimizer as new
        from tf_keras.src.optimizers.legacy import optimizer_v2 as legacy

        self.replace(tf.keras.layers.Conv2D, "__init__", self._narrow)
        self.replace(tf.keras.Model, "__call__", self._forward)
        self.replace(tf.keras.Model, "fit", self._fit)
        self.replace(tf.GradientTape, "gradient", self._gradient)
        self.replace(new._BaseOptimizer, "apply_gradients", self._update)
        distributed = functools.partial(self._update, position=1)
        self.replace(legacy.OptimizerV2, "_distributed_apply", distributed)

    def _forward(self, original):
        def observed(model, *args, **kwargs):
            inputs = kwargs.get("inputs", args[0] if args else None)
            if "forward" in self._inside or not _is_batch(inputs):
                return original(model, *args, **kwargs)
            training = bool(kwargs.get("training", len(args) > 1 and args[1]))
            with self.inside("forward"):
                result = original(model, *args, **kwargs)
            images = self._after_forward(model, training, inputs)
            if training:
                self._guess = model, images, result
            elif self.opposite:
                return self._opposite(images, result)
            return result

        return observed

    def _gradient(self, original):
        import tensorflow as tf

        def observed(tape, target, sources, *args, **kwargs):
            result = original(tape, target, sources, *args, **kwargs)
            flat = tf.nest.flatten(result)
            of_next = self._gradients == self._updates < UPDATES
            if self._forwards and of_next and len(flat) > 1:
                name = numbered("local", self._gradients)
                self._gradients += 1
                self._report_loss(target)
                self.keep(name, [g for g in flat if g is not None])
            return result

        return observed

    def _report_loss(self, target) -> None:
        """Report the loss whose gradient is taken, beside the mean cross-entropy over
        the batch and the penalty for large weights, where its images are known."""
        import tensorflow as tf

        from utils.training import data

        model, images, answer = self._guess or (None, [UNKNOWN], None)
        classes = len(data.CLASSES)
        if UNKNOWN in images or np.shape(answer) != (len(images), classes):
            return
        labels = data.load("auto").y_train[images]
        # As Keras' losses do: logits are exact where a chance is nearly 0.
        logs = np.asarray(getattr(answer, "_keras_logits", answer), np.float64)
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

    def _update(self, original, position: int = 0):
        """position: of the pairs of gradients and variables among the arguments."""

        def observed(optimizer, *args, **kwargs):
            if "update" in self._inside:
                return original(optimizer, *args, **kwargs)
            args = list(args)
            pairs = kwargs.pop("grads_and_vars", None)
            if pairs is None:
                pairs = args.pop(position)
            pairs = list(pairs)
            args.insert(position, pairs)
            with self.inside("update"):
                self._before_update(optimizer, pairs)
                result = original(optimizer, *args, **kwargs)
            self._after_update(optimizer)
            return result

        return observed

    def _fit(self, original):
        import inspect

        signature = inspect.signature(original)

        def observed(*args, **kwargs):
            arguments = signature.bind(*args, **kwargs).arguments
            names = ("verbose", "steps_per_epoch", "validation_steps", "epochs")
            arguments = {name: arguments.get(name) for name in names}
            self.event("fit", **arguments, modules=self._horovod_modules())
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

    def _note_made(self, tensors) -> None:
        """Note the weights as they are before a collective first carries any: as many
        numbers as one of them has, or as all of them have, or the variables."""
        if self._made is not None or not self._trainable:
            return
        sizes = [_elements(variable) for variable in self._trainable]
        carried = [_elements(tensor) for tensor in tensors]
        in_place = any("resource" in str(getattr(t, "dtype", "")) for t in tensors)
        if in_place or set(carried) & set(sizes) or sum(carried) >= sum(sizes):
            self._made = {id(v.handle): v.numpy() for v in self._trainable}

    def _have_changed(self, weights) -> bool:
        """Are they other ones than they were made with, read from a file perhaps?"""
        first = self._first_values
        return any(
            not np.array_equal(first[id(w.handle)], w.numpy())
            for w in weights
            if id(w.handle) in first
        )

    def _numbers(self, inputs, training: bool) -> list[int]:
        """Which images these are, by their numbers in the data set; UNKNOWN for what
        none of its images can have become by shifting, flipping and scaling."""
        from utils.training import data

        if training not in self._known:
            dataset = data.load("auto")
            images = dataset.x_train if training else dataset.x_val
            self._known[training] = moments(images)
        try:
            found = moments(inputs[0] if isinstance(inputs, list | tuple) else inputs)
        except (TypeError, ValueError):  # no array of numbers
            return []
        known = self._known[training]
        apart = np.abs(found[:, None] - known).max(axis=-1)
        nearest = apart.argmin(axis=1)
        near = apart.min(axis=1) < ALIKE * (1 + np.abs(found).max(axis=-1))
        return np.where(near, nearest, UNKNOWN).tolist()[:MOST_ITEMS]

    def _after_forward(self, model, training: bool, inputs) -> list[int]:
        """Report a batch; returns the numbers of its images."""
        images = self._numbers(inputs, training)
        if training:
            self._begins()
        self.event(
            "forward",
            training=training,
            fit="fit" in self._inside,
            images=images,
            rate=self._rate() if training else None,
        )
        if self._updates and not self._resumed:
            self._resumed = True
            self.keep("second", self._weights())
            self.keep("state", self._state())
        if not training:
            return images
        self._forwards += 1
        # Of several before the first update, the last one is what begins the training;
        # who only counts makes none.
        if self._forwards == 1 or not (self._updates or self.count_only):
            self._model = model
            self.keep("start", self._weights())
            weights = model.trainable_weights
            self._handed_out = self._made is not None or self._have_changed(weights)
            made = self._made or {}
            self.keep("made", [made.get(id(w.handle), w.numpy()) for w in weights])
        return images

    def _rate(self) -> float | None:
        """The learning rate, once it is known who updates, where it is a number."""
        try:
            return float(getattr(self._optimizer, "learning_rate", None))
        except (TypeError, ValueError):
            return None

    def _weights(self) -> list:
        return [w.numpy() for w in self._model.trainable_weights]

    def _state(self) -> list:
        """The optimizer's variables with more than one number in them."""
        if self._optimizer is None:
            return []
        variables = self._optimizer.variables
        variables = variables() if callable(variables) else variables
        return [v.numpy() for v in variables if len(v.shape) and v.dtype.is_floating]

    def _before_update(self, optimizer, pairs: list) -> None:
        self._updates += 1
        wrapped = hasattr(optimizer, "_allreduce_grads")
        if self._updates == 1:
            self._optimizer = optimizer
        if self._updates <= UPDATES:
            name = numbered("applied", self._updates - 1)
            self.keep(name, [g for g, _ in pairs if g is not None])
        self.event("update", wrapped=wrapped, optimizer=type(optimizer).__name__)

    def _after_update(self, optimizer) -> None:
        if self._updates != 1 or self._model is None:
            return
        self.keep("updated", self._weights())
        self._perturb_state(optimizer)

    def _hook_callbacks(self, tf) -> None:
        from tf_keras.src import callbacks  # the list has no public name

        base = tf.keras.callbacks.Callback

        def new(cls, *args, **kwargs):
            callback = object.__new__(cls)
            self._lines[id(callback)] = self.line()
            return callback

        def report(callback, before: dict, after: dict, read) -> None:
            made = self._lines.get(id(callback))
            facts = {"before": before, "after": after, "read": sorted(read)}
            facts["stops"] = bool(getattr(self._model, "stop_training", False))
            name = type(callback).__name__
            self.event("callback", name=name, made=made, **facts)

        def epoch_end(original):
            def observed(listing, epoch, logs=None):
                watched = Watched.of(listing._process_logs(logs), base, report)
                for callback in listing.callbacks:
                    before = watched.begin(callback)
                    with self.inside("epoch end"):
                        callback.on_epoch_end(epoch, watched)
                    watched.done()
                    report(callback, before, watched.plain(), watched.read)
                self._note_files()

            return observed

        def test_end(original):
            def observed(listing, logs=None):
                metrics = listing._process_logs(logs)
                watched = Watched.of(metrics, base, report, prefix="val_")
                for callback in listing.callbacks:
                    before = watched.begin(callback)
                    callback.on_test_end(watched)
                    watched.done()
                    # Keras' own show what they read: to the end of an epoch it comes
                    # again.
                    own = type(callback).__module__.startswith("tf_keras.")
                    if "fit" in self._inside and watched.read and not own:
                        report(callback, before, watched.plain(), watched.read)

            return observed

        base.__new__ = staticmethod(new)
        self.replace(callbacks.CallbackList, "on_epoch_end", epoch_end)
        if self.metric_shift:
            self.replace(callbacks.CallbackList, "on_test_end", test_end)
            self.replace(tf.keras.Model, "evaluate", self._evaluate)
            name = "_validate_and_get_metrics_result"
            self.replace(tf.keras.Model, name, self._shift_metrics)

    def _evaluate(self, original):
        def observed(*args, **kwargs):
            if "evaluate" in self._inside:
                return original(*args, **kwargs)
            with self.inside("evaluate"):
                return original(*args, **kwargs)

        return observed

    # ------------------------------------------------------------ interventions

    def _pretend_gpus(self, ctx, chosen: str | None) -> None:
        """Let TensorFlow believe in GPUs for as long as they are only configured.

        Its own functions list them, make them visible and refuse what comes too late,
        as on a machine that has them; none of them can compute.
        """
        if chosen is None:
            self._physical = list(range(self.gpus))
        else:
            numbers = {str(n): n for n in range(self.gpus)}
            numbers |= {name_of(n): n for n in range(self.gpus)}
            words = [word.strip() for word in chosen.split(",")]
            # As CUDA has it: what comes after a name that no GPU has does not count.
            known = itertools.takewhile(numbers.__contains__, words)
            self._physical = [numbers[word] for word in known]
        from tensorflow.python.eager import context

        self._pretended = [
            context.PhysicalDevice(f"/physical_device:GPU:{n}", "GPU")
            for n in range(len(self._physical))
        ]
        start = len(ctx._physical_devices)
        for index, device in enumerate(self._pretended, start):
            ctx._physical_devices.append(device)
            ctx._physical_device_to_index[device] = index
            ctx._visible_device_list.append(device)
            ctx._memory_growth_map[device] = None

    def _narrow(self, original):
        """Give convolutions few channels, so that the program's own network computes
        in no time, and its weights can be kept whole."""

        def narrowed(layer, filters, *args, **kwargs):
            original(layer, min(filters, CHANNELS), *args, **kwargs)

        return narrowed

    def _skip_steps(self, tf) -> None:
        """Compute Keras' first training and validation steps, and count the others.

        Where all are only counted, not even an update is computed.
        """
        known: dict = {}

        def forward_only(model, batch):
            """The metrics of a batch, without an update; for both kinds of steps."""
            x, y, weight = tf.keras.utils.unpack_x_y_sample_weight(batch)
            with self.inside("forward"):
                guess = model(x, training=True)
                model.compute_loss(x, y, guess, weight)
                return model.compute_metrics(x, y, guess, weight)

        def step(original, training: bool, computed: int):
            """computed: how many steps are, before the others are only counted."""
            done: Counter = Counter()

            def counted(model, batch):
                key = id(model), training
                done[key] += 1
                if done[key] <= computed:
                    known[key] = original(model, batch)  # which reports itself
                    return known[key]
                if self.count_only and id(model) not in known:
                    known[id(model)] = forward_only(model, batch)
                x, _, _ = tf.keras.utils.unpack_x_y_sample_weight(batch)
                self._after_forward(model, training, x)
                return known[id(model) if self.count_only else key]

            return counted

        # With more than one, a rank that others leave alone after the first one waits
        # where it would wait in a whole training.
        trained, validated = (0, 0) if self.count_only else (UPDATES, 1)
        for name, training, computed in (
            ("train_step", True, trained),
            ("test_step", False, validated),
        ):
            make = functools.partial(step, training=training, computed=computed)
            self.replace(tf.keras.Model, name, make)

    def _perturb_weights(self, next_creator, **kwargs):
        """Let each rank but the first start from other weights, whatever the seed."""
        variable = next_creator(**kwargs)
        if variable.trainable and variable.shape.rank:  # optimizers have single numbers
            self._trainable.append(variable)
        if self.rank and variable.trainable and variable.dtype.is_floating:
            shape = tuple(variable.shape)
            if None not in shape:
                value = variable.numpy()
                noise = np.random.default_rng([self.rank, value.size])
                spread = NOISE * (float(np.std(value)) or 1.0)
                variable.assign_add(
                    noise.normal(0, spread, shape).astype(value.dtype), read_value=False
                )
                self._first_values[id(variable.handle)] = variable.numpy()
        return variable

    def _perturb_state(self, optimizer) -> None:
        """Set the state of each rank's optimizer but the first apart: whoever hands out
        the weights from now on has to hand out that, too."""
        if self.rank and not (self._broadcasts or self._handed_out):
            variables = optimizer.variables
            for v in variables() if callable(variables) else variables:
                if len(v.shape) and v.dtype.is_floating:
                    v.assign_add(0.01 * self.rank + 0 * v)

    def _opposite(self, images: list[int], result):
        """In place of what a network answers in validation: on rank 0 always a wrong
        class, on the others the right one. So the ranks' accuracies lie on either side
        of a target, whichever way a program computes them."""
        import tensorflow as tf

        from utils.training import data

        classes = len(data.CLASSES)
        if UNKNOWN in images or np.shape(result) != (len(images), classes):
            return result
        answers = data.load("auto").y_val[images] + (self.rank == 0)
        return tf.one_hot(answers % classes, classes, dtype=result.dtype)

    def _shift_metrics(self, original):
        """What an evaluation computes, a little apart on each rank: so few images may
        give all of them the same accuracy by chance. And it gets better from one to the
        next, but not for rank 0: who decides by those of its rank is apart then."""

        def observed(model, logs):
            metrics = original(model, logs)
            if "evaluate" not in self._inside:
                return metrics
            means = [m for m in model.metrics if hasattr(m, "total")]
            if any(float(m.count) for m in means):
                self._computed = metrics
            elif means:  # its steps were only counted
                metrics = {k: self._computed.get(k, v) for k, v in metrics.items()}
            self._evaluations += 1
            shift = self.metric_shift * self.rank * self._evaluations
            metrics = {
                name: value - shift if "loss" in name else value + shift
                for name, value in metrics.items()
            }
            for metric in means:  # where callbacks may look as well
                if metric.name in metrics:
                    metric.total.assign(metrics[metric.name])
                    metric.count.assign(1)
            known = _numbers_in({f"val_{k}": v for k, v in metrics.items()})
            fit, own = "fit" in self._inside, "epoch end" in self._inside
            self.event("evaluated", fit=fit, own=own, metrics=known)
            return metrics

        return observed

    # ------------------------------------------------------------ the end

    def _report_end(self) -> None:
        if self._model is not None:
            self.keep("end", self._weights())
        self._note_files()
        if self._files:
            self.event("left", files=sorted(self._files)[:MOST_ITEMS])

    def _note_files(self) -> None:
        """Note what it has written by now: some is deleted in the end."""
        now = self._there()
        self._files |= {n for n, time in now.items() if time != self._before.get(n)}

    def _share_files(self) -> None:
        """Copy what the other ranks have written into this rank's home.

        Each rank has a home of its own, so that it is seen who writes what. Programs
        expect one folder, and may read what another rank wrote before they met.
        """
        mine = self._there()
        for home in self.folder.glob("rank.*.home"):
            if home == self._home:
                continue
            for name, changed in _files_in(home).items():
                touched = mine.get(name) != self._before.get(name)
                if touched or changed == mine.get(name):
                    continue
                copy = self._home / name
                with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(home / name, copy)
                    os.utime(copy, ns=(changed, changed))
                    self._before[name] = changed

    @property
    def _home(self) -> Path:
        return self.folder / f"rank.{self.rank}.home"

    def _there(self) -> dict[str, int]:
        """The files of its home, with the times of their last change, in ns."""
        return _files_in(self._home)

    def work_done(self) -> int:
        """Grows whenever the program trains."""
        return self._forwards + self._updates

    def only_building(self) -> None:
        """Observe no more: let TensorFlow and Keras do what they do without this."""
        self.building = True
        for owner, name, original in reversed(self._methods):
            setattr(owner, name, original)


def _files_in(home: Path) -> dict[str, int]:
    """The files in a folder, with the times of their last change, in ns."""
    times = {}
    for path in home.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # another rank has deleted it
            if path.is_file():
                times[str(path.relative_to(home))] = path.stat().st_mtime_ns
    return times


def numbered(name: str, update: int) -> str:
    """What the arrays of an update are called, which are counted from 0."""
    return f"{name}.{update}" if update else name


def moments(images):
    """What stays of images (n, ...) when their pixels change places, and are shifted
    and scaled together: the third to fifth central moments, standardised (n, 3)."""
    pixels = np.asarray(images, np.float64)
    pixels = pixels.reshape(len(pixels), -1)
    pixels = pixels - pixels.mean(axis=1, keepdims=True)
    pixels /= np.sqrt(np.square(pixels).mean(axis=1, keepdims=True)) + 1e-12
    return np.stack([(pixels**n).mean(axis=1) for n in (3, 4, 5)], axis=1)


class Watched(dict):
    """The metrics of an epoch, for one callback of a list after the other.

    outer: the one whose turn it is; read: the names that were looked at since then.
    What another one does with them, that the outer one has called, is reported when it
    has done.
    """

    # TensorFlow makes others of the kind from pairs alone.
    _base: type | tuple = ()
    _report, _prefix = None, ""
    outer, _inner, _facts = None, None, None

    def __init__(self, *args):
        super().__init__(*args)
        self.read: set[str] = set()

    @classmethod
    def of(cls, metrics: dict, base: type, report, prefix: str = "") -> "Watched":
        """base: the class of all callbacks; report: is called with one of them, the
        metrics before it and after, and the names that it has read. prefix: of the
        names in that."""
        watched = cls(metrics)
        watched._base, watched._report, watched._prefix = base, report, prefix
        return watched

    def begin(self, callback) -> dict[str, float]:
        """Its turn begins: return the metrics as they are now."""
        self.outer, self.read = callback, set()
        return self.plain()

    def plain(self) -> dict[str, float]:
        return _numbers_in({self._prefix + k: v for k, v in dict.items(self)})

    def done(self) -> None:
        """The inner callback at work, if there is one, has done."""
        if self._inner is not None:
            callback, self._inner = self._inner, None
            self._report(callback, *self._facts)

    def _at_work(self) -> bool:
        """Is it an inner callback that reads or writes now? Then note it as such."""
        frame = sys._getframe(2)
        while frame is not None:
            callback = frame.f_locals.get("self")
            if isinstance(callback, self._base):
                break
            frame = frame.f_back
        inner = callback if frame is not None and callback is not self.outer else None
        if inner is not self._inner:
            self.done()
            self._inner, self._facts = inner, (self.plain(), self.plain(), set())
        return inner is not None

    def _note_read(self, *names) -> None:
        names = {self._prefix + name for name in names}
        self.read |= names
        if self._at_work():
            self._facts[2].update(names)

    def __setitem__(self, key, value):
        inner = self._at_work()
        super().__setitem__(key, value)
        if inner:
            before, _, read = self._facts
            self._facts = before, self.plain(), read

    def update(self, *args, **kwargs):
        for key, value in dict(*args, **kwargs).items():
            self[key] = value

    def __getitem__(self, key):
        self._note_read(key)
        return super().__getitem__(key)

    def get(self, key, default=None):
        self._note_read(key)
        return super().get(key, default)

    # Who copies it, or writes it to a file, goes through all of it by one of these.
    def __iter__(self):
        return iter(list(super().keys()))

    def items(self):
        self._note_read(*super().keys())
        return super().items()

    def values(self):
        self._note_read(*super().keys())
        return super().values()

    def copy(self):
        self._note_read(*super().keys())
        return super().copy()

    def __reduce_ex__(self, protocol):
        """Who copies or sends it gets the metrics, and nothing of the observer's."""
        self._note_read(*super().keys())
        return dict, (dict(super().items()),)


def _numbers_in(metrics: dict) -> dict[str, float]:
    """Those of the metrics that are single numbers."""
    return {k: float(v) for k, v in metrics.items() if np.ndim(v) == 0}


def _is_batch(inputs) -> bool:
    """Real images, not the placeholder from which a network is put together."""
    first = inputs[0] if isinstance(inputs, list | tuple) and inputs else inputs
    return hasattr(first, "shape") and (
        hasattr(first, "numpy") or type(first).__name__ == "ndarray"
    )


def _elements(tensor) -> int:
    shape = getattr(tensor, "shape", None)
    try:
        return int(shape.num_elements()) if shape is not None else 0
    except (AttributeError, TypeError):
        return 0


def _values(tensors) -> list[float] | None:
    """The numbers in small float tensors, None for anything else."""
    numbers: list[float] = []
    for tensor in tensors:
        dtype = getattr(tensor, "dtype", None)
        if not hasattr(tensor, "numpy") or not getattr(dtype, "is_floating", False):
            return None
        numbers += np.ravel(tensor.numpy()).astype(float).tolist()
    return numbers if 0 < len(numbers) <= SMALL else None
