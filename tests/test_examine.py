"""Hostile submissions, for real: two classes of them are graded to their ends, all
contained, each called what it is, and normal ones among them graded right.

Each attack is put around a finished program, of which only the first steps or tasks are
looked at: so it runs in as few scenarios as can be, in one where that serves. What it
may use up is bounded far below what this machine has, and by the attack itself where it
could run away. Types of evidence are gone through in tests/test_evidence.py.
"""

import contextlib
import csv
import functools
import json
import os
import re
import socket
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import kept_evidence
import psutil
import pytest
from check_tables import TABLES
from processes import captured
from test_evidence import OUTCOME

from distcheck import files, lab, parts
from distcheck.verdict import WRONG, Verdict
from utils.base import course
from utils.checking import exercises
from utils.grading import examine, grade, sandbox
from utils.grading.examined import Examined
from utils.grading.gradebook import CRASHED, GRADER_ERROR, HUNG, OK
from utils.grading.submissions import REFUSED
from utils.lessons import markup

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

LIMITS = {"seconds": 240, "memory": 4e9, "processes": 80, "file_bytes": 50e6}
MAY_COMPUTE = 15.0  # seconds of processor; enough to fill the memory
MOST_MEMORY = 500e6  # bytes, of the process that grades

# Two workers in a single scenario; and, in a scenario more, with their gradients.
LIGHT, FULL = "survive", "fashion_mnist"
SECRET = "correct horse battery staple"  # in a file that nobody else may read
PROGRAMS = {
    name: markup.render(exercise.annotated.read_text(), len(exercise.parts))
    for name, exercise in exercises.EXERCISES.items()
}
FINISHED = {name: TABLES[name].finished for name in (LIGHT, FULL)}
UNTIL = {LIGHT: "A", FULL: 3}  # what is looked at


@dataclass(frozen=True)
class Attack:
    """code, after: put before and behind the finished program of the exercise.

    status: of the submission; OK means that what is looked at is right. seen: what the
    verdict or the reason says.
    """

    name: str
    code: str
    status: str
    seen: str
    after: str = ""
    exercise: str = LIGHT

    @property
    def program(self) -> str:
        # Some have to be the first line.
        return f"{self.code}\n{FINISHED[self.exercise]}\n{self.after}\n"


HIDDEN = (
    "solutions",
    "exercises",
    "tests",
    "distcheck/judges/runs.py",
    "utils/grading/grade.py",
)
RANK = 'int(__import__("os").environ["OMPI_COMM_WORLD_RANK"])'
# Where a worker's reports are; commands of the shell write to them without Python.
PATHS = """\
import os, pathlib
RUN, RANK = pathlib.Path(os.environ["COURSE_RUN"]), os.environ["OMPI_COMM_WORLD_RANK"]
RUN = RUN.parent if RUN.suffix == ".home" else RUN
os.environ["JSONL"] = str(RUN / f"rank.{RANK}.jsonl")
"""
# A process that outlives the program, and says until its own end that mpirun never
# started it. The lab ends it before it writes down how the program ended.
FORGED_OUTCOME = """\
import json, os, pathlib, time
RUN = pathlib.Path(os.environ["COURSE_RUN"])
RUN = RUN.parent if RUN.suffix == ".home" else RUN
told = {{"outcome": "failed", "script": "", "seconds": 1, "mpirun": 1}}
told["statuses"] = {{}}
if os.fork() == 0:
    os.setsid()
    os.unlink(RUN / "mpirun.txt")
    {make}
    while True:
        for report in RUN.glob("rank.*"):
            if report.is_file(): report.unlink()
        (RUN / "forged").write_text(json.dumps(told))
        os.rename(RUN / "forged", RUN / "outcome.json")
time.sleep(1)
os._exit(0)
"""


def shell(command: str) -> str:
    """A line of a program that has the shell run a command in the scenario's folder."""
    return f"import subprocess\nsubprocess.run({command!r}, shell=True, cwd=RUN)\n"


