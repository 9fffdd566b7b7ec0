"""Input from files: shards hold what was written, and a profile is read as it is."""

import itertools
import time

import numpy as np
import pytest

from distcheck.errors import UserError
from utils.figures import feeding
from utils.measure import step_profile
from utils.running import beside
from utils.training import data, shards

WITHOUT_XPROF = beside.problem("xprof")
IMAGES = np.arange(7 * 784, dtype=np.uint32).astype(np.uint8).reshape(7, 28, 28)
LABELS = np.arange(7)


def test_shards_hold_the_images_in_order(tmp_path):
    import tensorflow as tf

    paths = shards.write(tmp_path / "new", IMAGES, LABELS, [4, 1, 2])
    assert [p.name for p in paths] == sorted(p.name for p in paths)
    assert sorted(tmp_path.glob("new/*")) == paths
    features = {
        "image": tf.io.FixedLenFeature([], tf.string),
        "label": tf.io.FixedLenFeature([], tf.int64),
    }
    found = [
        tf.io.parse_single_example(record, features)
        for record in tf.data.TFRecordDataset([str(path) for path in paths])
    ]
    assert [int(example["label"]) for example in found] == [*LABELS]
    pixels = b"".join(example["image"].numpy() for example in found)
    assert pixels == IMAGES.tobytes()


@pytest.mark.parametrize("sizes", [[], [7, 0], [3, 3], [8, -1]])
def test_sizes_that_do_not_fit_are_refused(tmp_path, sizes):
    with pytest.raises(UserError, match="can't hold 7"):
        shards.write(tmp_path / "new", IMAGES, LABELS, sizes)
    assert not (tmp_path / "new").exists()


def test_even_shards_differ_by_one_at_most():
    assert shards.even(7, 3) == [3, 2, 2]
    with pytest.raises(UserError, match="from 1 to 7"):
        shards.even(7, 8)


def test_shards_that_are_there_are_kept_and_other_folders_refused(tmp_path):
    arrays = {"x_train": IMAGES, "y_train": LABELS, "x_test": IMAGES, "y_test": LABELS}
    dataset = data.dataset_of("seven", arrays)
    shards.write_missing(tmp_path / "new", dataset, 2)
    (first, _) = sorted((tmp_path / "new").iterdir())
    first.write_bytes(b"mine")
    shards.write_missing(tmp_path / "new", dataset, 3)
    assert first.read_bytes() == b"mine"
    assert len([*first.parent.iterdir()]) == 2
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("mine")
    with pytest.raises(UserError, match="something else"):
        shards.write_missing(tmp_path / "other", dataset, 2)


# Milliseconds: thread, name, start, length.
SEEN = [
    ("python", "step", 10, 6),
    ("python", "IteratorGetNextOp::DoCompute", 10, 2),
    ("python", "EagerLocalExecute: __inference_train_3", 12, 4),
    ("python", "EagerLocalExecute: IteratorGetNext", 10, 2),
    ("tf_data", "Iterator::Root::Prefetch::Map", 9, 2),
    ("tf_data", "Iterator::Root::Prefetch::Map::BatchV2", 9, 1),
    ("python", "step", 16, 4),
    ("python", "EagerLocalExecute: __inference_train_3", 16, 4),
    ("tf_data", "Iterator::Root::Prefetch::Map", 13, 2),
    ("tf_data", "Iterator::Root::Prefetch::Map", 14, 2),
]


def write_profile(folder, seen):
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace()
    plane = space.planes.add(name="/host:CPU")
    lines = {}
    for number, (thread, name, start, length) in enumerate(seen):
        if thread not in lines:
            lines[thread] = plane.lines.add(name=thread, timestamp_ns=5_000_000)
        plane.event_metadata[number].name = name
        lines[thread].events.add(
            metadata_id=number,
            offset_ps=(start - 5) * 1_000_000_000,
            duration_ps=length * 1_000_000_000,
        )
    space.planes.add(name="Task Environment")
    folder.mkdir()
    (folder / "host.xplane.pb").write_bytes(space.SerializeToString())
    return folder


def test_a_profile_is_sorted_into_lanes(tmp_path):
    table = step_profile.read(write_profile(tmp_path / "one", SEEN))
    counts = table["lane"].value_counts().to_dict()
    assert counts == {
        step_profile.STEP: 2,
        step_profile.COMPUTES: 2,
        step_profile.WAITS: 1,
        step_profile.MAKES: 3,
    }
    assert table["start"].min() == pytest.approx(-0.001)
    shares = [step_profile.busy(table, lane) for lane in step_profile.LANES]
    # Of 10 ms: 8; 2; and 1 of the first, with 13 to 16 of the others.
    assert shares == pytest.approx([0.8, 0.2, 0.4])
    # Both: 12 to 20, and 10 to 11.
    either = step_profile.busy(table, step_profile.COMPUTES, step_profile.MAKES)
    assert either == pytest.approx(0.9)
    figure = feeding.profiles({"one": table, "two": table})
    assert len(figure.axes) == 2
    edges = [line.get_xdata()[0] for line in figure.axes[0].lines]
    assert edges == pytest.approx([0, 6, 10])  # both steps, and their end


@pytest.mark.skipif(bool(WITHOUT_XPROF), reason=str(WITHOUT_XPROF))
@pytest.mark.parametrize("waits", [True, False])
def test_tensorboard_tells_who_waits(tmp_path, capfd, waits):
    import tensorflow as tf

    def slow():
        while True:
            time.sleep(0.1)
            yield 1.0

    batches = tf.data.Dataset.from_generator(slow, tf.float32)
    each = iter(batches) if waits else itertools.repeat(tf.constant(1.0))
    train = tf.function(lambda x: x * tf.reduce_sum(tf.random.normal((100, 100))))
    train(next(each))
    with tf.profiler.experimental.Profile(str(tmp_path)):
        for number in range(3):
            with tf.profiler.experimental.Trace("step", step_num=number, _r=1):
                train(next(each))
    (path,) = tmp_path.rglob("*.xplane.pb")
    beside.run("xprof", "python", "-m", "utils.measure.programs.input_bound", path)
    verdict = capfd.readouterr().out
    assert "of the total step time sampled" in verdict
    assert ("HIGHLY input-bound" in verdict) == waits


@pytest.mark.parametrize(
    ("seen", "said"), [(SEEN[1:6], "no event `step`"), (None, "0")]
)
def test_what_is_no_profile_of_steps_is_refused(tmp_path, seen, said):
    folder = write_profile(tmp_path / "one", seen) if seen else tmp_path
    with pytest.raises(UserError, match=said):
        step_profile.read(folder)


def test_the_figure_of_parts_counts_what_none_and_what_several_have():
    figure = feeding.parts({"so": {"worker 0": [0, 1, 2], "worker 1": [2, 4]}}, 6)
    assert figure.axes[0].get_title() == "so: 2 in no row, 1 in several"
    (legend,) = figure.legends
    words = [text.get_text() for text in legend.get_texts()]
    assert words == ["in one row", "in several rows", "in no row"]


def test_the_figure_of_steps_has_a_line_at_computing():
    figure = feeding.step_times({"repeated": 5.0, "files": 9.0}, "repeated")
    lines = [line.get_xdata()[0] for line in figure.axes[0].lines]
    assert lines == [5.0]
