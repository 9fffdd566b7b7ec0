"""Where the course is."""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent  # `utils`
PACKAGE_ROOT = PACKAGE.parent

TIME_LIMIT = 3600.0  # seconds that a run may take if nobody says otherwise


def root() -> Path:
    """The course folder: the nearest parent of the working directory that holds
    `notebooks` and `exercises`, else the folder of the installed package.

    Everything hangs off it, so a copy of the course is a course of its own.
    """
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / "notebooks").is_dir() and (folder / "exercises").is_dir():
            return folder
    return PACKAGE_ROOT


def version() -> str:
    """The course's version, from its one place, pyproject.toml."""
    import tomli  # which no worker needs

    text = (PACKAGE_ROOT / "pyproject.toml").read_text(encoding="utf-8")
    return tomli.loads(text)["project"]["version"]