ATTACKS = [
    Attack("endless loop", "while True: pass", HUNG, "rank 0 is busy in line 1"),
    Attack(
        "sleep in one rank only",
        f"import time\nif {RANK} == 1: time.sleep(1000)",
        HUNG,
        "rank 1 is busy in line 2",
    ),
    Attack(
        "fork bomb",
        "import os, time\n"
        "for _ in range(300):\n"
        "    if os.fork() == 0: time.sleep(60); os._exit(0)\n",
        REFUSED,
        "processes",
    ),
    Attack(
        "memory without end",
        "held = []\nwhile len(held) < 100: held.append(bytearray(200_000_000))",
        REFUSED,
        "memory",
    ),
    Attack(
        "files without end",
        "for n in range(50):\n"
        "    with open(f'big{n}', 'wb') as f: f.write(bytes(20_000_000))\n",
        REFUSED,
        "files",
    ),
    Attack("output without end", "while True: print('x' * 1000)", REFUSED, "printed"),
    Attack("leaves at once", "import os; os._exit(0)", CRASHED, "without an error"),
    Attack("exits at once", "import sys; sys.exit()", WRONG, "without having trained"),
    Attack("prints PASS", "print('PASS'); raise SystemExit", WRONG, "without having"),
    Attack(
        "patches Horovod",
        "from horovod.common.basics import HorovodBasics as basics\n"
        "old = basics.size\n"
        "basics.size = lambda *a: old(*a)",
        REFUSED,
        "replaced HorovodBasics.size",
        exercise=FULL,
    ),
    Attack(
        "patches TensorFlow",
        "import tensorflow as t\n"
        "old = t.GradientTape.gradient\n"
        "t.GradientTape.gradient = lambda *a, **k: old(*a, **k)",
        REFUSED,
        "replaced GradientTape.gradient",
        exercise=FULL,
    ),
    Attack(
        "patches json",
        "import json\njson.dumps = lambda *a, **k: '{}'",
        REFUSED,
        "replaced json.dumps",
    ),
    Attack(
        "spoils the reports",
        "import os, pathlib\n"
        "for p in pathlib.Path(os.environ['COURSE_RUN']).glob('*.jsonl'):\n"
        '    p.write_text(\'[1]\\n{"what": "ended"}\\n\')\n'
        "os._exit(0)",
        REFUSED,
        "can't be read",
    ),
    Attack(
        "reads the solutions, the exercises, the machine",
        "import os\n"
        f"for p in {[str(course.PACKAGE_ROOT / name) for name in HIDDEN]}:\n"
        "    assert not os.path.exists(p), p\n"
        "for p in os.listdir('/proc'):\n"
        "    if p.isdigit():\n"
        "        with open(f'/proc/{p}/cmdline', 'rb') as f: c = f.read()\n"
        "        assert b'pytest' not in c, c",
        OK,
        "",
    ),
    Attack(
        "writes outside of its folder",
        "import os\n"
        f"for p in {[str(course.PACKAGE_ROOT / 'utils'), '/', '/etc', '/usr']}:\n"
        "    try: open(os.path.join(p, 'course-was-here'), 'w')\n"
        "    except OSError: pass\n"
        "    else: raise SystemExit('written')",
        OK,
        "",
    ),
    Attack(
        "calls somebody on the network",
        "import socket\n"
        "try: socket.create_connection(('127.0.0.1', PORT), 2)\n"
        "except OSError: pass\n"
        "else: raise SystemExit('connected')",
        OK,
        "",
    ),
    Attack(
        "kills its parent",
        "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)",
        REFUSED,
        "watch over it",
    ),
    Attack(
        "kills everything that it can",
        "import os, signal\nos.kill(-1, signal.SIGKILL)",
        REFUSED,
        "watch over it",
    ),
    Attack(
        "leaves a process behind in a session of its own",
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0: time.sleep(1000)\n"
        "    os._exit(0)",
        OK,
        "",
    ),
    # ---------------------------------------------- what it reports
    Attack(
        "forges how it ended, and links to a secret",
        FORGED_OUTCOME.format(make="os.symlink(SECRET, RUN / 'mpirun.txt')"),
        CRASHED,
        "without an error",
        exercise=FULL,
    ),
    Attack(
        "forges how it ended, with a pipe that never ends",
        FORGED_OUTCOME.format(make="os.mkfifo(RUN / 'mpirun.txt')"),
        CRASHED,
        "without an error",
    ),
    Attack(
        "reports a name of twenty megabytes",
        PATHS,
        REFUSED,
        "is larger than 2 MB",
        after=shell("head -c 20000000 /dev/zero | tr '\\0' x >> \"$JSONL\""),
    ),
    Attack(
        "makes its report a sparse file",
        PATHS,
        REFUSED,
        "is larger than 2 MB",
        after=shell('truncate -s 10M "$JSONL"'),
    ),
    Attack(
        "makes its report a socket",
        PATHS,
        REFUSED,
        "",
        after=shell('rm "$JSONL"') + "import socket\n"
        "s = socket.socket(socket.AF_UNIX)\n"
        "os.chdir(RUN)\n"
        "s.bind(f'rank.{RANK}.jsonl')",
    ),
    Attack(
        "keeps an array that claims ten trillion numbers",
        PATHS,
        REFUSED,
        "is no array that a worker keeps",
        after="header = b\"{'descr': '<f4', 'fortran_order': False, \"\n"
        "header += b\"'shape': (10000000000000,), }\".ljust(118) + b'\\n'\n"
        "size = len(header).to_bytes(2, 'little')\n"
        "(RUN / 'forged').write_bytes(b'\\x93NUMPY\\x01\\x00' + size + header)\n"
        + shell("cp forged rank.0.local.0.npy; cp forged rank.1.local.0.npy"),
        exercise=FULL,
    ),
    Attack(
        "has a folder where the outcome goes",
        PATHS + "os.makedirs(RUN / 'outcome.json' / 'x')",
        REFUSED,
        "watch over it",
    ),
    Attack(
        "puts a link to the machine's settings where its folder was",
        PATHS + "os.rename(RUN, f'{RUN}.old')\nos.symlink('/etc', RUN)",
        REFUSED,
        "",
    ),
    Attack(
        "talks to the lab in the place of mpirun",
        "import glob, socket\n"
        "s = socket.socket(socket.AF_UNIX)\n"
        "s.connect(glob.glob('/tmp/*/**/door', recursive=True)[0])\n"
        "s.sendall(b'{}\\n')",
        REFUSED,
        "watch over it",
    ),
    # ---------------------------------------------- other scenarios, and the machine
    Attack(
        "looks for the other scenarios",
        # One of them begins with what another one has left, and can't change that.
        PATHS + "place = RUN.parents[1]\n"
        "others = {*os.listdir(place.parent)} - {place.name}\n"
        "known = {'two'} if place.name == 'other-options' else set()\n"
        "assert others <= known, others\n"
        "for other in others:\n"
        "    try:\n"
        "        next((place.parent / other).rglob('*.jsonl')).open('a')\n"
        "    except OSError:\n"
        "        continue\n"
        "    raise SystemExit('an earlier report can be changed')",
        OK,
        "",
        exercise=FULL,
    ),
    Attack(
        "leaves settings for later mpiruns in its home",
        "",
        OK,
        "",
        after="import os\n"
        "for f in ('.openmpi/mca-params.conf', '.keras/keras.json'):\n"
        "    f = os.path.expanduser('~/' + f)\n"
        "    os.makedirs(os.path.dirname(f), exist_ok=True)\n"
        "    with open(f, 'w') as file: file.write('btl = none\\npml = none')",
        exercise=FULL,
    ),
    Attack(
        "sets the environment of the check",
        "import os\n"
        "for name in 'HOME PYTHONPATH LD_PRELOAD'.split():\n"
        "    os.environ[name] = '/etc'",
        OK,
        "",
    ),
    Attack(
        "turns the clocks back",
        "import time\n"
        "now = time.time\n"
        "time.monotonic = time.perf_counter = time.time = lambda: -now()",
        OK,
        "",
    ),
    # ---------------------------------------------- text
    Attack(
        "is nested deeply, with signs",
        "x = " + "-" * 50_000 + "1",
        WRONG,
        "nested too deeply",
    ),
    Attack(
        "runs what the page shows as a comment",
        "# coding: raw_unicode_escape\n# \\u000araise SystemExit",
        WRONG,
        "declares the coding raw_unicode_escape",
    ),
    Attack(
        "fails with half a megabyte of words",
        "raise ValueError('x' * 500_000)",
        CRASHED,
        "ValueError: xxx",
    ),
    Attack("prints a number of 900,000 digits", "print('1' * 900_000)", OK, ""),
]


