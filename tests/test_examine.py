"""Hostile submissions, for real: contained, called what they are, and followed by a
normal one that is graded right.

Each attack is put in front of the finished program, and step 3 looked at: the other
steps would only run it more often. What it may use up is bounded far below what this
machine has, and by the attack itself where it could run away.
"""

import os
import socket
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from utils import course, examine, exercises, sandbox, steps
from utils.gradebook import CRASHED, HUNG, OK
from utils.submissions import REFUSED
from utils.verdict import WRONG

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SOURCE = (course.PACKAGE_ROOT / "solutions/fashion_mnist_solution.py").read_text()
FINISHED = steps.render(SOURCE, 6)
LIMITS = sandbox.Limits(seconds=240, memory=4e9, processes=80, file_bytes=50e6)
SILENCE = 15.0  # seconds of processor; enough to fill the memory


@dataclass(frozen=True)
class Attack:
    name: str
    code: str
    status: str
    seen: str  # what the verdict or the reason says


HIDDEN = ("solutions", "exercises", "tests", "utils/judge.py", "utils/grade.py")
RANK = 'int(__import__("os").environ["OMPI_COMM_WORLD_RANK"])'
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
        "import horovod.tensorflow.keras as h\nh.rank = lambda: 0",
        REFUSED,
        "replaced horovod.tensorflow.keras.rank",
    ),
    Attack(
        "patches TensorFlow",
        "import tensorflow as t\n"
        "old = t.GradientTape.gradient\n"
        "t.GradientTape.gradient = lambda *a, **k: old(*a, **k)",
        REFUSED,
        "replaced GradientTape.gradient",
    ),
    Attack(
        "patches json",
        "import json\njson.dumps = lambda *a, **k: '{}'",
        REFUSED,
        "replaced json.dumps",
    ),
    Attack(
        "patches the observer",
        "from utils import observe\n"
        "observe.Observer.event = lambda *a, **k: None\n"
        "observe.Observer._report_end = lambda *a: None\n"
        "observe.Observer.report_replaced = lambda *a: None",
        REFUSED,
        "replaced Observer.event",
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
]


HALF = "none: an unfinished submission"


@pytest.fixture(scope="module")
def listener():
    """Somebody on this machine's loopback whom nobody may reach."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        yield server


@pytest.fixture(scope="module")
def examined(tmp_path_factory, listener):
    """What examining each gave, by name; two at a time, the normal ones last."""
    isolation = sandbox.probe()
    if not (isolation.files and isolation.network and isolation.processes):
        pytest.skip(f"no isolation here: {isolation.how}; tests/test_sandbox.py says")
    folder = tmp_path_factory.mktemp("attacks")
    port = str(listener.getsockname()[1])

    def examine_one(numbered: tuple[int, tuple]):
        number, (exercise, text, wanted) = numbered
        path = folder / f"{exercise}_{number}.py"
        path.write_text(text)
        return examine.examine(path, LIMITS, SILENCE, wanted)

    programs = {
        a.name: (
            exercises.HOROVOD.name,
            f"{a.code.replace('PORT', port)}\n{FINISHED}",
            (3,),
        )
        for a in ATTACKS
    }
    programs |= {
        name: (name, steps.render(one.source.read_text(), len(one.steps)), None)
        for name, one in exercises.EXERCISES.items()
    }
    programs[HALF] = (exercises.HOROVOD.name, steps.render(SOURCE, 3), None)
    with ThreadPoolExecutor(2) as pool:
        found = dict(
            zip(
                programs,
                pool.map(examine_one, enumerate(programs.values())),
                strict=True,
            )
        )
    return found


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_an_attack_is_contained_and_called_what_it_is(attack, examined):
    found = examined[attack.name]
    told = [found.reason, *(verdict.seen for verdict in found.verdicts)]
    assert found.status == attack.status, told
    assert any(attack.seen in text for text in told), told
    assert all(v.ok for v in found.verdicts) == (attack.status == OK), told
    assert found.isolation


@pytest.mark.parametrize("one", exercises.EXERCISES.values(), ids=lambda one: one.name)
def test_a_normal_submission_is_graded_right_after_all_that(one, examined):
    found = examined[one.name]
    assert found.status == OK, found.reason
    assert [v.id for v in found.verdicts] == [f"step-{n}.right" for n in one.steps]


def test_what_a_submission_printed_is_kept(examined):
    assert "Test loss" in examined[exercises.HOROVOD.name].log


def test_an_unfinished_submission_gets_what_it_has_earned(examined):
    found = examined[HALF]
    assert found.status == WRONG
    assert [v.ok for v in found.verdicts] == [True] * 3 + [False] * 3


def test_nobody_was_called(examined, listener):
    with pytest.raises(TimeoutError):
        listener.accept()


def test_nothing_is_left(examined):
    """No process, no folder of this process, nothing where nobody may write."""
    deadline = time.monotonic() + 5
    while children := psutil.Process().children(recursive=True):
        assert time.monotonic() < deadline, children
        time.sleep(0.05)
    mine = f"course-{os.getpid()}-*"
    assert not list(Path(tempfile.gettempdir()).glob(mine))
    assert not Path(course.PACKAGE_ROOT, "utils", "course-was-here").exists()
