"""Are the gradients averaged?"""

import enum
import math
from collections.abc import Iterator

import numpy as np

from distcheck.judges.audit.recorded import (
    UNKNOWN,
    Answer,
    RecordedRun,
    batch_size,
)
from distcheck.judges.audit.sketches import (
    RTOL_DIFFERENT,
    RTOL_EQUAL,
    RTOL_FP16,
    distance,
    groups_of,
    in_order,
    spread_of,
    spreads_of_weights,
    unit,
)
from distcheck.judges.audit.words import count_of
from distcheck.verdict import RIGHT, WRONG

LEAST_CLIPPED = 2  # updates, from which a length can be told
LEAST_SCALED = 3  # updates with one factor, which is no chance
RTOL_FACTOR = 1e-3
FIRST = 6  # updates whose losses are compared


class Combined(enum.Enum):
    """Which combination of the workers' own gradients was applied."""

    MEAN = enum.auto()
    SUM = enum.auto()
    MEAN_OVER_N = enum.auto()  # divided by the number of workers once more
    SUM_TWICE = enum.auto()  # by the program, and by the strategy
    OWN = enum.auto()  # none


def gradients(parallel: RecordedRun, single: RecordedRun | None) -> Answer:
    """Were the gradients averaged, once, over all?"""
    if len(parallel.each) < 2:
        return UNKNOWN, f"The gradients of only one {parallel.word} were seen."
    answers = [_gradients_of(parallel, single, group) for group in groups_of(parallel)]
    for verdict in (WRONG, UNKNOWN):
        for answer in answers:
            if answer[0] == verdict:
                return answer
    return answers[0] if answers else (UNKNOWN, "No update of all workers was seen.")


def _gradients_of(
    parallel: RecordedRun, single: RecordedRun | None, group: int
) -> Answer:
    size = len(parallel.each)
    locals_ = [worker.updates("local", group) for worker in parallel.each]
    applied = [worker.updates("applied", group) for worker in parallel.each]
    if parallel.kind == "tf.distribute":  # one of its replicas may apply it for all
        applied = [found or next(filter(None, applied), {}) for found in applied]
    seen: dict[int, Combined] = {}  # by update
    reduced: list[float] = []
    where = None
    differing = alike = 0
    sums: list[bool] = []  # of equal gradients: are they summed?
    for update in sorted(set.intersection(*(set(found) for found in locals_))):
        if not all(update in found for found in applied):
            continue
        own = [
            np.sum([event["sketch"] for event in found[update]], axis=0)
            for found in locals_
        ]
        calls = len(locals_[0][update])
        used = [np.asarray(found[update][-1]["sketch"]) for found in applied]
        where = applied[0][update][-1]["where"] or where
        if not all(np.isfinite(a).all() for a in (*own, *used)):
            continue
        mean = np.mean(own, axis=0)
        if spread_of(own) < 0.05:  # equal ones are their own mean, but not their sum
            if mean.any():
                far = max(distance(u, size * mean) for u in used)
                sums.append(far < RTOL_FP16)
            continue
        differing += 1
        reduced.append(applied[0][update][-1]["reduced"])
        factor = _combination(own, used, mean, calls, parallel.kind != "Horovod")
        if factor is not None:
            seen[update] = factor
        elif all(distance(unit(u), unit(mean)) < RTOL_FP16 for u in used):
            alike += 1
    where = where or parallel.fit_line
    weights = spreads_of_weights(parallel, group)
    if not differing and sums and all(sums):
        seen = {0: Combined.SUM}
    elif not differing:
        if not any(applied) and _spread_apart(parallel, group):
            return _by_weights(weights, where)
        if not sums:
            return UNKNOWN, f"No update was seen that every {parallel.word} applies."
        return UNKNOWN, "All gradients are equal, so averaging would not change them."
    if not seen and _is_scaled_sum(parallel, single, group):
        return _summed(parallel, single, group, where)
    if not seen and alike == differing:
        return _of_another_length(parallel, single, group, where)
    if not seen and (answer := _sum_of_clipped(parallel, single, group, where)):
        return answer
    if not seen and _are_equal_in_the_end(parallel):
        # Reports of one replica may come when another one has gone on to its update.
        return UNKNOWN, (
            "All copies of the weights are equal in the end, so the gradients are "
            "combined, but the factor can't be told."
        )
    if not seen:
        return _by_weights(weights, where)
    seen = _after_a_broadcast(seen, weights)
    kinds = set(seen.values())
    if Combined.OWN in kinds:
        return (
            WRONG,
            f"Each {parallel.word} applies its own gradients: they are not averaged"
            f"{'' if len(kinds) == 1 else ' in some updates'}.",
            where,
        )
    if len(kinds) > 1:
        return UNKNOWN, "The gradients are not combined in the same way in all updates."
    (kind,) = kinds
    # A loss that is averaged as well is a number more.
    times = int(np.median(reduced) + 0.1) if reduced else 0
    scaled = _scaled(single, group) if single else []
    # Clipping makes nothing longer, so it makes no sum of a mean.
    clipped = kind == Combined.SUM and not all(scaled)
    if kind != Combined.MEAN and any(scaled) and not clipped:
        if parallel.kind != "Horovod" and kind == Combined.SUM:
            return _of_another_length(parallel, single, group, where)
        return UNKNOWN, (
            "The gradients are scaled on one worker as well, so how they are combined "
            "can't be told from their size."
        )
    if kind == Combined.SUM:
        return _summed(parallel, single, group, where)
    if kind == Combined.MEAN_OVER_N:
        return (
            WRONG,
            f"The gradients are averaged, and divided by {size} once more.",
            where,
        )
    if kind == Combined.SUM_TWICE:
        return (
            WRONG,
            f"The gradients are summed over all {size} {parallel.word}s twice, by the "
            "program and by the strategy.",
            where,
        )
    if times > 1:
        return WRONG, f"The gradients are averaged {times} times at each update.", where
    weight = _weight_of_losses(parallel, single, group, share=1)
    # What is divided before it is summed up shows in the losses alone.
    if (
        _is_near(weight, 1 / size)
        and _ratio_of_losses(parallel, single, group) < size**-0.5
    ):
        return (
            WRONG,
            f"The loss is divided by {size}, and the gradients are averaged as well, "
            f"so they are {size} times too small.",
            where,
        )
    return (
        RIGHT,
        f"The mean over all {size} {parallel.word}s is applied, as "
        f"{count_of(len(seen), 'update')} show{'s' * (len(seen) == 1)}.",
    )


