"""The figures of runs: what is computed for them, and that they show it."""

import base64
import io
import json
import re

import matplotlib
import numpy as np
import pandas
import pytest
from IPython.core.formatters import DisplayFormatter
from matplotlib import pyplot
from matplotlib.image import imread

from utils.figures import cluster, elastic, style, training
from utils.figures import speed as speeds
from utils.running.result import Run


@pytest.fixture
def run(tmp_path):
    """A run of two workers."""
    return made_run(tmp_path, 2)


def made_run(folder, workers):
    """A run as its folder would hold it, with known weights.

    Each rank starts one unit beside the one before, and all take the same steps.
    """
    start = np.zeros(8, np.float32)
    start[0] = 10
    step = np.zeros(8, np.float32)
    step[1] = 1
    beside = np.zeros(8, np.float32)
    beside[2] = 1
    zero = np.stack([start, start + step, start + 2 * step, start + 4 * step])
    record = folder / "record"
    record.mkdir()
    for rank in range(workers):
        np.savez(record / f"{rank}.npz", weights=zero + rank * beside)
        before = [{"val_accuracy": 0.5 + 0.1 * rank / workers}]
        after = [{"val_accuracy": 0.55}]
        text = json.dumps({"before": before, "after": after})
        (record / f"{rank}.json").write_text(text)
    others = "".join(f"[{rank}] e\n" for rank in range(2, workers))
    (folder / "log.txt").write_text(f"[0] a\n[1] b\n[0] c [1] d\n{others}")
    columns = "epoch,accuracy,images_per_second,loss,seconds,val_accuracy,val_loss\n"
    rows = "0,0.5,10,2.0,8.0,0.4,2.1\n1,0.6,20,1.0,12.0,0.5,1.1\n2,0.7,40,.5,14,.6,.6\n"
    (folder / "history.csv").write_text(columns + rows)
    samples = [
        sampled(rank, f"core {core}", percent)
        for rank in range(workers)
        for core, percent in [(rank, 75), (rank + 1, 25)]
    ]
    return Run(
        "p.py",
        workers,
        "mpirun",
        folder,
        0,
        20.0,
        ["a sample of garments"],
        samples,
    )


def test_a_batch_size_has_its_point():
    text = speeds.by_batch_size({1: 100.0, 64: 1300.0}).in_words()
    assert "images per second by images in a batch" in text
    assert "from 100" in text
    assert "to 1,300" in text


def sampled(rank, core, percent, gpus=(), in_use=()):
    """A reading of a watched worker, as far as the figure needs it."""
    reading = {"rank": rank, "core": core, "percent": percent}
    return reading | {"gpus": dict(gpus), "in_use": dict(in_use)}


def words(figure):
    """All the text in a figure."""
    import matplotlib.text

    texts = figure.findobj(matplotlib.text.Text)
    return " ".join(text.get_text() for text in texts)


# ------------------------------------------------------ however many workers there are


def assert_all_is_seen(figure):
    """That nothing drawn or written lies outside, and that lines can be told apart."""
    figure.draw_without_rendering()
    box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert min(box.x0, box.y0) > -0.01
    assert box.x1 < width + 0.01
    assert box.y1 < height + 0.01
    for axis in figure.axes:
        drawn = [line for line in axis.lines if line.get_transform() == axis.transData]
        points = [line.get_xydata() for line in drawn]
        within = axis.transData.inverted()
        points += [
            within.transform(bar.get_window_extent())
            for bars in axis.containers
            for bar in bars
        ]
        ends = np.array([axis.get_xlim(), axis.get_ylim()]).T
        for places in points:
            assert (places >= ends.min(axis=0) - 1e-6).all()
            assert (places <= ends.max(axis=0) + 1e-6).all()
        if legend := axis.get_legend():
            looks = [
                (line.get_color(), line.get_marker(), line.get_linestyle())
                for line in legend.get_lines()
            ]
            assert len(set(looks)) == len(looks)


@pytest.mark.parametrize("workers", [2, 3, 8, 16])
@pytest.mark.parametrize(
    "draw",
    [
        training.devices,
        training.drift,
        lambda run: training.paths({"before": run, "after": run}),
        lambda run: training.voices({"before": run, "after": run}),
        lambda run: training.accuracies({"before": run, "after": run}),
        lambda run: training.ranks(machines=1, gpus=run.workers),
    ],
)
def test_each_rank_is_seen(draw, workers, tmp_path):
    figure = draw(made_run(tmp_path, workers))
    assert_all_is_seen(figure)
    text = words(figure) + " "
    for rank in range(1, workers):
        assert re.search(rf"rank {rank}\b", text)


