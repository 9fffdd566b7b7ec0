"""The map of a check, in the docstring of `distcheck`, names what there is."""

import ast
import re
from pathlib import Path

import pytest

import distcheck
from utils.base import course

# A module, and names in it; or more names of the module above.
ROW = re.compile(r"    (?! )([\w.]+)(?: {2,}(\S.*))?| {30}(\S.*)")


def rows() -> list[tuple[str, list[str]]]:
    """Each module of the map, with the names in it."""
    found: list[tuple[str, list[str]]] = []
    for line in (distcheck.__doc__ or "").splitlines():
        if row := ROW.fullmatch(line):
            names = re.findall(r"[^,\s]+", row[2] or row[3] or "")
            if row[1]:
                found.append((row[1], names))
            else:
                found[-1][1].extend(names)
        else:
            assert not line.startswith(" "), line
    return found


def file_of(module: str) -> Path:
    name = module if module.startswith("utils.") else f"distcheck.{module}"
    path = course.PACKAGE_ROOT.joinpath(*name.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def has(tree: ast.AST, name: str) -> bool:
    """Is a function or a class of this dotted name defined there?"""
    first, _, rest = name.partition(".")
    kinds = (ast.FunctionDef, ast.ClassDef)
    body = getattr(tree, "body", [])
    found = [one for one in body if isinstance(one, kinds) and one.name == first]
    return any(not rest or has(one, rest) for one in found)


@pytest.mark.parametrize(("module", "names"), rows())
def test_what_the_map_names_is_there(module, names):
    tree = ast.parse(file_of(module).read_text())
    assert [name for name in names if not has(tree, name)] == []


def test_the_map_begins_with_the_command_and_has_the_judge():
    modules = [module for module, _ in rows()]
    assert modules[0] == "utils.cli"
    assert {"lab.server", "recorder.keras", "judges.steps.step_3"} <= {*modules}
