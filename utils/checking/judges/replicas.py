"""Judge the steps of the programs with tf.distribute, by what their replicas did."""

import math
from collections import defaultdict

import numpy as np

from utils.checking import evidence
from utils.checking.judges.judge import Missing, Observed, Problem, short
from utils.checking.lab import WORLDS

REPLICAS = WORLDS["replicas"].replicas
TRAIN_IMAGES, BATCH, BASE_LR = 60, 4, 0.01
FULL_LR = REPLICAS * BASE_LR
GLOBAL_BATCH, VAL_BATCH = 8, 3
CLOSE = 0.01  # relative: what another order of additions may cost


def makes_a_strategy(worlds: dict[str, Observed]) -> None:
    world = worlds["replicas"]
    strategies = world.ranks[0].all("strategy")
    if not strategies:
        world.raise_trouble()
        raise Problem("no-strategy", "The program makes no strategy.")
    if not any(e["kind"] == "MirroredStrategy" for e in strategies):
        last = strategies[-1]
        raise Problem(
            "another-strategy", f"It makes a {last['kind']}.", line=last["line"]
        )
    last = [e for e in strategies if e["kind"] == "MirroredStrategy"][-1]
    if last["replicas"] != REPLICAS:
        raise Problem(
            "other-devices",
            f"Its strategy has {last['replicas']} replica(s), and there are {REPLICAS} "
            "devices. Give it the list of them.",
            line=last["line"],
        )


def mirrors(worlds: dict[str, Observed]) -> None:
    """Both replicas train, with copies of everything."""
    world = worlds["replicas"]
    _copies(world)
    _same_weights(world)
    shares = _shares(world)
    if len(shares[0]) != REPLICAS:
        raise Problem("not-replicated", _who_trains(shares[0]))


def _copies(world: Observed) -> None:
    model = world.ranks[0].first("model")
    for kind, words in (("weights", "The weights"), ("state", "The optimizer's state")):
        if model[kind] != REPLICAS:
            raise Problem(
                f"{kind}-not-mirrored",
                f"{words} are on {model[kind]} device(s), not on {REPLICAS}: made "
                "outside the strategy's scope."
                if kind == "weights"
                else f"{words} is on {model[kind]} device(s), not on {REPLICAS}.",
            )


def _same_weights(world: Observed) -> None:
    model = world.ranks[0].first("model")
    if not model["apart"] <= 1e-6:
        raise Problem(
            "drifted",
            f"The copies of the weights differ by up to {model['apart']:.2g} in the "
            "end: the replicas did not make the same updates.",
        )


def _shares(world: Observed) -> list[dict[int, list[str]]]:
    """For each training step: replica -> the images that it got. Raises Missing."""
    steps: dict[int, dict[int, list[str]]] = defaultdict(dict)
    for event in world.ranks[0].all("trains"):
        steps[event["step"]][event["replica"]] = event["images"]
    if not steps:
        raise Missing
    return [steps[n] for n in sorted(steps)]


def _who_trains(share: dict[int, list[str]]) -> str:
    if set(share) <= {-1, 0}:
        return "Only one replica trains; the others have nothing to do."
    return f"{len(share)} replicas train."


def feeds_every_replica(worlds: dict[str, Observed]) -> None:
    world = worlds["replicas"]
    shares = _shares(world)
    first = shares[0]
    _own_parts(first)
    sizes = [len(images) for _, images in sorted(first.items())]
    if sizes != [BATCH] * REPLICAS:
        raise Problem(
            "batch-not-scaled",
            f"In the first step the replicas got {' and '.join(map(str, sizes))} "
            f"images; --batch-size was {BATCH}.",
        )
    wanted = TRAIN_IMAGES // (BATCH * REPLICAS)
    if len(shares) != wanted:
        raise Problem(
            "another-epoch",
            f"The epoch had {len(shares)} steps with {BATCH * REPLICAS} images each; "
            f"a pass over {TRAIN_IMAGES} images has {wanted}.",
        )


def _own_parts(share: dict[int, list[str]]) -> None:
    parts = [set(images) for images in share.values()]
    if len(set.union(*parts)) < sum(map(len, parts)):
        raise Problem(
            "same-images",
            "The replicas trained on the same images: each has to get its own part.",
        )


