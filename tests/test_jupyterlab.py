"""JupyterLab, used as a learner uses it: with mouse and keyboard, in a real browser."""

import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

import browser
import screenshots
from browser import CTRL, SHIFT
from utils.base import course
from utils.lessons import markup

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        browser.found() is None, reason="there is no Chromium here: `make browser`"
    ),
]

SOURCE = (course.PACKAGE_ROOT / "solutions/fashion_mnist_solution.py").read_text()
FIRST = "notebooks/00_check_your_machine.ipynb"
STEP_1 = "notebooks/03_step_1_start_horovod.ipynb"
NOTEBOOK = ".jp-NotebookPanel:not(.lm-mod-hidden)"
LONG = 240.0  # seconds, on a busy machine
EDITOR = ".jp-FileEditor:not(.lm-mod-hidden) .cm-content"


@pytest.fixture(scope="module")
def lab():
    """The address of a JupyterLab, and the course that it is in."""
    with screenshots.lab() as started:
        yield started


@pytest.fixture(scope="module")
def chromium():
    with browser.Browser(900) as chromium:
        yield chromium


@pytest.fixture
def opened(lab, chromium):
    """A function that opens a notebook in a tab of its own, with an exercise as it is
    shipped, and waits until its kernel is idle."""
    address, copy = lab
    (copy / "exercises/fashion_mnist.py").write_text(markup.render(SOURCE, 0))
    pages = []

    def opened(notebook: str) -> browser.Page:
        page = chromium.open(f"{address}lab/tree/{notebook}", 1440)
        pages.append(page)
        page.wait_for("document.querySelectorAll('.jp-CodeCell').length > 3", LONG)
        wait_until_idle(page)
        return page

    yield opened
    for page in pages:
        page.evaluate("void jupyterapp.serviceManager.sessions.shutdownAll()")
        page.call("Page.close")


def wait_until_idle(page: browser.Page, seconds: float = LONG) -> None:
    status = f"{NOTEBOOK} .jp-Notebook-ExecutionIndicator[data-status='idle']"
    page.wait_for(f"document.querySelector({json.dumps(status)}) !== null", seconds)


def click(page: browser.Page, selector: str) -> None:
    """Click on an element once it stands still in the window, with nothing over it:
    JupyterLab draws cells as they come into view, and moves the others about."""
    page.wait_for(
        f"""(async () => {{
            const there = document.querySelector({json.dumps(selector)});
            if (!there) return false;
            there.scrollIntoView({{block: "center", behavior: "instant"}});
            const before = there.getBoundingClientRect();
            await new Promise(done => setTimeout(done, 400));
            const box = there.getBoundingClientRect();
            const over = document.elementFromPoint(
                box.x + box.width / 2, box.y + box.height / 2);
            return box.y === before.y && there.contains(over);
        }})()""",
        60,
    )
    page.click(selector)


def run_cell(page: browser.Page, words: str) -> str:
    """Run the code cell with such words by Shift+Enter; its selector."""
    page.wait_for(
        f"""(() => {{
            const cells = [...document.querySelectorAll("{NOTEBOOK} .jp-CodeCell")];
            cells.forEach(cell => cell.removeAttribute("data-tried"));
            const cell = cells.find(
                cell => cell.textContent.includes({json.dumps(words)}));
            cell?.setAttribute("data-tried", "");
            const panel = document.querySelector("{NOTEBOOK} .jp-WindowedPanel-outer");
            if (!cell) panel.scrollBy(0, 400);
            return !!cell;
        }})()"""
    )
    click(page, "[data-tried] .jp-InputPrompt")
    page.press("Enter", 13, held=SHIFT)
    return "[data-tried]"


def text(page: browser.Page, selector: str) -> str:
    return page.evaluate(f"document.querySelector({json.dumps(selector)})?.innerText")


def wait_for_text(page: browser.Page, selector: str, words: str, seconds=LONG) -> None:
    place = f"document.querySelector({json.dumps(selector)})"
    page.wait_for(f"{place}?.innerText.includes({json.dumps(words)})", seconds)


