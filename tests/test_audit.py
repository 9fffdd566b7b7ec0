"""`course audit` finds what is wrong with programs in many styles, and nothing else.

tests/audited/ holds programs that are right, faults.toml edits of them that aren't, and
twins.toml edits that are right, though they look like a fault. All are run for real, on
two workers that are forked from one process; what a program does on one worker is
watched once, and its faults are compared with that. What was reported is kept, for
when only judges have changed.
"""

import contextlib
import functools
import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import audit_programs
import audit_server
import kept_evidence
import numpy as np
import psutil
import pytest
import rich.console
import typer.testing

from distcheck import audit, errors
from distcheck.judges import audit as judge
from distcheck.judges.audit import recorded, running, words
from distcheck.judges.audit.recorded import RecordedRun
from utils import cli

# Real workers; the time limits hold even where a core has much else to do.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc"),
]

PROGRAM = "program.py"
LIMIT = 400.0

# What has to be seen to be right, beside that nothing is seen to be wrong.
SEEN = {
    "keras_fit": "together start gradients end different everything order pass "
    "validation metrics rate files waiting statistics random",
    "tape": "start gradients end different everything order pass rate",
    "summed": "start gradients end different everything pass",
    "torch_like": "start gradients end different everything pass",
    "own_step": "start gradients end different pass",
    "own_passes": "start gradients end different everything order pass rate",
    "own_callbacks": "start gradients end different validation metrics files",
    "epochs_shared": "start gradients end different everything pass files rate",
    "two_inputs": "start gradients end different pass rate",
    "by_hand": "start end",
    "augmented": "start gradients end files",
    "accumulated": "start end different everything pass metrics",
    "own_validation": "start gradients end different everything pass validation",
    "mirrored_fit": "together start gradients end different everything pass",
    "mirrored_loss": "together start gradients end different everything pass",
    "mirrored_loop": "together start gradients end different everything order pass",
    "clipped": "together start end different everything order pass",
    "multi_worker": "together start gradients end different everything files",
    "all_of_it": "start gradients end different pass files rate",
    "kept_best": "start gradients end different everything pass validation metrics "
    "rate files waiting",
    "two_optimizers": "start gradients end different everything order pass files",
    "two_networks": "start gradients end different everything pass files waiting",
}


# What runs an audited program and makes its reports, beside what that imports.
MODULES = (
    "distcheck.recorder.audit.auditor",
    "distcheck.lab.messenger",
    "distcheck.mpi",
    "distcheck.tasks",
)
FILES = tuple(
    map(Path, (audit.__file__, audit_programs.__file__, audit_server.__file__))
)


@pytest.fixture(scope="module")
def serve():
    """From its first call on, workers are forked."""
    with contextlib.ExitStack() as stack:
        yield functools.cache(lambda: stack.enter_context(audit_programs.served()))


@pytest.fixture
def watch(serve, tmp_path, monkeypatch):
    """A function that runs a program's text on so many workers, and watches.

    hangs: it waits for ever, which is found out sooner than in earnest. kept: what it
    reported before will do as well (see kept_evidence.py).
    """
    monkeypatch.chdir(tmp_path)
    in_earnest = audit.run

    def watch(
        text: str,
        workers: int,
        limit: float = LIMIT,
        hangs: bool = False,
        kept: bool = False,
    ) -> RecordedRun:
        if hangs:
            monkeypatch.setattr(audit, "STALLED_AFTER_WARNING", 10.0)
            monkeypatch.setattr(audit, "WARNED", 3)
        facts = (text, workers, limit, hangs)
        place = kept_evidence.place(*facts, modules=MODULES, others=FILES)
        if kept and place.exists():
            monkeypatch.setattr(audit, "run", functools.partial(recall, place))
        else:
            serve()
            keeping = functools.partial(run_and_keep, in_earnest, place)
            monkeypatch.setattr(audit, "run", keeping)
        path = tmp_path / PROGRAM
        path.write_text(text)
        kind = audit.kind_of(path)
        run = audit.observe(path, [], kind, workers, limit)
        assert [p.name for p in tmp_path.iterdir()] == [PROGRAM]
        return run

    return watch


def run_and_keep(run, place: Path, kind, workers, command, variables, folder, limit):
    """`audit.run`, whose reports are kept."""
    seen = run(kind, workers, command, variables, folder, limit)
    end = {"outcome": seen.outcome, "output": seen.output, "seconds": seen.seconds}
    with kept_evidence.new_folder() as made:
        reports = shutil.copytree(folder, made / "reports")
        (reports / "end.json").write_text(json.dumps(end))
        kept_evidence.keep(reports, place)
    return seen


def recall(place: Path, kind, workers, *_) -> RecordedRun:
    """What `audit.run` gave, whose reports are kept."""
    return recorded.read(
        place, kind, workers, **json.loads((place / "end.json").read_text())
    )


@pytest.fixture(scope="module")
def alone():
    """The runs of right programs on one worker, by name."""
    return {}


def report(watch, alone, base: str, text: str, hangs: bool = False) -> audit.Report:
    """What is found in a program that does on one worker what `base` does."""
    parallel = watch(text, 2, hangs=hangs, kept=True)
    if base not in alone:
        alone[base] = watch(audit_programs.edited(base, []), 1, kept=True)
    return audit.report(PROGRAM, [parallel, alone[base]], 0.0)


def test_each_right_program_says_what_has_to_be_seen():
    assert {path.stem for path in audit_programs.RIGHT} == set(SEEN)
    assert len(SEEN) >= 15
    assert len(audit_programs.FAULTS) >= 20


@pytest.mark.parametrize("base", [path.stem for path in audit_programs.RIGHT])
def test_nothing_is_wrong_with_a_right_program(watch, alone, base):
    found = report(watch, alone, base, audit_programs.edited(base, []))
    assert found.ok, found
    right = {f.id for f in found.findings if f.verdict == "right"}
    assert set(SEEN[base].split()) <= right, found


@pytest.mark.parametrize("twin", audit_programs.TWINS, ids=lambda twin: twin["name"])
def test_nothing_is_wrong_with_what_looks_like_a_fault(watch, twin):
    text = audit_programs.edited(twin["base"], twin["edits"])
    found = audit.report(PROGRAM, [watch(text, 2), watch(text, 1)], 0.0)
    assert found.ok, found
    right = {f.id for f in found.findings if f.verdict == "right"}
    assert set(twin["seen"].split()) <= right, found


@pytest.mark.parametrize(
    "fault", audit_programs.FAULTS, ids=lambda fault: fault["name"]
)
def test_a_fault_is_found_and_no_other(watch, alone, fault):
    text = audit_programs.edited(fault["base"], fault["edits"])
    hangs = "waiting" in fault["wrong"]
    found = report(watch, alone, fault["base"], text, hangs)
    assert sorted(f.id for f in found.wrong) == sorted(fault["wrong"]), found
    lines = []
    for finding in found.wrong:
        if finding.where:
            name, _, line = finding.where.rpartition(":")
            assert name == PROGRAM
            assert 1 <= int(line) <= len(text.splitlines())
            lines.append(text.splitlines()[int(line) - 1])
    assert any(fault.get("says", "") in finding.seen for finding in found.wrong), found
    assert "at" not in fault or any(fault["at"] in line for line in lines), found


def test_what_is_seen_until_the_time_is_up_is_judged(watch):
    text = audit_programs.edited("by_hand", [["range(8)", "range(10**9)"]])
    run = watch(text, 2, 15.0)
    assert run.outcome == recorded.TIME_UP
    assert not [p for p in psutil.process_iter(["cmdline"]) if _is_of(p, PROGRAM)]
    if run.trained:
        found = audit.report(PROGRAM, [run], 0.0)
        assert found.ok, found
        assert "The time limit ended the program" in found.notes[0]
    else:  # on a very busy machine
        with pytest.raises(errors.UserError, match="when its time was over"):
            audit.report(PROGRAM, [run], 0.0)


def _is_of(process: psutil.Process, name: str) -> bool:
    return any(
        name in word and str(Path.cwd()) in word
        for word in process.info["cmdline"] or ()
    )


def test_a_program_that_fails_before_it_trains_can_not_be_judged(watch):
    text = audit_programs.edited("by_hand", [["rng.normal(size=(80, 4))", "(1 / 0)"]])
    with pytest.raises(errors.UserError, match=r"ZeroDivisionError.*program\.py:1\d"):
        audit.report(PROGRAM, [watch(text, 2)], 0.0)


def test_what_can_not_be_read_in_the_end_is_no_fault_of_the_program(watch):
    unreadable = """
import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops
def numpy(self):
    raise ValueError("no numbers")
resource_variable_ops.BaseResourceVariable.numpy = numpy
"""
    run = watch(audit_programs.edited("by_hand", []) + unreadable, 2)
    assert run.outcome == recorded.ENDED
    fault = r"(?s)program\.py ended well.*fault of distcheck.*ValueError: no numbers"
    with pytest.raises(errors.UserError, match=fault):
        audit.report(PROGRAM, [run], 0.0)


# ------------------------------------------------------------ without running anything


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("print(1)", "neither Horovod nor a strategy"),
        ("import tensorflow as tf\ntf.distribute.TPUStrategy()", "can't watch"),
        ("def", "not valid Python"),
    ],
)
def test_what_is_not_distributed_is_refused(tmp_path, text, says):
    path = tmp_path / PROGRAM
    path.write_text(text)
    with pytest.raises(errors.UserError, match=says):
        audit.audit(path)


def test_one_worker_is_refused(tmp_path):
    with pytest.raises(errors.UserError, match="2 or more"):
        audit.audit(tmp_path / PROGRAM, workers=1)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("from own import CollectiveAllReduceStrategy", audit.TASKS),
        ("strategy = getattr(tf.distribute, name)()", audit.REPLICAS),
    ],
)
def test_a_strategy_may_be_made_by_another_name(tmp_path, text, kind):
    (tmp_path / PROGRAM).write_text(text)
    assert audit.kind_of(tmp_path / PROGRAM) == kind


def test_a_program_may_have_its_distribution_in_a_module(tmp_path):
    (tmp_path / "team.py").write_text("import horovod.tensorflow as hvd")
    (tmp_path / PROGRAM).write_text("from team import hvd")
    assert audit.kind_of(tmp_path / PROGRAM) == audit.HOROVOD


def test_of_very_much_output_both_ends_are_kept():
    flood = [sys.executable, "-c", "print('a' + 'x' * 10**7 + 'z')"]
    with subprocess.Popen(flood, stdout=subprocess.PIPE) as process:
        output = audit._Output(process.stdout)
        output.join(60)
    assert len(output.text) == 2 * audit.MOST_OUTPUT
    assert re.fullmatch("ax+z", output.text.strip())