def scales_the_rate(worlds: dict[str, Observed]) -> None:
    fit = worlds["replicas"].ranks[0].first("fit")
    wanted = BASE_LR * REPLICAS
    if not math.isclose(fit["learning_rate"], wanted, rel_tol=1e-3):
        raise Problem(
            "rate-not-scaled",
            f"Training begins with a learning rate of {fit['learning_rate']:g}, where "
            f"--base-lr is {BASE_LR:g} and there are {REPLICAS} replicas.",
            fit["line"],
        )


# ------------------------------------------------------------ the custom loop


def loop_mirrors(worlds: dict[str, Observed]) -> None:
    makes_a_strategy(worlds)
    _copies(worlds["replicas"])


def loop_shares_batches(worlds: dict[str, Observed]) -> None:
    first = _shares(worlds["replicas"])[0]
    if len(first) != REPLICAS:
        raise Problem("not-shared", _who_trains(first))
    _own_parts(first)
    sizes = [len(images) for _, images in sorted(first.items())]
    if sizes != [GLOBAL_BATCH // REPLICAS] * REPLICAS:
        raise Problem(
            "wrong-shares",
            f"In the first step the replicas got {' and '.join(map(str, sizes))} "
            f"images; --global-batch-size was {GLOBAL_BATCH}.",
        )


def loop_scales_the_loss(worlds: dict[str, Observed]) -> None:
    """Of the first step: weights after it less those before it, against one device."""
    loop_shares_batches(worlds)
    _same_weights(worlds["replicas"])
    rank, reference = worlds["replicas"].ranks[0], worlds["reference"].ranks[0]
    before, wanted_before = rank.array("weights.0"), reference.array("weights.0")
    if before.shape != wanted_before.shape or not np.allclose(before, wanted_before):
        raise Problem(
            "another-start",
            "With --seed 1 the weights start elsewhere than in the course's program, "
            "so the updates can't be compared. Leave the network, and the line with "
            "data.seed_worker, as they were.",
        )
    update = rank.array("weights.1") - before
    wanted = reference.array("weights.1") - wanted_before
    length = float(np.linalg.norm(update))
    ratio = length / float(np.linalg.norm(wanted))
    if length == 0:
        raise Problem("no-update", "The first step left the weights as they were.")
    cosine = float(update @ wanted) / (length * float(np.linalg.norm(wanted)))
    if cosine < 1 - CLOSE:
        raise Problem(
            "another-direction",
            "The first update points elsewhere than that of one device with the same "
            f"batch (cosine {cosine:.3f}): another loss, or other images.",
        )
    if math.isclose(ratio, 1, rel_tol=CLOSE):
        return
    size = "large" if ratio > 1 else "small"
    times = ratio if ratio > 1 else 1 / ratio
    prefix = "n-times-too-" if math.isclose(times, REPLICAS, rel_tol=CLOSE) else "too-"
    raise Problem(
        f"{prefix}{size}",
        f"The first update of the weights is {times:.3g} times too {size}: that of one "
        f"device with the same {GLOBAL_BATCH} images has length "
        f"{length / ratio:.4g}, this one {length:.4g}, with {REPLICAS} replicas.",
    )


def loop_counts_every_image(worlds: dict[str, Observed]) -> None:
    world = worlds["replicas"]
    truth = world.ranks[0].first("truth")
    written = _last_row(world).get("val_loss", "")
    try:
        loss = float(written)
    except ValueError:
        raise Problem(
            "no-score", f"history.csv says val_loss {short(written)!r}."
        ) from None
    if math.isnan(loss):
        raise Problem(
            "not-a-number",
            "The validation loss is not a number: of the last batch, one image, one "
            "replica got nothing, and the mean of nothing is not a number.",
        )
    if not math.isclose(loss, truth["loss"], rel_tol=1e-3):
        raise Problem(
            "wrong-mean",
            f"The last validation loss is {loss:.5f}; over all images, each counted "
            f"once, it is {truth['loss']:.5f}.",
        )


def _last_row(world: Observed) -> dict[str, str]:
    """Of history.csv. Raises Missing."""
    try:
        row = evidence.last_row(world.folder / "history.csv")
    except FileNotFoundError:
        raise Missing from None
    if not row:
        raise Missing
    return row
