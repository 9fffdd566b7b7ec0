"""What notebooks and learners' programs import: `from utils import run, check, data`.

Each name lives in a room of its own below, or in `distcheck`, on which they all stand;
this is the one list of those that learners meet, and it says where. The rooms stand on
floors, and import from lower ones alone:

    distcheck <- base <- training <- running, lessons <- checking, cluster
    <- measure, grading <- figures <- cli

`setup` holds scripts that nobody imports.
"""

import importlib

_NAMES = {
    "run": "running.launch",
    "settings": "base.profiles",
    "audit": "distcheck.audit",
    "UserError": "distcheck.errors",
    "gpus": "distcheck.machine",
    "communication": "training.devices",
    "replica_devices": "training.devices",
    "Stopwatch": "training.stopwatch",
    "check": "checking.checks",
    "check_on_save": "checking.on_save",
    "doctor": "checking.doctor",
    "excerpt": "lessons.work",
    "need_steps": "lessons.work",
    "what_changed": "lessons.work",
    "write_steps": "lessons.work",
    "render": "lessons.markup",
    "claim": "lessons.claims",
    "beside_reference": "lessons.reference",
    "hint": "lessons.progress",
    "Progress": "lessons.progress",
    "Routes": "lessons.routes",
}
_MODULES = {
    module: room
    for room, modules in {
        "base": "course logs",
        "training": "data doodles leaderboard networks shards survival",
        "distcheck": "tasks",
        "running": "beside stall watch",
        "checking": "clinic",
        "cluster": "elastic handed_in namespaces recorded sagemaker slurm spark tried",
        "measure": "batch_sizes bench cost_model equality four_ways global_batch "
        "network_speed optimizers records scaling speedrun step_profile strategies "
        "timeline wires",
    }.items()
    for module in modules.split()
}


def module_of(name: str) -> str:
    """The module that has `name`, or is called so. Raises AttributeError for others."""
    if name in _NAMES:
        home = _NAMES[name]
    elif name in _MODULES:
        home = f"{_MODULES[name]}.{name}"
    else:
        raise AttributeError(f"module 'utils' has no attribute {name!r}")
    return home if home.startswith("distcheck.") else f"utils.{home}"


def __getattr__(name: str):
    """Import on first use: `import utils` must stay instant for every worker."""
    module = importlib.import_module(module_of(name))
    return getattr(module, name) if name in _NAMES else module


def __dir__() -> list[str]:
    return sorted([*_NAMES, *_MODULES])
