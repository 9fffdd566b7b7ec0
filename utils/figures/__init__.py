"""All figures: a module for each part of the course, one style for all of them.

Each function returns its figure, which a cell shows by ending with it. It may use
everything but the command line; nothing but that may use it.
"""

import importlib

_MODULES = (
    *("accuracy", "capstone", "cluster", "diagrams", "elastic", "feeding"),
    *("frameworks", "machine", "memory", "platforms", "speed", "strategies"),
    *("training", "wires", "workers"),
)


def __getattr__(name: str):
    """Import on first use: each room's figures need what they draw."""
    if name in _MODULES:
        return importlib.import_module(f"utils.figures.{name}")
    raise AttributeError(f"module 'utils.figures' has no attribute {name!r}")
