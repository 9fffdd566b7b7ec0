"""Build the site: `make site`. It is then in build/site/html.

The pages lie as they lie in the course, so that links between them hold: the executed
copies of the notebooks, the texts of exercises/, the handbook. Added are the landing
page and what is made from code: the table of lessons, the reference.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import nbformat
from nbconvert.preprocessors import CoalesceStreamsPreprocessor
from nbformat import NotebookNode

import reference
from distcheck import errors, files
from utils.base import profiles
from utils.lessons import notebook_rules, notebooks, outline

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
TIME_LIMIT = 600.0  # seconds for Sphinx

# Pages beside the lessons: what the course keeps -> what the sidebar calls it.
LOOK_UP = {
    "exercises/glossary": "Glossary",
    "exercises/clinic": "Troubleshooting",
    "exercises/messages/launch": "Messages: starting workers",
    "exercises/messages/horovod": "Messages: Horovod and NCCL",
    "exercises/messages/tensorflow": "Messages: TensorFlow",
    "exercises/messages/keras": "Messages: Keras and data",
    "exercises/messages/setup": "Messages: installing and building",
    "exercises/messages/general": "Messages: any program",
    "exercises/clusters": "Which cluster for whom",
    "exercises/gpus": "Where to get a GPU",
}
REFERENCE = {
    "reference/course": "The command course",
    "reference/python": "In Python",
    "looks": "What it looks like",
}
HANDBOOK = "handbook"

# Of a figure that was drawn without the course's help.
NO_WORDS = "A figure, drawn by the code above it."


def assemble(pages: Path, profile: str) -> None:
    """Put the sources of all pages into the empty folder `pages`.

    profile: whose executed copies are shown.
    """
    for name in ("static", "screenshots"):
        shutil.copytree(HERE / name, pages / name)
    for name in ("conf.py", "index.md", "looks.md"):
        shutil.copy(HERE / name, pages)
    (pages / "notebooks").mkdir()
    shutil.copy(ROOT / "notebooks" / "cover.png", pages / "notebooks")
    for path in notebooks.discover():
        page = lesson(path, profile)
        nbformat.write(page, pages / "notebooks" / path.name)
    for name in LOOK_UP:
        copy(ROOT / f"{name}.md", pages / f"{name}.md")
    (pages / "reference").mkdir()
    (pages / "reference" / "course.md").write_text(reference.commands())
    (pages / "reference" / "python.md").write_text(reference.names())
    handbook = [path for path in (ROOT / HANDBOOK).rglob("*.*") if path.is_file()]
    for path in handbook:
        copy(path, pages / path.relative_to(ROOT))
    (pages / "lessons.md").write_text(table())
    with (pages / "index.md").open("a") as index:
        index.write(sidebar(handbook))
    plain_where_there_is_no_page(pages)


def copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)


# -------------------------------------------------------------- lessons


def lesson(notebook: Path, profile: str) -> NotebookNode:
    """A notebook as its page shows it: executed, if it was, with a line that says how;
    its figures with words for those who don't see them."""
    result = notebooks.kept(notebook, profile)
    page = notebook_rules.read(result.ipynb if result else notebook)
    # Only what was executed knows that its language is Python with magics.
    page.metadata["language_info"] = {"name": "python", "pygments_lexer": "ipython3"}
    whole = CoalesceStreamsPreprocessor()  # MyST-NB would end a line after each part
    for cell in page.cells:
        whole.preprocess_cell(cell, {}, 0)
        pictures = [
            output.metadata.get(kind, {}).get("alt", NO_WORDS)
            for output in cell.get("outputs", [])
            for kind in output.get("data", {})
            if kind.startswith("image/")
        ]
        if pictures:
            cell.metadata["mystnb"] = {"image": {"alt": " ".join(pictures)}}
        if notebook_rules.is_folded(cell):
            tags = cell.metadata.get("tags", [])
            cell.metadata["tags"] = [*tags, "hide-input"]
    page.cells.insert(1, nbformat.v4.new_markdown_cell(origin(result, profile)))
    return page