# ------------------------------------------------------------ what is told of reports


def of_reports(*processes: list[dict], kind: str = audit.HOROVOD) -> RecordedRun:
    """A run of which each process has reported these events."""
    events = [
        [{"time": float(i), **event} for i, event in enumerate(reports)]
        for reports in processes
    ]
    stacks = [""] * len(processes)
    return RecordedRun(kind, len(processes), recorded.ENDED, "", 1.0, events, stacks)


def answer(name: str, *processes: list[dict]) -> tuple:
    return judge.QUESTIONS[name][1](of_reports(*processes), None)


def the_end(**facts) -> dict:
    return {"what": "end", "size": 2, "gpus": [], "all_gpus": 0, "cuda": None, **facts}


def updates(
    own: list, applied: list, weights=None, counts=None, size=32, loss=1.0, masked=0.0
) -> list[dict]:
    """What a worker reports of its updates, from the gradients of each.

    counts: how much its losses count together, of which there are `size`; masked: how
    much more those that are 0 count.
    """
    totals = [] if counts is None else [[counts + masked, size, counts]]
    reports = []
    for i, (mine, used) in enumerate(zip(own, applied, strict=True)):
        common = {"group": 0, "update": i + 1, "replica": 0, "where": None}
        before = weights[i] if weights else [1.0, 1.0]
        gradient = {"loss": loss, "totals": totals, "sketch": mine, "weights": before}
        update = {"rate": 0.1, "reduced": 1.0, "sketch": used}
        reports.append({"what": "local", **gradient, **common})
        reports.append({"what": "applied", **update, **common})
    return reports


def draws(epochs: list, batch: int = 1) -> list[dict]:
    """What a worker reports that trains on these samples."""
    reports = updates([[1.0]], [[1.0]])
    common = {"what": "samples", "mode": "train", "model": 0, "replica": 0}
    for number, samples in enumerate(epochs):
        reports.append({"what": "epoch", "epoch": number})
        for i in range(0, len(samples), batch):
            rows = [f"{sample:012}" for sample in samples[i : i + batch]]
            reports.append({**common, "count": len(rows), "digests": "".join(rows)})
    return [*reports, the_end()]


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        ({"size": None}, {"size": None}, "wrong"),
        ({"size": 1}, {"size": 1}, "wrong"),
        ({"size": 2}, {"size": 2}, "right"),
    ],
)
def test_who_is_no_team_is_told(first, second, verdict):
    ends = [the_end(**first)], [the_end(**second)]
    assert answer("together", *ends)[0] == verdict


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        ({"all_gpus": 2, "gpus": ["GPU:0", "GPU:1"]}, {"gpus": ["GPU:1"]}, "wrong"),
        ({"all_gpus": 2, "gpus": ["GPU:0"]}, {"gpus": ["GPU:1"]}, "right"),
        (
            {"all_gpus": 1, "gpus": ["GPU:0"], "cuda": "0"},
            {"gpus": ["GPU:0"], "cuda": "1"},
            "right",
        ),
        ({}, {}, "can't tell"),
    ],
)
def test_who_shares_a_gpu_is_told(first, second, verdict):
    ends = [the_end(**first)], [the_end(**second)]
    assert answer("devices", *ends)[0] == verdict


# How much a batch's losses count on each of two workers.
SUMMED, DIVIDED, TWICE = 1.0, 0.5, 0.25


@pytest.mark.parametrize(
    ("own_step", "count", "losses", "verdict"),
    [
        (False, None, (1.0, 1.0), "right"),  # Keras divides its own loss
        (False, SUMMED, (1.0, 1.0), "wrong"),  # Keras 3 doesn't divide a mean
        (False, TWICE, (0.25, 1.0), "wrong"),
        (True, TWICE, (0.25, 1.0), "wrong"),
        (True, TWICE, (0.5, 1.0), "can't tell"),  # it is multiplied before
        (True, DIVIDED, (0.5, 1.0), "right"),
        (True, DIVIDED, (0.9, 1.0), "right"),  # other samples, or other weights
        (True, SUMMED, (1.0, 1.0), "wrong"),
        (True, SUMMED, (0.8, 1.0), "wrong"),
        (True, SUMMED, (0.5, 1.0), "can't tell"),  # divided before it is summed up
        (True, SUMMED, (float("nan"), 1.0), "can't tell"),
        (True, 0.7, (0.7, 1.0), "can't tell"),
        (True, 0.8, (1.0, 1.0), "can't tell"),
        (True, None, (1.0, 1.0), "can't tell"),
    ],
)
def test_a_strategy_s_sum_is_of_a_loss_that_somebody_divides(
    own_step, count, losses, verdict
):
    """losses: on each of two workers, and on one that is alone."""

    def trains(own: list[float], counts: float | None, loss: float) -> list[dict]:
        fit = {"what": "fit", "own_step": own_step, "where": None}
        return [fit, *updates([own], [[1.0, 1.0]], counts=counts, loss=loss)]

    parallel = of_reports(
        trains([1.0, 0.0], count, losses[0]),
        trains([0.0, 1.0], count, losses[0]),
        kind=audit.TASKS,
    )
    single = of_reports(trains([1.0, 1.0], 1.0, losses[1]), kind=audit.TASKS)
    assert judge.gradients(parallel, single)[0] == verdict


@pytest.mark.parametrize(
    ("totals", "scale", "verdict"),
    [
        ([[32.0, 32.0]], 1, "can't tell"),
        ([[256.0, 256.0]], 1, "can't tell"),  # eight numbers for each sample
        ([[32.0, 500.0]], 1, "can't tell"),  # a mean, added to each sample's loss
        ([[8.0, 500.0], [32.0, 500.0]], 1, "can't tell"),  # with weights
        ([[1.0, 32.0]], 1, "wrong"),
        ([[1.0, 32.0], [32.0, 32.0]], 1, "wrong"),  # a penalty on activities
        ([[5.0, 500.0]], 1, "wrong"),  # a mean, multiplied
        ([[256.0, 256.0]], 256, "wrong"),  # a mean, scaled for float16
    ],
)
def test_a_sum_over_all_samples_may_be_meant(totals, scale, verdict):
    """As where a network's loss is the sum over a batch of 32, and nobody divides it
    on one worker either."""
    own = [[1.0, 0.3], [1.2, 0.3], [0.9, 0.3], [1.1, 0.3]]
    batch = {"what": "samples", "mode": "train", "model": 0, "count": 32}

    def trains(*parts: list) -> RecordedRun:
        used = [*np.sum(parts, axis=0) / scale]
        events = []
        for n, part in enumerate(parts):
            reports = [{**batch, "digests": None}, *updates(part, used, counts=1.0)]
            events += [{**event, "replica": n} for event in reports]
        run = of_reports(events, kind=audit.REPLICAS)
        for event in run.all("local"):
            event["totals"] = [[count, size, count] for count, size in totals]
        return run

    parallel = trains(own, [gradient[::-1] for gradient in own])
    assert judge.gradients(parallel, trains(own))[0] == verdict


@pytest.mark.parametrize(
    ("count", "scale", "verdict"),
    [
        (SUMMED, 1.0, "wrong"),
        (DIVIDED, 1.0, "right"),
        (DIVIDED, 10.0, "can't tell"),  # the network's sum may be all of the loss
    ],
)
def test_a_mean_within_the_network_is_not_of_the_loss(count, scale, verdict):
    """As where a network takes the mean from its outputs, which comes to any number."""

    def trains(own: list[float], noise: float, counts: float) -> list[dict]:
        reports = updates([own], [[1.0, 1.0]], loss=counts)
        totals = [[noise, 96.0, noise], [scale * counts, 32.0, scale * counts]]
        return [e | {"totals": totals} if "totals" in e else e for e in reports]

    own = [1.0, 0.0], [0.0, 1.0]
    parallel = of_reports(*[trains(g, 0.3, count) for g in own], kind=audit.TASKS)
    single = of_reports(trains([1.0, 1.0], -0.2, 1.0), kind=audit.TASKS)
    assert judge.gradients(parallel, single)[0] == verdict


@pytest.mark.parametrize(
    ("kind", "count", "verdict"),
    [
        (audit.REPLICAS, SUMMED, "can't tell"),
        (audit.REPLICAS, DIVIDED, "right"),
        (audit.REPLICAS, None, "can't tell"),
        (audit.HOROVOD, SUMMED, "right"),  # which averages by itself
    ],
)
def test_the_length_of_a_sum_that_is_clipped_tells_nothing(kind, count, verdict):
    own, clipped = ([1.0, 0.0], [0.0, 1.0]), [[0.01, 0.01]] * 4
    how = {"counts": count, "loss": count or 1.0}
    parts = [updates([mine] * 4, clipped, **how) for mine in own]
    if kind == audit.REPLICAS:
        parts = [[{**e, "replica": n} for n in (0, 1) for e in parts[n]]]
    single = of_reports(updates([[1.0, 1.0]] * 4, clipped, counts=1.0), kind=kind)
    assert judge.gradients(of_reports(*parts, kind=kind), single)[0] == verdict


def clipped(gradient, norm: float = 0.1) -> list[float]:
    length = np.linalg.norm(gradient)
    return list(np.asarray(gradient) * min(1.0, norm / length))


def replicas_that_clip(how: str, size: float, count: float) -> RecordedRun:
    """Of two replicas, whose gradients are about this long; or one that is alone."""
    first = [[size * n, 0.3 * size] for n in (1.0, 1.2, 0.9, 1.1)]
    second = [[0.7 * size, size * n] for n in (0.8, 1.0, 1.1, 0.9)]
    pairs = list(zip(np.array(first), np.array(second), strict=True))
    parts = [first] if how == "alone" else [first, second]
    used = {
        "alone": [clipped(a) for a in first],
        "each": [[*np.add(clipped(a), clipped(b))] for a, b in pairs],
        "the mean": [clipped((a + b) / 2) for a, b in pairs],
        "the sum": [clipped(a + b) for a, b in pairs],
        "scaled": [[*(a + b) / 256] for a, b in pairs],
    }[how]
    options = {"counts": count, "loss": count}
    each = [updates(own, used, **options) for own in parts]
    events = [{**e, "replica": n} for n, part in enumerate(each) for e in part]
    return of_reports(events, kind=audit.REPLICAS)


