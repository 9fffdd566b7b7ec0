"""Notebook 30: one training in four frameworks, and programs run beside the course."""

import re
import subprocess
import sys

import numpy as np
import pytest

from distcheck import errors
from utils import figures
from utils.base import course
from utils.measure import four_ways
from utils.running import beside

SMALL = {"loss": np.ones(2), "arr_0": np.zeros((2, 2)), "arr_1": np.ones(2)}


def needs(name):
    why = beside.problem(name)
    return pytest.mark.skipif(why is not None, reason=str(why))


@pytest.fixture(autouse=True, scope="module")
def _on_cores():
    """As in the notebook: JAX is here for cores, and a GPU may round otherwise."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "-1")
        yield


@pytest.fixture(scope="module")
def same(tmp_path_factory):
    """A folder with the file from which all programs start; small, with any images."""
    folder = tmp_path_factory.mktemp("same")
    draw = np.random.default_rng(1)
    arrays = {"x": draw.random((128, 784)), "b1": np.zeros(32), "b2": np.zeros(10)}
    arrays |= {
        "w1": draw.normal(0, 0.04, (784, 32)),
        "w2": draw.normal(0, 0.2, (32, 10)),
    }
    arrays = {name: np.float32(array) for name, array in arrays.items()}
    np.savez(folder / "same.npz", **arrays, y=draw.integers(0, 10, 128), batch=32)
    return folder


@pytest.fixture(scope="module")
def reference(same):
    """What tf.distribute's program ends with."""
    program = four_ways.FOLDER / four_ways.PROGRAMS["tf.distribute"]
    left = same / "strategy.npz"
    command = [sys.executable, program, same / "same.npz", left]
    subprocess.run(command, check=True, timeout=300, capture_output=True)
    return four_ways.read(left)


def test_what_the_table_names_is_in_the_programs():
    for step, cells in four_ways.STEPS.items():
        for name, cell in zip(four_ways.PROGRAMS, cells, strict=True):
            text = (four_ways.FOLDER / four_ways.PROGRAMS[name]).read_text()
            for code in re.findall(r"`([^`]+)`", cell):
                assert code in text, (step, name)
    assert len(four_ways.table().rows) == len(four_ways.STEPS) == 6


@pytest.mark.parametrize("name", four_ways.PROGRAMS)
def test_a_program_is_lined_up_by_the_words_of_the_table(name):
    table = four_ways.lined_up(four_ways.FOLDER / four_ways.PROGRAMS[name])
    found = {step: lines for step, lines in table.rows}
    speaks = name in ("Horovod", "PyTorch DDP")
    for step in four_ways.STEPS:
        with_words = speaks or step not in ("2 one voice", "6 average the metrics")
        with_words &= (name, step[0]) not in [
            ("tf.distribute", "5"),
            ("Keras 3, JAX", "5"),
        ]
        assert (found[step] != "no line") == with_words, step


def test_what_stands_in_a_comment_is_no_step(tmp_path):
    (tmp_path / "p.py").write_text("hvd.init()\n# hvd.DistributedOptimizer(\n")
    rows = four_ways.lined_up(tmp_path / "p.py").rows
    assert [lines for _, lines in rows] == ["1: hvd.init()", *["no line"] * 5]


def test_all_programs_begin_with_the_same_weights_in_the_same_places(tmp_path):
    start = four_ways.write_start(tmp_path / "new" / "same.npz", train_images=128)
    assert len(start["x"]) % start["batch"] == 0
    with np.load(tmp_path / "new" / "same.npz") as written:
        for name, array in start.items():
            np.testing.assert_array_equal(written[name], array)
    shapes = [array.shape for array in four_ways.first_weights(start).values()]
    assert shapes == [(784, 32), (32,), (32, 10), (10,)]


def test_a_change_of_a_line_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"'hvd\.shut' is not in with_horovod\.py"):
        four_ways.train_changed(tmp_path / "same.npz", "a fault", "hvd.shut", "")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["with_horovod.py", "with_horovod_keras_3.py"])
