"""Lets TensorFlow's messages heed TF_CPP_MIN_LOG_LEVEL while it is imported, too.

They don't of themselves (tensorflow#100442), so each process would begin with what
sounds like errors although nothing is wrong. The environment's start-up file asks for
this where it sets that variable; the set-up puts this file beside it.
"""

import os
import re
import sys
import tempfile
from importlib.machinery import PathFinder

MESSAGE = re.compile(rb"[IWE]\d{4} |WARNING: All log messages before absl::")


class QuietImport:
    """Imports TensorFlow; of what that prints to stderr, its messages are left out, and
    all the rest is printed as soon as it is imported."""

    def find_spec(self, name, path=None, target=None):
        if name != "tensorflow":
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None:
            self.loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self.loader
        with tempfile.TemporaryFile() as printed:
            stderr = os.dup(2)
            os.dup2(printed.fileno(), 2)
            try:
                self.loader.exec_module(module)
            finally:
                os.dup2(stderr, 2)
                os.close(stderr)
                printed.seek(0)
                for line in printed:
                    if not MESSAGE.match(line):
                        os.write(2, line)


def install():
    """From now on, for the first import of TensorFlow in this process."""
    sys.meta_path.insert(0, QuietImport())
