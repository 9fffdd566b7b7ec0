"""Recorders of single exercises, with the scenarios that these are for.

Each module has one, and registers its scenarios when it is imported; importing this
package imports them all. A program that is being graded sees these modules and no
judge.
"""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__, f"{__name__}."):
    importlib.import_module(_module.name)
