"""How results show themselves, in a notebook and in a terminal.

A `Page` does so by its parts: sentences, tables (`Table`) and programs (`Code`).
"""

import html
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass

PRE_STYLE = "white-space: pre-wrap; font-family: monospace; font-size: 13px"
# Words that say how something is.
STATES = {
    **dict.fromkeys(("ok", "right"), "green"),
    **dict.fromkeys(("limited", "not checked yet"), "yellow"),
    **dict.fromkeys(("missing", "wrong", "could not be checked"), "red"),
}


def in_notebook() -> bool:
    """Is this code running in a Jupyter kernel?"""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return shell is not None and hasattr(shell, "kernel")


def marked(text: str) -> str:
    """HTML of a text in which `code` stands between backticks."""
    return re.sub("`([^`\n]+)`", r"<code>\1</code>", html.escape(text))


@dataclass(frozen=True)
class Code:
    """A text with its syntax in color. summary: a notebook hides it behind that.

    IPython.display.Code would bring a style sheet of 80 lines with each text.
    """

    text: str
    language: str
    summary: str = ""

    def __rich__(self):
        from rich.syntax import Syntax

        return Syntax(self.text, self.language)

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        from pygments import highlight
        from pygments.formatters import HtmlFormatter
        from pygments.lexers import get_lexer_by_name

        form = HtmlFormatter(noclasses=True, nobackground=True, prestyles=PRE_STYLE)
        page = highlight(self.text, get_lexer_by_name(self.language), form)
        if not self.summary:
            return page
        return f"<details><summary>{marked(self.summary)}</summary>{page}</details>"


@dataclass(frozen=True)
class Table:
    """Rows of texts; cells that say how something is are colored in a terminal."""

    header: Sequence[str] | None
    rows: Sequence[Sequence[str]]

    def __rich__(self):
        from rich.table import Table
        from rich.text import Text

        columns = self.header or ("",) * len(self.rows[0])
        table = Table(show_header=self.header is not None)
        for column in columns:  # a long word, FILE:LINE for example, is broken, not cut
            table.add_column(column, overflow="fold")
        for row in self.rows:
            table.add_row(*(Text(cell, STATES.get(cell, "")) for cell in row))
        return table

    def __repr__(self) -> str:
        rows = [self.header, *self.rows] if self.header else self.rows
        return "\n".join(" | ".join(row) for row in rows)

    def _repr_html_(self) -> str:
        style = 'style="text-align: left; vertical-align: top; white-space: pre-wrap"'

        def cells(row: Sequence[str], tag: str) -> str:
            return "".join(f"<{tag} {style}>{marked(c)}</{tag}>" for c in row)

        head = f"<tr>{cells(self.header, 'th')}</tr>" if self.header else ""
        body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in self.rows)
        return f"<table>{head}{body}</table>"


class Page:
    """Parts, one below the other. Those who inherit may have `parts` of their own."""

    parts: Sequence[str | Code | Table] = ()

    def __init__(self, *parts: str | Code | Table):
        self.parts = parts

    def __rich__(self):
        from rich.console import Group
        from rich.text import Text

        return Group(*(Text(p) if isinstance(p, str) else p for p in self.parts))

    def __repr__(self) -> str:
        return "\n".join(p if isinstance(p, str) else repr(p) for p in self.parts)

    def _repr_html_(self) -> str:
        return "".join(
            f"<p>{marked(part)}</p>" if isinstance(part, str) else part._repr_html_()
            for part in self.parts
        )
