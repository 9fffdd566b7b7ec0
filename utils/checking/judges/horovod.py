"""Judge the six Horovod steps: compare what the ranks reported."""

import functools
import itertools
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from distcheck.verdict import UNDECIDED
from utils.checking import lab
from utils.checking.judges.graphs import Judge, trains, validates
from utils.checking.judges.judge import (
    DEADLOCK,
    Missing,
    Observed,
    Problem,
    Rank,
    Unreadable,
    in_line,
    short,
)
from utils.checking.observers.observe import SMALL, UNKNOWN, UPDATES, numbered

CLOSE = 0.01  # relative: what compression to 16 bits may cost
NEAR = 1e-6  # relative: what float32 costs; losses of two ranks can be near 1e-5
ROUNDED = 1e-3  # relative: weights sent in 16 bits; those of two ranks differ by more

# So many digits at most: a long row of them would be read again from each of them.
_PROGRESS = re.compile(
    r"Epoch \d+/\d+|\d{1,9}/\d{1,9} \[[=>.]|\d(ms|s|us)/step"
    r"|\b(val_)?(loss|accuracy)\b\W{0,3}\d",
    re.IGNORECASE,
)


OTHER, OPPOSITE = "other options", "opposite"


def whatever_the_options(judge: Judge) -> Judge:
    """The same, for a step that has to be right with other options, too."""

    @functools.wraps(judge)
    def judged(worlds: dict[str, Observed]) -> None:
        judge(worlds)
        if OTHER not in worlds:
            return
        try:
            judge({**worlds, "two": worlds[OTHER]})
        except Problem as problem:
            options = shlex.join(lab.WORLDS[OTHER].options)
            problem.seen += f" This was seen with {options}; without, it was right."
            raise

    return judged


# ------------------------------------------------------------ step 1


def starts_and_pins(worlds: dict[str, Observed]) -> None:
    world = worlds["two"]
    started = [r for r in world.ranks if any(e["op"] == "init" for e in r.all("enter"))]
    if 0 < len(started) < world.size:
        numbers = ", ".join(str(rank.number) for rank in started)
        line = next(e["line"] for e in started[0].all("enter") if e["op"] == "init")
        raise Problem(
            "started-by-some", f"Only rank {numbers} called hvd.init().", line
        )
    for rank in world.ranks:
        for event in rank.all("asked"):
            if event["too_early"]:
                raise Problem(
                    "asked-too-early",
                    f"Rank {rank.number} called hvd.{event['name']}() in line "
                    f"{event['line']}, before hvd.init().",
                    event["line"],
                )
    for rank, failure in world.failures():
        if "cannot be modified after being initialized" in failure["error"]:
            touched = next((e["line"] for e in rank.all("devices")), None)
            raise Problem(
                "too-late",
                f"TensorFlow set up its devices{in_line(touched)}, before the "
                f"GPU was chosen in line {failure['line']}.",
                failure["line"],
            )
    if not started:
        world.raise_trouble()
        raise Problem("not-started", "No worker called hvd.init().")
    local_ranks = lab.WORLDS["two"].local_ranks
    devices = [rank.first("devices") for rank in world.ranks]
    visible = [event["visible"] for event in devices]
    where = "On a machine with four GPUs"
    touched = devices[0]["line"]
    pinned = world.ranks[0].all("pinned")
    line = pinned[-1]["line"] if pinned else touched
    name = ""
    if all(len(gpus) == lab.WORLDS["two"].gpus for gpus in visible):
        name = "not-pinned"
    elif visible[0] == visible[1] and visible[0]:
        name = "same-gpu"
    elif any(len(gpus) != 1 for gpus in visible):
        name = "wrong-gpu"
    elif sorted(visible) == [[n] for n in range(world.size)]:
        name = (
            "rank-for-local-rank"  # of this machine's workers, these are not the first
        )
    if name:
        message = "; ".join(
            f"rank {rank} with local rank {local_rank} saw {_gpus(gpus)}"
            for rank, (local_rank, gpus) in enumerate(
                zip(local_ranks, visible, strict=True)
            )
        )
        if name == "not-pinned":
            message += f"; TensorFlow set up the devices{in_line(touched)}"
        raise Problem(name, f"{where}, {message}.", line)
    for rank, event in enumerate(devices):
        (gpu,) = event["visible"]
        if gpu not in event["growth"]:
            raise Problem(
                "no-memory-growth",
                f"{where}, rank {rank} saw only its own GPU, {gpu}, but memory growth "
                "was not on for it.",
                line,
            )
    _takes_the_keras_interface(world)
    if "given" in worlds:
        _takes_what_is_given(worlds["given"])
    if "hosts" in worlds:
        _counts_its_own_machine(worlds["hosts"])
    if "crowded" in worlds:
        _shares_no_gpu(worlds["crowded"])
    without_gpu = worlds.get("one")
    failures = without_gpu.failures() if without_gpu and not world.failures() else []
    if failures and not without_gpu.ranks[0].all("forward"):
        _, failure = failures[0]
        raise _failed("needs-gpu", "On a machine without a GPU, the program", failure)


def _failed(name: str, who: str, failure: dict) -> Problem:
    """The Problem of who failed where a right program gets on."""
    error = short(failure["error"])
    seen = f"{who} failed{in_line(failure['line'])}: {error}"
    return Problem(name, seen, failure["line"])


def _takes_the_keras_interface(world: Observed) -> None:
    """Only that has callbacks: who trains with fit, and hasn't found a way without
    them, is told before a later step fails."""
    rank = world.ranks[0]
    names = {name for fit in rank.all("fit") for name in fit["modules"]}
    alone = "horovod.tensorflow" in names and _KERAS not in names
    found_a_way = any(
        e["op"] == "broadcast" or ("reduce" in e["op"] and e["elements"] > SMALL)
        for e in rank.all("enter")
    )
    failed = any(
        "'horovod.tensorflow' has no attribute" in failure["error"]
        for _, failure in world.failures()
    )
    if failed or (alone and not found_a_way):
        started = next(e["line"] for e in rank.all("enter") if e["op"] == "init")
        raise Problem(
            "other-interface",
            f"The program has imported horovod.tensorflow, but not {_KERAS}. Only "
            "the latter has the callbacks for steps 4 and 6.",
            started,
        )


_KERAS = "horovod.tensorflow.keras"


def _takes_what_is_given(world: Observed) -> None:
    """A scheduler has let this worker see a single GPU, the first of four."""
    (rank,), (local_rank,) = world.ranks, lab.WORLDS[world.name].local_ranks
    where = (
        "A scheduler had given each worker one GPU, with CUDA_VISIBLE_DEVICES. "
        f"The worker with local rank {local_rank}"
    )
    for _, failure in world.failures():
        who = f"{where} saw only its GPU, and"
        raise _failed("given-gpu-not-found", who, failure)
    if not rank.all("devices"):
        world.raise_trouble()
    event = rank.first("devices")
    if event["visible"] != [0]:
        raise Problem(
            "given-gpu-not-used",
            f"{where} was given GPU 0, but saw {_gpus(event['visible'])}. The "
            "scheduler's choice must not be changed.",
            event["line"],
        )


