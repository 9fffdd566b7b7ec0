"""The ring all-reduce of notebook 02: in NumPy, and by real processes over MPI."""

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from distcheck import mpi
from utils.base import course
from utils.figures import diagrams
from utils.lessons import notebook_rules

NOTEBOOK = course.PACKAGE_ROOT / "notebooks" / "02_share_the_gradients.ipynb"
PROGRAM = course.PACKAGE_ROOT / "exercises" / "ring_allreduce.py"

WORKERS = range(1, 10)
SIZES = (1, 2, 3, 8, 13, 64, 1_003)
SECONDS = 90


def source(cell_id):
    """The code of the notebook's cell with this id."""
    cells = notebook_rules.read(NOTEBOOK).cells
    return next(cell.source for cell in cells if cell.id == cell_id)


@pytest.fixture
def notebook():
    """What the notebook defines for its ring, by name."""
    names = {"np": np}
    for cell_id in ("network", "scatter-reduce", "all-gather", "ring-all-reduce"):
        exec(source(cell_id), names)
    return names


@pytest.mark.parametrize("workers", WORKERS)
def test_every_worker_gets_the_sum(notebook, workers):
    rng = np.random.default_rng(workers)
    for size in SIZES:
        gradients = rng.integers(-99, 99, (workers, size))
        originals = gradients.copy()
        results = notebook["ring_all_reduce"](gradients)
        assert len(results) == workers
        for result in results:
            np.testing.assert_array_equal(result, originals.sum(axis=0))
        np.testing.assert_array_equal(
            gradients, originals, "the workers' own were changed"
        )


@pytest.mark.parametrize("workers", WORKERS)
def test_floats_have_the_same_bits_everywhere_and_only_rounding_errors(
    notebook, workers
):
    rng = np.random.default_rng(workers)
    for size in SIZES:
        gradients = rng.random((workers, size), dtype=np.float32)
        results = notebook["ring_all_reduce"](gradients)
        exact = gradients.astype(np.float64).sum(axis=0)
        for result in results:
            assert result.dtype == np.float32
            assert result.tobytes() == results[0].tobytes()
            assert np.all(np.abs(result - exact) <= (workers - 1) * 2**-24 * exact)


def traffic(notebook, workers, size):
    """(steps, bytes sent, bytes received) of each worker of the notebook's ring."""
    wire = notebook["wire"]
    wire.clear()
    notebook["ring_all_reduce"](np.ones((workers, size), np.float32))
    steps, sent, received = Counter(), Counter(), Counter()
    for sender, receiver, amount in wire:
        assert receiver == (sender + 1) % workers, "a message to someone else"
        steps[sender] += 1
        sent[sender] += amount
        received[receiver] += amount
    return [(steps[w], sent[w], received[w]) for w in range(workers)]


@pytest.mark.parametrize("workers", WORKERS)
def test_steps_and_bytes_are_what_the_formulas_say(notebook, workers):
    for size in SIZES:
        counted = traffic(notebook, workers, size)
        assert {steps for steps, _, _ in counted} == {2 * (workers - 1)}
        total = 2 * (workers - 1) * 4 * size
        assert sum(sent for _, sent, _ in counted) == total
        assert sum(received for _, _, received in counted) == total
        # Chunks differ by one number at most, and a worker leaves out one chunk in
        # each half.
        for _, sent, received in counted:
            assert abs(sent - total / workers) <= 2 * 4
            assert abs(received - total / workers) <= 2 * 4


@pytest.mark.parametrize("workers", range(2, 7))
def test_the_drawing_shows_what_the_code_does(notebook, workers):
    states = diagrams.ring_states(workers)
    chunks = [np.array_split(np.full(workers, 10**w), workers) for w in range(workers)]
    np.testing.assert_array_equal(states[0], np.reshape(chunks, (workers, workers)))
    notebook["scatter_reduce"](chunks)
    middle = states[workers - 1]
    np.testing.assert_array_equal(middle, np.reshape(chunks, (workers, workers)))
    notebook["all_gather"](chunks)
    np.testing.assert_array_equal(states[-1], np.reshape(chunks, (workers, workers)))
    assert len(states) == 1 + 2 * (workers - 1)


