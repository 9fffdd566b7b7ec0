"""Timelines, above all one that Horovod wrote: read, refused, summed up, drawn."""

import json

import pytest
from processes import empty_course

from distcheck import errors
from utils.figures import speed as scaling_plots
from utils.measure import timeline
from utils.running import launch

# Three tensors of known sizes, twenty times; no training. The inputs are variables, as
# TensorFlow would all-reduce constants once and keep the result.
PROGRAM = """\
import tensorflow as tf
import horovod.tensorflow as hvd

hvd.init()
tensors = [tf.Variable(tf.ones([n])) for n in (10, 1000, 100000)]

@tf.function
def step():
    return [hvd.allreduce(t, name=f"t{t.shape[0]}") for t in tensors]

for _ in range(20):
    step()
"""
SIZES = {"t10": 40, "t1000": 4_000, "t100000": 400_000}  # bytes


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Timelines of real runs: as Horovod does by itself, and one tensor at a time."""
    alone = {"HOROVOD_FUSION_THRESHOLD": "0", "HOROVOD_CACHE_CAPACITY": "0"}
    with empty_course(tmp_path_factory.mktemp("course")) as folder:
        (folder / "tiny.py").write_text(PROGRAM)
        return {
            name: launch.run(
                "tiny.py",
                workers=2,
                time_limit=300,
                timeline=True,
                environment=environment,
                quiet=True,
            ).timeline
            for name, environment in {"default": {}, "alone": alone}.items()
        }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["default", "alone"])
def test_a_file_of_horovods_tells_what_travelled(files, name):
    trace = timeline.read(files[name])
    assert trace.gradients == SIZES
    assert trace.bytes_per_step == sum(SIZES.values())
    # After the first. What happens in the last milliseconds may be lost, and steps are
    # as short as that here.
    assert 10 <= len(trace.steps) <= 19
    all_reduces = trace.spans[trace.spans["name"] == "ALLREDUCE"]
    assert (all_reduces["bytes"] == all_reduces["tensor"].map(SIZES)).all()
    assert (trace.spans["end"] >= trace.spans["start"]).all()
    assert {"negotiation", "processing", "transfer"} <= set(trace.spans["phase"])
    assert trace.collectives["bytes"].sum() == all_reduces["bytes"].sum()
    assert trace.collectives["tensors"].sum() == len(all_reduces)


@pytest.mark.slow
def test_without_fusion_every_tensor_travels_alone(files):
    trace = timeline.read(files["alone"])
    assert (trace.collectives["tensors"] == 1).all()
    assert (trace.steps["collectives"] == 3).all()
    assert "fusion" not in set(trace.spans["phase"])


@pytest.mark.slow
def test_with_fusion_some_travel_together(files):
    trace = timeline.read(files["default"])
    assert trace.collectives["tensors"].max() > 1
    fused = trace.collectives.index[trace.collectives["tensors"] > 1]
    of_them = trace.spans[trace.spans["collective"].isin(fused)]
    assert "fusion" in set(of_them["phase"])


@pytest.mark.slow
def test_the_phases_of_a_step_add_up_to_it(files):
    trace = timeline.read(files["alone"])
    phases = trace.steps[[*timeline.PHASES, timeline.IDLE]].sum(axis=1)
    assert phases.to_numpy() == pytest.approx(trace.steps["end"] - trace.steps["start"])
    assert 0 < trace.communication < 1
    assert list(trace.summary().index) == [*timeline.PHASES, timeline.IDLE]


@pytest.mark.slow
def test_who_came_last_is_known_where_the_cache_is_off(files):
    last = timeline.read(files["alone"]).last()
    assert 30 <= last["times"].sum() <= 57  # of three tensors in as many steps
    assert set(last.index) <= {"rank 0", "rank 1", "together"}


@pytest.mark.slow
def test_with_the_cache_nobody_knows_who_came_last(files):
    text = "HOROVOD_CACHE_CAPACITY"
    with pytest.raises(errors.UserError, match=text):
        timeline.read(files["default"]).last()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["default", "alone"])
def test_a_real_timeline_is_drawn(files, name):
    trace = timeline.read(files[name])
    above, below = scaling_plots.step(trace).axes
    assert "3 tensors in" in above.get_title()
    assert len(below.patches) >= 3 * 3
    both = scaling_plots.fusion({"one": trace, "two": trace})
    assert len(both.axes[1].patches) == 2 * 5


@pytest.mark.slow
def test_a_real_file_may_lack_its_bracket_but_no_half_event(files, tmp_path):
    text = files["alone"].read_text()
    open_end = tmp_path / "open.json"
    open_end.write_text(text.rstrip().removesuffix("]") + ",\n")
    assert timeline.read(open_end).gradients == SIZES
    cut = tmp_path / "cut.json"
    cut.write_text(text[: text.rindex("ts")])
    with pytest.raises(errors.UserError, match="no whole timeline"):
        timeline.read(cut)


# --- a timeline made by hand, with known times (microseconds) ---------------------

START = {
    "name": "process_name",
    "ph": "M",
    "pid": 0,
    "args": {"start_time_since_epoch_in_micros": 1},
}


def event(kind, time, pid=1, name=None, **args):
    facts = {"ph": kind, "ts": time, "pid": pid}
    if name:
        facts["name"] = name
    return facts | ({"args": args} if args else {})


def step_of(begin, late, pids=(1, 2), shape="[2, 5]"):
    """Two tensors in one message: rank 1 is `late`, a copy takes 1 ms each way, the
    exchange 3 ms."""
    events = []
    for pid in pids:
        events += [
            event("B", begin, pid, "NEGOTIATE_ALLREDUCE"),
            event("X", begin, pid, "0"),
            event("X", begin + late, pid, "1"),
            event("E", begin + late, pid),
        ]
    time = begin + late
    events += [event("B", time, pid, "ALLREDUCE") for pid in pids]
    for name, long in [
        ("MEMCPY_IN_FUSION_BUFFER", 1000),
        ("MPI_ALLREDUCE", 3000),
        ("MEMCPY_OUT_FUSION_BUFFER", 1000),
    ]:
        events += [event("B", time, pid, name) for pid in pids]
        time += long
        events += [event("E", time, pid) for pid in pids]
    events += [event("E", time, p, dtype="float32", shape=shape) for p in pids]
    return events


def named(pid, name):
    return {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": name}}


def by_hand(tmp_path, *events):
    path = tmp_path / "timeline.json"
    path.write_text(json.dumps([START, named(1, "a"), named(2, "b"), *events]))
    return path


@pytest.fixture
def trace(tmp_path):
    """Steps that end at 5, 25, 47, 200 and 220 ms; validation before the fourth."""
    events = [*step_of(0, 0), *step_of(18_000, 2_000), *step_of(38_000, 4_000)]
    events += [*step_of(195_000, 0), *step_of(215_000, 500)]
    return timeline.read(by_hand(tmp_path, *events))


def test_known_times_come_out(trace):
    assert trace.gradients == {"a": 40, "b": 40}
    assert list(trace.steps["regular"]) == [True, True, False, True]
    assert list(trace.steps["collectives"]) == [1, 1, 1, 1]
    assert trace.collectives_per_step == 1
    first = trace.steps.iloc[0]
    assert first["transfer"] == pytest.approx(0.003)
    assert first["fusion"] == pytest.approx(0.002)
    assert first["negotiation"] == pytest.approx(0.002)
    assert first[timeline.IDLE] == pytest.approx(0.020 - 0.007)
    # Regular: 20, 22 and 20.5 ms (of which 15 are spent otherwise).
    busy = 3 * 0.005 / (0.020 + 0.022 + 0.0205)
    assert trace.communication == pytest.approx(busy)
    assert trace.summary().loc["transfer", "ms per step"] == 3


def test_a_strip_leaves_no_gap(trace):
    strip = trace.strip(0.005, 0.025)
    assert list(strip["phase"]) == [
        timeline.IDLE,
        "negotiation",
        "fusion",
        "transfer",
        "fusion",
    ]
    assert strip["start"].iloc[0] == 0.005
    assert strip["end"].iloc[-1] == 0.025
    assert (strip["start"].to_numpy()[1:] == strip["end"].to_numpy()[:-1]).all()


def test_last_is_who_is_later_than_a_tie(trace):
    last = trace.last()
    assert last.loc["rank 1", "times"] == 4
    assert last.loc["rank 1", "seconds"] == pytest.approx(0.012)
    assert last.loc["together", "times"] == 4


def test_what_was_begun_and_not_ended_is_no_step(tmp_path):
    events = [*step_of(0, 0), *step_of(10_000, 0)]
    path = by_hand(tmp_path, *events, event("B", 30_000, 1, "NEGOTIATE_ALLREDUCE"))
    trace = timeline.read(path)
    assert len(trace.steps) == 1


def test_marks_of_cycles_and_other_operations_do_no_harm(tmp_path):
    mark = {"ph": "i", "name": "CYCLE_START", "ts": 5, "s": "g"}
    weights = [
        event("B", 1, 3, "NEGOTIATE_BROADCAST"),
        event("E", 2, 3),
        event("B", 3, 3, "BROADCAST"),
        event("B", 3, 3, "MPI_BCAST"),
        event("E", 4, 3),
        event("E", 4, 3, dtype="bfloat16", shape="[7]"),
    ]
    steps = [*step_of(10, 0), *step_of(20_000, 0)]
    trace = timeline.read(by_hand(tmp_path, named(3, "w"), mark, *weights, *steps))
    assert trace.gradients == {"a": 40, "b": 40}
    broadcast = trace.collectives[trace.collectives["operation"] == "BROADCAST"]
    assert list(broadcast["bytes"]) == [14]


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (None, "no timeline .*timeline=True"),
        ("", "is empty"),
        ("epoch,loss\n1,2\n", "no whole timeline"),
        ("[]", "no whole timeline"),
        (json.dumps([START | {"args": {"name": "CPU"}}]), "another program's"),
        (f"[{json.dumps(START)}, {{'ph': 'E'", "no whole timeline"),
        (json.dumps([START, event("E", 1, 0)]), "no whole timeline"),
    ],
)
def test_what_is_no_timeline_is_refused(tmp_path, content, what):
    path = tmp_path / "timeline.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(errors.UserError, match=what):
        timeline.read(path)


def alone(pid, begin):
    """A tensor that travels by itself, in 1 ms."""
    return [
        event("B", begin, pid, "NEGOTIATE_ALLREDUCE"),
        event("E", begin, pid),
        event("B", begin, pid, "ALLREDUCE"),
        event("E", begin + 1000, pid, dtype="float32", shape="[]"),
    ]


@pytest.mark.parametrize("metrics", [1, 2, 3, 4, 7])
def test_averaged_metrics_are_no_gradients(tmp_path, metrics):
    """After three steps so many scalars, all of one name, as from Keras' callback."""
    events = [*step_of(0, 0), *step_of(20_000, 0), *step_of(40_000, 0)]
    for number in range(metrics):
        events += alone(3, 60_000 + 2_000 * number)
    trace = timeline.read(by_hand(tmp_path, named(3, "metric"), *events))
    assert trace.gradients == {"a": 40, "b": 40}
    assert len(trace.steps) == 2


def test_a_gradient_that_was_lost_in_the_last_step_is_one_still(tmp_path):
    third = [entry for entry in step_of(40_000, 0) if entry["pid"] != 2]
    late = [named(3, "c"), *alone(3, 5_000), *alone(3, 25_000)]
    events = [*step_of(0, 0), *step_of(20_000, 0), *third]
    trace = timeline.read(by_hand(tmp_path, *late, *events))
    assert set(trace.gradients) == {"a", "b", "c"}
    assert len(trace.steps) == 1


def test_a_timeline_without_two_steps_says_so(tmp_path):
    trace = timeline.read(by_hand(tmp_path, *step_of(0, 0)))
    with pytest.raises(errors.UserError, match="no two steps"):
        _ = trace.steps


def test_metrics_of_a_single_step_are_no_gradients(tmp_path):
    """As of eight workers that share eight batches: none of its tensors comes twice."""
    events = step_of(0, 0)
    for number in range(4):
        events += alone(3, 20_000 + 2_000 * number)
    trace = timeline.read(by_hand(tmp_path, named(3, "metric"), *events))
    with pytest.raises(errors.UserError, match="no two steps"):
        _ = trace.gradients
