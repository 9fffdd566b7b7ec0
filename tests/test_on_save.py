"""`course check --watch`: a verdict on each save, from a lab that stays."""

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from jupyter_client.manager import start_new_kernel
from processes import captured, ship_the_exercise, wait_for

from distcheck.verdict import RIGHT, Verdict
from utils.base import course
from utils.checking import exercises, on_save
from utils.lessons import markup, progress

SOURCE = (course.PACKAGE_ROOT / "solutions/fashion_mnist_solution.py").read_text()
WRAPPED = "optimizer = hvd.DistributedOptimizer("


@pytest.fixture
def program(tmp_path, monkeypatch):
    """The exercise of a course of its own, as shipped."""
    path = ship_the_exercise(tmp_path)
    monkeypatch.chdir(tmp_path)
    return path


def note_right(*steps: int) -> None:
    verdicts = [Verdict(step, f"step-{step}.right", RIGHT, "", "") for step in steps]
    progress.note("fashion_mnist", verdicts)


def test_it_begins_with_the_first_part_that_is_not_known_to_be_right(program):
    def first(path: Path = program) -> int:
        return on_save._first_open(exercises.find("fashion_mnist"), path)

    assert first() == 1
    program.write_text(markup.render(SOURCE, 3))
    note_right(1, 2, 4)
    assert first() == 3
    program.write_text("def")
    assert first() == 3
    program.write_text(markup.render(SOURCE, 1))  # begun anew
    assert first() == 2
    program.write_text(markup.render(SOURCE, 6))
    note_right(3, 5, 6)
    assert first() == 1
    other = program.with_name("other.py")
    other.write_text(markup.render(SOURCE, 6))
    assert first(other) == 1


def command(*arguments: str) -> list[str]:
    return [str(Path(sys.executable).with_name("course")), "check", *arguments]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--watch", "--json"], "leave out --json"),
        (["--watch", "--script", "no.py"], "there is no program no.py"),
        (["--watch", "7"], "there is no `7`"),
    ],
)
def test_what_can_not_be_watched_is_status_2(program, arguments, says):
    answer = captured(command(*arguments))
    assert answer.returncode == 2
    assert says in answer.stderr


class Watching:
    """`course check --watch`, and what it has said."""

    def __init__(self, *arguments: str):
        self.process = subprocess.Popen(
            command("--watch", *arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "COLUMNS": "200", "NO_COLOR": "1"},
        )
        self.lines: list[str] = []
        self.heard = 0
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        self.lines.extend(self.process.stdout)

    def hear(self, *words: str) -> str:
        """What it says from now on until it has said each of these."""

        def said() -> str:
            text = "".join(self.lines[self.heard :])
            return text if all(word in text for word in words) else ""

        try:
            text = wait_for(said, what=f"{words}")
        except AssertionError:
            raise AssertionError("".join(self.lines[self.heard :])) from None
        self.heard += text.count("\n")
        return text

    def family(self) -> set[psutil.Process]:
        return {*psutil.Process(self.process.pid).children(recursive=True)}


@pytest.fixture
def watching() -> Iterator:
    started: list[Watching] = []

    def start(*arguments: str) -> Watching:
        started.append(Watching(*arguments))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.wait()


@pytest.mark.slow
def test_each_save_is_checked_until_an_interrupt(program, watching):
    program.write_text(markup.render(SOURCE, 2))
    note_right(1, 2)
    watch = watching()
    watch.hear("Checking step 3", "still says `TODO: Step 3`", on_save.AGAIN)
    right = markup.render(SOURCE, 3)
    program.write_text(right.replace(WRAPPED, f"unused = {WRAPPED[12:]}"))
    watch.hear("(step-3.not-used)", "Hint", on_save.AGAIN)
    program.write_text("if True\n    pass\n")
    assert "Step 3 is right" not in watch.hear("(step-3.syntax)", on_save.AGAIN)

    # One that ends never is superseded by the next save, and its workers with it.
    before = watch.family()
    program.write_text("import time\ntime.sleep(1000)\n")
    watch.hear("Checking step 3")
    asleep = wait_for(lambda: len(new := watch.family() - before) > 4 and new)
    program.write_text(right)
    said = watch.hear("Step 3 is right.", "Checking step 4", "TODO: Step 4")
    assert said.count("Checking step 3") == 1
    assert "(step-3." not in said
    assert not psutil.wait_procs(asleep, timeout=5)[1]
    assert progress.found_right("fashion_mnist") == {1, 2, 3}

    family = watch.family()
    assert len(family) == 2  # a supervisor and the lab
    watch.process.send_signal(signal.SIGINT)
    assert watch.process.wait(20) == 1
    assert not psutil.wait_procs(family, timeout=10)[1]
    assert "Traceback" not in "".join(watch.lines)


@pytest.mark.slow
def test_it_ends_after_the_last_step(program, watching):
    program.write_text(markup.render(SOURCE, 6))
    watch = watching("6")
    watch.hear("Step 6 is right.")
    assert watch.process.wait(20) == 0


class Cell:
    """A cell of a notebook, running, and what is shown below it now."""

    def __init__(self, client, code: str):
        self.client, self.shown, self.idle = client, "", False
        self.request = client.execute(code)

    def read(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                message = self.client.get_iopub_msg(timeout=0.1)
                if message["parent_header"].get("msg_id") != self.request:
                    continue
                content = message["content"]
                if message["msg_type"] in ("display_data", "update_display_data"):
                    self.shown = content["data"]["text/plain"]
                elif message["msg_type"] == "error":
                    raise AssertionError(content["evalue"])
                elif content.get("execution_state") == "idle":
                    self.idle = True

    def see(self, *words: str) -> None:
        def seen() -> bool:
            self.read()
            return all(word in self.shown for word in words)

        wait_for(seen, what=f"{words} in {self.shown}")


@pytest.mark.slow
def test_a_cell_keeps_watching_until_it_is_stopped(program):
    program.write_text(markup.render(SOURCE, 2))
    manager, client = start_new_kernel()
    try:
        cell = Cell(client, "from utils import check_on_save; check_on_save(3)")
        cell.see("still says `TODO: Step 3`", on_save.AGAIN, on_save.STOP_BUTTON)
        program.write_text(markup.render(SOURCE, 3))
        # The verdict on step 3 gives way to that on step 4.
        cell.see("still says `TODO: Step 4`", on_save.AGAIN)
        assert "Step 3" not in cell.shown
        family = psutil.Process(manager.provisioner.pid).children(recursive=True)
        assert family
        manager.interrupt_kernel()
        cell.see("Stopped", "Step 4")
        wait_for(lambda: cell.read() or cell.idle, what="idle")
        assert not psutil.wait_procs(family, timeout=10)[1]
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