def test_the_learners_check_tells_unwritten_from_right(notebook, capsys):
    exec(source("scatter-reduce-run"), notebook)
    exec(source("my-all-gather"), notebook)
    exec(source("gather-check-run"), notebook)
    assert "[1 1 1 1] messages: 0" in capsys.readouterr().out
    notebook["my_all_gather"] = notebook["all_gather"]
    exec(source("gather-check-run"), notebook)
    assert "[4 4 4 4] messages: 3" in capsys.readouterr().out


def mpirun(workers, program, *options):
    """Run `program` on real workers; return the exit status and all of the output."""
    line = [sys.executable, str(program), *map(str, options)]
    line = mpi.mpirun_line(workers, line, threads=1)
    beside_python = str(Path(sys.executable).parent)
    with subprocess.Popen(
        [
            *(sys.executable, "-m", "distcheck.supervise"),
            *("--time-limit", str(SECONDS), "--"),
            *line,
        ],
        stdin=subprocess.PIPE,  # its end tells the supervisor to end everything
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=dict(os.environ, PATH=f"{beside_python}:{os.environ['PATH']}"),
    ) as process:
        output = process.stdout.read()
        return process.wait(), output


def table(output):
    """The rows (worker, steps, sent, received, verdict) of the program's table."""
    rows = re.findall(r"^ +(\d+) +(\d+) +([\d,]+) +([\d,]+)  (\w.*)$", output, re.M)
    return [
        (*(int(number.replace(",", "")) for number in row[:4]), row[4]) for row in rows
    ]


@pytest.mark.parametrize(
    ("workers", "elements"), [(1, 7), (2, 1_000_003), (3, 2), (4, 1_003)]
)
def test_processes_get_the_sum_with_the_traffic_of_the_numpy_ring(
    notebook, workers, elements
):
    status, output = mpirun(workers, PROGRAM, "--elements", elements)
    assert status == 0, output
    expected = [
        (worker, *counted, "right")
        for worker, counted in enumerate(traffic(notebook, workers, elements))
    ]
    assert table(output) == expected
    assert "same bits at every worker: yes" in output


def broken(folder, was, now):
    """A copy of the program with a mistake in it."""
    text = PROGRAM.read_text()
    assert text.count(was) == 1
    path = folder / "broken.py"
    path.write_text(text.replace(was, now))
    return path


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ("incoming += arrived", "incoming[:] = arrived"),
        ("(rank - step + 1) % workers", "(rank - step) % workers"),
        ("for step in range(workers - 1):  # all", "for step in range(0):  # all"),
        ("    return traffic\n", "    values[-1] = np.nan\n    return traffic\n"),
    ],
    ids=["no adding", "wrong chunk", "no all-gather", "not a number"],
)
def test_a_wrong_sum_is_found_and_the_exit_status_tells(tmp_path, was, now):
    status, output = mpirun(3, broken(tmp_path, was, now), "--elements", 999)
    assert status == 1, output
    assert "wrong, first at element" in output


def test_one_wrong_worker_is_named(tmp_path):
    program = broken(
        tmp_path,
        "    return traffic\n",
        "    if rank == 1:\n        values[5] += 1\n    return traffic\n",
    )
    status, output = mpirun(2, program, "--elements", 8)
    assert status == 1, output
    assert [row[4] for row in table(output)] == ["right", "wrong, first at element 5"]
    assert "same bits at every worker: no" in output


def test_a_worker_that_fails_ends_the_others_too(tmp_path):
    program = broken(
        tmp_path,
        "    traffic = Traffic()\n",
        "    traffic = Traffic()\n    if rank == 1:\n        raise ValueError('oh')\n",
    )
    status, output = mpirun(2, program)
    assert status == 1, output
    assert "ValueError: oh" in output


def test_a_size_that_makes_no_sense_is_refused():
    status, output = mpirun(2, PROGRAM, "--elements", 0)
    assert status == 2, output
    assert "--elements must be 1 or more, not 0" in output


def test_the_text_quotes_the_figure():
    cells = {cell.id: cell for cell in notebook_rules.read(NOTEBOOK).cells}
    text = cells["busiest-wire-figure"].outputs[0].data["text/plain"]
    quoted = re.findall(r"[\d.]+ [MG]B", cells["busiest-wire-answer"].source)
    assert len(quoted) == 3
    for number in quoted:
        assert number in text
