"""The site: built as `make site` builds it, every link followed, looked at in a real
browser where there is one."""

import contextlib
import json
import re
from collections import defaultdict
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

import nbformat
import pytest

import browser
import build
import reference
import utils
from distcheck import errors
from screenshots import STILL
from utils import cli
from utils.base import profiles
from utils.lessons import notebooks, outline

pytestmark = pytest.mark.slow
LESSONS = outline.read().notebooks


class Read(HTMLParser):
    """A page: its tags, each with its attributes, and the text of its headings."""

    def __init__(self, path: Path):
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def of(self, *names: str) -> list[dict]:
        return [attributes for name, attributes in self.tags if name in names]

    @property
    def anchors(self) -> set[str]:
        return {facts["id"] for _, facts in self.tags if facts.get("id")}


@pytest.fixture(scope="module")
def html(tmp_path_factory) -> Path:
    """The site, from whatever is kept here of executed notebooks. Sphinx has had no
    warning, or there would be none."""
    folder = tmp_path_factory.mktemp("site")
    return build.build(folder, profiles.in_force().name)


@pytest.fixture(scope="module")
def pages(html) -> dict[str, Read]:
    """All pages by their path in the site."""
    return {
        path.relative_to(html).as_posix(): Read(path)
        for path in sorted(html.rglob("*.html"))
        if "_static" not in path.parts
    }


# -------------------------------------------------------------- what is there


def test_there_is_a_page_for_each_lesson_and_each_text(pages):
    wanted = {f"notebooks/{name}" for name in LESSONS}
    wanted |= {*build.LOOK_UP, *build.REFERENCE, "index", "search"}
    assert {f"{name}.html" for name in wanted} <= set(pages)


def test_the_landing_page_says_what_a_visitor_asks(html):
    page = (html / "index.html").read_text()
    words = re.sub(r"<[^>]*>", "", page)
    for asked in ("make lab", "make course", "Who it is for", "about", "hours"):
        assert asked in words
    assert 'src="_images/cover.png"' in page
    for lesson in LESSONS.values():
        assert f'href="notebooks/{lesson.name}.html"' in page
        assert lesson.title.replace("'", "\N{RIGHT SINGLE QUOTATION MARK}") in words


def test_lessons_show_their_figures(html):
    page = (html / "notebooks" / "02_share_the_gradients.html").read_text()
    assert page.count("_images/") >= 7  # it is kept with its outputs


def test_each_page_has_one_title_a_language_and_a_way_past_the_sidebar(html, pages):
    for name, page in pages.items():
        text = (html / name).read_text(encoding="utf-8")
        on_paper_alone = text.count('id="jb-print-docs-body"')
        assert len(page.of("h1")) == 1 + on_paper_alone, name
        assert page.of("html")[0]["lang"] == "en", name
        assert "#main-content" in {link.get("href") for link in page.of("a")}, name


def test_each_picture_has_words(pages):
    without = [
        (name, picture["src"])
        for name, page in pages.items()
        for picture in page.of("img")
        if len(picture.get("alt", "").split()) < 2
    ]
    assert without == []


# -------------------------------------------------------------- links


def links(page: Read) -> list[str]:
    return [
        facts[key]
        for tag, facts in page.tags
        for key in ("href", "src")
        if facts.get(key) and (tag, facts.get("rel")) != ("link", "canonical")
    ]


def test_each_link_within_the_site_leads_somewhere(html, pages):
    broken = defaultdict(list)
    for name, page in pages.items():
        for link in filter(lambda link: not urlsplit(link).scheme, links(page)):
            address, anchor = urldefrag(unquote(link))
            address = address.split("?")[0]
            target = (html / name).parent / address if address else html / name
            if not target.is_file():
                broken[name].append(link)
            elif anchor and target.suffix == ".html":
                there = pages[target.resolve().relative_to(html.resolve()).as_posix()]
                if anchor not in there.anchors:
                    broken[name].append(link)
    assert not broken


def test_each_link_to_elsewhere_is_well_formed(pages):
    outside = {
        link for page in pages.values() for link in links(page) if urlsplit(link).scheme
    }
    assert outside
    for link in outside:
        parts = urlsplit(link)
        if parts.scheme != "data":
            assert parts.scheme == "https", link
            assert re.fullmatch(r"([\w-]+\.)+[a-z]{2,}", parts.netloc), link


