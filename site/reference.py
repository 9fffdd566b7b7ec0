"""Pages made from code: the command `course` from its help, what learners import from
its docstrings. Nothing is imported for the latter but its text."""

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import typer

import utils
from utils import cli
from utils.base import course

# -------------------------------------------------------------- the command line


def commands() -> str:
    """All commands of `course`, in Markdown."""
    group = typer.main.get_command(cli.app)
    context = typer.Context(group, info_name="course")
    parts = [
        "# The command `course`\n",
        "`course COMMAND --help` says the same in a terminal. Exit status: 0 yes, "
        "1 no, 2 used wrongly.\n",
    ]
    for name, command in group.commands.items():
        parts += _command(
            name, command, typer.Context(command, parent=context, info_name=name)
        )
    return "\n".join(parts)


def _command(name: str, command, context: typer.Context) -> Iterator[str]:
    usage = context.get_usage().removeprefix("Usage: ")
    yield f"## course {name}\n"
    yield f"```text\n{' '.join(usage.split())}\n```\n"
    yield f"{inspect.cleandoc(command.help or '')}\n"
    rows = [_parameter(parameter) for parameter in command.params]
    if rows:
        yield "| Argument or option | What it says |\n| --- | --- |"
        yield "\n".join(rows) + "\n"


def _parameter(parameter) -> str:
    if parameter.param_type_name == "option":
        value = "" if parameter.is_flag else " VALUE"
        names = ", ".join(f"`{name}{value}`" for name in parameter.opts)
    else:
        names = f"`{parameter.name}`"
    help = " ".join((getattr(parameter, "help", "") or "").split())
    if parameter.default not in (None, False, ()) and not parameter.required:
        help += f" Default: `{parameter.default}`."
    return f"| {names} | {help} |"


# -------------------------------------------------------------- Python


def names() -> str:
    """All names of `from utils import ...`, in Markdown."""
    parts = [
        "# In Python: `from utils import ...`\n",
        "What the notebooks import, and programs may. The functions first, then the "
        "modules with what is in them.\n",
        "## Functions and classes\n",
    ]
    for name in sorted(utils._NAMES, key=str.lower):
        tree = _tree(name)
        (node,) = (node for node in tree.body if getattr(node, "name", "") == name)
        parts += _documented(node, "###")
    parts.append("## Modules\n")
    for name in sorted(utils._MODULES):
        tree = _tree(name)
        parts += [f"### {name}\n", _markdown(ast.get_docstring(tree) or "")]
        for node in tree.body:
            if _public(node):
                parts += _documented(node, "####", f"{name}.")
    return "\n".join(parts)


def _tree(name: str) -> ast.Module:
    """Of the module that has a name of `utils`, or is called so."""
    path = Path(course.PACKAGE_ROOT, *utils.module_of(name).split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(path.read_text(encoding="utf-8"))


def _public(node: ast.stmt) -> bool:
    """Is it a function or a class that is explained, for all to use?"""
    if not isinstance(node, (ast.FunctionDef, ast.ClassDef)) or node.name == "main":
        return False
    return not node.name.startswith("_") and ast.get_docstring(node) is not None


def _documented(node: ast.stmt, level: str, prefix: str = "") -> Iterator[str]:
    yield f"{level} {prefix}{node.name}\n"
    yield f"```python\n{_signature(node)}\n```\n"
    yield _markdown(ast.get_docstring(node) or "")
    if isinstance(node, ast.ClassDef):
        for method in filter(_public, node.body):
            yield f"**{node.name}.{method.name}**\n"
            yield f"```python\n{_signature(method)}\n```\n"
            yield _markdown(ast.get_docstring(method) or "")


def _signature(node: ast.stmt) -> str:
    """The lines up to the colon, without what makes them long: the body."""
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(map(ast.unparse, node.bases))
        return f"class {node.name}({bases})" if bases else f"class {node.name}"
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    line = f"{node.name}({ast.unparse(node.args)}){returns}"
    if len(line) <= 80:
        return line
    given = node.args  # one of them a line
    plain = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(plain) - len(given.defaults)) + given.defaults
    arguments = [_argument(*pair) for pair in zip(plain, defaults, strict=True)]
    if given.vararg:
        arguments.append(f"*{ast.unparse(given.vararg)}")
    elif given.kwonlyargs:
        arguments.append("*")
    pairs = zip(given.kwonlyargs, given.kw_defaults, strict=True)
    arguments += [_argument(*pair) for pair in pairs]
    if given.kwarg:
        arguments.append(f"**{ast.unparse(given.kwarg)}")
    lines = "".join(f"    {argument},\n" for argument in arguments)
    return f"{node.name}(\n{lines}){returns}"


def _argument(name: ast.arg, default: ast.expr | None) -> str:
    equals = " = " if name.annotation else "="
    return ast.unparse(name) + (f"{equals}{ast.unparse(default)}" if default else "")


def _markdown(docstring: str) -> str:
    """A docstring as Markdown: it is that, but for what MyST would take as markup."""
    return docstring.replace("<", r"\<") + "\n"
