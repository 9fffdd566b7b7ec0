"""From what is on the screen to cause and cure: `course explain`.

The table of messages is data: messages/*.toml beside this module, which says what an
entry has. Each key there stands on a line of its own, and lists have double quotes, as
the set-up reads them with the standard library alone. A log is read as a stream, of one
rank or of many.
"""

import functools
import itertools
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path, PureWindowsPath
from string import digits
from typing import TextIO

import tomli

from distcheck import errors, files
from utils.base import course
from utils.running.result import LOG

TABLE = Path(__file__).with_name("messages")
# Where two entries match a line, the earlier one explains it.
FILES = (
    "launch.toml",
    "horovod.toml",
    "keras.toml",
    "tensorflow.toml",
    "setup.toml",
    "general.toml",
)
LINES = 6  # a pattern with a \n in it is searched in as many lines of a rank
CURES = 2  # more are no answer to somebody in trouble
SEEN = ("here", "reported")
# The tokens of a regular expression, the head of a group and a lazy quantifier as one;
# and the heads of groups in which there is what is matched.
_TOKEN = re.compile(
    r"\\.|\[\^?\]?(?:\\.|[^]\\])*\]|[*+?]\??|\{\d*,?\d*\}\??"
    r"|\((?:\?(?:[imsx]+\)|P=\w+\)|P<\w+>|<?[=!]|[imsx]*:))?|."
)
_MATCHES = re.compile(r"\((?:\?(?:P<\w+>|:))?")
_PLAIN = re.compile(r"[\w.:/@+-]+")  # does no harm in a command that is typed
_ID = re.compile(r"[a-z0-9]+\.[a-z0-9]+(-[a-z0-9]+)*")


def _literals(pattern: str) -> list[str]:
    """Texts of which one is in the last line of whatever matches a regular expression:
    of each alternative the part with the longest. An empty one is in any line."""
    return _of_group(iter(_TOKEN.findall(pattern)))[0]


def _of_group(tokens: Iterator[str]) -> tuple[list[str], bool]:
    """Such texts of what the tokens up to the end of this group match, and whether it
    has a newline: what is before it is in an earlier line."""
    texts: list[str] = []
    parts, newline = [[""]], False  # of this alternative; the last one is being read
    for token in tokens:
        if token == ")":
            break
        if token == "|":
            texts += max(parts, key=_shortest)
            parts = [[""]]
        elif token == "\\n":
            parts, newline = [[""]], True
        elif token[0] == "(":
            inner, below = ([""], False) if token[-1] == ")" else _of_group(tokens)
            if below:
                parts, newline = [], True
            parts += [inner if _MATCHES.fullmatch(token) else [""], [""]]
        elif token[0] in "*?{":  # what is before may be absent
            if parts[-1] == [""]:
                parts[-2:] = [[""]]
            else:
                parts[-1:] = [[parts[-1][0][:-1]], [""]]
        elif token[0] == "+":
            parts.append([""])
        elif token in ".^$" or token[0] == "[" or re.fullmatch(r"\\\w", token):
            parts += [[""], [""]]
        else:
            parts[-1] = [parts[-1][0] + token[-1]]
    return texts + max(parts, key=_shortest), newline


def _shortest(texts: list[str]) -> int:
    return min(map(len, texts))


