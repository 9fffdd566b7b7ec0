"""JupyterLab, used as a learner uses it: with mouse and keyboard, in a real browser."""

import json
import re

import pytest
from processes import descendants_of_runs_in, wait_for

import browser
import screenshots
from browser import CTRL, SHIFT
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
    with browser.Browser(TOGETHER) as chromium:
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

    def opened(notebook: str, within: browser.Browser = chromium) -> browser.Page:
        page = within.open(f"{address}lab/tree/{notebook}", 1440)
        if within is chromium:
            pages.append(page)
        page.wait_for(ready(notebook), LONG)
        return page

    yield opened
    for page in pages:
        page.evaluate("window.jupyterapp?.serviceManager.sessions.shutdownAll()")
        page.evaluate("window.jupyterapp?.serviceManager.terminals.shutdownAll()")
        page.go("about:blank")


def find(page: browser.Page, selector: str, words: str) -> str:
    """Wait for such an element with such words in it; a selector of the first one."""
    page.wait_for(
        f"""(() => {{
            const all = [...document.querySelectorAll({json.dumps(selector)})];
            all.forEach(each => delete each.dataset.words);
            const it = all.find(each => each.textContent.includes({json.dumps(words)}));
            if (it) it.dataset.words = {json.dumps(words)};
            return !!it;
        }})()""",
        LONG,
    )
    return f"{selector}[data-words={json.dumps(words)}]"


def click(page: browser.Page, selector: str) -> None:
    """Click on an element, again where that missed it: JupyterLab moves things about
    while it draws them."""
    aim = f"""(() => {{
        const it = document.querySelector({json.dumps(selector)});
        window.struck = false;
        if (!it) return false;
        it.addEventListener("click", () => window.struck = true, true);
        it.scrollIntoView({{block: "center", behavior: "instant"}});
        const box = it.getBoundingClientRect();
        return it.contains(document.elementFromPoint(
            box.x + box.width / 2, box.y + box.height / 2));
    }})()"""

    def struck() -> bool:
        if page.evaluate(aim):
            page.click(selector)
        return page.evaluate("window.struck")

    wait_for(struck, LONG, f"a click on {selector}")


def select(page: browser.Page, words: str) -> str:
    """Select the code cell that says such words, with the mouse; its selector."""
    code = find(page, f"{CELL} .jp-InputArea-editor", words)
    cell = f"{CELL}:has({code.removeprefix(CELL)})"
    click(page, f"{cell} .jp-InputPrompt")
    page.wait_for(
        f"document.querySelector({json.dumps(cell)}).matches('.jp-mod-active') &&"
        f"document.querySelector('{NOTEBOOK}').contains(document.activeElement)",
        LONG,
    )
    return cell


def run_cell(page: browser.Page, words: str) -> str:
    """Run the code cell that says such words by Shift+Enter; its selector."""
    cell = select(page, words)
    page.press("Enter", held=SHIFT)
    return cell


def has_run(page: browser.Page, cell: str) -> None:
    """Wait until a cell has run that this kernel had not run yet."""
    prompt = f"document.querySelector({json.dumps(f'{cell} .jp-InputPrompt')})"
    page.wait_for(rf"/\d/.test({prompt}.innerText)", LONG)


def wait_for_text(page: browser.Page, selector: str, words: str) -> str:
    """Wait until such words are in an element; all of its text."""
    text = f"document.querySelector({json.dumps(selector)})?.innerText"
    return page.wait_for(
        f"(text => text?.includes({json.dumps(words)}) && text)({text})", LONG
    )


def test_the_first_start_is_quiet_with_contents_and_exercise_beside_the_lesson(opened):
    page = opened(FIRST)
    wait_for_text(page, ".jp-TableOfContents", "Is your machine ready?")
    wait_for_text(page, EDITOR, "Train a WideResNet on Fashion-MNIST")
    cell = run_cell(page, "report = doctor()")
    wait_for_text(page, f"{cell} .jp-OutputArea", "Open MPI")
    has_run(page, cell)
    assert (
        page.evaluate("document.querySelector('.jp-Dialog, .Toastify__toast')") is None
    )
    assert page.complaints == []