def _after_a_broadcast(
    seen: dict[int, Combined], weights: dict[int, float]
) -> dict[int, Combined]:
    """What counts of the updates: not those with the workers' own gradients of which
    nothing is left, because the weights were made equal after them, and stay equal."""
    last = max(
        (update for update, kind in seen.items() if kind == Combined.OWN), default=0
    )
    later = {update: kind for update, kind in seen.items() if update > last}
    spreads = [spread for update, spread in weights.items() if update > last]
    return later if later and max(spreads) <= RTOL_EQUAL else seen


def _scaled(single: RecordedRun, group: int) -> list[bool]:
    """Does a worker that is alone apply something else than its own gradients, at each
    update?"""
    found = []
    for worker in single.each:
        applied = worker.updates("applied", group)
        for update, events in worker.updates("local", group).items():
            if update in applied:
                own = [np.sum([event["sketch"] for event in events], axis=0)]
                used = [np.asarray(applied[update][-1]["sketch"])]
                how = _combination(own, used, own[0], len(events), False)
                found.append(how is None)
    return found


def _combination(own, used, mean, calls: int, strategy: bool) -> Combined | None:
    """Which combination of the local gradients was applied; None if that isn't clear.

    strategy: it is one of tf.distribute, whose optimizers sum by themselves.
    """
    size, all_passes = len(own), sorted({1, calls})
    # Of as many passes as workers, the mean looks like what is divided once more.
    factors = {Combined.MEAN: 1, Combined.SUM: size, Combined.MEAN_OVER_N: 1 / size}
    if strategy:
        factors[Combined.SUM_TWICE] = size**2
    for name, factor in factors.items():
        for passes in all_passes:
            target = mean * factor / passes
            if all(distance(u, target) < RTOL_FP16 for u in used):
                return name
    for passes in all_passes:
        pairs = zip(own, used, strict=True)
        if all(distance(u, o / passes) < RTOL_FP16 / 2 for o, u in pairs):
            return Combined.OWN
    return None


