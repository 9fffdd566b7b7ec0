"""Files are written whole or not at all; what a killed process leaves is swept."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from processes import captured

from distcheck import files, supervise
from distcheck.files import scratch, whole, write_whole


@pytest.fixture
def path(tmp_path):
    """A file that somebody wrote before, alone in its folder."""
    path = tmp_path / "results.csv"
    path.write_text("old")
    return path


def alone(path):
    return list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("content", ["grün\n", "two\r\nlines", b"\0\xff"])
def test_all_of_it_is_written_as_it_is(path, content):
    write_whole(path, content)
    wanted = content.encode() if isinstance(content, str) else content
    assert path.read_bytes() == wanted
    assert alone(path)


def test_until_the_end_the_former_file_is_there(path):
    with whole(path) as file:
        file.write(b"half")
        file.flush()
        assert path.read_text() == "old"
        (half,) = set(path.parent.iterdir()) - {path}
        assert half.match(files.HALVES)
        assert half in path.parent.glob(files.HALVES)
    assert path.read_text() == "half"
    assert alone(path)


@pytest.mark.parametrize("error", [ValueError, OSError, KeyboardInterrupt])
def test_a_failure_in_the_middle_leaves_what_was_there(path, error):
    def write(file):
        file.write(b"half")
        raise error

    with pytest.raises(error), whole(path) as file:
        write(file)
    assert path.read_text() == "old"
    assert alone(path)


def test_what_can_not_be_written_leaves_what_was_there(path):
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "\udcff")
    assert path.read_text() == "old"
    assert alone(path)


def test_a_place_that_can_not_be_written_to_is_an_error_and_nothing_is_left(tmp_path):
    (tmp_path / "folder" / "within").mkdir(parents=True)
    with pytest.raises(IsADirectoryError):
        write_whole(tmp_path / "folder", "text")
    with pytest.raises(FileNotFoundError):
        write_whole(tmp_path / "no such folder" / "file", "text")
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder"]


def test_a_full_disk_leaves_what_was_there(path):
    code = """
import pathlib, resource, signal, sys
from distcheck import files
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
files.write_whole(pathlib.Path(sys.argv[1]), 2000 * "x")
"""
    done = captured([sys.executable, "-c", code, path])
    assert "File too large" in done.stderr
    assert path.read_text() == "old"
    assert alone(path)


def test_several_may_write_at_once_and_one_of_them_is_the_last(path):
    code = """
import pathlib, sys
from distcheck import files
for _ in range(200):
    files.write_whole(pathlib.Path(sys.argv[1]), 9999 * sys.argv[2])
"""
    command = [sys.executable, "-c", code, path]
    writers = [subprocess.Popen([*command, letter]) for letter in "abc"]
    try:
        while any(writer.poll() is None for writer in writers):
            text = path.read_text()
            assert text == "old" or text == 9999 * text[0]
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
    assert [writer.returncode for writer in writers] == [0] * 3
    assert path.read_text() == 9999 * path.read_text()[0]
    assert alone(path)


def test_permissions_are_those_of_a_new_file_or_as_private_as_wanted(path):
    def permissions(path):
        return stat.S_IMODE(path.stat().st_mode)

    path.chmod(0o600)
    other = path.with_name("other")
    other.touch()
    write_whole(path, "new")
    assert permissions(path) == permissions(other) != 0o600
    with whole(path, mode=0o600):
        (half,) = path.parent.glob(files.HALVES)
        assert permissions(half) == 0o600, "others could have opened it by now"
    assert permissions(path) == 0o600


# --- Folders for a while --------------------------------------------------------------


def test_a_scratch_folder_is_of_this_process_and_for_this_user_alone():
    with scratch() as folder:
        assert files.owner(folder) == os.getpid()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        (folder / "deep").mkdir()
        (folder / "deep" / "file").touch()
        assert str(folder.parent) in supervise._scratch_parents(), "it is never swept"
    assert not folder.exists()


@pytest.mark.parametrize("why", [ValueError, KeyboardInterrupt])
def test_a_scratch_folder_goes_when_the_block_fails(why):
    with pytest.raises(why), scratch() as folder:
        raise why
    assert not folder.exists()


def test_a_scratch_folder_may_be_gone_already():
    with scratch() as folder:
        folder.rmdir()


@pytest.fixture
def swept(tmp_path, monkeypatch):
    """The only place that is swept: a wrong sweep must not meet anybody else's."""
    monkeypatch.setattr(supervise, "_scratch_parents", lambda: [str(tmp_path)])
    return tmp_path


def test_the_scratch_folder_of_a_killed_process_is_swept(swept):
    code = """
import sys, time
from distcheck import files
with files.scratch(sys.argv[1]) as folder:
    print(folder, flush=True)
    time.sleep(100)
"""
    command = [sys.executable, "-c", code, swept]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            folder = Path(process.stdout.readline().strip())
            assert files.owner(folder) == process.pid
            supervise.sweep()
            assert folder.is_dir()
        finally:
            process.kill()
    assert folder.is_dir()
    supervise.sweep()
    assert not folder.exists()


@pytest.mark.parametrize("name", ["probe-x", "²-x", f"{10**30}-x"])
def test_a_folder_of_another_kind_is_left_alone(swept, name):
    name = files.SCRATCH + name
    (swept / name).mkdir()
    (swept / f"{files.SCRATCH}0-x").mkdir()
    supervise.sweep()
    assert [entry.name for entry in swept.iterdir()] == [name]
