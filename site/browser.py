"""A real browser, driven by Playwright: this system's Chromium, without a window.

    with browser.started() as chromium:
        page = browser.opened(chromium, "http://127.0.0.1:8000/", width=390)
        page.title()

Nothing outside this machine can be reached from it, and what a page asks for or
complains of is kept.
"""

import contextlib
import functools
import http.server
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright
from playwright.sync_api import TimeoutError as TimedOut

NOTHING_OUTSIDE = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"


def found() -> str | None:
    """The path of Chromium, None where there is none."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next(filter(None, map(shutil.which, names)), None)


@contextlib.contextmanager
def started() -> Iterator[Browser]:
    """Chromium, from `with` to its end."""
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(
            executable_path=found(),
            chromium_sandbox=os.geteuid() != 0,  # it refuses to have one as root
            args=[NOTHING_OUTSIDE, "--disable-dev-shm-usage"],
        )


def opened(
    chromium: Browser,
    address: str,
    width: int = 1280,
    height: int = 900,
    dark: bool = False,
) -> Page:
    """A new tab, as a new visitor has it, with `address` in it; below a width of 600
    pixels it is a phone's.

    requests: the addresses that it asked for; complaints: what it wrote to its console
    as an error, and what it could not load.
    """
    page = chromium.new_page(
        viewport={"width": width, "height": height},
        is_mobile=width < 600,
        color_scheme="dark" if dark else "light",
    )
    page.requests, page.complaints = [], []

    def hear(message) -> None:
        if message.type == "error":
            page.complaints.append(f"{message.text} {message.location['url']}")

    page.on("request", lambda request: page.requests.append(request.url))
    page.on("console", hear)
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.on("dialog", lambda dialog: dialog.accept())  # whether to leave it unsaved
    page.goto(address)
    return page


def wait_for(page: Page, script: str, seconds: float = 30):
    """The first true value of a JavaScript expression. Raises TimeoutError, which says
    of what page and expression."""
    try:
        value = page.wait_for_function(script, timeout=1000 * seconds, polling=100)
    except TimedOut as late:
        shown = page.inner_text("body")[-2000:]
        raise TimeoutError(f"not within {seconds} s: {script}\n{shown}") from late
    return value.json_value()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments) -> None:
        pass


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve `folder` on this machine alone; the address, with a slash at its end."""
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()
