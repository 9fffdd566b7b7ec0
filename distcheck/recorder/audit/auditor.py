"""Report what any program with Horovod or tf.distribute does, while it runs for real.

    mpirun -np 2 python -m distcheck.recorder.audit.auditor PROGRAM --its-options

Each process writes what it does to $DISTCHECK_REPORTS/rank.N.jsonl; nothing is decided
here (see distcheck/judges/audit). Functions stay compiled, and the program chooses
for itself which Keras it gets: TensorFlow, Keras and Horovod are watched once it has
imported them.
"""

import contextlib
import faulthandler
import functools
import hashlib
import os
import random
import signal
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from distcheck.recorder import patches
from distcheck.recorder.audit import interventions
from distcheck.recorder.audit.callbacks import ONLY_TELLING, decides
from distcheck.recorder.audit.files import Files
from distcheck.recorder.audit.horovod import HorovodCalls
from distcheck.recorder.audit.strategies import Strategies
from distcheck.recorder.audit.tracing import Tracer, rate_now
from distcheck.recorder.callbacks import TrackedLogs
from distcheck.recorder.recorder import Recorder
from distcheck.recorder.writer import Place, places

MOST_BYTES = 30_000_000  # of a report, after which what comes often is left out
OFTEN = ("samples", "labels", "file", "metrics")
MOST_OF_ERROR = 20_000  # characters: TensorFlow's words come after all its frames
BELOW = ("site-packages", "dist-packages", f"{os.sep}lib{os.sep}python", "<frozen")


class Auditor(Recorder):
    """Watches TensorFlow, Keras and Horovod in this process."""

    def __init__(self, folder: Path, rank: int, script: str):
        super().__init__(folder, rank, script)
        self.home = str(Path(script).resolve().parent)
        self.files, self.strategies = Files(self), Strategies(self)
        self.horovod = HorovodCalls(self)
        self.tracer = Tracer(self, self.horovod)

    @contextlib.contextmanager
    def at_work(self):
        """Record what the program does that runs in this block."""
        patches.AfterImport(
            {
                "tensorflow": self._hook_tensorflow,
                "tf_keras": self._hook_keras_2,
                "keras": self._hook_keras_3,
                "h5py": self.files.hook_h5py,
                "horovod.tensorflow.mpi_ops": self.horovod.hook_mpi_ops,
                "horovod.tensorflow.functions": self.horovod.hook_functions,
            }
        )
        self.files.watch()
        self.strategies.watch()
        yield

    def event(self, what: str, **facts) -> None:
        """Report that something happened."""
        if what not in OFTEN or os.fstat(self._file).st_size < MOST_BYTES:
            self.write(what, facts)

    def line(self) -> str | None:
        """The innermost line of the program that is being executed, as FILE:LINE; of a
        replica, whose thread may have none, the line that started it."""
        found = self.line_of(patches.translated_places() or places())
        return found or self.strategies.running

    def line_of(self, places: Iterable[Place]) -> str | None:
        """The first of these places that is in the program's folder."""
        for file, line in places:
            own = file.startswith(self.home)
            if own and not any(part in file for part in BELOW):
                return f"{os.path.relpath(file, self.home)}:{line}"
        return None

    def report_failure(self, failure: dict) -> None:
        """Report an error; when the program exits by itself, what it has printed says
        more."""
        error = failure["error"][:MOST_OF_ERROR]
        if not error.startswith("sys.exit("):
            self.event("failed", error=error, where=failure["line"])

    # ------------------------------------------------------------ hooks

    def _hook_tensorflow(self, tf) -> None:
        replicas = int(os.environ.get("DISTCHECK_REPLICAS", "0"))
        if replicas and not tf.config.list_physical_devices("GPU"):
            interventions.split_processor(tf, replicas)
            in_place = functools.partial(
                interventions.in_place_of_gpus,
                tell=lambda named: self.event("in place of GPUs", named=named),
            )
            self.replace(tf.distribute.MirroredStrategy, "__init__", in_place)
        for part in (self.tracer, self.strategies, self.files):
            part.hook_tensorflow(tf)

    def _hook_keras_2(self, keras) -> None:
        self._hook_keras(keras, patches.callback_list())
        patches.hook_updates(self.replace, self.tracer.observe_update)

    def _hook_keras_3(self, keras) -> None:
        keras_2 = keras.__version__.startswith("2.")
        if not keras_2 and keras.backend.backend() == "tensorflow":
            self._hook_keras(keras, patches.keras_3_callback_list())
            # What comes out of it is applied: of a strategy, the sum over replicas.
            self.after(*patches.keras_3_reduction(), self.tracer.reduced)

    def _hook_keras(self, keras, callback_list: type) -> None:
        self.tracer.hook_keras(keras)
        self.files.hook_models(keras.Model)
        self.before(keras.Model, "fit", self._fits)
        for name in ("fit", "evaluate", "predict"):
            self.replace(keras.Model, name, functools.partial(self.within, name))
        self.before(callback_list, "on_epoch_begin", self._epoch_begins)
        self.replace(callback_list, "on_epoch_end", self._epoch_end)
        self.note_makers(keras.callbacks.Callback)

    def _fits(self, model, *args, **kwargs) -> None:
        data: Any = patches.argument("x", 0, args, kwargs)
        is_array = hasattr(data, "shape")
        self.event(
            "fit",
            where=self.line(),
            samples=len(data) if is_array else None,
            own_step=not _is_keras_own(type(model).train_step),
            epochs=kwargs.get("epochs", 1),
            by_steps=is_array
            and kwargs.get("batch_size") is None
            and kwargs.get("steps_per_epoch") is not None
            and len(args) < 3,
            keras=3 if _is_of_keras_3(model) else 2,
            rate=rate_now(getattr(model, "optimizer", None)),
        )

    def _epoch_begins(self, callback_list, epoch, logs=None) -> None:
        self.event("epoch", epoch=epoch)

    def _epoch_end(self, original):
        def observed(callback_list, epoch, logs=None):
            tracked = TrackedLogs(patches.logs_of(callback_list, logs))
            own_asks = False
            for callback in callback_list.callbacks:
                before, collectives = tracked.begin(callback), self.horovod.collectives
                callback.on_epoch_end(epoch, tracked)
                asks = self.horovod.collectives > collectives
                of_horovod = type(callback).__module__.startswith("horovod.")
                own_asks |= asks and not of_horovod
                read = sorted(tracked.read & set(before))
                if not read:
                    continue
                self.event(
                    "metrics",
                    epoch=epoch,
                    callback=type(callback).__name__,
                    made=self.made_in_line.get(id(callback)),
                    read={name: before[name] for name in read},
                    decides=decides(callback),
                    chooses=bool(getattr(callback, "save_best_only", False)),
                    only_tells=type(callback).__name__ in ONLY_TELLING,
                    asks=asks,
                )
            facts = {"metrics": tracked.plain(), "own_asks": own_asks}
            self.event("epoch metrics", epoch=epoch, **facts)

        return observed

    # ------------------------------------------------------------ the end

    def report_end(self) -> None:
        """Report what there is when the program has ended well."""
        try:
            facts = self._end()
        except Exception:  # a fault of this recorder, as the program has ended well
            self.event("not read", error=traceback.format_exc()[-MOST_OF_ERROR:])
        else:
            self.event("end", **facts)

    def _end(self) -> dict:
        self.horovod.note_size()
        facts = {"size": self.horovod.size, **self.tracer.totals()}
        tf = sys.modules.get("tensorflow")
        if tf is not None:
            facts |= self.tracer.values() | _devices(tf) | _randomness()
        return facts


