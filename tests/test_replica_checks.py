"""The checks of the programs with replicas are right: see tests/check_tables.py."""

from check_tables import *  # noqa: F403

EXERCISES = ("mirrored", "custom_loop")