def _is_scaled_sum(
    parallel: RecordedRun, single: RecordedRun | None, group: int
) -> bool:
    """Is it a sum over all replicas that is applied, multiplied by the same number as
    the gradients of one that is alone? That is so where a loss is scaled for float16,
    and the gradients are scaled back."""
    if parallel.kind == "Horovod" or single is None:
        return False
    ours, its = _factor(parallel, group), _factor(single, group)
    if not ours or not its:
        return False
    return _is_near(ours / its, len(parallel.each))


def _factor(run: RecordedRun, group: int) -> float | None:
    """By what the mean of the workers' own gradients is multiplied, if that is the same
    number in each update, whatever their length; but a few updates may be told too late
    or too early. None where there was no such number, or a loss overflowed, after which
    the scale is another one."""
    events = [e for w in run.each for e in w.all("local") if e["group"] == group]
    if not all(np.isfinite(event["sketch"]).all() for event in events):
        return None
    factors, lengths, others = [], [], 0
    for own, used in _sums(run, group):
        length = np.linalg.norm(own)
        if length and distance(unit(used), unit(own)) < RTOL_FP16:
            factors.append(float(np.linalg.norm(used) / length * len(run.each)))
            lengths.append(float(length))
        else:
            others += 1
    if len(factors) < max(LEAST_SCALED, 3 * others):
        return None
    same = max(factors) < (1 + RTOL_FACTOR) * min(factors)
    varies = max(lengths) > (1 + RTOL_FP16) * min(lengths)  # clipped ones do not
    return float(np.median(factors)) if same and varies else None


