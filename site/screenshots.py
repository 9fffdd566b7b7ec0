"""Take the pictures of the site and the handbook anew, from the real thing:
`make screenshots`.

JupyterLab runs in a copy of the course, as a learner's would who has just begun; the
pages are those that `make site` has built; the class is a part of that of
`tests/make_class.py`, graded here.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import browser
from browser import Browser, wait_for
from distcheck import files, supervise

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
PICTURES = HERE / "screenshots"
HANDBOOK = ROOT / "handbook"
SETTINGS = ROOT / "utils" / "setup" / "jupyterlab"
WORKSPACE = SETTINGS / "workspace.json"
HTML = ROOT / "build" / "site" / "html"
SIZE = {"width": 1280, "height": 800}
WIDE = {"width": 1440, "height": 900}  # for a lesson beside its exercise
TIME_LIMIT = 600.0  # seconds, for one thing to happen on a busy machine
TOGETHER = 3 * TIME_LIMIT  # seconds, for a program that does several

LESSON = "notebooks/02_share_the_gradients.html"
INSTRUCTORS = "handbook/05_step_3_average_the_gradients.html"
NOTEBOOK = "notebooks/01_train_on_one_device.ipynb"

# Finished; a step before that; with a path out of the folder; nothing handed in.
CLASS = ("Ada.py", "Edda.py", "Trudy.zip", "Xenia")
LEARNER = "Edda"

# True once nothing fades or moves any more; and once the ring is in the window as well.
STILL = "document.getAnimations().every(each => each.playState !== 'running')"
RING = f"""(() => {{
    const ring = document.querySelector("#a-ring");
    const there = ring.getBoundingClientRect().top;
    ring.scrollIntoView({{behavior: "instant"}});
    return there >= 0 && there < 200 && {STILL};
}})()"""

# True once the cell that is at work has trained some batches, and stands in the window:
# JupyterLab draws only cells in or near it, and moves things about while it does.
AT_WORK = """(async notebook => {
    const at = notebook.widgets.findIndex(({model}) =>
        model.executionState === "running"
        && JSON.stringify(model.outputs.toJSON()).includes("images/s"));
    if (at < 0) return false;
    const {top, bottom} = notebook.widgets[at].node.getBoundingClientRect();
    const middle = (top + bottom) / 2 / window.innerHeight;
    if (middle > 0.3 && middle < 0.7) return true;
    await notebook.scrollToItem(at, "center");
    return false;
})(jupyterapp.shell.currentWidget.content)"""


def pages(chromium: Browser) -> None:
    """A lesson by day and by night; a page of the handbook; the landing page, on a
    screen and on a phone."""
    with browser.served(HTML) as address:
        for dark, name in ((False, "lesson"), (True, "lesson_dark")):
            page = browser.opened(chromium, address + LESSON, **SIZE, dark=dark)
            wait_for(page, RING)
            page.screenshot(path=PICTURES / f"{name}.png")
        for name, place, width in (
            ("handbook", INSTRUCTORS, SIZE["width"]),
            ("landing", "", SIZE["width"]),
            ("phone", "", 390),
        ):
            page = browser.opened(chromium, address + place, width, SIZE["height"])
            wait_for(page, STILL)
            page.screenshot(path=PICTURES / f"{name}.png")


def graded(folder: Path) -> Path:
    """Grade a small class in the empty `folder`; the folder with its gradebook."""
    made, handed_in, grades = (folder / name for name in ("all", "class", "grades"))
    make = [sys.executable, ROOT / "tests" / "make_class.py", made]
    subprocess.run(make, check=True, timeout=TIME_LIMIT)
    handed_in.mkdir()
    for name in CLASS:
        shutil.move(made / name, handed_in)
    grade = [sys.executable, "-m", "utils.cli", "grade", handed_in, "--out", grades]
    subprocess.run(grade, check=True, timeout=TOGETHER)
    return grades


def gradebook(chromium: Browser, grades: Path) -> None:
    """The page of a graded class, and that of one learner."""
    with browser.served(grades) as address:
        page = browser.opened(chromium, f"{address}index.html", **SIZE)
        page.screenshot(path=HANDBOOK / "gradebook.png")
        page.click(f"//a[bdi='{LEARNER}']")
        page.screenshot(path=HANDBOOK / "learner.png")


@contextlib.contextmanager
def lab(time_limit: float = TOGETHER) -> Iterator[tuple[str, Path]]:
    """JupyterLab as it first starts, in a copy of the course: its address, the copy."""
    with files.scratch() as scratch:
        copy = scratch / "course"
        for name in ("notebooks", "exercises", "solutions"):
            shutil.copytree(ROOT / name, copy / name)
        environment = os.environ | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "COURSE_PROFILE": "ci",
            "JUPYTERLAB_SETTINGS_DIR": str(scratch / "settings"),
            "JUPYTER_CONFIG_DIR": str(scratch / "config"),
            "JUPYTER_RUNTIME_DIR": str(scratch / "runtime"),
            "IPYTHONDIR": str(scratch / "ipython"),
        }
        # The environment has settings and a workspace, too, but maybe older ones, or
        # as a learner has changed them.
        jupyter = [sys.executable, "-m", "jupyter", "lab"]
        where = f"workspaces_dir={scratch / 'workspaces'}"
        opened = ["workspaces", "import", f"--LabWorkspaceImportApp.{where}"]
        opened += ["--name", "default", str(WORKSPACE)]
        subprocess.run(
            [*jupyter, *opened], check=True, env=environment, timeout=time_limit
        )
        command = [*jupyter, "--no-browser", f"--LabApp.{where}"]
        command += [f"--LabApp.app_settings_dir={SETTINGS}"]
        command += [f"--config={SETTINGS / 'server.json'}"]
        command += ["--allow-root", "--port=0", "--ip=127.0.0.1"]
        command += ["--IdentityProvider.token=", "--LabApp.expose_app_in_browser=True"]
        log = scratch / "log"
        with (
            log.open("w") as said,
            supervise.owned(
                command, time_limit, cwd=copy, env=environment, stdout=said, stderr=said
            ),
        ):
            yield _address(log), copy


def _address(log: Path) -> str:
    """Where a server that writes to `log` answers, once it does."""
    end = time.monotonic() + TIME_LIMIT
    while time.monotonic() < end:
        found = re.search(r"http://127\.0\.0\.1:\d+/", log.read_text())
        if found:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(found[0] + "api", timeout=5).close()
                return found[0]
        time.sleep(0.2)
    raise TimeoutError(f"JupyterLab did not start: {log.read_text()[-500:]}")


def ready(notebook: str) -> str:
    """A script that is true once `notebook` is in front, where another one stood when
    JupyterLab opened, and has its kernel. JupyterLab calls some kernels idle that are
    not there yet, or still end before a restart, and others unknown until they have run
    a cell."""
    return f"""((widget, session = widget?.sessionContext) =>
        widget?.context?.path === "{notebook}"
        && session.isReady && !session.isRestarting
        && session.session?.kernel?.connectionStatus === "connected"
    )(window.jupyterapp?.shell?.currentWidget)"""


def training(chromium: Browser) -> None:
    """A notebook while a cell of it trains, between all of them and the exercise."""
    with lab() as (address, _):
        page = browser.opened(chromium, f"{address}lab/tree/{NOTEBOOK}", **WIDE)
        wait_for(page, ready(NOTEBOOK), TIME_LIMIT)
        page.evaluate("void jupyterapp.commands.execute('filebrowser:activate')")
        page.evaluate("void jupyterapp.commands.execute('notebook:run-all-cells')")
        wait_for(page, AT_WORK, TIME_LIMIT)
        page.screenshot(path=PICTURES / "lab.png")


def main() -> None:
    if browser.found() is None:
        sys.exit("There is no Chromium here: `make browser` adds it to a Debian.")
    if not (HTML / "index.html").exists():
        sys.exit(f"There are no pages in {files.shown(HTML)} yet: type `make site`.")
    with files.scratch() as scratch:
        grades = graded(scratch)
        with browser.started() as chromium:
            pages(chromium)
            training(chromium)
            gradebook(chromium, grades)
    print(f"They are in {files.shown(PICTURES)} and {files.shown(HANDBOOK)}.")


if __name__ == "__main__":
    main()
