"""Judge step 5: do the workers share the steps of an epoch?"""

import itertools
import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from distcheck import lab
from distcheck.judges.compare import classify
from distcheck.judges.compiled import must_compile
from distcheck.judges.runs import Missing, Problem, Rank, Run
from distcheck.judges.steps.common import OPPOSITE, step
from distcheck.recorder.images import UNKNOWN
from distcheck.scenarios import (
    BATCH_SIZE,
    SCENARIOS,
    STEPS,
    TRAIN_IMAGES,
    VAL_BATCH_SIZE,
    VAL_STEPS,
)


@step(
    5,
    scenarios=("pair", "three", "one"),
    expected=(
        f"With N workers, each worker trains {STEPS} // N training steps, so that "
        f"an epoch of all workers is one pass over the {TRAIN_IMAGES} images. Each"
        " worker's batches differ from the other workers' batches. The workers also "
        f"share the validation: each takes 3 * {VAL_STEPS} // N steps, or every "
        "image is validated once."
    ),
)
@must_compile("training")
def shares_the_epoch(runs: dict[str, Run]) -> None:
    used = _one_of_each_size(runs)
    for run in used:
        _has_whole_steps(run)
        _has_trained(run)
    training = Training(used, {r.size: [_epochs(k) for k in r.ranks] for r in used})
    _raise_if_unequal(training)
    _raise_if_other_training_steps(training)
    _raise_if_other_epochs(training)
    for ranks in training.epochs.values():
        _raise_if_badly_drawn(ranks, training.problem)
    _raise_if_other_validation_steps(training)
    for ranks in training.epochs.values():
        _raise_if_badly_validated(ranks, training.problem)
    for run in used:
        _raise_if_other_rate(run, training.first[run.size])


def _one_of_each_size(runs: dict[str, Run]) -> list[Run]:
    """A run for each number of workers, the smallest first; rather one whose steps are
    only counted."""
    counted_last = sorted(runs.values(), key=lambda r: SCENARIOS[r.name].count_only)
    by_size = {
        run.size: run
        for run in counted_last
        if not SCENARIOS[run.name].devices_only and run.name != OPPOSITE
    }
    return [by_size[size] for size in sorted(by_size)]


def _has_whole_steps(run: Run) -> None:
    """Raise the Problem of a number of steps that is no whole one."""
    for rank in run.ranks:
        for fit in rank.all("fit")[:1]:
            for name in ("steps_per_epoch", "validation_steps"):
                if isinstance(fit[name], float):
                    raise Problem(
                        "float",
                        f"On {_workers(run.size)} {name} was {fit[name]!r}, with a "
                        "decimal point: steps are whole numbers, so divide with //.",
                        fit["line"],
                    )


def _has_trained(run: Run) -> None:
    """Raise the Problem of a run that ended within its first epoch, or Missing."""
    if run.outcome != lab.ENDED and not all(
        rank.all("fitted") or rank.all("callback") for rank in run.ranks
    ):
        run.raise_if_in_trouble()
    if not any(rank.all("forward") for rank in run.ranks):
        raise Missing


@dataclass(frozen=True)
class Epoch:
    """What a rank did in it: the images of each training and each validation step, by
    number. A step whose images weren't seen has none."""

    trained: list[list[int]]
    validated: list[list[int]]


@dataclass(frozen=True)
class Training:
    """How a program trained on each number of workers.

    runs: one for each number. epochs: those of each rank, by number of workers.
    """

    runs: list[Run]
    epochs: dict[int, list[list[Epoch]]]

    @cached_property
    def first(self) -> dict[int, list[Epoch]]:
        """The first epoch of each rank, by number of workers."""
        return {n: [epochs[0] for epochs in ranks] for n, ranks in self.epochs.items()}

    @cached_property
    def trained(self) -> dict[int, list[int]]:
        """The training steps of each rank's first epoch, by number of workers."""
        return {n: [len(e.trained) for e in ranks] for n, ranks in self.first.items()}

    @cached_property
    def validated(self) -> dict[int, list[int]]:
        """Likewise, the validation steps."""
        return {n: [len(e.validated) for e in ranks] for n, ranks in self.first.items()}

    def problem(self, name: str, seen: str) -> Problem:
        """A Problem with the line that trains, and with all steps as its evidence."""
        fits = [f for run in self.runs for r in run.ranks for f in r.all("fit")]
        evidence = [
            f"{_workers(size)}: {_listed(self.trained[size])} training, "
            f"{_listed(self.validated[size])} validation steps"
            for size in self.epochs
        ]
        return Problem(name, seen, fits[0]["line"] if fits else None, evidence)


