"""The throughput by the size of a batch, measured as lesson 01 does."""

import pytest

from utils import batch_sizes


@pytest.mark.slow
def test_each_size_has_a_throughput():
    speeds = batch_sizes.images_per_second(1, [2, 8], steps=1)
    assert list(speeds) == [2, 8]
    assert all(speed > 0 for speed in speeds.values())
