"""The checks of exercises/way_on.py are right: see tests/check_tables.py."""

import pytest
from check_tables import *  # noqa: F403

from distcheck import errors
from utils.checking import checks
from utils.running import beside

EXERCISES = ("way_on",)

WHY_NOT = beside.problem("jax")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT)),
]


def without_jax(monkeypatch):
    monkeypatch.setattr(beside, "problem", lambda name: "JAX: `make jax` adds it")


@pytest.mark.skipif(False, reason="needs no JAX")
def test_without_jax_a_check_says_what_to_do_and_finds_nothing_right(
    monkeypatch, tmp_path
):
    without_jax(monkeypatch)
    program = tmp_path / "way_on.py"
    program.write_text("print('Hello')\n")
    with pytest.raises(errors.UserError, match="`make jax`"):
        checks.report_on("A", "way_on", program)