# Grades a class as `course grade` does, within these limits; says what it came to.
GRADER = """
import functools, json, os, re, sys
from pathlib import Path
from utils.grading import examine, grade, sandbox
folder, out, exercise, limits, may_compute, until = sys.argv[1:]
limits = sandbox.Limits(**json.loads(limits))
look = functools.partial(examine.examine, limits=limits, may_compute=float(may_compute))
grades = grade.grade(
    Path(folder), Path(out), exercise, jobs=2, examine=look, until=until
)
told = {
    one.learner: {
        "status": one.status,
        "seen": [one.reason, *(verdict.seen for verdict in one.verdicts)],
        "right": [verdict.ok for verdict in one.verdicts],
        "isolation": one.isolation,
    }
    for one in grades
}
# The most that this program had at once. (ru_maxrss is that of the process which
# started it, too: it outlives an exec.)
(peak,) = re.findall(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())
memory = 1024 * int(peak)
print(json.dumps({"pid": os.getpid(), "memory": memory, "grades": told}))
"""


def grade_class(folder: Path, out: Path, exercise: str) -> dict:
    done = captured(
        [
            *(sys.executable, "-c", GRADER, str(folder), str(out), exercise),
            *(json.dumps(LIMITS), str(MAY_COMPUTE), str(UNTIL[exercise])),
        ],
        timeout=1500,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1]) | {"told": done.stderr}


