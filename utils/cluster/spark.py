"""Spark on this machine or on a cluster: what it needs, how it is started and ended.

`session` is what solutions/cluster/spark_train.py starts Spark with; `train` runs that
program under an owner, as the lesson does; `send` sends a function of the lesson.
"""

import contextlib
import functools
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

from distcheck import errors, files, machine, mpi, supervise
from utils.base import course, logs
from utils.running import launch, launchers

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway
    from pyspark.sql import SparkSession

PROGRAM = course.PACKAGE_ROOT / "solutions" / "cluster" / "spark_train.py"
OLDEST_JAVA, NEWEST_JAVA = 17, 21  # that Spark 4 is made for


def problem() -> str | None:
    """Why Spark can't run here, with the command that mends it; None if it can."""
    if any(importlib.util.find_spec(name) is None for name in ("pyspark", "pyarrow")):
        return "Spark is not installed: `make spark` adds it to the course."
    version = java_version()
    if version is None or version < OLDEST_JAVA:
        return (
            "Spark needs Java, version 17 or 21, on PATH or in JAVA_HOME.\n"
            "    Debian, Ubuntu:  sudo apt install openjdk-17-jre-headless\n"
            "    Fedora:          sudo dnf install java-17-openjdk-headless\n"
            "    macOS:           brew install openjdk@17"
        )
    return None


def java_version() -> int | None:
    """The Java that Spark would take: 17 for 17.0.15, 8 for 1.8.0; None without one."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None)
    if java is None:
        return None
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    # macOS has a `java` that only says where to get one.
    number = re.search(r'version "(?:1\.)?(\d+)', answer.stderr)
    return int(number[1]) if number and answer.returncode == 0 else None


@contextlib.contextmanager
def session(
    workers: int, master: str | None = None, java_log: Path | None = None
) -> Iterator["SparkSession"]:
    """Spark for the block, and ended after it.

    master: where; without it the one that spark-submit was given, else this machine,
        with a core for each worker. A GPU is used only if there is one for each.
    java_log: the file for what Spark's Java process prints; without it, what Java
        prints is printed by this process.

    Raises UserError where Spark can't run.
    """
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # spark-submit has started it
    if not submitted:
        why = problem()
        if why:
            raise errors.UserError(why)
        if java_version() > NEWEST_JAVA:
            errors.notice(
                f"Spark 4 is made for Java 17 to {NEWEST_JAVA}; this is Java "
                f"{java_version()}."
            )
        master = master or f"local[{workers}]"
        if 0 < machine.gpus() < workers:
            os.environ.update(machine.HIDDEN)
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    conf = SparkConf().setAppName("course")
    if master:
        conf.setMaster(master)
    options = {
        "spark.log.level": "ERROR",
        "spark.ui.enabled": "false",  # it would listen on a port
        "spark.ui.showConsoleProgress": "false",
    }
    if master and master.startswith("local"):
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"  # nothing outside can connect
        options["spark.local.dir"] = tempfile.gettempdir()
    conf.setAll(options.items())
    if java_log:
        SparkContext(gateway=_java(java_log), conf=conf)
    spark = SparkSession.builder.config(conf=conf).getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


@functools.cache
def _java(log: Path) -> "JavaGateway":
    """Spark's Java process, which prints to `log` and ends when this process ends."""
    from pyspark.java_gateway import launch_gateway

    with log.open("ab") as file:
        return launch_gateway(popen_kwargs={"stdout": file, "stderr": file})


@functools.cache
def _java_log() -> Path:
    return logs.new_folder("spark") / "java.log"


def network(spark: "SparkSession") -> set[str] | None:
    """The network interface for Horovod; None: it is to find those that all share."""
    return (
        {launchers.loopback()}
        if spark.sparkContext.master.startswith("local")
        else None
    )


def send(function: Callable, *arguments: object, workers: int = 2) -> list:
    """What a function returns as a worker, by rank: in Spark tasks on this machine, or
    where Spark can't run, in processes that Horovod starts itself, by horovod.run.

    Either way the function travels, pickled, and imports for itself what it needs.
    Raises UserError, with what the worker printed, where it fails in a Spark task.
    """
    variables = mpi.thread_variables(machine.share(workers))
    if machine.gpus() < workers:
        variables |= machine.HIDDEN
    with mock.patch.dict(os.environ, variables):
        if problem():
            import horovod

            return horovod.run(function, arguments, num_proc=workers, use_gloo=True)
        log = _java_log()
        begin = log.stat().st_size if log.exists() else 0
        try:
            with (
                session(workers, java_log=log) as spark,
                log.open("a") as words,
                contextlib.redirect_stderr(words),  # Horovod's thread prints there
            ):
                import horovod.spark

                return horovod.spark.run(
                    function,
                    args=arguments,
                    num_proc=workers,
                    use_gloo=True,
                    start_timeout=120,
                    verbose=0,
                    nics=network(spark),
                )
        except RuntimeError as error:
            output = log.read_bytes()[begin:].decode(errors="replace")
            said = _worker_said(f"{output}\n{error}")
            raise errors.UserError(
                f"The function {said or error}\nThe whole log: {files.shown(log)}"
            ) from None


def train(folder: Path | str, workers: int, time_limit: float, **options) -> list[dict]:
    """Run the program on this machine; what each worker returned, by rank.

    options: the program's own, `epochs=2` for `--epochs 2`. Its output is in
    `folder/log.txt`. Raises UserError when Spark can't run here, when a worker fails
    and when `time_limit` seconds have passed; no process is left then.
    """
    why = problem()
    if why:
        raise errors.UserError(why)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    result, log = folder / "result.json", folder / "log.txt"
    result.unlink(missing_ok=True)
    options |= {"workers": workers, "folder": folder}
    command = [sys.executable, str(PROGRAM), *launch.words((), options)]
    threads = machine.share(workers)
    environment = mpi.clean_environment() | mpi.thread_variables(threads)
    with (
        log.open("wb") as file,
        supervise.owned(
            command, time_limit, env=environment, stdout=file, stderr=file
        ) as process,
    ):
        process.wait()
    if process.returncode == 0:
        return json.loads(result.read_text())
    output = log.read_text(errors="replace")
    if process.returncode == supervise.TIMED_OUT:
        why = f"was stopped after its time limit of {time_limit:g} s"
    else:
        last = "\n".join(output.splitlines()[-10:])
        why = _why(output) or f"failed with status {process.returncode}:\n{last}"
    where = f"The whole log: {files.shown(log)}"
    raise errors.UserError(f"{PROGRAM.name} {why}\n{where}")


def _why(output: str) -> str | None:
    """The last line of the worker that failed first, below Spark's own many lines."""
    said = _worker_said(output)
    if said is None:
        return None
    failed, *lines = said.splitlines()
    return f"{failed}: {lines[-1] if lines else 'it said nothing'}"


def _worker_said(output: str) -> str | None:
    """`failed on rank 1`, and below it what that worker, the first to fail, printed."""
    first = re.search(r"^Process name: (\d+)$", output, re.MULTILINE)
    if first is None:
        return None
    rank = first[1]
    lines = re.findall(rf"^\[{rank}\]<stderr>:(.+)$", output, re.MULTILINE)
    return "\n".join([f"failed on rank {rank}", *lines])
