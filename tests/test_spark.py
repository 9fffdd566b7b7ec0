"""Spark: what it needs, and solutions/cluster/spark_train.py on two tasks for real."""

import importlib.util
import subprocess
import sys

import psutil
import pytest
from processes import captured

from distcheck import errors
from utils.cluster import spark

pytestmark = pytest.mark.timeout(400)
needs_spark = pytest.mark.skipif(
    spark.problem() is not None, reason=str(spark.problem()).partition("\n")[0]
)


def java_that_says(folder, text, status=0):
    (folder / "bin").mkdir()
    java = folder / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho '{text}' >&2\nexit {status}\n")
    java.chmod(0o755)


@pytest.mark.parametrize(
    ("words", "status", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 0, 17),
        ('openjdk version "1.8.0_402"', 0, 8),  # old ones are told, too
        ('java version "21"', 0, 21),
        ("No Java runtime present, requesting install.", 1, None),
    ],
)
def test_java_tells_its_version(tmp_path, monkeypatch, words, status, version):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    java_that_says(tmp_path, words, status)
    assert spark.java_version() == version


@needs_spark
def test_without_java_the_remedy_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(errors.UserError, match="apt install openjdk-17"):
        spark.train(tmp_path / "kept", 2, 60)
    java_that_says(tmp_path, 'java version "11.0.27"')
    assert "needs Java" in spark.problem()


def test_without_spark_the_remedy_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(errors.UserError, match="`make spark`"):
        spark.train(tmp_path / "kept", 2, 60)


def processes_of(folder):
    """Those whose command names the folder: the driver and all that it starts."""
    processes = []
    for process in psutil.process_iter(["cmdline"]):
        if str(folder) in " ".join(process.info["cmdline"] or ()):
            processes.append(process)
    return processes


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder and the results of two workers, who trained for an epoch."""
    folder = tmp_path_factory.mktemp("spark") / "kept"
    results = spark.train(
        folder, 2, 300, epochs=1, train_images=320, batch_size=32, data="sample"
    )
    return folder, results


@needs_spark
@pytest.mark.slow
def test_each_task_trains_on_its_own_images_and_all_end_with_one_network(trained):
    _, results = trained
    assert [worker["rank"] for worker in results] == [0, 1]
    assert [worker["images"] for worker in results] == [160, 160]
    assert len({worker["digest"] for worker in results}) == 1
    accuracies = [worker["history"]["val_accuracy"] for worker in results]
    assert accuracies[0] == pytest.approx(accuracies[1])
    assert len(accuracies[0]) == 1


@needs_spark
@pytest.mark.slow
def test_rank_0_keeps_a_checkpoint_and_nothing_is_left_half_done(trained):
    folder, _ = trained
    names = {path.name for path in folder.iterdir()}
    assert names == {
        *("checkpoint", "ckpt-1.index", "ckpt-1.data-00000-of-00001"),
        *("log.txt", "result.json"),
    }
    assert not processes_of(folder)


@needs_spark
@pytest.mark.slow
def test_spark_says_little_and_the_workers_say_who_they_are(trained):
    folder, _ = trained
    output = (folder / "log.txt").read_text()
    assert "rank 1 on " in output
    assert "the driver has the network" in output
    assert "INFO" not in output
    assert len(output.splitlines()) < 20


def python(program: str) -> subprocess.CompletedProcess:
    """Run it as a notebook runs cells, whose functions are in no file."""
    return captured([sys.executable, "-c", program])


@pytest.mark.slow
def test_a_function_is_sent_to_workers_with_spark_or_without():
    program = (
        "from utils import spark\n"
        "def hello(word):\n"
        "    import horovod.tensorflow as hvd\n"
        "    hvd.init()\n"
        "    return word, hvd.rank(), hvd.size()\n"
        "print(spark.send(hello, 'hello'))\n"
    )
    done = python(program)
    assert (done.returncode, done.stderr) == (0, "")
    assert "[('hello', 0, 2), ('hello', 1, 2)]" in done.stdout


def test_of_many_lines_the_failed_worker_s_own_is_told():
    output = """\
[1]<stderr>:Traceback (most recent call last):
[1]<stderr>:ValueError: no such garment
[0]<stderr>:HorovodInternalError: not this
Py4JJavaError: many more words
Process name: 1
Exit code: 1
"""
    assert spark._why(output) == "failed on rank 1: ValueError: no such garment"
    assert spark._why("Terminated") is None


@needs_spark
@pytest.mark.slow
def test_a_function_that_fails_shows_its_error_and_none_of_java_s_words():
    program = (
        "from utils import UserError, spark\n"
        "def fails(word):\n"
        "    raise ValueError(word)\n"
        "try:\n"
        "    spark.send(fails, 'no such garment')\n"
        "except UserError as error:\n"
        "    print(error)\n"
    )
    done = python(program)
    assert done.stderr == ""
    assert "ValueError: no such garment\nThe whole log: " in done.stdout
    assert "Py4JJavaError" not in done.stdout


@needs_spark
@pytest.mark.slow
@pytest.mark.parametrize("java_log", ["None", "Path('java.log').absolute()"])
def test_spark_has_a_core_for_each_worker(java_log, tmp_path, monkeypatch):
    """However many the machine has: with fewer, a worker would never start."""
    monkeypatch.chdir(tmp_path)
    program = (
        "from pathlib import Path\n"
        "from utils import spark\n"
        f"with spark.session(3, java_log={java_log}) as session:\n"
        "    print(session.sparkContext.master, session.sparkContext.appName)\n"
    )
    assert python(program).stdout == "local[3] course\n"


@needs_spark
@pytest.mark.slow
def test_the_time_limit_ends_spark_and_all_that_it_started(tmp_path):
    with pytest.raises(errors.UserError, match="its time limit of 6 s"):
        spark.train(tmp_path / "kept", 2, 6, data="sample")
    assert not processes_of(tmp_path)
