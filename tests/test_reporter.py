"""What a worker reports, whichever thread it is in, and whatever is replaced."""

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from utils.checking import evidence
from utils.checking.observers.observe import Reporter
from utils.checking.observers.tasks import TaskObserver


class Library:
    def call(self):
        return "library"


@pytest.fixture
def library(monkeypatch):
    """A class whose method is as it was, after the test."""
    monkeypatch.setattr(Library, "call", Library.call)
    return Library


@pytest.fixture
def reporter(tmp_path, library):
    """One that has replaced a method of the library twice, as some observers do."""
    reporter = Reporter(tmp_path, 0, "program.py")
    for _ in range(2):
        reporter.replace(library, "call", lambda original: lambda own: original(own))
    return reporter


def replaced(reporter) -> list[str]:
    """What its report says at the end of the program that has been replaced."""
    reporter.report_replaced()
    events = evidence.events(reporter.folder / "rank.0.jsonl", "tasks")
    return [event["replaced"] for event in events if event["what"] == "tampered"]


def test_a_program_that_uses_and_subclasses_a_library_has_replaced_nothing(
    reporter, library
):
    class Own(library):
        def call(self):
            return f"own {super().call()}"

    assert Own().call() == "own library"
    assert json.loads(json.dumps(1)) == 1
    assert replaced(reporter) == []


def test_a_function_that_a_program_replaces_is_reported(reporter, library):
    original = library.call
    library.call = lambda own: original(own)
    assert replaced(reporter) == ["Library.call"]


def test_a_function_that_a_program_deletes_is_reported(reporter, library):
    del library.call
    assert replaced(reporter) == ["Library.call"]


@pytest.mark.parametrize(("owner", "name"), [(json, "dumps"), (os, "write")])
def test_what_a_report_is_written_with_can_be_replaced_and_it_says_so(
    reporter, monkeypatch, owner, name
):
    monkeypatch.setattr(owner, name, lambda *args, **kwargs: "{}")
    assert replaced(reporter) == [f"{owner.__name__}.{name}"]


def test_a_clock_that_a_program_turns_back_is_its_own(reporter, monkeypatch):
    monkeypatch.setattr(time, "monotonic", lambda: -1.0)
    reporter.event("orders", name="join")
    assert replaced(reporter) == []
    (event,) = evidence.events(reporter.folder / "rank.0.jsonl", "tasks")
    assert event["time"] > 0


def test_several_threads_report_at_once(tmp_path):
    """As those of a chief do, one for each of its workers."""
    observer = TaskObserver(tmp_path, 0, "program.py")
    images, weights = np.zeros((4, 28, 28), np.uint8), np.ones(10_000, np.float32)

    def train(_) -> None:
        observer._trains(1, images, weights)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(train, range(200)))
    assert replaced(observer) == []
    events = evidence.events(tmp_path / "rank.0.jsonl", "tasks")
    assert [event["what"] for event in events] == ["trains"] * 200
    for when in ("first", "last"):
        kept = evidence.array(tmp_path / f"rank.0.weights.{when}.npy")
        assert np.array_equal(kept, weights)
