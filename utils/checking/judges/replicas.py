"""Judge the tasks of the programs with tf.distribute, by what their replicas did."""

import functools
import math
from collections import defaultdict

import numpy as np

from distcheck import evidence
from distcheck.judges.registry import exercise
from distcheck.judges.runs import Judge, Missing, Problem, Run, in_line, short
from utils.checking.recorders.replicas import REPLICAS

TRAIN_IMAGES, BATCH, BASE_LR = 60, 4, 0.01
FULL_LR = REPLICAS * BASE_LR
GLOBAL_BATCH, VAL_BATCH = 8, 3
RTOL_SUM = 0.01  # what another order of additions may cost
MOST_WORDS = 600  # characters of an error


mirrored = exercise(
    "mirrored",
    options=(
        f"--epochs 1 --train-images {TRAIN_IMAGES} --width 1 --seed 1 --batch-size "
        f"{BATCH} --base-lr {BASE_LR}"
    ),
).part

# The last validation batch has one image, so one replica gets none of it; and in the
# second epoch it shows whether metrics were reset.
custom_loop = exercise(
    "custom_loop",
    options=(
        f"--epochs 2 --train-images {TRAIN_IMAGES} --seed 1 --global-batch-size "
        f"{GLOBAL_BATCH} --val-batch-size {VAL_BATCH}"
    ),
).part


def _of_replicas(judge: Judge) -> Judge:
    """The same judge, which speaks of one process with replicas where the program
    failed before there was the evidence for it."""

    @functools.wraps(judge)
    def judged(runs: dict[str, Run]) -> None:
        try:
            judge(runs)
        except Missing:
            for _, failure in runs["replicas"].failures()[:1]:
                outside = _made_outside(runs["replicas"])
                error, evidence = short(failure["error"], MOST_WORDS), ()
                about_scope = "scope" in error and outside is not None
                if about_scope:
                    evidence = (f"line {outside} made weights outside the scope",)
                line = outside if about_scope else failure["line"]
                failed = f"The program failed{in_line(failure['line'])}: {error}"
                raise Problem("crashed", failed, line, evidence) from None
            raise

    return judged


def _made_outside(run: Run) -> int | None:
    """The first line that made weights where no strategy saw it."""
    made = run.ranks[0].all("makes")
    return next((event["line"] for event in made if not event["scoped"]), None)


def _place(run: Run, *names: str) -> int | None:
    """The line of the program that a finding is about: the first of these places
    that the program has (see `recorders.replicas.places`)."""
    lines = run.ranks[0].first("places")["lines"]
    return next((lines[name] for name in names if name in lines), None)


@mirrored(
    "A",
    scenarios=("replicas",),
    expected=(
        "The program makes a MirroredStrategy with one replica on each of its devices."
    ),
)
@_of_replicas
def makes_a_strategy(runs: dict[str, Run]) -> None:
    run = runs["replicas"]
    strategies = run.ranks[0].all("strategy")
    if not strategies:
        if run.failures():
            raise Missing
        place = _place(run, "strategy =")
        raise Problem("no-strategy", "The program makes no strategy.", place)
    if not any(e["kind"] == "MirroredStrategy" for e in strategies):
        last = strategies[-1]
        raise Problem(
            "another-strategy",
            f"The program makes a {last['kind']}.",
            line=last["line"],
        )
    last = [e for e in strategies if e["kind"] == "MirroredStrategy"][-1]
    if last["replicas"] != REPLICAS:
        raise Problem(
            "other-devices",
            f"The strategy has {last['replicas']} replica(s), but there are {REPLICAS} "
            "devices. Give it the list of all devices.",
            line=last["line"],
        )


@mirrored(
    "B",
    scenarios=("replicas",),
    expected=(
        "The weights and the optimizer's state have a copy on each replica, all copies"
        " are equal, and both replicas train."
    ),
)
@_of_replicas
def mirrors(runs: dict[str, Run]) -> None:
    """Both replicas train, with copies of everything."""
    run = runs["replicas"]
    _copies(run)
    _same_weights(run)
    shares = _shares(run)
    if len(shares[0]) != REPLICAS:
        raise Problem("not-replicated", _who_trains(shares[0]))


def _copies(run: Run) -> None:
    model = run.ranks[0].first("model")
    for kind, words in (("weights", "The weights"), ("state", "The optimizer's state")):
        if not model[kind] and run.failures():  # before there was any
            run.raise_if_in_trouble()
        if model[kind] != REPLICAS:
            raise Problem(
                f"{kind}-not-mirrored",
                f"{words} are on {model[kind]} device(s), not on {REPLICAS}, because "
                "they were made outside the strategy's scope."
                if kind == "weights"
                else f"{words} is on {model[kind]} device(s), not on {REPLICAS}.",
                _made_outside(run),
            )


