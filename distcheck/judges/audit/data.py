"""Which samples do the workers train on and validate with?"""

import itertools
import math
from collections import Counter

import numpy as np

from distcheck.judges.audit.made import without_what_is_made
from distcheck.judges.audit.recorded import (
    MIN_COVERAGE,
    NEEDS_ONE_WORKER,
    UNKNOWN,
    Answer,
    RecordedRun,
    Worker,
    are_alike,
    batch_size,
    split_digests,
)
from distcheck.judges.audit.words import in_epochs, listed
from distcheck.verdict import RIGHT, WRONG

LEAST_IN_COMMON = 4  # batches, of which it is no chance that all workers have them


def different(parallel: RecordedRun, single: RecordedRun | None) -> Answer:
    """Did workers see different data?"""
    workers = parallel.each
    batches = [worker.samples("train") for worker in workers]
    if len(workers) < 2 or not all(batches):
        return UNKNOWN, "The samples that go into the model were not seen."
    length = min(map(len, batches))
    pairs = [[set(b[i] or ()) for b in batches] for i in range(length)]
    pairs = [row for row in pairs if all(row)]
    if not pairs:
        return UNKNOWN, (
            "There were too many samples, or too large ones, to tell them apart."
        )
    same = sum(all(s == row[0] for s in row) for row in pairs)
    if same and are_alike([batch for worker in batches for batch in worker if batch]):
        return UNKNOWN, (
            "Most samples of a batch are equal, so whether two workers have the same "
            "ones can't be told."
        )
    if same >= max(1, 0.9 * len(pairs)):
        return (
            WRONG,
            f"All {parallel.word}s train on the same samples in {same} of {len(pairs)} "
            "batches.",
            parallel.fit_line,
        )
    shared = [
        sum(bool(set.intersection(*row)) for row in pairs),
        len(pairs),
    ]
    first = workers[0].distinct
    common = first.intersection(*(w.distinct for w in workers[1:]))
    labels = _different_labels(parallel, single)
    # Augmented samples may come out the same by chance.
    if not common or (labels[0] != RIGHT and len(common) < 0.1 * len(first)):
        return labels
    if same:
        text = f"{same} of {len(pairs)} batches are the same on all {parallel.word}s"
        if _rest_is_made_anew(batches):
            return (
                WRONG,
                f"{text}. No sample of the others comes again, as of those that a "
                "network makes.",
                parallel.fit_line,
            )
        return UNKNOWN, f"{text}."
    if not shared[0]:
        return (
            RIGHT,
            f"No sample is trained on by two {parallel.word}s in the same step.",
        )
    parts = [set(w.passes[0]) for w in workers if w.passes]
    if parallel.kind == "TF_CONFIG" and len(parts) == len(workers):
        twice = len(set.intersection(*parts))
        return UNKNOWN, (
            f"The batches differ, but all {parallel.word}s train on the same {twice} "
            "samples in the first epoch. Does each shuffle in its own order before it "
            "takes its part?"
        )
    return RIGHT, (
        f"The batches differ, but in {shared[0]} of {shared[1]} steps all "
        f"{parallel.word}s have a sample in common."
    )


def _rest_is_made_anew(batches: list[list[list[str] | None]]) -> bool:
    """Do samples come again in all batches that workers have in common, and in no
    other, as where a network is shown real images and those that another one makes?
    A few batches that come all the time may be meant for all."""
    seen = [[batch for batch in worker if batch] for worker in batches]
    if list(map(len, seen)) != list(map(len, batches)):
        return False
    common, counts = set(), [Counter(itertools.chain(*worker)) for worker in seen]
    for row in zip(*seen, strict=False):
        if all(set(batch) == set(row[0]) for batch in row):
            common.add(frozenset(row[0]))
            if min(counts[0][sample] for sample in row[0]) < 2:
                return False
        elif any(sum(c[s] for c in counts) > 1 for batch in row for s in batch):
            return False
    return len(common) >= LEAST_IN_COMMON


