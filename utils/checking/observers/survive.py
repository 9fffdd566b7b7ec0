"""Report what the workers of exercises/survive.py do: where in which epoch they are at
each update, with which weights and which state of the optimizer, and what they keep.

As in scaled.py, tiny networks are trained to the end, each worker in a
folder of its own. In one world all workers are told in the middle of an update that a
worker has died, as Horovod tells them. None really has, so nothing is done to start
Horovod again.
"""

import hashlib

from utils.checking.observers.scaled import ScaledObserver


class SurviveObserver(ScaledObserver):
    """failing: the update, counted from 0, in which a worker seems to die; or None."""

    def __init__(self, *args, failing: int | None = None, **kwargs):
        super().__init__(*args, **kwargs)
        self.failing, self._count, self._begun = failing, 0, False

    def _hook_training(self, tf) -> None:
        import horovod.tensorflow.elastic as elastic

        from utils.training import data

        super()._hook_training(tf)
        self.replace(data, "rest_of_epoch", self._rest)
        if self.failing is not None:
            elastic._reset = self._nothing_to_reset

    def _nothing_to_reset(self) -> None:
        self.event("reset")

    def _rest(self, original):
        def observed(dataset, batch_size, seed, epoch, done=0, rank=0, size=1):
            places = {"epoch": int(epoch), "done": int(done), "size": int(size)}
            self.event("rest", seed=seed, rank=int(rank), **places)
            return original(dataset, batch_size, seed, epoch, done, rank, size)

        return observed

    def _forward(self, original):
        forward = super()._forward(original)

        def observed(model, *args, **kwargs):
            training = bool(kwargs.get("training", len(args) > 1 and args[1]))
            if training and "fit" in self._inside and not self._begun:
                self._begun = True
                self._optimizer = model.optimizer
                statistics = [v.numpy() for v in model.non_trainable_weights]
                facts = {"statistics": _digest(statistics), **self._digests()}
                self.event("begins", epoch=self._epoch, **facts)
            return forward(model, *args, **kwargs)

        return observed

    def _update(self, original):
        update = super()._update(original)

        def observed(optimizer, *args, **kwargs):
            if "update" in self._inside:
                return original(optimizer, *args, **kwargs)
            self._optimizer = optimizer
            self.event("before", epoch=self._epoch, **self._digests())
            self._count += 1
            if self._count - 1 == self.failing:
                from horovod.common.exceptions import HorovodInternalError

                self.event("lost")
                raise HorovodInternalError("a worker has died")
            result = update(optimizer, *args, **kwargs)
            self.event("after", **self._digests())  # the statistics are averaged later
            return result

        return observed

    def _digests(self) -> dict[str, str]:
        """What tells whether weights, or states of the optimizer, are the same."""
        return {"weights": _digest(self._weights()), "state": _digest(self._state())}


def _digest(arrays) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for array in arrays:
        digest.update(array.tobytes())
    return digest.hexdigest()
