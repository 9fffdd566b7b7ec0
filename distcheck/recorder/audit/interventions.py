"""What changes on purpose what an audited program computes or sees. The list in
`distcheck.recorder.interventions` says where each function is called from.
"""

from collections.abc import Callable


def split_processor(tf, count: int) -> None:
    """Let the processor be so many devices, one for each replica of a strategy."""
    (processor,) = tf.config.list_physical_devices("CPU")
    parts = [tf.config.LogicalDeviceConfiguration()] * count
    tf.config.set_logical_device_configuration(processor, parts)


def in_place_of_gpus(original: Callable, tell: Callable[[int], None]) -> Callable:
    """Give a strategy that names several GPUs, where there are none, all parts of the
    processor. original: its `__init__`. tell: is called with how many it named."""

    def made(strategy, devices=None, *args, **kwargs):
        named = [d for d in devices or () if "GPU" in str(d).upper()]
        if len(named) > 1:
            tell(len(named))
            devices = None
        return original(strategy, devices, *args, **kwargs)

    return made


def without_xla(original: Callable) -> Callable:
    """Let functions be compiled without XLA, which can't compile what observes them.
    The numbers are the same. original: the `__init__` of what tf.function makes."""

    def made(function, *args, **kwargs):
        original(function, *args, **kwargs | {"jit_compile": None})

    return made