def _different_labels(parallel: RecordedRun, single: RecordedRun | None) -> Answer:
    """Are samples of which no worker has another's the same but for augmentation?"""
    labels = [
        [split_digests(event["digests"]) for event in worker.all("labels")]
        for worker in parallel.each
    ]
    pairs = list(zip(*labels, strict=False))
    same = sum(all(batch == row[0] for batch in row) for row in pairs)
    equal = pairs and same >= 0.9 * len(pairs) and not _are_regular(labels[0])
    if equal and not _come_again(parallel):
        text = (
            f"All {parallel.word}s train on the same labels in {same} of {len(pairs)} "
            "batches"
        )
        if _are_made_anew(parallel, single):
            return (
                WRONG,
                f"{text}, so their samples are the same, but for what is random in "
                "them.",
                parallel.fit_line,
            )
        return UNKNOWN, (
            f"{text}. Whether their samples are the same, but for what is random in "
            "them, can't be told."
        )
    if _never_twice(parallel) and (not pairs or same > 0.1 * len(pairs)):
        return UNKNOWN, (
            f"No sample comes twice on one {parallel.word}, so whether two have the "
            "same ones can't be told."
        )
    return RIGHT, f"No sample is trained on by two {parallel.word}s."


def _come_again(run: RecordedRun) -> bool:
    """Do samples come again unchanged on their own worker? Nothing in these is random,
    so they aren't the samples of another worker, whatever their labels are."""
    for worker in run.each:
        drawn = sum(len(batch or ()) for batch in worker.samples("train"))
        if len(worker.distinct) <= 0.75 * drawn:
            return True
    return False


def _are_made_anew(parallel: RecordedRun, single: RecordedRun | None) -> bool:
    """Are most samples other ones each time, as far as is known? A single pass doesn't
    show it; but one worker would have some of the same, if nothing in them is random.
    """
    if single is None:
        return _never_twice(parallel)
    alone = set().union(*(worker.distinct for worker in single.each))
    return bool(alone) and all(
        len(worker.distinct & alone) < 0.25 * len(worker.distinct)
        for worker in parallel.each
    )