@pytest.mark.parametrize(
    ("how", "size", "count", "verdict"),
    [
        ("each", 1.0, SUMMED, "wrong"),
        ("each", 0.09, SUMMED, "wrong"),  # not all of them are so long
        ("each", 0.09, DIVIDED, "right"),
        ("each", 1.0, DIVIDED, "can't tell"),
        ("the mean", 1.0, SUMMED, "can't tell"),  # applied as it is
        ("the mean", 1.0, DIVIDED, "right"),
        ("the sum", 1.0, SUMMED, "can't tell"),
        ("the sum", 1.0, DIVIDED, "right"),
    ],
)
def test_what_each_clips_is_too_long_for_a_mean(how, size, count, verdict):
    single = replicas_that_clip("alone", size, 1.0)
    parallel = replicas_that_clip(how, size, count)
    assert judge.gradients(parallel, single)[0] == verdict


@pytest.mark.parametrize(
    ("scale", "count", "overflows", "late", "verdict"),
    [
        (1024, SUMMED, False, False, "can't tell"),  # another scale than with replicas
        (256, SUMMED, False, False, "wrong"),
        (256, SUMMED, False, True, "wrong"),
        (256, SUMMED, True, False, "can't tell"),  # after which the scale is another
        (256, DIVIDED, False, False, "right"),
        (128, SUMMED, False, False, "can't tell"),  # the mean, perhaps
    ],
)
def test_a_loss_that_is_scaled_is_not_clipped(scale, count, overflows, late, verdict):
    """late: one update is told when the replicas have the next gradients already."""
    own = [[1.0, 0.3], [1.2, 0.3], [0.9, 0.3], [1.1, 0.3]]
    used = [[part / scale for part in gradient] for gradient in own]
    single = of_reports(updates(own, used, counts=1.0), kind=audit.REPLICAS)
    parallel = replicas_that_clip("scaled", 1.0, count)
    locals_ = [e for e in parallel.processes[0] if e["what"] == "local"]
    if overflows:
        locals_[0]["sketch"] = [float("inf"), 1.0]
    if late:
        locals_[-1]["sketch"] = [-1.0, 0.2]
    assert judge.gradients(parallel, single)[0] == verdict


@pytest.mark.parametrize(("count", "verdict"), [(SUMMED, "wrong"), (DIVIDED, "right")])
def test_what_counts_once_is_the_loss_even_if_all_is_scaled(count, verdict):
    """Beside it is a root of a mean, whose slope is another one in each replica."""
    own = [[1.0, 0.3], [1.2, 0.3], [0.9, 0.3], [1.1, 0.3]]
    used = [[part / 256 for part in gradient] for gradient in own]
    single = of_reports(updates(own, used), kind=audit.REPLICAS)
    parallel = replicas_that_clip("scaled", 1.0, count)
    for run, slope, whole in (
        (single, 300.0, 256.0),
        (parallel, 330.0 * count, 256.0 * count),
    ):
        for event in run.all("local"):
            event["totals"] = [[slope, 32, slope], [whole, 32, whole]]
    assert judge.gradients(parallel, single)[0] == verdict


@pytest.mark.parametrize(
    ("count", "later", "verdict"),
    [
        (SUMMED, 0.0, "wrong"),
        (DIVIDED, 0.0, "right"),
        (DIVIDED, 1.0, "can't tell"),  # which counts something with replicas alone
    ],
)
def test_a_part_of_the_loss_that_counts_nothing_yet_says_nothing(count, later, verdict):
    """Both are scaled."""

    def trains(own: list, scale: float, later: float) -> list[dict]:
        local, applied = updates([own], [[1.0, 1.0]], counts=scale, loss=scale)
        local["totals"].append([later, 32, later])
        return [local, applied]

    own = [1.0, 0.0], [0.0, 1.0]
    parts = [trains(mine, 256.0 * count, later) for mine in own]
    events = [{**e, "replica": n} for n in (0, 1) for e in parts[n]]
    single = of_reports(trains([1.0, 1.0], 256.0, 0.0), kind=audit.REPLICAS)
    parallel = of_reports(events, kind=audit.REPLICAS)
    assert judge.gradients(parallel, single)[0] == verdict


@pytest.mark.parametrize(("number", "verdict"), [(2, "can't tell"), (3, "wrong")])
def test_a_few_updates_may_have_one_factor_by_chance(number, verdict):
    own = [[1.0, 0.3], [1.2, 0.3], [0.9, 0.3], [1.1, 0.3]]
    used = [[part / 256 for part in gradient] for gradient in own]
    single = of_reports(updates(own, used, counts=1.0), kind=audit.REPLICAS)
    events = replicas_that_clip("scaled", 1.0, SUMMED).processes[0]
    events = [event for event in events if event["update"] <= number]
    parallel = of_reports(events, kind=audit.REPLICAS)
    assert judge.gradients(parallel, single)[0] == verdict


@pytest.mark.parametrize(
    ("copies", "verdict"), [([0.0, 0.0], "can't tell"), ([0.0, 0.3], "wrong")]
)
def test_replicas_whose_weights_end_equal_have_combined_gradients(copies, verdict):
    """Even if their weights were reported when some had made an update more."""
    used = [[3.0, 0.5]] * 4
    apart = [[1.0, 1.0], [1.0, 1.0], [1.0, 2.0], [2.0, 2.0]]
    first = updates([[1.0, 0.0]] * 4, used, weights=[[1.0, 1.0]] * 4)
    second = updates([[0.0, 1.0]] * 4, used, weights=apart)
    events = [{**e, "replica": n} for n in (0, 1) for e in (first, second)[n]]
    run = of_reports([*events, the_end(copies=copies)], kind=audit.REPLICAS)
    assert judge.gradients(run, None)[0] == verdict


def test_a_sum_whose_factor_changes_is_not_of_gradients_that_each_clips():
    first = [[1.0, 0.3], [1.2, 0.3], [0.9, 0.3], [1.1, 0.3]]
    second = [gradient[::-1] for gradient in first]

    def trains(*parts: list) -> RecordedRun:
        factors = np.array([[0.9], [0.8], [0.7], [0.6]])
        used = [*factors * np.sum(parts, axis=0)]
        each = [updates(own, used, counts=SUMMED) for own in parts]
        events = [{**e, "replica": n} for n, part in enumerate(each) for e in part]
        return of_reports(events, kind=audit.REPLICAS)

    verdict, said = judge.gradients(trains(first, second), trains(first))
    assert verdict == "can't tell"
    assert "direction of the mean" in said


@pytest.mark.parametrize(("count", "verdict"), [(SUMMED, "wrong"), (DIVIDED, "right")])
def test_padding_that_is_masked_does_not_count(count, verdict):
    """Of which each replica has another part."""

    def trains(own: list[float], padding: float, count: float) -> list[dict]:
        how = {"counts": count, "masked": padding * count, "loss": count}
        return updates([own], [[1.0, 1.0]], **how)

    each = trains([1.0, 0.0], 0.3, count), trains([0.0, 1.0], 0.2, count)
    replicas = [{**e, "replica": n} for n in (0, 1) for e in each[n]]
    single = of_reports(trains([1.0, 1.0], 0.6, 1.0), kind=audit.REPLICAS)
    parallel = of_reports(replicas, kind=audit.REPLICAS)
    assert judge.gradients(parallel, single)[0] == verdict


@pytest.mark.parametrize(
    ("count", "size", "loss", "verdict"),
    [
        (1.0, 32, 1.0, "right"),
        (0.5, 32, 0.5, "wrong"),  # divided, and averaged as well
        (0.5, 16, 0.5, "right"),  # a sum over a batch of half the size
        (0.5, 32, 1.0, "right"),  # the losses say that it is multiplied before
    ],
)
def test_a_loss_that_is_divided_is_not_averaged_as_well(count, size, loss, verdict):
    """count, loss: of each of two workers, where both are 1 on one that is alone."""
    mean = [[0.5, 0.5]]
    options = {"counts": count, "size": size, "loss": loss}
    workers = [updates([own], mean, **options) for own in ([1.0, 0.0], [0.0, 1.0])]
    single = of_reports(updates(mean, mean, counts=1.0, size=32, loss=1.0))
    assert judge.gradients(of_reports(*workers), single)[0] == verdict


@pytest.mark.parametrize(
    ("count", "size", "loss", "verdict"),
    [
        (TWICE, 16, 0.25, "wrong"),
        (TWICE, 16, 0.5, "can't tell"),  # the losses say that it is multiplied before
        (TWICE, 8, 0.25, "can't tell"),  # as of pairs, of which each has a fourth
        (DIVIDED, 16, 0.5, "right"),
        (SUMMED, 16, 1.0, "wrong"),
    ],
)
def test_samples_of_a_batch_that_is_shared_out_count_no_less(
    count, size, loss, verdict
):
    """size: losses of each of two replicas, where one that is alone has 32."""
    options = {"counts": count, "size": size, "loss": loss}
    first, second = (
        updates([own], [[1.0, 1.0]], **options) for own in ([1.0, 0.0], [0.0, 1.0])
    )
    replicas = [*first, *(e | {"replica": 1} for e in second)]
    single = of_reports(updates([[1.0, 1.0]], [[1.0, 1.0]], counts=1.0))
    parallel = of_reports(replicas, kind=audit.REPLICAS)
    assert judge.gradients(parallel, single)[0] == verdict


@pytest.mark.parametrize(
    ("applied", "verdict"), [([2.0, 2.0], "wrong"), ([1.0, 1.0], "can't tell")]
)
def test_equal_gradients_are_no_mean_when_they_are_summed(applied, verdict):
    """Their mean is each of them, and their sum isn't."""
    own = [1.0, 1.0]
    workers = of_reports(*[updates([own], [applied], counts=1.0)] * 2)
    single = of_reports(updates([own], [own], counts=1.0))
    assert judge.gradients(workers, single)[0] == verdict


def test_one_replica_may_apply_the_sum_for_all():
    first, second = updates([[1.0, 0.0]], [[1.0, 1.0]], counts=1.0), []
    for event in updates([[0.0, 1.0]], [[0.0, 0.0]], counts=1.0):
        if event["what"] == "local":
            second.append({**event, "replica": 1})
    parallel = of_reports([*first, *second], kind=audit.REPLICAS)
    single = of_reports(updates([[1.0, 1.0]], [[1.0, 1.0]], counts=1.0))
    assert judge.gradients(parallel, single)[0] == "wrong"


@pytest.mark.parametrize(
    ("reduced", "verdict"), [(1.0, "right"), (1.5, "right"), (2.02, "wrong")]
)
def test_numbers_that_are_averaged_beside_gradients_are_no_second_time(
    reduced, verdict
):
    reports = [
        [{**e, "reduced": reduced} for e in updates([[own]] * 2, [[2.0]] * 2)]
        for own in (1.0, 3.0)
    ]
    assert answer("gradients", *reports)[0] == verdict