def _same_weights(run: Run) -> None:
    model = run.ranks[0].first("model")
    if not model["apart"] <= 1e-6:
        raise Problem(
            "drifted",
            f"The copies of the weights differ by up to {model['apart']:.2g} in the "
            "end: the replicas did not make the same updates.",
        )


def _shares(run: Run) -> list[dict[int, list[str]]]:
    """For each training step: replica -> the images that it got. Raises Missing."""
    steps = _by_step(run, "trains")
    if not steps:
        raise Missing
    return steps


def _by_step(run: Run, what: str) -> list[dict[int, list[str]]]:
    steps: dict[int, dict[int, list[str]]] = defaultdict(dict)
    for event in run.ranks[0].all(what):
        steps[event["step"]][event["replica"]] = event["images"]
    return [steps[n] for n in sorted(steps)]


def _who_trains(share: dict[int, list[str]]) -> str:
    if set(share) <= {-1, 0}:
        return "Only one replica trains, and the others have nothing to do."
    return f"{len(share)} replicas train, not {REPLICAS}."


@mirrored(
    "C",
    scenarios=("replicas",),
    expected=(
        f"In each training step, each of the {REPLICAS} replicas gets {BATCH} images "
        "of its own, as many as one device would get by itself. An epoch is one pass "
        "over the images."
    ),
)
@_of_replicas
def feeds_every_replica(runs: dict[str, Run]) -> None:
    run = runs["replicas"]
    shares = _shares(run)
    first = shares[0]
    _own_parts(first)
    sizes = [len(images) for _, images in sorted(first.items())]
    if sizes != [BATCH] * REPLICAS:
        raise Problem(
            "batch-not-scaled",
            f"In the first step the replicas got {' and '.join(map(str, sizes))} "
            f"images, but --batch-size was {BATCH}.",
            _place(run, "batch_size"),
        )
    wanted = TRAIN_IMAGES // (BATCH * REPLICAS)
    if len(shares) != wanted:
        raise Problem(
            "another-epoch",
            f"The epoch had {len(shares)} steps with {BATCH * REPLICAS} images each, "
            f"but a pass over {TRAIN_IMAGES} images has {wanted} steps.",
        )


def _own_parts(share: dict[int, list[str]], line: int | None = None) -> None:
    if _overlap(share):
        raise Problem(
            "same-images",
            "The replicas trained on the same images: each has to get its own part.",
            line,
        )


def _overlap(share: dict[int, list[str]]) -> bool:
    """Did two replicas get the same image?"""
    parts = [set(images) for images in share.values()]
    return len(set.union(*parts)) < sum(map(len, parts))


@mirrored(
    "D",
    scenarios=("replicas",),
    expected=(
        f"The learning rate is --base-lr times the number of replicas: {FULL_LR:g}."
    ),
)
@_of_replicas
def scales_the_rate(runs: dict[str, Run]) -> None:
    rank, wanted = runs["replicas"].ranks[0], BASE_LR * REPLICAS
    fit, trains = rank.first("fit"), rank.all("trains")
    rates = [event["rate"] for event in trains if event["rate"] is not None]
    # It may be warmed up to, and decay from there.
    highest = max(rates, default=math.nan)
    if not math.isclose(highest, wanted, rel_tol=1e-3):
        raise Problem(
            "rate-not-scaled",
            f"The highest learning rate of a training step is {highest:g}, but "
            f"--base-lr is {BASE_LR:g} and there are {REPLICAS} replicas.",
            _place(runs["replicas"], "base_lr") or fit["line"],
        )


# ------------------------------------------------------------ the custom loop


@custom_loop(
    "A",
    scenarios=("replicas",),
    expected=("The weights and the optimizer's state have a copy on each replica."),
)
@_of_replicas
def loop_mirrors(runs: dict[str, Run]) -> None:
    makes_a_strategy(runs)
    _copies(runs["replicas"])


