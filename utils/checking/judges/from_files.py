"""Judge the tasks of exercises/from_files.py: by which images two workers trained on.

They get the same images in shards of equal sizes, in one file, and in shards of very
different sizes; and in yet another run they are started in the middle of an epoch.
"""

from distcheck import lab
from distcheck.judges.registry import exercise
from distcheck.judges.runs import Missing, Problem, Run
from distcheck.scenarios import SCENARIOS
from utils.checking.recorders.from_files import EPOCHS_DONE, EPOCHS_OF_REST, STEPS_DONE

EPOCHS, BATCH, TRAIN_IMAGES = 2, 5, 40
EQUAL, FEW, UNEVEN, REST = "files", "few files", "uneven files", "rest of files"
WORKERS = SCENARIOS[EQUAL].size
SIZES = SCENARIOS[UNEVEN].settings["sizes"]
# If every second file is a worker's; whoever shares out records can take more.
LEAST_STEPS = min(sum(SIZES[rank::WORKERS]) for rank in range(WORKERS)) // BATCH

task = exercise(
    "from_files",
    options=(
        f"--epochs {EPOCHS} --batch-size {BATCH} --train-images {TRAIN_IMAGES} --width"
        " 1 --seed 1"
    ),
).part


Epoch = list[list[list[int]]]  # rank -> step -> the images of its batch


def _epochs(run: Run) -> list[Epoch]:
    """The epochs that all ranks have begun. Raises Missing where one never trained."""
    trained = [rank.all("trained") for rank in run.ranks]
    if not all(trained):
        raise Missing
    count = min(events[-1]["epoch"] for events in trained) + 1
    return [
        [[e["images"] for e in events if e["epoch"] == number] for events in trained]
        for number in range(count)
    ]


def _all(steps: list[list[int]]) -> list[int]:
    return [image for images in steps for image in images]


@task(
    "A",
    scenarios=("files", "few files"),
    expected=(
        "In an epoch, every image is trained on by exactly one worker, with four "
        f"files for {WORKERS} workers and also with one file. The next epoch has "
        "another order."
    ),
)
def shares_the_files(runs: dict[str, Run]) -> None:
    """Every image is trained on by one worker, however many files there are."""
    line = runs[EQUAL].fit_line
    for name in (EQUAL, FEW):
        if name not in runs:  # the checks of later tasks don't need both
            continue
        run = runs[name]
        where = "With one file for two workers" if name == FEW else "With four files"
        idle = [str(r.number) for r in run.ranks if not r.all("trained")]
        if name == FEW and idle:  # though it has trained with four
            raise Problem(
                "without-a-file",
                f"{where}, rank {' and rank '.join(idle)} trained on no image, "
                "because it got no file or no steps.",
                line,
            )
        epochs = _epochs(run)
        for epoch in epochs:
            _raise_if_shared(epoch, where, line)
        if run.outcome != lab.ENDED:
            run.raise_if_in_trouble()
        for number, epoch in enumerate(epochs, 1):
            seen = len({image for steps in epoch for image in _all(steps)})
            if seen < TRAIN_IMAGES - WORKERS * (BATCH - 1):
                raise Problem(
                    "left-out",
                    f"{where}, the workers trained on only {seen} of the "
                    f"{TRAIN_IMAGES} images in epoch {number}.",
                    line,
                )
        if len(epochs) > 1 and all(epoch == epochs[0] for epoch in epochs):
            raise Problem(
                "not-shuffled",
                f"{where}, each epoch brought the same images in the same order.",
                line,
            )


def _raise_if_shared(epoch: Epoch, where: str, line: int | None) -> None:
    """Raise a Problem for images that two workers train on in an epoch."""
    own = [set(_all(steps)) for steps in epoch]
    common = len(set.intersection(*own))
    if common == len(set.union(*own)):
        raise Problem(
            "same-images",
            f"{where}, all workers trained on the same {common} images in an epoch.",
            line,
        )
    if common:
        raise Problem(
            "seen-twice",
            f"{where}, {common} images were trained on by both workers in an epoch. "
            "If a worker shuffles before it takes its share, the order differs on "
            "each.",
            line,
        )


@task(
    "D",
    scenarios=("files",),
    expected=(
        "The pipeline's map functions are called with whole batches. Each image is "
        "flipped and shifted independently of the others, and differently in each "
        "epoch."
    ),
)
def works_by_the_batch(runs: dict[str, Run]) -> None:
    """No function is called image by image; each image is moved for itself, anew."""
    run, line = runs[EQUAL], runs[EQUAL].fit_line
    for rank in run.ranks:
        batches = [event["images"] for event in rank.all("trained")]
        images = len(_all(batches))
        most = max(rank.first("mapped")["calls"], default=0)
        if most >= images // EPOCHS:
            raise Problem(
                "image-by-image",
                f"A function that the pipeline maps was called {most} times on rank "
                f"{rank.number}, for {images} images in {len(batches)} batches.",
                line,
            )
        _raise_if_unmoved(rank.number, rank.all("trained"), line)


