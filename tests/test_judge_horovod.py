"""Verdicts on the six Horovod steps, from reports that no program has to be run for:
what real programs show only now and then, and cases that lie close together.
"""

import itertools
import json

import numpy as np
import pytest
from test_evidence import HOROVOD, OUTCOME

from distcheck.judges.runs import read
from distcheck.scenarios import BATCH_SIZE, STEPS, TRAIN_IMAGES, VAL_STEPS
from distcheck.verdict import UNDECIDED, WRONG
from utils.checking import exercises


@pytest.fixture
def report(tmp_path):
    """Writes down what the ranks of a scenario did, as lists of events and arrays."""

    def write(ranks, scenario="two", **arrays):
        folder = tmp_path / scenario
        folder.mkdir()
        (folder / "outcome.json").write_text(json.dumps(OUTCOME))
        for rank, events in enumerate(ranks):
            graphs = [] if rank else [{"what": "graphs", "count": 0}]
            events = [{"what": "started"}, *events, *graphs, {"what": "ended"}]
            # What a case doesn't say is as a worker reports it.
            lines = [
                json.dumps({"time": 1.0, "line": None} | HOROVOD[event["what"]] | event)
                for event in map(in_a_step, itertools.count(100), events)
            ]
            (folder / f"rank.{rank}.jsonl").write_text("\n".join(lines) + "\n")
        for name, values in arrays.items():
            for rank, value in enumerate(values):
                path = folder / f"rank.{rank}.{name.replace('_', '.')}.npy"
                np.save(path, np.float32(value))

    write.folder = tmp_path
    return write


def in_a_step(number: int, event: dict) -> dict:
    unknown = event["what"] == "forward" and event["step"] is None
    return event | {"step": number} if unknown else event


def verdict(report, step):
    check = exercises.find("fashion_mnist").checks[step]
    return check.verdict(read(report.folder))


def forward(training, fit=False, images=(), rate=None, aside=False, step=None):
    """Of a step of its own, unless that is given: `report` numbers them."""
    facts = {"training": training, "fit": fit, "images": [*images], "rate": rate}
    return {"what": "forward", "aside": aside, "step": step, **facts}


def update(wrapped=True):
    return {"what": "update", "wrapped": wrapped, "line": 5}


def exchange(op, given, got, line=7, elements=None, root=None):
    """The two events of a collective."""
    numbers = elements or len(given)
    entered = {"op": op, "given": given, "elements": numbers, "root": root}
    return [
        {"what": "collective_start", "name": None, "line": line, **entered},
        {"what": "collective_end", "op": op, "got": got},
    ]


# ------------------------------------------------------------ step 1

STARTED = {"what": "collective_start", "op": "init"}


def chooses(*gpus):
    """What a worker reports that starts Horovod and uses these GPUs."""
    return [STARTED, {"what": "devices", "visible": [*gpus], "growth": [*gpus]}]


@pytest.mark.parametrize(
    ("two", "given", "crowded", "caught"),
    [
        (([3], [1]), [0], None, "right"),
        (([3], [1]), [0], [], "right"),
        (([0], [2]), [0], None, "right"),  # counted from the last one
        (([1], [3]), [0], None, "right"),  # of its own, whichever it is
        (([0], [1]), [0], None, "rank-for-local-rank"),
        (([1], [0]), [0], None, "rank-for-local-rank"),
        (([1], [1]), [0], None, "same-gpu"),
        (([3, 2], [1, 0]), [0], None, "wrong-gpu"),
        (([], []), [0], None, "wrong-gpu"),
        (([0, 1, 2, 3], [0, 1, 2, 3]), [0], None, "not-pinned"),
        (([3], [1]), None, None, "given-gpu-not-found"),
        (([3], [1]), [3], None, "given-gpu-not-used"),
        (([3], [1]), [], None, "given-gpu-not-used"),
        (([3], [1]), [0], [1], "shared-gpu"),
        (([3], [1]), [0], [0, 1], "shared-gpu"),
    ],
)
def test_a_gpu_is_right_if_it_is_the_worker_s_own(report, two, given, crowded, caught):
    """None: the worker failed, where it was given a GPU, or there were too few."""
    report([chooses(*gpus) for gpus in two])
    failed = [STARTED, {"what": "failed", "error": "IndexError", "line": 9}]
    for scenario, gpus in (("given", given), ("crowded", crowded)):
        report([failed if gpus is None else chooses(*gpus)], scenario)
    assert verdict(report, 1).id == f"step-1.{caught}"


@pytest.mark.parametrize(
    ("growth", "caught"),
    [
        ([1], "right"),
        ([0, 1, 2, 3], "right"),
        ([], "no-memory-growth"),
        ([3], "no-memory-growth"),
    ],
)
def test_memory_growth_is_on_for_the_worker_s_own_gpu(report, growth, caught):
    devices = {"what": "devices", "visible": [1], "growth": growth}
    report([chooses(3), [STARTED, devices]])
    assert verdict(report, 1).id == f"step-1.{caught}"


