"""The scenarios in which programs are run: how many workers there are, what they are
made to believe, and which recorder watches them.

Those of the six steps are here. A recorder of a single exercise registers its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# Odd numbers of batches, so that dividing leaves remainders.
TRAIN_IMAGES, BATCH_SIZE, VAL_BATCH_SIZE = 60, 8, 4
STEPS = TRAIN_IMAGES // BATCH_SIZE
VAL_STEPS = -(-(TRAIN_IMAGES // 6) // VAL_BATCH_SIZE)


def name_of(gpu: int) -> str:
    """What CUDA_VISIBLE_DEVICES may call a pretended GPU, here a part of one (MIG)."""
    return f"MIG-{gpu:08x}-5a1e-5ca1-ab1e-{gpu:012x}"


@dataclass(frozen=True)
class Scenario:
    """The workers that a program is run on. It can be written as JSON."""

    size: int
    """How many workers there are."""

    recorder: str = "distcheck.recorder.horovod:HorovodRecorder"
    """The class of what watches each worker, as "module:Class". With "", nothing does:
    the program does what it does for a learner, it is compiled, and only how it ended
    is known."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """What this recorder has to know besides; its module says what that is."""

    options: tuple[str, ...] = ()
    """The program's command line, after the options of the job."""

    reference: bool = False
    """Is it the job's reference that runs, with which its program is compared?"""

    after: str = ""
    """The scenario, if any, whose files are there when the program begins: each worker
    finds its own, or with `own_folders` those of rank 0. It is registered before this
    one."""

    own_folders: bool = False
    """Does each worker have a folder of its own, so that it is seen who writes what?
    After each collective it also has what the others wrote, as if all shared one."""

    own_disks: bool = False
    """Is each worker on a machine of its own, where it sees no other's files?"""

    shared_disk: bool = False
    """Are all workers in one folder, in which nothing else is? Without this and the two
    above, the folder also has the reports in it."""

    local_ranks: tuple[int, ...] = ()
    """The local ranks to pretend, by rank; without any, there are the real ones."""

    gpus: int = 0
    """How many GPUs to pretend on each machine."""

    cuda_visible_devices: tuple[str, ...] = ()
    """What a scheduler has set for each worker, by rank; without any, it is not set, or
    -1 where nothing watches."""

    devices_only: bool = False
    """Does a worker end as soon as it has chosen its devices?"""

    count_only: bool = False
    """Are training steps only counted, and none computed?"""

    rank0_always_wrong: bool = False
    """In validation, is rank 0 wrong about each image, and the others right?"""

    build_graphs: bool = False
    """Does rank 0 build in the end what would have been compiled?"""

    cluster: tuple[tuple[str, int], ...] = ()
    """How many tasks of which type the workers are, such as ("worker", 2): each is told
    of the others by a TF_CONFIG. Without any, mpirun alone tells it of them."""

    def local_rank(self, rank: int) -> int | None:
        """The local rank that a worker is to believe in; None for the real one."""
        return self.local_ranks[rank] if self.local_ranks else None

    def local_size(self, rank: int) -> int:
        """How many workers it is to believe in on its machine: one for each GPU,
        or as many as its local rank needs."""
        return max(self.gpus, self.local_ranks[rank] + 1)


SCENARIOS: dict[str, Scenario] = {}


def register(scenarios: Mapping[str, Scenario]) -> None:
    """Let these be known by their names. Raises ValueError for a name that is taken."""
    taken = SCENARIOS.keys() & scenarios.keys()
    if taken:
        raise ValueError(f"there are such scenarios already: {sorted(taken)}")
    SCENARIOS.update(scenarios)


_FOUR_EPOCHS = ("--epochs", "4")
_LOGS = ("--log-dir", "logs")
# What a program may look at, and then do something else.
OTHER_OPTIONS = (
    *("--seed", "1", "--epochs", "4"),
    *("--target-accuracy", "0", "--patience", "3"),
)
_AT_THE_TARGET = ("--target-accuracy", "0.25", "--patience", "1", "--epochs", "3")

register(
    {
        # Two workers of a machine with four GPUs, on which two others work, too.
        "two": Scenario(
            size=2,
            local_ranks=(3, 1),
            gpus=4,
            own_folders=True,
            build_graphs=True,
            options=_LOGS,
        ),
        # Two workers without a GPU, with the files that rank 0 of "two" has left on the
        # disk that they seem to share.
        "other options": Scenario(
            2, own_folders=True, after="two", options=(*_LOGS, *OTHER_OPTIONS)
        ),
        # Where the mean of all is above the target, and rank 0's own is not.
        "opposite": Scenario(
            2, own_folders=True, rank0_always_wrong=True, options=_AT_THE_TARGET
        ),
        # Two machines with a worker each, or one with three or one; for so many epochs
        # that whoever draws at random from all images draws nearly every one; three
        # also with a seed, with which all may draw alike.
        "pair": Scenario(
            size=2,
            local_ranks=(0, 0),
            count_only=True,
            build_graphs=True,
            options=_FOUR_EPOCHS,
        ),
        "three": Scenario(3, count_only=True, options=(*_FOUR_EPOCHS, "--seed", "1")),
        "one": Scenario(1, count_only=True, options=_FOUR_EPOCHS),
        # One of four workers: to each a scheduler has given a GPU, by a name that is no
        # number; or they have two GPUs for four.
        "given": Scenario(
            size=1,
            local_ranks=(3,),
            gpus=4,
            cuda_visible_devices=(name_of(0),),
            devices_only=True,
        ),
        "crowded": Scenario(1, local_ranks=(3,), gpus=2, devices_only=True),
        "hosts": Scenario(2, local_ranks=(0, 0), gpus=1, devices_only=True),
        "plain": Scenario(2, recorder=""),
    }
)
