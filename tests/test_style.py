"""The code is formatted and linted, notebooks too."""

import sys
from pathlib import Path

import pytest
from processes import captured

from utils.base import course


@pytest.mark.parametrize(
    ("checker", "options"),
    [
        ("ruff", ("check", "--no-cache", ".")),
        ("ruff", ("format", "--check", "--no-cache", ".")),
        ("lint-imports", ("--no-cache",)),  # rooms import from lower floors alone
        ("basedpyright", ("--pythonpath", sys.executable)),  # types in distcheck
    ],
)
def test_what_checks_the_code_has_nothing_to_say(checker, options):
    program = Path(sys.executable).with_name(checker)
    if checker == "basedpyright" and not program.exists():
        pytest.skip("what checks types is not installed: `make types` adds it")
    done = captured([program, *options], cwd=course.PACKAGE_ROOT, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