@dataclass
class Seen:
    """What came of two classes and of normal submissions after them.

    grades: exercise -> what grading its class gave, twice. results: exercise -> the
    content of each file of its results, by name. normal: exercise -> its examination.
    called: was somebody called on this machine's loopback? left: processes and files
    that should not be there.
    """

    grades: dict[str, list[dict]]
    results: dict[str, dict[str, bytes]]
    normal: dict[str, Examined]
    called: bool
    left: list[str]


@pytest.fixture(scope="module")
def seen(bubblewrap, tmp_path_factory) -> Seen:
    """Now, or before (see kept_evidence.py)."""
    return kept_evidence.value(
        functools.partial(grade_and_examine, tmp_path_factory),
        *(FINISHED, PROGRAMS),
        modules=(*grade.CHECKER, "utils.grading"),
        others=(Path(__file__), *Path(grade.__file__).parent.rglob("*.html")),
        worth=lambda made: (
            all(is_as_expected(made, attack) for attack in ATTACKS)
            and all(one.status == OK for one in made.normal.values())
            and not (made.called or made.left)
        ),
    )


def grade_and_examine(tmp_path_factory) -> Seen:
    secret = tmp_path_factory.mktemp("private") / "secret"
    secret.write_text(SECRET)
    secret.chmod(0o600)
    seen = Seen({}, {}, {}, False, [])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.1)
        port = listener.getsockname()[1]
        for exercise in (LIGHT, FULL):
            folder = tmp_path_factory.mktemp("class")
            for attack in ATTACKS:
                if attack.exercise == exercise:
                    program = attack.program.replace("SECRET", repr(str(secret)))
                    program = program.replace("PORT", str(port))
                    (folder / f"{attack.name}.py").write_text(program, newline="")
            (folder / "normal.py").write_text(FINISHED[exercise])
            out = tmp_path_factory.mktemp("results") / "grades"
            both = [grade_class(folder, out, exercise) for _ in range(2)]
            seen.grades[exercise] = both
            seen.results[exercise] = {
                str(path.relative_to(out)): path.read_bytes()
                for path in out.rglob("*")
                if path.is_file()
            }
        seen.normal = examine_normal(tmp_path_factory.mktemp("normal"))
        with contextlib.suppress(TimeoutError):
            listener.accept()
            seen.called = True
    seen.left = left_by([one["pid"] for both in seen.grades.values() for one in both])
    return seen


def examine_normal(folder: Path) -> dict[str, Examined]:
    """What examining normal submissions gives, by name."""

    def examine_one(numbered: tuple[int, tuple]):
        number, (exercise, text) = numbered
        path = folder / f"{exercise}_{number}.py"
        path.write_text(text)
        return examine.examine(path)

    with ThreadPoolExecutor(2) as pool:
        results = pool.map(examine_one, enumerate(PROGRAMS.items()))
        return dict(zip(PROGRAMS, results, strict=True))


def left_by(graders: list[int]) -> list[str]:
    """Processes, folders of the graders, and what lies where nobody may write."""
    deadline = time.monotonic() + 5
    while children := psutil.Process().children(recursive=True):
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    place = Path(tempfile.gettempdir())
    left = [str(child) for child in children]
    for grader in (os.getpid(), *graders):
        left += map(str, place.glob(f"{files.SCRATCH}{grader}-*"))
    written = Path(course.PACKAGE_ROOT, "utils", "course-was-here")
    return left + [str(written)] * written.exists()