@dataclass(frozen=True)
class Message:
    """Something that is printed when a run or a set-up fails.

    id: layer.what. pattern: a regular expression that is searched in each line; with a
    \\n in it, in the last LINES lines of a rank, of which it has to match the last one.
    Its group `rank`, if it has one, says which rank failed; a group whose name is in
    capitals, such as HOST, what stands for this word of the texts in a log; HOST2 is
    one more in another alternative of the pattern.
    consequence: true of what others print because somebody failed: what came before is
    explained instead, if there is something. warning: true of what a run may go on
    after: it is explained only if nothing failed. general: true of what any
    program may print: what says more of the same error, or warns of more, is explained
    instead. decisive: true of what makes other errors pointless to mend, as a system on
    which nothing of this runs: it is explained first, wherever it stands.
    meaning, cause: a sentence each. apart: how to tell it from its neighbors. cure:
    what to type, or code, a line each, which may begin with a sentence.
    lesson: a lesson's number, or a page such as INSTALL.md. reports: public ones.
    line: real output that the pattern matches; unlike: lines that it must not match,
    of neighbors.
    seen: "here" if it was caused with this course, else "reported": in a public report,
    or by the source of what prints it.
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
    general: bool = False
    decisive: bool = False
    apart: str = ""
    lesson: str = ""
    reports: tuple[str, ...] = ()
    unlike: tuple[str, ...] = ()

    @functools.cached_property
    def regex(self) -> re.Pattern:
        return re.compile(self.pattern)

    @functools.cached_property
    def literals(self) -> list[str]:
        """Texts of which a line needs one for the pattern to match: they are found
        much faster."""
        of_another_kind = any(head in self.pattern for head in ("(?i)", "(?("))
        return [""] if of_another_kind else _literals(self.pattern)

    def found_in(self, lines: Sequence[str]) -> bool:
        """Whether it is what the last of these lines says. They are one rank's."""
        if "\\n" not in self.pattern:
            return bool(self.regex.search(lines[-1]))
        text = "\n".join(list(lines)[-LINES:])
        last = len(text) - len(lines[-1])
        return any(found.end() > last for found in self.regex.finditer(text))

    @property
    def texts(self) -> list[str]:
        """All that it says of the error, one sentence or line after the other."""
        return [self.meaning, self.cause, self.apart, *self.cure]

    def told_of(self, line: str) -> "Message":
        """This entry, with what `line` says in the place of words such as HOST."""
        match = self.regex.search(line)
        known = {
            word.rstrip(digits): value
            for word, value in (match.groupdict() if match else {}).items()
            if word.isupper() and value and _PLAIN.fullmatch(value)
        }
        if not known:
            return self
        words = re.compile(rf"\b(?:{'|'.join(known)})\b")
        meaning, cause, apart, *cure = (
            words.sub(lambda word: known[word[0]], text) for text in self.texts
        )
        return replace(
            self, meaning=meaning, cause=cause, apart=apart, cure=tuple(cure)
        )


_KEYS = {"not" if f.name == "unlike" else f.name: f for f in fields(Message)}


@functools.cache
def messages(folder: Path = TABLE) -> tuple[Message, ...]:
    """The whole table, in the order in which it is searched.

    Raises UserError, with file and id, for an entry that isn't as `Message` says.
    """
    return tuple(itertools.chain(*by_file(folder).values()))


@functools.cache
def by_file(folder: Path = TABLE) -> dict[str, list[Message]]:
    """The table, by the file that an entry is in; errors as of `messages`."""
    table: dict[str, list[Message]] = {}
    ids = set()
    for name in FILES:
        table[name] = []
        try:
            entries = tomli.loads((folder / name).read_text(encoding="utf-8"))
        except tomli.TOMLDecodeError as error:
            raise errors.UserError(f"{name}: {error}") from None
        for entry in entries.get("message", []):
            problem = _problem(entry)
            if entry.get("id") in ids:
                problem = "is there already"
            if problem:
                raise errors.UserError(f"{name}: {entry.get('id')}: {problem}")
            values = {
                _KEYS[key].name: tuple(value) if isinstance(value, list) else value
                for key, value in entry.items()
            }
            ids.add(entry["id"])
            table[name].append(Message(**values))
    return table


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
    for key, facts in _KEYS.items():
        if facts.default is MISSING and not entry.get(key):
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
        groups = re.compile(entry["pattern"]).groupindex
    except re.error as error:
        return f"pattern: {error}"
    told = ("meaning", "cause", "apart")
    texts = " ".join([*(entry.get(key, "") for key in told), *entry["cure"]])
    for word in (group.rstrip(digits) for group in groups if group.isupper()):
        if not re.search(rf"\b{word}\b", texts):
            return f"pattern: its group {word} is a word of no text"
    return ""


def candidates(text: str) -> list[Message]:
    """The entries that a line of the text may match, in the order of the table."""
    here = _beginnings().intersection(text[at : at + 4] for at in range(len(text)))
    return [
        message
        for message in messages()
        if any(
            (len(literal) < 4 or literal[:4] in here) and literal in text
            for literal in message.literals
        )
    ]


@functools.cache
def _beginnings() -> frozenset[str]:
    """Four characters with which a literal of the table begins: to look for them once
    takes less time than to look for each literal."""
    return frozenset(text[:4] for message in messages() for text in message.literals)


def find(lines: Sequence[str]) -> Message | None:
    """The entry that explains the last of these lines of a rank; None without one."""
    return _first(messages(), lines)


