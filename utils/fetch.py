"""Fashion-MNIST on this machine: found or downloaded, and checked either way.

The published files are looked for in the folder `COURSE_DATA`; without that, in the
course's cache (`COURSE_CACHE`, else the user's cache folder), where they are put by a
download from an instructor's own server (`COURSE_MIRROR`) or where they are published.
"""

import gzip
import hashlib
import http.client
import os
import queue
import sys
import threading
import time
import urllib.request
import zlib
from pathlib import Path

import numpy as np
import platformdirs
from filelock import FileLock

from utils.course import CourseError, notice

# The published files, and the SHA-256 of what is in each once it is unpacked: a file
# that was only compressed again is still the right one.
FILES = {
    "x_train": (
        "train-images-idx3-ubyte.gz",
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    ),
    "y_train": (
        "train-labels-idx1-ubyte.gz",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    ),
    "x_test": (
        "t10k-images-idx3-ubyte.gz",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    ),
    "y_test": (
        "t10k-labels-idx1-ubyte.gz",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
}
PLACES = (
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    "https://storage.googleapis.com/tensorflow/tf-keras-datasets",
)
ANSWER_WITHIN = 5  # seconds that a server has for its first word
STALL = 20  # seconds of silence in the middle of a file
REMEMBER = 600  # seconds for which a failed download is not tried again


class NoDownload(CourseError):
    """Fashion-MNIST is not on this machine and could not be downloaded."""


class WrongFile(Exception):
    """A file that did not come, or is not what was published under its name."""


def fashion_mnist(try_again: bool = False) -> dict[str, np.ndarray]:
    """x_train uint8 (60000, 28, 28), y_train (60000,), x_test (10000, 28, 28), y_test.

    Any number of processes may call this at once: one downloads, the others wait.
    A download that failed within the last minutes is not tried again, unless with
    `try_again`.

    Raises CourseError for a COURSE_DATA folder that does not hold the published files
    or a cache that can't be written, NoDownload when no place delivered.
    """
    given = os.environ.get("COURSE_DATA")
    if given:
        return _from_course_data(Path(given).resolve())
    # Even then others who waited for the same attempt need not repeat it.
    since = time.time() - (0 if try_again else REMEMBER)
    folder = cache_folder() / "fashion-mnist"
    arrays, faults = _read(folder)
    if not faults:
        return arrays
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # The kernel drops this lock when its owner dies, however it dies.
        with FileLock(folder / "lock"):
            arrays, faults = _read(folder)  # others may have been here meanwhile
            for key, fault in faults.items():
                if (folder / FILES[key][0]).exists():
                    notice(f"{folder / FILES[key][0]} {fault}: fetching it again.")
            if faults:
                arrays |= _download(folder, list(faults), since)
    except OSError as error:
        raise CourseError(
            f"Can't write to the cache {folder}: {error.strerror or error}. "
            "Set COURSE_CACHE to a folder that you may write to."
        ) from error
    return arrays


def cache_folder() -> Path:
    """Where the course keeps what it has downloaded: COURSE_CACHE, else the user's."""
    given = os.environ.get("COURSE_CACHE")
    return Path(given or platformdirs.user_cache_dir("distributed-training-course"))


def _from_course_data(folder: Path) -> dict[str, np.ndarray]:
    if (folder / "fashion-mnist").is_dir():
        folder = folder / "fashion-mnist"
    arrays, faults = _read(folder)
    if faults:
        lines = "".join(f"  {FILES[key][0]} {faults[key]}\n" for key in faults)
        raise CourseError(
            f"COURSE_DATA leads to {folder}, which does not hold Fashion-MNIST:\n"
            f"{lines}Put the published files there (delete wrong ones), or unset "
            "COURSE_DATA and let the course download them."
        )
    return arrays


def _read(folder: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The arrays in the files of a folder, and what is the matter with the others."""
    arrays, faults = {}, {}
    for key, (name, sha256) in FILES.items():
        try:
            arrays[key] = _unpack((folder / name).read_bytes(), sha256)
        except FileNotFoundError:
            faults[key] = "is missing"
        except OSError as error:
            faults[key] = f"can't be read: {error.strerror}"
        except WrongFile as fault:
            faults[key] = str(fault)
    return arrays, faults


def _unpack(packed: bytes, sha256: str) -> np.ndarray:
    """The array in a gzipped IDX file (http://yann.lecun.com/exdb/mnist), once checked.

    The checksum of the content is the one test of a file, wherever it comes from.
    """
    try:
        content = gzip.decompress(packed)
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise WrongFile("is cut short or is no gzip file") from None
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        for name, known in FILES.values():
            if found == known:
                raise WrongFile(f"holds the content of {name}")
        raise WrongFile("does not hold what was published under this name")
    dimensions = content[3]
    shape = np.frombuffer(content, ">u4", count=dimensions, offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def _download(folder: Path, keys: list[str], since: float) -> dict[str, np.ndarray]:
    """Fetch files from the first place that has them, and keep them in the folder."""
    failed = folder / "download-failed"
    if failed.exists() and failed.stat().st_mtime >= since:
        raise NoDownload(failed.read_text())
    arrays, reasons = {}, []
    for place in places():
        _say(f"Downloading Fashion-MNIST from {place}")
        try:
            for key in keys:
                if key not in arrays:
                    name, sha256 = FILES[key]
                    packed = download(f"{place}/{name}")
                    arrays[key] = _unpack(packed, sha256)
                    _write(folder / name, packed)
            failed.unlink(missing_ok=True)
            return arrays
        except WrongFile as fault:
            reasons.append(f"  {place}/{name} {fault}")
            _say(reasons[-1])
    message = "\n".join(
        [
            "Fashion-MNIST is not on this machine and could not be downloaded:",
            *reasons,
            "Connect to the network and try again, or set COURSE_DATA to a folder that "
            "holds the four files.",
        ]
    )
    _write(failed, message.encode())
    raise NoDownload(message)


def places() -> list[str]:
    """The addresses to try in turn, an instructor's own first."""
    mirror = os.environ.get("COURSE_MIRROR")
    if not mirror:
        return list(PLACES)
    if not mirror.startswith(("http://", "https://")):
        raise CourseError(f"COURSE_MIRROR is {mirror!r}: it must begin with http(s)://")
    return [mirror.rstrip("/"), *PLACES]


def download(url: str) -> bytes:
    """What is at an address. Raises WrongFile if nothing comes."""
    # A thread can be left behind: a host may have sixteen addresses, and each of them
    # would be given its own time-out in turn.
    answers: queue.SimpleQueue = queue.SimpleQueue()

    def ask():
        try:
            answers.put(urllib.request.urlopen(url, timeout=STALL))
        except (OSError, http.client.HTTPException) as error:
            answers.put(error)

    threading.Thread(target=ask, daemon=True).start()
    try:
        answer = answers.get(timeout=ANSWER_WITHIN)
        if isinstance(answer, Exception):
            raise answer
        with answer:
            return answer.read()
    except queue.Empty:
        raise WrongFile(f"did not come: no answer within {ANSWER_WITHIN} s") from None
    except (OSError, http.client.HTTPException) as error:
        raise WrongFile(f"did not come: {error}") from error


def _write(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    unfinished = path.with_name(path.name + ".part")
    unfinished.write_bytes(content)
    os.replace(unfinished, path)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