@pytest.mark.parametrize("applied", [[0.25, 0.25], [1.0, 1.0]])
@pytest.mark.parametrize(("alone", "verdict"), [(1.0, "wrong"), (0.5, "can't tell")])
def test_a_factor_that_one_worker_has_too_is_not_of_workers(applied, alone, verdict):
    """alone: how much of its gradients one worker applies."""
    options = {"counts": 1.0}
    workers = [updates([own], [applied], **options) for own in ([1.0, 0], [0, 1.0])]
    single = of_reports(updates([[1.0, 1.0]], [[alone, alone]], **options))
    assert judge.gradients(of_reports(*workers), single)[0] == verdict


@pytest.mark.parametrize(
    ("weights", "averaged", "verdict"),
    [
        ([0.1, 0.0, 0.0], [False, True, True], "right"),  # then rank 0's state
        ([0.0, 0.0, 0.0], [False, True, True], "right"),  # likewise, from one seed
        ([0.1, 0.1, 0.0, 0.0], [False, False, True, True], "right"),
        ([0.0, 0.1, 0.1], [False, True, True], "wrong"),  # and no broadcast
        ([0.0, 0.0, 0.1], [True, False, True], "wrong"),
        ([0.0, 0.1, 0.1], [False, False, False], "wrong"),
    ],
)
def test_steps_before_a_broadcast_may_be_anybody_s_own(weights, averaged, verdict):
    """weights: how far they are apart before each update."""
    own = [1.0, 0.0], [0.0, 1.0]
    reports = [
        updates(
            [mine for _ in weights],
            [[0.5, 0.5] if mean else mine for mean in averaged],
            weights=[[1.0, apart * rank] for apart in weights],
        )
        for rank, mine in enumerate(own)
    ]
    assert answer("gradients", *reports)[0] == verdict


@pytest.mark.parametrize(
    ("apart", "begins", "ends"),
    [
        ([0.1], "can't tell", "can't tell"),  # a callback broadcasts after the first
        ([0.1, 0.0], "right", "right"),
        ([0.1, 0.1], "wrong", "wrong"),
    ],
)
def test_a_run_that_was_cut_may_still_broadcast(apart, begins, ends):
    """apart: how far the weights are apart before each update."""
    gradients = [[1.0, 1.0]] * len(apart)
    workers = [
        updates(gradients, gradients, weights=[[1.0, by * rank] for by in apart])
        for rank in range(2)
    ]
    assert answer("start", *workers)[0] == begins
    assert answer("end", *workers)[0] == ends


# ------------------------------------------------------------ and of data


A, B = range(16), range(16, 32)  # samples


@pytest.mark.parametrize(
    ("workers", "alone", "everything", "one_pass"),
    [
        # Each epoch is a pass: on one worker, then on each of two, on both together,
        # and on half of it.
        ([[A, A], [A[::-1], A]], [A, A], "right", "wrong"),
        ([[A[::2], A[::2]], [A[1::2], A[1::2]]], [A, A], "right", "right"),
        ([[A[:4], A[:4]], [A[4:8], A[4:8]]], [A, A], "wrong", "wrong"),
        # Both epochs together are a pass, so no sample comes twice.
        ([[A[:4], A[4:8]], [A[8:12], A[12:]]], [A, A], "right", "wrong"),
        # A fixed number of steps, each of a part.
        ([[A[:8], B[:8]], [A[8:], B[8:]]], [A[:8], A[8:]], "can't tell", "can't"),
        ([[A[:8], A[8:]], [A[8:], A[:8]]], [A[:4], A[4:8]], "can't tell", "can't"),
        ([[A[:2], A[4:6]], [B[:2], B[4:6]]], [A[:8], A[8:]], "can't tell", "can't"),
        # The same, of which all workers take the same ones.
        ([[A[:8], A[8:]], [A[:8], A[8:]]], [A[:8], A[8:]], "can't tell", "wrong"),
        # Data of its own: dealt out before; drawn by each, once for all or each time.
        ([[A, A], [B, B]], [A, A], "can't tell", "can't"),
        ([[A, A], [B, B]], [range(32, 48)] * 2, "can't tell", "can't"),
        (
            [[A, B], [range(32, 48), range(48, 64)]],
            [range(64, 80), range(80, 96)],
            "can't tell",
            "can't",
        ),
    ],
)
def test_one_worker_s_epoch_is_no_measure_of_what_is_no_pass(
    workers, alone, everything, one_pass
):
    parallel, single = of_reports(*map(draws, workers)), of_reports(draws(alone))
    assert judge.everything(parallel, single)[0] == everything
    assert judge.one_pass(parallel, single)[0].startswith(one_pass)


@pytest.mark.parametrize(
    ("own", "verdict"),
    [
        ((A, B), "can't"),  # data of its own
        ((A, A[::-1]), "wrong"),
        ((A[::2], A[1::2]), "right"),
    ],
)
def test_a_loop_that_goes_over_its_own_part_again_is_no_pass_over_all(own, verdict):
    """Four times, without epochs that Keras would know of."""
    runs = [
        of_reports(
            *[[e for e in draws([part] * 4) if e["what"] != "epoch"] for part in parts]
        )
        for parts in (own, [A])
    ]
    assert judge.one_pass(*runs)[0].startswith(verdict)


SOME_TWICE = [*range(24), *range(4)]  # of a pass, in which some samples are equal
MOST_TWICE = [*range(14), *range(14)]
UNEVENLY = [0, *(n for n in range(7) for _ in range(n + 1))]


@pytest.mark.parametrize(
    ("own", "alone", "verdict"),
    [
        ((SOME_TWICE, SOME_TWICE[::-1]), SOME_TWICE, "wrong"),
        ((SOME_TWICE, range(4, 32)), SOME_TWICE, "can't"),
        ((SOME_TWICE, [*range(14), *range(14)]), SOME_TWICE, "can't"),  # at random
        ((SOME_TWICE[::2], SOME_TWICE[1::2]), SOME_TWICE, "right"),
        # Where so many are equal, parts that were dealt out may be equal, too.
        ((MOST_TWICE, MOST_TWICE[::-1]), MOST_TWICE, "can't"),
        ((UNEVENLY, UNEVENLY[::-1]), UNEVENLY, "can't"),
    ],
)
@pytest.mark.parametrize("by_keras", [True, False])
def test_a_pass_may_have_some_samples_twice(own, alone, verdict, by_keras):
    if not by_keras and alone is MOST_TWICE:
        verdict = "wrong"  # two passes of a loop, whose epochs aren't seen
    runs = [
        of_reports(
            *[
                [e for e in draws([part]) if by_keras or e["what"] != "epoch"]
                for part in parts
            ]
        )
        for parts in (own, [alone])
    ]
    assert judge.one_pass(*runs)[0].startswith(verdict)


@pytest.mark.parametrize(
    ("own", "alone", "verdict"),
    [
        ((A, A), A, "wrong"),
        ((A, B), A, "can't"),  # a step is the least that each can do
        ((A, range(4, 20)), range(20), "can't"),
        ((A[::2], A[1::2]), A, "right"),
    ],
)
def test_an_epoch_may_be_one_batch(own, alone, verdict):
    parallel, single = (
        of_reports(*[draws([part] * 3, batch=16) for part in parts])
        for parts in (own, [alone])
    )
    assert judge.one_pass(parallel, single)[0].startswith(verdict)


@pytest.mark.parametrize(
    ("worker", "alone", "verdict"),
    [
        ([A, A], [A, A], "can't tell"),
        ([A, A], [A, A[::-1]], "wrong"),  # shuffled on one alone
        ([A, A[::-1]], [A, A[::-1]], "right"),
        # A cycle in which epochs slide: of 16 samples, 15 to an epoch.
        ([A, A], [A[:15], [15, *A[:14]]], "can't tell"),
        ([A[:15], [15, *A[:14]]], [A[:15], [15, *A[:14]]], "can't tell"),
        ([A[:15], [15, *A[:14]]], [A, A[::-1]], "wrong"),
        ([A[:15], [*A[8:], *A[:7]]], [A, A[::-1]], "right"),
    ],
)
def test_an_order_is_the_same_wherever_an_epoch_begins(worker, alone, verdict):
    parallel = of_reports(draws(worker), draws(worker))
    assert judge.order(parallel, of_reports(draws(alone)))[0] == verdict


@pytest.mark.parametrize("kind", [audit.HOROVOD, audit.TASKS, audit.REPLICAS])
def test_of_what_was_not_seen_nothing_is_told(kind):
    """As where a network is made of layers and is no Keras model."""
    own = updates([[1.0, 0.0]], [[0.5, 0.5]])
    if kind == audit.REPLICAS:
        processes = [[{**e, "replica": n} for n in (0, 1) for e in own]]
    else:
        processes = [own, own]
    ends = the_end(statistics=None)
    parallel = of_reports(*[[*events, ends] for events in processes], kind=kind)
    single = of_reports([*own, ends], kind=kind)
    asked = "different", "everything", "order", "pass", "validation", "statistics"
    found = {name: judge.QUESTIONS[name][1](parallel, single)[0] for name in asked}
    assert found == dict.fromkeys(asked, "can't tell")


# ------------------------------------------------------------ and of the rest


@pytest.mark.parametrize(
    ("kind", "verdict"),
    [(audit.HOROVOD, "wrong"), (audit.TASKS, "wrong"), (audit.REPLICAS, "can't")],
)
def test_replicas_share_a_rate_that_one_of_them_reads_late(kind, verdict):
    rows = [
        [{"rate": rate, "update": update} for update, rate in enumerate(rates, 1)]
        for rates in ([0.1, 0.2], [0.2, 0.2])
    ]
    common = {"what": "applied", "group": 0, "sketch": [1.0], "where": None}
    if kind == audit.REPLICAS:
        both = [
            event | common | {"replica": replica}
            for replica, row in enumerate(rows)
            for event in row
        ]
        parallel = of_reports(both, kind=kind)
    else:
        reports = [[event | common | {"replica": 0} for event in row] for row in rows]
        parallel = of_reports(*reports, kind=kind)
    assert judge.rate(parallel, None)[0].startswith(verdict)


def fails(error: str, where: str) -> RecordedRun:
    failed = {"what": "failed", "error": error, "where": where}
    run = of_reports([*updates([[1.0]], [[1.0]]), failed])
    run.outcome = recorded.FAILED
    return run


