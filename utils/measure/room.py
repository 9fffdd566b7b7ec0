"""What one learner costs a server that many share: memory, and processor time.

python -m utils.measure.room    # measures it here, in some minutes, for the handbook

Measured are JupyterLab's server, a notebook's kernel that trains itself for a moment,
a run of two workers started from it, all with the profile `ci`, and the processor time
of a lesson. Memory is the proportional set size: what processes share is divided by
how many share it, so that sums make sense.
"""

import contextlib
import os
import resource
import sys
import threading
import time
from collections.abc import Iterator

import psutil

from utils.base import course, files, programs, supervise
from utils.base.show import Page, Table
from utils.lessons import outline
from utils.measure import records

NAME, COMMAND = "room", "python -m utils.measure.room"
PAGE = course.PACKAGE_ROOT / "handbook" / "rooms.md"
BEGIN, END = f"<!-- {COMMAND} writes this -->", "<!-- until here -->"
LESSON = "05"  # of twenty minutes, with three runs of two workers and a check
SECONDS_BETWEEN = 0.3
TIME_LIMIT = 900.0

# What notebook 05 does in its own process: data, a network, a gradient.
_IN_THE_KERNEL = """
import tensorflow as tf
from utils import data, networks, run, settings
dataset, model = data.load(train_images=640), networks.wide_resnet(1)
with tf.GradientTape() as tape:
    loss = tf.reduce_mean(model(tf.zeros([64, 28, 28, 1]), training=True))
tape.gradient(loss, model.trainable_variables)[0]
"""
_A_RUN = """
run("{root}/solutions/fashion_mnist_solution.py", workers=2, epochs=1, quiet=True,
    train_images=settings().train_images, width=1)
"""


def megabytes(process: psutil.Process) -> float:
    """The proportional set size of a process, in MB; 0 once it has ended."""
    with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
        return process.memory_full_info().pss / 1e6
    return 0.0


class Peak:
    """The most memory that a process had, and all its descendants together, in MB."""

    def __init__(self, process: psutil.Process):
        self.process, self.own, self.others = process, 0.0, 0.0

    def look(self) -> None:
        try:
            others = self.process.children(recursive=True)
        except psutil.NoSuchProcess:
            return
        self.own = max(self.own, megabytes(self.process))
        self.others = max(self.others, sum(map(megabytes, others)))


@contextlib.contextmanager
def peak(process: psutil.Process) -> Iterator[Peak]:
    """Watch a process in this block."""
    seen, over = Peak(process), threading.Event()

    def watch() -> None:
        while not over.wait(SECONDS_BETWEEN):
            seen.look()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield seen
    finally:
        over.set()
        watcher.join()
        seen.look()


def of_lab() -> float:
    """JupyterLab's server, some seconds after it says that it is there, in MB."""
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"]
    command += [
        "--port=0",
        "--ip=127.0.0.1",
        "--ServerApp.root_dir=" + str(course.root()),
    ]
    with supervise.owned(command, TIME_LIMIT, **supervise.READ_LINES) as server:
        said = next((line for line in server.stdout if "127.0.0.1:" in line), None)
        if said is None:
            raise course.CourseError("JupyterLab didn't start: is it installed?")
        time.sleep(5)
        return sum(
            megabytes(process)
            for process in psutil.Process(server.pid).children(recursive=True)
        )


def of_kernel() -> tuple[float, float]:
    """A notebook's kernel, and what a run of two workers adds to it, in MB.

    Raises CourseError where a cell fails.
    """
    from jupyter_client.manager import start_new_kernel

    environment = os.environ | {"COURSE_PROFILE": "ci", "TF_USE_LEGACY_KERAS": "1"}
    manager, client = start_new_kernel(env=environment, cwd=str(course.root()))

    def execute(code: str) -> Peak:
        process = psutil.Process(manager.provisioner.pid)
        with peak(process) as seen:
            reply = client.execute_interactive(
                code, timeout=TIME_LIMIT, output_hook=lambda message: None
            )
        if reply["content"]["status"] != "ok":
            raise course.CourseError(f"the kernel said: {reply['content']['evalue']}")
        return seen

    try:
        kernel = execute(_IN_THE_KERNEL).own
        return kernel, execute(_A_RUN.format(root=course.root())).others
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def of_lesson(number: str = LESSON) -> float:
    """The seconds of processor time that executing a notebook takes, with `ci`.

    Raises CourseError where it fails.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "utils.cli", "notebooks", number]
    command += ["--force", "--profile", "ci"]
    with supervise.owned(command, TIME_LIMIT, **supervise.READ_LINES) as executing:
        said = executing.stdout.read()
        if executing.wait():
            raise course.CourseError(f"notebook {number} failed:\n{said[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure() -> dict[str, float]:
    """All of it: MB of `lab`, `kernel` and `run`, and the `lesson`'s seconds."""
    lab = of_lab()
    kernel, run = of_kernel()
    return {"lab": lab, "kernel": kernel, "run": run, "lesson": of_lesson()}


def minutes() -> int:
    """How long learners take for LESSON."""
    lessons = outline.read().notebooks.values()
    return next(one.minutes for one in lessons if one.number == LESSON)


def shown(results: dict[str, float]) -> Page:
    """The measurements, and what follows for learners on a gigabyte and on a core."""
    total = results["lab"] + results["kernel"] + results["run"]
    busy = results["lesson"] / 60 / minutes()
    rows = [
        ("JupyterLab's server", f"{results['lab']:,.0f} MB"),
        ("a notebook's kernel, with TensorFlow", f"{results['kernel']:,.0f} MB"),
        ("a run of two workers", f"{results['run']:,.0f} MB"),
        ("a learner in the middle of a run", f"{total:,.0f} MB"),
        (f"processor time of lesson {LESSON}", f"{results['lesson']:,.0f} s"),
        (f"of its {minutes()} minutes, a core is busy", f"{busy:.0%}"),
        ("learners on 10 GB, if all run at once", f"{10_000 / total:.0f}"),
        ("learners on a core, if none waits for another", f"{1 / busy:.0f}"),
    ]
    return Page(Table(("One learner, profile ci", "Measured"), rows))


def markdown() -> str:
    """The recorded table, and where it comes from."""
    record = records.load(NAME)
    (table,) = shown(record.results).parts
    lines = [table.header, ("---",) * 2, *table.rows]
    text = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    return f"{text}\n\n{record.origin}"


def with_record(page: str) -> str:
    """The text of PAGE with the recorded table between its two marks."""
    return programs.between(PAGE.name, page, BEGIN, END, markdown())


def main() -> None:
    records.save(NAME, measure(), COMMAND)
    files.write_whole(PAGE, with_record(PAGE.read_text(encoding="utf-8")))
    print(markdown())


if __name__ == "__main__":
    main()