def _epochs(rank: Rank) -> list[Epoch]:
    """The epochs of a rank, at least one. They end where callbacks are told so, and
    where training follows validation; what is validated before the first is in none."""
    events = [e for e in rank.events if e["what"] in ("forward", "callback")]
    forwards = rank.all("forward")
    validated = [e for e in forwards if e["fit"] and not e["training"]]
    if validated:
        # What callbacks ask for counts where nothing else is validated.
        alone = all(event["aside"] for event in validated)
        events = [
            e
            for e in events
            if e["what"] == "callback" or (e["fit"] and (alone or not e["aside"]))
        ]
    elif rank.number == 0:
        # Where it doesn't validate in fit, nothing but its place tells the test at the
        # end, of all images once, from the validation.
        test = forwards[-VAL_STEPS:]
        if not any(event["training"] for event in test):
            left_out = {id(event) for event in test}
            events = [e for e in events if id(e) not in left_out]
    epochs = [Epoch([], [])]
    ended = False
    step = None  # of the last training batch
    for event in events:
        if event["what"] == "callback":
            ended = True
            continue
        if event["training"] and (ended or epochs[-1].validated):
            epochs.append(Epoch([], []))
        ended = False
        steps = epochs[-1].trained if event["training"] else epochs[-1].validated
        if event["training"] and event["step"] == step and steps:
            # A part of the step before, or the same images again.
            new = [n for n in event["images"] if n == UNKNOWN or n not in steps[-1]]
            steps[-1] = steps[-1] + new
            continue
        step = event["step"] if event["training"] else step
        steps.append(event["images"])
    if len(epochs) > 1 and not epochs[0].trained:
        epochs = epochs[1:]
    return epochs


def _raise_if_unequal(training: Training) -> None:
    """Raise the Problem of ranks that do not train equally many steps, unless they join
    the others at the end."""
    if any(run.ranks[0].collectives("join") for run in training.runs):
        return
    for size, done in training.trained.items():
        if len(set(done)) > 1:
            raise training.problem(
                "deadlock",
                f"On {_workers(size)} {_who_did(done)} training steps. Every step "
                "averages the gradients of all ranks, so this is a deadlock: rank "
                f"{done.index(max(done))}, which does more steps, waits for the others "
                "forever.",
            )


# What is wrong with numbers of steps: how many it gives each of N workers, and words.
Faults = dict[str, tuple[Callable[[int], int], str]]


def _raise_if_other_training_steps(training: Training) -> None:
    """Raise the Problem of ranks that together do not train on one pass: in steps, or
    in images where these were seen."""
    if all(_one_pass(ranks) for ranks in training.first.values()):
        return
    total, done = STEPS, training.trained
    allowed = {n: _shares(total, n) for n in done}
    if not _fits(done, allowed):
        faults: Faults = {
            "local-size": (
                lambda n: total // _local_size(n, training.runs),
                "The steps were divided by the workers of one machine, "
                "hvd.local_size(), but the workers of all machines, hvd.size(), "
                "share an epoch.",
            ),
        }
        raise _of_steps(training, "training", total, allowed, faults)
    _raise_if_other_images(training)


def _local_size(size: int, runs: list[Run]) -> int:
    """How many of so many workers are on a machine, as they are told."""
    (name,) = (run.name for run in runs if run.size == size)
    local_ranks = SCENARIOS[name].local_ranks
    return max(local_ranks) + 1 if local_ranks else size


