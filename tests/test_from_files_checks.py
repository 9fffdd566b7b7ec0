"""The checks of exercises/from_files.py are right: see tests/check_tables.py."""

from check_tables import *  # noqa: F403

EXERCISES = ("from_files",)
