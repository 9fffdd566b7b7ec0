"""Published data on this machine: found or downloaded, and checked either way.

The published files are looked for in the folder `COURSE_DATA`; without that, in the
course's cache (`COURSE_CACHE`, else the user's cache folder), where they are put by a
download from an instructor's own server (`COURSE_MIRROR`) or where they are published.
`get` does that for any data set; Fashion-MNIST and CIFAR-10 are described here.
"""

import gzip
import hashlib
import http.client
import io
import os
import pickle
import queue
import sys
import tarfile
import threading
import time
import urllib.parse
import urllib.request
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import platformdirs
from filelock import FileLock

from distcheck import files
from distcheck.errors import UserError, notice

# Fashion-MNIST's files, and the SHA-256 of what is in each once it is unpacked: a file
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
CIFAR10_FILE = (
    "cifar-10-python.tar.gz",
    "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
)
CIFAR10_PLACES = ("https://www.cs.toronto.edu/~kriz",)
CIFAR10_SAMPLE = "cifar10-sample.npz"
ANSWER_WITHIN = 5  # seconds that a server has for its first word
STALL = 20  # seconds of silence in the middle of a file
REMEMBER = 600  # seconds for which a failed download is not tried again


class NoDownload(UserError):
    """A data set is not on this machine and could not be downloaded.

    `why` goes into the sentence that says that a sample is used instead.
    """

    why = "which could not be downloaded"


class WrongFile(Exception):
    """A file that did not come, or is not what was published under its name."""


def download(url: str) -> bytes:
    """What is at an address. Raises WrongFile if nothing comes."""
    return ask(url, lambda answer: answer.read())


def ask(url: str, take: Callable[[BinaryIO], bytes]) -> bytes:
    """What `take` makes of the answer from an address; it need not read all of it.

    Raises WrongFile if nothing comes, or stops coming.
    """
    # A thread can be left behind: a host may have sixteen addresses, and each of them
    # would be given its own time-out in turn.
    answers: queue.SimpleQueue = queue.SimpleQueue()

    def open_it():
        try:
            answers.put(urllib.request.urlopen(url, timeout=STALL))
        except (OSError, http.client.HTTPException) as error:
            answers.put(error)

    threading.Thread(target=open_it, daemon=True).start()
    try:
        answer = answers.get(timeout=ANSWER_WITHIN)
        if isinstance(answer, Exception):
            raise answer
        with answer:
            return take(answer)
    except queue.Empty:
        raise WrongFile(f"did not come: no answer within {ANSWER_WITHIN} s") from None
    except (OSError, http.client.HTTPException) as error:
        raise WrongFile(f"did not come: {error}") from error


@dataclass(frozen=True)
class Published:
    """A data set: what it is called, which files it has, and where they are published.

    folder: its folder's name, in the cache and below COURSE_DATA.
    files: the name of each file, by the key under which its content is returned.
    read: (key, open file) to that content; raises WrongFile unless it is the right one.
    download: address to bytes; raises WrongFile if nothing comes.
    """

    name: str
    folder: str
    files: dict[str, str]
    places: tuple[str, ...]
    read: Callable[[str, BinaryIO], Any]
    download: Callable[[str], bytes] = download


def fashion_mnist(try_again: bool = False) -> dict[str, np.ndarray]:
    """x_train uint8 (60000, 28, 28), y_train (60000,), x_test (10000, 28, 28), y_test.

    Raises as `get` does.
    """
    names = {key: name for key, (name, _) in FILES.items()}
    source = Published("Fashion-MNIST", "fashion-mnist", names, PLACES, _read_idx)
    return get(source, try_again)


def cifar10(try_again: bool = False) -> dict[str, np.ndarray]:
    """x_train uint8 (50000, 32, 32, 3), y_train uint8 (50000,), x_test (10000, 32, 32,
    3), y_test (10000,); fewer if COURSE_DATA holds a sample (`cifar10_sample`).

    Raises as `get` does.
    """
    sample = cifar10_sample()
    if sample:
        return _read_sample(sample)
    files = {"archive": CIFAR10_FILE[0]}
    source = Published("CIFAR-10", "cifar10", files, CIFAR10_PLACES, _read_cifar10)
    return get(source, try_again)["archive"]


