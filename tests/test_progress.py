"""Progress is noted by several processes at once, and none of it is lost."""

import json
import signal
import subprocess
import sys
import time

from distcheck.verdict import RIGHT, WRONG, Verdict
from utils.lessons import progress

NOTES = 200
WRITER = """
import sys
from utils.lessons import progress
from distcheck.verdict import RIGHT, Verdict
for step in range(1, int(sys.argv[2]) + 1):
    progress.note(sys.argv[1], [Verdict(step, f"step-{step}.right", RIGHT, "", "")])
print("done")
"""


def start(name: str, notes: int) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, name, str(notes)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_four_processes_lose_nothing_also_when_one_more_is_killed(own_course):
    writers = [start(f"writer{n}", NOTES) for n in range(4)]
    killed = start("killed", 1_000_000)
    try:
        deadline = time.monotonic() + 60
        # It is killed in the middle of its notes.
        while not any(key.startswith("killed") for key in progress.load()["checks"]):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        killed.send_signal(signal.SIGKILL)
        for writer in writers:
            output, error = writer.communicate(timeout=120)
            assert (output, error) == ("done\n", "")
    finally:
        for process in (killed, *writers):
            process.kill()
            process.communicate()
    checked = json.loads((own_course / "progress.json").read_text())["checks"]
    wanted = {f"writer{n} {step}" for n in range(4) for step in range(1, NOTES + 1)}
    assert wanted <= set(checked)
    assert all(facts["state"] == RIGHT for facts in checked.values())
    assert not list(own_course.glob("progress_kept_*"))


def test_looking_writes_nothing(own_course):
    assert progress.load() == {"checks": {}, "hints": {}}
    assert not (own_course / "progress.json").exists()
    progress.note("a", [Verdict(1, "step-1.right", RIGHT, "", "")])
    before = (own_course / "progress.json").stat().st_mtime_ns
    progress.load()
    assert (own_course / "progress.json").stat().st_mtime_ns == before


def test_what_was_noted_when_tasks_were_called_steps_is_carried_over(own_course):
    path = own_course / "progress.json"
    facts = {"state": RIGHT, "id": "step-2.right", "when": "2026-01-01 10:00"}
    six = {"fashion_mnist 2": facts}
    former = {**six, "mirrored 2": facts, "scaled 3": facts, "many_workers 5": facts}
    path.write_text(
        json.dumps({"checks": former, "hints": {"mirrored 2": 3, "fashion_mnist 1": 1}})
    )
    checks = progress.load()["checks"]
    task = facts | {"id": "task-B.right"}
    assert checks.pop("mirrored B") == task
    assert checks.pop("many_workers E")["id"] == "task-E.right"
    assert checks.pop("scaled C")["state"] == RIGHT
    assert checks == six
    assert progress.hints_shown("mirrored", "B") == 3
    assert progress.hints_shown("fashion_mnist", 1) == 1
    assert progress.Progress().done == 4
    # What is found out from now on is kept beside that, under the new name alone.
    progress.note("mirrored", [Verdict("B", "task-B.sum", WRONG, "", "")])
    kept = json.loads(path.read_text())["checks"]
    assert kept["mirrored B"]["id"] == "task-B.sum"
    assert kept.keys() == {
        "fashion_mnist 2",
        "mirrored B",
        "scaled C",
        "many_workers E",
    }
