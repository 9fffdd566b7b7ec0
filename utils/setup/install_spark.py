"""Adds Spark to the course's environment: `make spark`, after the set-up.

    python3 utils/setup/install_spark.py          to `.venv`
    python utils/setup/install_spark.py conda     to the active conda environment

Takes exactly what requirements-spark.lock lists, and nothing of what is there is
changed. Like install.py this uses only the standard library and plain syntax.
"""

import sys

from install import ROOT, Home, claimed, conda_home, remove, shown, start
from lock import SPARK_LOCK
from prerequisites import SetupError


def main():
    home = conda_home() if sys.argv[1:] == ["conda"] else Home(ROOT / ".venv")
    if not home.done() and not home.conda:
        raise SetupError("The course itself comes first: type `make setup`.")
    print("Spark: 350 MB to fetch, unless it is there already ...", flush=True)
    home.state.mkdir(parents=True, exist_ok=True)
    with claimed(home):
        remove(home.scratch)
        home.scratch.mkdir()
        home.log.touch()
        # Its build needs no more than the setuptools that is here.
        home.pip_install(SPARK_LOCK.read_text(), "--no-build-isolation", minutes=60)
        remove(home.scratch)
    print(f"Spark is in {shown(home.prefix)}. Now type")
    print("    .venv/bin/python solutions/cluster/spark_train.py --workers 2")
    print("which needs Java 8, 11 or 17 as well, and says so where it is missing.")


if __name__ == "__main__":
    start(main)