def _are_regular(batches: list[list[str]]) -> bool:
    """Are labels so few or so regular that those of other samples may be the same?"""
    cycles = (n for n in range(1, len(batches)) if batches[n:] == batches[:-n])
    # The whole data, over and over, say as much as once.
    batches = batches[: next(cycles, None)]
    flat = [label for batch in batches for label in batch]
    if len(flat) < 32:
        return True
    if len({tuple(batch) for batch in batches}) < 0.9 * len(batches):
        return True
    # Labels that are sorted follow labels of their own class more often than by chance.
    by_chance = sum(n**2 for n in Counter(flat).values()) / len(flat) ** 2
    alike = np.mean([a == b for a, b in itertools.pairwise(flat)])
    if alike > (1 + by_chance) / 2:
        return True
    return any(flat[n:] == flat[:-n] for n in range(1, len(flat) // 2 + 1))


def everything(parallel: RecordedRun, single: RecordedRun | None) -> Answer:
    """Is all of the data seen?"""
    if single is None:
        return UNKNOWN, NEEDS_ONE_WORKER
    if not (parallel.whole and single.whole):
        return UNKNOWN, "The program did not finish."
    parallel, single = without_what_is_made(parallel, single)
    union = set().union(*(w.distinct for w in parallel.each))
    alone = set().union(*(w.distinct for w in single.each))
    if not union or not alone:
        return UNKNOWN, "The samples that go into the model were not seen."
    if _too_many(parallel) or _too_many(single):
        return UNKNOWN, "There are too many samples to tell them apart."
    if _never_twice(single):
        return UNKNOWN, (
            "No sample comes twice, because samples are augmented or drawn anew."
        )
    part = len(union & alone) / len(alone)
    # One worker leaves out what fills no batch, if it has other samples at all.
    slack = parallel.workers * (batch_size(parallel) or 0)
    if len(union - alone) > min(slack, len(union & alone)):
        return UNKNOWN, (
            f"The workers train on {len(union & alone)} of the {len(alone)} samples "
            f"that one worker trains on, and on {len(union - alone)} others: each has "
            "data of its own, some are made anew, or an epoch is less than one pass."
        )
    if part >= MIN_COVERAGE:
        return RIGHT, (
            f"The workers train on all {len(alone)} samples that one worker trains on."
        )
    text = (
        f"The workers train on {len(union & alone)} of the {len(alone)} samples that "
        "one worker trains on"
    )
    drawn = sum(w.draws("train") for w in parallel.each)
    if len(alone) - len(union & alone) < slack and part > 0.8:
        return RIGHT, f"{text}: fewer are left out than fit in a batch of each."
    sets = [w.distinct for w in parallel.each]
    if all(s == sets[0] for s in sets) and drawn >= len(alone) * 0.9:
        return WRONG, f"{text}, and no worker sees the others.", parallel.fit_line
    passes = [w.passes for w in parallel.each]
    counts = {len(p) for p in passes}
    if len(counts) == 1 and min(counts) > 1:
        by_epoch = [set().union(*(p[k] for p in passes)) for k in range(counts.pop())]
        # Samples that are drawn anew would bring many of those left out before.
        found = len(set().union(*by_epoch) - by_epoch[0])
        later = drawn * (1 - 1 / len(by_epoch))
        expected = later * len(alone - union) / len(alone)
        same = all(seen == by_epoch[0] for seen in by_epoch)
        if same or (found <= slack and expected > 4 * slack):
            text = (
                f"{text}, the same ones in every epoch, and no worker sees the others"
            )
            if set.intersection(*sets) and parallel.kind != "tf.distribute":
                text += (
                    ": each shuffles in an order of its own before it takes its part"
                )
            return WRONG, f"{text}.", parallel.fit_line
    return UNKNOWN, f"{text}. More epochs may show the rest."


def _too_many(run: RecordedRun) -> bool:
    """Were there samples that were only counted?"""
    return any(None in worker.samples("train") for worker in run.each)


def _never_twice(run: RecordedRun) -> bool:
    """Did no sample come again in another epoch?"""
    for worker in run.each:
        if len(worker.passes) > 1:
            first, second = map(set, worker.passes[:2])
            return bool(first) and bool(second) and not first & second
    return False


def order(parallel: RecordedRun, single: RecordedRun | None) -> Answer:
    """Is the order of the samples another in each epoch?"""
    parallel, *rest = without_what_is_made(*filter(None, (parallel, single)))
    single = rest[0] if rest else None
    if not parallel.readers:
        return UNKNOWN, "The samples that go into the model were not seen."
    for worker in parallel.readers:
        if len(worker.passes) < 2 or len(worker.passes[0]) < 2:
            return UNKNOWN, "No two epochs were seen."
    if any(_never_twice(run) for run in (parallel, single) if run):
        return UNKNOWN, (
            "No sample comes again in the next epoch: the samples are augmented or "
            "drawn anew, or an epoch is less than one pass."
        )
    if any(_too_many(run) for run in (parallel, single) if run):
        return UNKNOWN, "There are too many samples to tell them apart."
    fixed = [w.name for w in parallel.readers if w.repeats]
    if not fixed:
        return RIGHT, "The order is different in each epoch."
    text = f"The order is the same in each epoch on {listed(fixed)}"
    if single is None:
        return UNKNOWN, f"{text}. {NEEDS_ONE_WORKER}"
    alone = single.readers[0] if single.readers else None
    if alone is None or len(alone.passes) < 2 or alone.repeats:
        return UNKNOWN, f"{text}, as it is on one worker: the program does not shuffle."
    return WRONG, f"{text}, but it changes on one worker.", parallel.fit_line


def one_pass(parallel: RecordedRun, single: RecordedRun | None) -> Answer:
    """Is one epoch one pass over the data?"""
    if single is None:
        return UNKNOWN, NEEDS_ONE_WORKER
    if not (parallel.whole and single.whole):
        return UNKNOWN, "The program did not finish."
    parallel, single = without_what_is_made(parallel, single)
    drawn = sum(w.draws("train") for w in parallel.each)
    alone = sum(w.draws("train") for w in single.each)
    if not drawn or not alone:
        return UNKNOWN, "The samples that go into the model were not seen."
    size = len(parallel.each)
    ours = max([w.epochs for w in parallel.each], default=0) or 1
    its = max([w.epochs for w in single.each], default=0) or 1
    slack = size * (batch_size(parallel) or 0)
    whole = abs(drawn - alone) <= 0.1 * alone + slack * its
    epoch = abs(drawn / ours - alone / its) <= 0.1 * alone / its + slack
    ratio = (drawn / ours) / (alone / its)
    # Where an epoch is but a few batches, what fills none may be as much as all of it.
    twice = size > 1 and min(ratio, drawn / alone) > 0.75 * size
    if (whole or epoch) and not twice:
        return RIGHT, (
            f"All {parallel.word}s together train on {drawn} "
            f"samples{in_epochs(parallel)}, and one worker trains on "
            f"{alone}{in_epochs(single)}."
        )
    text = (
        f"An epoch of {size} {parallel.word}s has {drawn / ours:.0f} samples, and an "
        f"epoch of one worker has {alone / its:.0f}"
    )
    if ours != its:
        return UNKNOWN, f"{text}, but there are {ours} epochs, not {its}."
    few = whole or epoch  # so few batches that steps for all may be rounded up
    if (
        (few or not _is_a_pass(alone / its, parallel, single))
        and not _draw_the_same(parallel, single)
        and different(parallel, single)[0] != WRONG
    ):
        return UNKNOWN, (
            f"{text}, but an epoch of one worker is no pass over all of the samples "
            "that were seen."
        )
    if ratio > 0.75 * size and _grown(parallel, single):
        return WRONG, f"{text}: {_grown(parallel, single)}", parallel.fit_line
    if ratio > 0.75 * size:
        return (
            WRONG,
            f"{text}: each {parallel.word} does as much as one that is alone.",
            parallel.fit_line,
        )
    if ratio < 1.25 / size:
        return (
            WRONG,
            f"{text}: the work is divided by {size} more than once.",
            parallel.fit_line,
        )
    return UNKNOWN, f"{text}."


def _grown(parallel: RecordedRun, single: RecordedRun) -> str:
    """Words for batches that are larger on each worker than on one that is alone."""
    ours, its = batch_size(parallel) or 0, batch_size(single) or 0
    if parallel.kind != "Horovod" or ours < 1.5 * its:
        return ""
    text = f"there are {ours} samples in each worker's batch, and {its} in one worker's"
    if any(event.get("by_steps") for event in parallel.all("fit")):
        text += ", because without a batch_size `fit` divides them by steps_per_epoch"
    return f"{text}."


def _is_a_pass(drawn: float, parallel: RecordedRun, single: RecordedRun) -> bool:
    """Does one worker go once over all samples that were seen in both runs, in so many
    draws; or, in a loop of its own, whose epochs are not seen, several times?"""
    if _too_many(parallel) or _too_many(single):
        return False
    batch = batch_size(single) or 0
    samples = len(
        set().union(*(w.distinct for run in (parallel, single) for w in run.each))
    )
    if samples <= batch:  # one batch, over and over
        return False
    # Where each has data of its own, one worker goes over its own part again and again.
    # Where batches are drawn at random, one worker has missed some samples by chance.
    alone = len(set().union(*(w.distinct for w in single.each)))
    if samples - alone > samples / 4:
        return False
    passes = 1 if single.each[0].epochs else max(1, math.ceil(drawn / samples))
    if passes > 1:  # what fills no batch may be missing from each
        left = passes * samples - drawn
        return left == 0 or left < passes * batch <= samples / 4
    return abs(drawn - samples) <= max(batch, samples / 10)


def _draw_the_same(parallel: RecordedRun, single: RecordedRun) -> bool:
    """Has each worker the samples that one worker has, as often, in each epoch; or in
    all, in a loop of its own? That is a pass, even if some samples are equal. But if
    most come several times, those of two parts may be equal."""
    if _too_many(parallel) or _too_many(single):
        return False
    parts = [
        part
        for run in (single, parallel)
        for worker in run.each
        for part in (worker.passes if worker.epochs else [_drawn(worker)])
    ]
    whole, *others = map(Counter, parts)
    if len(whole) <= (batch_size(single) or 0):
        return False
    often, equally_often = Counter(whole.values()).most_common(1)[0]
    if equally_often < 0.75 * len(whole):
        return False
    if single.each[0].epochs and often > 1:
        return False
    return all(
        (whole & part).total() >= 0.9 * max(whole.total(), part.total())
        for part in others
    )


def _drawn(worker: Worker) -> list[str]:
    return [digest for batch in worker.samples("train") for digest in batch or ()]


def validation(parallel: RecordedRun, single: RecordedRun | None) -> Answer:
    """Who validates what?"""
    sets = [
        {d for batch in worker.samples("validate") for d in batch or ()}
        for worker in parallel.each
    ]
    who = [w.name for w, s in zip(parallel.each, sets, strict=True) if s]
    if not who:
        return UNKNOWN, "No Keras model was seen to validate."
    union = set().union(*sets)
    alone = set()
    for worker in single.each if single else ():
        alone |= {d for batch in worker.samples("validate") for d in batch or ()}
    if len(who) < len(parallel.each):
        how = f"only {listed(who)} validate{'s' * (len(who) == 1)}"
    elif all(s == sets[0] for s in sets):
        how = f"all {parallel.word}s validate on the same samples"
    elif not set.intersection(*sets):
        how = f"each {parallel.word} validates on its own samples"
    else:
        how = f"each {parallel.word} validates on samples that others have, too"
    text = f"{how}, {len(union)} in all"
    text = text[0].upper() + text[1:]
    if not alone:
        why = NEEDS_ONE_WORKER if single is None else "A single worker has none."
        return UNKNOWN, f"{text}. {why}"
    if single and (looked_at := _same_part_each_time(parallel, single)):
        return (
            WRONG,
            f"All {parallel.word}s validate on the same samples each time, "
            f"{looked_at[0]} of the {looked_at[1]} that one worker validates on, and "
            f"no {parallel.word} looks at the others.",
            _validation_line(parallel),
        )
    part = len(union & alone) / len(alone)
    if part >= MIN_COVERAGE:
        return RIGHT, f"{text}, which are all that one worker has."
    if union <= alone:
        text = f"{text}, of {len(alone)} that one worker has"
    else:
        found = len(union & alone)
        text += f", among them {found} of the {len(alone)} that one worker has"
    batches = [e["count"] for e in parallel.all("samples") if e["mode"] == "validate"]
    if part > 0.8 and len(alone - union) < len(who) * max(batches, default=0):
        return RIGHT, f"{text}: fewer are left out than fit in a batch of each."
    # Dealt out to all, and only one looks at its part. The process of several replicas
    # has all of it, and may look at an example.
    shared = len(who) == 1 and part <= 1.25 / len(parallel.each)
    shared = shared and parallel.kind != "tf.distribute"
    same = len(who) == len(parallel.each) and all(s == sets[0] for s in sets)
    if not parallel.whole:
        return UNKNOWN, f"{text}. The program did not finish."
    if are_alike([b for w in parallel.each for b in w.samples("validate") if b]):
        return UNKNOWN, f"{text}. Most samples of a batch are equal."
    # What all share out is less than one worker has, and no other part the next time.
    steady = part <= 1.25 / len(parallel.each) and _come_each_time(parallel)
    halved = len(who) == len(parallel.each) and steady
    # Other samples than one worker has are no part of what it has.
    if len(parallel.each) > 1 and union <= alone and (shared or same or halved):
        return (
            WRONG,
            f"{text}, and no {parallel.word} looks at the others.",
            _validation_line(parallel),
        )
    return UNKNOWN, f"{text}."


def _same_part_each_time(
    parallel: RecordedRun, single: RecordedRun
) -> tuple[int, int] | None:
    """How many samples each worker validates on, and how many one that is alone does,
    if all of them take the same share of these each time; the next time it may be
    another one, as where all shuffle with one seed."""
    if len(parallel.each) < 2 or not (parallel.whole and single.whole):
        return None
    rows = list(
        zip(
            *(worker.validations for worker in single.each),
            *(worker.validations for worker in parallel.each),
            strict=False,
        )
    )
    for alone, first, *others in rows:
        same = len(first) >= LEAST_IN_COMMON and all(o == first for o in others)
        share = 1.25 * len(alone) / len(parallel.each)
        if not (same and first < alone == rows[0][0] and len(first) <= share):
            return None
    return (len(rows[0][1]), len(rows[0][0])) if len(rows) > 1 else None


def _come_each_time(run: RecordedRun) -> bool:
    """Is each sample of the validation looked at more than once?"""
    counts = Counter(
        digest
        for worker in run.each
        for batch in worker.samples("validate")
        for digest in batch or ()
    )
    return min(counts.values(), default=0) > 1


def _validation_line(parallel: RecordedRun) -> str | None:
    lines = [e.get("where") for e in parallel.all("samples") if e["mode"] == "validate"]
    return next((line for line in lines if line), parallel.fit_line)