def _first(table: Iterable[Message], lines: Sequence[str]) -> Message | None:
    return next((message for message in table if message.found_in(lines)), None)


# ------------------------------------------------------------ what a log has

# What launchers put before a worker's line: mpirun --tag-output and horovodrun, maybe
# after the time, with more where SageMaker calls it; `course run`; srun --label, which
# other lines may look like as well.
_TAGGED = re.compile(
    r"(?:\w{3} \w{3} [ \d]\d [\d:]{8} \d{4}|\d{4}-\d\d-\d\d[ T][\d:.,]+Z? )?"
    r"\[(?:[^],\s]+,)?(?:mpirank:)?(?P<rank>\d+)(?:,[^]\s]+)?\]<std\w+>: ?"
)
_NUMBERED = re.compile(r"\[(?P<rank>\d+)\] ")
_LABELED = re.compile(r" *(?P<rank>\d+): ")
# What builds of images, hosted CI and clusters put before each line: BuildKit's step
# and seconds, or the time as Kubernetes and GitHub write it.
_STAMP = re.compile(r"^#\d+ \d+\.\d+ |^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z ")
# A traceback in one line, as repr() writes a text or a list of lines: its head and the
# first frame, what stands between two items of such a list, and its end, if it has one.
_FOLDED = re.compile(
    r"""Traceback \(most recent call last\):\\n(?:['"], [bu]?['"])? *File\b.*"""
)
_NEXT_ITEM = re.compile(r"""(?<=\\n)['"], [bu]?['"]""")
_END_OF_ITEMS = re.compile(r"""(?:\\n)?['"][])}]*\s*$""")
_ESCAPED = re.compile(r"""\\([n\\'"])""")
# What a progress bar has rewritten, and colors.
_REWRITTEN = re.compile(r".*\r(?=.)|\x08+|\x1b\[[0-9;]*[A-Za-z]")

_TRACEBACK = "Traceback (most recent call last):"
# A notebook's has the exception's name before it, and arrows at lines that it quotes.
_OF_A_NOTEBOOK = re.compile(r"[\w.]+ {2,}Traceback \(most recent call last\)$")
_POINTED_AT = re.compile(r"-+> *\d+ ")
# A frame of it, and below that, or below an arrow, more lines that it quotes.
_NOTEBOOK_FRAME = re.compile(
    r"\.py\b\S* in \w+\(|^File \S+:\d+, in |^Cell In ?\[\d+\], |^<ipython-input\S+ in "
)
_BELOW_A_FRAME = re.compile(r" *\d+( |$)")
_CHAINED = (
    "During handling of the above exception",
    "The above exception was the direct cause",
)
_FAILED = re.compile(r"rank (?P<rank>\d+) of \d+ failed: (?=[\w.]+: )")  # course run
_IGNORED = "Exception ignored in"
# The first line of a message that goes on below, and the last one: TensorFlow's ends
# with the operation, and that of a layer of Keras with what the layer was given.
_GOES_ON = re.compile(
    r"(:|\{\{function_node .*\}\})\s*$|Exception encountered when calling"
)
_ENDS = re.compile(r"\[Op:|^Call arguments received by")
# What an error says that only announces its message; the second is of VS Code.
_IN_NEXT_LINE = re.compile(
    r":\s*$|^Exception has occurred: [\w.]+(?:\s*\(note: .*\))?$"
)
# Its name, which has a capital letter or is one of a module.
_EXCEPTION = re.compile(r"(?=[\w.]*[A-Z]|\w+\.\w)[\w.]*\w(: |:?$)")
_IN_USER_CODE = ": in user code:"  # below it, indented, is what it really was
_INNER = re.compile(r"\s+[\w.]+(?:Error|Exception): ")
_FRAME = re.compile(r'^\s*File "([^"]+)", line (\d+)')
_MORE_INDENTED = re.compile(r'^(\s+)  File "[^"]+", line \d+')
_LIBRARY = re.compile(
    r"^<|(site|dist)-packages[/\\]|[/\\]lib[/\\]python3|__autograph_generated"
    r"|/distcheck/\w+\.py$|/utils/(base|running|training)/\w+\.py$"  # the course's
)
# An error that isn't an exception of Python's: a compiler's, a launcher's, a library's.
_SAYS_ERROR = re.compile(
    r"\w(?:Error|Exception)\)?(?: \(see above for traceback\))?: "
    # A fraction or a percentage is a metric's value.
    r"|\b[Ee]rror ?: +(?!\d*\.\d+(?:e-?\d+)?[%,;]?(?:\s|$)|\d+(?:%|e-\d))|\bERROR\b"
    r"|^Exception: |^[\w.]*[a-z](?:Error|Exception)$|\bAn error occurred \("
    r"|^(?:\w+\.)+(?:errors?|exceptions?|lib)\.[A-Z]\w+: "
    r"|\bError while |\bCMake Error\b|(?<!non-)(?<!\b0 )\b(?i:fatal)\b"
    r"|^F\d{4} \d\d:|(?:^|: )F \S+:\d+\] |: Assertion .+ failed\.$"
    r"|Segmentation fault(?! handler)|Bus error|\(core dumped\)"
    r"|\bCUDA_ERROR_\w|terminate called after throwing|^Error from server\b"
    r"|: \S+: (?:command )?not found$|^Exception has occurred: "
    r"|^ *\(\d\) [A-Z_]{7,}: "
    r"|NCCL WARN (?!NET/\w+ ?: (?:No|Unable|Failed to find)\b)"
)
# A line that matters only where there is no error.
_COMPLAINS = re.compile(
    r"\b(?i:could not|cannot|can't|unable to|failed to|aborted|aborting)\b"
    r"|\bOP_REQUIRES failed\b"
)
# A line of a program that a traceback quotes: no message, whatever is in it.
_RAISES = re.compile(r"(?:^|\s\s)raise \w")
# TensorFlow's "2 root error(s) found.", below which these are.
_ROOTS = re.compile(r"\d root error\(s\) found\.$")
_ROOT = re.compile(r"\s*\(\d+\) (?!(?i:cancell?ed)\b)")
_HARMLESS = re.compile(
    r"^(?:WARNING|INFO|DEBUG|NOTICE)\b|\w+Warning: "
    r"|^[IW]\d{4} \d\d:|severity=Corrected"
    r"|: [IW] \S+:\d+\] (?!OP_REQUIRES failed)|\blog level to\b"
    r"|\bNCCL INFO |\. Attempting port \d+\.$"
)
# A warning that has the words of an error in its next line.
_WARNS_OF = re.compile(r"\bUserWarning: .*:\s*$")
# What pip says when it tries a download again, and when it has all that it needs.
_TRIES_AGAIN = re.compile(r"\s*WARNING: Retrying \(")
_SUCCEEDED = re.compile(r"\s*Successfully (?:installed|downloaded) ")

