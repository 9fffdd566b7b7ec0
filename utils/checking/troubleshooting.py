"""The page *Troubleshooting*: what the table of messages and the clinic know.

python -m utils.checking.troubleshooting    # writes parts of exercises/clinic.md
"""

import re
from pathlib import Path

import tomli

from distcheck import errors, files
from utils.base import texts
from utils.checking import clinic
from utils.lessons import outline
from utils.running import explain

BY_MESSAGE = "<!-- messages/*.toml say this -->"
BY_SYMPTOM = "<!-- symptoms.toml says this -->"
END = "<!-- until here -->"
TITLES = {
    "launch.toml": "When workers are started",
    "horovod.toml": "Horovod and NCCL",
    "tensorflow.toml": "TensorFlow and Keras",
    "setup.toml": "When something is installed or built",
    "python.toml": "Python itself",
}
KINDS = {"consequence": "This is a consequence.", "warning": "This is a warning."}
HEADING = 100  # characters


def by_message() -> str:
    """Every message of the table, in Markdown."""
    parts = []
    for name, messages in explain.by_file().items():
        parts.append(f"### {TITLES[name]}")
        parts += map(_entry, messages)
    return "\n\n".join(parts)


def _entry(message: explain.Message) -> str:
    line = explain.Found(0, message.line.splitlines()[-1], [], message).said
    heading = line if len(line) <= HEADING else f"{line[:HEADING]} ..."
    about = (message.meaning, message.cause, message.apart)
    kind = KINDS.get(explain.Found(0, line, [], message).kind)
    parts = [
        f"#### {_code(heading)}",
        " ".join(filter(None, (kind, *about))),
        "```text\n{}\n```".format("\n".join(message.cure)),
    ]
    if more := ", ".join(filter(None, (_link(message.lesson), *message.reports))):
        parts.append(f"More: {more}")
    return "\n\n".join(parts)


def _code(text: str) -> str:
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def _link(lesson: str) -> str:
    """A lesson, or a page, as a link of this page."""
    for notebook in outline.read().notebooks.values():
        if notebook.number == lesson:
            return f"[{notebook.title}](../notebooks/{notebook.name}.ipynb)"
    return f"[{Path(lesson).stem}](../{lesson})" if lesson else ""


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


def generated() -> str:
    """The whole page, up to date."""
    page = clinic.page()
    text = page.read_text(encoding="utf-8")
    for begin, content in ((BY_MESSAGE, by_message()), (BY_SYMPTOM, by_symptom())):
        text = texts.between(page.name, text, begin, END, content)
    return text


def main() -> None:
    files.write_whole(clinic.page(), generated())


if __name__ == "__main__":
    main()
