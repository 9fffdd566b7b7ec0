"""The judges of single exercises; those of the six steps are in distcheck.

Each module registers its judges when it is imported; importing this package imports
them all.
"""

import importlib
import pkgutil

from utils.checking import recorders  # noqa: F401 (it registers their scenarios)

for _module in pkgutil.iter_modules(__path__, f"{__name__}."):
    importlib.import_module(_module.name)
