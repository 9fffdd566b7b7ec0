"""Hosts that come and go, on this machine: what Horovod's elastic training starts from.

A run's folder has a file `hosts`, with a line NAME:SLOTS for each host that is there,
and a script that prints it, which `horovodrun` asks every second. Both hosts are this
machine, by two of its names: to Horovod, they are two.
"""

from pathlib import Path

import psutil

from utils.base import course, files

NAMES = ("localhost", "127.0.0.1")
SCRIPT = "discover_hosts.sh"


def share(workers: int) -> dict[str, int]:
    """How many workers each host has place for: the first takes the odd one."""
    return {NAMES[0]: workers - workers // 2, NAMES[1]: workers // 2}


def read(folder: Path) -> dict[str, int]:
    """The hosts that are there, in a run's folder: name -> slots."""
    lines = (folder / "hosts").read_text().split()
    pairs = [line.rpartition(":") for line in lines]
    return {name: int(slots) for name, _, slots in pairs}


def write(folder: Path, hosts: dict[str, int]) -> None:
    """Say which hosts are there."""
    lines = "".join(f"{name}:{slots}\n" for name, slots in hosts.items())
    files.write_whole(folder / "hosts", lines)


def both(workers: int, folder: Path) -> tuple[Path, str]:
    """Let both hosts be there, with places for so many workers.

    Writes the file of hosts and the script into the run's folder; returns the script,
    and the network interface by which the hosts talk.
    """
    write(folder, share(workers))
    script = folder / SCRIPT
    script.write_text('#!/bin/sh\nexec cat "$(dirname "$0")/hosts"\n')
    script.chmod(0o755)
    return script, _loopback()


def _loopback() -> str:
    """The network interface by which a machine talks to itself."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address == "127.0.0.1" for one in addresses):
            return name
    raise course.CourseError("this machine has no loopback interface (127.0.0.1).")