_AT_ONCE = 2_000  # lines
_LONGEST = 1 << 16  # characters of a line, of which some have no end
_MOST = 10_000  # errors that are kept: a log may repeat one for hours
_OF_A_MESSAGE = 200  # lines
_SHOWN, _BRIEFLY = 160, 100  # characters of a line
_NOTHING = """\
No line of the log looks like an error.
  -> If the run stands still, see where each rank is: course stacks
  -> If there is one worker where you expected several, start the program with a \
launcher: horovodrun -np 2 python train.py
  -> If it stands still on several hosts, and not on one, name a network that they \
share: mpirun --mca btl_tcp_if_include 10.0.0.0/24 -x NCCL_SOCKET_IFNAME=eth0 ..."""


def _says(message: Message | None) -> int:
    """How much an entry says of what went wrong."""
    if message is None:
        return 0
    return 1 if message.general else 2 if message.consequence else 3


@dataclass
class Found:
    """An error or a warning in a log.

    number: of its line in the log. ranks: on which it is, none if the log doesn't say.
    message: the entry that explains it, if one does. place: the program's own
    FILE:LINE, where that is known. raised: it is an exception of Python's. overcome:
    what failed here succeeded later, so it is no error.
    """

    number: int
    text: str
    ranks: list[int]
    message: Message | None = None
    place: str = ""
    raised: bool = False
    overcome: bool = False

    @property
    def kind(self) -> str:
        """ "error", "unknown", "warning" or "consequence"."""
        if self.message is None:
            return "unknown"
        if self.message.consequence:
            return "consequence"
        return "warning" if self.message.warning and not self.raised else "error"

    @property
    def order(self) -> tuple[bool, int, bool, int]:
        """What matters most is least: what is decisive, then the first error, else the
        last warning, as a program warns of much at its start that has nothing to do
        with its end."""
        kind = "error" if self.raised and not self.message else self.kind
        kinds = ("error", "unknown", "warning", "consequence")
        number = -self.number if kind == "warning" else self.number
        rarely = kind == "warning" and self.message.general
        decisive = self.message is not None and self.message.decisive
        return not decisive, kinds.index(kind), rarely, number

    def explained_by(self, message: Message, number: int, text: str) -> None:
        """Take this entry for the whole exception, unless it has a better one."""
        if _says(message) > _says(self.message):
            self.message, self.number, self.text = message, number, text

    @property
    def where(self) -> str:
        ranks = ", ".join(map(str, self.ranks))
        of_ranks = (
            f"Rank{'s' * (len(self.ranks) > 1)} {ranks}, line" if ranks else "Line"
        )
        return f"{of_ranks} {self.number:,} of the log" + (
            f", {self.place}" if self.place else ""
        )

    @property
    def said(self) -> str:
        """Its line, or the part of it that matters."""
        text = self.text.strip()
        if len(text) <= _SHOWN:
            return text
        match = self.message and self.message.regex.search(text)
        text = f"... {text[match.start() :]}" if match and match.start() else text
        return text if len(text) <= _SHOWN else f"{text[:_SHOWN]} ..."

    def explained(self, where: bool = True) -> str:
        """What it is and what to do, in at most five lines. where: with its place.

        Two reports are enough to read on; Troubleshooting has all.
        """
        head = f"{self.where}: {self.said}" if where else self.said
        if self.message is None:
            return (
                f"{head}\n  This message is unknown to the course, which doesn't guess "
                "what it means."
            )
        m = self.message.told_of(self.text)
        about = " ".join(filter(None, (m.meaning, m.cause, m.apart)))
        lesson = f"lesson {m.lesson}" if m.lesson.isdigit() else m.lesson
        more = ", ".join(filter(None, (lesson, *m.reports[:2])))
        lines = [head, about, *(f"-> {line}" for line in m.cure)]
        return "\n  ".join([*lines, f"More: {more}"] if more else lines)

    def as_json(self) -> dict:
        told = ("id", "meaning", "cause", "apart", "cure", "lesson", "reports")
        message = self.message and self.message.told_of(self.text)
        return {
            "kind": self.kind,
            "line": self.number,
            "ranks": self.ranks,
            "place": self.place or None,
            "text": self.text.strip(),
            **{name: getattr(message, name, None) for name in told},
        }