def test_the_interface_without_callbacks_is_named_at_once(report):
    """But not to a program that has found a way without them."""
    fit = {"what": "fit", "line": 4, "modules": ["horovod.tensorflow"]}
    started = STARTED | {"line": 3}
    devices = [{"what": "devices", "visible": [n], "growth": [n]} for n in (3, 1)]
    report([[started, seen, fit] for seen in devices])
    judged = verdict(report, 1)
    assert (judged.id, judged.line) == ("step-1.other-interface", 3)
    assert "imported horovod.tensorflow, but not horovod.tensorflow.k" in judged.seen


@pytest.mark.parametrize("found", ["modules", "broadcast", "allreduce"])
def test_who_needs_no_callbacks_may_have_either_interface(report, found):
    names = ["horovod.tensorflow"]
    if found == "modules":
        names.append("horovod.tensorflow.keras")
    fit = {"what": "fit", "modules": names}
    averaged = exchange("allreduce", [1.0], [1.0], elements=1000)
    sent = {"broadcast": SENT, "allreduce": averaged}.get(found, [])
    devices = [{"what": "devices", "visible": [n], "growth": [n]} for n in (3, 1)]
    report([[STARTED, seen, *sent, fit] for seen in devices])
    assert verdict(report, 1).id == "step-1.right"


# ------------------------------------------------------------ step 2

BAR = "3/3 [====] - 1s 20ms/step - loss: 2.31\n"
OWN_WORDS = "Runde {}: Fehler {}\n"


def voices(report, out, err):
    """Each rank writes this to the terminal as it trains."""
    size = {"what": "output", "sizes": [0, 0]}
    report([[size, FIT, forward(True, True), {"what": "fitted"}]] * 2)
    for name, texts in (("out", out), ("err", err)):
        for rank, text in enumerate(texts):
            (report.folder / "two" / f"rank.{rank}.{name}").write_text(text)
    judged = verdict(report, 2)
    return judged.id.removeprefix("step-2.")


SLOW = "/x/lib/python3.12/a.py:12: UserWarning: 3.5 times slower\n  warn('2.5')\n"
LIBRARY = "WARNING:tensorflow:5 out of 6.5\n" + SLOW


@pytest.mark.parametrize(
    ("out", "err", "caught"),
    [
        ((BAR, ""), ("", ""), "right"),
        ((BAR, BAR), ("", ""), "others-speak"),
        (("", BAR), ("", ""), "inverted"),
        (("", ""), (BAR, ""), "right"),
        (("", ""), (BAR, BAR), "others-speak"),
        (("", ""), ("", ""), "silent"),
        ((OWN_WORDS.format(1, 2.5), ""), ("", ""), "right"),
        ((OWN_WORDS.format(1, 2.5), OWN_WORDS.format(1, 2.25)), ("",) * 2, "others-sp"),
        ((BAR, "2.5\n2.25\n2.125\n"), ("", ""), "others-speak"),
        ((BAR, "worker 1 is done\n"), ("", ""), "right"),
        (("worker 0 is done\n", "worker 1 is done\n"), ("", ""), "silent"),
        ((BAR, ""), (LIBRARY, LIBRARY), "right"),
        (("", ""), (LIBRARY, ""), "silent"),
    ],
)
def test_what_reached_the_terminal_decides(report, out, err, caught):
    assert voices(report, out, err).startswith(caught)


@pytest.mark.parametrize(
    ("until", "evaluates", "line"),
    [(len(BAR), True, 4), (0, True, 9), (0, False, None)],
)
def test_the_line_that_printed_is_named(report, until, evaluates, line):
    """until: so many bytes were printed while it trained."""
    trains = [{"what": "output", "sizes": [0, 0]}, FIT | {"line": 4}]
    trains += [forward(True, True), {"what": "output", "sizes": [until, 0]}]
    trains.append({"what": "fitted"})
    evaluated = {"what": "evaluated", "fit": False, "own": False, "metrics": {}}
    report([[*trains, *[evaluated | {"line": 9}][: int(evaluates)]]] * 2)
    for rank in range(2):
        (report.folder / "two" / f"rank.{rank}.out").write_text(BAR)
    judged = verdict(report, 2)
    assert (judged.id, judged.line) == ("step-2.others-speak", line)


def test_a_local_rank_in_the_place_of_the_rank_is_named(report):
    asks = {"what": "asked", "name": "local_rank", "line": 30, "answer": 3}
    pins = [asks, {"what": "pinned", "line": 30}]
    trains = [FIT, forward(True, True), {"what": "fitted"}]
    report([[*pins, asks | {"line": 53}, *trains]] * 2)
    judged = verdict(report, 2)
    assert (judged.id, judged.line) == ("step-2.local-rank-for-rank", 53)
    assert "line 53 asks for the local rank" in judged.seen