def test_the_title_has_how_far_apart_accuracies_are(tmp_path):
    run = made_run(tmp_path, 2)
    title = training.accuracies({"": run}).axes[0].get_title()
    assert f"{training.points_apart(run):.2f} percentage points" in title


def test_the_waves_of_a_lesson_are_seen():
    assert_all_is_seen(training.waves())


def test_paths_say_in_the_legend_how_far_apart_many_workers_are(tmp_path):
    axis = training.paths({"before": made_run(tmp_path, 8)}).axes[0]
    assert axis.get_title().startswith("before\n")
    words = [text.get_text() for text in axis.get_legend().get_texts()]
    assert (words[0], words[-1]) == ("rank 0", "rank 7: 70% apart")


@pytest.mark.parametrize("workers", [2, 3, 8, 16])
def test_each_worker_of_a_cluster_is_seen(workers, tmp_path):
    tags = np.arange(5 * workers) % workers
    rows = {"worker": tags, "time": np.arange(5.0 * workers), "loss": 1.0}
    rows |= {"read": np.maximum(0, np.arange(5 * workers) - workers)}
    rows |= {"wrote": np.arange(5 * workers) + 1, "epoch": 0}
    pandas.DataFrame(rows).to_csv(tmp_path / "steps.csv")
    run = Run("p.py", workers, "", tmp_path)
    figure = cluster.timeline(run)
    assert_all_is_seen(figure)
    assert visible_rows(figure.axes[0]) == set(range(workers))
    for worker in range(workers):
        assert f"{chr(ord('A') + worker)}: 5 steps" in words(figure)
    staleness = cluster.staleness({"all": run})
    assert_all_is_seen(staleness)
    counted = staleness.axes[0].patches
    assert sum(bar.get_height() for bar in counted) == 5 * workers