@pytest.mark.parametrize(
    ("alone", "verdict"),
    [
        (fails("KeyError: 'val_loss'", "p.py:9"), "can't tell"),
        (fails("KeyError: 'other'", "p.py:9"), "can't tell"),
        (fails("KeyError: 'val_loss'", "p.py:5"), "wrong"),
        (fails("ValueError: no", "p.py:9"), "wrong"),
        (of_reports([*updates([[1.0]], [[1.0]]), the_end()]), "wrong"),
        (None, "wrong"),
    ],
)
def test_what_fails_on_one_worker_too_is_not_about_workers(alone, verdict):
    assert judge.waiting(fails("KeyError: 'val_loss'", "p.py:9"), alone)[0] == verdict


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        ({"seed": 1}, {"seed": 2}, "right"),
        ({"seed": 1}, {"seed": 1}, "can't tell"),
        ({"numpy": "a", "python": "b"}, {"numpy": "c", "python": "d"}, "right"),
        ({"numpy": "a", "python": "b"}, {"numpy": "a", "python": "d"}, "can't tell"),
        ({"numpy": "a", "python": "b"}, {"numpy": "c", "python": "b"}, "can't tell"),
    ],
)
def test_a_generator_that_all_have_seeded_is_told(first, second, verdict):
    assert answer("random", [the_end(**first)], [the_end(**second)])[0] == verdict


def a_reader(callback: str, made: str | None, read: dict, **how: bool) -> dict:
    """A callback that decides by the metrics that it reads."""
    facts = {"what": "metrics", "epoch": 0, "callback": callback, "made": made}
    return {**facts, "read": read, "decides": True, **how}


@pytest.mark.parametrize(
    ("second", "asks", "verdict"),
    [(0.5, False, "right"), (0.6, False, "wrong"), (0.6, True, "right")],
)
def test_who_asks_the_others_may_read_what_is_its_own(second, asks, verdict):
    def reads(value: float) -> dict:
        return a_reader("Stop", None, {"loss": value}, asks=asks)

    assert answer("metrics", [reads(0.5)], [reads(second)])[0] == verdict


@pytest.mark.parametrize(
    ("hows", "verdict"),
    [
        (("written", None), "right"),
        (("written", "written"), "wrong"),
        (("appended", "appended"), "can't tell"),
    ],
)
def test_who_writes_what_others_write_is_told(hows, verdict):
    reports = [
        [{"what": "file", "path": "/a/b", "how": how, "by": "p.py:1"}] if how else []
        for how in hows
    ]
    assert answer("files", *reports)[0] == verdict


@pytest.mark.parametrize(
    ("paths", "verdict"),
    [
        (("/a/b.tmp" + "0f" * 16, "/a/b.tmp" + "1e" * 16), "wrong"),
        (("/a/b.tmp" + "0f" * 16, "/c/b.tmp" + "0f" * 16), "right"),
        (("/a/b.tmp1", "/a/b.tmp2"), "right"),  # what these become isn't known
    ],
)
def test_a_file_that_gets_its_name_in_the_end_is_known_by_it(paths, verdict):
    reports = [
        [{"what": "file", "path": path, "how": "written", "by": "p.py:1"}]
        for path in paths
    ]
    assert answer("files", *reports)[0] == verdict


@pytest.mark.parametrize(
    ("error", "alone", "verdict"),
    [
        ("MergeV2Checkpoints}} k/c_temp/part-0 did not exist", True, "wrong"),
        ("MergeV2Checkpoints}} k/c_temp/part-0 did not exist", False, "can't tell"),
        ("MergeV2Checkpoints}} k/c_temp: no space left", True, "can't tell"),
    ],
)
def test_a_part_of_a_checkpoint_that_has_gone_was_another_s_too(error, alone, verdict):
    """alone: does it come to its end on one worker?"""
    parallel = of_reports([{"what": "failed", "error": error}], [])
    parallel.outcome = recorded.FAILED
    single = of_reports([the_end()] if alone else [])
    assert judge.written(parallel, single)[0] == verdict


# ------------------------------------------------------------ what leads to the cure

PLACE = "program.py:7"


def made(kind: str, replicas: int, *devices: str) -> dict:
    facts = {"kind": kind, "replicas": replicas, "devices": list(devices)}
    return {"what": "strategy", "where": "program.py:3", **facts}


def step(number: int, **facts) -> dict:
    """Gradients of an update."""
    common = {"group": 0, "update": number, "replica": 0, "where": PLACE}
    numbers = {"loss": 1.0, "sketch": [1.0], "weights": [1.0], "replicas": 1}
    return {"what": "local", **common, **numbers, **facts}


def rated(number: int, rate: float) -> dict:
    """An update with this learning rate."""
    facts = {"group": 0, "update": number, "replica": 0, "where": PLACE}
    return {"what": "applied", "rate": rate, "reduced": 1.0, "sketch": [1.0], **facts}


def batch(rows: str, mode: str = "train") -> dict:
    """One whose samples are told apart by a letter each."""
    digests = "".join(letter * recorded.DIGEST for letter in rows)
    facts = {"mode": mode, "model": 0, "replica": 0, "where": PLACE}
    return {"what": "samples", "count": len(rows), "digests": digests, **facts}


EPOCH = {"what": "epoch", "epoch": 0}


def epochs(*each: list[str]) -> list[dict]:
    """The batches of each epoch, and their gradients."""
    events = [e for rows in each for e in (EPOCH, *map(batch, rows))]
    return [*events, step(1)]


@pytest.mark.parametrize(
    ("trained", "verdict"),
    [([2], "right"), ([1, 2], "right"), ([1], "wrong")],  # may try out on one first
)
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (audit.REPLICAS, "MirroredStrategy"),
        (audit.TASKS, "CollectiveAllReduceStrategy"),
    ],
)
def test_who_trains_outside_of_the_strategy_trains_alone(kind, name, trained, verdict):
    events = [made(name, 2), *(step(1, replicas=count) for count in trained)]
    run = of_reports(events, events, kind=kind)
    said = judge.together(run, None)
    assert said[0] == verdict
    if verdict == "wrong":
        assert "`strategy.scope()`" in said[1]
        assert said[2] == PLACE


@pytest.mark.parametrize(
    ("name", "listed", "verdict"),
    [
        ("MirroredStrategy", {"CPU": 2}, "wrong"),
        ("MirroredStrategy", {"CPU": 1}, "can't tell"),
        ("MirroredStrategy", {"GPU": 0}, "can't tell"),  # so it takes the processor
        ("OneDeviceStrategy", {"CPU": 2}, "can't tell"),
    ],
)
def test_a_strategy_with_one_of_the_devices_that_were_listed(name, listed, verdict):
    events = [{"what": "devices", "count": listed}, made(name, 1, "CPU:0"), step(1)]
    said = judge.together(of_reports(events, kind=audit.REPLICAS), None)
    assert said[0] == verdict


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ([{"same": False, "cleared": True}], "clears TF_CONFIG"),
        ([{"same": False, "cleared": False}], "overwrites TF_CONFIG"),
        ([{"same": False, "cleared": True}, {"same": True, "cleared": False}], ""),
    ],
)
def test_what_happens_to_tf_config_before_the_strategy_is_named(changes, says):
    changes = [{"what": "TF_CONFIG", "where": PLACE, **change} for change in changes]
    later = {"what": "TF_CONFIG", "where": PLACE, "same": True, "cleared": False}
    events = [*changes, made("CollectiveAllReduceStrategy", 1), later, step(1)]
    verdict, said, where = judge.together(
        of_reports(events, events, kind=audit.TASKS), None
    )
    assert verdict == "wrong"
    assert "only 1 replica for 2 workers" in said
    assert says in said
    assert where == (PLACE if says else "program.py:3")


@pytest.mark.parametrize(
    ("trained", "change", "verdict"),
    [
        (False, {"same": False, "cleared": False}, "wrong"),
        (False, {"same": True, "cleared": False}, "right"),
        (False, {"same": False, "cleared": True}, "right"),
        (True, {"same": False, "cleared": False}, "right"),
    ],
)
def test_who_sets_tf_config_after_the_strategy_sets_it_too_late(
    trained, change, verdict
):
    changed = {"what": "TF_CONFIG", "where": PLACE, **change}
    step_of_2 = step(1, replicas=2)
    last = [step_of_2, changed] if trained else [changed, step_of_2]
    events = [made("CollectiveAllReduceStrategy", 2), *last]
    run = of_reports(events, events, kind=audit.TASKS)
    said = [*judge.together(run, None), None]
    assert said[0] == verdict
    assert said[2] == (PLACE if verdict == "wrong" else None)


@pytest.mark.parametrize(
    ("used", "kind"),
    [
        ("MirroredStrategy", audit.REPLICAS),
        ("CollectiveAllReduceStrategy", audit.TASKS),
        ("_DefaultDistributionStrategy", audit.TASKS),  # none of those that are made
    ],
)
def test_the_strategy_that_trains_counts(used, kind):
    both = made("MirroredStrategy", 2), made("CollectiveAllReduceStrategy", 1)
    run = of_reports([*both, step(1, strategy=used)], kind=audit.REPLICAS)
    assert audit.kind_made(run) == kind


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("MirroredStrategy", "give it no list"),
        ("CentralStorageStrategy", "too few"),
    ],
)
def test_why_a_strategy_has_one_replica(kind, says):
    run = of_reports([made(kind, 1, "CPU:0"), step(1)], kind=audit.REPLICAS)
    verdict, said = judge.together(run, None)
    assert verdict == "can't tell"
    assert says in said


@pytest.mark.parametrize("events", [[], [made("OneDeviceStrategy", 1, "CPU:0")]])
def test_a_program_that_makes_no_strategy_of_several_may_count_gpus(events):
    run = of_reports([*events, step(1)], kind=audit.REPLICAS)
    verdict, said = judge.together(run, None)
    assert verdict == "can't tell"
    assert "counts GPUs" in said


@pytest.mark.parametrize(
    ("rows", "verdict"), [("aaaa", "can't tell"), ("aabc", "wrong"), ("abcd", "wrong")]
)
def test_equal_samples_are_not_told_apart(rows, verdict):
    said = answer("different", epochs([rows, rows]), epochs([rows, rows]))
    assert said[0] == verdict