@pytest.mark.parametrize(
    ("names", "caught"),
    [
        (("a/events.out.tfevents.1.x", "a/events.out.tfevents.2.y"), "others-write"),
        (("a/events.out.tfevents.1.x", "b/events.out.tfevents.2.y"), "right"),
        (("rank.0.csv", "rank.1.csv"), "right"),
        (("history.csv", "history.csv"), "others-write"),
    ],
)
def test_a_file_or_a_board_has_one_writer(report, names, caught):
    size = {"what": "output", "sizes": [0, 0]}
    trains = [size, FIT, forward(True, True), {"what": "fitted"}]
    report([[*trains, {"what": "files_written", "files": [name]}] for name in names])
    (report.folder / "two" / "rank.0.out").write_text(BAR)
    (report.folder / "two" / "rank.1.out").write_text("")
    assert verdict(report, 2).id == f"step-2.{caught}"


@pytest.mark.parametrize(
    ("trained", "caught"),
    [(True, "waits-alone"), (False, "right")],
)
def test_rank_0_does_not_wait_for_who_has_ended(report, trained, caught):
    """In training, which a later step may cure, or after it."""
    waits = {"what": "collective_start", "op": "allreduce", "elements": 1, "line": 9}
    size = {"what": "output", "sizes": [0, 0]}
    trains = [size, FIT, forward(True, True)]
    fitted = [{"what": "fitted"}]
    report([[*trains, *(fitted * trained), waits], [*trains, *fitted]])
    (report.folder / "two" / "rank.0.out").write_text(BAR)
    (report.folder / "two" / "rank.1.out").write_text("")
    assert verdict(report, 2).id == f"step-2.{caught}"


# ------------------------------------------------------------ step 3

GRADIENTS = np.array([[1.0, 2.0, 3.0], [3.0, 2.0, -1.0]])


@pytest.mark.parametrize(
    ("wrapped", "reduced", "caught"),
    [
        (True, [], "applied-directly"),
        (True, exchange("allreduce", None, None, elements=3), "not-averaged"),
        (False, [], "not-used"),
    ],
    ids=["nothing averaged", "averaged in vain", "another optimizer"],
)
def test_which_optimizer_trained_decides_what_is_said(report, wrapped, reduced, caught):
    events = [{"what": "wrapped", "line": 3}, forward(True), *reduced, update(wrapped)]
    report([events] * 2, start=GRADIENTS, local_0=GRADIENTS, applied_0=GRADIENTS)
    assert verdict(report, 3).id == f"step-3.{caught}"


@pytest.mark.parametrize(
    ("value", "times", "caught"),
    [
        (2.5, 1, "right"),
        (1.5, 1, "loss-divided"),  # (2 + 0.5) / 2, and 2 / 2 + 0.5
        (1.25, 1, "loss-divided"),
        (1.25, 2, "right"),
        (2.5, 2, "sum"),
    ],
)
def test_the_mean_of_divided_losses_is_divided_twice(report, value, times, caught):
    loss = {"what": "loss", "value": value, "cross_entropy": 2.0, "penalty": 0.5}
    events = [forward(True), loss | {"line": 5}, update()]
    mean = GRADIENTS.mean(axis=0)
    report(
        [events] * 2, start=GRADIENTS, local_0=GRADIENTS, applied_0=[times * mean] * 2
    )
    assert verdict(report, 3).id == f"step-3.{caught}"


TWICE = np.array([[1.0, 2.0, 3.0], [5.0, 0.0, 1.0]])  # what the ranks add to that


@pytest.mark.parametrize(
    ("applied", "caught"),
    [
        (GRADIENTS.mean(axis=0), "right"),
        (TWICE.mean(axis=0), "right"),
        ((GRADIENTS + TWICE).mean(axis=0), "right"),
        ((GRADIENTS + TWICE).mean(axis=0) / 2, "right"),
        ((GRADIENTS + TWICE).mean(axis=0) / 4, "scaled"),
        ((GRADIENTS + 3 * TWICE).mean(axis=0), "not-the-mean"),
        (GRADIENTS + TWICE, "not-averaged"),
        (TWICE, "not-averaged"),
    ],
)
def test_the_mean_is_of_the_first_gradient_the_last_or_of_all(report, applied, caught):
    several = {
        "last_0": TWICE,
        "mean_0": (GRADIENTS + TWICE) / 2,
        "total_0": GRADIENTS + TWICE,
    }
    applied = np.broadcast_to(applied, GRADIENTS.shape)
    events = [forward(True), update(wrapped=False)]
    report(
        [events] * 2, start=GRADIENTS, local_0=GRADIENTS, applied_0=applied, **several
    )
    assert verdict(report, 3).id == f"step-3.{caught}"


def test_a_later_update_may_be_of_a_part_of_the_gradient(report):
    """As where layers are frozen."""
    mean = [GRADIENTS.mean(axis=0)] * 2
    part = {"local_1": GRADIENTS, "applied_1": [[2.0, 2.0]] * 2}
    events = [forward(True), update(), forward(True), update()]
    arrays = {"start": GRADIENTS, "local_0": GRADIENTS, "applied_0": mean}
    report([events] * 2, **arrays, **part)
    assert verdict(report, 3).id == "step-3.right"


