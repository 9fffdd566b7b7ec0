"""From what is on the screen to cause and cure: the table of messages.

The table is data: messages/*.toml beside this module, which says what an entry has.
"""

import functools
import re
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path

import tomli

from distcheck import errors

TABLE = Path(__file__).with_name("messages")
# Where two entries match a line, the earlier one explains it.
FILES = ("launch.toml", "horovod.toml", "tensorflow.toml", "setup.toml")
LINES = 6  # a pattern with a \n in it is searched in as many lines of a rank
CURES = 2  # more are no answer to somebody in trouble
SEEN = ("here", "reported")
_ID = re.compile(r"[a-z0-9]+\.[a-z0-9]+(-[a-z0-9]+)*")


@dataclass(frozen=True)
class Message:
    """Something that is printed when a run or a set-up fails.

    id: layer.what. pattern: a regular expression that is searched in each line; with a
    \\n in it, in the last LINES lines of a rank, of which it has to match the last one.
    consequence: true of what others print because somebody failed: what came before is
    explained instead, if there is something. warning: true of what a run may go on
    after: it is explained only if nothing failed.
    meaning, cause: a sentence each. apart: how to tell it from its neighbors. cure:
    what to type, or code, a line each, which may begin with a sentence.
    lesson: a lesson's number, or a page such as INSTALL.md. reports: public ones.
    line: real output that the pattern matches; unlike: lines that it must not match.
    seen: "here" if it was caused with this course, else "reported".
    """

    id: str
    pattern: str
    meaning: str
    cause: str
    cure: tuple[str, ...]
    line: str
    seen: str
    consequence: bool = False
    warning: bool = False
    apart: str = ""
    lesson: str = ""
    reports: tuple[str, ...] = ()
    unlike: tuple[str, ...] = ()

    @functools.cached_property
    def regex(self) -> re.Pattern:
        return re.compile(self.pattern)

    def found_in(self, lines: Sequence[str]) -> bool:
        """Whether it is what the last of these lines says. They are one rank's."""
        if "\\n" not in self.pattern:
            return bool(self.regex.search(lines[-1]))
        text = "\n".join(lines[-LINES:])
        last = len(text) - len(lines[-1])
        return any(found.end() > last for found in self.regex.finditer(text))


_KEYS = {"not" if f.name == "unlike" else f.name: f for f in fields(Message)}


@functools.cache
def messages(folder: Path = TABLE) -> tuple[Message, ...]:
    """The whole table, in the order in which it is searched.

    Raises UserError, with file and id, for an entry that isn't as `Message` says.
    """
    table: dict[str, Message] = {}
    for name in FILES:
        try:
            entries = tomli.loads((folder / name).read_text(encoding="utf-8"))
        except tomli.TOMLDecodeError as error:
            raise errors.UserError(f"{name}: {error}") from None
        for entry in entries.get("message", []):
            problem = _problem(entry)
            if entry.get("id") in table:
                problem = "is there already"
            if problem:
                raise errors.UserError(f"{name}: {entry.get('id')}: {problem}")
            values = {
                _KEYS[key].name: tuple(value) if isinstance(value, list) else value
                for key, value in entry.items()
            }
            table[entry["id"]] = Message(**values)
    return tuple(table.values())


def _problem(entry: dict) -> str:
    """What is wrong with an entry of the table; "" if nothing is."""
    for key, value in entry.items():
        if key not in _KEYS:
            return f"there is no key {key!r}"
        kind = _KEYS[key].type
        if kind == tuple[str, ...]:
            fits = isinstance(value, list) and all(isinstance(v, str) for v in value)
        else:
            fits = isinstance(value, kind)
        if not fits:
            return f"{key} = {value!r} is of another kind"
    for key, field in _KEYS.items():
        if field.default is MISSING and not entry.get(key):
            return f"{key} is missing"
    if not _ID.fullmatch(entry["id"]):
        return "an id is layer.what, in small letters"
    if entry["seen"] not in SEEN:
        return f"seen is one of {SEEN}"
    if entry.get("consequence") and entry.get("warning"):
        return "it is a consequence or a warning"
    if len(entry["cure"]) > CURES or any("\n" in line for line in entry["cure"]):
        return f"a cure has at most {CURES} lines, each for itself"
    try:
        re.compile(entry["pattern"])
    except re.error as error:
        return f"pattern: {error}"
    return ""


def find(lines: Sequence[str]) -> Message | None:
    """The entry that explains the last of these lines of a rank; None without one."""
    return next((message for message in messages() if message.found_in(lines)), None)
