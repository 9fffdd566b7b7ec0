"""An mpirun and its messengers, which may be started before they have anything to do.

mpirun needs some tenths of a second to start a messenger for each rank. Most of that is
over by the time that a scenario is to begin, if it is started while the one before it
is still on, or while TensorFlow is imported.
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from distcheck import evidence, mpi, supervise


class Launch:
    """mpirun with a messenger for each of so many ranks.

    place: a folder with the socket "door", to which they come, and room for the files
    of this launch. number: by which it is known.
    """

    def __init__(self, size: int, place: Path, number: int):
        self.size, self.number = size, number
        # Messengers that wait for a worker: rank -> socket, and environment.
        self.waiting: dict[int, tuple[socket.socket, dict[str, str]]] = {}
        # Of two that make Open MPI's folder in the same place at once, one may fail.
        self._own = Path(tempfile.mkdtemp(dir=place))
        self._scratch = [self._own]
        variables = {"TMPDIR": str(self._own)}
        if shared := os.environ.get(supervise.SHARED_MEMORY):
            self._scratch.append(Path(tempfile.mkdtemp(dir=shared)))
            variables[supervise.SHARED_MEMORY] = str(self._scratch[-1])
        asks = [sys.executable, "-I", "-S"]
        asks += [str(Path(__file__).with_name("messenger.py"))]
        asks += [f"{place}/door", str(number)]
        command = mpi.mpirun_line(size, asks, threads=1)
        command[1:1] = ["--oversubscribe"]
        with (self._own / "mpirun.txt").open("wb") as output:
            self.mpirun = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **variables},
            )

    def printed(self) -> str:
        """What mpirun itself has said."""
        return evidence.text(self._own / "mpirun.txt")

    def end(self) -> None:
        """End mpirun; its messengers end with it. Asked nicely, it would take a second,
        and remove its files."""
        self.mpirun.kill()
        for messenger, _ in self.waiting.values():
            messenger.close()
        self.waiting.clear()

    def tidy(self) -> None:
        """Wait for the end of what was ended, and remove its files."""
        self.mpirun.wait()
        for folder in self._scratch:
            shutil.rmtree(folder, ignore_errors=True)