@dataclass
class Explanation:
    """What is in a log: `lines` of it were read. found: what matters most is first."""

    lines: int
    found: list[Found]

    @property
    def first(self) -> Found | None:
        """The first error that matters, else a warning, else a consequence."""
        return self.found[0] if self.found else None

    @property
    def shown(self) -> list[Found]:
        """The first; and if little is known of that, an error of which more is known. A
        warning is known of much that has nothing to do with an exception."""
        if not self.first or _says(self.first.message) > 1:
            return self.found[:1]
        kinds = ("error",) if self.first.raised else ("error", "warning")
        found = self.found[1:]
        known = [one for one in found if one.kind in kinds and _says(one.message) > 1]
        return [self.first, *known[:1]]

    @property
    def ok(self) -> bool:
        """Whether there is no error, or it is explained."""
        return not self.first or self.first.message is not None

    def __str__(self) -> str:
        if not self.first:
            return _NOTHING
        texts = [one.explained() for one in self.shown]
        texts[1:] = [f"The log also has this. {text}" for text in texts[1:]]
        consequences = [
            one
            for one in self.found
            if one.kind == "consequence" and not self._stands_before(one)
        ]
        cause = "it"
        if self.first.kind == "consequence":
            texts[0] = f"The log has only what follows from an error. {texts[0]}"
            consequences = []
        elif self.first.kind == "warning" and consequences:
            texts[0] = f"This warning may be the cause of what failed. {texts[0]}"
            cause = "an error"
        elif self.first.kind == "warning":
            texts[0] = f"No error is seen in the log, but a warning. {texts[0]}"
        texts += [
            f"This follows from {cause}: {one.where}: {one.said[:_BRIEFLY]}"
            for one in consequences[:2]
        ]
        return "\n".join(texts)

    def _stands_before(self, one: Found) -> bool:
        """Whether this is before what is unknown on the same rank, which then may as
        well follow from it."""
        first = self.first
        before = one.ranks == first.ranks and one.number < first.number
        return first.kind == "unknown" and before

    def as_json(self) -> dict:
        return {
            "lines": self.lines,
            "found": [one.as_json() for one in self.found[:20]],
        }


