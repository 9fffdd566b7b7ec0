"""Judge the tasks of exercises/many_workers.py, by what two real workers did."""

import numpy as np

from distcheck import lab
from distcheck.judges.registry import exercise
from distcheck.judges.runs import Missing, Problem, Run
from distcheck.scenarios import SCENARIOS

WORKERS = SCENARIOS["cluster"].size
TRAIN_IMAGES, BATCH, EPOCHS = 60, 4, 2
STEPS = TRAIN_IMAGES // (BATCH * WORKERS)
TOO_LATE = "Collective ops must be configured at program startup"
SPLIT = "was not created in the distribution strategy scope"

task = exercise(
    "many_workers",
    options=(
        f"--epochs {EPOCHS} --train-images {TRAIN_IMAGES} --batch-size {BATCH} --model"
        " kept.keras"
    ),
).part


@task(
    "A",
    scenarios=("cluster",),
    expected=(
        f"Each of the {WORKERS} workers finds the others by its TF_CONFIG and makes a "
        "MultiWorkerMirroredStrategy with them, before TensorFlow computes anything."
    ),
)
def joins(runs: dict[str, Run]) -> None:
    """Every worker makes a strategy of all workers, before TensorFlow computes."""
    run = runs["cluster"]
    for rank, failure in run.failures():
        if TOO_LATE in failure["error"]:
            raise Problem(
                "too-late",
                f"Worker {rank.number} had already computed something when it made "
                f"the strategy. TensorFlow says: {TOO_LATE}.",
                failure["line"],
            )
    strategies = [rank.all("strategy") for rank in run.ranks]
    if not any(strategies):
        run.raise_if_in_trouble()
        raise Problem("no-strategy", "The program makes no strategy.")
    for number, made in enumerate(strategies):
        if not made:
            run.raise_if_in_trouble()
            raise Problem("not-all", f"Worker {number} makes no strategy.")
        last = made[-1]
        if last["kind"] not in ("MultiWorkerMirroredStrategy", _OLD):
            raise Problem(
                "another-strategy",
                f"The program makes a {last['kind']}, which knows only one process.",
                last["line"],
            )
        if last["replicas"] != WORKERS:
            raise Problem(
                "alone",
                f"The strategy of worker {number} counts {last['replicas']} worker(s): "
                f"it has not found the others of {WORKERS}. Does it get the resolver "
                "that reads TF_CONFIG?",
                last["line"],
            )


_OLD = "CollectiveAllReduceStrategy"  # the class behind the name of old


@task(
    "B",
    scenarios=("cluster",),
    expected=(
        "The workers train one model: they begin with equal weights and end with equal"
        " weights."
    ),
)
def keeps_in_step(runs: dict[str, Run]) -> None:
    """The workers train one network: from equal weights, by equal updates."""
    run = runs["cluster"]
    for _, failure in run.failures():
        if SPLIT in failure["error"]:
            raise Problem(
                "split-scope",
                "The model is made in the strategy's scope and compiled outside, or "
                "the other way round. Both lines belong inside the scope.",
                failure["line"],
            )
    alone = [rank for rank in run.ranks if rank.first("trains")["workers"] == 1]
    if alone:
        raise Problem(
            "outside-the-scope",
            f"Worker {alone[0].number} trains by itself, because its model was not "
            "made in the strategy's scope.",
        )
    for name in ("first", "last"):
        one, *others = run.arrays(f"weights.{name}")
        apart = max(float(np.abs(one - other).max()) for other in others)
        if apart:
            raise Problem(
                "drifted",
                f"The weights of the workers differ by up to {apart:.2g} before the "
                f"{name} step.",
            )
    if (run.arrays("weights.first") == run.arrays("weights.last")).all():
        raise Problem("no-update", "Training has not changed the weights.")


def _shares(run: Run) -> list[list[list[str]]]:
    """Worker -> step -> the images that it got. Raises Missing."""
    shares = [[e["images"] for e in rank.all("trains")] for rank in run.ranks]
    if not all(shares):
        raise Missing
    return shares