@pytest.mark.parametrize("workers", [2, 3, 8, 16])
def test_speeds_are_seen_up_to_the_most_workers(workers):
    speed = {n: 100.0 * n**0.9 for n in {1, 2, workers}}
    for prediction in (None, 0.5, workers + 2.0):
        figure = speeds.speed_up(speed, prediction, most=120.0 * workers)
        assert_all_is_seen(figure)
        assert {f"{n}" for n in speed} <= set(words(figure).split())
    assert_all_is_seen(speeds.amdahl(0.05, speed))
    rows = {"time": np.arange(40.0), "loss": 1.0, "epoch": np.arange(40) // 10}
    rows |= {"workers": np.repeat([workers, workers - 1], 20)}
    assert_all_is_seen(elastic.workers_and_loss(pandas.DataFrame(rows)))


# ------------------------------------------------------------- what they are made from


def test_distances_are_relative_to_rank_0(run):
    assert training.distances(run)[1] == pytest.approx(
        1 / np.sqrt([100, 101, 104, 116]), rel=1e-5
    )
    assert training.update_distances(run)[1] == pytest.approx(0)


def test_equal_steps_are_equal_paths_from_stars_as_far_apart_as_the_starts(run):
    figure = training.paths({"equal steps": run})
    first, star, gap, second, other_star = figure.axes[0].lines
    apart = 1 / np.sqrt(101)
    assert star.get_xydata() == pytest.approx(np.array([[0, 0]]))
    assert other_star.get_xydata() == pytest.approx(np.array([[apart, 0]]))
    assert gap.get_xydata() == pytest.approx(np.array([[0, 0], [apart, 0]]))
    moved = [line.get_xydata() - line.get_xydata()[0] for line in (first, second)]
    assert moved[0] == pytest.approx(moved[1])
    lengths = np.linalg.norm(moved[0], axis=1)
    assert lengths == pytest.approx(np.array([0, 1, 3]) / np.sqrt(101), abs=1e-6)
    text = words(figure)
    assert "10% apart" in text
    assert "weights at the end: 9% apart" in text
    assert "direction of most movement" in text


def test_workers_that_start_together_share_a_star(run):
    together = np.load(run.folder / "record" / "0.npz")["weights"]
    np.savez(run.folder / "record" / "1.npz", weights=together)
    first, star, second, other_star = training.paths({"one": run}).axes[0].lines
    assert first.get_xydata() == pytest.approx(second.get_xydata())
    assert star.get_xydata() == pytest.approx(other_star.get_xydata())


def test_speeds_leave_out_the_first_epoch(run):
    assert run.images_per_second == 30
    assert run.seconds_per_epoch == 3


def test_lines_are_counted_by_the_rank_in_front(run):
    assert training.lines_by_rank(run) == {0: 2, 1: 1}


def test_the_courses_notices_are_not_counted(run):
    run.log.write_text("[0] NOTICE: a sample\n[1] NOTICE: a sample\n[0] a\n")
    assert training.lines_by_rank(run) == {0: 1, 1: 0}


# What TensorFlow 2.21 and older ones log, after where it logs it.
LOGGED = """\
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795632105.220180   19509 port.cc:153] oneDNN custom operations are on.
E0000 00:00:1795632261.079528 3415088 cuda_dnn.cc:8310] Unable to register cuDNN factory
W0000 00:00:1795632261.079528      52 gpu_device.cc:2341] Skipping registering a device
I1125 18:51:45.490166   19509 gpu_device.cc:2020] Created device GPU:0 with 78000 MB
2026-11-25 18:51:45.490166: I tensorflow/core/cpu_feature_guard.cc:210] This TensorFlow
To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow\
 with the appropriate compiler flags.
"""
KEPT = """\
[2026-11-25 18:51:45.490166: W stall_inspector.cc:107] One or more tensors were
F0000 00:00:1795632261.079528      52 stream.cc:90] Check failed: it ends here
WARNING:tensorflow:Your input ran out of data
Warning: All is well
"""


def test_what_tensorflow_logs_is_neither_counted_nor_shown(run):
    lines = [f"[1] {line}" for line in (LOGGED + KEPT).splitlines()]
    run.log.write_text("\n".join(["[0] a", *lines, "[0] b"]) + "\n")
    kept = KEPT.splitlines()
    assert run.lines() == ["[0] a", *(f"[1] {line}" for line in kept), "[0] b"]
    assert training.lines_by_rank(run) == {0: 2, 1: len(kept)}
    assert run.tail(2) == f"[1] {kept[-1]}\n[0] b"


def test_unseen_shares_are_those_of_the_formula():
    one_round, three_rounds = training.unseen(3, range(1, 9)).axes[0].lines
    assert one_round.get_ydata() == pytest.approx(
        [(1 - 1 / n) ** n for n in range(1, 9)]
    )
    assert list(three_rounds.get_ydata()[:3]) == [0, 0, 0]
    assert three_rounds.get_ydata()[7] == pytest.approx((5 / 8) ** 8)


@pytest.mark.parametrize(
    ("draw", "expected"),
    [
        (
            training.curves,
            ["epoch", "loss", "accuracy", "training", "validation"],
        ),
        (training.devices, ["rank 0", "rank 1", "core 0", "75%"]),
        (training.drift, ["rank 1 against rank 0", "batch"]),
        (
            lambda run: training.voices({"before": run}),
            ["rank 1", "lines printed"],
        ),
        (lambda run: training.epoch_times({"one": run}), ["one", "3.0 s"]),
        (
            lambda run: training.accuracies({"after": run}),
            ["after", "rank 1", "at most 0.00 percentage points apart"],
        ),
    ],
)
def test_figures_say_what_they_show_and_what_the_data_was(run, draw, expected):
    text = words(draw(run))
    for word in [*expected, "a sample of garments"]:
        assert word in text


@pytest.fixture
def settings():
    """The learner's settings of matplotlib, which are not the default ones."""
    with matplotlib.rc_context({"axes.grid": False, "lines.linewidth": 7}):
        yield matplotlib.rcParams.copy()


def test_a_figure_has_the_style_and_no_setting_changes(run, settings):
    axis = training.drift(run).axes[0]
    assert matplotlib.rcParams.copy() == settings
    assert axis.xaxis.get_gridlines()[0].get_visible()
    assert not axis.spines["top"].get_visible()


def test_settings_are_the_learners_again_after_an_error(settings):
    with pytest.raises(ValueError, match="Number of columns"):
        style.subplots(1, 0)
    assert matplotlib.rcParams.copy() == settings


def test_pyplot_has_no_figure_to_close(run):
    training.curves(run)
    assert pyplot.get_fignums() == []


def test_a_rank_has_its_color_and_mark_in_all_figures(run):
    (alone,) = training.drift(run).axes[0].get_legend().get_lines()
    beside = training.accuracies({"": run}).axes[0].lines[1]
    assert alone.get_color() == beside.get_color() == style.ORANGE
    assert alone.get_marker() == beside.get_marker() == "s"


def test_jupyter_shows_a_whole_figure_without_pyplot(run):
    figure = training.curves(run)
    data, metadata = DisplayFormatter().format(figure)
    assert data["text/plain"] == repr(figure)
    picture = imread(io.BytesIO(base64.b64decode(data["image/png"])))
    size = metadata["image/png"]
    sides = [style.SHARPER * size[side] for side in ("height", "width")]
    assert picture.shape[:2] == pytest.approx(sides, abs=2)
    edges = (picture[0], picture[-1], picture[:, 0], picture[:, -1])
    assert all(np.all(edge == 1) for edge in edges)


def test_a_run_that_was_not_watched_is_named(run):
    run.samples.clear()
    with pytest.raises(ValueError, match="watch=True"):
        training.devices(run)


def test_a_worker_with_memory_on_all_gpus_is_drawn_with_all_of_them(run):
    """One bar of two colors: nobody pinned it."""
    both, one = {"GPU 0": 300, "GPU 1": 100}, {"GPU 1": 700}
    run.samples += [sampled(0, "core 3", 100, both), sampled(1, "core 3", 100, one)]
    figure = training.devices(run)
    text = words(figure)
    for word in ("GPU 0\n75%", "GPU 1\n25%", "GPU 1\n100%", "memory on GPUs"):
        assert word in text
    assert "core" not in text
    assert "busy time" not in text


def test_gpus_whose_workers_can_not_be_told_are_drawn_one_by_one(run):
    for mib in (512, 2048, 1024):
        run.samples.append(sampled(0, "core 3", 100, (), {"GPU 0": mib, "GPU 1": 0}))
    text = words(training.devices(run))
    for word in ("GPU 0", "2.0 GiB", "GPU 1", "0.0 GiB", "--pid=host"):
        assert word in text
    assert "rank 0" not in text


def test_ranks_and_the_network_are_labelled():
    assert "GPU 2\nrank 6\nlocal rank 2" in words(training.ranks(2, 4))
    assert "7 x 7\n640 channels" in words(training.network(10))


def test_a_figure_says_in_words_what_it_shows():
    figure, (left, right) = style.subplots(1, 2)
    left.plot([1, 2, 4], [900, 1700, 3000], label="measured")
    left.plot([1, 4], [900, 3600], label="ideal")
    left.set(title="Speed", xlabel="workers", ylabel="images/s")
    left.legend()
    style.bars(right, {"one": 900, "two": 1700}, "%d")
    figure.with_origin("recorded on\ntwo cores")
    metadata = figure._repr_mimebundle_()[1]["image/png"]
    assert metadata["alt"] == (
        "Speed; images/s by workers; measured: from 900 at 1 to 3,000 at 4; "
        "ideal: from 900 at 1 to 3,600 at 4. "
        "bars: one 900, two 1,700. recorded on two cores."
    )


def test_of_many_things_in_a_figure_its_words_name_the_first():
    figure, axis = style.subplots()
    style.bars(axis, {f"worker {rank}": 1.0 for rank in range(40)}, "%g")
    assert "worker 11 1, and 28 more" in figure.in_words()
    assert "worker 12" not in figure.in_words()


def test_pictures_are_named_by_their_titles():
    figure, axes = style.subplots(1, 2)
    for axis, name in zip(axes, ("Coat", "Bag"), strict=True):
        axis.imshow(np.zeros((2, 2)))
        axis.set_title(name)
    assert figure.in_words() == "Coat; a picture. Bag; a picture."
    for axis in axes:
        axis.set_title("")
    assert figure.in_words() == "a picture, 2 times."


# ------------------------------------------------- as many workers as a machine has


@pytest.fixture(params=[2, 3, 8])
def workers(request):
    return request.param


def visible_rows(axis) -> set[int]:
    """The rows that have marks within the limits of the axis."""
    low, high = sorted(axis.get_ylim())
    return {
        int(row)
        for line in axis.lines
        for row in line.get_ydata()
        if low + 0.2 < row < high - 0.2
    }


def test_every_worker_is_seen_with_its_images(workers, tmp_path):
    for rank in range(workers):
        np.save(tmp_path / f"seen-{rank}.npy", np.arange(rank, 100, workers))
    run = Run("p.py", workers, "-", tmp_path, 0, 1.0, [], [])
    figure = cluster.shards({"one": run, "other": run})
    for axis in figure.axes:
        assert visible_rows(axis) == set(range(workers))
        assert axis.get_window_extent().height / workers > 22  # a mark is 22 high
    assert f"worker {workers - 1}" in words(figure)


def test_every_server_is_seen_with_its_bytes(workers, tmp_path):
    rows = [f"layer_{n}/kernel:0,{n % workers},{1000 * (n + 1)}" for n in range(10)]
    (tmp_path / "variables.csv").write_text("name,ps,bytes\n" + "\n".join(rows) + "\n")
    run = Run("p.py", workers, "-", tmp_path, 0, 1.0, [], [])
    axis = cluster.placement(run).axes[0]
    assert sum(bar.get_width() for bar in axis.patches) == 55
    assert len({bar.get_y() for bar in axis.patches}) == workers
    assert all(min(axis.get_ylim()) < bar.get_y() for bar in axis.patches)
