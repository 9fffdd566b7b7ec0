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


def find(tree: ast.AST | None, name: str) -> ast.AST | None:
    """The function or the class of this dotted name; None if it isn't there."""
    for part in name.split("."):
        body = getattr(tree, "body", [])
        tree = next((one for one in body if getattr(one, "name", "") == part), None)
    return tree


def lines_of(node) -> int:
    return node.end_lineno - node.lineno + 1


@pytest.mark.parametrize(("module", "names"), rows())
def test_what_the_map_names_is_there(module, names):
    tree = ast.parse(file_of(module).read_text())
    assert [name for name in names if not find(tree, name)] == []


def test_the_map_has_as_many_lines_as_can_be_read_in_an_hour():
    total = 0
    for module, names in rows():
        text = file_of(module).read_text()
        tree = ast.parse(text)
        parts = [find(tree, name) for name in names]
        docstring = tree.body[:1] if ast.get_docstring(tree) else []
        total += sum(map(lines_of, docstring + parts)) if names else text.count("\n")
    assert total <= 2500


def test_the_map_begins_with_the_command_and_has_the_judge():
    modules = [module for module, _ in rows()]
    assert modules[0] == "utils.cli"
    assert {"lab.server", "recorder.keras", "judges.steps.step_3"} <= {*modules}