def test_horovod_ends_where_tf_distribute_does(same, reference, name):
    program = four_ways.FOLDER / name
    mpirun = ["mpirun", "-np", "2", "--oversubscribe", "--bind-to", "none"]
    command = [*mpirun, sys.executable, program, same / "same.npz", same / "h.npz"]
    subprocess.run(command, check=True, timeout=300, capture_output=True)
    assert four_ways.apart(four_ways.read(same / "h.npz"), reference) < 1e-5


@needs("jax")
@pytest.mark.slow
def test_keras_3_ends_where_tf_distribute_does(same, reference):
    program = four_ways.FOLDER / four_ways.PROGRAMS["Keras 3, JAX"]
    beside.run("jax", "python", program, same / "same.npz", same / "k.npz")
    left = four_ways.read(same / "k.npz")
    assert four_ways.apart(left, reference) < 1e-5
    assert left["loss"] == pytest.approx(reference["loss"], abs=1e-5)


@needs("torch")
@pytest.mark.slow
def test_ddp_ends_where_tf_distribute_does(same, reference):
    program = four_ways.FOLDER / four_ways.PROGRAMS["PyTorch DDP"]
    files = same / "same.npz", same / "d.npz"
    beside.run("torch", "torchrun", "--nproc-per-node", 2, program, *files)
    left = four_ways.read(same / "d.npz")
    assert four_ways.apart(left, reference) < 1e-5
    assert left["loss"] == pytest.approx(reference["loss"], abs=1e-5)


def test_programs_are_apart_by_their_largest_difference():
    other = SMALL | {"arr_1": np.array([1.0, 1.5])}
    assert four_ways.apart(SMALL, other) == 0.5
    rows = four_ways.compared({"one": SMALL, "other": other}).rows
    assert [row[2] for row in rows] == ["0.0e+00", "5.0e-01"]


def test_what_was_recorded_has_losses_and_weights():
    left, origin = four_ways.recorded()
    assert "PyTorch 2." in origin
    assert left["arr_2"].shape == (32, 10)
    assert left["loss"][1] < left["loss"][0]


def test_without_a_file_it_says_what_to_run_first(tmp_path):
    with pytest.raises(errors.UserError, match="Run the program"):
        four_ways.read(tmp_path / "missing.npz")


@pytest.fixture
def pretended(tmp_path, monkeypatch):
    """The environment `jax`, pretended: its python is a shell."""
    monkeypatch.setattr(course, "PACKAGE_ROOT", tmp_path)
    monkeypatch.chdir(tmp_path)
    shell = tmp_path / ".venv-jax" / "bin" / "python"
    shell.parent.mkdir(parents=True)
    shell.symlink_to("/bin/sh")


def test_a_program_beside_is_run_and_its_line_is_shown(pretended, capfd):
    beside.run("jax", "python", "-c", "echo Hello")
    assert capfd.readouterr().out == "$ .venv-jax/bin/python -c 'echo Hello'\nHello\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["jax", "python", "-c", "exit 3"], "failed, with exit status 3"),
        (["jax", "python", "-c", "sleep 60"], "did not end within 1 s"),
        (["torch", "torchrun", "program.py"], "PyTorch is not installed: `make torch`"),
    ],
)
def test_what_goes_wrong_beside_is_told(pretended, words, told):
    with pytest.raises(errors.UserError, match=told):
        beside.run(*words, time_limit=1)


def test_the_figure_names_what_was_recorded_in_part():
    moved = {name: array + 0.2 for name, array in SMALL.items()}
    part = {"loss": np.ones(2), "arr_1": moved["arr_1"]}
    ended = {"one": moved, "whole": dict(moved), "part": part}
    (axis,) = figures.frameworks.distances(ended, SMALL).axes
    names = [label.get_text() for label in axis.get_yticklabels()]
    assert names == [
        "moved in training (one)",
        "whole, from one",
        "part (recorded, in part), from one",
    ]
    assert [text.get_text() for text in axis.texts] == ["2.0e-01", "none", "none"]
    assert [line.get_label() for line in axis.lines] == names[:1]