def cifar10_sample() -> Path | None:
    """The sample of CIFAR-10 in COURSE_DATA, unless the whole of it is there, too."""
    given = os.environ.get("COURSE_DATA")
    if not given:
        return None
    folder = _given_folder(given, "cifar10")
    sample = folder / CIFAR10_SAMPLE
    whole = (folder / CIFAR10_FILE[0]).exists()
    return sample if sample.exists() and not whole else None


def get(source: Published, try_again: bool = False) -> dict[str, Any]:
    """What is in the files of a data set, by their keys.

    Any number of processes may call this at once: one downloads, the others wait.
    A download that failed within the last minutes is not tried again, unless with
    `try_again`.

    Raises UserError for a COURSE_DATA folder that does not hold the published files
    or a cache that can't be written, NoDownload when no place delivered.
    """
    given = os.environ.get("COURSE_DATA")
    if given:
        return _from_course_data(source, _given_folder(given, source.folder))
    # Even then others who waited for the same attempt need not repeat it.
    since = time.time() - (0 if try_again else REMEMBER)
    folder = cache_folder() / source.folder
    contents, faults = _read(source, folder)
    if not faults:
        return contents
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # The kernel drops this lock when its owner dies, however it dies.
        with FileLock(folder / "lock"):
            for half in folder.glob(files.HALVES):  # of one that was killed
                half.unlink()
            contents, faults = _read(source, folder)  # others may have been here
            for key, fault in faults.items():
                if (folder / source.files[key]).exists():
                    notice(f"{folder / source.files[key]} {fault}: fetching it again.")
            if faults:
                contents |= _download(source, folder, list(faults), since)
    except OSError as error:
        raise UserError(
            f"Can't write to the cache {folder}: {error.strerror or error}. "
            "Set COURSE_CACHE to a folder that you may write to."
        ) from error
    return contents


def cache_folder() -> Path:
    """Where the course keeps what it has downloaded: COURSE_CACHE, else the user's."""
    given = os.environ.get("COURSE_CACHE")
    return Path(given or platformdirs.user_cache_dir("distributed-training-course"))


def _given_folder(given: str, name: str) -> Path:
    """Where COURSE_DATA has a data set: in a folder of its own, or directly."""
    folder = Path(given).resolve()
    return folder / name if (folder / name).is_dir() else folder


def _from_course_data(source: Published, folder: Path) -> dict[str, Any]:
    contents, faults = _read(source, folder)
    if faults:
        lines = "".join(f"  {source.files[key]} {faults[key]}\n" for key in faults)
        raise UserError(
            f"COURSE_DATA leads to {folder}, which does not hold {source.name}:\n"
            f"{lines}Put the published files there (delete wrong ones), or unset "
            "COURSE_DATA and let the course download them."
        )
    return contents


