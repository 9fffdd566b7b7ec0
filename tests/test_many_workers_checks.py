"""The checks of many_workers.py are right: see tests/check_tables.py."""

from check_tables import *  # noqa: F403

EXERCISES = ("many_workers",)