@pytest.mark.parametrize(
    ("reduced", "caught"),
    [
        (GRADIENTS.mean(axis=0), "right"),
        (GRADIENTS.mean(axis=0)[::-1], "right"),
        (GRADIENTS.sum(axis=0), "not-the-mean"),
        (GRADIENTS.max(axis=0), "not-the-mean"),
        ([2.0, 2.0], "not-the-mean"),
        (None, "not-the-mean"),
    ],
)
def test_what_all_ranks_make_of_the_mean_is_right(report, reduced, caught):
    arrays = {} if reduced is None else {"reduced": [reduced] * 2}
    changed = np.add(GRADIENTS.mean(axis=0), [0.0, 0.5, 0.0])
    events = [forward(True), update(wrapped=False)]
    report(
        [events] * 2,
        start=GRADIENTS,
        local_0=GRADIENTS,
        applied_0=[changed] * 2,
        **arrays,
    )
    assert verdict(report, 3).id == f"step-3.{caught}"


# ------------------------------------------------------------ step 4

MADE = np.random.default_rng(1).normal(0, 1, (2, 1000))
MADE[1] = (
    MADE[0] + 0.05 * MADE[1]
)  # as far apart as distcheck.recorder.interventions makes them
MEAN = MADE.mean(axis=0)
SENT = exchange("broadcast", None, None, elements=1000, root=0)
GREETING = exchange("broadcast", None, None, elements=9, root=1)
FOREIGN = exchange("broadcast", None, None, line=8, elements=1000, root=1)
REDUCED = exchange("allreduce", None, None, line=9, elements=1000)


def start_together(report, weights, made, before=()):
    """All ranks begin the first batch with `weights`."""
    events = [*before, forward(True), update(), forward(True)]
    same = [weights] * 2
    state = [[0.0] * 9] * 2
    arrays = dict.fromkeys(("start", "updated", "resumed", "end"), same)
    report([events] * 2, initial=made, state=state, **arrays)


@pytest.mark.parametrize(
    ("weights", "before", "made", "caught"),
    [
        (MADE[0], SENT, MADE, "right"),
        (MEAN, REDUCED, MADE, "mean-of-starts"),
        (np.float16(MEAN), REDUCED, MADE, "mean-of-starts"),
        (MEAN, REDUCED + SENT, MADE, "mean-of-starts"),
        (MADE.sum(axis=0), REDUCED, MADE, "sum-of-starts"),
        (MADE.max(axis=0), REDUCED, MADE, "maximum-of-starts"),
        (MADE.min(axis=0), REDUCED, MADE, "minimum-of-starts"),
        (MADE[1], REDUCED, MADE, "wrong-root"),
        (MADE[0], REDUCED, MADE[[0, 0]], "right"),
        (2 * MADE[0], SENT, MADE, "right"),
        (MADE[0], SENT + GREETING, MADE, "right"),
        (MADE[0], FOREIGN, MADE[[0, 0]], "wrong-root"),
        (MADE[0], GREETING, MADE[[0, 0]], "right"),
        (2 * MADE[0], FOREIGN, MADE, "wrong-root"),
    ],
    ids=[
        "rank 0's",
        "the mean",
        "the mean in 16 bits",
        "the mean, handed out",
        "the sum",
        "the maximum",
        "the minimum",
        "rank 1's",
        "the mean of what was equal",
        "read from a file",
        "rank 0's, and something of rank 1",
        "equal before a broadcast from rank 1",
        "equal before something of rank 1",
        "read by rank 1, which handed it out",
    ],
)
def test_whose_weights_all_ranks_start_with(report, weights, before, made, caught):
    start_together(report, weights, made, before)
    assert verdict(report, 4).id == f"step-4.{caught}"


def test_weights_that_are_averaged_later_do_not_matter_at_the_start(report):
    """Rank 0's weights, then updates with gradients that nobody averages."""
    events = [*SENT, forward(True), update(), *REDUCED, forward(True)]
    arrays = dict(initial=MADE, start=MADE[[0, 0]], updated=MADE, resumed=[MEAN] * 2)
    report([events] * 2, **arrays, state=[[0.0] * 9] * 2, end=[MEAN] * 2)
    assert verdict(report, 4).id == "step-4.right"


def test_the_line_that_took_the_mean_is_named(report):
    start_together(report, MEAN, MADE, GREETING + REDUCED)
    judged = verdict(report, 4)
    assert judged.line == 9
    assert (
        "the mean of the ranks' weights in line 9, not those of rank 0" in judged.seen
    )