def known(text: str) -> str:
    """What is known of the error that a report quotes; "" if nothing is."""
    first = explain(text.splitlines()).first
    told = first and first.kind == "error" and not first.message.general
    return first.explained(where=False) if told else ""


def explain(log: Iterable[str]) -> Explanation:
    """Find what went wrong in the lines of a log, which may have their ranks before."""
    workers: dict[int | None, _Worker] = {}
    found: list[Found] = []
    number = 0
    for lines in _by_rank(log):
        whole = [text for _, texts in lines for text in texts]
        # As they are, and as a sentence that is broken over lines reads.
        joined = "\n".join([*whole, " ".join(map(str.strip, whole))])
        table = candidates(joined)
        for rank, texts in lines:
            number += 1
            worker = workers.setdefault(rank, _Worker(rank))
            for text in texts:
                one = worker.take(number, text, table)
                if one and len(found) < _MOST:
                    found.append(one)
    found = [one for one in found if not one.overcome]
    if all(one.kind == "warning" for one in found):
        found += [one for worker in workers.values() if (one := worker.end())]
    if not found:
        found = [one for worker in workers.values() if (one := worker.complaint)]
    return Explanation(number, _grouped(found))


def _grouped(found: list[Found]) -> list[Found]:
    """What matters most first; the same on several ranks, or again, only once."""
    groups: dict[str, Found] = {}
    for one in sorted(found, key=lambda one: one.order):
        key = one.message.id if one.message else one.text
        group = groups.setdefault(key, one)
        group.ranks = sorted({*group.ranks, *one.ranks})
    return list(groups.values())


def _by_rank(log: Iterable[str]) -> Iterator[list[tuple[int | None, list[str]]]]:
    """Lists of lines, each with its rank, if it says so, which is cut off. A line is
    one text, or several if a traceback is folded into it."""
    log, patterns = iter(log), None
    while lines := list(itertools.islice(log, _AT_ONCE)):
        if patterns is None:
            labeled = sum(bool(_LABELED.match(line)) for line in lines)
            patterns = [_TAGGED, _NUMBERED, *[_LABELED] * (labeled > len(lines) / 2)]
        split = (_split(line, patterns) for line in lines)
        yield [(rank, _unfolded(text)) for rank, text in split]


def _unfolded(line: str) -> list[str]:
    """A traceback that is folded into a line as the lines that it had, below what
    stands before it."""
    folded = _FOLDED.search(line)
    if not folded:
        return [line]
    text = _END_OF_ITEMS.sub("", _NEXT_ITEM.sub("", folded[0]))
    text = _ESCAPED.sub(lambda mark: {"n": "\n"}.get(mark[1], mark[1]), text)
    return [line[: folded.start()], *text.split("\n")]


def _split(line: str, patterns: list[re.Pattern]) -> tuple[int | None, str]:
    line = _STAMP.sub("", line.rstrip("\r\n"))
    rank = None
    for pattern in patterns:
        if prefix := pattern.match(line):
            # A line that was written in parts has the prefix before each of them.
            rank, line = int(prefix["rank"]), line[prefix.end() :]
            line = line.replace(prefix[0], "") if prefix[0] in line else line
            break
    if "\r" in line or "\x08" in line or "\x1b" in line:
        line = _REWRITTEN.sub("", line)
    return rank, line


