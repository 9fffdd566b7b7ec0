"""The files that a program writes, with Python's `open`, or with what TensorFlow and
Keras have for models, checkpoints and TensorBoard.
"""

import os
import re
import sys
import tempfile
from typing import Any

from distcheck.recorder import patches
from distcheck.recorder.recorder import Recorder

MOST_FILES = 200
# What is written there is no file; but shared memory holds some.
NO_FILES = re.compile("/(proc|sys|dev(?!/shm))/")


class Files:
    """The files that a program writes, each of which is reported once for each way."""

    def __init__(self, recorder: Recorder):
        self._recorder = recorder
        self._reported: set[tuple] = set()
        self._boards: list[tuple] = []  # each writer of TensorBoard's, with its folder
        self._skipped = ("__pycache__", "site-packages", str(recorder.folder))

    def written(self, path, how: str) -> None:
        """Report that a file is written, from a line of the program.

        how: "written", "appended", or as a "board", a folder of TensorBoard's.
        """
        try:
            path = os.path.realpath(os.fsdecode(path))
        except FileNotFoundError:
            return  # The working directory is gone: the program will hear of it.
        if NO_FILES.match(path) or any(part in path for part in self._skipped):
            return
        if (path, how) in self._reported:
            return
        name = os.path.basename(path)
        if name.startswith(("tmp", "__autograph_generated")) or name.endswith(".lock"):
            return  # names that nobody else has, and what is there to be shared
        line = self._recorder.line() if len(self._reported) < MOST_FILES else None
        if line:
            self._reported.add((path, how))
            self._recorder.event("file", path=path, how=how, by=line)

    def watch(self) -> None:
        """Report from now on what Python's `open` opens to write."""

        def audit(name: str, arguments: tuple) -> None:
            if name != "open":
                return
            path, mode, flags = arguments
            if isinstance(path, int) or path is None:
                return
            if mode is None:
                writes = bool((flags or 0) & (os.O_WRONLY | os.O_RDWR))
            else:
                writes = not set(mode).isdisjoint("wax+")
            # A file without a name is opened by its folder's.
            if writes and not os.path.isdir(path):
                self.written(path, "appended" if mode and "a" in mode else "written")

        tempfile.gettempdir()  # the first to ask has a file written, to try the folder
        sys.addaudithook(audit)

    def hook_tensorflow(self, tf) -> None:
        """Report from now on what TensorFlow writes without that."""
        before = self._recorder.before
        opener, summaries, profiler = patches.file_makers()
        before(opener, "__init__", self._opens)
        before(summaries, "create_summary_file_writer", self._opens_board)
        for name in vars(summaries):
            if name.startswith("write_"):
                before(summaries, name, self._writes_board)
        for module in (profiler, tf.profiler.experimental):
            before(module, "start", self._profiles)
        for name in ("save", "write", "_write"):  # the last is a CheckpointManager's
            before(tf.train.Checkpoint, name, self._saves)
        before(patches.saved_models(), "save_and_return_nodes", self._saves)

    def hook_h5py(self, h5py) -> None:
        """Report from now on what is written as HDF5."""
        self._recorder.before(h5py.File, "__init__", self._opens_hdf5)

    def hook_models(self, model: type) -> None:
        """Report from now on what Keras' models are saved to."""
        for name in ("save", "save_weights"):
            self._recorder.before(model, name, self._saves)

    def _opens(self, file, name, mode="r", *args, **kwargs) -> None:
        if set(mode) & set("wa+"):
            self.written(name, "appended" if "a" in mode else "written")

    def _opens_hdf5(self, file, name, mode="r", *args, **kwargs) -> None:
        if mode != "r" and isinstance(name, str | bytes | os.PathLike):
            self.written(name, "written")

    def _opens_board(self, *args, **kwargs) -> None:
        folder: Any = patches.argument("logdir", 1, args, kwargs)
        folder = folder.numpy() if hasattr(folder, "numpy") else folder
        if isinstance(folder, str | bytes) and folder:
            self._boards.append((patches.argument("writer", 0, args, kwargs), folder))

    def _writes_board(self, *args, **kwargs) -> None:
        """A writer that is made and not used leaves a file without content, which
        TensorBoard doesn't show."""
        writer = patches.argument("writer", 0, args, kwargs)
        for made, folder in self._boards:
            if made is writer:
                self.written(folder, "board")

    def _profiles(self, logdir, *args, **kwargs) -> None:
        if logdir:
            self.written(os.path.join(logdir, "plugins", "profile"), "board")

    def _saves(self, *args, **kwargs) -> None:
        path = args[1] if len(args) > 1 else None
        for name in ("filepath", "file_prefix", "export_dir", "name"):
            path = kwargs.get(name, path)
        if isinstance(path, str | os.PathLike):
            self.written(path, "written")
