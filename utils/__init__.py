"""The course's own library. Notebooks import these names from here."""

import importlib

_HOME = {
    "run": "launch",
    "settings": "profiles",
    "excerpt": "steps",
    "need_steps": "steps",
    "what_changed": "steps",
    "hint": "steps",
    "check": "checks",
    "Progress": "progress",
    "Leaderboard": "leaderboard",
}


def __getattr__(name: str):
    """Import on first use: `import utils` must stay instant for every worker."""
    if name in _HOME:
        return getattr(importlib.import_module(f"utils.{_HOME[name]}"), name)
    raise AttributeError(f"module 'utils' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(_HOME)
