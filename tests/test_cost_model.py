"""The cost model: what it counts, that a fit finds what was put in, what it refuses."""

from dataclasses import replace

import matplotlib.figure
import numpy as np
import pytest

from distcheck.errors import UserError
from utils import figures
from utils.measure import cost_model
from utils.measure.cost_model import CostModel, Network, Point, fit, wide_resnet
from utils.training import networks

TRUE = CostModel(0.01, 2e-10, 5e-12, 3e-4, 4e-9)


def steps_of(model, noise=0.0):
    """Points as a machine that is just like the model would give them."""
    random = np.random.default_rng(3)
    points = []
    for workers in (1, 2, 4):
        for width, batch in [(1, 16), (1, 64), (1, 256), (2, 64), (4, 64)]:
            network = wide_resnet(width)
            for talks in (False, True):
                seconds = model.compute(batch, network)
                if talks:
                    seconds = model.seconds(workers, batch, network)
                seconds *= 1 + noise * random.uniform(-1, 1)
                points.append(Point(workers, batch, network, seconds, talks))
    return points


@pytest.mark.parametrize("law", cost_model.LAWS)
def test_a_fit_finds_the_numbers_that_the_steps_were_made_with(law):
    true = CostModel(*TRUE._terms, law)
    fitted = fit(steps_of(true), law, draws=5)
    assert fitted.model._terms == pytest.approx(true._terms, rel=1e-6)
    assert fitted.model.law == law
    assert fitted.spread < 1e-6


def test_noise_widens_what_is_predicted_and_the_truth_lies_within():
    network = wide_resnet(1)
    narrow, wide = (fit(steps_of(TRUE, noise)) for noise in (0.02, 0.2))
    for fitted in (narrow, wide):
        low, middle, high = fitted.efficiency(64, 64, network)
        assert low < middle < high
        assert low < TRUE.efficiency(64, 64, network) < high
    narrow, wide = (one.efficiency(8, 64, network) for one in (narrow, wide))
    assert np.ptp(narrow) < np.ptp(wide)


def test_no_number_comes_out_negative():
    """Here, who talks is faster: no message and no byte may cost less than nothing."""
    steps = steps_of(CostModel(0.01, 2e-10, 5e-12, 0, 0))
    points = [replace(p, seconds=p.seconds * (0.8 if p.talks else 1)) for p in steps]
    fitted = fit(points, draws=5)
    assert min(fitted.model._terms) >= 0
    assert fitted.model.communicate(2, wide_resnet(1)) < 1e-5


@pytest.mark.parametrize(
    "points",
    [
        [],
        [p for p in steps_of(TRUE) if p.batch == 64 and p.network == wide_resnet(1)],
        [p for p in steps_of(TRUE) if p.workers == 1],
        [p for p in steps_of(TRUE) if p.network == wide_resnet(1)],
    ],
    ids=["none", "one size", "nobody talks", "one width"],
)
def test_points_that_leave_something_open_are_refused(points):
    with pytest.raises(UserError, match="two batch sizes, two widths"):
        fit(points)


def test_a_step_that_took_no_time_is_refused():
    with pytest.raises(UserError, match="0 s can't be"):
        fit([Point(1, 64, wide_resnet(1), 0)])


@pytest.mark.slow
@pytest.mark.parametrize("width", [1, 2])
def test_a_network_is_counted_as_tensorflow_has_it(width):
    model = networks.wide_resnet(width)
    counted = wide_resnet(width)
    trained = sum(int(np.prod(weight.shape)) for weight in model.trainable_weights)
    kinds = ("Conv2D", "BatchNormalization", "ReLU")
    layers = [layer for layer in model.layers if type(layer).__name__ in kinds]
    assert counted.parameters == trained
    assert counted.bytes == 4 * trained
    assert counted.elements == sum(np.prod(layer.output_shape[1:]) for layer in layers)
    convolutions = [layer for layer in layers if type(layer).__name__ == "Conv2D"]
    macs = sum(
        np.prod(layer.kernel.shape) * np.prod(layer.output_shape[1:3])
        for layer in convolutions
    )
    assert counted.macs == macs


def test_a_ring_sends_nearly_twice_the_bytes_and_messages_by_law():
    network = Network("n", parameters=1000)
    per_byte = CostModel(1, 0, 0, 0, 1)
    assert per_byte.communicate(1, network) == 0
    assert per_byte.communicate(2, network) == 4000
    assert per_byte.communicate(8, network) == 2 * 7 / 8 * 4000
    ring = CostModel(1, 0, 0, 1, 0, "ring")
    halving = CostModel(1, 0, 0, 1, 0, "halving and doubling")
    assert ring.communicate(2, network) == halving.communicate(2, network) == 2
    assert ring.communicate(64, network) == 126
    assert halving.communicate(64, network) == 12


def test_hiding_helps_as_far_as_the_backward_pass_lasts():
    network = Network("n", parameters=1)
    model = CostModel(3, 0, 0, 0, byte=1 / 4)  # computes 3 s, sends 1 s on two workers
    assert model.seconds(2, 1, network) == 4
    assert model.seconds(2, 1, network, hidden=True) == 3
    slow = CostModel(3, 0, 0, 0, byte=1)  # sends 4 s, of which 2 can be hidden
    assert slow.seconds(2, 1, network, hidden=True) == 5
    assert slow.efficiency(2, 1, network, hidden=True) == 3 / 5


