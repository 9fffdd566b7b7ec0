"""What learners cost a server that they share: memory, processor time, and waiting.

python tests/room.py    # measures it here, for the handbook; let nothing else run
                        # meanwhile

First one learner: JupyterLab's server, a notebook's kernel that trains itself for a
moment, a run of two workers started from it, all with the profile `ci`, and the
processor time of a lesson. Then a class at once: each with a server and such a kernel,
from which they start the same run, a row after the other. Memory is the proportional
set size: what processes share is divided by how many share it, so that sums make sense.
"""

import contextlib
import os
import resource
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

from distcheck import errors, files, supervise
from distcheck.show import Page, Table
from utils.base import course, texts
from utils.lessons import outline
from utils.measure import records

HERE = Path(__file__).parent  # the record is there, too
NAME, COMMAND = "room", "python tests/room.py"
PAGE = course.PACKAGE_ROOT / "handbook" / "rooms.md"
BEGIN, END = f"<!-- {COMMAND} writes this -->", "<!-- until here -->"
LESSON = "05"  # of twenty minutes, with three runs of two workers and a check
LEARNERS, ROW = 20, 5  # a class, and how many of it begin a run at once
SECONDS_BETWEEN = 0.3
TIME_LIMIT = 1800.0

# What lesson 05 does in its own process: data, a network, a gradient.
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


@contextlib.contextmanager
def lab() -> Iterator[psutil.Process]:
    """JupyterLab's server in this block, once it says that it is there.

    Raises UserError if it doesn't start.
    """
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"]
    command += [
        "--port=0",
        "--ip=127.0.0.1",
        "--ServerApp.root_dir=" + str(course.root()),
    ]
    with supervise.owned(command, TIME_LIMIT, **supervise.READ_LINES) as server:
        if not any("127.0.0.1:" in line for line in server.stdout):
            raise errors.UserError("JupyterLab didn't start: is it installed?")
        yield psutil.Process(server.pid)


class Kernel:
    """A notebook's kernel, of the profile `ci`, that ends with the block."""

    def __init__(self):
        from jupyter_client.manager import start_new_kernel

        environment = os.environ | {"COURSE_PROFILE": "ci", "TF_USE_LEGACY_KERAS": "1"}
        self.manager, self.client = start_new_kernel(
            env=environment, cwd=str(course.root())
        )
        self.process = psutil.Process(self.manager.provisioner.pid)

    def __enter__(self) -> "Kernel":
        return self

    def __exit__(self, *_) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)

    def execute(self, code: str) -> float:
        """Execute a cell; returns how many seconds it took.

        Raises UserError where it fails.
        """
        began = time.monotonic()
        reply = self.client.execute_interactive(
            code, timeout=TIME_LIMIT, output_hook=lambda message: None
        )
        if reply["content"]["status"] != "ok":
            raise errors.UserError(f"the kernel said: {reply['content']['evalue']}")
        return time.monotonic() - began

    def prepare(self) -> float:
        """What comes before a lesson's first run, in the kernel itself."""
        return self.execute(_IN_THE_KERNEL)

    def run(self) -> float:
        """A run of two workers."""
        return self.execute(_A_RUN.format(root=course.root()))


def of_lab() -> float:
    """JupyterLab's server, some seconds after it says that it is there, in MB."""
    with lab() as server:
        time.sleep(5)
        return sum(map(megabytes, server.children(recursive=True)))


def of_kernel() -> tuple[float, float, float]:
    """A notebook's kernel, and what a run of two workers adds to it, in MB; its
    seconds.

    Raises UserError where a cell fails.
    """
    with Kernel() as kernel:
        with peak(kernel.process) as prepared:
            kernel.prepare()
        with peak(kernel.process) as ran:
            seconds = kernel.run()
    return prepared.own, ran.others, seconds


