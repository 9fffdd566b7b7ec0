"""JupyterLab, used as a learner uses it: with mouse and keyboard, in a real browser."""

import re

import pytest
from playwright.sync_api import Locator, Page, expect
from processes import descendants_of_runs_in, wait_for

import browser
import screenshots
from screenshots import ready
from utils.base import course
from utils.lessons import markup

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        browser.found() is None, reason="there is no Chromium here: `make browser`"
    ),
]

SOURCE = (course.PACKAGE_ROOT / "solutions/fashion_mnist_solution.py").read_text()
FIRST = "notebooks/00_check_your_machine.ipynb"
STEP_1 = "notebooks/03_step_1_start_horovod.ipynb"
LONG = 600.0  # seconds, on a busy machine
TOGETHER = 3600.0  # seconds, for all of them
SOON = 60.0  # seconds, fewer than the run takes that is ended
expect.set_options(timeout=1000 * LONG)

# Of what stands behind the others, nothing is seen.
SHOWN = ":not(.lm-mod-hidden)"
NOTEBOOK = f".jp-NotebookPanel{SHOWN}"
CELL = f"{NOTEBOOK} .jp-CodeCell"
EDITOR = f".jp-FileEditor{SHOWN}"
KERNEL = "jupyterapp.shell.currentWidget.sessionContext.session.kernel.id"
ACCEPT = ".jp-Dialog .jp-mod-accept"
# What the terminal shows: it is painted, there is no text in the page.
TERMINAL = """(screen => screen && Array.from(
    {length: screen.length}, (_, row) => screen.getLine(row).translateToString()
).join("\\n").trim())(jupyterapp.shell.currentWidget?.content?._term?.buffer.active)"""


@pytest.fixture(scope="module")
def lab():
    """The address of a JupyterLab, and the course that it is in."""
    with screenshots.lab(TOGETHER) as started:
        yield started


@pytest.fixture(scope="module")
def chromium():
    with browser.started() as chromium:
        yield chromium


@pytest.fixture
def opened(lab, chromium):
    """A function that opens a notebook in a tab of its own, and waits for its kernel;
    all is as it was shipped at first."""
    address, copy = lab
    (workspace,) = (copy.parent / "workspaces").iterdir()
    workspace.write_text(screenshots.WORKSPACE.read_text())
    (copy / "exercises/fashion_mnist.py").write_text(markup.render(SOURCE, 0))
    (copy / "progress.json").unlink(missing_ok=True)
    for notebook in (FIRST, STEP_1):
        text = (course.PACKAGE_ROOT / notebook).read_text()
        # What is folded has no text that a cell could be found by.
        unfolded = text.replace('"source_hidden": true', '"source_hidden": false')
        (copy / notebook).write_text(unfolded)
    pages = []

    def opened(notebook: str) -> Page:
        page = browser.opened(chromium, f"{address}lab/tree/{notebook}", 1440)
        page.set_default_timeout(1000 * LONG)
        pages.append(page)
        browser.wait_for(page, ready(notebook), LONG)
        return page

    yield opened
    for page in pages:
        if not page.is_closed():
            page.evaluate("window.jupyterapp?.serviceManager.sessions.shutdownAll()")
            page.evaluate("window.jupyterapp?.serviceManager.terminals.shutdownAll()")
            page.close()


def find(page: Page, selector: str, words: str) -> Locator:
    """The first such element with such words in it."""
    return page.locator(selector, has_text=words).first


def select(page: Page, words: str) -> Locator:
    """Select the code cell that says such words, with the mouse; the cell."""
    code = page.locator(".jp-InputArea-editor", has_text=words)
    cell = page.locator(CELL, has=code).first
    cell.locator(".jp-InputPrompt").click()
    expect(cell).to_have_class(re.compile("jp-mod-active"))
    focused = f"document.querySelector('{NOTEBOOK}').contains(document.activeElement)"
    browser.wait_for(page, focused, LONG)
    return cell


def run_cell(page: Page, words: str) -> Locator:
    """Run the code cell that says such words by Shift+Enter; the cell."""
    cell = select(page, words)
    page.keyboard.press("Shift+Enter")
    return cell


def has_run(cell: Locator) -> None:
    """Wait until a cell has run that this kernel had not run yet."""
    expect(cell.locator(".jp-InputPrompt")).to_have_text(re.compile(r"\d"))


def wait_for_text(place: Locator, words: str) -> str:
    """Wait until such words are in an element; all of its text."""
    expect(place).to_contain_text(words, use_inner_text=True)
    return place.inner_text()


def test_the_first_start_is_quiet_with_contents_and_exercise_beside_the_lesson(opened):
    page = opened(FIRST)
    wait_for_text(page.locator(".jp-TableOfContents").first, "Is your machine ready?")
    wait_for_text(page.locator(EDITOR), "Train a WideResNet on Fashion-MNIST")
    cell = run_cell(page, "report = doctor()")
    wait_for_text(cell.locator(".jp-OutputArea"), "Open MPI")
    has_run(cell)
    assert page.locator(".jp-Dialog, .Toastify__toast").count() == 0
    assert page.complaints == []


