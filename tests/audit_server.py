"""Fork the workers of audited programs from one process that has TensorFlow imported.

    python tests/audit_server.py FOLDER

What mpirun starts in a test is the lab's messenger; it asks at the socket FOLDER/door
for a worker, as key [program, its options] in JSON. It ends as the worker ends, and
the worker as it does. Its supervisor ends this.
"""

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import sys
import traceback

import numpy as np

from distcheck import supervise
from distcheck.recorder.audit import auditor


def work(request: dict, messenger: int) -> None:
    """Be a worker. messenger: the process that asks for it."""
    supervise.die_with_parent(signal.SIGKILL)
    os.setsid()
    os.environ.clear()
    os.environ.update(request["environment"])
    script, *arguments = json.loads(request["key"])
    np.random.seed()  # or all that are forked would draw the same
    for number in (1, 2):  # what it says goes where its messenger would say it
        os.dup2(os.open(f"/proc/{messenger}/fd/{number}", os.O_WRONLY), number)
    auditor.work(script, arguments)
    hvd = sys.modules["horovod.tensorflow"]
    if hvd.is_initialized():
        hvd.shutdown()  # as Python does when it ends


def _process_of(messenger: socket.socket) -> int:
    """The number of the process at the other end; see unix(7)."""
    size = struct.calcsize("3i")
    raw = messenger.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return struct.unpack("3i", raw)[0]


def main() -> None:
    for name in ("numpy", "tf_keras", "horovod.tensorflow.keras"):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    door = socket.socket(socket.AF_UNIX)
    door.bind(f"{sys.argv[1]}/door")
    door.listen()
    print("ready", flush=True)
    workers: dict[int, socket.socket] = {}
    while True:
        waiting = [door, *workers.values()]
        readable, _, _ = select.select(waiting, [], [], 0.02)
        if door in readable:
            messenger, _ = door.accept()
            with messenger.makefile("rb") as stream:
                request = json.loads(stream.readline())
            pid = os.fork()
            if not pid:
                status = 1
                try:
                    door.close()
                    work(request, _process_of(messenger))
                    status = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    sys.stderr.flush()
                    os._exit(status)
            workers[pid] = messenger
        for pid, messenger in list(workers.items()):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                with contextlib.suppress(OSError):
                    answer = json.dumps(os.waitstatus_to_exitcode(status))
                    messenger.sendall(answer.encode() + b"\n")
                messenger.close()
                del workers[pid]
            elif messenger in readable:  # it was ended
                os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
