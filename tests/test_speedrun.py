"""The speedrun: what its check believes, its exit status, and what its record says.

How fast anything is decides no test.
"""

import sys
from dataclasses import replace

import numpy as np
import pytest

from distcheck import errors
from utils import cli
from utils.measure import bench, global_batch, records, speedrun, table
from utils.measure.bench import Plan
from utils.measure.global_batch import Attempt
from utils.running import launch
from utils.training import data, networks, samples

# Two of these at a time: nothing here is trained.
KEEPS = """
import argparse, pathlib, shutil

parser = argparse.ArgumentParser()
parser.add_argument("--checkpoint", type=pathlib.Path)
folder = parser.parse_args().checkpoint
folder.mkdir(parents=True, exist_ok=True)
print("Test accuracy 1.0000")
"""


@pytest.fixture
def program(tmp_path):
    """A program that says it is perfect, and a network that it can keep."""
    networks.tiny().save(tmp_path / "network.keras")
    path = tmp_path / "program.py"
    path.write_text(KEEPS)
    return path


@pytest.fixture
def tested_on(monkeypatch):
    """Let ten images be all test images, so many of them labelled as the network in
    FOLDER/network.keras sees them: tested_on(FOLDER, right)."""
    import tensorflow as tf

    arrays = samples.fashion_mnist()
    few = {key: rows[: 40 if "train" in key else 10] for key, rows in arrays.items()}
    dataset = data.dataset_of("garments", few)

    def use(folder, right):
        model = tf.keras.models.load_model(folder / "network.keras", compile=False)
        images = next(iter(data.test_batches(dataset, 10)))[0]
        labels = model(images, training=False).numpy().argmax(axis=1).astype(np.uint8)
        labels[right:] = (labels[right:] + 1) % 10
        monkeypatch.setattr(data, "load", lambda *_: replace(dataset, y_test=labels))

    return use


def status(*words, monkeypatch):
    """The exit status of `course speedrun`, run in this process."""
    monkeypatch.setattr(sys, "argv", ["course", "speedrun", *map(str, words)])
    with pytest.raises(SystemExit) as left:
        cli.main()
    return left.value.code


@pytest.mark.slow
@pytest.mark.parametrize(("right", "code"), [(9, 0), (8, 1)])
def test_the_kept_network_decides(
    right, code, program, tested_on, monkeypatch, capsys, recorded
):
    """And neither what the program prints nor what was kept before."""
    tested_on(program.parent, right)
    keep = f'shutil.copy({str(program.parent / "network.keras")!r}, folder / "x.keras")'
    program.write_text(KEEPS + keep + "\n")
    assert status(program, monkeypatch=monkeypatch) == code
    shown = capsys.readouterr().out
    assert f"0.{right}000" in shown
    assert ("not yet" in shown) == bool(code)


@pytest.mark.slow
def test_what_was_printed_or_kept_before_is_no_network(
    program, tested_on, monkeypatch, capsys
):
    tested_on(program.parent, 10)
    # A network that lies elsewhere than in the folder given does not count.
    assert status(program, monkeypatch=monkeypatch) == 2
    assert "there is no network in" in capsys.readouterr().err


def test_a_sample_of_the_test_images_is_not_enough(program, monkeypatch, capsys):
    def no_download(choice="auto", train_images=None):
        raise errors.UserError(f"no {choice} data here")

    monkeypatch.setattr(data, "load", no_download)
    assert status(program, monkeypatch=monkeypatch) == 2
    assert "no real data here" in capsys.readouterr().err


def test_wrong_usage_is_called_so(monkeypatch, capsys):
    monkeypatch.setattr(data, "load", lambda *_: None)
    assert status("gone.py", monkeypatch=monkeypatch) == 2
    assert "there is no program" in capsys.readouterr().err
    assert status(monkeypatch=monkeypatch) == 2


# ------------------------------------------------------------ the record


@pytest.fixture
def attempts(monkeypatch):
    """Attempts that are made up: they get better with the seed, and worse when anything
    is changed."""

    def attempt(script, workers, seed, quiet, **options):
        changed = 0.02 * (bool(options) + (workers == 1))
        return Attempt("one", workers, 10.0 + seed, 0.899 + seed / 500 - changed)

    monkeypatch.setattr(speedrun, "attempt", attempt)
    monkeypatch.setattr(speedrun.psutil, "cpu_percent", lambda interval: 1.0)


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """A record that is made up, in place of the course's."""
    monkeypatch.setattr(records, "FOLDER", tmp_path / "recorded")
    facts = {"seconds": [12.0, 14.0, 13.0], "busy": 0.0}
    rows = [table.Row(speedrun.RECORD, [9.5, 9.0, 9.25], "%", facts=facts)]
    table.keep(table.Section("speedrun", rows, ["A note."]), "a command")


def test_what_is_left_out_is_compared_with_the_whole(attempts):
    section = speedrun.of_bench(Plan(rounds=3), lambda text: None)
    assert [row.name for row in section.rows] == list(speedrun.CHANGES)
    whole, *others = section.rows
    assert whole.values == pytest.approx([9.9, 9.7, 9.5])
    assert whole.facts["seconds"] == [11, 12, 13]
    for row in others:
        assert row.ratios == pytest.approx([11.9 / 9.9, 11.7 / 9.7, 11.5 / 9.5])
    (note,) = section.notes
    assert f"the median: {speedrun.RECORD}, 12.0;" in note


def test_a_record_that_missed_the_goal_is_none(attempts, monkeypatch):
    monkeypatch.setattr(speedrun, "GOAL", 0.95)
    monkeypatch.setattr(global_batch, "GOAL", 0.95)
    with pytest.raises(errors.UserError, match=r"seed 1 it reached 90\.10%, not 95%"):
        speedrun.of_bench(Plan(rounds=3), lambda text: None)


def test_a_busy_machine_is_said_to_be_one(attempts, monkeypatch):
    monkeypatch.setattr(speedrun.psutil, "cpu_percent", lambda interval: 55.0)
    section = speedrun.of_bench(Plan(rounds=1), lambda text: None)
    assert section.notes[1].startswith("Other programs kept the cores 55 % busy")


def test_the_sentence_has_time_spread_and_the_worst(recorded):
    words = speedrun.sentence()
    assert words.startswith("0.90 test accuracy on Fashion-MNIST takes 13.0 s (12.0 to")
    assert "14.0, 3 seeds, 0.905 or better), from the command to its end" in words


def test_every_change_is_an_option_of_the_program():
    for _, options in speedrun.CHANGES.values():
        launch._refuse_unknown(options, speedrun.PROGRAM)


def test_the_record_that_is_shipped_met_the_goal():
    section, _ = table.recorded("speedrun")
    assert [row.name for row in section.rows] == list(speedrun.CHANGES)
    assert max(section.rows[0].values) <= 100 * (1 - speedrun.GOAL)
    words = bench.README.read_text().split(bench.SPEEDRUN)[1].split(bench.END)[0]
    assert speedrun.sentence() == words.strip()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_our_program_trains_for_real_on_two_workers():
    one = global_batch.attempt(
        "ours",
        speedrun.PROGRAM,
        2,
        None,
        train_images=1_200,
        epochs=4,
        global_batch=32,
        quiet=True,
    )
    assert one.accuracy > 0.6
    assert "150 steps of 2 workers" in one.run.tail()
