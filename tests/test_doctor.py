"""The doctor really starts two processes; where something is broken it says so."""

import json
import os
import re
import sys

import pytest
from machines import PROBED
from processes import course_command, serving
from rich.console import Console
from test_data import Server

from distcheck import mpi
from utils import figures
from utils.base import course
from utils.checking import doctor
from utils.checking.doctor import LIMITED, MISSING, OK, Line, Report
from utils.lessons import outline
from utils.training import fetch

pytestmark = pytest.mark.timeout(300)


# -------------------------------------------------------------- the whole of it


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Report:
    """This machine's report, with nothing in COURSE_DATA's place but an empty cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("COURSE_DATA", raising=False)
        patch.setenv("COURSE_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(fetch, "PLACES", ())
        return doctor.doctor()


@pytest.mark.slow
def test_two_processes_really_add_two_numbers(report):
    line = report.line("all-reduce")
    assert (line.state, line.found) == (OK, "added 1 and 2 with Horovod: 3")
    assert report.line("horovod").found.startswith("0.28.1 with MPI, Gloo")
    assert re.fullmatch(r"Open MPI \d+\.\d+\.\d+", report.line("mpi").found)
    assert report.line("tensorflow").found == "2.21.0"


def test_what_is_tried_is_what_runs_use(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "{}")
    monkeypatch.setenv("DISTCHECK_TASK", "7")
    calls = []

    def facts_from(command, environment):
        calls.append((command, environment))
        return {"tensorflow": "of the course"}

    monkeypatch.setattr(doctor, "_facts_from", facts_from)
    assert doctor._probe() == {"tensorflow": "of the course"}
    ((command, environment),) = calls
    assert command[0] == mpi.mpirun()
    assert environment == mpi.clean_environment()
    assert not {"TF_CONFIG", "DISTCHECK_TASK"} & set(environment)


@pytest.mark.slow
def test_a_machine_without_data_still_runs_the_course(report):
    assert report.line("data").state == LIMITED
    assert report.ok
    assert report.summary == "The course runs here, with the limits named above."


@pytest.mark.slow
def test_the_report_reads_the_same_everywhere(report):
    console = Console(width=200)
    with console.capture() as captured:
        console.print(report)
    for text in (captured.get(), report._repr_html_()):
        assert "added 1 and 2 with Horovod" in text
        assert "Data (limited): everything runs, but on 6,400 images at most" in text
        assert str(course.root()) not in text
    assert json.loads(json.dumps(report.as_json()))["ok"] is True


def test_a_broken_package_is_reported_with_its_reason_and_a_fix(tmp_path):
    (tmp_path / "tensorflow").mkdir()
    broken = tmp_path / "tensorflow" / "__init__.py"
    broken.write_text("raise ImportError('broken on purpose')")
    answer = course_command("doctor", "--json", PYTHONPATH=str(tmp_path))
    assert answer.returncode == 1
    report = json.loads(answer.stdout)
    assert not report["ok"]
    lines = {line["name"]: line for line in report["lines"]}
    assert lines["tensorflow"]["state"] == MISSING
    assert "ImportError: broken on purpose" in lines["tensorflow"]["found"]
    assert "make setup" in lines["tensorflow"]["fix"]
    assert lines["all-reduce"]["state"] == MISSING
    assert lines["cores"]["state"] in (OK, LIMITED)
    verdicts = {lesson["number"]: lesson["verdict"] for lesson in report["lessons"]}
    assert verdicts["01"].startswith("not before this is fixed: TensorFlow")


def test_what_is_known_of_an_error_is_a_part_of_the_fix(monkeypatch):
    says = "import sys; sys.exit('OSError: [Errno 28] No space left on device')"
    facts = doctor._facts_from([sys.executable, "-c", says], dict(os.environ))
    lines = {line.name: line for line in doctor._lines_of_software(facts)}
    for name in ("tensorflow", "all-reduce"):
        assert "The disk is full" in lines[name].fix
    assert "known" not in doctor._facts_from(["echo", "error: what"], dict(os.environ))


# -------------------------------------------------------------- line by line


@pytest.mark.parametrize(
    ("facts", "name", "words"),
    [
        ({"last": "No module named 'tensorflow'"}, "tensorflow", "No module named"),
        ({"last": "Segmentation fault"}, "horovod", "Segmentation fault"),
        (
            PROBED | {"built": {"MPI": False, "Gloo": True, "NCCL": False}},
            "horovod",
            "with Gloo",
        ),
        (
            PROBED | {"sum": 1.0, "last": "lone"},
            "all-reduce",
            "could not add 1 and 2",
        ),
        (PROBED | {"alone": True}, "all-reduce", "could not add 1 and 2"),
        ({}, "all-reduce", "no answer in time"),
    ],
)
def test_software_that_is_missing_has_a_fix(facts, name, words):
    lines = {line.name: line for line in doctor._lines_of_software(facts)}
    assert lines[name].state == MISSING
    assert words in lines[name].found
    assert "make setup" in lines[name].fix


def test_one_core_is_a_limit_not_an_obstacle(pretend):
    pretend(cores=1)
    line = doctor._core_line()
    assert line.state == LIMITED
    assert "no speed-up" in line.fix


def test_too_little_memory_or_disk_is_missing(monkeypatch):
    monkeypatch.setattr(doctor, "NEEDED_MEMORY", 1e18)
    monkeypatch.setattr(doctor, "NEEDED_DISK", 1e18)
    for line in (doctor._memory_line(), doctor._disk_line()):
        assert line.state == MISSING
        assert "GB" in line.fix


def test_a_lesson_says_what_it_waits_for(monkeypatch):
    ring = outline.Notebook("02_ring", "Ring", "", 7, needs=("mpi", "cores"))
    monkeypatch.setattr(outline, "read", lambda: outline.Outline({"02_ring": ring}, {}))

    def lesson(mpi: str, cores: str):
        lines = [Line("mpi", "MPI", "", mpi), Line("cores", "Cores", "", cores)]
        (row,) = doctor._lessons(lines)
        assert (row.number, row.title, row.minutes) == ("02", "Ring", 7)
        return row.verdict

    assert lesson(OK, OK) == "yes"
    assert lesson(OK, LIMITED) == "yes, with a limit: Cores"
    assert lesson(MISSING, LIMITED) == "not before this is fixed: MPI"


# -------------------------------------------------------------- the data


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """No data on this machine, and nobody to ask for it."""
    monkeypatch.delenv("COURSE_DATA", raising=False)
    monkeypatch.delenv("COURSE_MIRROR", raising=False)
    monkeypatch.setenv("COURSE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(fetch, "PLACES", ("http://127.0.0.1:9",))
    return tmp_path


def test_without_data_and_network_there_is_a_sample(nowhere):
    line = doctor._data_line()
    assert line.state == LIMITED
    assert "a sample of Fashion-MNIST" in line.found
    assert "COURSE_DATA" in line.fix


def test_a_wrong_data_folder_is_missing_and_says_what_is_wrong(nowhere, monkeypatch):
    monkeypatch.setenv("COURSE_DATA", str(nowhere))
    line = doctor._data_line()
    assert line.state == MISSING
    assert "train-images-idx3-ubyte.gz is missing" in line.fix


def test_data_that_can_be_downloaded_is_fine(nowhere, monkeypatch):
    (nowhere / doctor.SMALLEST_FILE).write_bytes(b"labels")
    with serving(Server(nowhere)) as server:
        monkeypatch.setenv("COURSE_MIRROR", server.address)
        line = doctor._data_line()
    assert line.state == OK
    assert "downloaded when first used" in line.found


@pytest.mark.skipif("COURSE_DATA" not in os.environ, reason="COURSE_DATA is not set")
def test_real_data_is_checked(monkeypatch):
    line = doctor._data_line()
    assert (line.state, line.fix) == (OK, "")
    assert "Fashion-MNIST, checked" in line.found


# -------------------------------------------------------------- the figure


@pytest.mark.parametrize(
    ("workers", "devices", "one_each", "shares", "words"),
    [
        (2, 2, False, [[0], [1]], "2 workers, one core each"),
        (2, 5, False, [[0, 1], [2, 3]], "2 workers, 2 cores each"),
        (4, 2, False, [[0], [1], [0], [1]], "4 workers take turns on 2 cores."),
        (1, 4, True, [[0]], "1 worker, one core each"),
    ],
)
def test_devices_are_shared_out(workers, devices, one_each, shares, words):
    assert figures.machine.share_out(workers, devices, one_each) == shares
    assert figures.machine.in_words(shares, "core").startswith(words)
