"""Take in a class's submissions, of which each may be careless or hostile.

Every entry of the folder is the submission of the learner whose name it bears:
`alice.py`, a folder `bob` with the program in it, or `carol.zip` likewise. All that is
taken is one program's bytes: nothing is unpacked, no link is followed, and every
amount that a submission decides is read up to a limit.

What can't be taken becomes a submission with a `problem`, a sentence that never names
the learner, so that it can stand in an anonymous gradebook.
"""

import hashlib
import io
import os
import re
import stat
import struct
import unicodedata
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from distcheck import errors, files

HANDED_IN, MISSING, REFUSED = "handed in", "missing", "refused"

MOST_PROGRAM_BYTES = 100_000  # ten times the course's own; Python parses it in 2 s
MOST_FILES = 2_000  # in a folder or a zip
MOST_ZIP_BYTES = 10_000_000  # as handed in: its list of files is read whole
MOST_UNPACKED_BYTES = 100_000_000  # as declared by a zip; unpacked it is not

# zipfile unpacks these piece by piece; others could blow up in one piece.
_READABLE = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)

# What zipfile raises for bytes that are no proper zip.
_BROKEN = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    NotImplementedError,
    OverflowError,
    RuntimeError,
    ValueError,
)


@dataclass(frozen=True)
class Submission:
    """What a learner handed in.

    learner: the name of the entry without `.py` or `.zip`, fit to be shown.
    source: the entry.
    program: the bytes of the program, UTF-8 and not empty; None if there is a problem.
    problem: a sentence on why there is no program; it does not name the learner.
    files: the files that the problem is about; they may well name the learner.
    status: HANDED_IN, MISSING or REFUSED.
    """

    learner: str
    source: Path
    program: bytes | None
    problem: str | None
    status: str
    files: tuple[str, ...] = ()


class _Problem(Exception):
    def __init__(self, status: str, problem: str, files: Iterable[str] = ()):
        super().__init__(problem)
        self.status, self.problem = status, problem
        self.files = tuple(visible(name) for name in sorted(files)[:5])


def visible(text: str, but: str = "") -> str:
    """`text` with what steers a display instead of being seen written as `[U+202E]`:
    control characters, and those that turn the direction of writing, among others.

    but: characters to be left as they are, such as a line's end.
    """
    if text.isprintable():  # most texts are, and this is much faster
        return text
    return "".join(
        character
        # Strange spaces (Zs) are still spaces.
        if character.isprintable()
        or character in but
        or unicodedata.category(character) == "Zs"
        else f"[U+{ord(character):04X}]"
        for character in text
    )


def collect(folder: Path, exercise: str = "fashion_mnist") -> list[Submission]:
    """The submissions in `folder`, sorted by learner; hidden files are none.

    exercise: of several programs, the one with this name is taken.

    Raises UserError when there is no such folder, or nothing in it.
    """
    if not folder.is_dir():
        raise errors.UserError(
            f"there is no folder {files.shown(folder)}. Name the folder that holds "
            "the submissions: NAME.py, NAME.zip or a folder NAME for each learner."
        )
    by_learner: dict[str, list[Submission]] = {}
    for entry in sorted(folder.iterdir()):
        if not _ignored(entry.name):
            submission = _submission(entry, exercise)
            by_learner.setdefault(submission.learner, []).append(submission)
    if not by_learner:
        raise errors.UserError(
            f"there are no submissions in {files.shown(folder)}. It holds NAME.py, "
            "NAME.zip or a folder NAME for each learner."
        )
    return [
        _alone(by_learner[learner])
        for learner in sorted(by_learner, key=lambda name: (name.casefold(), name))
    ]


def slugs(learners: Iterable[str]) -> dict[str, str]:
    """A file name for each learner: unique, and of a-z, 0-9 and `-` only.

    A plain name is its own; others get a few digits of their hash, so that a name
    that joins the class does not change those of others.
    """
    taken: dict[str, str] = {}
    # Plain names first: theirs is not to be lost to one that is made.
    for learner in sorted(learners, key=lambda name: (not _plain(name), name)):
        base = learner
        if not _plain(learner):
            ascii_ = unicodedata.normalize("NFKD", learner).encode("ascii", "ignore")
            words = re.sub(r"[^a-z0-9]+", "-", ascii_.decode().lower())[:40].strip("-")
            digits = hashlib.sha256(learner.encode()).hexdigest()[:8]
            base = f"{words or 'learner'}-{digits}"
        slug, number = base, 1
        while slug in taken.values():
            number += 1
            slug = f"{base}-{number}"
        taken[learner] = slug
    return taken


def _plain(name: str) -> bool:
    # Windows keeps such names as con or lpt1 for itself.
    device = re.fullmatch(r"con|prn|aux|nul|(com|lpt)\d", name)
    return not device and re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?", name)


def _ignored(path: str) -> bool:
    """Is it, or does it lie in, something that people do not hand in on purpose?"""
    return any(
        part.startswith(".") or part in ("__MACOSX", "__pycache__")
        for part in re.split(r"[/\\]", path)
    )


def _alone(submissions: list[Submission]) -> Submission:
    """The only submission of a learner; which of several counts, nobody knows."""
    if len(submissions) == 1:
        return submissions[0]
    return Submission(
        submissions[0].learner,
        submissions[0].source,
        None,
        f"there are {len(submissions)} submissions of this learner",
        REFUSED,
        tuple(visible(submission.source.name) for submission in submissions),
    )


