"""Record what a worker of a Horovod program does: which collectives it calls from which
line, and how it trains.

Nothing is decided here; the judges compare the workers. Functions of Horovod get and
return what they would, except for what `interventions` names.
`patches.hook_horovod` has them call `collective`, `asked`, `remembered` or `wraps` of
the recorder that is at work.
"""

import contextlib
from pathlib import Path

from distcheck import events
from distcheck.events import MOST_ITEMS
from distcheck.recorder import interventions, metrics, patches
from distcheck.recorder.files import changes_in
from distcheck.recorder.interventions import METRIC_SHIFT
from distcheck.recorder.keras import KerasRecorder
from distcheck.recorder.tensors import elements_of, small_values
from distcheck.recorder.writer import frames

# The recorder of this process, also when its program has ended and graphs are built.
_at_work: "HorovodRecorder | None" = None


def prepare() -> None:
    """Import what the programs import, ready to be recorded.

    To be called once, before Horovod is imported, which it imports.
    """
    patches.hook_horovod(lambda: _at_work)


class HorovodRecorder(KerasRecorder):
    """Records what a worker of a Horovod program does."""

    schema = events.HOROVOD
    arrays = events.HOROVOD_ARRAYS
    metric_shift = METRIC_SHIFT  # with 0, metrics of validations would be left alone

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._reported: set[tuple] = set()
        self._answers: dict[tuple, int] = {}  # of Horovod, to who and how many we are
        self._before = self._there()  # files, by when they were changed
        self.collectives = 0  # that were called
        self._files: set[str] = set()  # that it had written by the end of an epoch
        self.building = False  # are only graphs built by now?

    @contextlib.contextmanager
    def at_work(self):
        """Record what the program does that runs in this block."""
        global _at_work
        import tensorflow as tf

        patches.run_eagerly()
        _at_work = self
        self.hook_devices()
        self.hook_training(tf)
        self.hook_callbacks(tf)
        self.intervene(tf)
        if self.graphs:
            self.graphs.watch()
        try:
            with tf.variable_creator_scope(self.create_variable):
                yield
        finally:
            self.report_end()

    def hook_callbacks(self, tf) -> None:
        """Record from now on what callbacks and evaluations do with metrics."""
        metrics.hook_callbacks(self, tf)

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
            answer = interventions.pretend_local_rank(
                self.scenario, self.rank, name, answer
            )
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
                return function(*args, **kwargs)  # a node of a graph that is built
            if self.building:
                return tensor  # the others have ended
            self.collectives += 1
            self.snapshot_before_exchange(tensors)
            root = kwargs.get("root_rank")
            small = small_values(tensors)
            if kind == "broadcast":
                self._broadcasts += 1
            facts = {"op": kind, "name": kwargs.get("name"), "root": root}
            facts["elements"] = sum(elements_of(t) for t in tensors)
            facts["line"] = self.line_of_callback() or self.line()
            self.event("collective_start", given=small, **facts)
            result = function(*args, **kwargs)
            results = result if isinstance(result, list | tuple) else [result]
            got = small_values(results) if small is not None else None
            if "allreduce" in kind and not self.has_updated():
                # A single number is a loss or a metric.
                self._given += [t for t in tensors if elements_of(t) > 1]
                self._reduced += [r for r in results if elements_of(r) > 1]
            if self.scenario.own_folders:
                interventions.share_files(self._home, self._before)
            self.event("collective_end", op=kind, got=got)
            return result

        return call

    def line_of_callback(self) -> int | None:
        """Where the program made the callback that is at work, if one is."""
        for frame in frames():
            if frame.f_code.co_filename == self.script:
                break
            line = self.made_in_line.get(id(frame.f_locals.get("self")))
            if line is not None:
                return line
        return None

    def wraps(self, name: str, function):
        """A distributed optimizer is made."""

        def wrap(*args, **kwargs):
            self.event("wrapped")
            return function(*args, **kwargs)

        return wrap

    # ------------------------------------------------------------ the end

    def report_end(self) -> None:
        if self._models:
            self.keep("end", self._weights())
        self.after_epoch()
        if self._files:
            self.event("files_written", files=sorted(self._files)[:MOST_ITEMS])

    def after_epoch(self) -> None:
        """Note what it has written by now: some is deleted in the end."""
        now = self._there()
        self._files |= {n for n, time in now.items() if time != self._before.get(n)}

    @property
    def _home(self) -> Path:
        return self.folder / f"rank.{self.rank}.home"

    def _there(self) -> dict[str, int]:
        """The files of its home, with the times of their last change, in ns."""
        return changes_in(self._home)

    def work_done(self) -> int:
        """Grows whenever the program trains."""
        return self._forwards + self._gradients.updates

    def only_building(self) -> None:
        """Record no more: let TensorFlow and Keras do what they do without this."""
        self.building = True
        self.restore()