class _Worker:
    """Reads the lines of a rank, or those of which none says whose they are."""

    def __init__(self, rank: int | None):
        self.ranks = [] if rank is None else [rank]
        self.lines: deque[str] = deque(maxlen=LINES)
        self.error: Found | None = None  # the exception that is being read
        self.head: Found | None = None  # an error whose message is in the next line
        self.complaint: Found | None = None  # the last one
        self.tried_again: deque[Found] = deque(maxlen=_MOST)
        self.in_frames = self.chained = self.ignored = self.quoting = False
        self.indented = 0  # the last frame, by so many blanks
        self.left = 0  # lines that may still belong to the exception's message
        self.told: list[str] = []  # those that did so far
        self.warned = False  # of what is in the next line
        self.to_its_end = False
        self.place = self.prefix = ""
        self.began = False  # a traceback, in the line above
        self.number = 0  # of the last line that isn't blank

    def take(self, number: int, text: str, table: Sequence[Message]) -> Found | None:
        """What begins with this line, if anything does."""
        if text.rstrip().endswith(_TRACEBACK):  # with what is before each of its lines
            self.prefix, text = text.split(_TRACEBACK)[0], _TRACEBACK
        elif self.began and (more := _MORE_INDENTED.match(text)):
            # The head has lost its indentation, as where a report is copied.
            self.prefix = more[1]
        self.began = text == _TRACEBACK
        text = text.removeprefix(self.prefix)
        if text.strip():
            self.number = number
        if _OF_A_NOTEBOOK.match(text.rstrip()):
            text = _TRACEBACK
        failed = _FAILED.match(text)
        if failed:
            text = text[failed.end() :]
        self.lines.append(text)
        if text == _TRACEBACK:
            self._begin_traceback()
            return None
        if text.lstrip().startswith(_CHAINED):
            self.chained = True
            return None
        if self.in_frames and self._is_indented_like_frames(text):
            text = text.lstrip()
        elif self.in_frames and (not text or text[0].isspace()):
            self._note_place(text)
            return None
        if self._is_quoted(text) or self._is_of_a_warning(text):
            return None
        message = _first(table, self.lines)
        if failed:
            self._begin_traceback()
            if found := self._exception(number, text, message):
                found.ranks = [int(failed["rank"])]
            return found
        roots = _ROOTS.search(text)
        if roots and not self.in_frames and not self.left:
            self.error, self.ignored, self.place = None, False, ""
        if roots or (self.in_frames and _EXCEPTION.match(text)):
            return self._exception(number, text, message)
        if self._completes(text, message, table):
            return None
        if self.left and self._belongs(text):
            self._note_place(text)
            # A sentence may be broken over lines, where a report is copied.
            if text.strip():
                self.told.append(text.strip())
            message = message or _first(table, [" ".join(self.told[-LINES:])])
            if message and not message.warning:
                self.error.explained_by(message, number, text)
                self.error.place = self.place
            elif self._says_more(text):
                self.error.number, self.error.text = number, text
                self.error.place = self.place
            return None
        if message:
            match = message.regex.search(text)
            named = match and match.groupdict().get("rank")
            ranks = [int(named)] if named else self.ranks
            found = Found(number, text, ranks, message, self._place_above())
            if _TRIES_AGAIN.match(text):
                self.tried_again.append(found)
            return found
        if _SUCCEEDED.match(text):
            for one in self.tried_again:
                one.overcome = True
            self.tried_again.clear()
        if _HARMLESS.search(text):
            return None
        if _COMPLAINS.search(text):
            self.complaint = Found(number, text, self.ranks)
        if _SAYS_ERROR.search(text):
            self.place = ""
            for line in self.lines:
                self._note_place(line)
            found = Found(number, text, self.ranks, place=self.place)
            self._announce(found)
            return found
        return None

    def end(self) -> Found | None:
        """What a traceback says whose last lines, with the message, aren't there."""
        while self.lines and not self.lines[-1].strip():
            self.lines.pop()
        last = self.lines[-1] if self.lines else ""
        if not self.in_frames or self.ignored or not last[:1].isspace():
            return None
        if last.lstrip().startswith(_CHAINED):
            return None
        message = find(self.lines)
        return Found(self.number, last, self.ranks, message, self.place)

    def _announce(self, error: Found) -> None:
        """Note whether this error says only that its message is in the next line."""
        unknown = error.message is None and _IN_USER_CODE not in error.text
        self.head = error if unknown and _IN_NEXT_LINE.search(error.text) else None
        self.told = [error.text.strip()]

    def _completes(
        self, text: str, message: Message | None, table: Sequence[Message]
    ) -> bool:
        """Add this line to the error above that it is the message of, if it is; and
        the lines below it as long as they may tell what the error is."""
        if not self.head or not text.strip():
            return False
        others = (_FRAME, _SAYS_ERROR, _HARMLESS)
        if message or any(other.search(text) for other in others):
            self.head = None
            return False
        self.told.append(text.strip())
        if len(self.told) == 2:
            self.head.text = " ".join(self.told)
        self.head.message = _first(table, [" ".join(self.told)])
        if self.head.message or len(self.told) == LINES:
            self.head = None
        return True

    def _is_quoted(self, text: str) -> bool:
        """Whether this is a line of a program, as frames have even where the head of
        their traceback is missing."""
        above = _FRAME.match(self.lines[-2]) if len(self.lines) > 1 else None
        # Below frames of C, as HDF5 has them, there are messages.
        of_python = above and not above[1].endswith(".c")
        points = _POINTED_AT.match(text) or _NOTEBOOK_FRAME.search(text)
        self.quoting = bool(points or (self.quoting and _BELOW_A_FRAME.match(text)))
        return bool(
            _RAISES.search(text) or self.quoting or (of_python and text[:1].isspace())
        )

    def _is_of_a_warning(self, text: str) -> bool:
        """Whether this is what the warning above warns of."""
        if self.warned and not text.strip():
            return False
        warned, self.warned = self.warned, bool(_WARNS_OF.search(text))
        return warned and not _SAYS_ERROR.search(text)

    def _begin_traceback(self) -> None:
        self.in_frames, self.place, self.left, self.head = True, "", 0, None
        self.ignored = len(self.lines) > 1 and self.lines[-2].startswith(_IGNORED)
        if not self.chained:
            self.error = None
        self.chained = False

    def _exception(
        self, number: int, text: str, message: Message | None
    ) -> Found | None:
        """The line that names an exception, below its frames."""
        self.in_frames = False
        if self.ignored:
            return None
        self.left, self.told = _OF_A_MESSAGE, [text.strip()]
        self.to_its_end = bool(_GOES_ON.search(text))
        if self.error is None:
            self.error = Found(number, text, self.ranks, message, self.place, True)
            self._announce(self.error)
            return self.error
        if message:
            self.error.explained_by(message, number, text)
        elif self.error.message is None:
            self.error.number, self.error.text = number, text
            self.error.place = self.place or self.error.place
        self._announce(self.error)
        return None

    def _is_indented_like_frames(self, text: str) -> bool:
        """Whether this names an exception, as far to the right as its frames, where the
        head of the traceback alone has lost its indentation."""
        by = len(text) - len(text.lstrip())
        return 0 < by <= self.indented and bool(_INNER.match(text))

    def _belongs(self, text: str) -> bool:
        """Whether this is more of an exception's message: it is indented, or follows
        on a line that says so, as TensorFlow's and those of layers do."""
        self.left -= 1
        if self.to_its_end:
            self.to_its_end = not _ENDS.search(text)
        elif text and not text[0].isspace():
            self.left = 0
            return False
        return True

    def _says_more(self, text: str) -> bool:
        """Whether this is what an error really was that has only announced it."""
        head = self.error.text
        return bool(
            (_IN_USER_CODE in head and _INNER.match(text))
            or (_ROOTS.search(head) and _ROOT.match(text))
        )

    def _place_above(self) -> str:
        """What is named right above the last line, as for what Python can't read."""
        self.place = ""
        indented = itertools.takewhile(
            lambda line: line[:1].isspace(),
            itertools.islice(reversed(self.lines), 1, None),
        )
        for line in indented:
            self._note_place(line)
        return self.place

    def _note_place(self, text: str) -> None:
        frame = _FRAME.match(text)
        if frame:
            self.indented = len(text) - len(text.lstrip())
        if frame and not _LIBRARY.search(frame[1]):
            self.place = f"{PureWindowsPath(frame[1]).name}:{frame[2]}"


