"""Report what the workers of exercises/survive.py do: where in which epoch they are at
each update, with which weights and which state of the optimizer, and what they keep.

As in scaled.py, tiny networks are trained to the end, each worker in a folder of its
own. In one scenario rank 0 dies in the middle of an update: all workers are told, as
Horovod tells them, and when it is to start again, rank 0 stands still, and the others
have a Horovod without it, in which rank 1 is rank 0. They are on disks of their own in
the other scenarios; here they share a folder, so what rank 0 has kept outlives it.
"""

import hashlib
import os
from pathlib import Path

from distcheck.events import Argument, Event
from distcheck.recorder import patches
from distcheck.recorder.files import files_in
from distcheck.scenarios import Scenario, register
from utils.checking.recorders.scaled import ScaledRecorder


def cut_newest(folder: Path) -> None:
    """Leave half of the file that was written last, as a failing disk does.

    Of files beside it that say where in it is what, as TensorFlow's index, nothing is
    taken: they are small. Without any file, nothing is done.
    """
    files = [path for path in folder.rglob("*") if path.is_file()]
    large = max((path.stat().st_size for path in files), default=0) / 2
    large_files = [
        path
        for path in files
        if path.stat().st_size >= large and path.suffix != ".index"
    ]
    if large_files:
        newest = max(large_files, key=lambda path: path.stat().st_mtime_ns)
        os.truncate(newest, newest.stat().st_size // 2)


class Reset(Event):
    """Horovod is about to start again, without rank 0."""

    files: list[str]
    """Those in the folder that all share."""


class Lost(Event):
    """In an update, the worker is told that another one has died."""


class Rest(Event):
    """The program asks for the rest of an epoch: `data.rest_of_epoch`."""

    epoch: int
    done: int
    """How many steps of it are done."""
    size: int
    rank: int
    seed: Argument


class After(Event):
    """An optimizer has updated the weights."""

    weights: str
    """A digest of all of them."""
    state: str
    """A digest of the optimizer's."""


class Before(After):
    """An optimizer is about to update them."""

    epoch: int


class Begins(Before):
    """The first batch of the training is there."""

    statistics: str
    """A digest of what isn't trained, such as the means of batch normalization."""


class SurviveRecorder(ScaledRecorder):
    """Its settings: failing, the update, counted from 0, in which rank 0 dies;
    truncate_checkpoint, to leave half of the newest file before the program begins."""

    schema = ScaledRecorder.schema | {
        "reset": Reset,
        "lost": Lost,
        "rest": Rest,
        "begins": Begins,
        "before": Before,
        "after": After,
    }

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._failing = self.scenario.settings.get("failing")
        self._count, self._begun = 0, False

    @classmethod
    def set_up(cls, scenario: Scenario, reports: Path) -> None:
        if scenario.settings.get("truncate_checkpoint"):
            cut_newest(Path.cwd())

    def hook_training(self, tf) -> None:
        from utils.training import data

        super().hook_training(tf)
        self.before(data, "rest_of_epoch", self._rest)

    def intervene(self, tf) -> None:
        super().intervene(tf)
        if self._failing is not None:
            # Horovod shuts MPI down with itself, unless another has started it.
            from mpi4py import MPI  # noqa: F401

            patches.replace_elastic_reset(self._without_rank_0)

    def _without_rank_0(self) -> None:
        import horovod.tensorflow as hvd

        self.event("reset", files=sorted(files_in(Path.cwd())))
        if self.rank == 0:
            if self.graphs:
                self.graphs.build()
            self.wait_for_the_end()
        others = list(range(1, hvd.size()))
        hvd.shutdown()  # one worker's is the end of all
        hvd.init(comm=others)

    def _rest(self, dataset, batch_size, seed, epoch, done=0, rank=0, size=1) -> None:
        places = {"epoch": int(epoch), "done": int(done), "size": int(size)}
        self.event("rest", seed=seed, rank=int(rank), **places)

    def _forward(self, original):
        forward = super()._forward(original)

        def observed(model, *args, **kwargs):
            training = bool(patches.argument("training", 1, args, kwargs))
            if training and "fit" in self.activities and not self._begun:
                self._begun = True
                self._optimizers = [model.optimizer]
                statistics = [v.numpy() for v in model.non_trainable_weights]
                facts = {"statistics": _digest(statistics), **self._digests()}
                self.event("begins", epoch=self._epoch, **facts)
            return forward(model, *args, **kwargs)

        return observed

    def _observe_update(self, make_update, optimizer, pairs: list):
        if "update" in self.activities or not self._models:
            return make_update()
        self._optimizers = [optimizer]
        self.event("before", epoch=self._epoch, **self._digests())
        self._count += 1
        if self._count - 1 == self._failing:
            from horovod.common.exceptions import HorovodInternalError

            self.event("lost")
            raise HorovodInternalError("a worker has died")
        result = super()._observe_update(make_update, optimizer, pairs)
        self.event("after", **self._digests())  # the statistics are averaged later
        return result

    def _digests(self) -> dict[str, str]:
        """What tells whether weights, or states of the optimizer, are the same."""
        return {"weights": _digest(self._weights()), "state": _digest(self._state())}


def _digest(arrays) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for array in arrays:
        digest.update(array.tobytes())
    return digest.hexdigest()


register(
    {
        "first life": SurviveRecorder.on_machines(2, build_graphs=True),
        "second life": SurviveRecorder.on_machines(
            2, after="first life", options=("--epochs", "4")
        ),
        "cut off": SurviveRecorder.on_machines(
            2, after="first life", settings={"truncate_checkpoint": True}
        ),
        "shaken": Scenario(
            size=2,
            recorder=SurviveRecorder.dotted_name(),
            settings={"failing": 8},
            local_ranks=(0, 0),
            gpus=1,
            shared_disk=True,
            build_graphs=True,
        ),
    }
)
