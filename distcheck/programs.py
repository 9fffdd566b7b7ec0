"""Programs as texts: reading them as Python does."""

import ast
import codecs
import io
import re
import sys
import threading
import tokenize
from pathlib import Path

from distcheck import errors, files

# CPython 3.11 counts the depth of syntax trees once for all threads: two that parse at
# the same time end in "AST constructor recursion depth mismatch".
_parsing = threading.Lock()


def as_python_reads_it(program: bytes) -> str:
    """The text of a program: what Python takes for a comment is one here, too.

    Raises SyntaxError for a program that declares another coding than UTF-8, and
    ValueError for one that is no UTF-8.
    """
    # To Python, a return ends a line as well: a coding may be declared behind it.
    program = program.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    coding, _ = tokenize.detect_encoding(io.BytesIO(program).readline)
    if codecs.lookup(coding).name not in ("utf-8", "utf-8-sig"):
        raise SyntaxError(
            f"it declares the coding {coding}, where UTF-8 is expected; save it as "
            "UTF-8, and take that line out"
        )
    return program.decode("utf-8-sig")


def syntax_tree(content: str | bytes, name: str) -> ast.Module:
    """The syntax tree of a text, also from several threads at once.

    Raises SyntaxError or ValueError, as ast.parse, also for what is nested too deeply.
    """
    with _parsing:
        try:
            tree = ast.parse(content, filename=name)
            if sys.version_info < (3, 11):
                ast.dump(tree)  # this parser reads deeper than anything else can look
            return tree
        except (RecursionError, MemoryError):
            # Python's parser has a stack of its own, and calls it memory.
            raise SyntaxError("it is nested too deeply for Python to read") from None


def parse_program(script: Path) -> ast.Module:
    """The syntax tree of a program.

    Raises UserError, with the line, for a file that is missing, is not UTF-8 text
    or is not Python.
    """
    try:
        return syntax_tree(script.read_bytes(), script.name)
    except IsADirectoryError:
        raise errors.UserError(
            f"{files.shown(script)} is a folder: name a program in it."
        ) from None
    except FileNotFoundError:
        if re.fullmatch(r"python[\d.]*", f"{script}"):
            raise errors.UserError(
                f"leave out `{script}`: name the program, and Python is started for it."
            ) from None
        raise errors.UserError(
            f"there is no program {files.shown(script)}. Programs are named relative "
            f"to the folder you are in, {Path.cwd().name}/."
        ) from None
    except SyntaxError as error:
        line = f", line {error.lineno}: `{(error.text or '').strip()}`"
        raise errors.UserError(
            f"{files.shown(script)} is not valid Python{line if error.lineno else ''}:"
            f" {error.msg}."
        ) from None
    except ValueError as error:
        raise errors.UserError(
            f"{files.shown(script)} is not a Python text file: {error}."
        ) from None
