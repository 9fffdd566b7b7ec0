"""Which files decide what code does: its own, and those of all that it can import.

What is kept of a result is kept under a hash of these. Only imports are followed: a
module that is run by its path, or imported by a name that is put together, is to be
named by whoever asks.
"""

import ast
import functools
import hashlib
from collections.abc import Iterable
from pathlib import Path

import grimp

import utils
from utils.base import course

PACKAGES = ("utils", "distcheck")


def digest(modules: Iterable[str], *others: Path) -> str:
    """A hash of the files of these modules and packages, of all that they can import,
    and of other files of the course, where there are such. Of Python, comments,
    docstrings and layout don't count."""
    paths = [*files_of(modules), *others]
    state = hashlib.sha256()
    for path in paths:
        if path.exists():
            content = _content(path)
            name = path.relative_to(course.PACKAGE_ROOT).as_posix()
            state.update(f"{name} {len(content)}\n".encode() + content)
    return state.hexdigest()


def _content(path: Path) -> bytes:
    """What is in a file, and of Python what it does."""
    content = path.read_bytes()
    if path.suffix != ".py":
        return content
    tree = ast.parse(content)
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in ast.walk(tree):
        if isinstance(node, documented) and ast.get_docstring(node) is not None:
            del node.body[0]
    return ast.dump(tree).encode()


def modules() -> set[str]:
    """All modules of the course."""
    return _graph().modules


def files_of(modules: Iterable[str]) -> list[Path]:
    """The files of these modules and packages, and of all that they can import."""
    graph = _graph()
    found: set[str] = set()
    for module in modules:
        for one in (module, *graph.find_descendants(module)):
            found |= {one, *graph.find_upstream_modules(one)}
    # Importing a module imports the packages that it is in.
    found |= {str(parent) for one in found for parent in _parents(one)}
    return sorted(map(_file_of, found))


def imported_by(program: str) -> set[str]:
    """The modules of the course that the imports in a program's text name."""
    known = modules()
    return {
        next(one for one in (name, *_parents(name)) if one in known)
        for name in _imports(program)
        if name.split(".")[0] in PACKAGES
    }


def _imports(program: str) -> set[str]:
    """What is imported in a program's text; names in `utils` with their modules."""
    try:
        tree = ast.parse(program)
    except (SyntaxError, ValueError):
        return set()
    named: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            named |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "utils":
            named |= {_home_of(alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            named |= {f"{node.module}.{alias.name}" for alias in node.names}
    return named


@functools.cache
def _graph() -> grimp.ImportGraph:
    """What imports what in the course."""
    graph = grimp.build_graph(*PACKAGES, cache_dir=None)
    for module in graph.find_modules_that_directly_import("utils"):
        # Grimp doesn't know where `from utils import NAME` leads.
        for name in _imports(_file_of(module).read_text(encoding="utf-8")):
            if name in graph.modules:
                graph.add_import(importer=module, imported=name)
    return graph


def _home_of(name: str) -> str:
    """The module that `from utils import NAME` leads to."""
    try:
        return utils.module_of(name)
    except AttributeError:
        return f"utils.{name}"


def _parents(module: str) -> list[str]:
    """The packages that a module is in, the nearest first."""
    words = module.split(".")
    return [".".join(words[:n]) for n in range(len(words) - 1, 0, -1)]


def _file_of(module: str) -> Path:
    path = course.PACKAGE_ROOT.joinpath(*module.split("."))
    file = path.with_suffix(".py")
    return file if file.exists() else path / "__init__.py"
