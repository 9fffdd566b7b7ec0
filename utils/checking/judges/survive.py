"""Judge the tasks of exercises/survive.py: keep, take up, agree, and survive.

The program has two lives: it is trained, and later started again, with one more epoch
to train and the same folders. In another run, the newest file in them has been cut
off before it is started again; and in yet another one, rank 0 dies in the middle.
"""

from distcheck import lab
from distcheck.judges.compiled import must_compile
from distcheck.judges.registry import exercise
from distcheck.judges.runs import Missing, Problem, Rank, Run, in_line, short

EPOCHS, BATCH, COMMIT_EVERY, WORKERS = 3, 5, 2, 2
TRAIN_IMAGES = 54  # five steps of two batches in an epoch, and four images left over
STEP = BATCH * WORKERS
STEPS = TRAIN_IMAGES // STEP
FIRST, SECOND, CUT, SHAKEN = "first life", "second life", "cut off", "shaken"

task = exercise(
    "survive",
    options=(
        f"--epochs {EPOCHS} --batch-size {BATCH} --val-batch-size 3 --train-images "
        f"{TRAIN_IMAGES} --width 1 --seed 1 --commit-every {COMMIT_EVERY} --checkpoint"
        " kept"
    ),
).part


WORDS = {"weights": "weights", "state": "optimizer's state"}
STATISTICS = {"statistics": "running statistics of batch normalization"}


# ------------------------------------------------------------ the checkpoint


@task(
    "A",
    scenarios=("first life",),
    expected=(
        "After each epoch, rank 0 keeps all weights and the optimizer's state, and "
        "never overwrites its only copy. The other ranks write no file."
    ),
)
@must_compile("training", "validation")
def keeps_checkpoints(runs: dict[str, Run]) -> None:
    _kept(runs[FIRST])


def _kept(run: Run) -> None:
    """Does rank 0 alone keep what training has changed, and safely?"""
    records = [rank.first("kept") for rank in run.ranks]
    line = run.fit_line
    others = [n for n, record in enumerate(records) if n and record["files"]]
    if others:
        files = records[others[0]]["files"]
        message = f"Rank {others[0]} wrote {files[0]}"
        message += f" and {len(files) - 1} more" if len(files) > 1 else ""
        if records[0]["files"]:
            raise Problem("others-write", f"{message}; so did rank 0.", line)
        raise Problem("another-rank", f"{message}, but rank 0 wrote nothing.", line)
    if run.outcome != lab.ENDED:
        raise Missing
    if not records[0]["files"]:
        raise Problem(
            "nothing-kept",
            "Rank 0 left no file in the folder that --checkpoint names.",
            line,
        )
    for kind, words in (("weights", "weights"), ("state", "optimizer's state")):
        share = records[0][kind]
        if share < 1:
            raise Problem(
                f"no-{kind}",
                f"The files that rank 0 left have only {share:.0%} of the {words} at "
                f"the end of an epoch: {', '.join(records[0]['files'])}.",
                line,
            )
    before: dict[str, list[int]] = {}
    for event in run.ranks[0].all("epoch"):
        for name, (number, written) in event["files"].items():
            old = before.get(name)
            if old and old[0] == number and old[1] != written:
                raise Problem(
                    "overwritten",
                    f"In epoch {event['epoch'] + 1}, rank 0 overwrote {name}. If it "
                    "dies while it writes, neither the old nor the new file is left.",
                    line,
                )
        before = event["files"]


# ------------------------------------------------------------ going on


@task(
    "B",
    scenarios=("first life", "second life", "cut off"),
    expected=(
        "When the program is started again, rank 0 goes on with the next epoch, with "
        "the weights and the optimizer's state that it had kept. If the newest "
        "checkpoint is cut off, it takes the one before."
    ),
)
@must_compile("training", "validation")
def goes_on(runs: dict[str, Run]) -> None:
    before, after = runs[FIRST].ranks[0], runs[SECOND].ranks[0]
    if runs[FIRST].outcome != lab.ENDED:
        runs[FIRST].raise_if_in_trouble()
    last = before.all("after")
    if not last:
        raise Missing
    if not after.all("begins") and runs[SECOND].outcome == lab.ENDED:
        raise Problem(
            "trains-nothing",
            f"Started again with --epochs {EPOCHS + 1} after {EPOCHS} epochs, rank 0 "
            "did not train.",
        )
    first, line = after.first("begins"), runs[SECOND].fit_line
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
                "had when it ended.",
                line,
            )
    if epoch != EPOCHS:
        raise Problem(
            "other-epoch",
            f"{where} has the weights of {EPOCHS} epochs, but it went on with epoch "
            f"{epoch + 1}, not {EPOCHS + 1}.",
            line,
        )
    if CUT in runs:  # the checks of later tasks don't need it
        _goes_back(runs[CUT], last)


