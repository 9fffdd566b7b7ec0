"""The page on clusters: its numbers are what its commands print; its files exist."""

import re
import runpy
import shlex
import subprocess
import sys

import pytest

from utils.base import course
from utils.measure import cost_model
from utils.running import launchers

PAGE = (course.PACKAGE_ROOT / "exercises" / "clusters.md").read_text()
PROGRAM = "solutions/cluster/one_node_or_many.py"
COMMANDS = re.findall(rf"^`(python {PROGRAM}.*)`\n\n((?:\|.*\n)+)", PAGE, re.M)
WIRES = runpy.run_path(str(course.PACKAGE_ROOT / PROGRAM))


def test_the_page_has_both_tables():
    assert len(COMMANDS) == 2


@pytest.mark.parametrize(("command", "table"), COMMANDS)
def test_a_table_is_what_its_command_prints(command, table):
    python, _, *words = shlex.split(command)
    assert python == "python"
    assert WIRES["table"](**vars(WIRES["options"](words))) + "\n" == table


def test_the_command_prints_its_table():
    command, table = COMMANDS[0]
    done = subprocess.run(
        [sys.executable, *shlex.split(command)[1:]],
        cwd=course.PACKAGE_ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, table)


def test_the_bytes_are_those_of_the_networks():
    sentence = re.search(
        r"100 MB for (.*?), 180 MB for (.*?), 550 MB for (.*?)\.", PAGE
    )
    by_name = {row.network.name: row.network for row in cost_model.HOROVOD_2018}
    for name, megabytes in zip(sentence.groups(), (100, 180, 550), strict=True):
        assert by_name[name].bytes / 1e6 == pytest.approx(megabytes, rel=0.06)


def test_eight_fast_gpus_on_slow_ethernet_are_not_worth_more_than_two():
    efficiencies = WIRES["efficiencies"](workers=8, batch=64, faster=10)
    least, most = efficiencies["nodes, Ethernet 10 Gbit/s"]["ResNet-101"]
    assert 1 < 8 * least < 8 * most < 2


def test_the_files_that_the_page_names_are_there():
    named = set(re.findall(r"(?:solutions|utils|exercises)/[\w/]+\.\w+", PAGE))
    named |= {
        f"solutions/cluster/{name}" for name in ("mpijob.yaml", "slurm_mpirun.sh")
    }
    assert {
        name for name in named if not (course.PACKAGE_ROOT / name).exists()
    } == set()


def commands_for_hosts():
    """The commands that the page has for hosts a and b, as lists of words."""
    text = "\n".join(re.findall(r"^```\n(.*?)^```", PAGE, re.M | re.S))
    lines = text.replace("\\\n", " ").splitlines()
    return [shlex.split(line) for line in lines if " -np 8 " in line]


# This machine in their place.
HERE = {
    "8": "2",
    "a:4,b:4": "localhost:2",
    "eth0": launchers.loopback(),
    "10.0.0.0/24": "127.0.0.0/8",
}


@pytest.mark.slow
@pytest.mark.parametrize("words", commands_for_hosts(), ids=" ".join)
def test_commands_for_hosts_start_workers(words, tmp_path):
    program = words[words.index("python") + 1]
    assert (course.PACKAGE_ROOT / program).exists()
    (tmp_path / "hosts").write_text("localhost slots=2\n")
    (tmp_path / "here.py").write_text("print('here')")
    line = [HERE.get(word, word) for word in words[: words.index("python")]]
    done = subprocess.run(
        [*line, sys.executable, "here.py"],
        cwd=tmp_path,
        env=launchers.clean_environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("here") == 2


def test_there_are_commands_for_hosts():
    commands = commands_for_hosts()
    assert [words[0] for words in commands] == ["mpirun", "mpirun", "horovodrun"]
    for words in commands[:2]:
        assert {"btl_tcp_if_include", "oob_tcp_if_include"} <= set(words)
        assert "NCCL_SOCKET_IFNAME=eth0" in words


def test_numbers_that_make_no_sense_are_refused(capsys):
    with pytest.raises(SystemExit):
        WIRES["options"](["--workers", "1"])
    assert "2 workers or more" in capsys.readouterr().err
