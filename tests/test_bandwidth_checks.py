"""The checks of exercises/bandwidth.py are right: see tests/check_tables.py."""

from check_tables import *  # noqa: F403

EXERCISES = ("bandwidth",)
