"""The lessons' drawings: whole, readable, described, and true."""

import base64
import io
import itertools

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.image import imread
from matplotlib.text import Text

from utils.figures import (
    diagrams,
    elastic,
    feeding,
    memory,
    platforms,
    strategies,
    style,
    wires,
    workers,
)
from utils.measure import strategies as measured
from utils.measure.wires import LAWS

SMALLEST_TYPE = 8  # points


def busiest_wire():
    return diagrams.busiest_wire(
        lambda workers, size: 2 * workers * size,
        lambda workers, size: 4 * (workers - 1) / workers * size,
        {"our network": 7e5, "100 MB": 1e8},
    )


SCORE, RATE = ("all-reduce", "its score"), ("all-reduce", "its learning rate")
HAND_OUT = ("broadcast", "the learning rate")
DEADLOCK = {"rank 0": [SCORE, HAND_OUT], "rank 1": [HAND_OUT]}
MIXED_UP = {"rank 0": [SCORE, RATE], "rank 1": [RATE]}

DRAWINGS = {
    "model and data": diagrams.model_and_data_parallel,
    "lesson's straggler": lambda: diagrams.synchronous_and_asynchronous(
        [1.0, 1.2, 2.5], seconds=7.5
    ),
    "worse straggler": lambda: diagrams.synchronous_and_asynchronous(
        [1.0, 1.2, 7.5], seconds=7.5
    ),
    "descent": lambda: diagrams.descent({0: [1.0, 0.5, 0.25], 3: [1.0, 0.5, 0.0]}),
    "deadlock": lambda: diagrams.lanes(DEADLOCK),
    "mixed up": lambda: diagrams.lanes(MIXED_UP),
    "two slopes": lambda: diagrams.average_of_two_slopes((2.0, -1.0)),
    "two slopes, one way": lambda: diagrams.average_of_two_slopes((1.0, 2.0)),
    "server of 2": lambda: diagrams.parameter_server(2),
    "server of 8": lambda: diagrams.parameter_server(8),
    "ring of 2": lambda: diagrams.ring(2),
    "ring of 8": lambda: diagrams.ring(8),
    "steps of 2": lambda: diagrams.ring_in_steps(2),
    "steps of 4": lambda: diagrams.ring_in_steps(4),
    "one worker stops": diagrams.one_worker_stops,
    "busiest wire": busiest_wire,
    "commits": lambda: elastic.commits(every=10, dies_in=14, batches=20),
    "unequal steps": feeding.unequal_steps,
    "loss scale": memory.loss_scale_around_horovod,
    "zero": memory.zero_step,
    "short and long steps": diagrams.short_and_long_steps,
    "short and long steps of 8": lambda: diagrams.short_and_long_steps(8),
    "fully sharded": memory.fully_sharded,
    "pipeline": memory.pipeline,
    "tensor parallel": memory.tensor_parallel,
    "two workers": workers.two_workers,
    "mirrored": workers.mirrored,
    "policies": strategies.shard_policies,
    **{name: lambda name=name: strategies.boxes(name) for name in strategies.PANELS},
    "two starts": lambda: wires.two_starts([0, 50], takes=1),
    "three starts": lambda: wires.two_starts([20, 0, 5], takes=10),
    "ring, tree, doubling": wires.patterns,
    "three strategies": lambda: strategies.boxes("mirrored", "default", "tpu"),
    "Slurm job": platforms.slurm_job,
    "MPIJob": platforms.mpi_job,
    "large MPIJob": lambda: platforms.mpi_job(3, 3),
    "Spark job": platforms.spark_job,
    "SageMaker job": platforms.sagemaker_job,
}


@pytest.fixture(params=DRAWINGS.values(), ids=DRAWINGS.keys())
def drawing(request):
    return request.param()


@pytest.fixture
def texts(drawing, monkeypatch):
    """Every text that is painted, with its box in dots."""
    painted = []
    paint = Text.draw

    def draw(text, renderer):
        paint(text, renderer)
        if text.get_visible() and text.get_text().strip():
            painted.append((text, text.get_window_extent(renderer)))

    monkeypatch.setattr(Text, "draw", draw)
    FigureCanvasAgg(drawing).draw()
    assert painted
    return painted


def test_no_text_is_cut_off_or_tiny(drawing, texts):
    for text, box in texts:
        assert box.x0 >= 0, text
        assert box.y0 >= 0, text
        assert box.x1 <= drawing.bbox.width, text
        assert box.y1 <= drawing.bbox.height, text
        assert text.get_fontsize() >= SMALLEST_TYPE, text


def test_no_text_covers_another(texts):
    for (text, box), (other_text, other_box) in itertools.combinations(texts, 2):
        assert not box.padded(-1).overlaps(other_box.padded(-1)), (text, other_text)


def test_jupyter_gets_a_picture_and_the_words_for_it(drawing):
    data, metadata = drawing._repr_mimebundle_()
    assert data["text/plain"] == repr(drawing) == metadata["image/png"]["alt"]
    assert len(repr(drawing).split()) > 10
    picture = imread(io.BytesIO(base64.b64decode(data["image/png"])))
    sides = metadata["image/png"]["height"], metadata["image/png"]["width"]
    sharper = [style.SHARPER * side for side in sides]
    assert picture.shape[:2] == pytest.approx(sharper, abs=2)


