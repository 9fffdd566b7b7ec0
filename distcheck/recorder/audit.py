"""Report what any program with Horovod or tf.distribute does, while it runs for real.

    mpirun -np 2 python -m distcheck.recorder.audit PROGRAM --its-options

Each process writes what it does to $DISTCHECK_REPORTS/rank.N.jsonl, a line of JSON for
each event; nothing is decided here (see distcheck/judges/audit.py), and nothing of the
program is changed. Functions stay compiled: what runs in them is seen by operations
that are put beside the program's own when TensorFlow builds their graphs.

It begins with the standard library alone: TensorFlow, Keras and Horovod are watched
once the program has imported them, so it chooses for itself which Keras it gets.
"""

import contextlib
import faulthandler
import hashlib
import importlib.abc
import importlib.machinery
import json
import math
import os
import random
import re
import runpy
import signal
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path
from typing import Any

BUCKETS = 64  # numbers of a sketch
CLOSELY = 6  # updates that are looked at one by one; later ones are powers of two
MOST_SAMPLES = 500_000  # training samples of a process that are told apart
MOST_BYTES = 30_000_000  # of a report
MOST_FILES = 200
MOST_OF_ERROR = 20_000  # characters: TensorFlow's words come after all its frames
LARGE_ROW = 65_536  # bytes of a sample, of which no more than some are looked at
MOST_TOTALS = 20  # of the last sums and means before a gradient

HOROVOD_MODULES = ("horovod.tensorflow", "horovod.tensorflow.keras", "horovod.keras")
# What is written there is no file; but shared memory holds some.
NO_FILES = re.compile("/(proc|sys|dev(?!/shm))/")
BELOW = ("site-packages", "dist-packages", f"{os.sep}lib{os.sep}python", "<frozen")


class Reporter:
    """Writes events to a file, and knows the program's lines.

    folder: for the reports. rank: of this process. script: the program.
    """

    def __init__(self, folder: Path, rank: int, script: str):
        self.rank = rank
        self.home = str(Path(script).resolve().parent)
        flags = os.O_CREAT | os.O_WRONLY | os.O_APPEND
        self._file = os.open(folder / f"rank.{rank}.jsonl", flags, 0o600)
        self._process = os.getpid()
        self._written = 0
        self._lock = threading.Lock()
        self._beaten = 0.0
        self.folder = str(folder)
        self.running: str | None = None  # the line of the last strategy.run
        self.beat_path = folder / f"rank.{rank}.beat"

    def event(self, what: str, **facts) -> None:
        if os.getpid() != self._process:
            return  # A child that the program has forked is no worker.
        facts = {"what": what, "time": time.monotonic(), **facts}
        line = (json.dumps(facts, default=_plain) + "\n").encode()
        with self._lock:
            if (
                what in ("samples", "labels", "file", "metrics")
                and self._written > MOST_BYTES
            ):
                return
            self._written += len(line)
            os.write(self._file, line)

    def beat(self) -> None:
        """Show that the program gets on."""
        now = time.monotonic()
        if now - self._beaten > 0.5:
            self._beaten = now
            number = os.open(self.beat_path, os.O_CREAT | os.O_WRONLY, 0o600)
            os.utime(self.beat_path)
            os.close(number)

    def where(self) -> str | None:
        """The innermost line of the program that is being executed, as FILE:LINE; of a
        replica, whose thread may have none, the line that started it."""
        for name, line in _stack():
            if name.startswith(self.home) and not any(part in name for part in BELOW):
                return f"{os.path.relpath(name, self.home)}:{line}"
        return self.running


def _stack():
    """The files and lines that are being executed, the innermost first."""
    module = sys.modules.get("tensorflow.python.util.tf_stack")
    if module is not None and hasattr(module, "extract_stack"):
        # It knows which line of the program AutoGraph's translation stands for.
        for frame in reversed(list(module.extract_stack())):
            yield frame.filename, frame.lineno
        return
    frame = sys._getframe(1)
    while frame is not None:
        yield frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back


def _as_json(text: str):
    try:
        return json.loads(text)
    except ValueError:
        return text


def _plain(value):
    if getattr(value, "ndim", None) == 0 or hasattr(value, "item"):
        return value.item()
    return repr(value)[:200]