def _sums(run: RecordedRun, group: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Of each update that all workers computed gradients for: the sketch of the sum of
    all of these, and that of what was applied."""
    locals_ = [worker.updates("local", group) for worker in run.each]
    applied = next(filter(None, (w.updates("applied", group) for w in run.each)), {})
    for update in sorted(set.intersection(set(applied), *map(set, locals_))):
        own = np.sum([e["sketch"] for f in locals_ for e in f[update]], axis=0)
        yield own, np.asarray(applied[update][-1]["sketch"])


def _are_equal_in_the_end(parallel: RecordedRun) -> bool:
    """Does a strategy of one process end with equal copies of each weight?"""
    apart = [max(end["copies"]) for end in parallel.ends() if end.get("copies")]
    return parallel.kind == "tf.distribute" and bool(apart) and not any(apart)


def _by_weights(weights: dict[int, float], where: str | None) -> Answer:
    """Whether gradients are combined, by what comes of it.

    weights: how far they are apart before each update.
    """
    later = [spread for update, spread in sorted(weights.items()) if update > 2]
    if not later:
        return UNKNOWN, "No optimizer's updates were seen."
    if max(later) <= RTOL_EQUAL:
        return UNKNOWN, (
            "The gradients differ, but the weights stay equal. So the gradients are "
            "combined, but the factor can't be told."
        )
    if min(weights.values()) > RTOL_EQUAL:
        return (
            UNKNOWN,
            "The weights are never equal, so they don't show what is applied.",
        )
    if min(later[-3:]) > RTOL_DIFFERENT:
        return (
            WRONG,
            "The gradients differ, and so do the weights after the updates.",
            where,
        )
    return UNKNOWN, "The weights are sometimes equal and sometimes not."


def _spread_apart(parallel: RecordedRun, group: int) -> bool:
    """Do the workers' own gradients differ at all?"""
    found = [worker.updates("local", group) for worker in parallel.each]
    common = set.intersection(*(set(f) for f in found))
    return any(spread_of([f[u][0]["sketch"] for f in found]) > 0.05 for u in common)


def _of_another_length(
    parallel: RecordedRun, single: RecordedRun | None, group: int, where: str | None
) -> Answer:
    """Gradients that are clipped, or of a scaled loss. If a strategy sums them, it is
    their loss that tells whether the sum is a mean; but a program may have averaged
    them before it clipped them, and then applied them as they are."""
    text = (
        f"The applied gradients have the direction of the mean over all "
        f"{len(parallel.each)} {parallel.word}s, but another length, as they have when "
        "they are clipped or the loss is scaled."
    )
    if parallel.kind == "Horovod":
        return RIGHT, text
    summed = _summed(parallel, single, group, where)
    if summed[0] == RIGHT:
        return RIGHT, text
    if summed[0] == WRONG:
        return UNKNOWN, f"{text} Whether they were summed before can't be told."
    return UNKNOWN, f"{text} {summed[1]}"


def _sum_of_clipped(
    parallel: RecordedRun, single: RecordedRun | None, group: int, where: str | None
) -> Answer | None:
    """Are the gradients that a strategy applies too long to be clipped by a norm after
    they were combined?

    That would give them the same length on any number of workers. Where each of N clips
    its own first, the sum is as long as N at right angles, or longer. Ask this only of
    updates that leave the direction of the mean, or the sum may just be scaled.
    """
    if parallel.kind == "Horovod" or single is None:
        return None
    (ours, _), (its, factors) = (_clipped(r, group) for r in (parallel, single))
    if min(len(ours), len(its)) < LEAST_CLIPPED:
        return None
    # What a loss was scaled by is the same number in each update.
    varies = max(factors) > (1 + RTOL_FP16) * min(factors)
    # A sketch tells a length but for some percent.
    ratio = float(np.median(ours) / np.median(its))
    size = len(parallel.each)
    too_long = varies and ratio > 0.95 * size**0.5
    if not too_long or _summed(parallel, single, group, where)[0] != WRONG:
        return None
    return (
        WRONG,
        f"Each {parallel.word} clips or scales its own gradients, and they are summed, "
        f"not averaged: no {parallel.word} divides its loss by {size}.",
        where,
    )


def _clipped(run: RecordedRun, group: int) -> tuple[list[float], list[float]]:
    """Of the updates whose gradients are shorter than all that were computed together,
    as clipped ones are: how long these are, absolute and relative."""
    lengths, factors = [], []
    for own, used in _sums(run, group):
        length, whole = (float(np.linalg.norm(sketch)) for sketch in (used, own))
        if 0 < length < (1 - RTOL_FP16) * whole:  # and no NaN
            lengths.append(length)
            factors.append(length / whole)
    return lengths, factors


def _summed(
    parallel: RecordedRun, single: RecordedRun | None, group: int, where: str | None
) -> Answer:
    size = len(parallel.each)
    weight = _weight_of_losses(parallel, single, group)
    if _is_near(weight, 1 / size):
        return RIGHT, (
            f"The sum over all {size} {parallel.word}s is applied, and each divides "
            f"its loss by {size}."
        )
    ratio = _ratio_of_losses(parallel, single, group)
    for share in (1, size):
        alike = _weight_of_losses(parallel, single, group, share=share)
        if _is_near(alike, size**-2) and ratio < size**-1.5:
            how = (
                f"The loss is divided by {size} twice, as it is when both the program "
                "and Keras divide it,"
            )
            if share > 1:
                how = (
                    f"All {size} {parallel.word}s together have a batch as large as "
                    f"that of one which is alone, but a sample counts only 1/{size} of "
                    f"what it counts there: the loss is divided by {size} twice,"
                )
            return WRONG, f"{how} so the gradients are {size} times too small.", where
    fits = parallel.all("fit") if parallel.kind != "Horovod" else []
    by_keras = bool(fits) and not any(event["own_step"] for event in fits)
    undivided = _is_near(weight, 1) and ratio > size**-0.5
    if by_keras and not (undivided and _is_mean(single, group)):
        return RIGHT, (
            f"The sum over all {size} {parallel.word}s is applied, and Keras divides "
            "the loss."
        )
    if undivided and _is_sum_over_samples(single, group):
        return UNKNOWN, (
            "The gradients are summed, and so are the losses of a batch on one "
            f"{parallel.word}. Whether the step shall grow with the global batch can't "
            "be told."
        )
    if undivided:
        why = (
            f"Keras 3 divides by {size} only a loss that has a number for each sample, "
            "and this one is their mean"
            if by_keras
            else f"no {parallel.word} divides its loss by {size}"
        )
        return (
            WRONG,
            f"The gradients are summed, not averaged: they are {size} times too large, "
            f"because {why}.",
            where,
        )
    return UNKNOWN, (
        f"The gradients are summed, which is right if each {parallel.word} divides its "
        f"loss by {size}."
    )


def _is_near(value: float | None, target: float) -> bool:
    return value is not None and abs(value / target - 1) < RTOL_FP16


def _is_mean(run: RecordedRun | None, group: int) -> bool:
    """Do a batch's losses count 1 together in the loss of a worker, as in a mean?"""
    totals = _totals(run, group)
    return totals is not None and bool((abs(totals[:, 0] - 1) < RTOL_FP16).all())


def _is_sum_over_samples(single: RecordedRun | None, group: int) -> bool:
    """Does each sample, or each number that is summed up, count 1 in the loss of a
    worker that is alone, and not the batch as a whole? Then a sum over all workers is
    what one worker computes of the global batch."""
    totals = _totals(single, group)
    if single is None or totals is None or any(_scaled(single, group)):
        return False
    if any(_is_near(count, 1) for count in totals[:, 0]):
        return False
    batch = batch_size(single) or 0
    return any(
        _is_near(count, whole)
        for count, size, _ in totals
        for whole in (size, batch)
        if whole > 1
    )


def _totals(run: RecordedRun | None, group: int) -> np.ndarray | None:
    """In a worker's first loss, how much all that was summed up counts together, how
    many numbers these are, and how much those that aren't 0 count; on average over the
    workers."""
    found = []
    for worker in run.each if run else ():
        events = in_order(worker.updates("local", group))
        totals = np.reshape(events[0]["totals"] if events else [], (-1, 3))
        totals = totals[np.isfinite(totals[:, 0])]  # others are masks, or have diverged
        several = totals[:, 1] > 1  # the sum of one number is that number
        found.append(totals[several] if several.any() else totals)
    shapes = {np.shape(totals) for totals in found}
    if len(shapes) != 1 or not np.size(found[0]):
        return None
    return np.mean(found, axis=0)


def _weight_of_losses(
    parallel: RecordedRun, single: RecordedRun | None, group: int, share: int = 0
) -> float | None:
    """How much a batch's losses count in the loss of one of many workers, where they
    count 1 on a worker that is alone; None if that can't be told. It hangs on neither
    weights nor samples.

    share: only where so many workers have as many of them as one that is alone.
    """
    ours, its = _totals(parallel, group), _totals(single, group)
    if ours is None or its is None or ours.shape != its.shape:
        return None
    # What counts 1 on a worker that is alone is the loss; other sums, as of a mean that
    # a network takes away from its outputs, say nothing of how the loss is divided. For
    # float16, all of them are scaled, and the gradients are scaled back.
    whole = (abs(its[:, ::2] - 1) < RTOL_FP16).any(axis=1)
    if not whole.any() and single and (back := _factor(single, group)):
        whole = (abs(its[:, ::2] * back - 1) < RTOL_FP16).any(axis=1)
    if share != 1 and whole.any():
        ours, its = ours[whole], its[whole]
    if share and (share * ours[:, 1] != its[:, 1]).any():
        return None
    # What counts nothing anywhere, such as a part of the loss that begins later, says
    # nothing either.
    counts = (ours[:, ::2] != 0).any(axis=1) | (its[:, ::2] != 0).any(axis=1)
    ours, its = ours[counts], its[counts]
    found = []
    for column in (0, 2):  # all of them, or those that aren't masked
        if its[:, column].size and its[:, column].all():
            weights = ours[:, column] / its[:, column]
            if np.ptp(weights) < RTOL_FP16 * abs(weights[0]):
                found.append(float(weights[0]))
    size = len(parallel.each)
    told = (w for w in found if any(_is_near(w, 1 / n) for n in (1, size, size**2)))
    return next(told, next(iter(found), None))


def _ratio_of_losses(
    parallel: RecordedRun, single: RecordedRun | None, group: int
) -> float:
    """A worker's losses over those of one that is alone; NaN if they say nothing."""
    means = [
        np.mean(
            [
                event["loss"]
                for worker in run.each
                for event in in_order(worker.updates("local", group))
                if event["update"] <= FIRST
            ]
            or [math.nan]
        )
        for run in (parallel, single)
        if run
    ]
    return float(means[0] / means[1]) if len(means) == 2 and means[1] else math.nan
