"""The code is formatted and linted, notebooks too."""

import subprocess
import sys

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
