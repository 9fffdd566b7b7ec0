"""How a run looks while it runs: a live line in a notebook or a terminal.

In a notebook the line is one output that is rewritten, so that an executed notebook
holds only its last state. Where output goes to a file, a line is printed per epoch.
"""

import html
import sys
import time

from utils.base import course
from utils.base.show import PRE_STYLE, in_notebook
from utils.running.result import Run

TAIL_LINES = 10
BAR_CELLS = 20


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
