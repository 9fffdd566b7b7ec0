"""The course's WideResNet stands twice: explained in a program, and for the others."""

from types import SimpleNamespace

import pytest

from utils.base import course
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
