"""Judge the steps of exercises/survive.py: keep, take up, agree, and survive.

The program has two lives: it is trained, and later started again, with one more epoch
to train and the same folders. In another world, a worker seems to die in the middle.
"""

from utils.checking import lab
from utils.checking.judges import scaled as judge_scaled
from utils.checking.judges.graphs import validates
from utils.checking.judges.judge import Missing, Observed, Problem, Rank, in_line

EPOCHS, BATCH, COMMIT_EVERY, WORKERS = 3, 5, 2, 2
TRAIN_IMAGES = 54  # five steps of two batches in an epoch, and four images left over
STEP = BATCH * WORKERS
STEPS = TRAIN_IMAGES // STEP
FIRST, SECOND, SHAKEN = "first life", "second life", "shaken"

WORDS = {"weights": "weights", "state": "optimizer's state"}
STATISTICS = {"statistics": "running statistics of batch normalisation"}


def _place(world: Observed) -> int | None:
    """The line that trains."""
    return world.ranks[0].first("fit")["line"]


@validates
def keeps_checkpoints(worlds: dict[str, Observed]) -> None:
    judge_scaled.kept(worlds[FIRST])


# ------------------------------------------------------------ going on


@validates
def goes_on(worlds: dict[str, Observed]) -> None:
    before, after = worlds[FIRST].ranks[0], worlds[SECOND].ranks[0]
    if worlds[FIRST].outcome != lab.ENDED:
        worlds[FIRST].raise_trouble()
    last = before.all("after")
    if not last:
        raise Missing
    if not after.all("begins") and worlds[SECOND].outcome == lab.ENDED:
        raise Problem(
            "trains-nothing",
            f"Started again with --epochs {EPOCHS + 1} after {EPOCHS} epochs, rank 0 "
            "trained no more.",
        )
    first, line = after.first("begins"), _place(worlds[SECOND])
    same = {kind: first[kind] == last[-1][kind] for kind in WORDS}
    epoch = first["epoch"]
    where = "Started again, rank 0"
    if not any(same.values()) and epoch == 0:
        raise Problem("from-the-start", f"{where} began from the start.", line)
    for kind, words in WORDS.items():
        if not same[kind]:
            raise Problem(
                f"other-{kind}",
                f"{where} began epoch {epoch + 1}, but not with the {words} that it "
                "had at its end.",
                line,
            )
    if epoch != EPOCHS:
        raise Problem(
            "other-epoch",
            f"{where} had trained {EPOCHS} epochs, and has their weights; but it went "
            f"on with epoch {epoch + 1}, not {EPOCHS + 1}.",
            line,
        )


@validates
def agrees(worlds: dict[str, Observed]) -> None:
    if worlds[SECOND].ranks[0].first("begins")["epoch"] == 0:
        raise Missing  # rank 0 took nothing up that the others would have to be told
    for name in (FIRST, SECOND):
        world = worlds[name]
        starts = [rank.first("begins") for rank in world.ranks]
        line = _place(world)
        where = "In its second life" if name == SECOND else "In its first life"
        epochs = [start["epoch"] for start in starts]
        if len(set(epochs)) > 1:
            message = " and ".join(
                f"rank {n} began with epoch {epoch + 1}"
                for n, epoch in enumerate(epochs)
            )
            raise Problem("other-epochs", f"{where}, {message}.", line)
        for kind, words in (WORDS | STATISTICS).items():
            if len({start[kind] for start in starts}) > 1:
                raise Problem(
                    f"other-{kind}",
                    f"{where}, the ranks had different {words} in the first batch.",
                    line,
                )
        if world.outcome != lab.ENDED:
            world.raise_trouble()


# ------------------------------------------------------------ after a death


@validates
def survives(worlds: dict[str, Observed]) -> None:
    world = worlds[SHAKEN]
    for number, rank in enumerate(world.ranks):
        problem = _going_on(rank, number, _place(world))
        if problem:
            raise problem
    if world.outcome != lab.ENDED:
        world.raise_trouble()


def _going_on(rank: Rank, number: int, line: int | None) -> Problem | None:
    """What is wrong with how a rank went on after a worker seemed to have died."""
    events = rank.events
    lost = next((i for i, e in enumerate(events) if e["what"] == "lost"), None)
    if lost is None:
        raise Missing
    positions = _positions(events[:lost])
    rest = next((e for e in events[lost:] if e["what"] == "rest"), None)
    resumed = next((e for e in events[lost:] if e["what"] == "before"), None)
    if resumed is None or rest is None:
        failed = rank.all("failed")
        if failed:
            return Problem(
                "died-too",
                f"When a worker had died, rank {number} ended as well"
                f"{in_line(failed[0]['line'])}: {failed[0]['error']}.",
                failed[0]["line"],
            )
        raise Missing
    asked = rest["epoch"], rest["done"]
    having = [
        place
        for place, weights, state in positions
        if (weights, state) == (resumed["weights"], resumed["state"])
    ]
    words = _shown(asked)
    if not having:
        return Problem(
            "other-state",
            f"When a worker had died, rank {number} went on {words}, with weights or "
            "an optimizer's state that it never had after a batch.",
            line,
        )
    back = len(positions) - 1 - [place for place, *_ in positions].index(having[-1])
    if back > COMMIT_EVERY:
        return Problem(
            "too-far-back",
            f"When a worker had died, rank {number} went back {back} batches, "
            f"{_shown(having[-1])}. Commit every --commit-every batches.",
            line,
        )
    if asked not in having:
        return Problem(
            "other-place",
            f"When a worker had died, rank {number} went on {words}, with the weights "
            f"that it had {_shown(having[-1])}.",
            line,
        )
    return None


def _positions(events: list[dict]) -> list[tuple[tuple[int, int], str, str]]:
    """Where in which epoch each update was, with which weights and state."""
    positions, place = [], (0, 0)
    for event in events:
        if event["what"] == "rest":
            place = event["epoch"], event["done"]
        elif event["what"] == "before":
            positions.append((place, event["weights"], event["state"]))
            place = place[0], place[1] + STEP
    return positions


def _shown(place: tuple[int, int]) -> str:
    return f"after {place[1]} images of epoch {place[0] + 1}"
