"""A real browser, driven: Chromium without a window, by its own protocol.

    with Browser() as browser:
        page = browser.open("http://127.0.0.1:8000/", width=390)
        page.evaluate("document.title")

Nothing outside this machine can be reached from it, and what a page asks for or
complains of is kept.
"""

import base64
import contextlib
import functools
import http.server
import itertools
import json
import os
import shutil
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import websocket

from utils.base import supervise

TIME_LIMIT = 30.0  # seconds, for what a page should do at once
CTRL, SHIFT = 2, 8
# The numbers that old programs know keys by; those of letters are their capitals'.
NUMBERS = {
    "Backspace": 8,
    "Tab": 9,
    "Enter": 13,
    "End": 35,
    "Home": 36,
    "ArrowDown": 40,
}


def found() -> str | None:
    """The path of Chromium, None where there is none."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next(filter(None, map(shutil.which, names)), None)


class Page:
    """A tab. requests: the addresses that it asked for; complaints: what it wrote to
    its console as an error, and what it could not load."""

    def __init__(self, address: str):
        self._socket = websocket.create_connection(
            address, timeout=TIME_LIMIT, suppress_origin=True
        )
        self._numbers = itertools.count(1)
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self._loaded = False
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)

    def call(self, method: str, **parameters) -> dict:
        """What the browser answers. Raises RuntimeError when it refuses."""
        number = self._ask(method, **parameters)
        while (answer := self._next()).get("id") != number:
            pass
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def _ask(self, method: str, **parameters) -> int:
        """The number that the answer will have."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        self._socket.send(json.dumps(message))
        return number

    def _next(self) -> dict:
        """The next message; what happened on the page is noted."""
        message = json.loads(self._socket.recv())
        facts = message.get("params", {})
        match message.get("method"):
            case "Page.loadEventFired":
                self._loaded = True
            case "Network.requestWillBeSent":
                self.requests.append(facts["request"]["url"])
            case "Page.javascriptDialogOpening":  # it asks whether to leave it unsaved
                self._ask("Page.handleJavaScriptDialog", accept=True)
            case "Runtime.exceptionThrown":
                details = facts["exceptionDetails"]
                thrown = details.get("exception", {}).get("description", "")
                self.complaints.append(f"{details['text']} {thrown}")
            case "Runtime.consoleAPICalled" if facts["type"] == "error":
                words = [str(item.get("value")) for item in facts["args"]]
                self.complaints.append(" ".join(words))
            case "Log.entryAdded" if facts["entry"]["level"] == "error":
                entry = facts["entry"]
                self.complaints.append(f"{entry['text']} {entry.get('url', '')}")
        return message

    def go(self, address: str) -> None:
        """Open `address`, and wait until it is there with all that it loads."""
        self._loaded = False
        self.call("Page.navigate", url=address)
        while not self._loaded:
            self._next()

    def resize(self, width: int, height: int = 900, dark: bool = False) -> None:
        """Make the window `width` by `height` pixels; below 600 it is a phone's."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def evaluate(self, script: str):
        """The value of a JavaScript expression, awaited if it is a promise."""
        answer = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{script}: {answer['result'].get('description')}")
        return answer["result"].get("value")

    def wait_for(self, script: str, seconds: float = TIME_LIMIT):
        """The first true value of an expression. Raises TimeoutError without one."""
        end = time.monotonic() + seconds
        while not (value := self.evaluate(script)):
            if time.monotonic() > end:
                raise TimeoutError(f"not true in {seconds:g} s: {script}")
            time.sleep(0.1)
        return value

    def click(self, selector: str) -> None:
        """Click with the mouse on the middle of an element, once it is there."""
        x, y = self.wait_for(
            "(box => box?.width && [box.x + box.width / 2, box.y + box.height / 2])"
            f"(document.querySelector({json.dumps(selector)})?.getBoundingClientRect())"
        )
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            button = "none" if kind == "mouseMoved" else "left"
            place = {"x": x, "y": y, "button": button, "clickCount": 1}
            self.call("Input.dispatchMouseEvent", type=kind, **place)

    def press(self, key: str, held: int = 0) -> None:
        """Press and release a key, such as "Tab" or "a". held: CTRL or SHIFT, if that
        is down meanwhile."""
        number = NUMBERS.get(key) or ord(key.upper())
        for kind in ("keyDown", "keyUp"):
            names = {"key": key, "code": key, "windowsVirtualKeyCode": number}
            self.call("Input.dispatchKeyEvent", type=kind, modifiers=held, **names)

    def type(self, text: str) -> None:
        """Put a text in where the cursor is, as a paste or an input method does."""
        self.call("Input.insertText", text=text)

    def screenshot(self, path: Path) -> None:
        """Keep what is in the window as a PNG."""
        answer = self.call("Page.captureScreenshot", format="png")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(answer["data"]))

    def close(self) -> None:
        self._socket.close()


class Browser(contextlib.AbstractContextManager):
    """Chromium, from `with` to its end, with an empty profile of its own."""

    def __init__(self, time_limit: float = 300):
        self._stack = contextlib.ExitStack()
        home = self._stack.enter_context(tempfile.TemporaryDirectory())
        command = [found(), "--headless=new", "--remote-debugging-port=0"]
        command += [f"--user-data-dir={home}", "--no-first-run", "--disable-gpu"]
        command += ["--disable-background-networking", "--disable-component-update"]
        command += ["--disable-dev-shm-usage", "--hide-scrollbars", "--disable-sync"]
        command += ["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]
        command += ["--no-sandbox"] if os.geteuid() == 0 else []
        log = self._stack.enter_context(Path(home, "log").open("w"))
        self._stack.enter_context(
            supervise.owned(
                [*command, "about:blank"], time_limit, stdout=log, stderr=log
            )
        )
        told = Path(home, "DevToolsActivePort")
        end = time.monotonic() + TIME_LIMIT
        while not (told.exists() and told.read_text().count("\n")):
            if time.monotonic() > end:
                said = Path(home, "log").read_text()
                self._stack.close()
                raise TimeoutError(f"Chromium did not start: {said[-500:]}")
            time.sleep(0.1)
        self._address = f"127.0.0.1:{told.read_text().split()[0]}"

    def open(self, address: str, width: int = 1280, **window) -> Page:
        """A new tab, `width` pixels wide, with `address` in it."""
        request = urllib.request.Request(
            f"http://{self._address}/json/new?about:blank", method="PUT"
        )
        with urllib.request.urlopen(request, timeout=TIME_LIMIT) as answer:
            tab = json.load(answer)
        page = Page(tab["webSocketDebuggerUrl"])
        self._stack.callback(page.close)
        page.resize(width, **window)
        page.go(address)
        return page

    def __exit__(self, *error) -> None:
        self._stack.close()


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