class Auditor(Reporter):
    """Watches TensorFlow, Keras and Horovod in this process."""

    def __init__(self, folder: Path, rank: int, script: str):
        super().__init__(folder, rank, script)
        # (group, replica) -> gradients since the last update
        self._calls: dict[tuple, int] = {}
        self._groups: dict[tuple, int] = {}  # variables that are trained together
        self._variables: list[list] = []  # of each group
        self._updates: dict[tuple, int] = {}  # (group, replica) -> updates so far
        self._samples = 0
        self._activity: list[str] = []
        self._inside = threading.local()
        self._models: list = []
        self._losses: list = []
        # How many numbers local gradients have, and how many were given to all-reduce,
        # since the last update. Several tapes may come before several optimizers.
        self._asked = self._reduced = 0
        self._updated = False
        self._files: set[tuple] = set()
        self._collectives = 0  # how many were called from Python, or built into a graph
        self._made: dict[int, str | None] = {}  # id of a callback -> line
        self._signs: dict[int, Any] = {}
        self._optimizers: list = []
        self._trained = [None, None, 0, 0]  # first time, last, samples, updates
        self._seeded: dict[str, str | None] = {}
        self._pinned = False
        self._strategies: list = []
        self._asked_size: int | None = None
        self._tf_config = os.environ.get("TF_CONFIG", "")

    # ------------------------------------------------------------ arrays in few numbers

    def sketch(self, arrays) -> list[float]:
        """BUCKETS sums of the numbers with fixed random signs.

        A linear map: the sketch of a mean of gradients is the mean of their sketches,
        and two sketches differ about as much as what they are of.
        """
        import numpy as np

        total = np.zeros(BUCKETS)
        for number, array in enumerate(arrays):
            flat = np.asarray(array, np.float64).ravel()
            size = -(-flat.size // BUCKETS) * BUCKETS
            key = (number % 97) * 10**9 + size
            if key not in self._signs:
                draw = np.random.Generator(np.random.PCG64(key))
                self._signs[key] = draw.integers(0, 2, size, np.int8) * 2 - 1
            padded = np.zeros(size)
            padded[: flat.size] = flat
            total += (padded * self._signs[key]).reshape(-1, BUCKETS).sum(0)
        return total.tolist()

    # ------------------------------------------------------------ gradients, updates

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
        for key, number in self._groups.items():
            if keys == set(key):
                return number
        for key, number in self._groups.items():
            if keys & set(key):
                return number
        return self._group(variables)

    def _wanted(self, group: int, replica: int, counts: bool) -> bool:
        """Is this one looked at? counts: it is an update, else a gradient.

        There may be several gradients to an update, or no optimizer to see it.
        """
        key = group, replica
        number = self._updates.get(key, 0) + 1
        if not counts and number == 1:
            number = self._calls[key] = self._calls.get(key, 0) + 1
        return number <= CLOSELY or number & (number - 1) == 0

    def totals(self, sources) -> list:
        """What sums and means were made of since the last gradient. Not penalties on
        weights, which have the shape of one; nor what another graph has, in which no
        gradient can be asked for."""
        import tensorflow as tf

        found, self._inside.totals = getattr(self._inside, "totals", []), []
        shapes = [getattr(v, "shape", None) for v in tf.nest.flatten(sources)]
        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        return [
            tensor
            for tensor in found
            if tensor.shape not in shapes and getattr(tensor, "graph", None) is graph
        ]

    def local(self, target, sources, gradients, totals=()) -> None:
        """A tape has computed gradients. totals: what was summed up for the loss, with
        the loss's gradient for each, or None."""
        import tensorflow as tf

        flat, grads = tf.nest.flatten(sources), tf.nest.flatten(gradients)
        group = self._group(flat)
        if group is None or len(flat) != len(grads):
            return
        if self._asked_size is None:  # it may be shut down before the end
            self._note_horovod()
        pairs = [(g, v) for g, v in zip(grads, flat, strict=True) if g is not None]
        if not pairs:
            return
        if self._updated:
            self._asked = self._reduced = 0
            self._updated = False
        self._asked += sum(_elements(v) for _, v in pairs)
        losses = [t for t in tf.nest.flatten(target) if t is not None]
        loss = tf.add_n([tf.reduce_sum(tf.cast(t, tf.float32)) for t in losses])
        # How much all of a batch's losses count together: 1 in a mean, and less by a
        # factor of the number of workers in a mean that is divided by it.
        counts = [
            (
                tf.reduce_sum(tf.cast(_dense(g), tf.float32)),
                tf.cast(tf.size(t), tf.float32),
            )
            for t, g in totals
            if g is not None
        ]
        counts = tf.reshape(tf.convert_to_tensor(counts, tf.float32), (-1, 2))
        where = self.where()
        replicas = tf.distribute.get_strategy().num_replicas_in_sync

        def record(replica, loss, counts, *arrays):
            half = len(arrays) // 2
            self.event(
                "local",
                group=group,
                replica=int(replica),
                update=self._updates.get((group, int(replica)), 0) + 1,
                loss=float(loss),
                replicas=replicas,
                totals=counts.tolist(),
                sketch=self.sketch(arrays[:half]),
                weights=self.sketch(arrays[half:]),
                where=where,
            )

        self._emit(
            group,
            record,
            [loss, counts],
            lambda: [_dense(g) for g, _ in pairs] + [_value(v) for _, v in pairs],
        )

    def applied(self, optimizer, pairs: list) -> None:
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
        where, self._updated = self.where(), True
        reduced = self._reduced / self._asked if self._asked else 0.0
        rate = _rate(optimizer)
        rate = tf.constant(float("nan")) if rate is None else rate

        def record(replica, rate, *arrays):
            replica = int(replica)
            self.event(
                "applied",
                group=group,
                replica=replica,
                update=self._updates.get((group, replica), 0) + 1,
                rate=float(rate),
                reduced=reduced,
                sketch=self.sketch(arrays),
                where=where,
            )

        def count(replica):
            key = group, int(replica)
            self._updates[key] = self._updates.get(key, 0) + 1
            self._note_progress()

        gradients = lambda: [_dense(g) for g, _ in pairs]  # noqa: E731
        self._emit(group, record, [tf.cast(rate, tf.float32)], gradients, count)

    def _note_progress(self) -> None:
        now = time.monotonic()
        trained = self._trained
        if trained[0] is None:
            trained[0] = now
            self._note_horovod()
        trained[3] += 1
        if trained[1] is None or now - trained[1] > 1 or trained[3] <= 4:
            self.event("progress", updates=trained[3], samples=self._samples)
        trained[1] = now
        self.beat()

    def _emit(self, group, record, small, large, count=None) -> None:
        """Have `record` called when what is being built runs, or now; where nobody
        wants to know, without what is `large`."""
        import tensorflow as tf

        replica = _replica(tf)
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

    def forward(self, original):
        import tensorflow as tf
        from tensorflow.python.eager import record

        def observed(model, *args, **kwargs):
            inputs = kwargs.get("inputs", args[0] if args else None)
            flat = [t for t in tf.nest.flatten(inputs) if t is not None]
            depth = getattr(self._inside, "depth", 0)
            if not depth and flat and all(map(_is_real, flat)):
                if not any(m is model for m in self._models):
                    self._models.append(model)
                number = next(i for i, m in enumerate(self._models) if m is model)
                training = bool(record.could_possibly_record())
                try:
                    self._look(tf, number, flat, training)
                except (TypeError, ValueError) as error:
                    self.event("unseen", of="samples", why=repr(error)[:200])
            self._inside.depth = depth + 1
            try:
                return original(model, *args, **kwargs)
            finally:
                self._inside.depth = depth

        return observed

    def _look(self, tf, number: int, flat: list, training: bool) -> None:
        where = self.where()

        def look(replica, *arrays):
            self.beat()
            if "predict" in self._activity:
                return
            if training and "evaluate" not in self._activity:
                mode = "train"
            elif "fit" in self._activity and "evaluate" not in self._activity:
                return  # by this, Keras builds a model before it trains it
            else:
                mode = "validate"
            rows = len(arrays[0]) if arrays[0].ndim else 1
            self._samples += rows if mode == "train" else 0
            known = self._samples <= MOST_SAMPLES
            digests = _digests(arrays, rows) if known else None
            self.event(
                "samples",
                mode=mode,
                model=number,
                replica=int(replica),
                count=rows,
                digests=digests,
                fit="fit" in self._activity,
                where=where,
            )

        replica = _replica(tf)
        dense = [_dense(t) for t in flat]
        if tf.executing_eagerly():
            look(int(replica), *(tf.convert_to_tensor(t).numpy() for t in dense))
        else:
            tf.numpy_function(look, [replica, *dense], [])

    def labels(self, original):
        """Of a loss of Keras': augmented images may be the same, and not look so."""
        import tensorflow as tf
        from tensorflow.python.eager import record

        def observed(loss, y_true, *args, **kwargs):
            if record.could_possibly_record() and _is_real(y_true):
                if not any(known is loss for known in self._losses):
                    self._losses.append(loss)
                if self._losses[0] is loss:  # of several outputs, one is enough
                    self._look_at_labels(tf, y_true)
            return original(loss, y_true, *args, **kwargs)

        return observed

    def _look_at_labels(self, tf, y_true) -> None:
        def look(replica, array):
            if self._samples <= MOST_SAMPLES and array.ndim:
                digests = _digests([array], len(array))
                self.event("labels", replica=int(replica), digests=digests)

        replica = _replica(tf)
        if tf.executing_eagerly():
            look(int(replica), tf.convert_to_tensor(y_true).numpy())
        else:
            tf.numpy_function(look, [replica, tf.convert_to_tensor(y_true)], [])

    # ------------------------------------------------------------ Keras

    def activity(self, name: str):
        """What wraps a method of models, so that one knows what is going on."""

        def wrap(original):
            def observed(model, *args, **kwargs):
                if name == "fit":
                    data: Any = args[0] if args else kwargs.get("x")
                    is_array = hasattr(data, "shape")
                    self.event(
                        "fit",
                        where=self.where(),
                        samples=len(data) if is_array else None,
                        own_step=not _is_keras_own(type(model).train_step),
                        epochs=kwargs.get("epochs", 1),
                        by_steps=is_array
                        and kwargs.get("batch_size") is None
                        and kwargs.get("steps_per_epoch") is not None
                        and len(args) < 3,
                        keras=3 if _is_of_keras_3(model) else 2,
                        rate=_rate_now(getattr(model, "optimizer", None)),
                    )
                self._activity.append(name)
                try:
                    return original(model, *args, **kwargs)
                finally:
                    self._activity.remove(name)

            return observed

        return wrap

    def epoch_end(self, original):
        def observed(callback_list, epoch, logs=None):
            process = getattr(callback_list, "_process_logs", None)
            logs = TrackedLogs(process(logs) if process else logs or {})
            model = getattr(callback_list, "model", None)
            for callback in callback_list.callbacks:
                logs.read.clear()
                before = _numbers(logs)
                rate = _rate_now(getattr(model, "optimizer", None))
                collectives = self._collectives
                callback.on_epoch_end(epoch, logs)
                read = sorted(logs.read & set(before))
                if not read:
                    continue
                self.event(
                    "metrics",
                    epoch=epoch,
                    callback=type(callback).__name__,
                    made=self._made.get(id(callback)),
                    read={name: before[name] for name in read},
                    decides=_decides(callback),
                    chooses=bool(getattr(callback, "save_best_only", False)),
                    only_tells=type(callback).__name__ in ONLY_TELLING,
                    asks=self._collectives > collectives,
                    stops=bool(getattr(model, "stop_training", False)),
                    rates=[rate, _rate_now(getattr(model, "optimizer", None))],
                )
            self.event("epoch metrics", epoch=epoch, metrics=_numbers(logs))

        return observed

    def epoch_begin(self, original):
        def observed(callback_list, epoch, logs=None):
            self.event("epoch", epoch=epoch)
            return original(callback_list, epoch, logs)

        return observed

    def saves(self, how: str, position: int = 1):
        """What wraps a function that writes files without Python's `open`."""

        def wrap(original):
            def observed(*args, **kwargs):
                path = args[position] if len(args) > position else None
                for name in ("filepath", "file_prefix", "export_dir", "name"):
                    path = kwargs.get(name, path)
                if isinstance(path, str | os.PathLike):
                    self.file(path, how)
                return original(*args, **kwargs)

            return observed

        return wrap

    def file(self, path, how: str) -> None:
        """A file is written."""
        try:
            path = os.path.realpath(os.fsdecode(path))
        except FileNotFoundError:
            return  # The working directory is gone: the program will hear of it.
        skipped = ("__pycache__", "site-packages", self.folder)
        if NO_FILES.match(path) or any(part in path for part in skipped):
            return
        if (path, how) in self._files:
            return
        name = os.path.basename(path)
        if name.startswith(("tmp", "__autograph_generated")) or name.endswith(".lock"):
            return  # names that nobody else has, and what is there to be shared
        if len(self._files) < MOST_FILES and self.where():
            self._files.add((path, how))
            self.event("file", path=path, how=how, by=self.where())

    def told_otherwise(self, config: bytes | str | None = None) -> None:
        """The program sets TF_CONFIG, or clears it."""
        text = os.fsdecode(config) if config is not None else None
        same = text is not None and _as_json(text) == _as_json(self._tf_config)
        self.event("TF_CONFIG", same=same, cleared=text is None, where=self.where())

    def watch_files(self) -> None:
        def audit(name: str, arguments: tuple) -> None:
            if name in ("os.putenv", "os.unsetenv"):
                if os.fsdecode(arguments[0]) == "TF_CONFIG":
                    self.told_otherwise(*arguments[1:])
                return
            if name != "open":
                return
            path, mode, flags = arguments
            if isinstance(path, int) or path is None:
                return
            if mode is None:
                writes = bool((flags or 0) & (os.O_WRONLY | os.O_RDWR))
            else:
                writes = not set(mode).isdisjoint("wax+")
            # A file without a name is opened by its folder's.
            if writes and not os.path.isdir(path):
                how = "appended" if mode and "a" in mode else "written"
                self.file(path, how)

        tempfile.gettempdir()  # the first to ask has a file written, to try the folder
        sys.addaudithook(audit)

    # ------------------------------------------------------------ hooks on modules

    def on_tensorflow(self, tf) -> None:
        from tensorflow.python.distribute import distribute_lib
        from tensorflow.python.eager import record
        from tensorflow.python.eager.polymorphic_function import polymorphic_function
        from tensorflow.python.framework import config
        from tensorflow.python.lib.io import file_io
        from tensorflow.python.ops import gen_math_ops, gen_summary_ops
        from tensorflow.python.profiler import profiler_v2
        from tensorflow.python.saved_model import save as saved_model

        def gradient(original):
            def observed(tape, target, sources, *args, **kwargs):
                totals = self.totals(sources)
                wanted = [sources, totals]
                result, asked = original(tape, target, wanted, *args, **kwargs)
                pairs = list(zip(totals, asked, strict=True))
                self.local(target, sources, result, pairs)
                return result

            return observed

        def total(original):
            def observed(numbers, *args, **kwargs):
                result = original(numbers, *args, **kwargs)
                taped = record.could_possibly_record() and isinstance(
                    numbers, tf.Tensor
                )
                if taped and getattr(result, "shape", None) == ():
                    found = getattr(self._inside, "totals", [])
                    self._inside.totals = [*found, numbers][-MOST_TOTALS:]
                return result

            return observed

        def function(original):
            # What is observed can't be compiled by XLA; the numbers are the same.
            def observed(function, *args, **kwargs):
                kwargs["jit_compile"] = None
                return original(function, *args, **kwargs)

            return observed

        def strategy(original):
            def observed(strategy, *args, **kwargs):
                original(strategy, *args, **kwargs)
                kind = type(strategy).__name__
                if not kind.startswith("_"):  # TensorFlow makes the default one
                    devices = strategy.extended.worker_devices
                    self.event(
                        "strategy",
                        kind=kind,
                        replicas=strategy.num_replicas_in_sync,
                        devices=[device.rpartition("device:")[2] for device in devices],
                        where=self.where(),
                    )

            return observed

        def run(original):
            def observed(strategy, *args, **kwargs):
                self.running = self.where()
                return original(strategy, *args, **kwargs)

            return observed

        def write(original):
            def observed(file, name, mode="r", *args, **kwargs):
                if set(mode) & set("wa+"):
                    self.file(name, "appended" if "a" in mode else "written")
                return original(file, name, mode, *args, **kwargs)

            return observed

        def board(original):
            def observed(*args, **kwargs):
                folder: Any = kwargs.get("logdir", args[1] if len(args) > 1 else None)
                folder = folder.numpy() if hasattr(folder, "numpy") else folder
                if isinstance(folder, str | bytes) and folder:
                    self.file(os.fsdecode(folder), "board")
                return original(*args, **kwargs)

            return observed

        def profile(original):
            def observed(logdir, *args, **kwargs):
                if logdir:
                    self.file(os.path.join(logdir, "plugins", "profile"), "board")
                return original(logdir, *args, **kwargs)

            return observed

        def devices(original):
            def observed(*args, **kwargs):
                found = original(*args, **kwargs)
                if self.where():  # else TensorFlow asks for itself
                    kinds = [device.device_type for device in found]
                    self.event("devices", count={k: kinds.count(k) for k in kinds})
                return found

            return observed

        def pin(original):
            def observed(*args, **kwargs):
                self._pinned = True
                return original(*args, **kwargs)

            return observed

        _replace(tf.GradientTape, "gradient", gradient)
        _replace(gen_math_ops, "mean", total)
        _replace(gen_math_ops, "_sum", total)
        _replace(polymorphic_function.Function, "__init__", function)
        _replace(distribute_lib.StrategyBase, "__init__", strategy)
        _replace(distribute_lib.StrategyBase, "run", run)
        _replace(file_io.FileIO, "__init__", write)
        _replace(gen_summary_ops, "create_summary_file_writer", board)
        for module in (profiler_v2, tf.profiler.experimental):
            _replace(module, "start", profile)
        for module in (tf.config, tf.config.experimental):
            for name in ("list_physical_devices", "list_logical_devices"):
                _replace(module, name, devices)
        _replace(saved_model, "save_and_return_nodes", self.saves("written"))
        _replace(tf.train.Checkpoint, "save", self.saves("written"))
        _replace(tf.train.Checkpoint, "write", self.saves("written"))
        for name in ("set_visible_devices",):
            _replace(config, name, pin)
            _replace(tf.config, name, pin)
            _replace(tf.config.experimental, name, pin)
        replicas = int(os.environ.get("DISTCHECK_REPLICAS", "0"))
        if replicas and not tf.config.list_physical_devices("GPU"):
            (cpu,) = tf.config.list_physical_devices("CPU")
            parts = [tf.config.LogicalDeviceConfiguration()] * replicas
            tf.config.set_logical_device_configuration(cpu, parts)

    def on_tf_keras(self, keras) -> None:
        from tf_keras.src import callbacks
        from tf_keras.src.optimizers import optimizer as new
        from tf_keras.src.optimizers.legacy import optimizer_v2 as legacy

        self._on_models(keras.Model, callbacks.CallbackList, keras.callbacks.Callback)
        _replace(keras.losses.Loss, "__call__", self.labels)
        _replace(new._BaseOptimizer, "apply_gradients", self._apply(0))
        _replace(legacy.OptimizerV2, "_distributed_apply", self._apply(1))

    def on_keras(self, keras) -> None:
        if (
            keras.__version__.startswith("2.")
            or keras.backend.backend() != "tensorflow"
        ):
            return
        from keras.src.backend.tensorflow import optimizer as optimizers
        from keras.src.callbacks import callback_list

        self._on_models(
            keras.Model, callback_list.CallbackList, keras.callbacks.Callback
        )
        _replace(keras.losses.Loss, "__call__", self.labels)

        def reduce(original):
            def observed(optimizer, pairs):
                pairs = list(original(optimizer, pairs))
                self.applied(optimizer, pairs)
                return pairs

            return observed

        # What comes out of it is what is applied, of a strategy's sum over replicas.
        _replace(optimizers.TFOptimizer, "_all_reduce_sum_gradients", reduce)

    def _on_models(self, model, callback_list, callback) -> None:
        _replace(model, "__call__", self.forward)
        for name in ("fit", "evaluate", "predict"):
            _replace(model, name, self.activity(name))
        for name in ("save", "save_weights"):
            _replace(model, name, self.saves("written"))
        _replace(callback_list, "on_epoch_begin", self.epoch_begin)
        _replace(callback_list, "on_epoch_end", self.epoch_end)
        auditor = self

        def new(cls, *args, **kwargs):
            made = object.__new__(cls)
            auditor._made[id(made)] = auditor.where()
            return made

        callback.__new__ = staticmethod(new)

    def _apply(self, position: int):
        def wrap(original):
            def observed(optimizer, *args, **kwargs):
                args = list(args)
                pairs = kwargs.pop("grads_and_vars", None)
                if pairs is None:
                    pairs = args.pop(position)
                pairs = list(pairs)
                args.insert(position, pairs)
                self.applied(optimizer, pairs)
                return original(optimizer, *args, **kwargs)

            return observed

        return wrap

    def on_h5py(self, h5py) -> None:
        def write(original):
            def observed(file, name, mode="r", *args, **kwargs):
                if mode != "r" and isinstance(name, str | bytes | os.PathLike):
                    self.file(name, "written")
                return original(file, name, mode, *args, **kwargs)

            return observed

        _replace(h5py.File, "__init__", write)

    def on_mpi_ops(self, module) -> None:
        library = module.MPI_LIB

        def collective(original):
            def observed(*args, **kwargs):
                self._collectives += 1
                self.beat()
                return original(*args, **kwargs)

            return observed

        def reduce(original):
            def observed(tensors, *args, **kwargs):
                flat = tensors if isinstance(tensors, list | tuple) else [tensors]
                self._reduced += sum(map(_elements, flat))
                return original(tensors, *args, **kwargs)

            return observed

        for name in ("horovod_allreduce", "horovod_grouped_allreduce"):
            _replace(library, name, reduce)
        kinds = ("allreduce", "allgather", "broadcast", "alltoall", "reducescatter")
        for name in list(vars(library)):
            if name.startswith("horovod_") and any(kind in name for kind in kinds):
                _replace(library, name, collective)

    def on_functions(self, module) -> None:
        """Of Horovod: who broadcasts no variables has a model without any."""
        original = module.broadcast_variables

        def broadcast(original):
            def observed(variables, *args, **kwargs):
                variables = list(variables)  # of which there may be one pass only
                if not variables:
                    self.event("empty broadcast", where=self.where())
                return original(variables, *args, **kwargs)

            return observed

        _replace(module, "broadcast_variables", broadcast)
        for name in HOROVOD_MODULES:  # where it was imported from there already
            other = sys.modules.get(name)
            if other and vars(other).get("broadcast_variables") is original:
                vars(other)["broadcast_variables"] = module.broadcast_variables

    # ------------------------------------------------------------ the end

    def _note_horovod(self) -> None:
        module = sys.modules.get("horovod.tensorflow")
        if module is not None and module.is_initialized():
            self._asked_size = module.size()

    def report_end(self) -> None:
        self._note_horovod()
        tf = sys.modules.get("tensorflow")
        facts: dict = {"size": self._asked_size, "updates": self._trained[3]}
        facts["samples"] = self._samples
        facts["began"], facts["ended"] = self._trained[:2]
        facts["counts"] = {
            str(group): count
            for (group, replica), count in self._updates.items()
            if replica <= 0
        }
        if tf is not None:
            facts["weights"] = [self._end_sketch(group) for group in self._variables]
            facts["copies"] = [_max_copy_difference(group) for group in self._variables]
            facts["statistics"] = self._statistics()
            facts["frozen"] = self._frozen()
            facts["rate"] = [_rate_now(o) for o in self._optimizers]
            facts |= self._devices(tf)
            facts |= self._randomness(tf)
        self.event("end", **facts)

    def _end_sketch(self, variables) -> list[float]:
        return self.sketch([_first(v).numpy() for v in variables])

    def _statistics(self) -> list | None:
        """Of batch normalization: running means and variances, of all models."""
        return self._sketch_of(
            [
                v
                for model in self._models
                for v in getattr(model, "non_trainable_variables", [])
                if "moving_" in v.name
            ]
        )

    def _frozen(self) -> list | None:
        """Of the weights that could be trained and are not."""
        trained = {_identity(v) for group in self._variables for v in group}
        found = {
            _identity(v): v
            for model in self._models
            for v in getattr(model, "variables", [])
            if v.trainable and _identity(v) not in trained
        }
        return self._sketch_of(found.values())

    def _sketch_of(self, variables) -> list | None:
        """Of Keras 2's or 3's; None if there are none."""
        values: list[Any] = [_first(getattr(v, "value", v)) for v in variables]
        values = [v() if callable(v) and not hasattr(v, "numpy") else v for v in values]
        return self.sketch([v.numpy() for v in values]) if values else None

    def _devices(self, tf) -> dict:
        return {
            "gpus": [d.name for d in tf.config.get_visible_devices("GPU")],
            "all_gpus": len(tf.config.list_physical_devices("GPU")),
            "cuda": os.environ.get("CUDA_VISIBLE_DEVICES"),
            "pinned": self._pinned,
        }

    def _randomness(self, tf) -> dict:
        import numpy as np
        from tensorflow.python.eager import context

        state: Any = np.random.get_state()
        return {
            "seed": context.global_seed(),
            "numpy": _digest([*state[1], *state[2:]]),
            "python": _digest(random.getstate()),
        }


class TrackedLogs(dict):
    """The metrics of an epoch; `read` holds the names that somebody looked at."""

    def __init__(self, *args):
        super().__init__(*args)
        self.read: set[str] = set()

    def __getitem__(self, key):
        self.read.add(key)
        return super().__getitem__(key)

    def get(self, key, default=None):
        self.read.add(key)
        return super().get(key, default)

    def items(self):
        self.read.update(super().keys())
        return super().items()

    def values(self):
        self.read.update(super().keys())
        return super().values()

    def copy(self):
        self.read.update(super().keys())
        return super().copy()

    def __iter__(self):
        return super().__iter__()


# ---------------------------------------------------------------- small things


def _replace(owner, name: str, make) -> None:
    observed = make(getattr(owner, name))
    observed.autograph_info__ = {}  # or AutoGraph would rewrite it, and all it calls
    setattr(owner, name, observed)


def _is_keras_own(method) -> bool:
    """And not of a class of the program's."""
    return getattr(method, "__module__", "").startswith(("tf_keras.", "keras."))


def _is_of_keras_3(model) -> bool:
    return any(kind.__module__.startswith("keras.src") for kind in type(model).__mro__)


def _first(variable):
    """A variable, of one that replicas have copies of the first."""
    return getattr(variable, "values", [variable])[0]


def _identity(variable) -> int:
    return id(_first(getattr(variable, "_value", variable)))


def _value(variable):
    import tensorflow as tf

    return tf.convert_to_tensor(variable)


def _dense(tensor):
    import tensorflow as tf

    return tf.convert_to_tensor(tensor)


def _elements(tensor) -> int:
    shape: Any = getattr(tensor, "shape", None)
    try:
        return int(shape.num_elements() or 0)
    except (AttributeError, TypeError, ValueError):
        return 0


def _is_real(tensor) -> bool:
    """Numbers, or what will be in a graph, not the placeholder of a network."""
    import tensorflow as tf

    if type(tensor).__name__ in ("KerasTensor", "SparseTensor", "RaggedTensor"):
        return False
    return tf.is_tensor(tensor) or type(tensor).__module__ == "numpy"


def _replica(tf):
    """The number of the replica that computes; 0 where there is only one."""
    context = tf.distribute.get_replica_context()
    if not tf.distribute.has_strategy():
        return tf.constant(0)
    if context is None:
        return tf.constant(-1)
    return tf.convert_to_tensor(context.replica_id_in_sync_group)


def _rate(optimizer):
    """The learning rate as a tensor; None if it can't be known."""
    import tensorflow as tf

    rate: Any = getattr(optimizer, "learning_rate", None)
    if callable(rate) and not hasattr(rate, "assign"):
        rate = rate(optimizer.iterations)
    rate = getattr(rate, "value", rate) if hasattr(rate, "path") else rate
    try:
        return None if rate is None else tf.convert_to_tensor(rate)
    except (TypeError, ValueError):
        return None


def _rate_now(optimizer) -> float | None:
    rate: Any = None if optimizer is None else _rate(optimizer)
    return float(rate.numpy()) if hasattr(rate, "numpy") else None


def _max_copy_difference(variables) -> float:
    """The largest difference between copies of a variable; 0 without copies."""
    import numpy as np

    return max(
        (
            float(np.abs(copy.numpy() - _first(v).numpy()).max())
            for v in variables
            for copy in getattr(v, "values", [])[1:]
            if copy.shape.num_elements()
        ),
        default=0.0,
    )


def _digest(state) -> str:
    return hashlib.md5(repr(state).encode()).hexdigest()[:8]


def _numbers(logs: TrackedLogs) -> dict[str, float]:
    import numpy as np

    return {k: float(v) for k, v in dict.items(logs) if np.ndim(v) == 0}


def _digests(arrays, rows: int) -> str:
    """A digest of each row, 12 characters each, joined. An array with another number
    of rows belongs to each of them as a whole."""
    import numpy as np

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


KNOWN_TO_DECIDE = {"EarlyStopping", "ReduceLROnPlateau"}
DECIDING = {"stop_training", "learning_rate", "lr"}
# Keras' own callbacks that print or write what they read, and change nothing.
ONLY_TELLING = {"History", "ProgbarLogger", "CSVLogger", "TensorBoard"}
ONLY_TELLING |= {"ModelCheckpoint", "RemoteMonitor"}


def _decides(callback) -> bool:
    """May it change how training goes on, by what it reads? By its code's names."""
    kinds = [kind for kind in type(callback).__mro__ if kind.__name__ != "Callback"]
    if {kind.__name__ for kind in kinds} & KNOWN_TO_DECIDE:
        return True
    own = [
        kind
        for kind in kinds
        if not kind.__module__.startswith(("tf_keras", "keras", "horovod"))
    ]
    # Of a LambdaCallback, the functions that it was given.
    found = [f for owner in (callback, *own) for f in vars(owner).values()]
    functions = [f for f in found if hasattr(f, "__code__")]
    ends = [f for f in functions if "stop_training" in f.__code__.co_names]
    names = {name for f in functions for name in f.__code__.co_names}
    return bool(ends) or bool(names & {"assign", "set_value"} and names & DECIDING)


class _Finder(importlib.abc.MetaPathFinder):
    """Calls a hook once the module that it is for has been imported."""

    def __init__(self, hooks: dict):
        self.hooks = hooks

    def find_spec(self, name, path=None, target=None):
        if name not in self.hooks:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            hook = self.hooks.pop(
                name, None
            )  # who only asks for it, does not import it
            if hook:
                hook(module)

        spec.loader.exec_module = exec_module
        return spec


def watch(auditor: Auditor) -> None:
    """Hook what is imported already, and the rest as it comes."""
    hooks = {
        "tensorflow": auditor.on_tensorflow,
        "tf_keras": auditor.on_tf_keras,
        "keras": auditor.on_keras,
        "h5py": auditor.on_h5py,
        "horovod.tensorflow.mpi_ops": auditor.on_mpi_ops,
        "horovod.tensorflow.functions": auditor.on_functions,
    }
    for name in list(hooks):
        if name in sys.modules:
            hooks.pop(name)(sys.modules[name])
    sys.meta_path.insert(0, _Finder(hooks))
    auditor.watch_files()


def work(script: str, arguments: list[str]) -> int:
    """Be a worker: run the program, observed; return the exit status."""
    folder = Path(os.environ["DISTCHECK_REPORTS"])
    rank = int(
        os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("DISTCHECK_TASK") or 0
    )
    os.chdir(os.environ["DISTCHECK_PLACE"])
    stack = (folder / f"rank.{rank}.stack").open("w")
    faulthandler.register(signal.SIGUSR1, file=stack, all_threads=False)
    auditor = Auditor(folder, rank, script)
    auditor.event("started", pid=os.getpid())
    watch(auditor)
    # Keras draws the first weights from this. So rank 0 begins as a worker does that is
    # alone, and their losses can be compared; unless the program chooses a seed itself.
    random.seed(rank)
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).resolve().parent)
    status = 0
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as leaving:
        code = leaving.code
        status = code if isinstance(code, int) else int(code is not None)
        if code is not None and not isinstance(code, int):
            print(code, file=sys.stderr)
    except BaseException as error:
        traceback.print_exc()
        frames = traceback.extract_tb(error.__traceback__)
        own = [f for f in frames if f.filename.startswith(auditor.home)]
        own = [f for f in own if not any(part in f.filename for part in BELOW)]
        where = None
        if own:
            name = os.path.relpath(own[-1].filename, auditor.home)
            where = f"{name}:{own[-1].lineno}"
        text = f"{type(error).__name__}: {error}"[:MOST_OF_ERROR]
        auditor.event("failed", error=text, where=where)
        status = 1
    if not status:
        with contextlib.suppress(KeyboardInterrupt):
            auditor.report_end()
    sys.stdout.flush()
    sys.stderr.flush()
    return status


def main() -> None:
    status = work(sys.argv[1], sys.argv[2:])
    if status:
        # Without the goodbyes in which it would wait for the others.
        os._exit(status & 0xFF or 1)


if __name__ == "__main__":
    main()
