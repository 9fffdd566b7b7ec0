"""Decide from what the workers of a check reported whether each step is right.

The programs only report (utils.observe); here the ranks are compared. A step is
judged by its own evidence as far as that goes: a program that hangs at its broadcast
may well have a right step 1.
"""

import itertools
import json
import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from utils import lab
from utils.verdict import RIGHT, UNDECIDED, WRONG, Verdict

MOST_BYTES = 50_000_000  # of a report or an array; a right one has a fiftieth
CLOSE = 0.01  # relative: what compression to 16 bits may cost
EVIDENCE_LINES = 6

TAMPERED, CRASHED, DEADLOCK, HUNG, FLOOD = (
    *("tampered", "crashed", "deadlock", "hung", "flood"),
)

_PROGRESS = re.compile(
    r"Epoch \d+/\d+|\d+/\d+ \[[=>.]|\d(ms|s|us)/step"
    r"|\b(val_)?(loss|accuracy)\b\W{0,3}\d",
    re.IGNORECASE,
)

EXPECTED = {
    1: "Every worker calls hvd.init() before it asks for its rank, and makes the GPU "
    "with the number of its local rank visible, with memory growth on, before "
    "TensorFlow touches a device; without GPUs, the program runs, too.",
    2: "Rank 0 shows progress and scores, all other ranks none.",
    3: "All ranks update their weights with the same gradient, the mean of what each "
    "of them computed.",
    4: "After the first batch all ranks have rank 0's weights and optimizer state, "
    "wherever they started.",
    5: f"With N workers, each trains {lab.STEPS} // N steps and validates "
    f"3 * {lab.VAL_STEPS} // N steps, where one worker alone has {lab.STEPS} and "
    f"{lab.VAL_STEPS}.",
    6: "Every callback that reads validation metrics sees their mean over all workers.",
}
STEPS = tuple(EXPECTED)


class Unreadable(Exception):
    """A report is not what a worker writes."""


class Missing(Exception):
    """The evidence for a step is not there: the program did not come so far."""


class Problem(Exception):
    """What is wrong; becomes the verdict."""

    def __init__(self, name, seen, line=None, evidence=(), state=WRONG):
        super().__init__(seen)
        self.name, self.seen, self.line = name, seen, line
        self.evidence, self.state = tuple(evidence), state


# ------------------------------------------------------------ reading the reports


