"""The judges of the six Horovod steps, a module for each.

Each module registers its judge when it is imported; importing this package imports them
all.
"""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__, f"{__name__}."):
    importlib.import_module(_module.name)
