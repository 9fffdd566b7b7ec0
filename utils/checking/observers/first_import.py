"""Has a program chosen Keras 2 by the time that it first imports TensorFlow?

The lab has TensorFlow imported, with Keras 2, before any program begins. So what would
import TensorFlow is hidden, until the program imports some of it.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

from utils.training import keras_2

# What imports TensorFlow when it is imported, with all that is in these packages.
HIDDEN = (
    *("tensorflow", "tf_keras", "horovod.tensorflow", "horovod.keras"),
    *("utils.training.stopwatch", "utils.training.survival"),
)


@contextlib.contextmanager
def watched(tell: Callable[[], None]) -> Iterator[None]:
    """Call `tell` at the first import of TensorFlow in this block, should TensorFlow
    come with Keras 3 then."""
    hidden = {
        name: sys.modules.pop(name)
        for name in list(sys.modules)
        if any(f"{name}.".startswith(f"{package}.") for package in HIDDEN)
    }
    finder = _FirstImport(hidden, tell)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        finder.show()


class _FirstImport(MetaPathFinder, Loader):
    def __init__(self, hidden: dict[str, ModuleType], tell: Callable[[], None]):
        self.hidden, self.tell = hidden, tell

    def show(self) -> None:
        """Let all that is hidden be imported already, as it was."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            sys.modules.update(self.hidden)

    def find_spec(self, name, path=None, target=None) -> ModuleSpec | None:
        if name not in self.hidden:
            return None
        self.show()
        if not keras_2.is_chosen():
            self.tell()
        return ModuleSpec(name, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        self.former_spec = self.hidden[spec.name].__spec__
        return self.hidden[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.former_spec  # which the import has replaced