def test_the_same_drawing_twice_is_the_same_picture():
    first, second = (diagrams.ring_in_steps(3)._repr_mimebundle_()[0] for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    ("draw", "workers"),
    [
        (diagrams.parameter_server, 9),
        (diagrams.ring, 9),
        (diagrams.ring, 1),
        (diagrams.ring_in_steps, 5),
        (diagrams.ring_in_steps, 0),
    ],
)
def test_what_does_not_fit_is_refused(draw, workers):
    with pytest.raises(ValueError, match=f"2 to . workers, not {workers}"):
        draw(workers)


@pytest.mark.parametrize(
    "steps", [[1.0], [1.0, 1.0], [1.0, 1.2, 2.5], [0.7, 3.0, 0.7, 1.1]]
)
def test_staleness_is_the_number_of_others_updates_in_between(steps):
    by_worker = diagrams.staleness(steps, seconds=7.5)
    assert [len(updates) for updates in by_worker] == [
        int(7.5 / step) for step in steps
    ]
    everyone = [
        (time, worker)
        for worker, updates in enumerate(by_worker)
        for time, _ in updates
    ]
    for worker, updates in enumerate(by_worker):
        before = (0.0, -1)
        for time, late in updates:
            between = [
                update for update in everyone if before < update < (time, worker)
            ]
            assert late == len(between)
            before = (time, worker)


def test_calls_of_different_names_wait_for_each_other():
    assert repr(diagrams.lanes(DEADLOCK)) == (
        "rank 0's all-reduce of its score waits. rank 0's broadcast of the learning "
        "rate is never called. rank 1's broadcast of the learning rate waits."
    )


def test_calls_of_the_same_name_meet_whatever_they_take():
    assert repr(diagrams.lanes(MIXED_UP)) == (
        "rank 0's all-reduce of its score meets rank 1's of its learning rate. "
        "rank 0's all-reduce of its learning rate waits. rank 1 has ended."
    )


def test_what_is_drawn_of_an_mpi_job_adds_up():
    assert "6 in all" in repr(platforms.mpi_job(3, 2))
    with pytest.raises(ValueError, match="2 or 3 pods"):
        platforms.mpi_job(8, 2)


def test_each_step_of_a_sagemaker_job_is_said():
    words = repr(platforms.sagemaker_job())
    assert all(" ".join(step.split()) in words for step in platforms.STEPS)


def test_lanes_are_for_two_workers():
    with pytest.raises(ValueError, match="2 workers, not 1"):
        diagrams.lanes({"rank 0": [SCORE]})


def test_the_words_count_what_is_drawn():
    words = repr(diagrams.synchronous_and_asynchronous([1.0, 1.2, 2.5], seconds=7.5))
    assert "3 updates from 9 gradients" in words
    assert "16 gradients" in words
    assert "stalest 5 updates late" in words
    words = repr(diagrams.synchronous_and_asynchronous([1.0, 1.2, 7.5], seconds=7.5))
    assert "1 updates from 3 gradients" in words
    assert "stalest 13 updates late" in words


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1 kB"),
        (699_112, "699 kB"),
        (1.4e6, "1.4 MB"),
        (12.8e9, "12.8 GB"),
        (5e14, "500 TB"),
    ],
)
def test_bytes_are_shown_to_three_digits(size, words):
    assert diagrams.human_bytes(size) == words


def test_the_average_of_two_slopes_can_lead_uphill_or_nowhere():
    words = repr(diagrams.average_of_two_slopes((2.0, -1.0)))
    assert "own gradient, worker 0 goes downhill and worker 1 goes downhill" in words
    assert "gradients, 0.5, worker 0 goes downhill and worker 1 goes uphill" in words
    words = repr(diagrams.average_of_two_slopes((-1.5, 1.5)))
    assert "gradients, 0, worker 0 goes nowhere and worker 1 goes nowhere" in words


def test_a_policy_keeps_what_it_is_said_to_keep():
    words = repr(strategies.shard_policies())
    assert "With DATA, worker 0 keeps images 0, 1, 4, 5." in words
    assert "With DATA, worker 1 keeps images 2, 3, 6, 7." in words
    assert "With OFF, worker 1 keeps images 0, 1, 2, 3, 4, 5, 6, 7." in words


def test_strategies_stand_side_by_side():
    pair = strategies.boxes("default", "one_device")
    alone = [strategies.boxes(name) for name in ("default", "one_device")]
    assert repr(pair) == " ".join(map(repr, alone))
    with pytest.raises(ValueError, match="'horovod': there are default, one_device"):
        strategies.boxes("horovod")
    with pytest.raises(ValueError, match="not 0"):
        strategies.boxes()


def test_every_strategy_that_is_tried_is_drawn():
    assert set(strategies.PANELS) == set(measured.NAMES)


def test_each_clock_counts_from_its_own_start():
    words = repr(wires.two_starts([0, 50], takes=1))
    assert "worker 0 51 ms, worker 1 1 ms" in words


def test_the_messages_that_are_drawn_are_as_many_as_the_laws_count():
    words = repr(wires.patterns())
    for name, law in LAWS.items():
        messages, _ = law(4)
        drawn = name.removeprefix("recursive ")
        assert f"By a {drawn}, {messages:g} messages follow each other" in words