def test_another_network_replaces_messages_and_bytes_alone():
    model = TRUE.connected(gigabits=1, microseconds=50)
    assert model.byte == pytest.approx(8e-9)
    assert model.message == pytest.approx(5e-5)
    assert model.compute(64, wide_resnet(1)) == TRUE.compute(64, wide_resnet(1))


def test_amdahls_share_is_found_and_bounds_the_speed_up():
    counts = [1, 2, 4, 8]
    speed_ups = [float(cost_model.amdahl(n, 0.07)) for n in counts]
    assert cost_model.fit_amdahl(counts, speed_ups) == pytest.approx(0.07)
    assert cost_model.fit_amdahl([1, 2], [1, 2.3]) == 0
    assert cost_model.amdahl(10**9, 0.1) == pytest.approx(10)
    assert cost_model.gustafson(100, 0.1) == pytest.approx(90.1)
    with pytest.raises(UserError, match="two workers or more"):
        cost_model.fit_amdahl([1], [1])


def test_what_was_reported_lies_within_what_the_model_explains():
    for row in cost_model.HOROVOD_2018:
        low, high = row.explained()
        assert low < row.efficiency < high, row.network.name
    parameters = [row.network.parameters for row in cost_model.HOROVOD_2018]
    reported = [row.efficiency for row in cost_model.HOROVOD_2018]
    assert reported[int(np.argmax(parameters))] == min(reported)


@pytest.mark.slow
@pytest.mark.parametrize("row", cost_model.HOROVOD_2018, ids=lambda r: r.network.name)
def test_the_literatures_networks_have_so_many_parameters(row):
    import tensorflow as tf

    built = {
        "Inception V3": tf.keras.applications.InceptionV3,
        "ResNet-101": tf.keras.applications.ResNet101,
        "VGG-16": tf.keras.applications.VGG16,
    }[row.network.name](weights=None)
    trained = sum(int(np.prod(w.shape)) for w in built.trainable_weights)
    assert row.network.parameters == trained


def test_predictions_are_drawn_with_a_band_for_each_law():
    fits = [fit(steps_of(TRUE, 0.05), law, draws=20) for law in cost_model.LAWS]
    for fitted in fits:
        low, middle, high = fitted.efficiency(1000, 64, wide_resnet(1))
        assert low <= middle <= high
    figure = figures.speed.predicted(fits, [wide_resnet(1), wide_resnet(10)], 64)
    assert isinstance(figure, matplotlib.figure.Figure)
    left, right = figure.axes
    assert (left.get_title(), right.get_title()) == ("WRN-16-1", "WRN-16-10")
    assert len(left.collections) == len(cost_model.LAWS)
    words = [text.get_text() for text in left.get_legend().get_texts()]
    assert words == [f"if {law}" for law in cost_model.LAWS]


def test_the_literature_and_amdahl_are_drawn():
    axis = figures.speed.reported(cost_model.HOROVOD_2018).axes[0]
    texts = {text.get_text() for text in axis.texts}
    assert texts == {"90%", "68%"}
    axis = figures.speed.amdahl(0.05, {1: 100.0, 2: 190.0}).axes[0]
    measured = axis.lines[-1].get_ydata()
    assert list(measured) == [1, 1.9]


def test_a_fit_that_does_not_fit_says_so_in_words_and_in_its_figure():
    good = fit(steps_of(TRUE, 0.05), draws=5)
    assert good.trusted
    assert "don't" not in good.verdict
    random = np.random.default_rng(0)
    points = [
        replace(p, seconds=p.seconds * random.choice([0.4, 1, 3]))
        for p in steps_of(TRUE)
    ]
    bad = fit(points, draws=5)
    assert not bad.trusted
    assert "don't believe" in bad.verdict
    for one, warnings in ((good, 0), (bad, 1)):
        axis = figures.speed.predicted([one], [wide_resnet(1)], 64).axes[0]
        assert len(axis.texts) == warnings


def test_one_speed_up_checks_nothing_and_an_impossible_share_is_called_so():
    assert cost_model.serial_share(4, 1.6) == pytest.approx(0.5)

    def title(speed):
        axis = figures.speed.amdahl(0.1, speed).axes[0]
        return axis.get_legend().get_title().get_text()

    assert "nothing checks it" in title({1: 100.0, 2: 190.0})
    assert "is no share" not in title({1: 100.0, 2: 190.0})
    assert "is no share" in title({1: 100.0, 2: 230.0})
    assert "nothing checks" not in title({1: 100.0, 2: 190.0, 4: 350.0})


def test_the_table_of_steps_is_what_the_five_numbers_are_multiplied_by():
    table = cost_model.table(steps_of(TRUE))
    assert list(table.columns) == [*cost_model.TERMS, "seconds"]
    talking = steps_of(TRUE)
    seconds = table[[*cost_model.TERMS]].to_numpy() @ np.array(TRUE._terms)
    assert seconds == pytest.approx([point.seconds for point in talking])
