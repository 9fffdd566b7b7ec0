"""Optimizers in NumPy, for networks whose steps take less than a millisecond.

Each has `step(weights, gradients, rate)`, which changes the layers' arrays in place and
keeps for one training what it remembers of earlier gradients.
"""

from collections.abc import Callable, Sequence

import numpy as np

Arrays = Sequence[np.ndarray]


class Adam:
    """Kingma and Ba, 2015, arXiv:1412.6980, Algorithm 1."""

    BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-6

    def __init__(self) -> None:
        self.steps, self.means, self.squares = 0, [], []

    def directions(self, gradients: Arrays) -> list[np.ndarray]:
        """m / (sqrt(v) + epsilon) of each layer: m and v are running means of the
        gradient and of its square, freed from the zeros that they begin with."""
        if not self.steps:
            self.means = [np.zeros_like(gradient) for gradient in gradients]
            self.squares = [np.zeros_like(gradient) for gradient in gradients]
        self.steps += 1
        found = []
        for m, v, g in zip(self.means, self.squares, gradients, strict=True):
            m += (1 - self.BETA_1) * (g - m)
            v += (1 - self.BETA_2) * (g * g - v)
            mean = m / (1 - self.BETA_1**self.steps)
            square = v / (1 - self.BETA_2**self.steps)
            found.append(mean / (np.sqrt(square) + self.EPSILON))
        return found

    def step(self, weights: Arrays, gradients: Arrays, rate: float) -> None:
        for layer, r in zip(weights, self.directions(gradients), strict=True):
            layer -= rate * r


def trust_ratio(layer: np.ndarray, r: np.ndarray) -> float:
    """|layer| / |r|, so that the step r gets the length of the weights; 1 where either
    is 0, as biases are at first."""
    lengths = np.linalg.norm(layer), np.linalg.norm(r)
    return lengths[0] / lengths[1] if all(lengths) else 1.0


class Lamb(Adam):
    """You and others, 2020, arXiv:1904.00962, Algorithm 2; lengths as they are.

    decay: of the weights. ratio: of a layer and its direction r, Adam's step at rate 1.
    """

    def __init__(
        self,
        ratio: Callable[[np.ndarray, np.ndarray], float] = trust_ratio,
        decay: float = 0.0,
    ):
        super().__init__()
        self.ratio, self.decay = ratio, decay

    def step(self, weights: Arrays, gradients: Arrays, rate: float) -> None:
        for layer, r in zip(weights, self.directions(gradients), strict=True):
            r += self.decay * layer
            layer -= rate * self.ratio(layer, r) * r


class Momentum:
    """SGD with momentum, as Keras has it: v = MOMENTUM v - rate g; weights += v."""

    MOMENTUM = 0.9

    def __init__(self) -> None:
        self.velocities: list[np.ndarray] = []

    def step(self, weights: Arrays, gradients: Arrays, rate: float) -> None:
        if not self.velocities:
            self.velocities = [np.zeros_like(layer) for layer in weights]
        for layer, v, g in zip(weights, self.velocities, gradients, strict=True):
            v *= self.MOMENTUM
            v -= rate * g
            layer += v
