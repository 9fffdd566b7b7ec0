"""The course's WideResNet stands twice: explained in a program, and for the others."""

from types import SimpleNamespace

import numpy as np
import pytest

from utils.base import course, profiles
from utils.measure import cost_model
from utils.training import networks

pytestmark = pytest.mark.slow

SOURCE = course.PACKAGE_ROOT / "solutions" / "fashion_mnist_solution.py"


@pytest.mark.parametrize("width", [1, 3])
def test_the_network_is_that_of_the_program(width):
    import tensorflow as tf

    begin, end = "layers, l2 = ", "optimizer = "
    text = begin + SOURCE.read_text().partition(begin)[2].partition(end)[0]
    args = SimpleNamespace(wd=5e-6, width=width)
    names = {"tf": tf, "args": args, "verbose": 0}
    exec(compile(text, SOURCE.name, "exec"), names)
    program_network = names["model"]
    course_network = networks.wide_resnet(width)
    assert described(course_network) == described(program_network)
    assert course_network.count_params() == program_network.count_params()


def described(model):
    """Class and settings of each layer, and how many layers it is fed by."""
    return [
        (
            type(layer).__name__,
            {k: v for k, v in layer.get_config().items() if k != "name"},
            len(layer.inbound_nodes[0].parent_nodes),
        )
        for layer in model.layers
    ]


def test_the_network_that_gpus_train_makes_a_step():
    """Of two images, in seconds; what it takes 512 of is a GPU."""
    import tensorflow as tf

    model = networks.wide_resnet(profiles.PROFILES["gpu"].width)
    trained = sum(int(tf.size(weight)) for weight in model.trainable_weights)
    assert trained == cost_model.wide_resnet(10).parameters == 17_116_346
    optimizer = tf.keras.optimizers.SGD(0.02, momentum=0.9)
    model.compile(optimizer, "sparse_categorical_crossentropy")
    before = [weight.numpy() for weight in model.trainable_weights]
    loss = model.train_on_batch(tf.random.normal([2, 28, 28, 1]), tf.constant([3, 7]))
    assert np.isfinite(loss)
    for weight, old in zip(model.trainable_weights, before, strict=True):
        assert np.isfinite(weight.numpy()).all(), weight.name
        assert (weight.numpy() != old).any(), weight.name


def test_the_small_network_has_the_layers_that_the_text_names():
    model = networks.small_cnn()
    assert model.output_shape == (None, 10)
    sizes = [getattr(x, "filters", getattr(x, "units", None)) for x in model.layers]
    assert [size for size in sizes if size] == [32, 64, 256, 10]


def test_another_network_can_stand_in_for_the_large_one():
    networks.use_instead(networks.tiny)
    try:
        assert networks.wide_resnet(2).count_params() < 10_000
    finally:
        networks.use_instead(None)
    assert networks.wide_resnet(1).count_params() > 100_000
