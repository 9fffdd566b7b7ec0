"""Progress is noted by several processes at once, and none of it is lost."""

import json
import signal
import subprocess
import sys
import time

import pytest

from distcheck.verdict import RIGHT, Verdict
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


@pytest.fixture
def course_folder(tmp_path, monkeypatch):
    for name in ("notebooks", "exercises"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def start(name: str, notes: int) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, name, str(notes)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_four_processes_lose_nothing_also_when_one_more_is_killed(course_folder):
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
    checked = json.loads((course_folder / "progress.json").read_text())["checks"]
    wanted = {f"writer{n} {step}" for n in range(4) for step in range(1, NOTES + 1)}
    assert wanted <= set(checked)
    assert all(facts["state"] == RIGHT for facts in checked.values())
    assert not list(course_folder.glob("progress_kept_*"))


def test_looking_writes_nothing(course_folder):
    assert progress.load() == {"checks": {}, "hints": {}}
    assert not (course_folder / "progress.json").exists()
    progress.note("a", [Verdict(1, "step-1.right", RIGHT, "", "")])
    before = (course_folder / "progress.json").stat().st_mtime_ns
    progress.load()
    assert (course_folder / "progress.json").stat().st_mtime_ns == before
