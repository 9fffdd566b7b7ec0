"""What mpirun starts in a check: asks the server for a worker, and ends as it does.

The standard library only, and little of it: it has to start at once.
"""

import json
import os
import signal
import socket
import sys

door, key = sys.argv[1:]
server = socket.socket(socket.AF_UNIX)
server.connect(door)
request = {"key": key, "environment": dict(os.environ)}
server.sendall(json.dumps(request).encode() + b"\n")
answer = server.makefile().readline()
# No answer: the server is gone, or has ended this scenario.
status = json.loads(answer) if answer else 1
if status < 0:
    signal.signal(-status, signal.SIG_DFL) if -status != signal.SIGKILL else None
    os.kill(os.getpid(), -status)
sys.exit(status)