def _read(path: Path) -> bytes:
    """A file that a program may have tampered with: no links, devices, endless files.

    Raises FileNotFoundError and Unreadable.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Unreadable(f"{path.name}: {error.strerror}") from None
    with os.fdopen(file, "rb") as stream:
        facts = os.fstat(file)
        if not stat.S_ISREG(facts.st_mode) or facts.st_size > MOST_BYTES:
            raise Unreadable(f"{path.name} is not a report")
        return stream.read(MOST_BYTES)


@dataclass
class Rank:
    """The report of one worker."""

    folder: Path
    number: int
    script: str = ""

    @cached_property
    def events(self) -> list[dict]:
        try:
            lines = _read(self.folder / f"rank.{self.number}.jsonl").split(b"\n")
            # The last line is whole only if a newline follows it.
            events = [json.loads(line) for line in lines[:-1]]
        except FileNotFoundError:
            return []
        except (ValueError, RecursionError):
            raise Unreadable(f"the report of rank {self.number}") from None
        if not all(isinstance(e, dict) and "what" in e for e in events):
            raise Unreadable(f"the report of rank {self.number}")
        return events

    def all(self, what: str) -> list[dict]:
        return [event for event in self.events if event["what"] == what]

    def first(self, what: str) -> dict:
        """The first such event. Raises Missing."""
        found = self.all(what)
        if not found:
            raise Missing
        return found[0]

    def array(self, name: str) -> np.ndarray:
        """float32, one axis. Raises Missing, Unreadable."""
        import io

        try:
            content = _read(self.folder / f"rank.{self.number}.{name}.npy")
            array = np.load(io.BytesIO(content), allow_pickle=False)
        except FileNotFoundError:
            raise Missing from None
        except (ValueError, EOFError):
            raise Unreadable(f"{name} of rank {self.number}") from None
        if array.dtype != np.float32 or array.ndim != 1:
            raise Unreadable(f"{name} of rank {self.number}")
        return array

    def text(self, name: str) -> str:
        """What it printed ("out", "err"), or where it was ("stack")."""
        try:
            content = _read(self.folder / f"rank.{self.number}.{name}")
        except FileNotFoundError:
            return ""
        return content.decode("utf-8", errors="replace")

    @property
    def state(self) -> str:
        """What it was doing in the end."""
        last = self.events[-1] if self.events else {"what": "nothing"}
        if last["what"] == "enter":
            at = _in_line(last["line"])
            return f"rank {self.number} waits for the others in {last['op']}{at}"
        if last["what"] == "ended":
            return f"rank {self.number} has ended"
        if last["what"] == "failed":
            return f"rank {self.number} has failed"
        place = rf'File "{re.escape(self.script)}", line (\d+) in '
        found = re.search(place, self.text("stack"))
        line = int(found[1]) if found else last.get("line")
        return f"rank {self.number} is busy{_in_line(line)}"


@dataclass
class World:
    """What was observed of a program on so many workers."""

    folder: Path
    name: str
    outcome: str
    ranks: list[Rank] = field(default_factory=list)

    @property
    def size(self) -> int:
        return len(self.ranks)

    def arrays(self, name: str) -> np.ndarray:
        """(size, numbers). Raises Missing if a rank has none, Unreadable."""
        found = [rank.array(name) for rank in self.ranks]
        if len({array.shape for array in found}) != 1 or not found[0].size:
            raise Unreadable(f"{name}: the ranks differ in size")
        return np.stack(found)

    def failures(self) -> list[tuple[Rank, dict]]:
        found = [(rank, event) for rank in self.ranks for event in rank.all("failed")]
        # A rank that another one left alone complains, too, but later.
        return sorted(found, key=lambda pair: _left_alone(pair[1]))

    def raise_trouble(self) -> None:
        """Raise the Problem of a program that did not end well."""
        states = [rank.state for rank in self.ranks]
        waiting = [
            r for r in self.ranks if r.events and r.events[-1]["what"] == "enter"
        ]
        if self.outcome == lab.DEADLOCK:
            raise Problem(
                DEADLOCK,
                f"The workers wait for ever: {'; '.join(states)}. All of them have to "
                "make the same calls, in the same order.",
                waiting[0].events[-1]["line"],
            )
        failures = self.failures()
        if failures and _left_alone(failures[0][1]):
            rank, failure = failures[0]
            others = [r.state for r in self.ranks if r is not rank]
            raise Problem(
                DEADLOCK,
                f"Rank {rank.number} still wanted to work with the others"
                f"{_in_line(failure['line'])}, but {'; '.join(others)}. All of them "
                "have to make the same calls.",
                failure["line"],
            )
        if failures:
            rank, failure = failures[0]
            raise Problem(
                CRASHED,
                f"Rank {rank.number} of {self.size} failed"
                f"{_in_line(failure['line'])}: {_short(failure['error'])}",
                failure["line"],
                _own_frames(rank.text("err")),
            )
        if self.outcome == lab.FLOOD:
            raise Problem(FLOOD, f"A worker printed more than {lab.OUTPUT:,} bytes.")
        if self.outcome == lab.HUNG:
            busy = [r for r in self.ranks if r not in waiting]
            line = busy[0].events[-1].get("line") if busy and busy[0].events else None
            raise Problem(
                HUNG,
                f"It did not get on: {'; '.join(states)}.",
                line,
            )
        if self.outcome == lab.FAILED:
            left = [
                f"rank {r.number}"
                for r in self.ranks
                if not r.events or r.events[-1]["what"] not in ("ended", "failed")
            ]
            raise Problem(
                CRASHED,
                f"{' and '.join(left) or 'a worker'} of {self.size} ended in the "
                "middle of the program, without an error.",
            )


def read(folder: Path) -> dict[str, World]:
    """The worlds of one job of the lab, by name."""
    worlds = {}
    for name in lab.WORLDS:
        path = folder / name / "outcome.json"
        try:
            facts = json.loads(_read(path))
            outcome, script = str(facts["outcome"]), str(facts["script"])
        except FileNotFoundError:
            continue
        except (ValueError, KeyError, TypeError, RecursionError):
            outcome, script = lab.FAILED, ""
        ranks = [Rank(path.parent, n, script) for n in range(lab.WORLDS[name].size)]
        worlds[name] = World(path.parent, name, outcome, ranks)
    return worlds


def judge(step: int, worlds: dict[str, World]) -> Verdict:
    """The verdict on one step, from the worlds that `lab.PLAN[step]` names."""
    expected = EXPECTED[step]
    try:
        for world in worlds.values():
            _raise_tampering(world)
        try:
            _JUDGES[step](worlds)
        except Missing:
            for world in worlds.values():
                world.raise_trouble()
            raise Problem(
                "never-trained", "The program ended without having trained."
            ) from None
    except Problem as p:
        name = f"step-{step}.{p.name}"
        return Verdict(step, name, p.state, expected, p.seen, p.line, p.evidence)
    except Unreadable as error:
        seen = f"What the program reported can't be read: {error}."
        return Verdict(step, f"step-{step}.{TAMPERED}", WRONG, expected, seen)
    return Verdict(step, f"step-{step}.right", RIGHT, expected, expected)


def _raise_tampering(world: World) -> None:
    for rank in world.ranks:
        for event in rank.all("replaced"):
            raise Problem(
                TAMPERED,
                f"Rank {rank.number} replaced {event['name']}, on which the check "
                "relies. Programs may use and subclass the libraries, not change them.",
            )


# ------------------------------------------------------------ step 1


def _start_and_pin(worlds: dict[str, World]) -> None:
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
                f"TensorFlow took hold of its devices{_in_line(touched)}, before the "
                f"GPU was chosen in line {failure['line']}.",
                failure["line"],
            )
    if not started:
        world.raise_trouble()
        raise Problem("not-started", "No worker called hvd.init().")
    locals_ = lab.WORLDS["two"].local_ranks
    devices = [rank.first("devices") for rank in world.ranks]
    visible = [event["visible"] for event in devices]
    where = "On a machine with four GPUs"
    touched = devices[0]["line"]
    pinned = world.ranks[0].all("pinned")
    line = pinned[-1]["line"] if pinned else touched
    if visible != [[n] for n in locals_]:
        told = "; ".join(
            f"rank {rank} with local rank {local} saw {_gpus(seen)}"
            for rank, (local, seen) in enumerate(zip(locals_, visible, strict=True))
        )
        if visible == [[n] for n in range(world.size)]:
            name = "rank-for-local-rank"
        elif all(len(v) == lab.WORLDS["two"].gpus for v in visible):
            name = "not-pinned"
            told += f"; TensorFlow took hold of the devices{_in_line(touched)}"
        elif len({tuple(v) for v in visible}) == 1 and visible[0]:
            name = "same-gpu"
        else:
            name = "wrong-gpu"
        raise Problem(name, f"{where}, {told}.", line)
    for rank, event in enumerate(devices):
        if locals_[rank] not in event["growth"]:
            raise Problem(
                "no-memory-growth",
                f"{where}, rank {rank} saw the right one, GPU {locals_[rank]}, but "
                "memory growth was not on for it.",
                line,
            )
    alone = worlds.get("one")
    failures = alone.failures() if alone and not world.failures() else []
    if failures and not alone.ranks[0].all("forward"):
        _, failure = failures[0]
        raise Problem(
            "needs-gpu",
            f"On a machine without a GPU it failed{_in_line(failure['line'])}: "
            f"{_short(failure['error'])}",
            failure["line"],
        )


def _gpus(numbers: list[int]) -> str:
    if not numbers:
        return "no GPU"
    return f"GPU{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


# ------------------------------------------------------------ step 2


def _one_voice(worlds: dict[str, World]) -> None:
    world = worlds["two"]
    fits = [rank.all("fit") for rank in world.ranks]
    asked = [bool(fit[0]["verbose"]) if fit else None for fit in fits]
    spoke = [_PROGRESS.search(rank.text("out")) for rank in world.ranks]
    if world.outcome != lab.ENDED and None in asked:
        raise Missing
    line = fits[0][0]["line"] if fits[0] else None
    rank_0 = asked[0] or spoke[0]
    others = [n for n in range(1, world.size) if asked[n] or spoke[n]]
    if others and not rank_0:
        raise Problem(
            "inverted", f"Rank 0 was silent, and rank {others[0]} was not.", line
        )
    if not rank_0:
        raise Problem("silent", "No worker showed progress, not even rank 0.", line)
    if others:
        heard = spoke[others[0]]
        what = (
            f'printed "{_whole_line(heard)}"'
            if heard
            else f"called fit with verbose={fits[others[0]][0]['verbose']!r}"
        )
        raise Problem("others-speak", f"Rank {others[0]} {what}.", line)


def _whole_line(match: re.Match) -> str:
    start = max(match.string.rfind(c, 0, match.start()) for c in "\n\r\b") + 1
    return _short(re.split(r"[\n\r\b]", match.string[start:])[0], 60)


# ------------------------------------------------------------ step 3


def _average_gradients(worlds: dict[str, World]) -> None:
    world = worlds["two"]
    wrapped = [event["line"] for event in world.ranks[0].all("wrapped")]
    if len(wrapped) > 1 and any("Recursion" in e["error"] for _, e in world.failures()):
        raise Problem(
            "wrapped-twice",
            "The optimizer was wrapped in another wrapped one: they call each other "
            "for ever.",
            wrapped[1],
        )
    own, used = world.arrays("local"), world.arrays("applied")
    if own.shape != used.shape:
        raise Unreadable("the gradients")
    if _same(own[0], own[1]):
        raise Problem(
            "no-difference",
            "All ranks computed the same gradient, so whether it was averaged can't "
            "be seen.",
            state=UNDECIDED,
        )
    updates = [rank.first("update") for rank in world.ranks]
    line = updates[0]["line"]
    mean = own.mean(axis=0)
    if all(_same(gradient, mean) for gradient in used):
        reduced = _reduced_elements(world.ranks[0])
        if reduced > 1.5 * mean.size:
            raise Problem(
                "wrapped-twice",
                f"Every gradient was averaged {reduced / mean.size:.0f} times over: "
                "the result is the same, at the double price.",
                wrapped[-1] if wrapped else line,
            )
        return
    if all(_same(gradient, mine) for gradient, mine in zip(used, own, strict=True)):
        if wrapped:
            raise Problem(
                "not-used",
                f"The optimizer wrapped in line {wrapped[0]} is not the one that "
                "trained: each rank used its own gradient.",
                wrapped[0],
            )
        raise Problem("not-averaged", "Each rank used its own gradient.", line)
    factors = [float(g @ mean / (mean @ mean)) for g in used]
    if all(_same(g, f * mean) for g, f in zip(used, factors, strict=True)):
        if np.allclose(factors, world.size, rtol=CLOSE):
            raise Problem(
                "sum", "All ranks used the sum of the gradients, not the mean.", line
            )
        told = " and ".join(f"{factor:.2f}" for factor in factors)
        raise Problem("scaled", f"The ranks used {told} times the mean.", line)
    if _same(used[0], used[1]):
        raise Problem(
            "not-the-mean", "All ranks used the same gradient, but not the mean.", line
        )
    raise Problem("differs", "The ranks used different gradients.", line)


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


def _broadcast(worlds: dict[str, World]) -> None:
    world = worlds["two"]
    start, updated = world.arrays("start"), world.arrays("updated")
    second, state = world.arrays("second"), [r.array("state") for r in world.ranks]
    sent = [e for e in world.ranks[0].all("enter") if e["op"] == "broadcast"]
    line = sent[0]["line"] if sent else None
    apart = _distance(second[0], second[1])
    if apart > 0:
        if not sent:
            raise Problem(
                "not-broadcast",
                "Nobody handed out weights: after the first batch those of rank 0 and "
                f"rank 1 are {apart:.1%} apart. (A seed does not help: the check gives "
                "each rank a start of its own, as a checkpoint or another machine "
                "may.)",
            )
        raise Problem(
            "differs",
            f"There was a broadcast in line {line}, but after the first batch the "
            f"weights of rank 0 and rank 1 are {apart:.1%} apart.",
            line,
        )
    roots = {e["root"] for e in sent if e["root"] is not None} - {0}
    before = np.array_equal(start[0], start[1])
    if roots or not (before or np.array_equal(second[0], updated[0])):
        whose = f"rank {roots.pop()}" if roots else "another rank"
        raise Problem(
            "wrong-root", f"All ranks got the weights of {whose}, not of rank 0.", line
        )
    if state[0].shape != state[1].shape or _distance(state[0], state[1]) > 0:
        raise Problem(
            "optimizer-state",
            "All ranks have rank 0's weights, but not its optimizer state.",
            line,
        )
    if world.outcome == lab.ENDED:
        apart = _distance(*world.arrays("end"))
        if apart > CLOSE:
            raise Problem(
                "apart-again",
                "After the first batch all ranks had the same weights; in the end "
                f"those of rank 0 and rank 1 were {apart:.1%} apart.",
                line,
            )


# ------------------------------------------------------------ step 5


def _fewer_steps(worlds: dict[str, World]) -> None:
    used = worlds.values()
    counts = {}
    for world in sorted(used, key=lambda world: world.size):
        for rank in world.ranks:
            for fit in rank.all("fit")[:1]:
                for name in ("steps_per_epoch", "validation_steps"):
                    if isinstance(fit[name], float):
                        raise Problem(
                            "float",
                            f"On {world.size} workers {name} was {fit[name]:.4g}: "
                            "steps are whole numbers, so divide with //.",
                            fit["line"],
                        )
        if world.outcome != lab.ENDED and not all(
            rank.all("fitted") or rank.all("callback") for rank in world.ranks
        ):
            world.raise_trouble()
        if not any(rank.all("forward") for rank in world.ranks):
            raise Missing
        counts[world.size] = [_steps(rank) for rank in world.ranks]
    lines = [f["line"] for w in used for r in w.ranks for f in r.all("fit")]
    line = lines[0] if lines else None
    sizes = sorted(counts)
    evidence = [
        f"{size} worker{'s' * (size > 1)}: "
        f"{' and '.join(sorted({str(train) for train, _ in counts[size]}))} training, "
        f"{' and '.join(sorted({str(val) for _, val in counts[size]}))} validation "
        "steps"
        for size in sizes
    ]

    def problem(name: str, seen: str) -> Problem:
        return Problem(name, seen, line, evidence)

    total, rounds = lab.STEPS, 3 * lab.VAL_STEPS
    _compare(
        {n: {t for t, _ in counts[n]} for n in sizes},
        total,
        "training",
        {},
        problem,
    )
    _compare(
        {n: {v for _, v in counts[n]} for n in sizes},
        rounds,
        "validation",
        {
            "validation-divided-first": (
                lambda n: 3 * (lab.VAL_STEPS // n),
                "They are 3 * (steps // N): dividing first drops a remainder, which "
                "is then lost three times.",
            ),
            "validation-not-tripled": (
                lambda n: lab.VAL_STEPS // n,
                "They are steps // N, without the three rounds.",
            ),
        },
        problem,
    )


def _steps(rank: Rank) -> tuple[int, int]:
    """Training and validation steps that the rank has done."""
    forwards = rank.all("forward")
    if any(event["fit"] for event in forwards):
        forwards = [event for event in forwards if event["fit"]]
    elif rank.number == 0:
        # In a loop of its own, nothing but its place tells the test at the end, of
        # all images once, from the validation.
        forwards = forwards[: -lab.VAL_STEPS]
    train = sum(event["training"] for event in forwards)
    return train, len(forwards) - train


def _compare(
    counts: dict[int, set[int]],
    total: int,
    kind: str,
    special: dict[str, tuple[Callable[[int], int], str]],
    problem: Callable[[str, str], Problem],
) -> None:
    """Compare the steps done, by number of workers, with total // N.

    Rounding to the nearest whole number, as Python's round() does, is as good.
    special: faults that have names of their own, as what they would give.
    """
    allowed = {n: {total // n, round(total / n)} for n in counts}
    if all(done <= allowed[n] for n, done in counts.items()):
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
            f"The {kind} steps were rounded up: together the workers do more than an "
            "epoch.",
        ),
    }
    for name, (steps, seen) in faults.items():
        if all(done == {steps(n)} for n, done in counts.items()):
            raise problem(name, seen)
    wrong = next(n for n, done in counts.items() if not done <= allowed[n])
    done = " and ".join(map(str, sorted(counts[wrong])))
    raise problem(
        f"{kind}-steps",
        f"On {wrong} worker{'s' * (wrong > 1)} each did {done} {kind} steps, not "
        f"{total // wrong}.",
    )


# ------------------------------------------------------------ step 6


def _average_metrics(worlds: dict[str, World]) -> None:
    world = worlds["two"]
    if not any(rank.all("fit") for rank in world.ranks):
        _averaged_by_hand(world)
        return
    calls = [rank.all("callback") for rank in world.ranks]
    if not all(calls):
        raise Missing
    own = [
        {k: v for k, v in call[0]["before"].items() if k.startswith("val_")}
        for call in calls
    ]
    if not all(own):
        raise Problem("no-validation", "The program did not validate.")
    mean = {k: float(np.mean([metrics[k] for metrics in own])) for k in own[0]}
    if all(_near(own[0][k], own[1][k]) for k in mean):
        raise Problem(
            "no-difference",
            "All ranks computed the same validation metrics, so whether they were "
            "averaged can't be seen.",
            state=UNDECIDED,
        )
    world_ended = world.outcome == lab.ENDED
    averaged = any(_all_near(c["after"], mean) for call in calls for c in call)
    for rank, call in enumerate(calls):
        for one in call:
            changes = any(one["after"].get(k) != one["before"].get(k) for k in mean)
            reads = set(one["read"]) & set(mean)
            if changes:
                sums = {k: world.size * v for k, v in mean.items()}
                if _all_near(one["after"], sums):
                    raise Problem(
                        "sum",
                        f"{one['name']} gives the sum over the workers, not the mean.",
                        one["made"],
                    )
                continue
            if not reads or all(_near(one["before"][k], mean[k]) for k in reads):
                continue
            if not world_ended:
                raise Missing
            key = sorted(k for k in reads if not _near(one["before"][k], mean[k]))[0]
            told = (
                f"{one['name']} read {key} = {one['before'][key]:.4f} on rank {rank}; "
                f"the mean over the workers is {mean[key]:.4f}"
            )
            if averaged:
                raise Problem(
                    "too-late",
                    f"{told}. It is averaged only after that: callbacks act in the "
                    "order of the list.",
                    one["made"],
                )
            raise Problem("not-averaged", f"{told}.", one["made"])
    if not averaged:
        raise Missing


def _averaged_by_hand(world: World) -> None:
    """A training loop of its own has no callbacks: look at what it lets reduce."""
    if world.outcome != lab.ENDED or not all(r.all("forward") for r in world.ranks):
        raise Missing
    reductions = [list(_small_reductions(rank)) for rank in world.ranks]
    for together in zip(*reductions, strict=False):
        given = np.array([given for given, _ in together])
        got = np.array([got for _, got in together])
        differ = not np.allclose(given[0], given[1], rtol=1e-6)
        mean = given.mean(axis=0)
        wanted = (mean, world.size * mean)  # the program may divide by itself
        if differ and any(np.allclose(got, one, rtol=1e-4) for one in wanted):
            return
    raise Problem(
        "not-averaged", "No number that the ranks computed in validation was averaged."
    )


def _small_reductions(rank: Rank):
    """What the rank gave to each allreduce of a few numbers after training, and got."""
    last = max(i for i, e in enumerate(rank.events) if e["what"] == "update")
    entered = None
    for event in rank.events[last:]:
        if event["what"] == "enter" and "allreduce" in event["op"]:
            entered = event["given"]
        elif event["what"] == "leave" and entered and event["got"]:
            yield entered, event["got"]
            entered = None


# ------------------------------------------------------------ small things


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return _distance(a, b) < CLOSE


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    """|a - b| / |a|."""
    return float(np.linalg.norm(a - b) / (np.linalg.norm(a) or 1.0))


def _near(a: float, b: float) -> bool:
    return bool(np.isclose(a, b, rtol=1e-5, atol=1e-7))


def _all_near(metrics: dict, wanted: dict) -> bool:
    return all(k in metrics and _near(metrics[k], v) for k, v in wanted.items())


def _in_line(line: int | None) -> str:
    return f" in line {line}" if line else ""


def _short(text: str, most: int = 200) -> str:
    text = " ".join(str(text).split())
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _own_frames(traceback: str) -> list[str]:
    """The lines of the program in the traceback of its error, innermost last."""
    lines = traceback.splitlines()
    found = [
        f"line {frame[2]}: {below.strip()}"
        for line, below in itertools.pairwise(lines)
        if (frame := re.match(r'  File "([^"]*)", line (\d+)', line))
        and "site-packages" not in frame[1]
        and Path(frame[1]).parent != Path(__file__).parent
        and not frame[1].startswith("<")
    ]
    return found[-EVIDENCE_LINES:]


def _left_alone(failure: dict) -> bool:
    """Did Horovod complain that another worker has gone?"""
    return "Horovod has been shut down" in str(failure["error"])


_JUDGES = {
    1: _start_and_pin,
    2: _one_voice,
    3: _average_gradients,
    4: _broadcast,
    5: _fewer_steps,
    6: _average_metrics,
}
