"""The page *Troubleshooting*, and its pages of messages: what the clinic and the table
of messages know.

python -m utils.checking.troubleshooting    # writes exercises/messages/*.md whole, and
                                            # parts of exercises/clinic.md
"""

import re
from collections.abc import Sequence
from pathlib import Path

import tomli

from distcheck import errors, files
from utils.base import texts
from utils.checking import clinic
from utils.lessons import outline
from utils.running import explain

BY_MESSAGE = "<!-- troubleshooting.py says this -->"
BY_SYMPTOM = "<!-- symptoms.toml says this -->"
END = "<!-- until here -->"
# A file of the table, each a page: its title, and who prints what is there.
PAGES = {
    "launch.toml": (
        "Messages: starting workers",
        "by the shell, `mpirun`, `horovodrun`, ssh, Slurm, Spark and Kubernetes, and "
        "by Gloo and NCCL when they connect",
    ),
    "horovod.toml": (
        "Messages: Horovod and NCCL",
        "by Horovod and NCCL during the training",
    ),
    "tensorflow.toml": (
        "Messages: TensorFlow",
        "by TensorFlow and its strategies, CUDA and Python",
    ),
    "keras.toml": (
        "Messages: Keras and data",
        "by Keras 2 and 3, and while data are read",
    ),
    "setup.toml": (
        "Messages: installing and building",
        "by the set-up of the course, pip, CMake and compilers",
    ),
    "general.toml": (
        "Messages: any program",
        "by Python when any program fails, or as warnings that rarely matter",
    ),
}
KINDS = {"consequence": "This is a consequence.", "warning": "This is a warning."}
HEADING = 100  # characters


def by_message() -> str:
    """The pages of messages, as links, in Markdown."""
    return "\n".join(
        f"- [{title}](messages/{Path(name).stem}.md): printed {by}."
        for name, (title, by) in PAGES.items()
    )


def pages() -> dict[Path, str]:
    """Each page of messages, and its text."""
    return {
        clinic.page().parent / "messages" / f"{Path(name).stem}.md": _page(name, known)
        for name, known in explain.by_file().items()
    }


def _page(name: str, messages: Sequence[explain.Message]) -> str:
    title, by = PAGES[name]
    begin = (
        f"# {title}\n\n`course explain` knows these messages, which are printed {by}. "
        "Search this page for a part of your message that has no names and numbers of "
        "your own in it. Other messages, and what to do if there is none: "
        "[Troubleshooting](../clinic.md)."
    )
    return "\n\n".join([begin, *map(_entry, messages)]) + "\n"


def lines_of(cure: Sequence[str]) -> list[str]:
    """A cure as a page shows it: what has three blanks between is a line each."""
    parts = (part.strip() for line in cure for part in line.split("   "))
    return [part for part in parts if part]


def _entry(message: explain.Message) -> str:
    line = explain.Found(0, message.line.splitlines()[-1], [], message).said
    heading = line if len(line) <= HEADING else f"{line[:HEADING]} ..."
    about = (message.meaning, message.cause, message.apart)
    kind = KINDS.get(explain.Found(0, line, [], message).kind)
    parts = [
        f"## {_code(heading)}",
        " ".join(filter(None, (kind, *about))),
        "```text\n{}\n```".format("\n".join(lines_of(message.cure))),
    ]
    lesson = _link(message.lesson, "../..")
    if more := ", ".join(filter(None, (lesson, *message.reports))):
        parts.append(f"More: {more}")
    return "\n\n".join(parts)


def _code(text: str) -> str:
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def _link(lesson: str, root: str = "..") -> str:
    """A lesson, or a page, as a link; `root`: the way from the page to the course."""
    for notebook in outline.read().notebooks.values():
        if notebook.number == lesson:
            return f"[{notebook.title}]({root}/notebooks/{notebook.name}.ipynb)"
    return f"[{Path(lesson).stem}]({root}/{lesson})" if lesson else ""


def symptoms() -> list[dict]:
    """The table of symptoms.toml, which says what is in it."""
    text = Path(__file__).with_name("symptoms.toml").read_text(encoding="utf-8")
    return tomli.loads(text)["symptom"]


def by_symptom() -> str:
    """What is seen where no message helps, in Markdown.

    Raises UserError for a disease that the page hasn't.
    """
    known = clinic.diseases()
    parts = []
    for symptom in symptoms():
        parts.append(f"### {symptom['what']}")
        rows = []
        for disease in symptom["diseases"]:
            if disease not in known:
                raise errors.UserError(
                    f"symptoms.toml: there is no disease {disease!r}."
                )
            sentences = re.split(r"(?<=\.) (?=[A-Z`])", known[disease]["Symptom"])
            seen = " ".join(sentences[:2])
            rows.append(f"- {seen} See [{disease}](#{_anchor(disease)}).")
        for also in symptom.get("also", []):
            more = ", ".join([_link(also["lesson"]), *also.get("reports", [])])
            rows.append(f"- {also['seen']} {also['cause']} {also['cure']} More: {more}")
        parts.append("\n".join(rows))
    return "\n\n".join(parts)


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def generated() -> dict[Path, str]:
    """Each page, and its whole text, up to date."""
    page = clinic.page()
    text = page.read_text(encoding="utf-8")
    for begin, content in ((BY_MESSAGE, by_message()), (BY_SYMPTOM, by_symptom())):
        text = texts.between(page.name, text, begin, END, content)
    return {page: text} | pages()


def main() -> None:
    for page, text in generated().items():
        page.parent.mkdir(exist_ok=True)
        files.write_whole(page, text)


if __name__ == "__main__":
    main()