@pytest.mark.parametrize(
    ("strategies", "again"),
    [
        (["CollectiveAllReduceStrategy", "MirroredStrategy"], True),
        (["MirroredStrategy"], False),  # only where there is no cluster
    ],
)
def test_a_crash_in_a_cluster_is_not_hidden_by_another_run(
    tmp_path, monkeypatch, strategies, again
):
    """The program is run again where it makes a second strategy after the cluster's."""
    (tmp_path / PROGRAM).write_text("MultiWorkerMirroredStrategy; MirroredStrategy")
    of_cluster = made("CollectiveAllReduceStrategy", 2)
    crashed = of_reports([of_cluster], kind=audit.TASKS)
    crashed.outcome = recorded.FAILED
    crashed.output = "rank 1, worker 1, failed: signal 11"
    trains = step(1, strategy="MirroredStrategy")
    events = [*(made(kind, 2) for kind in strategies), trains]
    runs = {
        audit.TASKS: crashed,
        audit.REPLICAS: of_reports(events, kind=audit.REPLICAS),
    }
    monkeypatch.setattr(audit, "_observe_as", lambda kind, *_: runs[kind])
    run = audit.observe(tmp_path / PROGRAM, [], audit.TASKS, 2, LIMIT)
    if again:
        note = audit.report(PROGRAM, [run], 0.0).notes[0]
        assert "failed: signal 11. It was run as one process" in note
    else:
        with pytest.raises(errors.UserError, match=r"could not be run[^$]*signal 11"):
            audit.report(PROGRAM, [run], 0.0)


def test_it_is_noted_why_one_worker_did_not_train():
    error = "ValueError: no other worker"
    alone = of_reports([{"what": "failed", "error": error, "where": PLACE}])
    found = audit.report(PROGRAM, [of_reports(epochs(["abcd"])), alone], 0.0)
    assert "failed before it trained: ValueError: no other worker" in found.notes[0]


def test_gpus_that_are_not_here_are_noted():
    events = [{"what": "in place of GPUs", "named": 4}, *epochs(["abcd"])]
    found = audit.report(PROGRAM, [of_reports(events, kind=audit.REPLICAS)], 0.0)
    assert "parts of the processor" in found.notes[0]


def test_a_program_that_overwrites_tf_config_and_fails_is_told_so():
    changed = {"what": "TF_CONFIG", "where": PLACE, "same": False, "cleared": False}
    failed = {"what": "failed", "error": "UnknownError: no server", "where": "p.py:9"}
    run = of_reports([changed, failed], kind=audit.TASKS)
    with pytest.raises(errors.UserError, match=r"overwrites TF_CONFIG.*program.py:7"):
        audit.report(PROGRAM, [run], 0.0)


@pytest.mark.parametrize(("keras", "told"), [(3, True), (2, False)])
def test_keras_3_with_several_tasks_is_named(keras, told):
    fit = {"what": "fit", "keras": keras, "own_step": False, "where": PLACE}
    failed = {"what": "failed", "error": f"ValueError: {'1.0 ' * 900}", "where": PLACE}
    made_it = made("CollectiveAllReduceStrategy", 2)
    run = of_reports([made_it, fit, failed], kind=audit.TASKS)
    said = running.why(run, failed)
    assert ("TF_USE_LEGACY_KERAS=1" in said) is told


GRAPH_ERROR = (
    """UnknownError: Graph execution error:

Detected at node 'Sum/Allreduce' defined at (most recent call last):
"""
    + """  File "/somewhere/audit.py", line 10, in observed

"""
    * 60
    + """Horovod has been shut down.
\t [[{{node Sum/Allreduce}}]] [Op:__inference_train_function_1]"""
)
IN_USER_CODE = """ValueError: in user code:

    File "/place/program.py", line 30, in step  *
        optimizer.apply_gradients(
            zip(gradients, weights))

    ValueError: no variables may be made here"""


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (
            GRAPH_ERROR,
            "UnknownError: Graph execution error: Horovod has been shut down.",
        ),
        (IN_USER_CODE, "ValueError: ValueError: no variables may be made here"),
        ("ValueError: line 1\n  line 2", "ValueError: line 1 line 2"),
    ],
)
def test_an_error_is_told_without_the_frames_of_graphs(error, told):
    assert words.shortened(running._words(error)) == told


def test_unequal_numbers_of_batches_are_counted():
    failed = {"what": "failed", "error": GRAPH_ERROR, "where": PLACE}
    parallel = of_reports(
        [*epochs(["a", "b", "c"]), failed], [*epochs(["d", "e"]), the_end()]
    )
    parallel.outcome = recorded.FAILED
    verdict, said, where = judge.waiting(parallel, None)
    assert (verdict, where) == ("wrong", PLACE)
    assert "Training steps: rank 0 made 3, rank 1 made 2." in said


def test_a_task_that_is_left_alone_is_no_error_of_its_own():
    lost = "UnavailableError: tasks are unhealthy (stopped sending heartbeats)"
    failed = {"what": "failed", "error": lost, "where": PLACE}
    parallel = of_reports(
        [step(1), failed], [step(1, replica=1), the_end()], kind=audit.TASKS
    )
    parallel.outcome = recorded.FAILED
    verdict, said, where = judge.waiting(parallel, None)
    assert (verdict, where) == ("wrong", PLACE)
    assert "waited for another worker that had ended" in said


def test_steps_are_not_blamed_where_nobody_has_ended():
    parallel = of_reports(epochs(["a", "b", "c"]), epochs(["d", "e"]))
    parallel.outcome = recorded.STALLED
    assert "Training steps" not in judge.waiting(parallel, None)[1]


@pytest.mark.parametrize(("broadcasts", "named"), [([], False), ([PLACE], True)])
def test_a_broadcast_of_nothing_is_named(broadcasts, named):
    sent = [{"what": "empty broadcast", "where": "program.py:5"} for _ in broadcasts]
    ranks = [
        [*sent, step(n, weights=[w]), rated(n, 0.1), the_end()]
        for n, w in ((1, 1.0), (1, 2))
    ]
    verdict, said, where = judge.start(of_reports(*ranks), None)
    assert verdict == "wrong"
    assert ("before the model has variables" in said) is named
    assert where == ("program.py:5" if named else PLACE)


@pytest.mark.parametrize(
    ("name", "asks", "again", "verdict"),
    [
        ("EarlyStopping", False, False, "wrong"),
        ("EarlyStopping", True, False, "can't tell"),  # it may tell the others
        ("EarlyStopping", False, True, "right"),  # after what they trained together
        ("ReduceLROnPlateau", False, False, "can't tell"),
    ],
)
def test_who_stops_alone_leaves_the_others_waiting(name, asks, again, verdict):
    end = {"what": "epoch metrics", "epoch": 0, "metrics": {}, "own_asks": asks}
    decides = a_reader(name, PLACE, {"loss": 0.5}, asks=False)
    first = [end, decides, end] if again else [decides, end]
    said = answer("metrics", [*first, step(1)], [end, step(1)])
    assert said[0] == verdict
    assert "rank 0 alone" in said[1] or verdict == "right"


def test_one_that_decides_alone_hides_no_other_that_decides_by_what_differs():
    end = {"what": "epoch metrics", "epoch": 0, "metrics": {}, "own_asks": False}
    stops = [
        a_reader("EarlyStopping", PLACE, {"loss": loss}, asks=False)
        for loss in (0.5, 0.7)
    ]
    alone = a_reader("ReduceLROnPlateau", PLACE, {"loss": 0.5}, asks=False)
    said = answer("metrics", [stops[0], alone, end, step(1)], [stops[1], end, step(1)])
    assert said[0] == "wrong"
    assert "EarlyStopping decides by loss" in said[1]


def keeps_the_best(value: float) -> dict:
    read, how = {"val_loss": value}, {"chooses": True, "only_tells": True}
    return a_reader("ModelCheckpoint", PLACE, read, asks=False, **how)


@pytest.mark.parametrize(
    ("rows", "values", "verdict"),
    [
        (("ab", "cd"), (0.5, 0.6), "wrong"),
        (("ab", "cd"), (0.5, 0.5), "right"),  # averaged
        (("abcd", "abcd"), (0.5, 0.6), "can't tell"),  # with own running means
        (("ab", ""), (0.5, None), "right"),  # the others don't validate
    ],
)
@pytest.mark.parametrize("on_all", [False, True])
def test_the_best_weights_of_a_part_of_the_validation(rows, values, verdict, on_all):
    ranks = []
    for number, (part, value) in enumerate(zip(rows, values, strict=True)):
        has = {} if value is None else {"val_loss": value}
        events = [batch(part, "validate")] if part else []
        if has and (on_all or not number):
            events.append(keeps_the_best(value))
        events.append({"what": "epoch metrics", "epoch": 0, "metrics": has})
        ranks.append([*events, step(1)])
    assert judge.metrics(of_reports(*ranks), None)[0] == verdict


@pytest.mark.parametrize(
    ("second", "verdict"), [((0.3, 0.3), "right"), ((0.3, 0.4), "wrong")]
)
def test_a_metric_is_compared_with_that_of_the_same_fit(second, verdict):
    """Of two, whose epochs have the same numbers, in the first of which it is equal."""
    ranks: list[list[dict]] = [[batch("ab", "validate")], [batch("cd", "validate")]]
    for values in ((0.5, 0.5), second):
        ranks[0].append(keeps_the_best(values[0]))
        for events, value in zip(ranks, values, strict=True):
            has = {"val_loss": value}
            events.append({"what": "epoch metrics", "epoch": 0, "metrics": has})
    ranks = [[*events, step(1)] for events in ranks]
    assert judge.metrics(of_reports(*ranks), None)[0] == verdict


@pytest.mark.parametrize(("first", "verdict"), [(True, "wrong"), (False, "right")])
def test_who_decides_alone_in_a_second_fit_is_told(first, verdict):
    """first: not all stop in it who do so in the first one."""
    end = {"what": "epoch metrics", "epoch": 0, "metrics": {}, "own_asks": False}
    stops = a_reader("EarlyStopping", PLACE, {"loss": 0.5}, asks=False)
    both = [stops, end, stops, end]
    ranks = [[*both, step(1)], [stops, end, *both[2 + first :], step(1)]]
    assert judge.metrics(of_reports(*ranks), None)[0] == verdict


@pytest.mark.parametrize(
    ("only_tells", "verdict"), [(True, "right"), (False, "can't tell")]
)
def test_callbacks_that_only_tell_decide_nothing(only_tells, verdict):
    read = keeps_the_best(0.5) | {"callback": "Shows", "decides": False}
    read |= {"chooses": False, "only_tells": only_tells}
    other = read | {"read": {"val_loss": 0.6}}
    assert answer("metrics", [read, step(1)], [other, step(1)])[0] == verdict


def test_what_a_callback_would_have_decided_is_left_open():
    shows = keeps_the_best(0.5) | {"decides": False, "chooses": False}
    parallel = of_reports([shows, step(1)], [step(1)])
    assert judge.metrics(parallel, None)[0] == "right"
    parallel.outcome = recorded.STALLED
    assert judge.metrics(parallel, None)[0] == "can't tell"