def test_a_link_leads_to_the_next_notebook(opened):
    page = opened(FIRST)
    find(page, f"{NOTEBOOK} a[href*='01_train']", "Train on one device").click()
    wait_for_text(page.locator(f"{NOTEBOOK} h1").first, "Train on one device")


def test_a_run_ends_when_it_is_stopped_restarted_or_closed_not_with_the_browser(
    opened, lab
):
    def at_work() -> set[int]:
        return {process.pid for process in descendants_of_runs_in(lab[1])}

    def wait_for_the_workers():
        what = "supervisor, mpirun and two workers"
        wait_for(lambda: len(at_work()) >= 4, LONG, what)

    def wait_for_their_end():
        wait_for(lambda: not at_work(), SOON, "the end of supervisor, mpirun, workers")

    page = opened(STEP_1)
    has_run(run_cell(page, "from utils import check"))
    select(page, "epochs=1,")
    to_its_end = ("Enter", "Home", "ArrowDown", "ArrowDown", "ArrowDown", "End")
    for key in (*to_its_end, "Backspace", "Backspace"):
        page.keyboard.press(key)
    page.keyboard.insert_text("900,")
    output = run_cell(page, "epochs=900,").locator(".jp-OutputArea")
    wait_for_text(output, "starting (0:")
    shown = wait_for_text(output, "images/s")
    command, progress = shown.strip().splitlines()
    assert command.startswith("$ mpirun -np 2")
    live = r"epoch \d+/900 \[[#.]+\] [\d,]+ images/s, \d+:\d\d left"
    assert re.fullmatch(live, progress)

    page.click(f"{NOTEBOOK} [data-command='notebook:interrupt-kernel']")
    wait_for_their_end()
    shown = wait_for_text(output, "was stopped, and all its workers were ended")
    assert "Traceback" not in shown

    run_cell(page, "epochs=900,")
    wait_for_the_workers()
    started, kernel = at_work(), page.evaluate(KERNEL)
    page.keyboard.press("Control+s")
    # JupyterLab itself calls it unsaved again with the next progress that is shown.
    saved = lab[1] / STEP_1
    wait_for(lambda: "epochs=900," in saved.read_text(), LONG, "what is saved")
    page.close()

    # That tab is closed; another visitor finds what goes on.
    page = opened(STEP_1)
    assert page.evaluate(KERNEL) == kernel
    assert started <= at_work()
    page.click(f"{NOTEBOOK} [data-command='notebook:restart-kernel']")
    find(page, ACCEPT, "Restart").click()
    wait_for_their_end()

    browser.wait_for(page, ready(STEP_1), LONG)
    has_run(run_cell(page, "from utils import check"))
    run_cell(page, "epochs=900,")
    wait_for_the_workers()
    tab = find(page, ".lm-DockPanel-tabBar .lm-TabBar-tab", "03_step_1")
    tab.locator(".lm-TabBar-tabCloseIcon").click()
    find(page, ACCEPT, "Save").click()
    wait_for_their_end()


def test_an_exercise_is_written_and_checked_in_notebook_and_terminal(opened, lab):
    page = opened(STEP_1)
    has_run(run_cell(page, "from utils import check"))
    output = run_cell(page, "check(1)").locator(".jp-OutputArea")
    shown = wait_for_text(output, "StepMissing")
    assert "Line 16 still says TODO: Step 1." in shown
    assert "Traceback" not in shown

    select(page, "check(1)")
    page.keyboard.press("b")  # a new cell below
    page.keyboard.press("Enter")
    new = "document.activeElement.matches('.jp-mod-noOutputs .cm-content')"
    browser.wait_for(page, new, LONG)
    page.keyboard.insert_text("hint(1)")
    hinted = run_cell(page, "hint(1)")
    wait_for_text(hinted.locator(".jp-OutputArea"), "There are two places marked")

    program, finished = lab[1] / "exercises/fashion_mnist.py", markup.render(SOURCE, 1)
    page.click(f"{EDITOR} .cm-line")
    page.keyboard.press("Control+a")
    page.keyboard.insert_text(finished)
    page.keyboard.press("Control+s")
    wait_for(lambda: program.read_text() == finished, LONG, "the saving")

    run_cell(page, "check(1)")
    wait_for_text(output, "Step 1\tright")

    for menu, words in (("Bar", "File"), ("", "New"), ("", "Terminal")):
        find(page, f".lm-Menu{menu}-item", words).click()
    focused = "document.activeElement.matches('.xterm-helper-textarea')"
    browser.wait_for(
        page, f"{focused} && {TERMINAL}", LONG
    )  # its shell asks for a command
    page.keyboard.insert_text("course check 1")
    page.keyboard.press("Enter")
    browser.wait_for(page, f"/Step 1 .* right [^]*Checked in/.test({TERMINAL})", LONG)
