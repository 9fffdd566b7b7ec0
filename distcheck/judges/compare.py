"""Compare numbers: how far apart they are, what counts as equal, and which of several
known ways to compute a number has given it.
"""

from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

import numpy as np

# Relative tolerances.
RTOL_FP32 = 1e-6  # rounding in 32 bits; losses of two ranks can be as near as 1e-5
RTOL_FP16 = 1e-3  # weights that were sent in 16 bits; those of two ranks differ by more
RTOL_GRADIENTS = 0.01  # gradients may be compressed to 16 bits, and then averaged

Value = TypeVar("Value")
Way = TypeVar("Way", bound=Hashable)


def distance(a: np.ndarray, b: np.ndarray) -> float:
    """|a - b| / |a|."""
    return float(np.linalg.norm(a - b) / (np.linalg.norm(a) or 1.0))


def near(a, b) -> bool:
    """Are two numbers, or all of two arrays, equal up to rounding in 32 bits?"""
    return bool(np.allclose(a, b, rtol=RTOL_FP32, atol=1e-7))


def classify(
    value: Value,
    expected: Mapping[Way, Value],
    same: Callable[[Value, Value], bool] = near,
) -> Way | None:
    """The first of the known ways that gives this value; None if none does.

    expected: what each of them gives. same: is a value the one that is expected?
    """
    return next((way for way, one in expected.items() if same(value, one)), None)