def _counts_its_own_machine(world: Observed) -> None:
    """Each worker is alone on a machine with a GPU."""
    where = "On two machines with one worker and one GPU each"
    for rank, failure in world.failures():
        raise _failed("fails-on-hosts", f"{where}, rank {rank.number}", failure)
    for rank in world.ranks:
        event = rank.first("devices")
        if (event["visible"], event["growth"]) != ([0], [0]):
            raise Problem(
                "not-pinned-on-hosts",
                f"{where}, rank {rank.number} saw {_gpus(event['visible'])}, and "
                f"memory growth was on for {_gpus(event['growth'])}. The number of all "
                "workers doesn't tell how many GPUs a machine has.",
                event["line"],
            )


def _shares_no_gpu(world: Observed) -> None:
    """To end with an error is right here, and so is to compute on cores."""
    (rank,), (local_rank,) = world.ranks, lab.WORLDS[world.name].local_ranks
    for event in rank.all("devices"):
        if event["visible"]:
            raise Problem(
                "shared-gpu",
                "On a machine with two GPUs for four workers, the worker with local "
                f"rank {local_rank} took {_gpus(event['visible'])}, which another "
                "worker has. Two workers on one GPU are slower than one, run out of "
                "memory, and NCCL refuses them. Let the program fail instead.",
                event["line"],
            )


def _gpus(numbers: list[int]) -> str:
    if not numbers:
        return "no GPU"
    return f"GPU{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


# ------------------------------------------------------------ step 2


@whatever_the_options
def speaks_with_one_voice(worlds: dict[str, Observed]) -> None:
    world = worlds["two"]
    fits = [rank.all("fit") for rank in world.ranks]
    if world.outcome != lab.ENDED and not all(fits):
        raise Missing
    line = fits[0][0]["line"] if fits[0] else None
    _raise_idle(world)
    said = [_said(rank) for rank in world.ranks]
    # What didn't come so far as to say anything may have been asked to.
    asked = [
        bool(fit and fit[0]["verbose"])
        and (not rank.all("fitted") or bool(rank.all("failed")))
        for fit, rank in zip(fits, world.ranks, strict=True)
    ]
    rank_0 = asked[0] or _tells(said[0], [line for o in said[1:] for line in o])
    scores = [
        _scores(lines, said[0]) or _progress(rank) if rank.number else []
        for lines, rank in zip(said, world.ranks, strict=True)
    ]
    others = [n for n in range(1, world.size) if asked[n] or scores[n]]
    if not rank_0:
        local = _local_rank_for_rank(world.ranks[0])
        if local:
            raise Problem(
                "local-rank-for-rank",
                f"Rank 0 was silent, because line {local} asks for the local rank, "
                "which was 3 and 1 here. The local rank counts the workers of each "
                "machine, so several workers may have local rank 0, or none. Only one "
                "worker has rank 0.",
                local,
            )
    if others and not rank_0:
        raise Problem(
            "inverted", f"Rank 0 was silent, but rank {others[0]} printed.", line
        )
    if not rank_0:
        raise Problem("silent", "No worker showed progress, not even rank 0.", line)
    if others:
        score = next(iter(scores[others[0]]), None)
        if score is None:
            words = f"called fit with verbose={fits[others[0]][0]['verbose']!r}"
        else:
            words = f'printed "{short(score, 60)}"'
            line = _line_that_printed(world.ranks[others[0]], score, line)
        raise Problem("others-speak", f"Rank {others[0]} {words}.", line)
    _raise_written_twice(world)
    _raise_waits_alone(world)


def _raise_waits_alone(world: Observed) -> None:
    """Raise the Problem of a rank that, after its training, waits for ranks that have
    come to their end."""
    for rank in world.ranks:
        others = [r for r in world.ranks if r is not rank]
        after = list(itertools.dropwhile(_not_fitted, rank.events))
        last = next((e for e in reversed(after) if e["what"] in ("enter", "leave")), {})
        if last.get("what") == "enter" and all(r.all("ended") for r in others):
            raise Problem(
                "waits-alone",
                f"After the training, rank {rank.number} called "
                f"{last['op']}{in_line(last['line'])}, and waits forever, because the "
                "others have ended without making this call.",
                last["line"],
            )


def _not_fitted(event: dict) -> bool:
    return event["what"] != "fitted"


def _raise_written_twice(world: Observed) -> None:
    """Raise the Problem of a file that several ranks write. TensorBoard takes all its
    files of a folder for those of one run, whatever they are called."""
    written = [
        {_OF_TENSORBOARD.sub(r"\1", name) for e in r.all("left") for name in e["files"]}
        for r in world.ranks
    ]
    for number, names in enumerate(written[1:], 1):
        for name in sorted(names & written[0]):
            raise Problem(
                "others-write",
                f"Rank {number} wrote a file {name}, and so did rank 0. In this check "
                "each rank has its own folder; in a common folder, they would "
                "overwrite each other's file.",
            )


def _raise_idle(world: Observed) -> None:
    """Raise the Problem of ranks that are silent, as they have nothing to tell."""
    trained = [any(e["training"] for e in r.all("forward")) for r in world.ranks]
    if world.outcome == lab.ENDED and any(trained) and not all(trained):
        working = world.ranks[trained.index(True)]
        idle = ", ".join(str(n) for n, did in enumerate(trained) if not did)
        line = next((fit["line"] for fit in working.all("fit")), None)
        raise Problem(
            "does-not-train",
            f"Rank {working.number} trained, but rank {idle} did not. Only what is "
            "printed may depend on the rank, because all ranks have to train.",
            line,
        )


def _said(rank: Rank) -> list[str]:
    """What the rank has said since it began to train, and all progress before that, by
    whichever way to the terminal; without what libraries say by themselves."""
    lines = []
    for before, training, after in _printed(rank):
        lines += [line for line in _lines(before) if _PROGRESS.search(line)]
        lines += _lines(training + after)
    return [line for line in lines if re.search(r"\w", line)]


def _printed(rank: Rank) -> Iterable[tuple[str, str, str]]:
    """What the rank has printed before, in and after its training with fit, by each way
    to the terminal; without fit, all from its first batch on is after it."""
    sizes = [event["sizes"] for event in rank.all("output")]
    begins = sizes[0] if sizes else [0, 0]
    ends = sizes[1] if len(sizes) > 1 else begins
    for name, *places in zip(("out", "err"), begins, ends, strict=False):
        text = rank.text(name)
        if rank.all("failed"):  # what Python says of the end is not the program's word
            text = text.partition("Traceback (most recent call last):\n")[0]
        parts = [text.encode()[slice(*ends)] for ends in ((0, places[0]), places)]
        parts.append(text.encode()[places[1] :])
        yield tuple(part.decode(errors="replace") for part in parts)


