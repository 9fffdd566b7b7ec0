"""What recorders look up of tensors and variables of TensorFlow."""

from typing import Any

import numpy as np

SMALL = 8  # numbers in a tensor that can't be a gradient
SHOWN = 128  # numbers in a tensor whose values are reported: a table of 10 classes


def is_batch(inputs) -> bool:
    """Real images, not the placeholder from which a network is put together."""
    first = inputs[0] if isinstance(inputs, list | tuple) and inputs else inputs
    return hasattr(first, "shape") and (
        hasattr(first, "numpy") or type(first).__name__ == "ndarray"
    )


def elements_of(tensor) -> int:
    """How many numbers are in a tensor of TensorFlow's; 0 if that isn't known."""
    shape: Any = getattr(tensor, "shape", None)
    try:
        return int(shape.num_elements() or 0)
    except (AttributeError, TypeError, ValueError):
        return 0


def small_values(tensors) -> list[float] | None:
    """The numbers in small tensors of floats or signed integers, None for anything
    else."""
    numbers: list[float] = []
    for tensor in tensors:
        dtype: Any = getattr(tensor, "dtype", None)
        if not hasattr(tensor, "numpy") or not hasattr(dtype, "is_floating"):
            return None
        if not (dtype.is_floating or dtype.is_integer) or dtype.is_unsigned:
            return None
        numbers += np.ravel(tensor.numpy()).astype(float).tolist()
    return numbers if 0 < len(numbers) <= SHOWN else None


def variables_of(optimizer) -> list:
    """The variables of an optimizer: a legacy one has a method for them."""
    legacy = callable(optimizer.variables)
    return optimizer.variables() if legacy else optimizer.variables


def copies(variable) -> list:
    """Those of a variable that replicas have; of any other one, this alone."""
    return list(getattr(variable, "values", [variable]))


def max_copy_difference(variables) -> float:
    """The largest difference between copies of a variable; 0 without copies."""
    return max(
        (
            float(np.abs(copy.numpy() - copies(variable)[0].numpy()).max())
            for variable in variables
            for copy in copies(variable)[1:]
            if copy.shape.num_elements()
        ),
        default=0.0,
    )