def _submission(entry: Path, exercise: str) -> Submission:
    # A file name is any bytes; what of it is not UTF-8 is shown as \xff. And two ways
    # of writing the same accents are the same name.
    name = os.fsencode(entry.name).decode("utf-8", "backslashreplace")
    name = visible(unicodedata.normalize("NFC", name))
    is_link = os.path.islink(entry)
    is_folder = os.path.isdir(entry) and not is_link
    if not is_folder:
        name = re.sub(r"\.(py|zip)\Z", "", name, flags=re.IGNORECASE)
    try:
        if is_link:
            raise _Problem(REFUSED, "it is a link; links are not followed")
        if is_folder:
            program = _from_folder(entry, exercise)
        elif entry.suffix.lower() == ".py":
            program = _read(entry, MOST_PROGRAM_BYTES)
        elif entry.suffix.lower() == ".zip":
            program = _from_zip(entry, exercise)
        else:
            raise _Problem(REFUSED, "it is no .py file, no .zip and no folder")
        _check(program)
    except _Problem as it:
        return Submission(name, entry, None, it.problem, it.status, it.files)
    except OSError as error:
        problem = f"it can't be read: {error.strerror}"
        return Submission(name, entry, None, problem, REFUSED)
    return Submission(name, entry, program, None, HANDED_IN)


def _check(program: bytes) -> None:
    try:
        text = program.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = program[: error.start].count(b"\n") + 1
        raise _Problem(
            REFUSED, f"the program is not UTF-8 text: a stray byte in line {line}"
        ) from None
    if not text.strip():
        raise _Problem(MISSING, "the program is empty")


def _read(path: Path, limit: int) -> bytes:
    """The bytes of a regular file, if there are no more than `limit`."""
    try:
        return files.read_regular(path, limit)
    except files.Unfit as error:
        raise _Problem(REFUSED, f"it {error}") from None


def _choose(paths: list[str], exercise: str) -> str:
    """Which of the files handed in is the program. Raises _Problem."""
    programs = [path for path in paths if path.lower().endswith(".py")]
    named = [path for path in programs if PurePosixPath(path).name == f"{exercise}.py"]
    choice = named or programs
    if not choice:
        raise _Problem(MISSING, "there is no .py file in it", paths)
    if len(choice) > 1:
        which = "are called" if named else "could be"
        raise _Problem(
            REFUSED, f"{len(choice)} of its programs {which} {exercise}.py", choice
        )
    return choice[0]


def _from_folder(folder: Path, exercise: str) -> bytes:
    files: list[str] = []
    count, folders = 0, [folder]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                count += 1
                if count > MOST_FILES:
                    raise _Problem(REFUSED, f"it holds more than {MOST_FILES} files")
                if _ignored(entry.name):
                    continue
                path = Path(entry.path).relative_to(folder).as_posix()
                if entry.is_symlink():
                    raise _Problem(
                        REFUSED, "there is a link in it; links are not followed", [path]
                    )
                if entry.is_dir():
                    folders.append(Path(entry.path))
                else:
                    files.append(path)
    return _read(folder / _choose(files, exercise), MOST_PROGRAM_BYTES)


def _from_zip(path: Path, exercise: str) -> bytes:
    content = _read(path, MOST_ZIP_BYTES)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            entries = _entries(archive.infolist())
            chosen = _choose(list(entries), exercise)
            # Whatever is declared, no more than this is unpacked.
            with archive.open(entries[chosen]) as program:
                unpacked = program.read(MOST_PROGRAM_BYTES + 1)
    except _BROKEN:
        raise _Problem(REFUSED, "the zip is broken") from None
    if len(unpacked) > MOST_PROGRAM_BYTES:
        limit = f"{MOST_PROGRAM_BYTES / 1e6:g} MB"
        raise _Problem(REFUSED, f"its program is larger than {limit}")
    return unpacked


def _entries(infos: list[zipfile.ZipInfo]) -> dict[str, zipfile.ZipInfo]:
    """The files of a zip by path, if all of the zip is harmless. Raises _Problem."""

    def refuse(bad: list[zipfile.ZipInfo], problem: str) -> None:
        if bad:
            raise _Problem(REFUSED, problem, [info.filename for info in bad])

    if len(infos) > MOST_FILES:
        raise _Problem(REFUSED, f"the zip holds more than {MOST_FILES} files")
    if sum(info.file_size for info in infos) > MOST_UNPACKED_BYTES:
        limit = f"{MOST_UNPACKED_BYTES / 1e6:g} MB"
        raise _Problem(REFUSED, f"the zip would unpack to more than {limit}")
    leading_out = [info for info in infos if _leads_out(info.filename)]
    refuse(leading_out, "a path in the zip leads out of it")

    files = [i for i in infos if not i.is_dir() and not _ignored(i.filename)]
    links = [info for info in files if stat.S_ISLNK(info.external_attr >> 16)]
    refuse(links, "there is a link in the zip; links are not followed")
    encrypted = [info for info in files if info.flag_bits & 1]
    refuse(encrypted, "the zip is encrypted")
    nested = [info for info in files if info.filename.lower().endswith(".zip")]
    refuse(nested, "there is a zip in the zip")
    unusual = [info for info in files if info.compress_type not in _READABLE]
    refuse(unusual, "the zip is compressed in an unusual way; only deflate will do")

    entries = {info.filename: info for info in files}
    if len(entries) < len(files):
        raise _Problem(REFUSED, "the zip holds several files of the same path")
    return entries


def _leads_out(path: str) -> bool:
    parts = re.split(r"[/\\]", path)
    return ".." in parts or parts[0] == "" or ":" in parts[0]