def _line_that_printed(rank: Rank, words: str, fit: int | None) -> int | None:
    """The line that calls fit, where it printed this; after it, an evaluation's line
    if there was one, else None."""
    while_training = [t for _, training, _ in _printed(rank) for t in _lines(training)]
    if words in while_training:
        return fit
    evaluated = [event["line"] for event in rank.all("evaluated") if not event["fit"]]
    return evaluated[-1] if evaluated else None


def _progress(rank: Rank) -> list[str]:
    """The lines of those printed while training that tell how it gets on, in whichever
    words or signs: with a number, without a letter, or more than once."""
    lines = [line for _, training, _ in _printed(rank) for line in _lines(training)]
    return [
        line
        for line in lines
        if re.search(r"\d", line) or not re.search(r"\w", line) or lines.count(line) > 1
    ]


def _lines(text: str) -> list[str]:
    """Lines as a terminal shows them, without empty ones and those of libraries."""
    lines = [line.strip() for line in re.split(r"[\n\r\b]+", text)]
    lines = [re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", line) for line in lines]
    kept, of_warning = [], False
    for line in lines:
        if of_warning:  # the line of code that Python shows below a warning
            of_warning = False
            continue
        of_warning = bool(_WARNING.match(line))
        if line and not of_warning and not _OF_LIBRARIES.match(line):
            kept.append(line)
    return kept


_OF_TENSORBOARD = re.compile(r"(events\.out\.tfevents)\.[^/]*$")
_WARNING = re.compile(r"\S+\.py:\d+: \w*Warning: ")
_OF_LIBRARIES = re.compile(
    r"WARNING:tensorflow:|WARNING: All log messages|NOTICE: "
    r"|\d{4}-\d\d-\d\d .{0,40}: [IWEF] "
    r"|[IWEF]\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ \S+\.cc:\d+\]"
)


def _scores(lines: list[str], of_rank_0: Iterable[str]) -> list[str]:
    """The lines in which progress or scores are told, if any are: in Keras' words, or,
    in whichever words, again and again, or as rank 0 tells them.

    That a worker once says who it is, or that it has ended, is none of it.
    """
    spoken = [line for line in lines if _PROGRESS.search(line)]
    numbers = [line for line in lines if re.search(r"\d[.,]\d", line)]
    forms = {_form(line) for line in of_rank_0}
    repeated = [line for line in numbers if _form(line) in forms]
    return spoken or repeated or (numbers if len(numbers) > 1 else [])


def _tells(lines: list[str], of_others: list[str]) -> bool:
    """Is there any number among the lines that is more than who says it, or when?"""
    forms = {_form(line) for line in of_others}
    return bool(_scores(lines, lines)) or any(
        re.search(r"\d", line) and _form(line) not in forms for line in lines
    )


def _form(line: str) -> str:
    """The line without its numbers."""
    return re.sub(r"[-+]?\d+(?:[.,]\d+)*(?:e[-+]?\d+)?", "#", line)


def _local_rank_for_rank(rank: Rank) -> int | None:
    """The last line that asked for the local rank after the GPU was chosen with it."""
    kinds = [event["what"] for event in rank.events]
    pinned = len(kinds) - kinds[::-1].index("pinned") if "pinned" in kinds else 0
    asked = [
        event["line"]
        for event in rank.events[pinned:]
        if event["what"] == "asked" and event["name"] == "local_rank"
    ]
    return asked[-1] if asked and (pinned or len(asked) > 1) else None


# ------------------------------------------------------------ step 3


@trains
@whatever_the_options
def averages_gradients(worlds: dict[str, Observed]) -> None:
    world = worlds["two"]
    wrapped = [event["line"] for event in world.ranks[0].all("wrapped")]
    if len(wrapped) > 1 and any("Recursion" in e["error"] for _, e in world.failures()):
        raise Problem(
            "wrapped-twice",
            "The wrapped optimizer was wrapped again, and the two wrappers call each "
            "other forever.",
            wrapped[1],
        )
    local, applied = world.arrays("local"), world.arrays("applied")
    if local.shape != applied.shape:
        raise Unreadable("the gradients")
    if _same(local[0], local[1]):
        raise Problem(
            "no-difference",
            "All ranks computed the same gradient, so the check can't see whether it "
            "was averaged.",
            state=UNDECIDED,
        )
    updates = [rank.first("update") for rank in world.ranks]
    line = updates[0]["line"]
    mean = local.mean(axis=0)
    made = wrapped[-1] if wrapped and all(u["wrapped"] for u in updates) else line
    if all(_same(gradient, mean) for gradient in applied):
        reduced = _reduced_elements(world.ranks[0])
        if reduced > 1.5 * mean.size:
            raise Problem(
                "wrapped-twice",
                f"Every gradient was averaged {reduced / mean.size:.0f} times over: "
                "the result is the same, but every time costs messages.",
                wrapped[-1] if wrapped else line,
            )
        _raise_not_always(world, line)
        _raise_divided_too(world)
        return
    if all(
        _same(gradient, computed)
        for gradient, computed in zip(applied, local, strict=True)
    ):
        by_wrapped = [update["wrapped"] for update in updates]
        if all(by_wrapped) and not _reduced_elements(world.ranks[0]):
            raise Problem(
                "applied-directly",
                "The wrapped optimizer applied each rank's own "
                f"gradient{in_line(line)}, because its apply_gradients does not "
                "average. Only its minimize averages, which fit calls. In a loop of "
                "your own, use horovod.tensorflow.DistributedGradientTape.",
                line,
            )
        if wrapped and not any(by_wrapped):
            raise Problem(
                "not-used",
                f"The optimizer that was wrapped in line {wrapped[0]} didn't train the "
                "model: each rank used its own gradient.",
                wrapped[0],
            )
        raise Problem("not-averaged", "Each rank used its own gradient.", line)
    factors = [float(g @ mean / (mean @ mean)) for g in applied]
    if all(_same(g, f * mean) for g, f in zip(applied, factors, strict=True)):
        if np.allclose(factors, world.size, rtol=CLOSE):
            if all(_divided_loss(rank, world.size) for rank in world.ranks):
                _raise_not_always(world, line, world.size)
                return
            raise Problem(
                "sum", "All ranks used the sum of the gradients, not the mean.", made
            )
        multiples = " and ".join(f"{factor:.2f}" for factor in factors)
        raise Problem("scaled", f"The ranks used {multiples} times the mean.", made)
    if _same(applied[0], applied[1]):
        raise Problem(
            "not-the-mean", "All ranks used the same gradient, but not the mean.", made
        )
    raise Problem("differs", "The ranks used different gradients.", made)


def _raise_divided_too(world: Observed) -> None:
    """Raise the Problem of gradients that are averaged, of a loss that each rank has
    divided by their number before."""
    losses = [_divided_loss(rank, world.size) for rank in world.ranks]
    if all(losses):
        loss = losses[0]
        raise Problem(
            "loss-divided",
            f"Rank 0's loss in the first batch was {loss['value']:.3f}, with a mean "
            f"cross-entropy of {loss['cross_entropy']:.3f} over its images: it was "
            f"divided by {world.size}, and then the gradients were averaged as well. "
            f"So the update is {world.size} times too small.",
            loss["line"],
        )


def _divided_loss(rank: Rank, size: int) -> dict | None:
    """The loss of the first batch, if that is the cross-entropy divided by so many,
    with or without the penalty for large weights."""
    for loss in rank.all("loss")[:1]:
        entropy, penalty = loss["cross_entropy"], loss["penalty"]
        divided = entropy / size + penalty, (entropy + penalty) / size
        if any(np.isclose(loss["value"], value, rtol=1e-3) for value in divided):
            return loss
    return None


def _raise_not_always(world: Observed, line: int | None, factor: int = 1) -> None:
    """Raise the Problem of gradients that are averaged in the first batch alone.

    factor: so many times the mean is what the ranks should use."""
    for update in range(1, UPDATES):
        try:
            local = world.arrays(numbered("local", update))
            applied = world.arrays(numbered("applied", update))
        except Missing:
            return
        mean = factor * local.mean(axis=0)
        if not all(_same(gradient, mean) for gradient in applied):
            raise Problem(
                "not-always",
                "In the first batch all ranks used the mean of their gradients, but in "
                f"batch {update + 1} they did not.",
                line,
            )


def _reduced_elements(rank: Rank) -> int:
    """How many numbers went through allreduce before the first update."""
    total = 0
    for event in rank.events:
        if event["what"] == "forward":
            total = 0
        if event["what"] == "enter" and "allreduce" in event["op"]:
            total += event["elements"]
        if event["what"] == "update":
            break
    return total


# ------------------------------------------------------------ step 4


@trains
@whatever_the_options
def broadcasts(worlds: dict[str, Observed]) -> None:
    world = worlds["two"]
    start, updated = world.arrays("start"), world.arrays("updated")
    second, state = world.arrays("second"), [r.array("state") for r in world.ranks]
    sent = [e for e in world.ranks[0].all("enter") if e["op"] == "broadcast"]
    line = _line_of_most(sent)
    started_alike = np.array_equal(start[0], start[1])
    if started_alike:
        _from_rank_0(world, start[0], world.arrays("made"), "started")
    apart = _distance(second[0], second[1])
    if apart > 0:
        if not sent:
            raise Problem(
                "not-broadcast",
                "No rank handed out its weights: after the first batch those of rank 0 "
                f"and rank 1 differ by {apart:.1%}. (A seed does not help, because the "
                "check gives each rank other weights to start from, as a checkpoint or "
                "another machine may.)",
            )
        raise Problem(
            "differs",
            f"There was a broadcast in line {line}, but after the first batch the "
            f"weights of rank 0 and rank 1 differ by {apart:.1%}.",
            line,
        )
    if not started_alike:
        _from_rank_0(world, second[0], updated, "update")
    if state[0].shape != state[1].shape or _distance(state[0], state[1]) > 0:
        raise Problem(
            "optimizer-state",
            "All ranks have the same weights, but not all have rank 0's optimizer "
            "state.",
            line,
        )
    if world.outcome == lab.ENDED:
        apart = _distance(*world.arrays("end"))
        if apart > CLOSE:
            raise Problem(
                "apart-again",
                "After the first batch all ranks had the same weights, but in the end "
                f"those of rank 0 and rank 1 differed by {apart:.1%}.",
                line,
            )


def _line_of_most(sent: list[dict]) -> int | None:
    """The line whose broadcasts carried most numbers: the weights, not a counter."""
    numbers: Counter = Counter()
    for event in sent:
        numbers[event["line"]] += event["elements"]
    return numbers.most_common(1)[0][0] if numbers else None


def _from_rank_0(
    world: Observed, weights: np.ndarray, before: np.ndarray, since: str
) -> None:
    """Raise a Problem if `weights`, which all ranks have now, are not those of rank 0.

    before: what each rank had before that; since: the event since which they may have
    become the same.
    """
    owners = [
        n for n, start in enumerate(before) if _distance(start, weights) < ROUNDED
    ]
    line = _first_exchange(world.ranks[0], since)
    combined = {
        "mean": before.mean(axis=0),
        "sum": before.sum(axis=0),
        "maximum": before.max(axis=0),
        "minimum": before.min(axis=0),
    }
    for name, numbers in combined.items():
        if not owners and _distance(numbers, weights) < ROUNDED:
            raise Problem(
                f"{name}-of-starts",
                f"All ranks got the {name} of the ranks' weights{in_line(line)}, not "
                "those of rank 0. If rank 0 had read a checkpoint, its weights would "
                "be mixed with the random weights of the others.",
                line,
            )
    foreign = _foreign_broadcasts(world.ranks[0], weights.size)
    if foreign:
        line = foreign[0]["line"]
    if len(owners) in (0, world.size):  # then only broadcasts tell whose they are
        roots = [event["root"] for event in foreign]
    else:
        roots = owners
    if roots and 0 not in roots:
        raise Problem(
            "wrong-root",
            f"All ranks got the weights of rank {roots[0]}, not those of rank 0.",
            line,
        )
    if not owners and since == "update":
        raise Problem(
            "another-start",
            "After the first batch all ranks have the same weights, but not those of "
            "rank 0.",
            line,
        )


def _foreign_broadcasts(rank: Rank, numbers: int) -> list[dict]:
    """The broadcasts from other ranks than 0, if they carried so many numbers in all:
    with fewer, they were about something else than the weights."""
    sent = [e for e in rank.all("enter") if e["op"] == "broadcast" and e["root"]]
    return sent if sum(event["elements"] for event in sent) >= numbers else []


def _first_exchange(rank: Rank, since: str) -> int | None:
    """The line of the first collective, other than a broadcast, that carried more than
    a few numbers between the first such event and the next batch."""
    kinds = [event["what"] for event in rank.events]
    for event in rank.events[kinds.index(since) :]:
        if event["what"] == "forward":
            break
        large = event["what"] == "enter" and event["elements"] > SMALL
        if large and event["op"] != "broadcast":
            return event["line"]
    return None


# ------------------------------------------------------------ step 5


@trains
def shares_the_epoch(worlds: dict[str, Observed]) -> None:
    # One of each size, rather one whose steps are only counted.
    by_size = {
        world.size: world
        for world in sorted(
            worlds.values(), key=lambda w: lab.WORLDS[w.name].count_only
        )
        if not lab.WORLDS[world.name].devices_only and world.name != OPPOSITE
    }
    used = list(by_size.values())
    done: dict[int, list[list[Epoch]]] = {}  # by size of the world and rank
    for world in sorted(used, key=lambda world: world.size):
        for rank in world.ranks:
            for fit in rank.all("fit")[:1]:
                for name in ("steps_per_epoch", "validation_steps"):
                    if isinstance(fit[name], float):
                        raise Problem(
                            "float",
                            f"On {_workers(world.size)} {name} was {fit[name]!r}, with "
                            "a decimal point: steps are whole numbers, so divide with "
                            "//.",
                            fit["line"],
                        )
        if world.outcome != lab.ENDED and not all(
            rank.all("fitted") or rank.all("callback") for rank in world.ranks
        ):
            world.raise_trouble()
        if not any(rank.all("forward") for rank in world.ranks):
            raise Missing
        done[world.size] = [_epochs(rank) for rank in world.ranks]
    lines = [f["line"] for w in used for r in w.ranks for f in r.all("fit")]
    line = lines[0] if lines else None
    first = {n: [epochs[0] for epochs in ranks] for n, ranks in done.items()}
    trained = {n: [len(e.trained) for e in ranks] for n, ranks in first.items()}
    validated = {n: [len(e.validated) for e in ranks] for n, ranks in first.items()}
    evidence = [
        f"{_workers(size)}: {_listed(trained[size])} training, "
        f"{_listed(validated[size])} validation steps"
        for size in done
    ]

    def problem(name: str, seen: str) -> Problem:
        return Problem(name, seen, line, evidence)

    total, rounds = lab.STEPS, 3 * lab.VAL_STEPS
    if not any(e["op"] == "join" for w in used for e in w.ranks[0].all("enter")):
        _raise_unequal(trained, problem)
    if not all(_one_pass(ranks) for ranks in first.values()):
        _compare(
            trained,
            total,
            "training",
            {
                "local-size": (
                    lambda n: total // _local_size(n, used),
                    "The steps were divided by the workers of one machine, "
                    "hvd.local_size(), but the workers of all machines, hvd.size(), "
                    "share an epoch.",
                ),
            },
            problem,
        )
        _raise_other_images(first, problem)
    alike = [w for w in used if lab.WORLDS[w.name].count_only]
    _raise_other_epochs({w.size: done[w.size] for w in alike}, problem)
    for ranks in done.values():
        _raise_badly_drawn(ranks, problem)
    _compare(
        validated,
        rounds,
        "validation",
        {
            "validation-divided-first": (
                lambda n: 3 * (lab.VAL_STEPS // n),
                "The validation steps are 3 * (steps // N): dividing first drops a "
                "remainder, which is then lost three times.",
            ),
            "validation-not-tripled": (
                lambda n: lab.VAL_STEPS // n,
                "The validation steps are steps // N, without the three rounds. "
                "Because images are drawn at random, one round leaves out too many.",
            ),
            "validation-not-shared": (
                lambda n: lab.VAL_STEPS,
                "Every worker validated a whole round, however many workers there "
                "were.",
            ),
        },
        problem,
        {n for n, ranks in first.items() if _each_once(ranks)},
        # By now its training is known to be rounded to the nearest, if not down.
        any(max(did) > total // n for n, did in trained.items()),
    )
    for ranks in done.values():
        _raise_badly_validated(ranks, problem)
    for world in used:
        _raise_other_rate(world, first[world.size])


@dataclass(frozen=True)
class Epoch:
    """What a rank did in it: the images of each training and each validation step, by
    number. A step whose images weren't seen has none."""

    trained: list[list[int]]
    validated: list[list[int]]


def _epochs(rank: Rank) -> list[Epoch]:
    """The epochs of a rank, at least one. They end where callbacks are told so, and
    where training follows validation."""
    events = [e for e in rank.events if e["what"] in ("forward", "callback")]
    forwards = rank.all("forward")
    if any(event["fit"] and not event["training"] for event in forwards):
        events = [e for e in events if e["what"] == "callback" or e["fit"]]
    elif rank.number == 0:
        # Where it doesn't validate in fit, nothing but its place tells the test at the
        # end, of all images once, from the validation.
        test = forwards[-lab.VAL_STEPS :]
        if not any(event["training"] for event in test):
            left_out = {id(event) for event in test}
            events = [e for e in events if id(e) not in left_out]
    epochs = [Epoch([], [])]
    ended = False
    for event in events:
        if event["what"] == "callback":
            ended = True
            continue
        if event["training"] and (ended or epochs[-1].validated):
            epochs.append(Epoch([], []))
        ended = False
        steps = epochs[-1].trained if event["training"] else epochs[-1].validated
        steps.append(event["images"])
    return epochs


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


def _raise_unequal(
    trained: dict[int, list[int]], problem: Callable[[str, str], Problem]
) -> None:
    """Raise the Problem of ranks that do not train equally many steps."""
    for size, done in trained.items():
        if len(set(done)) > 1:
            raise problem(
                DEADLOCK,
                f"On {_workers(size)} {_who_did(done)} training steps. Every step "
                "averages the gradients of all ranks, so this is a deadlock: rank "
                f"{done.index(max(done))}, which does more steps, waits for the others "
                "forever.",
            )


def _local_size(size: int, used: list[Observed]) -> int:
    """How many workers of a world of this size are on a machine, as it is told."""
    (name,) = (world.name for world in used if world.size == size)
    local_ranks = lab.WORLDS[name].local_ranks
    return max(local_ranks) + 1 if local_ranks else size


def _images(epochs: list[Epoch]) -> int:
    """On how many images the ranks trained in an epoch, each time counted."""
    return sum(len(step) for epoch in epochs for step in epoch.trained)


def _one_pass(epochs: list[Epoch]) -> bool:
    """Did all ranks together train on as many images as there are, give or take what
    rounding a number of steps can bring? False where images weren't seen."""
    steps = [len(step) for epoch in epochs for step in epoch.trained]
    if not steps or 0 in steps:
        return False
    missing = lab.TRAIN_IMAGES - sum(steps)
    in_a_step = len(epochs) * max(steps)
    return -in_a_step / 2 < missing < in_a_step


def _raise_other_images(
    first: dict[int, list[Epoch]], problem: Callable[[str, str], Problem]
) -> None:
    """Raise the Problem of as many steps as there should be, but of other batches."""
    for size, epochs in first.items():
        sizes = {len(step) for epoch in epochs for step in epoch.trained}
        if 0 not in sizes and not _one_pass(epochs):
            raise problem(
                "images-per-epoch",
                f"On {_workers(size)} an epoch trained on {_images(epochs)} images, "
                f"but a pass over all has {lab.TRAIN_IMAGES}: there were batches of "
                f"{_and(sizes)}, although --batch-size was {lab.BATCH_SIZE}.",
            )


def _raise_other_epochs(
    done: dict[int, list[list[Epoch]]], problem: Callable[[str, str], Problem]
) -> None:
    """Raise the Problem of a training that has fewer epochs on more workers."""
    epochs = {size: len(ranks[0]) for size, ranks in done.items()}
    if not epochs:
        return
    fewest, most = min(epochs, key=epochs.get), max(epochs, key=epochs.get)
    if epochs[fewest] < epochs[most]:
        raise problem(
            "epochs-divided",
            f"On {_workers(fewest)} there were {epochs[fewest]} epochs, and on "
            f"{_workers(most)} there were {epochs[most]}. Workers share the steps of "
            "an epoch, but the number of epochs doesn't change.",
        )


def _raise_badly_drawn(
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
    if len(images) > 2.5 * lab.TRAIN_IMAGES and seen < 0.7 * lab.TRAIN_IMAGES:
        raise problem(
            "unseen-images",
            f"In {len(ranks[0])} epochs, {_workers(size)} trained on {seen} of the "
            f"{lab.TRAIN_IMAGES} images, again and again, and no worker on the other "
            f"{lab.TRAIN_IMAGES - seen}.",
        )
    _raise_out_of_a_small_buffer(ranks, problem)


def _raise_out_of_a_small_buffer(
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
    marks = [-1, *sorted(drawn), lab.TRAIN_IMAGES]
    before, after = max(itertools.pairwise(marks), key=lambda pair: pair[1] - pair[0])
    if after - before - 1 >= 0.3 * lab.TRAIN_IMAGES:
        raise problem(
            "small-buffer",
            f"In the first epoch, {_workers(len(ranks))} drew no image from "
            f"{before + 1} to {after - 1}, of {lab.TRAIN_IMAGES} in all. They draw "
            "from a few images at a time, in order, so all workers get nearly the "
            "same images. To draw at random, the buffer has to hold all images.",
        )


def _raise_badly_validated(
    ranks: list[list[Epoch]], problem: Callable[[str, str], Problem]
) -> None:
    """Raise the Problem of ranks that validate on other images than three rounds of
    all, drawn at random, or each once. Where some aren't known, nothing is said."""
    validated = [[step for e in epochs for step in e.validated] for epochs in ranks]
    images = [number for steps in validated for step in steps for number in step]
    if UNKNOWN in images or not all(step for steps in validated for step in steps):
        return
    size, count = len(ranks), -(-lab.TRAIN_IMAGES // 6)
    first = [epochs[0] for epochs in ranks]
    in_first = sum(len(step) for epoch in first for step in epoch.validated)
    # Each rank may be off by a batch; and the last one of a shard is small.
    far = abs(in_first - 3 * count) > size * lab.VAL_BATCH_SIZE
    as_said = max(map(len, itertools.chain(*validated))) == lab.VAL_BATCH_SIZE
    if in_first and far and not as_said and not _each_once(first):
        raise problem(
            "validation-images",
            f"On {_workers(size)} an epoch was validated on {in_first} images, but "
            f"three rounds have {3 * count}: the batches did not have the "
            f"{lab.VAL_BATCH_SIZE} images of --val-batch-size.",
        )
    seen = len(set(images))
    if len(images) > 3 * count and seen < count:
        raise problem(
            "unseen-validation",
            f"In {len(ranks[0])} epochs, {_workers(size)} validated on {seen} of the "
            f"{count} images, again and again, and no worker on the other "
            f"{count - seen}.",
        )


def _and(numbers) -> str:
    """ "3, 4 and 8"."""
    *most, last = map(str, sorted(numbers))
    return f"{', '.join(most)} and {last}" if most else last


def _each_once(epochs: list[Epoch]) -> bool:
    """Was every image validated once, by whichever rank?"""
    images = [n for epoch in epochs for step in epoch.validated for n in step]
    return sorted(images) == list(range(-(-lab.TRAIN_IMAGES // 6)))


def _raise_other_rate(world: Observed, epochs: list[Epoch]) -> None:
    """Raise the Problem of a stopwatch that counts the images of one worker, or those
    of all once for each."""
    trained = _images(epochs)
    if world.size == 1 or not trained:
        return
    for callback in world.ranks[0].all("callback"):
        after = callback["after"]
        if {"images_per_second", "seconds"} <= set(after):
            counted = after["images_per_second"] * after["seconds"]
            for name, images, words in (
                ("rate-of-one", trained / world.size, "those of one worker"),
                ("rate-times-n", trained * world.size, f"{world.size} times as many"),
            ):
                if _near(counted, images):
                    raise Problem(
                        name,
                        f"On {_workers(world.size)} images_per_second counts "
                        f"{counted:.0f} images in an epoch, {words}; all workers "
                        f"together trained on {trained}.",
                        callback["made"],
                    )
            return


def _compare(
    counts: dict[int, list[int]],
    total: int,
    kind: str,
    special: dict[str, tuple[Callable[[int], int], str]],
    problem: Callable[[str, str], Problem],
    right: Iterable[int] | None = None,
    up_from_half: bool = False,
) -> None:
    """Compare the steps that each rank did, by number of workers, with total // N.

    Rounding to the nearest whole number, as Python's round() does, is as good.
    special: faults that have names of their own, as what they would give. right: the
    numbers of workers that did what can be done instead, in whatever steps.
    up_from_half: this program rounds a half up.
    """
    allowed = {n: {total // n, round(total / n)} for n in counts}
    if up_from_half:
        allowed = {n: {*allowed[n], (2 * total + n) // (2 * n)} for n in counts}
    allowed |= {n: set(counts[n]) for n in right or ()}
    if all(set(done) <= allowed[n] for n, done in counts.items()):
        return
    faults = {
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
    for name, (steps, seen) in faults.items():
        if all(set(done) == {steps(n)} for n, done in counts.items()):
            raise problem(name, seen)
    wrong = next(n for n, done in counts.items() if not set(done) <= allowed[n])
    or_exactly = (
        ", or all workers together have every image once" if right is not None else ""
    )
    raise problem(
        f"{kind}-steps",
        f"On {_workers(wrong)} {_who_did(counts[wrong])} {kind} steps, but each has "
        f"{total // wrong} to do{or_exactly}.",
    )


# ------------------------------------------------------------ step 6


@validates
def averages_metrics(worlds: dict[str, Observed]) -> None:
    _averages_in(worlds["two"])
    if OTHER in worlds:
        _raise_decided_alone(worlds[OTHER])
        _raise_stopped_alone(worlds[OTHER])
        _raise_rates_apart(worlds[OTHER])
        last = _last_epoch(worlds[OTHER])
        if last:
            try:
                _averages_in(last)
            except Problem as problem:
                problem.seen = (
                    f"In the first epoch this was right. Later, {problem.seen}"
                )
                raise
    if OPPOSITE in worlds:
        _raise_went_on_alone(worlds[OPPOSITE])


def _last_epoch(world: Observed) -> Observed | None:
    """What was observed since the last validation within fit, if there were several."""
    ranks = []
    for rank in world.ranks:
        starts = [
            number
            for number, event in enumerate(rank.events)
            if event["what"] == "evaluated" and event["fit"] and not event["own"]
        ]
        if len(starts) < 2:
            return None
        fits = rank.all("fit")
        ranks.append(replace(rank))
        ranks[-1].events = fits + rank.events[starts[-1] :]
    return replace(world, ranks=ranks)


def _averages_in(world: Observed) -> None:
    """Raise the Problem of a callback that reads something else than the mean over the
    workers of what they evaluated first."""
    if not any(rank.all("fit") for rank in world.ranks):
        _averaged_by_hand(world)
        return
    calls = [rank.all("callback") for rank in world.ranks]
    if not all(calls):
        raise Missing
    evaluated = [[e for e in r.all("evaluated") if e["fit"]] for r in world.ranks]
    computed = [
        {k: v for k, v in _first_metrics(call, own).items() if k.startswith("val_")}
        for call, own in zip(calls, evaluated, strict=True)
    ]
    if not any(computed) and all(rank.all("evaluated") for rank in world.ranks):
        _averaged_by_hand(world)
        return
    if not all(computed):
        raise Problem("no-validation", "The program did not validate.")
    for rank, metrics in enumerate(computed):
        if set(metrics) != set(computed[0]):
            raise Problem(
                "other-metrics",
                f"Rank 0 computed {', '.join(sorted(computed[0]))}, but rank {rank} "
                f"{', '.join(sorted(metrics))}. Only metrics that all ranks have can "
                "be averaged.",
            )
    mean = {k: float(np.mean([values[k] for values in computed])) for k in computed[0]}
    if all(_near(computed[0][k], computed[1][k]) for k in mean):
        raise Problem(
            "no-difference",
            "All ranks computed the same validation metrics, so the check can't see "
            "whether they were averaged.",
            state=UNDECIDED,
        )
    for by_rank in _side_by_side(calls):
        _raise_combined(world, by_rank, computed)
    averaged = any(_all_near(c["after"], mean) for call in calls for c in call)
    for rank, call in enumerate(calls):
        for place, callback in enumerate(call):
            before, after = callback["before"], callback["after"]
            changes = any(after.get(k) != before.get(k) for k in mean)
            reads = set(callback["read"]) & set(mean)
            wrong = sorted(k for k in reads if not _near(before[k], mean[k]))
            if changes or not wrong or _averages_for_itself(world, callback):
                continue
            if world.outcome != lab.ENDED:
                raise Missing
            message = (
                f"{callback['name']} read {wrong[0]} = {before[wrong[0]]:.4f} on rank "
                f"{rank}; the mean over the workers is {mean[wrong[0]]:.4f}"
            )
            if any(_all_near(later["after"], mean) for later in call[place:]):
                raise Problem(
                    "too-late",
                    f"{message}. The metric is averaged only after that, because "
                    "callbacks run in the order of the list.",
                    callback["made"],
                )
            raise Problem("not-averaged", f"{message}.", callback["made"])
    if not averaged and not any(
        _averages_for_itself(world, callback) for callback in calls[0]
    ):
        raise Missing


def _first_metrics(calls: list[dict], evaluated: list[dict]) -> dict[str, float]:
    """The metrics that a rank computed first, before anybody changed them."""
    return evaluated[0]["metrics"] if evaluated else calls[0]["before"]


def _averages_for_itself(world: Observed, callback: dict) -> bool:
    """Does a callback of rank 0, or its like on another rank, let reduce what it reads,
    and leave the metrics as they are?"""
    (rank,) = (r for r in world.ranks if any(e is callback for e in r.events))
    number = next(n for n, e in enumerate(rank.events) if e is callback)
    given = []
    for event in reversed(rank.events[:number]):
        if event["what"] in ("callback", "forward"):
            break
        if event["what"] == "enter" and event["op"].endswith(_EXCHANGES):
            given += event["given"] or []
    read = [callback["before"][k] for k in callback["read"] if k.startswith("val_")]
    return any(_near(number, value) for number in given for value in read)


def _raise_decided_alone(world: Observed) -> None:
    """Raise the Problem of a callback that ends the training by what its rank has
    evaluated for it, and has exchanged with nobody."""
    for rank in world.ranks:
        callbacks = [n for n, e in enumerate(rank.events) if e["what"] == "callback"]
        end = next((n for n in callbacks if rank.events[n]["stops"]), None)
        if end is None:
            continue
        begin = max((n for n in callbacks if n < end), default=0)
        own = list(itertools.dropwhile(_not_own, rank.events[begin:end]))
        exchanged = any(event["what"] == "enter" for event in own)
        callback = rank.events[end]
        reads = any(name.startswith("val_") for name in callback["read"])
        if own and not exchanged and not reads:
            name, score = max(own[0]["metrics"].items())
            raise Problem(
                "not-averaged",
                f"{callback['name']} ended the training of rank {rank.number} because "
                f"of {name} = {score:.4f}, which only this rank had "
                f"evaluated{in_line(own[0]['line'])}.",
                own[0]["line"],
            )


def _raise_stopped_alone(world: Observed) -> None:
    """Raise the Problem of a training that ends on some ranks only."""
    stops = [[e for e in r.all("callback") if e["stops"]] for r in world.ranks]
    if any(stops) and not all(stops) and world.outcome != lab.ENDED:
        rank = next(n for n, events in enumerate(stops) if events)
        others = ", ".join(str(n) for n, events in enumerate(stops) if not events)
        callback = stops[rank][0]
        raise Problem(
            "stopped-alone",
            f"{callback['name']} ended the training of rank {rank}, but not that of "
            f"rank {others}, which then waits forever.",
            callback["made"],
        )


def _raise_went_on_alone(world: Observed) -> None:
    """Raise the Problem of ranks that decide to stop by what each has validated."""
    trained = [sum(e["training"] for e in r.all("forward")) for r in world.ranks]
    if world.outcome == lab.DEADLOCK and max(trained) > min(trained):
        raise Problem(
            "went-on-alone",
            "In this run rank 0 is right on none of its validation images, and rank 1 "
            "on all of them. One rank stopped training, and the other went on and "
            "waits forever: each rank decides by its own validation, not by the mean.",
        )


def _raise_rates_apart(world: Observed) -> None:
    """Raise the Problem of ranks that train with different learning rates."""
    trained = [[e for e in r.all("forward") if e["training"]] for r in world.ranks]
    for step, events in enumerate(zip(*trained, strict=False), 1):
        rates = [event["rate"] for event in events]
        if None not in rates and not np.allclose(rates, rates[0], rtol=NEAR, atol=0):
            other = next(n for n, rate in enumerate(rates) if rate != rates[0])
            raise Problem(
                "rates-apart",
                f"In training step {step}, rank 0's learning rate was {rates[0]:g} and "
                f"that of rank {other} {rates[other]:g}. It was set by something that "
                "differs between ranks, so the weights drift apart.",
            )


def _not_own(event: dict) -> bool:
    """Is it anything but an evaluation that a callback has asked for?"""
    return event["what"] != "evaluated" or not event["own"]


def _side_by_side(calls: list[list[dict]]):
    """Each callback that all ranks have, as what it did on each; in rank 0's order."""
    rest = [list(call) for call in calls[1:]]
    for callback in calls[0]:
        likes = [
            next((c for c in remaining if c["name"] == callback["name"]), None)
            for remaining in rest
        ]
        if None not in likes:
            for remaining, like in zip(rest, likes, strict=True):
                remaining.remove(like)
            yield callback, *likes


def _raise_combined(world: Observed, by_rank: tuple, computed: list[dict]) -> None:
    """Raise the Problem of a callback that replaces metrics by something known.

    by_rank: what it did on each rank; computed: the metrics that each computed.
    """
    changed = sorted(
        k
        for k in computed[0]
        if any(c["after"].get(k) != c["before"].get(k) for c in by_rank)
    )
    if not changed or not all(set(changed) <= set(c["after"]) for c in by_rank):
        return
    handed_out = _broadcasts_in(world.ranks[0], by_rank[0])
    for keys in (changed, *([key] for key in changed)):
        given = np.array([[metrics[k] for k in keys] for metrics in computed])
        got = np.array([[c["after"][k] for k in keys] for c in by_rank])
        name, words = _combination(given, got, handed_out)
        if name not in ("", "mean"):
            raise Problem(
                name,
                f"{by_rank[0]['name']} replaces {' and '.join(keys)} by {words}, not "
                "by the mean.",
                by_rank[0]["made"],
            )


def _broadcasts_in(rank: Rank, callback: dict) -> bool:
    """Did a broadcast take place in this callback, at the end of the epoch?"""
    for event in reversed(rank.events[: rank.events.index(callback)]):
        if event["what"] in ("callback", "forward"):
            break
        if event["what"] == "enter" and event["op"] == "broadcast":
            return True
    return False


def _combination(
    given: np.ndarray, got: np.ndarray, handed_out: bool
) -> tuple[str, str]:
    """What was made of the numbers that the ranks gave: its name, "mean" or that of a
    Problem, and words for it; both empty for nothing known.

    given, got: (ranks, numbers). handed_out: by a broadcast; the numbers alone do not
    always tell what rank 0 gave from a maximum or minimum.
    """
    mean = given.mean(axis=0)
    computed = [
        ("mean", "the mean", mean),
        ("sum", "the sum over the workers", given.sum(axis=0)),
        (
            "divided-twice",
            "the mean divided by the number of workers once more",
            mean / len(given),
        ),
        ("maximum", "the maximum over the workers", given.max(axis=0)),
        ("minimum", "the minimum over the workers", given.min(axis=0)),
    ]
    from_one_rank = [
        ("broadcast", f"what rank {rank} computed", numbers)
        for rank, numbers in enumerate(given)
    ]
    combinations = (
        [*from_one_rank, *computed] if handed_out else [*computed, *from_one_rank]
    )
    return next(
        ((name, words) for name, words, numbers in combinations if _near(got, numbers)),
        ("", ""),
    )


def _averaged_by_hand(world: Observed) -> None:
    """A training loop of its own has no callbacks: look at what it lets reduce."""
    if world.outcome != lab.ENDED or not all(r.all("forward") for r in world.ranks):
        raise Missing
    exchanges = zip(*(_small_exchanges(rank) for rank in world.ranks), strict=False)
    outcomes = [(*_outcome(by_rank), by_rank[0]["line"]) for by_rank in exchanges]
    if any(name == "mean" for name, _, _ in outcomes):
        return
    # What leaves it open comes first: a rank may exchange more than metrics.
    for name, words, line in sorted(outcomes, key=lambda o: o[0] not in _OPEN):
        if name in _OPEN:
            raise Problem(name, _OPEN[name], line, state=UNDECIDED)
        if name:
            raise Problem(
                name,
                "No number that the ranks computed in validation was averaged: they "
                f"get {words}{in_line(line)}.",
                line,
            )
    raise Problem(
        "not-averaged", "No number that the ranks computed in validation was averaged."
    )


_EXCHANGES = ("allreduce", "allgather", "broadcast")  # and the grouped ones
_OPEN = {
    "no-difference": "All ranks reduced the same numbers, so the check can't see "
    "whether they were averaged.",
    "gathered": "All ranks gathered their numbers, and the check can't see whether "
    "each then took the mean.",
}


def _outcome(by_rank: tuple[dict, ...]) -> tuple[str, str]:
    """What a collective made of a few numbers of each rank: as _combination, or a name
    in _OPEN."""
    op = by_rank[0]["op"]
    if "allgather" in op:
        return "gathered", ""
    given = np.array([exchange["given"] for exchange in by_rank])
    got = np.array([exchange["got"] for exchange in by_rank])
    name, words = _combination(given, got, handed_out=op == "broadcast")
    # Numbers as good as equal are their mean, their maximum, what rank 0 gave.
    if np.allclose(given, given[0], rtol=3 * NEAR) and name != "divided-twice":
        return ("", "") if op == "broadcast" else ("no-difference", "")
    # The program may divide the sum by itself.
    return ("mean", "") if name == "sum" else (name, words)


def _small_exchanges(rank: Rank):
    """The collectives that exchanged a few numbers after validating, as dicts with
    what the rank gave and got.

    What comes before the validation, such as the mean of the training loss, does not
    tell whether its metrics are averaged.
    """
    kinds = [event["what"] for event in rank.events]
    if "update" not in kinds:
        raise Missing
    last = len(kinds) - kinds[::-1].index("update")
    validated = next(
        (
            i
            for i, event in enumerate(rank.events[last:], last)
            if event["what"] == "forward" and not event["training"]
        ),
        last,
    )
    entered = None
    for event in rank.events[validated:]:
        if event["what"] == "enter":
            entered = event if event["op"].endswith(_EXCHANGES) else None
        elif event["what"] == "leave" and entered and entered["given"] and event["got"]:
            yield {**entered, "got": event["got"]}


# ------------------------------------------------------------ small things


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return _distance(a, b) < CLOSE


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    """|a - b| / |a|."""
    return float(np.linalg.norm(a - b) / (np.linalg.norm(a) or 1.0))


def _near(a, b) -> bool:
    """Two numbers, or all of two arrays."""
    return bool(np.allclose(a, b, rtol=NEAR, atol=1e-7))


def _all_near(metrics: dict, wanted: dict) -> bool:
    return all(k in metrics and _near(metrics[k], v) for k, v in wanted.items())
