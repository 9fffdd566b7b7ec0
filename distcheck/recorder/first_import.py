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

from distcheck import keras_2

# What imports TensorFlow when it is imported, with all that is in these packages.
IMPORT_TENSORFLOW = ("tensorflow", "tf_keras", "horovod.tensorflow")
FOR_KERAS_3 = "horovod.keras"  # whatever TensorFlow comes with


@contextlib.contextmanager
def watched(tell: Callable[[str], None], more: tuple[str, ...] = ()) -> Iterator[None]:
    """Call `tell` with the module by whose import, in this block, the program gets
    Keras 3, if it does. more: packages that import TensorFlow, too."""

    def of_tensorflow() -> None:
        if not keras_2.is_chosen():
            tell("tensorflow")

    finders = (
        _FirstImport((*IMPORT_TENSORFLOW, *more), of_tensorflow),
        _FirstImport((FOR_KERAS_3,), lambda: tell(FOR_KERAS_3)),
    )
    sys.meta_path[:0] = finders
    try:
        yield
    finally:
        for finder in finders:
            finder.show()


class _FirstImport(MetaPathFinder, Loader):
    """Hides packages that are imported already, and tells when the first is imported
    again; from then on they are as they were."""

    def __init__(self, packages: tuple[str, ...], tell: Callable[[], None]):
        self.packages, self.tell = packages, tell
        names = [name for name in sys.modules if self._hides(name)]
        self.hidden = {name: sys.modules.pop(name) for name in names}

    def _hides(self, name: str) -> bool:
        return any(f"{name}.".startswith(f"{package}.") for package in self.packages)

    def show(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            sys.modules.update(self.hidden)

    def find_spec(self, name, path=None, target=None) -> ModuleSpec | None:
        if not self._hides(name):
            return None
        self.show()
        self.tell()
        return ModuleSpec(name, self) if name in self.hidden else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        self.former_spec = self.hidden[spec.name].__spec__
        return self.hidden[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.former_spec  # which the import has replaced