OUTSIDE = re.compile(r"^(https?:)?//")
LOADED_BY_STYLE = re.compile(r"""(?:url\(|@import)\s*["']?([^"')\s]+)""")
LOADED_BY_SCRIPT = re.compile(
    r"""(?:\b(?:fetch|import|importScripts|open)\(|\bfrom|\.src\s*=)\s*["'`]([^"'`]+)"""
)


def test_what_a_page_loads_by_itself_is_the_site_s_own(html, pages):
    loaded = []
    for page in pages.values():
        loaded += [facts.get("src", "") for facts in page.of("img", "script", "iframe")]
        loaded += [
            facts["href"]
            for facts in page.of("link")
            if facts.get("rel") not in ("canonical", "next", "prev", "index", "search")
        ]
    texts = [(path, LOADED_BY_STYLE) for path in html.rglob("*.css")]
    texts += [(path, LOADED_BY_STYLE) for path in html.rglob("*.html")]
    texts += [(path, LOADED_BY_SCRIPT) for path in html.rglob("*.js")]
    for path, pattern in texts:
        loaded += pattern.findall(path.read_text(encoding="utf-8"))
    assert len(loaded) > 100
    assert [address for address in loaded if OUTSIDE.match(address)] == []


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (LOADED_BY_STYLE, "@import 'https://a.org/b.css';"),
        (LOADED_BY_STYLE, "a { background: url(//a.org/b.png) }"),
        (LOADED_BY_SCRIPT, 'await fetch("https://a.org/b")'),
        (LOADED_BY_SCRIPT, "script.src = 'https://a.org/b.js'"),
        (LOADED_BY_SCRIPT, "import x from 'https://a.org/b.js'"),
    ],
)
def test_what_is_loaded_from_elsewhere_would_be_seen(pattern, text):
    assert OUTSIDE.match(pattern.findall(text)[-1])


# -------------------------------------------------------------- search, reference


def test_the_search_index_has_messages_as_headings(html):
    text = (html / "searchindex.js").read_text(encoding="utf-8")
    assert '"There are not enough slots available in the system' in text


def test_the_search_index_knows_the_ring_all_reduce(html):
    text = (html / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(text[text.index("(") + 1 : text.rindex(")")])
    here = index["docnames"].index("notebooks/02_share_the_gradients")
    for word in ("ring", "reduc"):
        found = [index[kind].get(word, []) for kind in ("terms", "titleterms")]
        assert any(here in (at if isinstance(at, list) else [at]) for at in found)


def test_the_reference_has_all_commands_with_their_options():
    text = reference.commands()
    assert set(re.findall(r"^## course (\w+)$", text, re.M)) == {
        command.name or command.callback.__name__
        for command in cli.app.registered_commands
    }
    assert "| `-np VALUE`, `--workers VALUE` | How many workers; default: what" in text
    assert "| `--elastic` | Continue when a host dies" in text


def test_the_reference_has_all_names_that_learners_import():
    text = reference.names()
    headings = re.findall(r"^### (\w+)$", text, re.M)
    assert sorted(headings) == dir(utils)
    assert "script: str | os.PathLike,\n    *arguments: object," in text
    assert "Raises UserError" in text


# -------------------------------------------------------------- how a lesson came about


@pytest.fixture
def result(tmp_path):
    """What is kept of a notebook with two figures, one of them with words."""
    figure = {"image/png": "iVBORw0KGgo="}
    cell = nbformat.v4.new_code_cell("speeds()", execution_count=1)
    words = {"image/png": {"alt": "Two bars."}}
    cell.outputs = [
        nbformat.v4.new_output("display_data", figure, metadata=facts)
        for facts in (words, {})
    ]
    # A program's output comes in parts that end anywhere.
    cell.outputs += [
        nbformat.v4.new_output("stream", name="stdout", text=part)
        for part in ("i", "mport sys\n")
    ]
    ipynb = tmp_path / "01_train_on_one_device.ipynb"
    cells = [nbformat.v4.new_markdown_cell("# Title"), cell]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), ipynb)
    return notebooks.Result(ipynb.stem, 61.4, (), True, ipynb, ipynb)


