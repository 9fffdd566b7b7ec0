"""The judges of the six Horovod steps, in a module for each, `step_1` to `step_6`, and
what they share, in `common`.

Importing this package imports them all, and so registers the judges.
"""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__, f"{__name__}."):
    importlib.import_module(_module.name)