def _raise_if_unmoved(number: int, batches: list[dict], line: int | None) -> None:
    """Raise a Problem unless each image is shifted for itself, and anew each time."""
    strangers = sum(image < 0 for event in batches for image in event["images"])
    if strangers:
        raise Problem(
            "other-images",
            f"Rank {number} trained on {strangers} images that are not in the files, "
            "not even flipped and shifted by up to 5 pixels.",
            line,
        )
    if all(len(set(event["down"])) == 1 for event in batches):
        moved = any(any(event["down"]) for event in batches)
        raise Problem(
            "one-shift" if moved else "unmoved",
            (
                f"On rank {number}, all images of a batch were shifted down by the "
                "same number of pixels, because one number was drawn for all of them."
                if moved
                else f"On rank {number}, no image was shifted down."
            ),
            line,
        )
    shifts: dict[int, list[int]] = {}
    for event in batches:
        for image, down in zip(event["images"], event["down"], strict=True):
            shifts.setdefault(image, []).append(down)
    again = [downs for downs in shifts.values() if len(downs) > 1]
    if again and all(len(set(downs)) == 1 for downs in again):
        raise Problem(
            "frozen",
            f"On rank {number}, every image was shifted by the same pixels in each "
            "epoch. The shifts were drawn once and kept.",
            line,
        )


@task(
    "B",
    scenarios=("uneven files",),
    expected=(
        "If the file shards have very different sizes, all workers still take the "
        f"same number of training steps in an epoch, at least {LEAST_STEPS}, and no "
        "worker sees an image twice."
    ),
)
def takes_equal_steps(runs: dict[str, Run]) -> None:
    """All take as many steps, whatever the shards hold."""
    run, line = runs[UNEVEN], runs[UNEVEN].fit_line
    epochs = _epochs(run)
    where = f"With shards of {', '.join(map(str, SIZES))} images"
    _raise_if_shared(epochs[0], where, line)
    if run.outcome == lab.DEADLOCK:
        counts = " and ".join(str(len(rank.all("trained"))) for rank in run.ranks)
        raise Problem(
            "waits-for-ever",
            f"{where}, the workers began {counts} steps, and then waited for each "
            "other forever.",
            line,
        )
    if run.outcome != lab.ENDED:
        run.raise_if_in_trouble()
    for epoch in epochs:
        counts = [len(steps) for steps in epoch]
        if len(set(counts)) > 1:
            listing = " and ".join(map(str, counts))
            raise Problem(
                "unequal", f"{where}, the workers took {listing} steps.", line
            )
        if counts[0] < LEAST_STEPS:
            raise Problem(
                "too-few",
                f"{where}, the workers took {counts[0]} steps of {BATCH} images each, "
                f"but all of them have enough images for {LEAST_STEPS}.",
                line,
            )
        for number, steps in enumerate(epoch):
            images = _all(steps)
            if len(set(images)) < len(images):
                raise Problem(
                    "repeated",
                    f"{where}, rank {number} trained on {len(images)} images in an "
                    f"epoch, but only on {len(set(images))} different ones.",
                    line,
                )


@task(
    "C",
    scenarios=("files", "rest of files"),
    expected=(
        f"When the program is started after {EPOCHS_DONE} epoch and {STEPS_DONE} step "
        "of the next one, the workers train on the images that are left of that "
        "epoch, and on no other image. The epoch after it is a full one."
    ),
)
def goes_on_within(runs: dict[str, Run]) -> None:
    """Started in the middle of an epoch, it trains on the images that are left."""
    whole, rest = runs[EQUAL], runs[REST]
    before, after, line = _epochs(whole), _epochs(rest), rest.fit_line
    if rest.outcome != lab.ENDED:
        rest.raise_if_in_trouble()
    if len(before) <= EPOCHS_DONE:
        raise Missing
    where = f"Started after {EPOCHS_DONE} epoch and {STEPS_DONE} step"
    interrupted = before[EPOCHS_DONE]
    done = {image for steps in interrupted for image in _all(steps[:STEPS_DONE])}
    left = {image for steps in interrupted for image in _all(steps)} - done
    first = {image for steps in after[0] for image in _all(steps)}
    again = len(first & done)
    if len(first) > len(left) and first >= left:
        raise Problem(
            "from-its-start",
            f"{where}, the workers trained on {len(first)} images in the rest of the "
            f"epoch, {again} of them for the second time.",
            line,
        )
    if first != left:
        raise Problem(
            "other-order",
            f"{where}, {len(left)} images were left. The workers trained on "
            f"{len(first)}, {again} of them for the second time, and missed "
            f"{len(left - first)} of those that were left.",
            line,
        )
    if len(after) != EPOCHS_OF_REST - EPOCHS_DONE:
        raise Problem(
            "other-epochs",
            f"{where}, with --epochs {EPOCHS_OF_REST}, the workers trained "
            f"{len(after)} epochs.",
            line,
        )
    for epoch in after[1:]:
        seen = len({image for steps in epoch for image in _all(steps)})
        if seen < TRAIN_IMAGES - WORKERS * (BATCH - 1):
            raise Problem(
                "skips-again",
                f"{where}, the next epoch had {seen} of {TRAIN_IMAGES} images. Steps "
                "are to be skipped only in the epoch that was interrupted.",
                line,
            )