@custom_loop(
    "B",
    scenarios=("replicas",),
    expected=(
        f"In each training step, the {REPLICAS} replicas share a global batch of "
        f"{GLOBAL_BATCH} images, and each replica gets its own part. They share each "
        "validation batch in the same way."
    ),
)
@_of_replicas
def loop_shares_batches(runs: dict[str, Run]) -> None:
    """Batches to train on and, as far as it came there, to validate on."""
    run = runs["replicas"]
    first = _shares(run)[0]
    if len(first) != REPLICAS:
        raise Problem("not-shared", _who_trains(first), _place(run, "train_all"))
    _own_parts(first, _place(run, "batches ="))
    sizes = [len(images) for _, images in sorted(first.items())]
    if sizes != [GLOBAL_BATCH // REPLICAS] * REPLICAS:
        raise Problem(
            "wrong-shares",
            f"In the first step the replicas got {' and '.join(map(str, sizes))} "
            f"images, but --global-batch-size was {GLOBAL_BATCH}.",
            _place(run, "batches ="),
        )
    looks = _by_step(run, "validates")
    twice = [step for step, look in enumerate(looks) if _overlap(look)]
    if twice:
        images = len(set.union(*map(set, looks[twice[0]].values())))
        raise Problem(
            "validates-twice",
            f"In validation, all {len(looks[twice[0]])} replicas look at the same "
            f"{images} images. The validation data set is not distributed, so each "
            "replica does the work of all.",
            _place(run, "validation_set =", "val_batch_size"),
        )


@custom_loop(
    "C",
    scenarios=("replicas", "reference"),
    expected=(
        "The first update of the weights is the one that a single device makes with "
        "the same global batch, and history.csv has the loss of the global batch."
    ),
)
@_of_replicas
def loop_scales_the_loss(runs: dict[str, Run]) -> None:
    """Of the first step: weights after it less those before it, against one device."""
    loop_shares_batches(runs)
    run = runs["replicas"]
    _same_weights(run)
    rank, reference = run.ranks[0], runs["reference"].ranks[0]
    before, wanted_before = rank.array("weights.0"), reference.array("weights.0")
    if before.shape != wanted_before.shape or not np.allclose(before, wanted_before):
        raise Problem(
            "another-start",
            "With --seed 1 the first weights differ from those of the course's "
            "program, so the updates can't be compared. Leave the network, and the "
            "line with data.seed_worker, as they were.",
        )
    update = rank.array("weights.1") - before
    wanted = reference.array("weights.1") - wanted_before
    length = float(np.linalg.norm(update))
    ratio = length / float(np.linalg.norm(wanted))
    if length == 0:
        raise Problem("no-update", "The first step left the weights as they were.")
    cosine = float(update @ wanted) / (length * float(np.linalg.norm(wanted)))
    if cosine < 1 - RTOL_SUM:
        raise Problem(
            "another-direction",
            "The first update points in another direction than that of one device with "
            f"the same batch (cosine {cosine:.3f}). The loss or the images differ.",
        )
    if math.isclose(ratio, 1, rel_tol=RTOL_SUM):
        return _loss_is_reported(runs)
    size = "large" if ratio > 1 else "small"
    times = ratio if ratio > 1 else 1 / ratio
    n_times = math.isclose(times, REPLICAS, rel_tol=RTOL_SUM)
    raise Problem(
        f"n-times-too-{size}" if n_times else f"too-{size}",
        f"The first update of the weights is {times:.3g} times too {size}. With "
        f"{REPLICAS} replicas its length is {length:.4g}; on one device with the same "
        f"{GLOBAL_BATCH} images it is {length / ratio:.4g}.",
        _place(run, "step_loss"),
    )


def _loss_is_reported(runs: dict[str, Run]) -> None:
    """The training loss in history.csv against that of one device, which has taken the
    same steps; without the file, what needs it will say so."""
    try:
        rows = [_last_row(runs[name]) for name in ("replicas", "reference")]
        loss, wanted = (float(row["loss"]) for row in rows)
    except (Missing, KeyError, ValueError):
        return
    if not math.isclose(loss, wanted, rel_tol=RTOL_SUM):
        raise Problem(
            "wrong-report",
            f"The weights are right, but history.csv has a training loss of {loss:.5f} "
            f"and one device with the same batches has {wanted:.5f}: the program's is "
            f"{loss / wanted:.3g} times it. Each replica returns a part of the loss of "
            "the global batch, so add the parts up.",
            _place(runs["replicas"], "train_all"),
        )


@custom_loop(
    "D",
    scenarios=("replicas",),
    expected=(
        "The validation loss in history.csv is the mean over all validation images, "
        "each counted once."
    ),
)
@_of_replicas
def loop_counts_every_image(runs: dict[str, Run]) -> None:
    run = runs["replicas"]
    truth = run.ranks[0].first("truth")
    written = _last_row(run).get("val_loss", "")
    try:
        loss = float(written)
    except ValueError:
        raise Problem(
            "no-score", f"The val_loss in history.csv is {short(written)!r}."
        ) from None
    if math.isnan(loss):
        raise Problem(
            "not-a-number",
            "The validation loss is not a number. The last batch has only one image, "
            "so one replica got none, and the mean of no images is not a number.",
            _place(run, "validate: loss =", "validate"),
        )
    if not math.isclose(loss, truth["loss"], rel_tol=1e-3):
        raise Problem(
            "wrong-mean",
            f"The last validation loss is {loss:.5f}, but if each image counts once it "
            f"is {truth['loss']:.5f}.",
            _place(run, "validate: loss =", "validate"),
        )


def _last_row(run: Run) -> dict[str, str]:
    """Of history.csv. Raises Missing."""
    try:
        row = evidence.last_row(run.folder / "history.csv")
    except FileNotFoundError:
        raise Missing from None
    if not row:
        raise Missing
    return row
