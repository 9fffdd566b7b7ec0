"""solutions/preempted.py keeps its count when it is told to end, on Google Cloud, too.
That is pretended: its host answers TensorFlow where it is asked by its name."""

import subprocess
import sys

import pytest

from utils.base import course

RUN = """
import runpy, sys, requests
from types import SimpleNamespace

google = sys.argv.pop(1) == "google"

def get(url, **_):
    if google and "//metadata.google.internal/" in url:
        return SimpleNamespace(status_code=200)
    raise requests.exceptions.ConnectionError

requests.get = get
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0])
"""
PROGRAM = course.PACKAGE_ROOT / "solutions" / "preempted.py"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("place", ["google", "elsewhere"])
def test_what_was_counted_is_kept(place, tmp_path):
    line = [sys.executable, "-c", RUN, place, PROGRAM, "--kept", tmp_path, "--steps"]
    counting = subprocess.Popen([*line, "2000"], stdout=subprocess.PIPE, text=True)
    try:
        assert counting.stdout.readline() == "Begins after step 0\n"
        counting.terminate()
        assert counting.wait(100) == 42
    finally:
        counting.kill()
        counting.stdout.close()
    again = subprocess.run([*line, "0"], stdout=subprocess.PIPE, text=True, timeout=200)
    begin, end = (int(text.split()[-1]) for text in again.stdout.splitlines())
    assert begin == end > 0
