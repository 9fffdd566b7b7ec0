"""Memory: the figures of notebook 28 say what is given to them, and its measurement
notices what is held."""

import json
import os
import sys

import numpy as np
import pytest
from processes import captured

from utils.base import course
from utils.figures import memory

PROGRAM = course.PACKAGE_ROOT / "utils" / "measure" / "programs" / "peak_memory.py"


def lengths(figure):
    return [bar.get_width() for bar in figure.axes[0].patches]


def test_bars_stand_one_behind_the_other_in_a_unit_that_fits():
    small = memory.holdings({"all": {"weights": 4e6, "optimizer": 8e6}})
    large = memory.holdings({"all": {"weights": 4e9}, "half": {"weights": 2e9}})
    assert lengths(small) == [4, 8]
    assert [bar.get_x() for bar in small.axes[0].patches] == [0, 4]
    assert small.axes[0].texts[0].get_text().strip() == "12 MB"
    assert lengths(large) == [4, 2]
    assert large.axes[0].get_xlabel().startswith("GB")
    named = [bar.get_label() for bar in small.axes[0].containers]
    assert named == ["all, weights", "all, optimizer"]


def test_what_was_held_at_the_start_is_left_out_of_peaks_and_said():
    figure = memory.peaks({"kept": 500e6, "computed again": 450e6}, 400e6)
    assert lengths(figure) == [100, 50]
    assert "400 MB at the start" in figure.axes[0].get_xlabel()


def test_the_line_and_the_count_begin_at_the_same_place():
    figure = memory.by_batch({10: 3e6, 20: 5e6}, (2e5, 1e6), counted=1e5)
    line, counted, points = figure.axes[0].lines
    assert [*line.get_ydata()] == [1, 5]
    assert [*counted.get_ydata()] == [1, 3]
    assert [*points.get_ydata()] == [3, 5]
    assert "200 kB an image" in line.get_label()


def test_the_drawn_pipeline_waits_as_long_as_the_formula_says():
    boxes = memory.pipeline().axes[0].patches
    stages, micro_batches = memory.STAGES, memory.MICRO_BATCHES
    waiting = np.mean([bool(box.get_hatch()) for box in boxes])
    share = (stages - 1) / (micro_batches + stages - 1)
    assert waiting == pytest.approx(share)


def test_the_peak_notices_what_was_held_for_a_moment():
    """In a process of its own, as a peak never falls."""
    code = (
        "import json, runpy, numpy; "
        f"peak = runpy.run_path({str(PROGRAM)!r})['peak']; before = peak(); "
        "numpy.ones(100_000_000, numpy.uint8).sum(); "
        "print(json.dumps([before, peak()]))"
    )
    command = [sys.executable, "-c", code]
    environment = os.environ | {
        "PYTHONPATH": str(course.PACKAGE_ROOT),
        "CUDA_VISIBLE_DEVICES": "-1",
    }
    said = captured(command, env=environment)
    before, after = json.loads(said.stdout.splitlines()[-1])
    assert 90e6 < after - before < 300e6, said.stderr[-2000:]


def test_on_a_gpu_the_peak_is_what_tensorflow_counted_there(monkeypatch):
    import tensorflow as tf

    from utils.measure.programs import peak_memory

    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [kind])
    asked = {"GPU:0": {"current": 3, "peak": 7}}
    monkeypatch.setattr(tf.config.experimental, "get_memory_info", asked.get)
    assert peak_memory.peak() == 7
