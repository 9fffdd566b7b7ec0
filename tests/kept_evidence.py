"""What programs did, kept by content: a judge that was changed looks at it again.

    ~/.cache/distributed-training-course/evidence/KEY/

holds what one program reported, or a value that a test would take minutes to compute,
for all checkouts of this user; FOLDER says where the cache is on other systems. KEY is
a hash of the program, of how it is run, and of all that makes the report, from the
recorders to the lock file. So a program is run again if one of these has changed, and
isn't if a judge, a hint or a comment has. To have all of them run again, remove the
folder.
"""

import contextlib
import functools
import hashlib
import os
import pickle
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from distcheck import files, lab
from distcheck.recorder.recorder import recorder_of
from distcheck.scenarios import SCENARIOS
from utils.base import course, sources
from utils.training import fetch, samples

FOLDER = fetch.cache_folder() / "evidence"
UNUSED = 14 * 24 * 3600.0  # seconds without use, after which evidence goes
T = TypeVar("T")
LOCKS = tuple(course.PACKAGE_ROOT / f"requirements{n}.lock" for n in ("", "-jax"))


def of_jobs(jobs: list[lab.Job], may_compute: float = lab.MAY_COMPUTE) -> list[Path]:
    """The folder of the evidence on each job. Only what isn't there is run."""
    places = [_place_of(job, may_compute) for job in jobs]
    by_place = dict(zip(places, jobs, strict=True))
    missing = [place for place in by_place if not place.exists()]
    if missing:
        with new_folder() as folder:
            lab.perform(folder, [by_place[place] for place in missing], may_compute)
            for number, place in enumerate(missing):
                keep(folder / str(number), place)
    return places


def _place_of(job: lab.Job, may_compute: float) -> Path:
    programs = [Path(path).read_text() for path in (job.script, job.reference) if path]
    imported = {module for text in programs for module in sources.imported_by(text)}
    how = job.as_json() | {"script": "", "reference": "", "may_compute": may_compute}
    recorders = {
        recorder.__module__
        for name in job.scenarios
        if (recorder := recorder_of(SCENARIOS[name]))
    }
    modules = sorted({"distcheck.lab", job.source, *recorders, *imported})
    return place(*programs, how, modules=modules)


def place(*facts: object, modules: Iterable[str], others: Iterable[Path] = ()) -> Path:
    """The folder of the evidence on what these facts tell from all else, and which
    these modules and files make. It is there as a whole, or not at all."""
    made_by = _digest(tuple(modules), tuple(others))
    found = FOLDER / hashlib.sha256(repr((facts, made_by)).encode()).hexdigest()
    with contextlib.suppress(FileNotFoundError):
        os.utime(found)  # it is used
    return found


def value(
    make: Callable[[], T],
    *facts: object,
    modules: Iterable[str],
    others: Iterable[Path] = (),
    worth: Callable[[T], bool] = lambda made: True,
) -> T:
    """What `make` gives, or gave before; for the rest see `place`.

    worth: is it to be kept? What isn't as it should be is better made anew.
    """
    found = place(*facts, modules=modules, others=others)
    if found.exists():
        return pickle.loads((found / "value").read_bytes())
    made = make()
    if worth(made):
        with new_folder() as folder:
            (folder / "kept").mkdir()
            (folder / "kept" / "value").write_bytes(pickle.dumps(made))
            keep(folder / "kept", found)
    return made


@functools.cache
def _digest(modules: tuple[str, ...], others: tuple[Path, ...]) -> str:
    data = sorted(samples.FOLDER.iterdir())
    return sys.version + sources.digest(modules, *others, *data, *LOCKS)


@contextlib.contextmanager
def new_folder() -> Iterator[Path]:
    """A folder to make evidence in, of which some is to be kept."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path in FOLDER.iterdir():
        with contextlib.suppress(FileNotFoundError):  # somebody else was first
            if time.time() - path.stat().st_mtime > UNUSED:
                shutil.rmtree(path, ignore_errors=True)
    with files.scratch(str(FOLDER)) as folder:
        yield folder.resolve()


def keep(folder: Path, place: Path) -> None:
    """Let evidence be found at `place`, unless somebody else has put the same there."""
    try:
        folder.rename(place)
    except OSError:
        if not place.is_dir():
            raise
