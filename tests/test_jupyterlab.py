"""JupyterLab, used as a learner uses it: with mouse and keyboard, in a real browser."""

import json

import pytest

import browser
import screenshots
from browser import SHIFT
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


def wait_until_idle(page: browser.Page) -> None:
    status = f"{NOTEBOOK} .jp-Notebook-ExecutionIndicator[data-status='idle']"
    page.wait_for(f"document.querySelector({json.dumps(status)}) !== null", LONG)


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


def wait_for_text(page: browser.Page, selector: str, words: str) -> None:
    place = f"document.querySelector({json.dumps(selector)})"
    page.wait_for(f"{place}?.innerText.includes({json.dumps(words)})", LONG)


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