def _read(source: Published, folder: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """What is in the files of a folder, and what is the matter with the others."""
    contents, faults = {}, {}
    for key, name in source.files.items():
        try:
            with (folder / name).open("rb") as file:
                contents[key] = source.read(key, file)
        except FileNotFoundError:
            faults[key] = "is missing"
        except OSError as error:
            faults[key] = f"can't be read: {error.strerror}"
        except WrongFile as fault:
            faults[key] = str(fault)
    return contents, faults


def _download(
    source: Published, folder: Path, keys: list[str], since: float
) -> dict[str, Any]:
    """Fetch files from the first place that has them, and keep them in the folder."""
    failed = folder / "download-failed"
    if failed.exists() and failed.stat().st_mtime >= since:
        raise NoDownload(failed.read_text())
    contents, reasons = {}, []
    for place in places(source.places):
        _say(f"Downloading {source.name} from {place}")
        try:
            for key in keys:
                if key not in contents:
                    name = source.files[key]
                    came = source.download(f"{place}/{urllib.parse.quote(name)}")
                    contents[key] = source.read(key, io.BytesIO(came))
                    files.write_whole(folder / name, came)
            failed.unlink(missing_ok=True)
            return contents
        except WrongFile as fault:
            reasons.append(f"  {place}/{name} {fault}")
            _say(reasons[-1])
    message = "\n".join(
        [
            f"{source.name} is not on this machine and could not be downloaded:",
            *reasons,
            "Connect to the network and try again, or set COURSE_DATA to a folder that "
            f"holds {', '.join(source.files.values())}.",
        ]
    )
    files.write_whole(failed, message)
    raise NoDownload(message)


def places(published: tuple[str, ...] | None = None) -> list[str]:
    """The addresses to try in turn, an instructor's own first, then those where a data
    set is published; by default, those of Fashion-MNIST."""
    published = PLACES if published is None else published
    mirror = os.environ.get("COURSE_MIRROR")
    if not mirror:
        return list(published)
    if not mirror.startswith(("http://", "https://")):
        raise UserError(f"COURSE_MIRROR is {mirror!r}: it must begin with http(s)://")
    return [mirror.rstrip("/"), *published]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# --- The files' forms -----------------------------------------------------------------


def _read_idx(key: str, file: BinaryIO) -> np.ndarray:
    """The array in a gzipped IDX file (http://yann.lecun.com/exdb/mnist), once checked.

    The checksum of the content is the one test of a file, wherever it comes from.
    """
    try:
        content = gzip.decompress(file.read())
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise WrongFile("is cut short or is no gzip file") from None
    checksum = hashlib.sha256(content).hexdigest()
    if checksum != FILES[key][1]:
        for name, published in FILES.values():
            if checksum == published:
                raise WrongFile(f"holds the content of {name}")
        raise WrongFile("does not hold what was published under this name")
    dimensions = content[3]
    shape = np.frombuffer(content, ">u4", count=dimensions, offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def _read_cifar10(key: str, file: BinaryIO) -> dict[str, np.ndarray]:
    """The arrays in the archive of CIFAR-10 in its form for Python, once checked.

    Its members are pickles of dicts: `data` uint8 (n, 3072), all red values of an image
    row by row, then the green and the blue ones; `labels`, a list of n numbers.
    """
    content = file.read()
    if hashlib.sha256(content).hexdigest() != CIFAR10_FILE[1]:
        raise WrongFile("is cut short or not what was published under this name")
    batches = {}
    # Members are read, never extracted: their names are not trusted with a disk.
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
        for member in archive:
            name = member.name.rpartition("/")[2]
            if member.isfile() and (
                name.startswith("data_batch_") or name == "test_batch"
            ):
                batches[name] = _Batch(
                    archive.extractfile(member), encoding="bytes"
                ).load()
    test = batches.pop("test_batch")
    arrays = {}
    for part, members in (
        ("train", [batches[name] for name in sorted(batches)]),
        ("test", [test]),
    ):
        pixels = np.concatenate([member[b"data"] for member in members])
        images = pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        arrays[f"x_{part}"] = np.ascontiguousarray(images)
        labels = [np.array(member[b"labels"], np.uint8) for member in members]
        arrays[f"y_{part}"] = np.concatenate(labels)
    return arrays


class _Batch(pickle.Unpickler):
    """A pickle that holds numbers, text and arrays. Anything else could run code."""

    ALLOWED = (
        ("numpy.core.multiarray", "_reconstruct"),
        ("numpy._core.multiarray", "_reconstruct"),  # as numpy 2 says it
        ("numpy", "ndarray"),
        ("numpy", "dtype"),
        ("_codecs", "encode"),  # how Python 3 pickles bytes for Python 2
    )

    def find_class(self, module, name):
        if (module, name) not in self.ALLOWED:
            raise WrongFile(f"asks for {module}.{name}, which no data set needs")
        return super().find_class(module, name)


def _read_sample(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a sample of CIFAR-10, if their shapes and types are right."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {
                key: stored[key] for key in ("x_train", "y_train", "x_test", "y_test")
            }
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(
            f"{path} is no sample of CIFAR-10: {error}. Delete it."
        ) from None
    for part in ("train", "test"):
        images, labels = arrays[f"x_{part}"], arrays[f"y_{part}"]
        right = images.shape == (len(labels), 32, 32, 3) and labels.ndim == 1
        if not right or {images.dtype, labels.dtype} != {np.dtype(np.uint8)}:
            raise UserError(
                f"{path} is no sample of CIFAR-10: x_{part} is {images.dtype} "
                f"{images.shape}, y_{part} {labels.dtype} {labels.shape}; they must be "
                "uint8 (n, 32, 32, 3) and uint8 (n,). Delete it."
            )
    return arrays
