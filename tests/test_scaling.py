"""Speeds, limits and step times: what is computed of them, kept and drawn."""

import json
from dataclasses import replace

import pytest

from distcheck import errors
from utils.figures import speed as scaling_plots
from utils.measure import cost_model, records, scaling
from utils.measure.cost_model import Point, wide_resnet
from utils.running.result import Run


def test_a_table_compares_with_one_worker_and_with_the_limit():
    table = scaling.table({1: 100.0, 2: 180.0, 4: 300.0}, most=375)
    assert list(table["speed-up"]) == [1, 1.8, 3]
    assert list(table["efficiency"]) == ["100%", "90%", "75%"]
    assert list(table["of the limit"]) == ["", "", "80%"]
    with pytest.raises(errors.UserError, match="against one worker"):
        scaling.table({2: 180.0})


def points_for(seconds):
    """(workers, batch, talks) -> seconds, of WRN-16-1."""
    return [
        Point(workers, batch, wide_resnet(1), time, talks)
        for (workers, batch, talks), time in seconds.items()
    ]


def test_strong_weak_and_silent_speeds_are_told_apart():
    points = points_for(
        {
            (1, 64, False): 0.2,
            (2, 64, True): 0.25,
            (2, 64, False): 0.2,
            (2, 32, True): 0.16,
        }
    )
    points.append(Point(2, 64, wide_resnet(4), 9.0))
    assert scaling.step_speeds(points) == pytest.approx({1: 320, 2: 400})
    assert scaling.step_speeds(points, weak=True) == pytest.approx({1: 320, 2: 512})
    silent = scaling.step_speeds(points, weak=True, talks=False)
    assert silent == pytest.approx({1: 320, 2: 640})


def test_several_rounds_count_by_their_median():
    points = [Point(1, 64, wide_resnet(1), s, False) for s in (0.1, 0.2, 9.0)]
    assert scaling.step_speeds(points) == pytest.approx({1: 320})


def test_points_survive_being_recorded(tmp_path):
    points = points_for({(2, 64, True): 0.25, (1, 16, False): 0.125})
    points.insert(1, replace(points[0], seconds=0.5))  # of another round
    rows = scaling.as_plain(points)
    records.save("s", {"points": rows}, "python", folder=tmp_path)
    recorded = records.load("s", tmp_path).results["points"]
    assert scaling.from_plain(recorded) == points


def test_of_a_step_the_slowest_worker_counts(tmp_path):
    for rank, seconds in enumerate([[0.1, 0.3], [0.2, 0.1]]):
        report = {"step_seconds": {"together:16x2": seconds}}
        (tmp_path / f"timed-{rank}.json").write_text(json.dumps(report))
    run = Run("timed_steps.py", 2, "mpirun", tmp_path)
    first, second = scaling.points(run)
    assert (first.seconds, second.seconds) == (0.2, 0.3)
    assert first == Point(2, 16, wide_resnet(2), 0.2, True)
    empty = Run("timed_steps.py", 2, "mpirun", tmp_path / "nowhere")
    with pytest.raises(errors.UserError, match="measured no step"):
        scaling.points(empty)


def test_what_autotune_tried_is_read(tmp_path):
    log = tmp_path / "log.csv"
    head = "hierarchical_allreduce,hierarchical_allgather,cache_enabled,"
    head += "cycle_time_ms,tensor_fusion_threshold,score\n"
    log.write_text(head + "0,0,1,5.004,4.0,12.5\n0,0,1,50,32,8.25\n")
    tries = scaling.tuned(log)
    assert list(tries["cycle"]) == [5, 50]
    assert list(tries["fusion"]) == [4, 32]
    assert list(tries["score"]) == [12.5, 8.25]
    log.write_text(head)
    with pytest.raises(errors.UserError, match="holds no try"):
        scaling.tuned(log)


def test_the_figures_show_what_was_measured():
    figure = scaling_plots.speed_up({1: 100.0, 2: 170.0}, 1.9, 185.0)
    words = [t.get_text() for t in figure.axes[0].get_legend().get_texts()]
    assert words == [
        "ideal: N times one",
        "limit, workers that don't talk: 1.85",
        "measured: 1.70",
        "your prediction: 1.90",
    ]
    curves = {1: 300.0, 2: 500.0, 3: 480.0}
    axis = scaling_plots.strong_and_weak(curves, curves, curves, cores=2).axes[0]
    assert "more workers" in axis.texts[0].get_text()
    axis = scaling_plots.throughputs({"one": 100.0, "two": 1234.0}).axes[0]
    assert [text.get_text() for text in axis.texts] == ["100", "1,234"]


@pytest.mark.slow
def test_real_steps_are_measured(tmp_path, monkeypatch):
    """Two workers of WRN-16-1, sharing gradients or not; no time is judged."""
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "exercises").mkdir()
    monkeypatch.chdir(tmp_path)
    points = scaling.step_times(
        2,
        ["alone:2x1", "together:2x1"],
        rounds=2,
        steps=1,
        data="sample",
        train_images=60,
        time_limit=540,
        quiet=True,
    )
    assert [(p.workers, p.batch, p.talks) for p in points] == [
        (2, 2, False),
        (2, 2, False),
        (2, 2, True),
        (2, 2, True),
    ]
    assert all(p.seconds > 0 for p in points)
    assert {p.network for p in points} == {cost_model.wide_resnet(1)}