def is_as_expected(seen: Seen, attack: Attack) -> bool:
    told = seen.grades[attack.exercise][0]["grades"][attack.name]
    return (
        told["status"] == attack.status
        and any(attack.seen in text for text in told["seen"])
        and all(told["right"]) == (attack.status == OK)
    )


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_an_attack_is_contained_and_called_what_it_is(attack, seen):
    assert is_as_expected(seen, attack), seen.grades[attack.exercise][0]["grades"][
        attack.name
    ]


@pytest.mark.parametrize("exercise", [LIGHT, FULL])
def test_the_class_is_graded_to_its_end_with_every_learner_s_row(exercise, seen):
    first, again = seen.grades[exercise]
    names = {attack.name for attack in ATTACKS if attack.exercise == exercise}
    names.add("normal")
    assert set(first["grades"]) == names
    assert GRADER_ERROR not in {grade["status"] for grade in first["grades"].values()}
    looked_at = parts.number(UNTIL[exercise])
    assert first["grades"]["normal"]["right"] == [True] * looked_at
    results = seen.results[exercise]
    text = results["gradebook.csv"].decode()
    rows = {row["learner"]: row for row in csv.DictReader(text.splitlines())}
    assert set(rows) == names
    assert all(row["total"] for row in rows.values())
    pages = [name for name in results if re.fullmatch(r"reports/[^/]+\.html", name)]
    assert len(pages) == len(names)
    # What was examined is known, and comes to the same.
    assert again["grades"] == first["grades"]
    assert f"{len(names)} of {len(names)} programs are known" in again["told"]


@pytest.mark.parametrize("exercise", [LIGHT, FULL])
def test_a_class_takes_little_memory_and_makes_small_pages(exercise, seen):
    assert all(told["memory"] < MOST_MEMORY for told in seen.grades[exercise])
    assert max(map(len, seen.results[exercise].values())) < 2e6


def test_no_secret_is_in_the_results(seen):
    contents = [text for one in seen.results.values() for text in one.values()]
    assert len(contents) > 2 * len(ATTACKS)
    assert not [text for text in contents if SECRET.encode() in text]


@pytest.mark.parametrize(
    "exercise", exercises.EXERCISES.values(), ids=lambda exercise: exercise.name
)
def test_a_normal_submission_is_graded_right_after_all_that(exercise, seen):
    examined = seen.normal[exercise.name]
    assert examined.status == OK, examined.reason
    assert examined.isolation == sandbox.PROTECTED
    assert [v.id for v in examined.verdicts] == [
        parts.finding(part, "right") for part in exercise.parts
    ]


def test_what_a_submission_printed_is_kept(seen):
    assert "Test loss" in seen.normal[exercises.find("fashion_mnist").name].log


def test_nobody_was_called(seen):
    assert not seen.called


def test_nothing_is_left(seen):
    assert seen.left == []


def test_the_first_end_of_several_is_the_reason(tmp_path):
    """Steps are judged by several runs, of which each may end in its own way."""
    verdicts = tuple(
        Verdict(step, f"step-{step}.crashed", WRONG, "", f"It failed in line {step}.")
        for step in (2, 5)
    )
    sandboxed = examine._Sandboxed(
        b"", exercises.find(FULL), tmp_path, examine.LIMITS, 1.0, protected=True
    )
    examined = sandboxed.examined(verdicts)
    assert (examined.status, examined.reason) == (CRASHED, "It failed in line 2.")


def test_a_link_in_the_place_of_what_a_life_left_is_not_shown(tmp_path, monkeypatch):
    """What the next life is shown lies where the first one could have moved it."""
    private = tmp_path / "private"
    private.mkdir()
    paths = []

    def run(command, folder, *, readable, **options):
        paths.extend(path.resolve() for path in readable)
        (folder / "0").mkdir()
        (folder / "0" / "first life").symlink_to(private)
        (private / "outcome.json").write_text(json.dumps(OUTCOME))
        return sandbox.Ended(0, None, 1.0, lab.BEGINS)

    monkeypatch.setattr(sandbox, "run", run)
    path = tmp_path / "survive.py"
    path.write_text(FINISHED[LIGHT])
    examined = examine.examine(path)
    assert examined.status == REFUSED
    assert "moved" in examined.reason
    assert private not in paths