@pytest.mark.parametrize(
    ("at_fit", "rate", "rows", "verdict"),
    [
        (0.1, 0.1, "ab", "right"),  # half a batch on each of two
        (0.1, 0.1, "abcd", "can't tell"),
        (0.2, 0.1, "abcd", "wrong"),  # taken back by a warm-up
        (0.2, 0.15, "abcd", "right"),  # on its way up
    ],
)
def test_a_learning_rate_is_compared_with_the_batch(at_fit, rate, rows, verdict):
    def trains(at_fit: float, rate: float, rows: str) -> list[dict]:
        fit = {"what": "fit", "rate": at_fit, "where": PLACE, "own_step": False}
        return [fit, batch(rows), step(1), rated(1, rate)]

    single = of_reports(trains(0.1, 0.1, "abcd"))
    cut = trains(at_fit, rate, rows)
    whole = [*cut, the_end()]
    assert judge.rate(of_reports(whole, whole), single)[0] == verdict
    # Until it was ended it may not have come to its full rate.
    expected = verdict if verdict == "right" else "can't tell"
    assert judge.rate(of_reports(cut, cut), single)[0] == expected


@pytest.mark.parametrize(
    ("rates", "verdict"), [((0.1, 0.2), "wrong"), ((0.1, 0.1), "can't tell")]
)
def test_learning_rates_may_part_after_the_last_update_that_was_seen(rates, verdict):
    ranks = [[step(1), rated(1, 0.1), the_end(rate=[rate])] for rate in rates]
    assert answer("rate", *ranks)[0] == verdict


@pytest.mark.parametrize(
    ("end", "verdict"), [([the_end()], "wrong"), ([], "can't tell")]
)
def test_a_validation_that_was_cut_may_have_gone_on(end, verdict):
    def validates(samples: range) -> list[dict]:
        rows = "".join(f"{sample:012}" for sample in samples)
        facts = {"mode": "validate", "model": 0, "replica": 0, "where": PLACE}
        return [step(1), {"what": "samples", "digests": rows, "count": 5, **facts}]

    parallel = of_reports(*[[*validates(range(5)), *end]] * 2)
    single = of_reports([*validates(range(40)), the_end()])
    assert judge.validation(parallel, single)[0] == verdict


@pytest.mark.parametrize(
    ("folders", "verdict"),
    [(("/logs/train", "/logs/train"), "wrong"), (("/logs/0", "/logs/1"), "right")],
)
def test_a_board_has_one_writer(folders, verdict):
    reports = [
        [{"what": "file", "path": folder, "how": "board", "by": PLACE}]
        for folder in folders
    ]
    assert answer("files", *reports)[0] == verdict


@pytest.mark.parametrize(
    ("second", "verdict"), [("ab cd", "can't tell"), ("cb ad", "right")]
)
def test_the_order_of_a_loop_is_that_of_all_replicas_together(second, verdict):
    """Each of two has a half of every batch."""
    passes = [*"ab cd".split(), *second.split()]
    rows = [
        [batch(rows[replica]) | {"replica": replica} for rows in passes]
        for replica in (0, 1)
    ]
    events = [event for pair in zip(*rows, strict=True) for event in pair]
    events += [step(1), step(1, replica=1)]
    parallel = of_reports(events, kind=audit.REPLICAS)
    assert judge.order(parallel, None)[0] == verdict


@pytest.mark.parametrize(
    ("alone", "verdict"), [("abcdefgh", "wrong"), ("stuvwxyz", "can't tell")]
)
def test_other_samples_are_no_part_of_what_one_worker_has(alone, verdict):
    ranks = [[*epochs([rows], [rows]), the_end()] for rows in ("ab", "cd")]
    one = of_reports([*epochs([alone], [alone]), the_end()])
    assert judge.everything(of_reports(*ranks), one)[0] == verdict


LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


@pytest.mark.parametrize(
    ("each", "verdict"),
    [
        # Two orders, of 20 each: epochs of 19 begin at another place in them.
        (
            [
                (LETTERS[:19], LETTERS[19] + LETTERS[:18]),
                (LETTERS[10:19] + LETTERS[20:30],) * 2,
            ],
            "wrong",
        ),
        # Drawn anew, others are left out.
        (
            [
                (LETTERS[:12], LETTERS[12:24], LETTERS[:12]),
                (LETTERS[24:36], LETTERS[:12], LETTERS[24:36]),
            ],
            "can't tell",
        ),
    ],
)
def test_samples_that_no_epoch_shows_are_on_no_worker(each, verdict):
    ranks = [[*epochs(*map(list, passes)), the_end()] for passes in each]
    alone = of_reports([*epochs(*[list(LETTERS)] * 2), the_end()])
    assert judge.everything(of_reports(*ranks), alone)[0] == verdict


@pytest.mark.parametrize(
    ("kind", "told"), [(audit.HOROVOD, True), (audit.REPLICAS, False)]
)
def test_replicas_have_no_order_of_their_own(kind, told):
    """One process deals the same half of the data out to them, shuffled each time."""
    ranks = [epochs([rows], [rows[::-1]]) for rows in ("abc", "bcd")]
    if kind == audit.REPLICAS:
        pairs = zip(ranks[0], [e | {"replica": 1} for e in ranks[1]], strict=True)
        ranks = [
            [e for pair in pairs for e in (pair if "mode" in pair[0] else pair[:1])]
        ]
        ranks[0].append(step(1, replica=1))
    alone = of_reports([*epochs(["abcdefgh"], ["abcdefgh"]), the_end()])
    parallel = of_reports(*[[*events, the_end()] for events in ranks], kind=kind)
    verdict, said, _ = judge.everything(parallel, alone)
    assert verdict == "wrong"
    assert ("in an order of its own" in said) is told


REAL = ["ab", "cd", "ef", "gh"]


@pytest.mark.parametrize(
    ("shown", "made", "verdict"),
    [
        ((REAL * 2, REAL * 2), (LETTERS[8:24], LETTERS[24:40]), "wrong"),
        ((REAL * 2, REAL[::-1] * 2), (LETTERS[8:24], LETTERS[24:40]), "right"),
        # parts that all have beside parts of their own
        ((REAL * 2, REAL * 2), (LETTERS[8:16] * 2, LETTERS[16:24] * 2), "can't tell"),
        ((REAL[:1] * 8, REAL[:1] * 8), (LETTERS[8:24], LETTERS[24:40]), "can't tell"),
        ((REAL, REAL), (LETTERS[8:16], LETTERS[24:32]), "can't tell"),  # a single pass
        # what is made of the same random numbers may be meant for all
        ((REAL * 2, REAL[::-1] * 2), (LETTERS[8:24], LETTERS[8:24]), "can't tell"),
    ],
)
def test_real_samples_beside_made_ones_are_compared(shown, made, verdict):
    """A discriminator's batches: one of the data, and one of a generator."""
    ranks = []
    for real, fake in zip(shown, made, strict=True):
        fakes = [fake[2 * n : 2 * n + 2] for n in range(len(real))]
        rows = [b for pair in zip(real, fakes, strict=True) for b in pair]
        ranks.append(epochs(rows))
    assert answer("different", *ranks)[0] == verdict


def shown_in_turn(parts: list[str], name: int, halves: bool) -> list[dict]:
    """Two passes over parts of the data, each shown with as much that is made."""
    reports = updates([[1.0]], [[1.0]])
    for number, part in enumerate(parts * 2):
        real = "".join(letter * recorded.DIGEST for letter in part)
        made = "".join(f"{name}{number:05}{i:06}" for i in range(len(part)))
        for digests in [real + made] if halves else [real, made]:
            count = len(digests) // recorded.DIGEST
            reports.append({**batch("", "train"), "digests": digests, "count": count})
    return [*reports, the_end()]


PARTS = ["abcd", "efgh", "ijkl", "mnop"]


@pytest.mark.parametrize(
    ("each", "everything", "one_pass"),
    [
        ((PARTS, PARTS[::-1]), "right", "wrong"),
        ((PARTS[:2], PARTS[2:]), "right", "right"),
        ((PARTS[:2], PARTS[1:3]), "wrong", "right"),
        ((PARTS, ["qrst", "uvwx", "yzAB", "CDEF"]), "can't tell", "can't tell"),
    ],
)
@pytest.mark.parametrize("halves", [False, True])
def test_what_is_made_beside_the_data_is_not_counted(
    each, everything, one_pass, halves
):
    parallel = of_reports(*[shown_in_turn(p, i, halves) for i, p in enumerate(each)])
    single = of_reports(shown_in_turn(PARTS, 9, halves))
    assert judge.everything(parallel, single)[0] == everything
    assert judge.one_pass(parallel, single)[0] == one_pass


@pytest.mark.parametrize(
    ("rows", "names", "verdict"),
    [
        ([], (0, 1, 2), "wrong"),
        (["aZbY"], (0, 1, 2), "can't tell"),  # some are altered by chance
        (["abcd"], (0, 1, 2), "can't tell"),  # not in turn
        ([], (0, 1, 1), "can't tell"),  # data that come once in each run
    ],
)
def test_what_only_looks_made_is_counted_as_data(rows, names, verdict):
    ranks = [
        [*map(batch, rows), *shown_in_turn(parts, name, False)]
        for name, parts in zip(names, [PARTS, PARTS[::-1], PARTS], strict=True)
    ]
    assert judge.one_pass(of_reports(*ranks[:2]), of_reports(ranks[2]))[0] == verdict


def labeled(batches: list[str]) -> list[dict]:
    return [
        {"what": "labels", "replica": 0, "digests": batch(rows)["digests"]}
        for rows in batches
    ]


IRREGULAR = ["abca", "bbca", "cabb", "aacb", "bcba", "cbba", "abab", "ccab"]


@pytest.mark.parametrize(
    ("labels", "verdict"),
    [
        ((IRREGULAR, IRREGULAR), "wrong"),
        ((IRREGULAR, IRREGULAR[::-1]), "right"),
        ((IRREGULAR * 3, IRREGULAR * 3), "wrong"),  # the whole data, over and over
        ((IRREGULAR[:4] * 3, IRREGULAR[:4] * 3), "can't tell"),  # too few
        ((["abcd"] * 8, ["abcd"] * 8), "can't tell"),  # as all samples have them
        (([], []), "can't tell"),
    ],
)
def test_labels_tell_which_augmented_samples_are_the_same(labels, verdict):
    """Of samples that never come again."""
    rows = ((["ab"], ["cd"]), (["ef"], ["gh"]))
    ranks = [
        [*epochs(*one), *labeled(own)] for one, own in zip(rows, labels, strict=True)
    ]
    assert answer("different", *ranks)[0] == verdict


