"""What recorders have to keep to, and which scenarios they are for."""

import ast
import json
from dataclasses import asdict
from pathlib import Path

import pytest

from distcheck import scenarios
from distcheck.recorder.recorder import Recorder, recorder_of
from distcheck.scenarios import SCENARIOS, Scenario
from utils.base import course
from utils.checking import recorders  # noqa: F401 (it registers their scenarios)

ROOT = course.PACKAGE_ROOT
MODULES = [
    path
    for folder in ("distcheck/recorder", "utils/checking/recorders")
    for path in sorted((ROOT / folder).glob("*.py"))
    if path.name != "patches.py"
]
PRIVATE = (
    *("tensorflow.python", "tf_keras.src", "keras.src", "horovod._keras"),
    *("horovod.common.basics", "horovod.tensorflow.mpi_ops"),
)


def imported_by(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_only_patches_reach_into_private_modules(path):
    private = [n for n in imported_by(path) if f"{n}.".startswith(PRIVATE)]
    assert private == []


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_only_patches_use_private_names_of_others(path):
    assert private_names_in(path) - {"os._exit", "sys._getframe"} == set()


def private_names_in(path: Path) -> set[str]:
    """Attributes of objects that are not its own, and names of what it looks up."""
    tree = ast.parse(path.read_text())
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    own |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            owner = ast.unparse(node.value)
            if owner not in ("self", "super()") and node.attr not in own:
                names.add(f"{owner}.{node.attr}")
        if isinstance(node, ast.Call):
            arguments = [n.value for n in node.args if isinstance(n, ast.Constant)]
            names |= {n for n in arguments if isinstance(n, str) and is_private(n)}
    return names


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name.isidentifier()


def test_patches_are_where_the_private_modules_are():
    """Else the test above would see nothing."""
    names = imported_by(ROOT / "distcheck" / "recorder" / "patches.py")
    for private in PRIVATE:
        assert [name for name in names if name.startswith(private)], private
    used = private_names_in(ROOT / "distcheck" / "recorder" / "patches.py")
    assert {"context._physical_devices", "_allreduce_grads"} <= used


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_has_a_recorder_and_survives_the_way_to_the_lab(name):
    scenario = SCENARIOS[name]
    recorder = recorder_of(scenario)
    assert recorder is None or issubclass(recorder, Recorder)
    received = Scenario(**json.loads(json.dumps(asdict(scenario))))
    assert json.dumps(asdict(received)) == json.dumps(asdict(scenario))
    assert recorder_of(received) is recorder
    assert not scenario.after or scenario.after in SCENARIOS


def test_a_name_of_a_scenario_is_taken_once():
    with pytest.raises(ValueError, match="'two'"):
        scenarios.register({"two": Scenario(2)})
