"""The code is formatted and linted, notebooks too."""

import subprocess
import sys
from pathlib import Path

import pytest

from utils.base import course


@pytest.mark.parametrize("command", [["check"], ["format", "--check"]])
def test_ruff_has_nothing_to_say(command):
    done = subprocess.run(
        [sys.executable, "-m", "ruff", *command, "--no-cache", "."],
        cwd=course.PACKAGE_ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_rooms_import_from_lower_floors_alone():
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=course.PACKAGE_ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_types_fit_in_distcheck():
    checker = Path(sys.executable).with_name("basedpyright")
    if not checker.exists():
        pytest.skip("what checks types is not installed: `make types` adds it")
    done = subprocess.run(
        [checker, "--pythonpath", sys.executable],
        cwd=course.PACKAGE_ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