# ------------------------------------------------------------ where a log is


def lines_of(stream: TextIO) -> Iterator[str]:
    """The lines of a stream; one that is endless in parts."""
    return iter(lambda: stream.readline(_LONGEST), "")


def open_log(path: Path | None) -> tuple[str, Iterator[str]]:
    """What a log is called, and its lines; without a path, that of the newest run.

    Raises UserError if there is none.
    """
    if path is None:
        folder = _newest_run()
        return files.shown(folder / LOG), lines_of_run(folder)
    if not path.is_file():
        raise errors.UserError(f"there is no log {files.shown(path)}.")
    return files.shown(path), _read(path)


def lines_of_run(folder: Path) -> Iterator[str]:
    """What the workers of a run printed, and then its launcher."""
    for name in (LOG, "launcher.txt"):
        if (folder / name).is_file():
            yield from _read(folder / name)


def _read(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8", errors="replace", newline="\n") as log:
        yield from lines_of(log)


def _newest_run() -> Path:
    logs = sorted((course.root() / "logs").glob(f"*/{LOG}"))
    if not logs:
        raise errors.UserError(
            "there is no run of `course run` yet. Name a log, course explain LOG, or "
            "pipe what is printed: python train.py 2>&1 | course explain"
        )
    return logs[-1].parent