def _one_pass(epochs: list[Epoch]) -> bool:
    """Did all ranks together train on as many images as there are, give or take what
    rounding a number of steps can bring? False where images weren't seen."""
    steps = [len(step) for epoch in epochs for step in epoch.trained]
    if not steps or 0 in steps:
        return False
    missing = TRAIN_IMAGES - sum(steps)
    in_a_step = len(epochs) * max(steps)
    return -in_a_step / 2 < missing <= in_a_step


def _images(epochs: list[Epoch]) -> int:
    """On how many images the ranks trained in an epoch, each time counted."""
    return sum(len(step) for epoch in epochs for step in epoch.trained)


def _raise_if_other_images(training: Training) -> None:
    """Raise the Problem of as many steps as there should be, but of other batches."""
    for size, epochs in training.first.items():
        sizes = {len(step) for epoch in epochs for step in epoch.trained}
        if 0 not in sizes and not _one_pass(epochs):
            raise training.problem(
                "images-per-epoch",
                f"On {_workers(size)} an epoch trained on {_images(epochs)} images, "
                f"but a pass over all has {TRAIN_IMAGES}: there were batches of "
                f"{_and(sizes)}, although --batch-size was {BATCH_SIZE}.",
            )


def _shares(total: int, workers: int) -> set[int]:
    """How many of all steps each worker may do: the quotient rounded down, or to the
    nearest whole number, as Python's round() does."""
    return {total // workers, round(total / workers)}


def _fits(done: dict[int, list[int]], allowed: dict[int, set[int]]) -> bool:
    return all(set(steps) <= allowed[n] for n, steps in done.items())


def _of_steps(
    training: Training,
    kind: str,
    total: int,
    allowed: dict[int, set[int]],
    special: Faults,
) -> Problem:
    """The Problem of ranks that do not do the steps of this kind that are allowed, by
    number of workers."""
    done = training.trained if kind == "training" else training.validated
    faults: Faults = {
        "not-divided": (
            lambda n: total,
            f"Every worker did all {kind} steps, however many workers there were.",
        ),
        "hard-coded": (
            lambda n: total // 2,
            f"The {kind} steps were halved, however many workers there were.",
        ),
        **special,
        "rounded-up": (
            lambda n: -(-total // n),
            f"The {kind} steps were rounded up, so the workers together do more than "
            "one epoch.",
        ),
    }
    expected = {
        name: {n: [steps(n)] * n for n in done} for name, (steps, _) in faults.items()
    }
    fault = classify(done, expected, operator.eq)
    if fault:
        return training.problem(fault, faults[fault][1])
    wrong = next(n for n, steps in done.items() if not set(steps) <= allowed[n])
    once = ", or all workers together have every image once"
    return training.problem(
        f"{kind}-steps",
        f"On {_workers(wrong)} {_who_did(done[wrong])} {kind} steps, but each has "
        f"{total // wrong} to do{once if kind == 'validation' else ''}.",
    )


def _raise_if_other_epochs(training: Training) -> None:
    """Raise the Problem of a training that has fewer epochs on more workers."""
    # Other scenarios have other options.
    alike = {r.size for r in training.runs if SCENARIOS[r.name].count_only}
    epochs = {n: len(ranks[0]) for n, ranks in training.epochs.items() if n in alike}
    if not epochs:
        return
    fewest = min(epochs, key=epochs.__getitem__)
    most = max(epochs, key=epochs.__getitem__)
    if epochs[fewest] < epochs[most]:
        raise training.problem(
            "epochs-divided",
            f"On {_workers(fewest)} there were {epochs[fewest]} epochs, and on "
            f"{_workers(most)} there were {epochs[most]}. Workers share the steps of "
            "an epoch, but the number of epochs doesn't change.",
        )


def _raise_if_badly_drawn(
    ranks: list[list[Epoch]], problem: Callable[[str, str], Problem]
) -> None:
    """Raise the Problem of ranks that draw the same images, or leave many out.

    Where some images aren't known again, nothing is said.
    """
    drawn = [[step for epoch in epochs for step in epoch.trained] for epochs in ranks]
    images = [number for steps in drawn for step in steps for number in step]
    if UNKNOWN in images or not all(step for steps in drawn for step in steps):
        return
    size = len(ranks)
    for rank, steps in enumerate(drawn):
        alike = [sorted(a) == sorted(b) for a, b in itertools.pairwise(steps)]
        if len(steps) > 3 and sum(alike) >= len(steps) / 3:
            raise problem(
                "batches-repeated",
                f"On {_workers(size)}, {sum(alike)} of the {len(steps)} steps of rank "
                f"{rank} trained on the same images as the step before.",
            )
    # In the same step, or else some steps behind the other.
    shifts = sorted(range(1 - size, size), key=abs)
    for (rank, steps), ahead in itertools.product(enumerate(drawn[1:], 1), shifts):
        ours, theirs = drawn[0][max(0, ahead) :], steps[max(0, -ahead) :]
        pairs = list(zip(ours, theirs, strict=False))
        same = sum(sorted(ours) == sorted(theirs) for ours, theirs in pairs)
        if len(pairs) > 2 and same > 0.8 * len(pairs):
            steps_apart = f"{abs(ahead)} step{'s' * (abs(ahead) > 1)} apart"
            apart = f", {steps_apart}," if ahead else ""
            raise problem(
                "same-batches",
                f"On {_workers(size)}, rank 0 and rank {rank}{apart} trained on the "
                f"same images in {same} of {len(pairs)} steps, first on numbers "
                f"{_and({*pairs[0][0]})}. Gradients of the same images teach no more "
                "than those of a single worker.",
            )
    seen = len(set(images))
    # At random, all but one in sixty come in so many draws.
    if len(images) > 2.5 * TRAIN_IMAGES and seen < 0.7 * TRAIN_IMAGES:
        raise problem(
            "unseen-images",
            f"In {len(ranks[0])} epochs, {_workers(size)} trained on {seen} of the "
            f"{TRAIN_IMAGES} images, again and again, and no worker on the other "
            f"{TRAIN_IMAGES - seen}.",
        )
    _raise_if_out_of_a_small_buffer(ranks, problem)


def _raise_if_out_of_a_small_buffer(
    ranks: list[list[Epoch]], problem: Callable[[str, str], Problem]
) -> None:
    """Raise the Problem of a first epoch in which nobody draws any of the images at the
    end, or of another long row of them.

    Of as many draws as there are images, each at random, a third leaves an image out:
    so many in a row are left out by chance once in a million times.
    """
    drawn = {number for e in ranks for step in e[0].trained for number in step}
    if not _one_pass([epochs[0] for epochs in ranks]):
        return
    marks = [-1, *sorted(drawn), TRAIN_IMAGES]
    before, after = max(itertools.pairwise(marks), key=lambda pair: pair[1] - pair[0])
    if after - before - 1 >= 0.3 * TRAIN_IMAGES:
        raise problem(
            "small-buffer",
            f"In the first epoch, {_workers(len(ranks))} drew no image from "
            f"{before + 1} to {after - 1}, of {TRAIN_IMAGES} in all. They draw "
            "from a few images at a time, in order, so all workers get nearly the "
            "same images. To draw at random, the buffer has to hold all images.",
        )


def _raise_if_other_validation_steps(training: Training) -> None:
    """Raise the Problem of ranks that together do neither three rounds of validation
    nor validate each image once."""
    steps, total, done = VAL_STEPS, 3 * VAL_STEPS, training.validated
    allowed = {n: _shares(total, n) for n in done}
    # By now its training is known to be rounded to the nearest, if not down.
    if any(max(did) > STEPS // n for n, did in training.trained.items()):
        allowed = {n: {*allowed[n], (2 * total + n) // (2 * n)} for n in done}
    once = {n for n, ranks in training.first.items() if _each_once(ranks)}
    allowed |= {n: set(done[n]) for n in once}
    if not _fits(done, allowed):
        faults: Faults = {
            "validation-divided-first": (
                lambda n: 3 * (steps // n),
                "The validation steps are 3 * (steps // N): dividing first drops a "
                "remainder, which is then lost three times.",
            ),
            "validation-not-tripled": (
                lambda n: steps // n,
                "The validation steps are steps // N, without the three rounds. "
                "Because images are drawn at random, one round leaves out too many.",
            ),
            "validation-not-shared": (
                lambda n: steps,
                "Every worker validated a whole round, however many workers there "
                "were.",
            ),
        }
        raise _of_steps(training, "validation", total, allowed, faults)


def _each_once(epochs: list[Epoch]) -> bool:
    """Was every image validated once, by whichever rank?"""
    images = [n for epoch in epochs for step in epoch.validated for n in step]
    return sorted(images) == list(range(-(-TRAIN_IMAGES // 6)))


def _raise_if_badly_validated(
    ranks: list[list[Epoch]], problem: Callable[[str, str], Problem]
) -> None:
    """Raise the Problem of ranks that validate on other images than three rounds of
    all, drawn at random, or each once. Where some aren't known, nothing is said."""
    validated = [[step for e in epochs for step in e.validated] for epochs in ranks]
    images = [number for steps in validated for step in steps for number in step]
    if UNKNOWN in images or not all(step for steps in validated for step in steps):
        return
    size, count = len(ranks), -(-TRAIN_IMAGES // 6)
    first = [epochs[0] for epochs in ranks]
    in_first = sum(len(step) for epoch in first for step in epoch.validated)
    # Each rank may be off by a batch; and the last one of a shard is small.
    far = abs(in_first - 3 * count) > size * VAL_BATCH_SIZE
    as_said = max(map(len, itertools.chain(*validated))) == VAL_BATCH_SIZE
    if in_first and far and not as_said and not _each_once(first):
        raise problem(
            "validation-images",
            f"On {_workers(size)} an epoch was validated on {in_first} images, but "
            f"three rounds have {3 * count}: the batches did not have the "
            f"{VAL_BATCH_SIZE} images of --val-batch-size.",
        )
    seen = len(set(images))
    if len(images) > 3 * count and seen < count:
        raise problem(
            "unseen-validation",
            f"In {len(ranks[0])} epochs, {_workers(size)} validated on {seen} of the "
            f"{count} images, again and again, and no worker on the other "
            f"{count - seen}.",
        )


def _raise_if_other_rate(run: Run, epochs: list[Epoch]) -> None:
    """Raise the Problem of a stopwatch that counts the images of one worker, or those
    of all once for each."""
    trained = _images(epochs)
    if run.size == 1 or not trained:
        return
    for callback in run.ranks[0].all("callback"):
        after = callback["after"]
        if {"images_per_second", "seconds"} <= set(after):
            counted = after["images_per_second"] * after["seconds"]
            words = {
                "rate-of-one": "those of one worker",
                "rate-times-n": f"{run.size} times as many",
            }
            of_one, times_n = trained / run.size, trained * run.size
            fault = classify(counted, {"rate-of-one": of_one, "rate-times-n": times_n})
            if fault:
                raise Problem(
                    fault,
                    f"On {_workers(run.size)} images_per_second counts {counted:.0f} "
                    f"images in an epoch, {words[fault]}; all workers together trained "
                    f"on {trained}.",
                    callback["made"],
                )
            return


def _workers(size: int) -> str:
    return f"{size} worker{'s' * (size > 1)}"


def _listed(done: list[int]) -> str:
    """Steps by rank: "3", or "4 (rank 0) and 3 (rank 1)" where they differ."""
    if len(set(done)) == 1:
        return str(done[0])
    return " and ".join(f"{steps} (rank {rank})" for rank, steps in enumerate(done))


def _who_did(done: list[int]) -> str:
    if len(set(done)) == 1:
        return f"each did {done[0]}" if len(done) > 1 else f"it did {done[0]}"
    return ", ".join(f"rank {rank} did {steps}" for rank, steps in enumerate(done))


def _and(numbers) -> str:
    """ "3, 4 and 8"."""
    *most, last = map(str, sorted(numbers))
    return f"{', '.join(most)} and {last}" if most else last