def at_work(copy: Path) -> list[str]:
    """The command lines of processes that run a program of the copy."""
    lines = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.cwd().startswith(str(copy)):
                lines.append(" ".join(process.cmdline()))
    return [line for line in lines if "fashion_mnist" in line or "mpirun" in line]


def wait_until(true: Callable[[], object]) -> None:
    end = time.monotonic() + LONG
    while not true():
        assert time.monotonic() < end
        time.sleep(0.2)


def test_the_first_start_is_quiet_with_contents_and_exercise_beside_the_lesson(opened):
    page = opened(FIRST)
    wait_for_text(page, ".jp-TableOfContents", "What can this machine do?")
    wait_for_text(page, EDITOR, "Train a WideResNet on Fashion-MNIST")
    cell = run_cell(page, "report = doctor()")
    wait_for_text(page, f"{cell} .jp-OutputArea", "Open MPI")
    wait_until_idle(page)
    assert (
        page.evaluate("document.querySelector('.jp-Dialog, .Toastify__toast')") is None
    )
    assert page.complaints == []


def test_a_link_leads_to_the_next_notebook(opened):
    page = opened(FIRST)
    last = f"{NOTEBOOK} a[href*='01_train']"
    page.wait_for(
        f"""(() => {{
            const panel = "{NOTEBOOK} .jp-WindowedPanel-outer";
            document.querySelector(panel).scrollBy(0, 400);
            return document.querySelector({json.dumps(last)}) !== null;
        }})()"""
    )
    click(page, last)
    wait_for_text(page, f"{NOTEBOOK} h1", "Train on one device")


@pytest.mark.parametrize("how", ["stop button", "restart button"])
def test_no_worker_is_left_of_a_run(opened, lab, how):
    page = opened(STEP_1)
    run_cell(page, "from utils import check")
    cell = run_cell(page, "first = run(")
    wait_for_text(page, f"{cell} .jp-OutputArea", "starting (0:")
    wait_until(lambda: len(at_work(lab[1])) >= 3)  # mpirun and two workers
    if how == "stop button":
        page.click(f"{NOTEBOOK} [data-command='notebook:interrupt-kernel']")
        wait_for_text(page, f"{cell} .jp-OutputArea", "KeyboardInterrupt")
    else:
        page.click(f"{NOTEBOOK} [data-command='notebook:restart-kernel']")
        page.wait_for("document.querySelector('.jp-Dialog .jp-mod-accept') !== null")
        page.click(".jp-Dialog .jp-mod-accept")
    wait_until(lambda: not at_work(lab[1]))
    wait_until_idle(page)
    again = run_cell(page, "from utils import check")
    wait_until_idle(page)
    assert "Error" not in text(page, again)


def test_an_exercise_is_written_checked_and_checked_in_a_terminal(opened, lab):
    page = opened(STEP_1)
    run_cell(page, "from utils import check")
    cell = run_cell(page, "check(1)")
    wait_for_text(page, f"{cell} .jp-OutputArea", "StepMissing")
    assert "TODO" in text(page, f"{cell} .jp-OutputArea")

    page.click(EDITOR)
    page.press("a", 65, held=CTRL)
    page.type(markup.render(SOURCE, 1))
    page.press("s", 83, held=CTRL)
    program = lab[1] / "exercises/fashion_mnist.py"
    wait_until(lambda: "hvd.init()" in program.read_text())

    cell = run_cell(page, "check(1)")
    wait_for_text(page, f"{cell} .jp-OutputArea", "Checked in")
    assert "right" in text(page, f"{cell} .jp-OutputArea")

    page.evaluate("void jupyterapp.commands.execute('terminal:create-new')")
    page.wait_for("document.querySelector('.jp-Terminal .xterm-helper-textarea')")
    time.sleep(2)  # until its shell has asked for a command
    page.click(".jp-Terminal")
    page.type("course check 1 | tee told.txt; course hint 2 >> told.txt; touch done\n")
    wait_until((lab[1] / "done").exists)
    told = (lab[1] / "told.txt").read_text()
    assert "right" in told
    assert "Step 2" in told
