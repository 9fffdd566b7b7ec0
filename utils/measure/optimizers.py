"""Optimizers in NumPy, for networks whose steps take less than a millisecond.

Each has `step(weights, gradients, rate)`, which changes the layers' arrays in place and
keeps for one training what it remembers of earlier gradients.
"""

from collections.abc import Sequence

import numpy as np

Arrays = Sequence[np.ndarray]


class Adam:
    """Kingma and Ba, 2015, arXiv:1412.6980, Algorithm 1."""

    BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-6

    def __init__(self) -> None:
        self.steps, self.means, self.squares = 0, [], []

    def step(self, weights: Arrays, gradients: Arrays, rate: float) -> None:
        if not self.steps:
            self.means = [np.zeros_like(gradient) for gradient in gradients]
            self.squares = [np.zeros_like(gradient) for gradient in gradients]
        self.steps += 1
        # The running means begin with zeros, from which the divisions free them.
        arrays = (weights, self.means, self.squares, gradients)
        for layer, m, v, g in zip(*arrays, strict=True):
            m += (1 - self.BETA_1) * (g - m)
            v += (1 - self.BETA_2) * (g * g - v)
            mean = m / (1 - self.BETA_1**self.steps)
            square = v / (1 - self.BETA_2**self.steps)
            layer -= rate * (mean / (np.sqrt(square) + self.EPSILON))


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
