"""The metrics that Keras' callbacks read, and what they may do with them."""

from typing import Any

import numpy as np

from distcheck.recorder.writer import frames


class TrackedLogs(dict):
    """The metrics of an epoch, for one callback of a list after the other.

    outer: the one whose turn it is; read: the names that were looked at since then.
    What another one does with them, that the outer one has called, is reported when it
    has done.
    """

    # TensorFlow makes others of the kind from pairs alone.
    _base: type | tuple = ()
    _report: Any = None
    _prefix = ""
    outer: Any = None
    _inner: Any = None
    _facts: Any = None

    def __init__(self, *args):
        super().__init__(*args)
        self.read: set[str] = set()

    @classmethod
    def of(cls, metrics: dict, base: type, report, prefix: str = "") -> "TrackedLogs":
        """base: the class of all callbacks; report: is called with one of them, the
        metrics before it and after, and the names that it has read. prefix: of the
        names in that."""
        tracked = cls(metrics)
        tracked._base, tracked._report, tracked._prefix = base, report, prefix
        return tracked

    def begin(self, callback) -> dict[str, float]:
        """Its turn begins: return the metrics as they are now."""
        self.outer, self.read = callback, set()
        return self.plain()

    def plain(self) -> dict[str, float]:
        """Those of the metrics that are single numbers, as they are now."""
        return numbers_in({f"{self._prefix}{k}": v for k, v in dict.items(self)})

    def done(self) -> None:
        """The inner callback at work, if there is one, has done."""
        if self._inner is not None:
            callback, self._inner = self._inner, None
            self._report(callback, *self._facts)

    def _at_work(self) -> bool:
        """Is it an inner callback that reads or writes now? Then note it as such."""
        owners = (frame.f_locals.get("self") for frame in frames())
        callback = next((own for own in owners if isinstance(own, self._base)), None)
        inner = None if callback is self.outer else callback
        if inner is not self._inner:
            self.done()
            self._inner, self._facts = inner, (self.plain(), self.plain(), set())
        return inner is not None

    def _note_read(self, *names) -> None:
        names = {f"{self._prefix}{name}" for name in names}
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
        """Who copies or sends it gets the metrics, and nothing of the recorder's."""
        self._note_read(*super().keys())
        return dict, (dict(super().items()),)


def numbers_in(metrics: dict) -> dict[str, float]:
    """Those of the metrics that are single numbers."""
    return {k: float(v) for k, v in metrics.items() if np.ndim(v) == 0}