@pytest.mark.parametrize(
    ("weights", "caught"),
    [
        (MADE[0], "right"),
        (MEAN, "mean-of-starts"),
        (MADE[1], "wrong-root"),
        (MADE.max(axis=0), "maximum-of-starts"),
        (3 * MADE[0], "another-start"),
    ],
    ids=["rank 0's", "the mean", "rank 1's", "the maximum", "read from a file"],
)
def test_whose_weights_all_ranks_get_after_the_first_batch(report, weights, caught):
    events = [forward(True), *REDUCED, update(), *REDUCED, forward(True)]
    arrays = dict(initial=MADE, start=MADE, updated=MADE, resumed=[weights] * 2)
    report([events] * 2, **arrays, state=[[0.0] * 9] * 2, end=[weights] * 2)
    assert verdict(report, 4).id == f"step-4.{caught}"


def test_weights_that_differ_by_rounding_alone_are_not_another_rank_s(report):
    rounded = [MADE[0], np.float16(MADE[0])]
    arrays = dict(initial=MADE, start=rounded, updated=rounded, resumed=[MADE[0]] * 2)
    events = [forward(True), update(), forward(True)]
    report([events] * 2, **arrays, state=[[0.0] * 9] * 2, end=[MADE[0]] * 2)
    assert verdict(report, 4).id == "step-4.right"


def test_the_line_that_took_another_rank_s_weights_is_named(report):
    start_together(report, MADE[1], MADE, SENT + FOREIGN)
    assert verdict(report, 4).line == 8


def test_the_line_that_sent_the_weights_is_named_not_that_of_a_counter(report):
    counter = exchange("broadcast", None, None, line=4, elements=1, root=0)
    events = [*counter, *SENT, *counter, forward(True), update(), forward(True)]
    arrays = dict.fromkeys(("initial", "start", "updated", "resumed", "end"), MADE)
    report([events] * 2, **arrays, state=[[0.0] * 9] * 2)
    judged = verdict(report, 4)
    assert (judged.id, judged.line) == ("step-4.differs", 7)


def test_a_line_that_only_averages_gradients_is_not_blamed(report):
    events = [forward(True), *REDUCED, update(), forward(True), *REDUCED, update()]
    arrays = dict(initial=MADE, start=MADE, updated=MADE, resumed=[2 * MADE[0]] * 2)
    report([events] * 2, **arrays, state=[[0.0] * 9] * 2)
    judged = verdict(report, 4)
    assert (judged.id, judged.line) == ("step-4.another-start", None)


def test_a_missing_optimizer_state_says_nothing_of_whose_the_weights_are(report):
    events = [forward(True), update(), forward(True)]
    same = [2 * MADE[0]] * 2
    arrays = dict(initial=MADE, start=same, updated=same, resumed=same)
    report([events] * 2, **arrays, state=[[0.0] * 9, [1.0] * 9])
    judged = verdict(report, 4)
    assert judged.id == "step-4.optimizer-state"
    assert "All ranks have the same weights" in judged.seen


# ------------------------------------------------------------ step 5


def steps(report, scenario, counts, more=()):
    """Each rank does so many training and validation steps in fit, and then more."""
    fit = {"what": "fit", "line": 4, "steps_per_epoch": 1, "validation_steps": 1}
    ranks = []
    for train, val in counts:
        forwards = [forward(True, True)] * train + [forward(False, True)] * val
        ranks.append([fit, *forwards, {"what": "fitted"}, *more])
    report(ranks, scenario)


