"""Evidence is made once, of what it hangs on, and goes when it isn't used."""

import os
import time
from pathlib import Path

import kept_evidence
import pytest

from distcheck import errors, lab
from utils.base import course, sources
from utils.checking import exercises


@pytest.fixture
def performed(tmp_path, monkeypatch):
    """The text and the scenarios of each program that was run."""
    runs = []

    def perform(folder: Path, jobs: list[lab.Job], may_compute: float) -> None:
        for number, job in enumerate(jobs):
            text = Path(job.script).read_text()
            if text == "fails":
                raise errors.UserError("the check itself failed")
            runs.append((text, job.scenarios))
            (folder / str(number)).mkdir()
            (folder / str(number) / "report").write_text(text)

    monkeypatch.setattr(lab, "perform", perform)
    monkeypatch.setattr(kept_evidence, "FOLDER", tmp_path / "evidence")
    return runs


@pytest.fixture
def job(tmp_path):
    """A function that gives the job of a program, each in a file of its own."""

    def job(text: str, *scenarios: str, **facts) -> lab.Job:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.py"
        path.write_text(text)
        return lab.Job(str(path), scenarios or ("two",), exercises.IMAGES, **facts)

    return job


def reports(*jobs: lab.Job, may_compute: float = lab.MAY_COMPUTE) -> list[str]:
    places = kept_evidence.of_jobs([*jobs], may_compute)
    return [(place / "report").read_text() for place in places]


def test_only_what_is_new_is_run(performed, job):
    assert reports(job("a"), job("b"), job("a")) == ["a", "b", "a"]
    assert performed == [("a", ("two",)), ("b", ("two",))]
    assert reports(job("c"), job("b")) == ["c", "b"]
    assert performed[2:] == [("c", ("two",))]


def test_all_that_decides_what_is_seen_makes_it_new(performed, job, monkeypatch):
    reports(job("a"))
    reports(job("a", "two", "one"))
    reports(job("a", options=("--epochs", "3")))
    reports(job("a", graphs_wanted=False))
    reports(job("a", reference=job("b").script))
    reports(job("a"), may_compute=1.0)
    assert len(performed) == 6
    monkeypatch.setattr(sources, "digest", lambda *_: "the lab was changed")
    kept_evidence._digest.cache_clear()
    reports(job("a"))
    assert len(performed) == 7
    kept_evidence._digest.cache_clear()


def test_a_module_that_a_program_imports_decides_too(performed, job):
    texts = ["import numpy", "from utils import data", "from utils import doodles"]
    doodles = course.PACKAGE / "training" / "doodles.py"
    asked = []

    def digest(modules, *_):
        asked.append(doodles in sources.files_of(modules))
        return str(modules)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "digest", digest)
        kept_evidence._digest.cache_clear()
        reports(*map(job, texts))
    kept_evidence._digest.cache_clear()
    assert asked == [False, False, True]


def test_of_what_failed_nothing_is_kept(performed, job):
    with pytest.raises(errors.UserError):
        reports(job("a"), job("fails"))
    assert list(kept_evidence.FOLDER.iterdir()) == []


def test_of_two_who_make_the_same_at_once_the_first_is_kept(
    performed, job, monkeypatch
):
    perform = lab.perform

    def perform_at_once(folder, jobs, may_compute):
        monkeypatch.setattr(lab, "perform", perform)
        reports(*jobs)
        perform(folder, jobs, may_compute)

    monkeypatch.setattr(lab, "perform", perform_at_once)
    assert reports(job("a")) == ["a"]
    assert len(performed) == 2
    assert len(list(kept_evidence.FOLDER.iterdir())) == 1


def test_what_is_not_used_goes(performed, job):
    kept_evidence.of_jobs([job("a"), job("b")])
    long_ago = time.time() - kept_evidence.UNUSED - 60
    for place in kept_evidence.FOLDER.iterdir():
        os.utime(place, (long_ago, long_ago))
    assert reports(job("b"), job("c")) == ["b", "c"]  # as "c" is made, "a" goes
    assert len(performed) == 3
    left = [(p / "report").read_text() for p in kept_evidence.FOLDER.iterdir()]
    assert sorted(left) == ["b", "c"]


@pytest.mark.usefixtures("performed")
def test_a_value_is_made_once_for_the_same_facts_if_it_is_worth_it():
    made = []

    def value(*facts, worth):
        def make():
            made.append(facts)
            return {"losses": [0.5, *facts]}

        return kept_evidence.value(make, *facts, modules=(), worth=lambda _: worth)

    for _ in range(2):
        assert value("a", worth=False) == {"losses": [0.5, "a"]}
    assert made == [("a",)] * 2
    for _ in range(2):
        assert value("a", worth=True) == {"losses": [0.5, "a"]}
        assert value("b", worth=True) == {"losses": [0.5, "b"]}
    assert made == [("a",)] * 3 + [("b",)]