def test_a_lesson_says_how_it_was_executed(result, monkeypatch):
    monkeypatch.setattr(notebooks, "kept", lambda notebook, profile: result)
    title, origin, cell = build.lesson(result.ipynb, "ci").cells
    assert title.source == "# Title"
    assert origin.source == (
        "*All outputs are from one run of 61 seconds, with the profile `ci`: 1,920 "
        "training images, 2 epochs, 2 workers.*"
    )
    alt = cell.metadata["mystnb"]["image"]["alt"]
    assert alt == f"Two bars. {build.NO_WORDS}"
    assert [output.get("text") for output in cell.outputs] == [
        None,
        None,
        "import sys\n",
    ]


def test_a_lesson_that_was_not_executed_or_went_wrong_says_so(result):
    assert "not been executed" in build.origin(None, "ci")
    bad = notebooks.Result("01", 3.0, ("cell 7 raised E",), True, *[result.ipynb] * 2)
    assert "went wrong" in build.origin(bad, "ci")
    assert "- cell 7 raised E" in build.origin(bad, "ci")
    old = notebooks.Result("01", 3.0, (), False, *[result.ipynb] * 2)
    assert "before the last change" in build.origin(old, "ci")


def test_a_link_to_a_file_that_is_no_page_becomes_its_name(tmp_path):
    (tmp_path / "handbook").mkdir()
    page = tmp_path / "handbook" / "a.md"
    page.write_text(
        "[check](../utils/cli.py#x), [b](b.md), [c](gone.md), [d](https://a.org)"
    )
    (tmp_path / "handbook" / "b.md").write_text("# B")
    build.plain_where_there_is_no_page(tmp_path)
    assert page.read_text() == (
        "check (`utils/cli.py`), [b](b.md), [c](gone.md), [d](https://a.org)"
    )


def test_the_handbook_has_its_place_in_the_sidebar_its_first_page_first():
    names = ("rooms.md", "README.md", "gradebook.png", "exam.md")
    folder = build.ROOT / build.HANDBOOK
    text = build.sidebar([folder / name for name in names])
    chapters = re.findall(r"^handbook/\w+$", text, re.M)
    assert chapters == ["handbook/README", "handbook/exam", "handbook/rooms"]
    assert ":caption: For instructors" in text


