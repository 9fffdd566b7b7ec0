"""requirements.lock: parts of it to install, and how it is remade.

    make lock        (python3 utils/setup/lock.py)

takes the newest versions that requirements.txt allows, for every platform of the
course at once, and writes them to requirements.lock and environment.yml. What
requirements-spark.txt adds, which few need, fits to those, in a lock of its own.

Like utils/setup/install.py this uses only the standard library and plain syntax.
"""

import fnmatch
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from prerequisites import SetupError, uv

ROOT = Path(__file__).resolve().parent.parent.parent
LOCK = ROOT / "requirements.lock"
REQUIREMENTS = ROOT / "requirements.txt"
SPARK_LOCK = ROOT / "requirements-spark.lock"
SPARK_REQUIREMENTS = ROOT / "requirements-spark.txt"
CONDA_FILE = ROOT / "environment.yml"

# What conda brings itself, and what can only be installed once TensorFlow is there.
FROM_CONDA = ("cmake", "openmpi", "pip")
AFTER_TENSORFLOW = ("horovod",)


def entries(text=None):
    """A lock's text, by default that of requirements.lock, as {name: text}. A package
    may have several lines, by platform."""
    texts = {}
    pattern = r"^([a-z0-9-]+)(?:\[.*\])?==.*(?:\n .*)*"
    for match in re.finditer(pattern, text or LOCK.read_text(), re.MULTILINE):
        texts[match[1]] = texts.get(match[1], "") + match[0] + "\n"
    return texts


def locked(pattern, without=()):
    """The entries whose names match `pattern` and none of `without` (as file names
    do): the text of a requirements file, with hashes."""
    return "".join(
        text
        for name, text in entries().items()
        if fnmatch.fnmatchcase(name, pattern)
        and not any(fnmatch.fnmatchcase(name, excluded) for excluded in without)
    )


def direct_requirements(path=REQUIREMENTS):
    """The lines of a requirements file that name a package."""
    lines = path.read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def direct_names():
    """Their names, sorted, written as the lock writes names."""
    names = (re.match(r"[\w.-]+", line)[0] for line in direct_requirements())
    return sorted(re.sub(r"[-_.]+", "-", name).lower() for name in names)


def conda_pins():
    """What conda's pip installs: `name==version` of the direct requirements."""
    elsewhere = FROM_CONDA + AFTER_TENSORFLOW
    return [pin(name) for name in direct_names() if name not in elsewhere]


def pin(name):
    """The locked `name==version`, with the platforms it is for if not all."""
    text = entries().get(name)
    if text is None:
        raise SetupError(f"{name} is not in requirements.lock: type `make lock`.")
    return re.match(r"[^\\\n]+", text)[0].strip()


def resolve():
    """The texts of both locks anew: versions and hashes of everything, no addresses."""
    project = (
        "[project]\nname = 'course'\nversion = '0'\nrequires-python = '==3.11.*'\n"
        f"dependencies = {json.dumps(direct_requirements())}\n"
        "[dependency-groups]\n"
        f"spark = {json.dumps(direct_requirements(SPARK_REQUIREMENTS))}\n"
    )
    options = ["--quiet", "--no-emit-project", "--no-header"]
    options += ["--fork-strategy", "fewest", "--format", "requirements.txt"]
    with uv() as program, tempfile.TemporaryDirectory() as folder:
        Path(folder, "pyproject.toml").write_text(project)

        def export(*arguments):
            command = [program, "export", *options, *arguments]
            answer = subprocess.run(
                command, stdout=subprocess.PIPE, cwd=folder, check=True, timeout=600
            )
            return answer.stdout.decode()

        course, spark = export(), export("--only-group", "spark")
    course_entries = entries(course)
    spark = "".join(
        t for name, t in entries(spark).items() if name not in course_entries
    )
    made = "made by `make lock` from"
    return (
        f"# Every package of the course, {made} requirements.txt.\n{course}",
        f"# What `make spark` adds, {made} requirements-spark.txt.\n{spark}",
    )


def with_pins(text):
    """`text` of environment.yml with the locked versions under its `- pip:`."""
    head, marker, _ = text.partition("  - pip:\n")
    return head + marker + "".join(f"      - {pin}\n" for pin in conda_pins())


def replace(path, text, mode=0o644):
    """Write `text` to `path` all at once."""
    beside = path.with_name(path.name + ".new")
    beside.write_text(text)
    beside.chmod(mode)
    os.replace(str(beside), str(path))


if __name__ == "__main__":
    try:
        course, spark = resolve()
        replace(LOCK, course)
        replace(SPARK_LOCK, spark)
        replace(CONDA_FILE, with_pins(CONDA_FILE.read_text()))
    except (SetupError, subprocess.SubprocessError) as error:
        sys.exit(f"The lock stays as it was; the reason is above.\n{error}")
