"""How a run looks while it runs: a live line in a notebook or a terminal.

In a notebook the line is one output that is rewritten, so that an executed notebook
holds only its last state. Where output goes to a file, a line is printed per epoch.
"""

import html
import re
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from utils import course

if TYPE_CHECKING:
    from utils.launch import Run

TAIL_LINES = 10
BAR_CELLS = 20
PRE_STYLE = "white-space: pre-wrap; font-family: monospace; font-size: 13px"


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def describe(progress: dict, seconds: float) -> str:
    """The live line: epoch, images per second and time left, as far as known."""
    if "epoch" not in progress:
        return f"starting ({_clock(seconds)}) ..."
    done = progress.get("done", 0.0)
    bar = "#" * round(done * BAR_CELLS)
    line = f"epoch {progress['epoch']}/{progress['epochs']} [{bar:.<{BAR_CELLS}}]"
    if progress.get("images_per_second"):
        line += f" {progress['images_per_second']:,.0f} images/s,"
    if "seconds_left" in progress:
        return f"{line} {_clock(progress['seconds_left'])} left"
    return f"{line} {_clock(seconds)} so far"


def in_notebook() -> bool:
    """Is this code running in a Jupyter kernel?"""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return shell is not None and hasattr(shell, "kernel")


class Display:
    """Shows a run from start to end: use as a context manager, call `update`."""

    def __init__(self, run: "Run", quiet: bool = False):
        self.run = run
        self.quiet = quiet
        self.started = time.monotonic()
        self.printed_epoch = 0
        self.handle = self.live = None

    def __enter__(self):
        if self.quiet:
            return self
        if in_notebook():
            from IPython.display import display

            self.handle = display(
                self._bundle("starting ..."), raw=True, display_id=True
            )
        else:
            print(f"$ {self.run.command}", flush=True)
            if sys.stdout.isatty():
                from rich.live import Live

                self.live = Live(transient=True, refresh_per_second=5)
                self.live.start()
        return self

    def update(self, progress: dict) -> None:
        """Show the progress so far; see `describe` for its keys."""
        if self.quiet:
            return
        seconds = time.monotonic() - self.started
        if self.handle:
            self.handle.update(self._bundle(describe(progress, seconds)), raw=True)
        elif self.live:
            from rich.text import Text

            self.live.update(Text(describe(progress, seconds)))
        elif progress.get("epoch", 0) > self.printed_epoch:
            self.printed_epoch = progress["epoch"]
            print(describe(progress, seconds), flush=True)

    def __exit__(self, *error):
        if self.quiet:
            return
        if self.live:
            self.live.stop()
        closing = self._closing()
        if self.handle:
            self.handle.update(self._bundle(closing), raw=True)
        else:
            print(closing, flush=True)

    def _closing(self) -> str:
        """At most ten lines of output, the notices, and a line that sums up."""
        run = self.run
        parts = [run.tail(TAIL_LINES)] if run.status == 0 else []
        parts += [f"NOTICE: {text}" for text in run.notices]
        many = "s" * (run.workers > 1)
        summary = f"{run.workers} worker{many}, {run.seconds:.0f} s"
        parts.append(f"{summary}, log: {course.shown(run.log)}")
        return "\n".join(part for part in parts if part)

    def _bundle(self, text: str) -> dict[str, str]:
        plain = f"$ {self.run.command}\n{text}"
        return {
            "text/plain": plain,
            "text/html": f'<pre style="{PRE_STYLE}">{html.escape(plain)}</pre>',
        }


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