def origin(result: notebooks.Result | None, profile: str) -> str:
    """Where what a page shows comes from, in Markdown."""
    if result is None:
        return box(
            "warning",
            "This lesson has not been executed",
            ["Hence no outputs are shown. `make course` executes it."],
        )
    if not result.ok:
        findings = [f"- {finding}" for finding in result.findings]
        return box("warning", "The execution of this lesson went wrong", findings)
    how = profiles.profile(profile)
    text = (
        f"All outputs are from one run of {result.seconds:,.0f} seconds, with the "
        f"profile `{how.name}`: {how.train_images:,} training images, {how.epochs} "
        f"epochs, {how.workers} workers."
    )
    if result.cached:
        return f"*{text}*"
    return box("note", "Executed before the last change of the course", [text])


def box(kind: str, title: str, lines: Sequence[str]) -> str:
    return "\n".join(
        [f"`````{{admonition}} {title}", f":class: {kind}", "", *lines, "`````"]
    )


def table() -> str:
    """The table of the lessons, and what they take together."""
    lessons = outline.read().notebooks
    hours = sum(notebook.minutes for notebook in lessons.values()) / 60
    return (
        f"Together they take about {hours:.0f} hours. There are several ways through "
        f"them:\n\n{outline.routes()}\n\n{outline.table()}\n"
    )


# -------------------------------------------------------------- between pages


def sidebar(handbook: Sequence[Path]) -> str:
    """The tables of contents that make the sidebar, in Markdown."""
    lessons = {
        f"notebooks/{name}": f"{notebook.number} {notebook.title}"
        for name, notebook in outline.read().notebooks.items()
    }
    chapters = [
        path.relative_to(ROOT).with_suffix("").as_posix()
        for path in sorted(handbook, key=lambda path: (path.stem != "README", path))
        if path.suffix == ".md"
    ]
    parts = {
        "Lessons": lessons,
        "To look up": LOOK_UP,
        "Reference": REFERENCE,
        "For instructors": dict.fromkeys(chapters, ""),
    }
    return "".join(contents(title, entries) for title, entries in parts.items())


def contents(title: str, entries: Mapping[str, str]) -> str:
    """A table of contents: page -> what it is called, "" for its own heading."""
    lines = [f"{name} <{page}>" if name else page for page, name in entries.items()]
    options = [":hidden:", ":maxdepth: 1", f":caption: {title}"]
    return "\n".join(["", "```{toctree}", *options, "", *lines, "```", ""])


def plain_where_there_is_no_page(pages: Path) -> None:
    """Links to files of the course that are no page become the names of these files."""

    def plain(page: Path, match: re.Match) -> str:
        words, target = match.groups()
        if (page.parent / target).exists():
            return match[0]
        name = (ROOT / page.parent.relative_to(pages) / target).resolve()
        if not name.exists():
            return match[0]  # Sphinx says that it leads nowhere
        return f"{words} (`{name.relative_to(ROOT)}`)"

    link = re.compile(r"(?<!!)\[([^\]]*)\]\((?!\w+:)([^)#\s]+)(?:#[^)]*)?\)")
    for page in pages.rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        page.write_text(
            link.sub(lambda match, page=page: plain(page, match), text), "utf-8"
        )


# -------------------------------------------------------------- building


def build(folder: Path, profile: str) -> Path:
    """Build the site in `folder`; return the folder with its pages.

    Raises UserError when anything is wrong with it; Sphinx has then said what.
    """
    shutil.rmtree(folder, ignore_errors=True)
    pages, html = folder / "pages", folder / "html"
    pages.mkdir(parents=True)
    assemble(pages, profile)
    command = [sys.executable, "-m", "sphinx", "--builder", "html", "--jobs", "auto"]
    command += ["--fail-on-warning", "--keep-going", "--quiet", str(pages), str(html)]
    status = subprocess.run(command, timeout=TIME_LIMIT).returncode
    if status:
        raise errors.UserError(f"Sphinx failed with status {status}.")
    return html


def main() -> None:
    try:
        html = build(ROOT / "build" / "site", profiles.in_force().name)
    except errors.UserError as error:
        sys.exit(f"The site could not be built: {error}")
    print(f"The site is in {files.shown(html)}: open its index.html.")


if __name__ == "__main__":
    main()
