"""What an audited program asks of Horovod."""

import sys

from distcheck.recorder import patches
from distcheck.recorder.recorder import Recorder
from distcheck.recorder.tensors import elements_of

MODULES = ("horovod.tensorflow", "horovod.tensorflow.keras", "horovod.keras")


class HorovodCalls:
    """What an audited program asks of Horovod.

    collectives: how many it called from Python, or built into a graph. reduced: numbers
    that it gave to all-reduce since somebody set this to 0. size: as last noted.
    """

    def __init__(self, recorder: Recorder):
        self._recorder = recorder
        self.collectives = self.reduced = 0
        self.size: int | None = None

    def note_size(self) -> None:
        """Ask how many workers there are: it may be shut down before the end."""
        module = sys.modules.get("horovod.tensorflow")
        if module is not None and module.is_initialized():
            self.size = module.size()

    def hook_mpi_ops(self, module) -> None:
        """Count collectives from now on. module: `horovod.tensorflow.mpi_ops`."""
        for name, op in patches.collectives(module.MPI_LIB).items():
            if op in ("allreduce", "grouped_allreduce"):
                self._recorder.before(module.MPI_LIB, name, self._reduces)
            self._recorder.before(module.MPI_LIB, name, self._meets)

    def _meets(self, *args, **kwargs) -> None:
        self.collectives += 1
        self._recorder.beat()

    def _reduces(self, tensors, *args, **kwargs) -> None:
        flat = tensors if isinstance(tensors, list | tuple) else [tensors]
        self.reduced += sum(map(elements_of, flat))

    def hook_functions(self, module) -> None:
        """Report broadcasts of no variables: a model without any is no model yet.
        module: `horovod.tensorflow.functions`."""
        original = module.broadcast_variables

        def broadcast(original):
            def observed(variables, *args, **kwargs):
                variables = list(variables)  # of which there may be one pass only
                if not variables:
                    where = self._recorder.line()
                    self._recorder.event("empty broadcast", where=where)
                return original(variables, *args, **kwargs)

            return observed

        self._recorder.replace(module, "broadcast_variables", broadcast)
        for name in MODULES:  # where it was imported from there already
            other = sys.modules.get(name)
            if other and vars(other).get("broadcast_variables") is original:
                vars(other)["broadcast_variables"] = module.broadcast_variables