TOTAL, ROUNDS = STEPS, 3 * VAL_STEPS
RIGHT_STEPS = {n: (TOTAL // n, ROUNDS // n) for n in (1, 2, 3)}


def test_the_ranks_that_validate_differently_are_named(report):
    steps(report, "pair", [(3, 4), (3, 0)])
    judged = verdict(report, 5)
    assert judged.id == "step-5.validation-steps"
    assert "rank 0 did 4, rank 1 did 0 validation steps" in judged.seen
    assert judged.evidence == (
        "2 workers: 3 training, 4 (rank 0) and 0 (rank 1) validation steps",
    )


def test_a_step_may_have_several_batches(report):
    """Two halves of one, or the same images twice."""
    for count, scenario in ((1, "one"), (2, "pair"), (3, "three")):
        train, val = RIGHT_STEPS[count]
        halves = [
            forward(True, True, step=n) for n in range(train) for _ in ("one", "other")
        ]
        report([[*halves, *[forward(False, True)] * val]] * count, scenario)
    assert verdict(report, 5).id == "step-5.right"


def test_what_rank_0_predicts_after_an_epoch_is_no_validation(report):
    shown = [forward(False, True, aside=True)]
    callback = {"what": "callback", "name": "Show"}
    for count, scenario in ((1, "one"), (2, "pair"), (3, "three")):
        train, val = RIGHT_STEPS[count]
        forwards = [forward(True, True)] * train + [forward(False, True)] * val
        ranks = [[*forwards, *shown, callback], *[[*forwards, callback]] * (count - 1)]
        report(ranks, scenario)
    assert verdict(report, 5).id == "step-5.right"


def test_different_numbers_of_training_steps_are_a_deadlock(report):
    # Each number alone is right: 7 / 2 may be rounded up or down, but not both.
    steps(report, "pair", [(3, 4), (4, 4)])
    judged = verdict(report, 5)
    assert judged.id == "step-5.deadlock"
    assert "On 2 workers rank 0 did 3, rank 1 did 4 training steps" in judged.seen
    assert "this is a deadlock: rank 1, which does more steps, waits" in judged.seen


def test_with_three_workers_all_of_them_are_named(report):
    steps(report, "pair", [RIGHT_STEPS[2]] * 2)
    steps(report, "three", [(3, 3), (2, 3), (2, 3)])
    assert "rank 0 did 3, rank 1 did 2, rank 2 did 2" in verdict(report, 5).seen


def test_who_joins_does_not_wait_for_ever(report):
    steps(report, "pair", [(4, 4), (3, 4)], exchange("join", None, None, elements=1))
    assert verdict(report, 5).id == "step-5.right"


def test_training_steps_are_not_taken_for_the_test_at_the_end(report):
    # A loop of its own, without fit and without a test.
    report([[forward(True)] * 3, [forward(True)] * 3], "pair")
    assert verdict(report, 5).id == "step-5.validation-steps"


def trainings(report, scenario, drawn, validated=None):
    """Each rank trains in an epoch on these batches of images, and in each epoch on the
    same; validated: likewise, default three rounds that weren't seen."""
    fit = {"what": "fit", "line": 4, "steps_per_epoch": 1, "validation_steps": 1}
    size = len(drawn)
    validated = validated or [[()] * (ROUNDS // size)] * size
    ranks = []
    for batches, rounds in zip(drawn, validated, strict=True):
        epoch = [forward(True, True, batch) for batch in batches]
        epoch += [forward(False, True, batch) for batch in rounds]
        ranks.append([fit, *(epoch * 4), {"what": "fitted"}])
    report(ranks, scenario)
    return verdict(report, 5).id.removeprefix("step-5.")


def batches(numbers, size=BATCH_SIZE):
    """Images, cut into whole batches."""
    numbers = [*numbers]
    return [numbers[at : at + size] for at in range(0, len(numbers) - size + 1, size)]


SHARDS = [range(rank, TRAIN_IMAGES, 2) for rank in (0, 1)]
HALF = range(TRAIN_IMAGES // 2)


@pytest.mark.parametrize(
    ("drawn", "caught"),
    [
        ([batches(shard) for shard in SHARDS], "right"),
        ([batches(SHARDS[0]), batches([-1] * 30)], "right"),
        ([batches(range(60))[:3]] * 2, "same-batches"),
        ([batches(range(24)), batches(reversed(range(24)))[::-1]], "same-batches"),
        ([batches(HALF), batches(reversed(HALF))], "unseen-images"),
        ([batches(shard, 4) for shard in SHARDS], "right"),
        ([batches(shard, 4)[:3] for shard in SHARDS], "images-per-epoch"),
        ([batches([*shard] * 2, 16) for shard in SHARDS], "images-per-epoch"),
    ],
    ids=[
        "shards",
        "images that nobody knows",
        "the same order",
        "the same, each in an order of its own",
        "the same half",
        "batches divided, and all steps",
        "batches divided, and steps",
        "batches and images twice as large",
    ],
)
def test_what_the_workers_draw_decides(report, drawn, caught):
    assert trainings(report, "pair", drawn) == caught


def counted(images):
    """What the callback is told whose stopwatch counted so many images in 2 s."""
    after = {"images_per_second": images / 2, "seconds": 2.0}
    return callback("Stopwatch", {}, after, 17)


@pytest.mark.parametrize(
    ("images", "caught"),
    [(48, "right"), (24, "rate-of-one"), (96, "rate-times-n"), (60, "right")],
)
def test_a_rate_is_that_of_all_workers(report, images, caught):
    fit = {"what": "fit", "line": 4, "steps_per_epoch": 3, "validation_steps": 4}
    ranks = []
    for shard in SHARDS:
        epoch = [forward(True, True, batch) for batch in batches(shard)]
        epoch += [forward(False, True)] * (ROUNDS // 2)
        ranks.append([fit, *epoch, counted(images), {"what": "fitted"}])
    report(ranks, "pair")
    judged = verdict(report, 5)
    assert judged.id == f"step-5.{caught}"
    assert judged.line == (None if caught == "right" else 17)


VALIDATED = -(-TRAIN_IMAGES // 6)


@pytest.mark.parametrize(
    ("validated", "caught"),
    [
        ([[[0, 2, 4, 6], [8]], [[1, 3, 5, 7], [9]]], "right"),
        ([[[0, 2, 4, 6], [8]], [[1, 3, 5, 7], [8]]], "validation-steps"),
        ([batches(range(VALIDATED), 5)] * 2, "validation-steps"),
        ([[*batches(range(VALIDATED), 4), [8, 9]]] * 2, "validation-not-shared"),
    ],
    ids=["every image once", "one left out", "two rounds", "as many as alone"],
)
def test_validation_is_shared_or_exact(report, validated, caught):
    drawn = [batches(shard) for shard in SHARDS]
    alone = [*batches(range(VALIDATED), 4), [8, 9]]
    assert trainings(report, "one", [batches(range(60))], [alone]) == "right"
    assert trainings(report, "pair", drawn, validated) == caught


# ------------------------------------------------------------ step 6

OWN = [{"val_loss": 2.25, "val_accuracy": 0.25}, {"val_loss": 2.0, "val_accuracy": 0.5}]


def callback(name, before, after, line, read=()):
    facts = {"before": before, "after": after, "made": line, "read": list(read)}
    return {"what": "callback", "name": name, **facts}


def combined(loss, accuracy):
    return {"val_loss": loss, "val_accuracy": accuracy}


FIT = {"what": "fit", "verbose": 0}


def test_metrics_that_only_one_rank_has_are_named(report):
    more_metrics = OWN[0] | {"val_top": 0.5}
    calls = [
        callback("CSVLogger", metrics, metrics, 9) for metrics in (more_metrics, OWN[1])
    ]
    report([[FIT, forward(True, fit=True), call] for call in calls])
    judged = verdict(report, 6)
    assert (judged.id, judged.state) == ("step-6.other-metrics", WRONG)
    assert "val_top, but rank 1 val_accuracy" in judged.seen


def test_a_metric_that_is_equal_by_chance_leaves_the_others_to_be_judged(report):
    """Of few images, both ranks may have equally many right."""
    computed = [metrics | {"val_accuracy": 0.5} for metrics in OWN]
    calls = [callback("Mine", metrics, metrics, 9, metrics) for metrics in computed]
    report([[FIT, forward(False), call] for call in calls])
    judged = verdict(report, 6)
    assert (judged.id, judged.state) == ("step-6.not-averaged", WRONG)
    assert "val_loss = 2.2500 on rank 0" in judged.seen


def evaluated(metrics, own=True):
    return {"what": "evaluated", "fit": True, "own": own, "metrics": metrics, "line": 3}


@pytest.mark.parametrize(
    ("turn", "facts", "caught"),
    [
        ([evaluated(OWN[1])], {"stops": True}, "not-averaged"),
        ([evaluated(OWN[1])], {"stops": False}, "right"),
        ([evaluated(OWN[1], own=False)], {"stops": True}, "right"),
        ([evaluated(OWN[1])], {"stops": True, "read": ["val_loss"]}, "right"),
        (
            [evaluated(OWN[1]), *exchange("allreduce", [0.5], [0.4])],
            {"stops": True},
            "right",
        ),
        (
            [*exchange("allreduce", [0.5], [0.4]), evaluated(OWN[1])],
            {"stops": True},
            "not-averaged",
        ),
    ],
)
def test_who_evaluates_to_stop_has_to_exchange_it(report, turn, facts, caught):
    mean = combined(2.125, 0.375)
    averages = [callback("Average", own, mean, 9) for own in OWN]
    stops = callback("Stop", mean, mean, 8) | facts
    report([[FIT, forward(True, fit=True), average] for average in averages])
    report([[FIT, averages[0]], [FIT, averages[1], *turn, stops]], "other options")
    judged = verdict(report, 6)
    assert judged.id == f"step-6.{caught}"
    assert judged.line == (None if judged.ok else 3)


SHARED = exchange("broadcast", [1.0], [1.0])


@pytest.mark.parametrize(
    ("after", "entered", "caught", "words"),
    [
        (combined(2.125, 0.375), [], "right", ""),
        (combined(4.25, 0.75), [], "sum", "val_accuracy and val_loss by the sum"),
        (combined(1.0625, 0.1875), [], "divided-twice", "once more"),
        (combined(2.25, 0.5), [], "maximum", "val_accuracy and val_loss by the max"),
        (combined(2.0, 0.25), [], "minimum", "the minimum over the workers"),
        (combined(2.0, 0.5), [], "broadcast", "what rank 1 computed"),
        (combined(2.25, 0.25), SHARED, "broadcast", "what rank 0 computed"),
        (combined(2.125, 0.5), [], "maximum", "replaces val_accuracy by the maximum"),
        (combined(3.0, 3.0), [], "not-averaged", "History read val_accuracy = 3.0000"),
    ],
)
def test_what_a_callback_makes_of_the_metrics_is_named(
    report, after, entered, caught, words
):
    # Rank 0 alone has one more callback, and before the others.
    extra = callback("Logger", OWN[0], OWN[0], 10)
    history = callback("History", after, after, None, after)
    ranks = []
    for metrics, more in zip(OWN, ([extra], []), strict=True):
        own_callback = callback("Mine", metrics, after, 11)
        ranks.append([FIT, forward(False), *more, *entered, own_callback, history])
    report(ranks)
    judged = verdict(report, 6)
    assert judged.id == f"step-6.{caught}"
    assert words in judged.seen


@pytest.mark.parametrize(
    ("entered", "caught"), [([], "maximum"), (SHARED, "broadcast")]
)
def test_a_broadcast_in_the_callback_tells_it_from_a_maximum(report, entered, caught):
    metrics = [{"val_accuracy": 0.5}, {"val_accuracy": 0.25}]
    events = [FIT, *SHARED, forward(False), *entered]
    report(
        [
            [*events, callback("Mine", own_metrics, metrics[0], 11)]
            for own_metrics in metrics
        ]
    )
    assert verdict(report, 6).id == f"step-6.{caught}"


def by_hand(report, exchanges, between=(), scenario="two"):
    """A loop of its own, with these exchanges after the validation: for each the op,
    what each rank gave, and what all got."""
    ranks = [[forward(True), update(), *between, forward(False)] for _ in range(2)]
    for op, given, got in exchanges:
        for rank, events in enumerate(ranks):
            events += exchange(op, given[rank], got)
    report(ranks, scenario)
    return verdict(report, 6)


DIFFERENT, EQUAL = ([1.0, 0.25], [2.0, 0.5]), ([0.5, 2.0], [0.5, 2.0])
SECONDS = ("allreduce", ([9.0], [8.0]), [9.0])  # of the slowest


@pytest.mark.parametrize(
    ("exchanges", "caught", "state"),
    [
        ([("allreduce", DIFFERENT, [1.5, 0.375])], "right", None),
        ([("allreduce", DIFFERENT, [3.0, 0.75])], "right", None),
        ([SECONDS, ("allreduce", DIFFERENT, [1.5, 0.375])], "right", None),
        ([("allreduce", EQUAL, [0.5, 2.0])], "no-difference", UNDECIDED),
        ([("allreduce", EQUAL, [1.0, 4.0])], "no-difference", UNDECIDED),
        ([("allreduce", ([0.0], [0.0]), [0.0])], "no-difference", UNDECIDED),
        ([SECONDS, ("allreduce", EQUAL, [0.5, 2.0])], "no-difference", UNDECIDED),
        ([("allreduce", EQUAL, [0.25, 1.0])], "divided-twice", WRONG),
        ([("allreduce", DIFFERENT, [0.75, 0.1875])], "divided-twice", WRONG),
        ([("allreduce", DIFFERENT, [2.0, 0.5])], "maximum", WRONG),
        ([("allreduce", DIFFERENT, [1.0, 0.25])], "minimum", WRONG),
        ([("broadcast", DIFFERENT, [1.0, 0.25])], "broadcast", WRONG),
        ([("broadcast", EQUAL, [0.5, 2.0])], "not-averaged", WRONG),
        ([("allgather", DIFFERENT, [1.0, 0.25, 2.0, 0.5])], "gathered", UNDECIDED),
        ([("alltoall", DIFFERENT, [1.0, 2.0, 2.0])], "not-averaged", WRONG),
        ([("allreduce", DIFFERENT, [7.0, 7.0])], "not-averaged", WRONG),
        ([], "not-averaged", WRONG),
    ],
)
def test_what_a_loop_of_its_own_makes_of_the_metrics(report, exchanges, caught, state):
    judged = by_hand(report, exchanges)
    assert judged.id == f"step-6.{caught}"
    assert judged.ok if state is None else judged.state == state


@pytest.mark.parametrize(
    ("got", "caught"), [([3.0, 0.75], "right"), ([1.0, 0.25], "minimum")]
)
def test_equal_numbers_are_judged_where_they_can_t_be_equal(report, got, caught):
    """As two ranks may by chance recognize as many of a few images."""
    judged = by_hand(report, [("allreduce", EQUAL, [0.5, 2.0])])
    assert judged.id == "step-6.no-difference"
    judged = by_hand(report, [("allreduce", DIFFERENT, got)], scenario="opposite")
    assert judged.id == f"step-6.{caught}"


def test_the_mean_of_the_training_loss_is_not_that_of_the_validation(report):
    between = exchange("allreduce", [1.0], [1.0])
    assert by_hand(report, [], between).id == "step-6.not-averaged"


def test_a_loop_that_never_updates_has_not_trained(report):
    report([[forward(True)]] * 2)
    assert verdict(report, 6).id == "step-6.never-trained"


@pytest.mark.parametrize(
    ("opposite", "several", "caught"),
    [
        ([1, 1], [3, 3], "right"),
        ([2, 2], [3, 3], "gathered"),  # nobody stops
        ([1, 1], [1, 1], "gathered"),  # it trains for one epoch whatever it is told
        ([1, 1], None, "gathered"),
    ],
)
def test_who_gathers_and_stops_together_uses_the_mean(
    report, opposite, several, caught
):
    """Epochs, of a batch each, that the ranks train in other scenarios."""
    gathered = exchange("allgather", None, None, elements=900)
    epoch = [forward(True), update(), forward(False), *gathered]
    report([epoch] * 2)
    for name, epochs in (("opposite", opposite), ("other options", several)):
        if epochs:
            report([epoch * count for count in epochs], name)
    assert verdict(report, 6).id == f"step-6.{caught}"