@task(
    "C",
    scenarios=("cluster",),
    expected=(
        f"In each training step, each of the {WORKERS} workers gets {BATCH} images, as"
        " many as one worker would get by itself. An epoch is one pass over the "
        "images."
    ),
)
def scales_the_batch(runs: dict[str, Run]) -> None:
    shares = _shares(runs["cluster"])
    for number, steps in enumerate(shares):
        sizes = {len(images) for images in steps}
        if sizes != {BATCH}:
            raise Problem(
                "batch-not-scaled",
                f"In a step, worker {number} got {_listed(sizes)} images, but "
                f"--batch-size was {BATCH} for each of {WORKERS} workers.",
            )
        if len(steps) != EPOCHS * STEPS:
            raise Problem(
                "another-epoch",
                f"Worker {number} took {len(steps)} steps in {EPOCHS} epochs. One pass "
                f"over {TRAIN_IMAGES} images, with {BATCH * WORKERS} in a step, has "
                f"{STEPS} steps.",
            )


def _listed(numbers: set[int]) -> str:
    return " or ".join(map(str, sorted(numbers)))


@task(
    "D",
    scenarios=("cluster",),
    expected=(
        "In an epoch, every worker gets images of its own, and none of them twice. The"
        " next epoch brings them in another order."
    ),
)
def shares_the_images(runs: dict[str, Run]) -> None:
    """In an epoch no image is seen twice; another epoch has another order."""
    shares = _shares(runs["cluster"])
    epochs = [
        [
            [image for images in _part(steps, epoch) for image in images]
            for steps in shares
        ]
        for epoch in range(EPOCHS)
    ]
    for number, epoch in enumerate(epochs, 1):
        seen = [image for own in epoch for image in own]
        distinct = len(set(seen))
        if all(set(own) == set(epoch[0]) for own in epoch):
            raise Problem(
                "same-images",
                f"In epoch {number} all workers got the same {distinct} of the "
                f"{TRAIN_IMAGES} images. Each worker should take another part.",
            )
        # A pipeline that goes on from pass to pass brings what was left over.
        if len(seen) - distinct > TRAIN_IMAGES % (BATCH * WORKERS):
            raise Problem(
                "seen-twice",
                f"In epoch {number} the workers got {len(seen)} images, but only "
                f"{distinct} different ones: some came twice, and others never. All "
                "workers have to cut up the same order.",
            )
    if epochs[0] == epochs[1]:
        raise Problem(
            "not-shuffled", "Each epoch brings the same images in the same order."
        )


def _part(steps: list, epoch: int) -> list:
    """The steps of one of the epochs."""
    length = len(steps) // EPOCHS
    return steps[epoch * length : (epoch + 1) * length]


@task(
    "E",
    scenarios=("cluster",),
    expected=(
        "All workers save the model. Only the chief keeps its file, which has the "
        "weights after training."
    ),
)
def keeps_one_copy(runs: dict[str, Run]) -> None:
    """All save, and the chief alone keeps what it saved."""
    run = runs["cluster"]
    left = [rank.all("files_written") for rank in run.ranks]
    if not all(left):
        raise Missing
    chief, *others = (events[0] for events in left)
    if not chief["files"]:
        if run.outcome != lab.ENDED:
            run.raise_if_in_trouble()
        raise Problem("nothing-kept", "The chief, worker 0, left no file.")
    if chief["weights"] < 1:
        raise Problem(
            "other-weights",
            f"The chief left {', '.join(chief['files'][:3])}, but without the weights "
            "that it had after training.",
        )
    for number, other in enumerate(others, 1):
        if other["files"]:
            raise Problem(
                "all-keep",
                f"Worker {number} left {', '.join(other['files'][:3])} as well. If "
                "workers share a disk, this file would overwrite the chief's.",
            )
    if run.outcome != "ended":
        run.raise_if_in_trouble()