def test_a_link_leads_to_the_next_notebook(opened):
    page = opened(FIRST)
    click(page, find(page, f"{NOTEBOOK} a[href*='01_train']", "Train on one device"))
    wait_for_text(page, f"{NOTEBOOK} h1", "Train on one device")


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

    with browser.Browser(TOGETHER) as closed_soon:
        page = opened(STEP_1, closed_soon)
        has_run(page, run_cell(page, "from utils import check"))
        select(page, "epochs=1,")
        to_its_end = ("Enter", "Home", "ArrowDown", "ArrowDown", "ArrowDown", "End")
        for key in (*to_its_end, "Backspace", "Backspace"):
            page.press(key)
        page.type("900,")
        output = f"{run_cell(page, 'epochs=900,')} .jp-OutputArea"
        wait_for_text(page, output, "starting (0:")
        shown = wait_for_text(page, output, "images/s")
        command, progress = shown.strip().splitlines()
        assert command.startswith("$ mpirun -np 2")
        live = r"epoch \d+/900 \[[#.]+\] [\d,]+ images/s, \d+:\d\d left"
        assert re.fullmatch(live, progress)

        page.click(f"{NOTEBOOK} [data-command='notebook:interrupt-kernel']")
        wait_for_their_end()
        shown = wait_for_text(
            page, output, "was stopped, and all its workers were ended"
        )
        assert "Traceback" not in shown

        run_cell(page, "epochs=900,")
        wait_for_the_workers()
        started, kernel = at_work(), page.evaluate(KERNEL)
        page.press("s", held=CTRL)
        page.wait_for("!jupyterapp.shell.currentWidget.context.model.dirty", LONG)

    # That browser is closed; another one finds what goes on.
    page = opened(STEP_1)
    assert page.evaluate(KERNEL) == kernel
    assert started <= at_work()
    page.click(f"{NOTEBOOK} [data-command='notebook:restart-kernel']")
    page.click(find(page, ACCEPT, "Restart"))
    wait_for_their_end()

    page.wait_for(ready(STEP_1), LONG)
    has_run(page, run_cell(page, "from utils import check"))
    run_cell(page, "epochs=900,")
    wait_for_the_workers()
    tab = find(page, ".lm-DockPanel-tabBar .lm-TabBar-tab", "03_step_1")
    page.click(f"{tab} .lm-TabBar-tabCloseIcon")
    page.click(find(page, ACCEPT, "Save"))
    wait_for_their_end()


def test_an_exercise_is_written_and_checked_in_notebook_and_terminal(opened, lab):
    page = opened(STEP_1)
    has_run(page, run_cell(page, "from utils import check"))
    output = f"{run_cell(page, 'check(1)')} .jp-OutputArea"
    shown = wait_for_text(page, output, "StepMissing")
    assert "Line 16 still says TODO: Step 1." in shown
    assert "Traceback" not in shown

    select(page, "check(1)")
    page.press("b")  # a new cell below
    page.press("Enter")
    new = "document.activeElement.matches('.jp-mod-noOutputs .cm-content')"
    page.wait_for(new, LONG)
    page.type("hint(1)")
    hinted = run_cell(page, "hint(1)")
    wait_for_text(page, f"{hinted} .jp-OutputArea", "There are two places marked")

    program, finished = lab[1] / "exercises/fashion_mnist.py", markup.render(SOURCE, 1)
    click(page, f"{EDITOR} .cm-line")
    page.press("a", held=CTRL)
    page.type(finished)
    page.press("s", held=CTRL)
    wait_for(lambda: program.read_text() == finished, LONG, "the saving")

    run_cell(page, "check(1)")
    wait_for_text(page, output, "Step 1\tright")

    for menu, words in (("Bar", "File"), ("", "New"), ("", "Terminal")):
        page.click(find(page, f".lm-Menu{menu}-item", words))
    focused = "document.activeElement.matches('.xterm-helper-textarea')"
    page.wait_for(f"{focused} && {TERMINAL}", LONG)  # its shell asks for a command
    page.type("course check 1")
    page.press("Enter")
    page.wait_for(f"/Step 1 .* right [^]*Checked in/.test({TERMINAL})", LONG)