def _is_keras_own(method) -> bool:
    """And not of a class of the program's."""
    return getattr(method, "__module__", "").startswith(("tf_keras.", "keras."))


def _is_of_keras_3(model) -> bool:
    return any(kind.__module__.startswith("keras.src") for kind in type(model).__mro__)


def _devices(tf) -> dict:
    return {
        "gpus": [device.name for device in tf.config.get_visible_devices("GPU")],
        "all_gpus": len(tf.config.list_physical_devices("GPU")),
        "cuda": os.environ.get("CUDA_VISIBLE_DEVICES"),
    }


def _randomness() -> dict:
    state: Any = np.random.get_state()
    return {
        "seed": patches.eager_context().global_seed(),
        "numpy": _digest([*state[1], *state[2:]]),
        "python": _digest(random.getstate()),
    }


def _digest(state) -> str:
    return hashlib.md5(repr(state).encode()).hexdigest()[:8]


def work(script: str, arguments: list[str]) -> None:
    """Be a worker: run the program, observed. What fails ends here."""
    folder = Path(os.environ["DISTCHECK_REPORTS"])
    rank = int(
        os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("DISTCHECK_TASK") or 0
    )
    os.chdir(os.environ["DISTCHECK_PLACE"])
    stack = (folder / f"rank.{rank}.stack").open("w")
    faulthandler.register(signal.SIGUSR1, file=stack, all_threads=False)
    auditor = Auditor(folder, rank, script)
    # Keras draws the first weights from this. So rank 0 begins as a worker does that is
    # alone, and their losses can be compared; unless the program chooses a seed itself.
    random.seed(rank)
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).resolve().parent)
    auditor.run()
    with contextlib.suppress(KeyboardInterrupt):
        auditor.report_end()


if __name__ == "__main__":
    work(sys.argv[1], sys.argv[2:])