def test_what_is_wrong_with_a_page_fails_the_build(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(build, "assemble", lambda pages, _: wrong(pages))

    def wrong(pages: Path) -> None:
        (pages / "conf.py").touch()
        (pages / "index.rst").write_text("Title\n=====\n\n:doc:`nowhere`\n")

    with pytest.raises(errors.UserError, match="Sphinx failed"):
        build.build(tmp_path, "ci")
    assert "nowhere" in capfd.readouterr().err


# -------------------------------------------------------------- in a real browser

PHONE, TABLET, SCREEN = 390, 820, 1400
# With a table of links; with words marked that were searched for; with code and
# drawings; with a diff, as an output.
OF_EACH_KIND = (
    "index.html",
    "index.html?highlight=all",
    "notebooks/02_share_the_gradients.html",
    "notebooks/03_step_1_start_horovod.html",
)

# What sticks out: the page itself, and outputs and tables that neither fit nor scroll.
TOO_WIDE = """(() => {
    const wide = [];
    const root = document.documentElement;
    if (root.scrollWidth > window.innerWidth) wide.push("the page");
    const article = document.querySelector("article");
    if (!article) return wide;
    const right = article.getBoundingClientRect().right + 1;
    for (const box of article.querySelectorAll(".cell_output, pre, table, img")) {
        let scrolls = false;
        for (let up = box.parentElement; up && up !== article; up = up.parentElement)
            scrolls ||= ["auto", "scroll"].includes(getComputedStyle(up).overflowX);
        if (box.getBoundingClientRect().right > right && !scrolls)
            wide.push(`${box.tagName} ${box.className} ${box.innerText.slice(0, 50)}`);
    }
    for (const words of document.querySelectorAll(".page-toc .pre"))
        // A full line may end a part of a pixel later, as positions are rounded.
        if (words.getBoundingClientRect().right
            > words.closest(".bd-sidebar-secondary").getBoundingClientRect().right + 1)
            wide.push(`contents: ${words.innerText}`);
    return wide;
})()"""

# Words too faint to read: with less contrast to what is behind them than 4.5 to 1, as
# WCAG 2.2 (1.4.3) measures and wants it.
FAINT = """(() => {
    const shade = color => color.slice(0, 3)
        .map(part => part / 255)
        .map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
        .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
    const color = (box, name) =>
        getComputedStyle(box)[name].match(/[\\d.]+/g).map(Number);
    const isText = each => each.nodeType === Node.TEXT_NODE && each.data.trim();
    const faint = [];
    for (const box of document.querySelectorAll("body *")) {
        const words = [...box.childNodes].filter(isText);
        if (!words.length || !box.checkVisibility({visibilityProperty: true})) continue;
        let behind = box;
        while (behind.parentElement && color(behind, "backgroundColor")[3] === 0)
            behind = behind.parentElement;
        const [dark, light] = [color(box, "color"), color(behind, "backgroundColor")]
            .map(shade).sort((a, b) => a - b);
        if ((light + 0.05) / (dark + 0.05) < 4.5) faint.push(words[0].data.trim());
    }
    return faint;
})()"""

RESULTS = """[...document.querySelectorAll("#search-results li a")].map(
    link => link.innerText)"""

with_a_browser = pytest.mark.skipif(
    browser.found() is None, reason="there is no Chromium here: make browser adds it"
)


@pytest.fixture(scope="module")
def window(html):
    with browser.served(html) as address, browser.started() as chromium:
        page = browser.opened(chromium, address + "index.html")
        page.home = address
        yield page


@pytest.fixture
def tab(window):
    """A tab in which nothing has happened yet."""
    window.evaluate("localStorage.clear()")  # words that another test searched for
    window.requests.clear()
    window.complaints.clear()
    return window


@with_a_browser
def test_pages_fit_every_width_and_ask_nobody_else(tab, pages):
    wide = []
    for name in pages:
        tab.goto(tab.home + name)
        for width in (PHONE, TABLET, SCREEN):
            tab.set_viewport_size({"width": width, "height": 900})
            wide += [(name, width, what) for what in tab.evaluate(TOO_WIDE)]
    assert wide == []
    assert tab.complaints == []
    # The icon of a page that another test opened as a file may be asked for late.
    ours = (tab.home, "data:", "file:")
    strangers = [address for address in tab.requests if not address.startswith(ours)]
    assert strangers == []


@with_a_browser
def test_searching_finds_the_ring_all_reduce(tab):
    tab.goto(tab.home + "search.html?q=ring+all-reduce")
    browser.wait_for(tab, f"{RESULTS}.includes('Share the gradients')")


@with_a_browser
def test_searching_for_a_part_of_a_message_finds_its_page(tab):
    tab.goto(tab.home + "search.html?q=not+enough+slots+available")
    browser.wait_for(tab, f"{RESULTS}.includes('Messages: starting workers')")


@with_a_browser
def test_searching_works_without_a_server(tab, html):
    tab.goto(f"file://{html}/search.html?q=ring+all-reduce")
    browser.wait_for(tab, f"{RESULTS}.includes('Share the gradients')")
    # The theme asks for its icons twice, and Chromium refuses one way to get at a file.
    assert [said for said in tab.complaints if "woff2" not in said] == []


@with_a_browser
def test_the_page_is_light_or_dark_as_its_reader_has_it(tab):
    color = "getComputedStyle(document.body).backgroundColor"
    seen = []
    for dark in (False, True):
        tab.emulate_media(color_scheme="dark" if dark else "light")
        tab.goto(tab.home + "index.html")
        seen.append([int(part) for part in re.findall(r"\d+", tab.evaluate(color))])
    light, dark = seen
    assert min(light) > 200
    assert max(dark[:3]) < 60


@with_a_browser
@pytest.mark.parametrize("dark", [False, True])
def test_words_stand_out_from_what_is_behind_them(tab, dark):
    tab.set_viewport_size({"width": SCREEN, "height": 900})
    tab.emulate_media(color_scheme="dark" if dark else "light")
    for name in OF_EACH_KIND:
        tab.goto(tab.home + name)
        # Its colors fade in, once its script has chosen between dark and light.
        with contextlib.suppress(TimeoutError):
            browser.wait_for(tab, f"{STILL} && {FAINT}.length === 0", seconds=10)
        assert tab.evaluate(FAINT) == [], name


@with_a_browser
def test_the_first_thing_that_the_keyboard_reaches_skips_the_sidebar(tab):
    tab.goto(tab.home + "index.html")
    tab.keyboard.press("Tab")
    assert "main-content" in tab.evaluate("document.activeElement.outerHTML")
