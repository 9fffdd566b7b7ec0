"""How results show themselves, in a notebook and in a terminal."""

import html
import re
import sys
from dataclasses import dataclass

PRE_STYLE = "white-space: pre-wrap; font-family: monospace; font-size: 13px"


def in_notebook() -> bool:
    """Is this code running in a Jupyter kernel?"""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return shell is not None and hasattr(shell, "kernel")


class Coloured:
    """A text that notebooks show with its syntax in colour, other places as it is.

    IPython.display.Code would bring a style sheet of 80 lines with each text.
    """

    def __init__(self, text: str, language: str):
        self.text = text
        self.language = language

    def __repr__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        from pygments import highlight
        from pygments.formatters import HtmlFormatter
        from pygments.lexers import get_lexer_by_name

        form = HtmlFormatter(noclasses=True, nobackground=True, prestyles=PRE_STYLE)
        return highlight(self.text, get_lexer_by_name(self.language), form)


COLOURS = {
    **dict.fromkeys(("ok", "right"), "green"),
    **dict.fromkeys(("limited", "not checked yet"), "yellow"),
    **dict.fromkeys(("missing", "wrong", "could not be checked"), "red"),
}


def rich_table(header: tuple[str, ...] | None, rows: list[tuple[str, ...]]):
    """A table for the terminal; words that say how something is get a colour, too."""
    from rich.table import Table
    from rich.text import Text

    columns = header or ("",) * len(rows[0])
    table = Table(*columns, show_header=header is not None)
    for row in rows:
        table.add_row(*(Text(cell, COLOURS.get(cell, "")) for cell in row))
    return table


def html_table(header: tuple[str, ...] | None, rows: list[tuple[str, ...]]) -> str:
    """The same for a notebook."""

    def cells(row: tuple[str, ...], tag: str) -> str:
        style = 'style="text-align: left; vertical-align: top; white-space: pre-wrap"'
        return "".join(f"<{tag} {style}>{marked(c)}</{tag}>" for c in row)

    head = f"<tr>{cells(header, 'th')}</tr>" if header else ""
    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    return f"<table>{head}{body}</table>"


def marked(text: str) -> str:
    """HTML of a text in which `code` stands between backticks."""
    return re.sub("`([^`\n]+)`", r"<code>\1</code>", html.escape(text))


@dataclass
class Shown:
    """A table that shows itself in a notebook and in a terminal."""

    header: tuple[str, ...]
    rows: list[tuple[str, ...]]

    def __rich__(self):
        return rich_table(self.header, self.rows)

    def __repr__(self) -> str:
        return "\n".join(" | ".join(row) for row in [self.header, *self.rows])

    def _repr_html_(self) -> str:
        return html_table(self.header, self.rows)