def _goes_back(run: Run, updates: list[dict]) -> None:
    """Does rank 0 take an earlier checkpoint, where the newest has been cut off?

    updates: what it had after each of its first life.
    """
    rank, where = run.ranks[0], "Half of its newest checkpoint was gone, and rank 0"
    begun, failed = rank.all("begins"), rank.all("failed")
    if not begun and failed:
        raise Problem(
            "not-whole",
            f"{where} ended{in_line(failed[0]['line'])}: {short(failed[0]['error'])}",
            failed[0]["line"],
        )
    if not begun and run.outcome == lab.ENDED:
        raise Problem("not-whole", f"{where} took it for complete, and did not train.")
    first, line = rank.first("begins"), run.fit_line
    epoch = first["epoch"]
    if epoch == 0:
        raise Problem(
            "begins-anew",
            f"{where} began from the start, although there were older checkpoints.",
            line,
        )
    before = updates[min(epoch * STEPS, len(updates)) - 1]
    for kind, words in WORDS.items():
        if first[kind] != before[kind]:
            raise Problem(
                "not-whole",
                f"{where} began epoch {epoch + 1}, but not with the {words} that it "
                f"had after epoch {epoch}.",
                line,
            )


@task(
    "C",
    scenarios=("first life", "second life"),
    expected=(
        "From the first batch on, all ranks have the epoch, the weights and the "
        "optimizer's state of rank 0, although they could not read the checkpoint."
    ),
)
@must_compile("training", "validation")
def agrees(runs: dict[str, Run]) -> None:
    if runs[SECOND].ranks[0].first("begins")["epoch"] == 0:
        raise Missing  # rank 0 took nothing up that the others would have to be told
    for name in (FIRST, SECOND):
        run = runs[name]
        starts = [rank.first("begins") for rank in run.ranks]
        line = run.fit_line
        where = "In the second run" if name == SECOND else "In the first run"
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
        if run.outcome != lab.ENDED:
            run.raise_if_in_trouble()


# ------------------------------------------------------------ after a death


@task(
    "D",
    scenarios=("shaken",),
    expected=(
        "When rank 0 has died, the other workers go back to the last commit, which is"
        f" at most {COMMIT_EVERY} batches old, and go on from there with all of its "
        "state. The worker that is rank 0 from then on keeps the checkpoints."
    ),
)
@must_compile("training", "validation")
def survives(runs: dict[str, Run]) -> None:
    run = runs[SHAKEN]
    for number, rank in enumerate(run.ranks):
        if number == 0 and rank.all("reset"):
            continue  # it is dead
        problem = _going_on(rank, number, run.fit_line)
        if problem:
            raise problem
    _takes_over(run)
    if run.outcome != lab.ENDED:
        run.raise_if_in_trouble()


def _takes_over(run: Run) -> None:
    """Does rank 1, which is rank 0 now, do what that one did?"""
    dead, rank = run.ranks
    where = "Rank 0 had died, and rank 1 was the new rank 0. It"
    failed = rank.all("failed")
    if failed:
        raise Problem(
            "new-rank-0",
            f"{where} failed{in_line(failed[0]['line'])}: "
            f"{short(failed[0]['error'])} It lacks what only the first rank 0 has "
            "made.",
            failed[0]["line"],
        )
    if not dead.first("reset")["files"]:
        return  # nothing was kept before, either: that is for task A
    kept, ends = rank.first("kept"), [e["epoch"] for e in rank.all("epoch")]
    if kept["weights"] < 1 or kept["epoch"] < len(ends) - 1:
        raise Problem(
            "new-rank-0",
            f"{where} trained to the end of epoch {max(ends, default=0) + 1}, but kept "
            "no checkpoint. A program that asks for the rank only once doesn't know "
            "that the rank has changed.",
            run.fit_line,
        )


def _going_on(rank: Rank, number: int, line: int | None) -> Problem | None:
    """What is wrong with how a rank went on after rank 0 had died."""
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
                f"After rank 0 had died, rank {number} ended as well"
                f"{in_line(failed[0]['line'])}: {failed[0]['error']}.",
                failed[0]["line"],
            )
        raise Missing
    if (rest["rank"], rest["size"]) != (number - 1, WORKERS - 1):
        return Problem(
            "other-images",
            "After rank 0 had died, one of two workers was left, but it trained on "
            f"the images of rank {rest['rank']} of {rest['size']}.",
            line,
        )
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
            f"After rank 0 had died, rank {number} went on {words}, with weights or "
            "an optimizer's state that it never had after a batch.",
            line,
        )
    back = len(positions) - 1 - [place for place, *_ in positions].index(having[-1])
    if back > COMMIT_EVERY:
        return Problem(
            "too-far-back",
            f"After rank 0 had died, rank {number} went back {back} batches, to its "
            f"state {_shown(having[-1])}. Commit every --commit-every batches.",
            line,
        )
    if asked not in having:
        return Problem(
            "other-place",
            f"After rank 0 had died, rank {number} went on {words}, but with the "
            f"weights that it had {_shown(having[-1])}.",
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
