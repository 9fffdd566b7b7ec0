"""`make gpu`: without a GPU it says so; with one, every part leaves its output."""

import gpu_report
import pytest
from gpu_report import Part
from processes import empty_course


def test_without_a_gpu_it_says_so_and_ends(pretend, capsys, tmp_path):
    pretend(gpus=0)
    with empty_course(tmp_path):
        assert gpu_report.main() == 1
    assert capsys.readouterr().out.startswith("There is no GPU here")
    assert not (tmp_path / "logs").exists()


@pytest.mark.parametrize(("status", "ended"), [(0, "well"), (3, "with status 3")])
def test_each_part_is_done_and_reported(
    status, ended, monkeypatch, pretend, capsys, tmp_path
):
    pretend(gpus=1)
    tried = [
        Part("first", "what comes first", ("sh", "-c", f"echo hello; exit {status}")),
        Part("second", "what goes on after that", ("echo", "there")),
        Part("third", "what takes too long", ("sleep", "60"), hours=1 / 3600),
    ]
    monkeypatch.setattr(gpu_report, "parts", lambda folder: tried)
    with empty_course(tmp_path):
        assert gpu_report.main() == 1
    (folder,) = (tmp_path / "logs").iterdir()
    assert (folder / "first.txt").read_text() == "hello\n"
    assert (folder / "second.txt").read_text() == "there\n"
    report = (folder / "REPORT.md").read_text()
    assert f"| what comes first | {ended} |" in report
    assert "| what goes on after that | well |" in report
    assert "| what takes too long | not within" in report
    assert folder.name in capsys.readouterr().out


def test_it_tries_what_needs_a_gpu(tmp_path):
    commands = {part.name: part.command for part in gpu_report.parts(tmp_path)}
    assert commands["tests"][1:5] == ("-m", "pytest", "-m", "gpu")
    assert commands["notebooks"][-3:] == ("notebooks", "--profile", "gpu")
    assert commands["bench"][3:5] == ("bench", "gpu")
