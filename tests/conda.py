"""The course's packages as environment.yml names them, for those who use conda.

python tests/conda.py    # writes them there; `make lock` calls it

The names are those in requirements.txt, the versions those in requirements.lock.
"""

import re

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from distcheck import errors, files
from utils.base import course, texts

FILE = course.PACKAGE_ROOT / "environment.yml"
REQUIREMENTS = course.PACKAGE_ROOT / "requirements.txt"
LOCK = course.PACKAGE_ROOT / "requirements.lock"

# The packages stand between these.
BEGIN, END = "# requirements.lock says this", "# until here"

# Horovod, because pip would build it without the course's patch: the last of the three
# commands does that. The other two, because conda itself brings them.
LEFT_OUT = ("horovod", "pip", "uv")


def packages() -> str:
    """The lines of environment.yml that name the packages and their versions.

    Raises UserError if requirements.txt names a package that the lock lacks.
    """
    locked = re.findall(r"^(\S.*) \\$", LOCK.read_text("utf-8"), re.MULTILINE)
    pins = [(canonicalize_name(Requirement(pin).name), pin) for pin in locked]
    lines: dict[str, None] = {}  # without repetition: some are required twice
    for wanted in REQUIREMENTS.read_text("utf-8").splitlines():
        if wanted.startswith("#"):
            continue
        name = canonicalize_name(Requirement(wanted).name)
        if name in LEFT_OUT:
            continue
        found = [pin for package, pin in pins if package == name]
        if not found:
            raise errors.UserError(
                f"{LOCK.name} has no version of {name}, which {REQUIREMENTS.name} "
                "asks for: type `make lock`."
            )
        lines |= dict.fromkeys(found)
    return "\n".join(f"    - {line}" for line in lines)


def main() -> None:
    old = FILE.read_text("utf-8")
    text = texts.between(FILE.name, old, BEGIN, END, packages())
    files.write_whole(FILE, text)


if __name__ == "__main__":
    main()
