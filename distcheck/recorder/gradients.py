"""The gradients that a program takes, and what its optimizers apply of them."""

from collections.abc import Callable

import numpy as np

from distcheck.recorder.interventions import UPDATES


class Gradients:
    """Keeps the gradients of the first updates, so that the arrays of one number belong
    to the same update.

    Of several gradients of the same variables that are taken before an update, such as
    those of small batches that are added up, the first is kept as "local", the last as
    "last", their mean as "mean" and their sum as "total".

    keep: a recorder's.
    """

    def __init__(self, keep: Callable[[str, list], None]):
        self._keep = keep
        self.updates = 0  # that have begun
        self._taken = 0  # since the last update began
        self._sum = self._last = np.zeros(0)
        self._places: dict[int, int] = {}  # of the variables that have a gradient
        self._applied: dict[int, np.ndarray] = {}  # in the update, by their places

    def take(self, variables: list, gradients: list, scale: float = 1.0) -> bool:
        """A gradient is taken, of a loss that was multiplied by a scale. Returns
        whether it is kept as the first one before the next update.

        What is taken of one variable alone is not that of a training. Where a scaled
        one has become infinite, its update is left out.
        """
        if self.updates >= UPDATES or len(variables) < 2:
            return False
        pairs = [p for p in zip(variables, gradients, strict=True) if p[1] is not None]
        places = {_key(variable): place for place, (variable, _) in enumerate(pairs)}
        if not pairs or (self._taken and places != self._places):
            return False
        flat = np.concatenate([_flat(gradient) for _, gradient in pairs]) / scale
        if scale != 1 and not np.isfinite(flat).all():
            return False
        self._taken += 1
        self._last = flat
        if self._taken > 1:
            self._sum = self._sum + flat
            return False
        self._sum, self._places, self._applied = flat, places, {}
        self._keep(f"local.{self.updates}", [flat])
        return True

    def apply(self, pairs: list) -> bool:
        """An optimizer is to apply gradients, in pairs with their variables. Returns
        whether an update begins with that. If another optimizer has applied some of the
        same gradient before, and these are others of it, it goes on.
        """
        pairs = [pair for pair in pairs if pair[0] is not None]
        # Variables that had no gradient come last.
        places = [
            self._places.get(_key(variable), len(self._places) + number)
            for number, (_, variable) in enumerate(pairs)
        ]
        of_the_same = all(place < len(self._places) for place in places)
        others = self._applied.keys().isdisjoint(places)
        begins = not (self._applied and of_the_same and others)
        if begins:
            self._begin_update()
        if self.updates <= UPDATES:
            gradients = [_flat(gradient) for gradient, _ in pairs]
            self._applied.update(zip(places, gradients, strict=True))
            in_order = [self._applied[place] for place in sorted(self._applied)]
            self._keep(f"applied.{self.updates - 1}", in_order)
        return begins

    def _begin_update(self) -> None:
        if self._taken > 1:
            self._keep(f"last.{self.updates}", [self._last])
            self._keep(f"mean.{self.updates}", [self._sum / self._taken])
            self._keep(f"total.{self.updates}", [self._sum])
        self._taken, self._applied = 0, {}
        self.updates += 1


def _key(variable) -> int:
    """What tells a variable from others, also if it is wrapped."""
    return id(getattr(variable, "handle", variable))


def _flat(gradient) -> np.ndarray:
    if hasattr(gradient, "dense_shape"):  # of the rows that a batch has looked up
        import tensorflow as tf

        gradient = tf.convert_to_tensor(gradient)
    return np.asarray(gradient, np.float32).ravel()