@pytest.mark.parametrize(
    ("common", "verdict"),
    [("a", "wrong"), ("abcdefgh", "right")],  # by chance; each has the same labels
)
def test_some_augmented_samples_may_come_out_the_same(common, verdict):
    """common: what both have of 26 samples, in another batch."""
    first, second = LETTERS[:26], LETTERS[26:]
    rows = second[: 26 - len(common)] + common
    ranks = [[*epochs([*part]), *labeled(IRREGULAR)] for part in (first, rows)]
    single = of_reports(epochs(["0123456789"]))
    assert judge.different(of_reports(*ranks), single)[0] == verdict


SORTED = [4 * letter for letter in LETTERS[:10]]


@pytest.mark.parametrize(
    ("labels", "passes", "alone", "verdict"),
    [
        (SORTED, 1, LETTERS, "right"),  # parts of data that are sorted by class
        (SORTED, 3, LETTERS, "right"),
        (SORTED, 1, "0123456789", "right"),  # likewise, and augmented
        (IRREGULAR, 3, LETTERS, "right"),  # nothing in them is random
        (IRREGULAR, 3, "0123456789", "right"),
        (IRREGULAR, 1, LETTERS[:26], "can't tell"),  # rank 0's
        (IRREGULAR, 1, LETTERS, "can't tell"),
        (IRREGULAR, 1, None, "can't tell"),
        (IRREGULAR, 1, "0123456789", "wrong"),  # what is augmented is another each time
    ],
)
def test_equal_labels_are_of_equal_samples_only_where_these_are_random(
    labels, passes, alone, verdict
):
    """Each of two has samples of its own. alone: those of one worker."""
    ranks = [
        [*epochs(*[[*part]] * passes), *labeled(labels * passes)]
        for part in (LETTERS[:26], LETTERS[26:])
    ]
    single = of_reports(epochs([*alone])) if alone else None
    assert judge.different(of_reports(*ranks), single)[0] == verdict


@pytest.mark.parametrize("by_steps", [True, False])
def test_an_epoch_that_is_too_long_by_its_batches_is_told_so(by_steps):
    fit = {"what": "fit", "by_steps": by_steps, "where": PLACE, "own_step": False}

    def trains(size: int) -> list[dict]:
        rows = [LETTERS[n : n + size] for n in range(0, 40, size)]
        return [fit, *epochs(rows), the_end()]

    parallel, single = of_reports(trains(4), trains(4)), of_reports(trains(2))
    verdict, said, where = judge.one_pass(parallel, single)
    assert (verdict, where) == ("wrong", PLACE)
    assert "4 samples in each worker's batch, and 2 in one worker's" in said
    assert ("without a batch_size" in said) is by_steps


@pytest.mark.parametrize(
    ("parts", "verdict"),
    [(("abcd", "efgh"), "right"), (("ab", "ef"), "can't tell")],
)
def test_validation_on_whole_batches_alone(parts, verdict):
    """Of nine samples, which one worker has."""
    ranks = [[batch(rows, "validate"), step(1)] for rows in parts]
    alone = of_reports([batch("abcdefghi", "validate"), step(1)])
    assert judge.validation(of_reports(*ranks), alone)[0] == verdict


@pytest.mark.parametrize(
    ("looked_at", "verdict"),
    [("abcd", "wrong"), ("wxyz", "can't tell"), ("abyz", "can't tell")],
)
def test_all_look_at_one_part_of_what_one_worker_has(looked_at, verdict):
    """Of nine samples; others are no part of them."""
    ranks = [[batch(looked_at, "validate"), step(1), the_end()]] * 2
    alone = of_reports([batch("abcdefghi", "validate"), step(1)])
    assert judge.validation(of_reports(*ranks), alone)[0] == verdict


@pytest.mark.parametrize(
    ("parts", "verdict"),
    [
        ((["abcd", "abcd"], ["efgh", "efgh"]), "right"),
        ((["ab", "ab"], ["ef", "ef"]), "wrong"),
        ((["ab"], ["ef"]), "can't tell"),  # another half may come the next time
        ((["ab", "bd"], ["ef", "eg"]), "can't tell"),
        ((["abc", "abc"], ["efg", "efg"]), "can't tell"),  # more than a half
        ((["abxy", "abxy"], ["ef", "ef"]), "can't tell"),  # no part of one worker's
        ((["ab", "ab"], []), "can't tell"),  # an example for a picture
    ],
)
def test_all_share_out_a_half_of_what_one_worker_has(parts, verdict):
    """Of eight samples, of which each is looked at twice."""
    steps = [step(1), step(1, replica=1)]
    replicas = [
        batch(rows, "validate") | {"replica": replica}
        for replica, calls in enumerate(parts)
        for rows in calls
    ]
    parallel = of_reports([*replicas, *steps, the_end()], kind=audit.REPLICAS)
    alone = of_reports([*[batch("abcdefgh", "validate")] * 2, step(1), the_end()])
    assert judge.validation(parallel, alone)[0] == verdict


@pytest.mark.parametrize(
    ("parts", "verdict"),
    [
        (["abcd abcd", "efgh efgh"], "wrong"),  # all shuffle with one seed
        (["abcd efgh", "efgh abcd"], "right"),
        (["abcdef abcdef", "cdefgh cdefgh"], "right"),  # more than a half
        (["abcdefgh abcdefgh", "abcdefgh abcdefgh"], "right"),
        (["ab ab", "ef ef", "cd cd", "gh gh"], "right"),  # so few by chance
        (["abcd abcd", "efgh eagh"], "right"),
        (["wxyz wxyz", "wxyz wxyz"], "can't tell"),  # no part of one worker's
    ],
)
@pytest.mark.parametrize("by_keras", [True, False])
def test_all_look_at_another_part_each_time(parts, verdict, by_keras):
    """Of eight samples. parts: for each time, what each of two workers looks at."""

    def validates(times: list[str]) -> list[dict]:
        between = {"what": "epoch metrics"} if by_keras else batch("z")
        each = [[batch(rows, "validate"), between] for rows in times]
        test = batch(times[0], "validate")  # in the end, rank 0 alone
        return [step(1), *(e for events in each for e in events), test, the_end()]

    first, second = (
        validates([part.split()[rank] for part in parts]) for rank in (0, 1)
    )
    parallel = of_reports(first, [e for e in second if e is not second[-2]])
    alone = of_reports(validates(["abcdefgh"] * len(parts)))
    assert judge.validation(parallel, alone)[0] == verdict


@pytest.mark.parametrize(
    ("sentences", "words", "verdict"),
    [
        (("abcd", "efgh"), ("sssssstt", "ssssstst"), "right"),
        (("abcd", "abcd"), ("sssssstt", "ssssstst"), "wrong"),
        (("", ""), ("sssssstt", "ssssstst"), "can't tell"),
        (("", ""), ("st", "ts"), "wrong"),
    ],
)
def test_the_words_of_a_decoder_are_not_the_data(sentences, words, verdict):
    """It is called more often than the encoder, each time with a word of each sentence;
    those of one worker are others."""

    def looks_at(rows: str, *calls: str) -> list[dict]:
        encoder = [batch(rows[i : i + 2], "validate") for i in range(0, len(rows), 2)]
        decoder = [batch(call, "validate") | {"model": 1} for call in calls]
        return [*encoder, *decoder, step(1)]

    ranks = [
        [*looks_at(rows, row, row[::-1], row), the_end()]
        for rows, row in zip(sentences, words, strict=True)
    ]
    whole = "abcdefgh" if any(sentences) else ""
    alone = looks_at(whole, "sssssttt", *["uvvssssss"] * 4)
    assert judge.validation(of_reports(*ranks), of_reports(alone))[0] == verdict


@pytest.mark.parametrize(
    ("kind", "looked_at", "verdict"),
    [
        (audit.HOROVOD, "abcd", "wrong"),
        (audit.HOROVOD, "xyzw", "can't tell"),  # no part of what one worker has
        (audit.REPLICAS, "abcd", "can't tell"),  # an example for a picture
    ],
)
def test_who_looks_at_a_part_alone(kind, looked_at, verdict):
    """Of nine samples, which one worker has."""
    steps = [step(1), step(1, replica=1)]
    first, second = [batch(looked_at, "validate"), steps[0]], [steps[0], the_end()]
    last = [the_end()] if kind == audit.HOROVOD else [steps[1], the_end()]
    ranks = [[*first, *last], second][: 2 if kind == audit.HOROVOD else 1]
    alone = of_reports([batch("abcdefghi", "validate"), step(1)])
    assert judge.validation(of_reports(*ranks, kind=kind), alone)[0] == verdict


def test_a_narrow_terminal_shows_the_whole_line_of_a_finding():
    where = "a_program_with_a_long_name_after_step_06.py:1234"
    finding = judge.Finding("start", "Do all start alike?" * 4, "wrong", "No.", where)
    console = rich.console.Console(width=80, record=True, file=io.StringIO())
    console.print(audit.Report(PROGRAM, 2, [finding], 1.0))
    cells = "".join(re.findall(r"│ (\S+) +│$", console.export_text(), re.MULTILINE))
    assert "06.py:1234)" in cells


@pytest.mark.parametrize(
    ("part", "told"), [(0.0123, "1.2 %"), (0.996, "100 %"), (2.5, "250 %")]
)
def test_a_part_is_told_in_percent(part, told):
    assert words.percent(part) == told


# ------------------------------------------------------------ the command, in earnest


def test_the_command_runs_a_program_as_it_is(tmp_path, monkeypatch):
    """In a folder with a module `utils` of its own, without the server."""
    (tmp_path / "utils.py").write_text("import horovod.tensorflow as hvd\n")
    old = "import horovod.tensorflow as hvd\n"
    text = audit_programs.edited("by_hand", [[old, "from utils import hvd\n"]])
    (tmp_path / PROGRAM).write_text(text)
    command = [sys.executable, "-m", "utils.cli", "audit", "--quick", "--json"]
    command = [str(Path(sys.executable).with_name("course")), *command[3:]]
    result = subprocess.run(
        [*command, PROGRAM], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result
    found = json.loads(result.stdout)
    assert found["ok"]
    verdicts = {finding["id"]: finding["verdict"] for finding in found["findings"]}
    assert verdicts["start"] == verdicts["end"] == "right"
    assert sorted(os.listdir(tmp_path)) == [PROGRAM, "utils.py"]


def test_the_command_refuses_with_status_2(tmp_path, monkeypatch):
    (tmp_path / PROGRAM).write_text("print(1)")
    runner = typer.testing.CliRunner()
    result = runner.invoke(cli.app, ["audit", str(tmp_path / PROGRAM)])
    assert isinstance(result.exception, errors.UserError)
