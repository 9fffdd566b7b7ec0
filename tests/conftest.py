"""The line that sums up the proof that the checks are right; and Ctrl-C that works."""

import os
import signal
import time

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # for tests that train themselves

import psutil
import pytest
from machines import Machine
from processes import empty_course

from distcheck import machine
from distcheck.errors import UserError
from utils.checking import gpu
from utils.grading import sandbox

# What the modules of tests share asserts as they do.
pytest.register_assert_rewrite("check_tables")

PROOFS = {
    "test_a_wrong_program_is_caught": "wrong programs caught",
    "test_a_program_that_is_right_in_another_way": "right programs passed",
    "test_a_right_program_trains": "right programs trained",
    "test_check_k_passes_after_step_n": "stages of the programs, by all checks",
    "test_an_attack_is_contained": "attacks contained",
}


LATE = "not begun before CI's deadline (COURSE_DEADLINE)"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    deadline = float(os.environ.get("COURSE_DEADLINE", "inf"))
    if time.time() > deadline and item.get_closest_marker("slow"):
        pytest.skip(LATE)


@pytest.fixture
def pretend(monkeypatch):
    """Lets all that counts cores, GPUs or memory find another machine, in this process
    and in what it starts: `pretend(cores=16, gpus=8)`, see machines.py.

    Nobody has chosen a profile there. A second call is another machine.
    """
    for name in ("COURSE_PROFILE", "CI", "CUDA_VISIBLE_DEVICES", machine.PRETEND):
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    own_memory = psutil.virtual_memory()

    def install(**what):
        there = Machine(**what)
        monkeypatch.setenv(machine.PRETEND, there.counts)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if there.visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", there.visible)
        memory = own_memory._replace(total=there.memory, available=there.memory)
        monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
        monkeypatch.setattr(gpu, "ask", lambda: there.nvidia_smi)

    return install


@pytest.fixture
def own_course(tmp_path):
    """An empty course of the test's own, in which it works."""
    with empty_course(tmp_path):
        yield tmp_path


@pytest.fixture(scope="session")
def bubblewrap():
    """Skips what grades for real where that can't be done in a sandbox."""
    try:
        sandbox.check()
    except UserError as error:
        pytest.skip(str(error))


class FailuresAtOnce:
    """Names what failed as soon as it did: who ends a run gets no summary of it."""

    def __init__(self, terminal):
        self.terminal = terminal

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report):
        if report.failed:
            lines = report.longreprtext.splitlines()
            why = [line for line in lines if line.startswith("E  ")] or lines[-1:]
            self.terminal.ensure_newline()
            self.terminal.write_line(f"FAILED {report.nodeid}, at {report.when}")
            self.terminal.write_line("\n".join(why[:10]))


@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal:  # the workers of pytest have none
        config.pluginmanager.register(FailuresAtOnce(terminal))
    # Shells start jobs in the background with SIGINT ignored, and children inherit it:
    # programs that the tests interrupt would not notice.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    _long_files_first(items, float(config.getini("timeout")))
    if machine.gpus():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="there is no GPU here"))


def _long_files_first(items, default):
    """So that no worker of pytest begins with a long file when the other is done.

    How long one may take is known by the time limits of its tests, in seconds.
    """
    longest = {}
    for item in items:
        limit = item.get_closest_marker("timeout")
        slow = item.get_closest_marker("slow") is not None
        rank = (slow, limit.args[0] if limit else default)
        longest[item.path] = max(rank, longest.get(item.path, rank))
    items.sort(key=lambda item: longest[item.path], reverse=True)


def pytest_terminal_summary(terminalreporter):
    skipped = terminalreporter.stats.get("skipped", [])
    if late := sum(LATE in str(report.longrepr) for report in skipped):
        terminalreporter.write_line(
            f"{late} slow tests were skipped: they had not begun before CI's deadline. "
            "`make test` without COURSE_DEADLINE runs them."
        )
    parts = []
    for test, what in PROOFS.items():
        count = {
            outcome: sum(
                f"::{test}" in report.nodeid and report.when == "call"
                for report in terminalreporter.stats.get(outcome, [])
            )
            for outcome in ("passed", "failed")
        }
        total = sum(count.values())
        if total:
            parts.append(f"{count['passed']} of {total} {what}")
    if parts:
        terminalreporter.write_line(f"checks: {', '.join(parts)}")