def of_class() -> dict:
    """What a class takes that has the lesson open, and runs by rows.

    Returns how many, `learners` and `row`; `open`: the MB of all servers and kernels
    before the first run; `first`: the seconds that the learners of the first row waited
    for their run, sorted; `all`: the seconds until the last row had its results;
    `most`: the most MB in that time.
    """
    here = psutil.Process()
    with contextlib.ExitStack() as stack:
        kernels = []
        for _ in range(LEARNERS):
            stack.enter_context(lab())
            kernels.append(stack.enter_context(Kernel()))
            kernels[-1].prepare()
        before = Peak(here)
        before.look()
        rows = [kernels[start : start + ROW] for start in range(0, LEARNERS, ROW)]
        began = time.monotonic()
        with peak(here) as running, ThreadPoolExecutor(ROW) as pool:
            waited = [list(pool.map(Kernel.run, beside)) for beside in rows]
        seconds = time.monotonic() - began
    return {
        "learners": LEARNERS,
        "row": ROW,
        "open": before.others,
        "first": sorted(waited[0]),
        "all": seconds,
        "most": running.others,
    }


def of_lesson() -> float:
    """The seconds of processor time that executing LESSON takes, with `ci`.

    Raises UserError where it fails.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "utils.cli", "notebooks", LESSON]
    command += ["--force", "--profile", "ci"]
    with supervise.owned(command, TIME_LIMIT, **supervise.READ_LINES) as executing:
        said = executing.stdout.read()
        if executing.wait():
            raise errors.UserError(f"notebook {LESSON} failed:\n{said[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure() -> dict:
    """All of it: MB of `lab`, `kernel` and `run`, seconds of a run, `alone`,
    and of the processor for a lesson, `lesson`; and `of_class`."""
    server = of_lab()
    kernel, run, alone = of_kernel()
    return {
        "lab": server,
        "kernel": kernel,
        "run": run,
        "alone": alone,
        "lesson": of_lesson(),
        "class": of_class(),
    }


def minutes() -> int:
    """How long learners take for LESSON."""
    lessons = outline.read().notebooks.values()
    return next(one.minutes for one in lessons if one.number == LESSON)


def shown(results: dict) -> Page:
    """One learner, with what follows for a core, and a class."""
    total = results["lab"] + results["kernel"] + results["run"]
    busy = results["lesson"] / 60 / minutes()
    alone = [
        ("JupyterLab's server", f"{results['lab']:,.0f} MB"),
        ("a notebook's kernel, with TensorFlow", f"{results['kernel']:,.0f} MB"),
        ("a run of two workers", f"{results['run']:,.0f} MB"),
        ("a learner in the middle of a run", f"{total:,.0f} MB"),
        ("from the run's start to its result", f"{results['alone']:,.0f} s"),
        (f"processor time of lesson {LESSON}", f"{results['lesson']:,.0f} s"),
        (f"of its {minutes()} minutes, a core is busy", f"{busy:.0%}"),
        ("learners on a core, if none waits for another", f"{1 / busy:.0f}"),
    ]
    group = results["class"]
    first, row = group["first"], group["row"]
    rows = -(-group["learners"] // row)
    together = [
        ("all have the lesson open, none runs", f"{group['open']:,.0f} MB"),
        (f"{row} at a time run", f"{group['most']:,.0f} MB"),
        (
            f"the first {row}, from the run's start to its result",
            f"{first[0]:,.0f} to {first[-1]:,.0f} s",
        ),
        (
            "that is, of what one alone takes",
            f"{statistics.median(first) / results['alone']:.1f} times",
        ),
        (f"{rows} rows of {row} have run", f"after {group['all']:,.0f} s"),
    ]
    return Page(
        Table(("One learner, profile ci", "Measured"), alone),
        Table((f"A class of {group['learners']}, profile ci", "Measured"), together),
    )


def markdown() -> str:
    """The recorded tables, and where they come from."""
    record = records.load(NAME, HERE)
    texts = [
        "\n".join(
            f"| {' | '.join(cells)} |"
            for cells in [table.header, ("---",) * 2, *table.rows]
        )
        for table in shown(record.results).parts
    ]
    return "\n\n".join([*texts, record.origin])


def with_record(page: str) -> str:
    """The text of PAGE with the recorded table between its two marks."""
    return texts.between(PAGE.name, page, BEGIN, END, markdown())


def main() -> None:
    records.save(NAME, measure(), COMMAND, folder=HERE)
    files.write_whole(PAGE, with_record(PAGE.read_text(encoding="utf-8")))
    print(markdown())


if __name__ == "__main__":
    main()
