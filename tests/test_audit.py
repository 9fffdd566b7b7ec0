"""`course audit` finds what is wrong with programs in many styles, and nothing else.

tests/audited/ holds programs that are right, faults.toml edits of them that aren't, and
twins.toml edits that are right, though they look like a fault. All are run for real, on
two workers that are forked from one process; what a program does on one worker is
watched once, and its faults are compared with that.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import audit_programs
import psutil
import pytest
import typer.testing
from ci_sample import drawn

from utils import cli
from utils.base import course
from utils.checking import audit
from utils.checking.judges import audit as judge

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
    "mirrored_loop": "together start gradients end different everything pass",
    "multi_worker": "together start gradients end different everything files",
    "all_of_it": "start gradients end different pass files rate",
}


@pytest.fixture(scope="module")
def served():
    """Workers are forked."""
    with audit_programs.served():
        yield


@pytest.fixture
def watch(served, tmp_path, monkeypatch):
    """A function that runs a program's text on so many workers, and watches.

    hangs: it waits for ever, which is found out sooner than in earnest.
    """
    monkeypatch.chdir(tmp_path)

    def watch(
        text: str, workers: int, limit: float = LIMIT, hangs: bool = False
    ) -> judge.Watched:
        if hangs:
            monkeypatch.setattr(audit, "STALL", 10.0)
            monkeypatch.setattr(audit, "WARNED", 3)
        path = tmp_path / PROGRAM
        path.write_text(text)
        kind = audit.kind_of(path)
        run = audit.observe(path, [], kind, workers, limit)
        assert [p.name for p in tmp_path.iterdir()] == [PROGRAM]
        return run

    return watch


@pytest.fixture(scope="module")
def alone():
    """The runs of right programs on one worker, by name."""
    return {}


def report(watch, alone, base: str, text: str, hangs: bool = False) -> audit.Report:
    """What is found in a program that does on one worker what `base` does."""
    many = watch(text, 2, hangs=hangs)
    if base not in alone:
        alone[base] = watch(audit_programs.edited(base, []), 1)
    return audit.report(PROGRAM, [many, alone[base]], 0.0)


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


@pytest.mark.parametrize(
    "twin", drawn(audit_programs.TWINS), ids=lambda twin: twin["name"]
)
def test_nothing_is_wrong_with_what_looks_like_a_fault(watch, twin):
    text = audit_programs.edited(twin["base"], twin["edits"])
    found = audit.report(PROGRAM, [watch(text, 2), watch(text, 1)], 0.0)
    assert found.ok, found
    right = {f.id for f in found.findings if f.verdict == "right"}
    assert set(twin["seen"].split()) <= right, found


@pytest.mark.parametrize(
    "fault", drawn(audit_programs.FAULTS), ids=lambda fault: fault["name"]
)
def test_a_fault_is_found_and_no_other(watch, alone, fault):
    text = audit_programs.edited(fault["base"], fault["edits"])
    hangs = "waiting" in fault["wrong"]
    found = report(watch, alone, fault["base"], text, hangs)
    assert sorted(f.id for f in found.wrong) == sorted(fault["wrong"]), found
    for finding in found.wrong:
        if finding.where:
            name, _, line = finding.where.rpartition(":")
            assert name == PROGRAM
            assert 1 <= int(line) <= len(text.splitlines())


def test_what_is_seen_until_the_time_is_up_is_judged(watch):
    text = audit_programs.edited("by_hand", [["range(8)", "range(10**9)"]])
    run = watch(text, 2, 15.0)
    assert run.outcome == judge.TIME_UP
    assert not [p for p in psutil.process_iter(["cmdline"]) if _is_of(p, PROGRAM)]
    if run.trained:
        found = audit.report(PROGRAM, [run], 0.0)
        assert found.ok, found
        assert "The time limit ended the program" in found.notes[0]
    else:  # on a very busy machine
        with pytest.raises(course.CourseError, match="when its time was over"):
            audit.report(PROGRAM, [run], 0.0)


def _is_of(process: psutil.Process, name: str) -> bool:
    return any(
        name in word and str(Path.cwd()) in word
        for word in process.info["cmdline"] or ()
    )


def test_a_program_that_fails_before_it_trains_can_not_be_judged(watch):
    text = audit_programs.edited("by_hand", [["rng.normal(size=(80, 4))", "(1 / 0)"]])
    with pytest.raises(course.CourseError, match=r"ZeroDivisionError.*program\.py:1\d"):
        audit.report(PROGRAM, [watch(text, 2)], 0.0)


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
    with pytest.raises(course.CourseError, match=says):
        audit.audit(path)


def test_one_worker_is_refused(tmp_path):
    with pytest.raises(course.CourseError, match="2 or more"):
        audit.audit(tmp_path / PROGRAM, workers=1)


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


def of_reports(*processes: list[dict], kind: str = audit.HOROVOD) -> judge.Watched:
    """A run of which each process has reported these events."""
    events = [
        [{"time": float(i), **event} for i, event in enumerate(reports)]
        for reports in processes
    ]
    stacks = [""] * len(processes)
    return judge.Watched(kind, len(processes), judge.ENDED, "", 1.0, events, stacks)


def answer(name: str, *processes: list[dict]) -> tuple:
    return judge.QUESTIONS[name][1](of_reports(*processes), None)


def the_end(**facts) -> dict:
    return {"what": "end", "size": 2, "gpus": [], "all_gpus": 0, "cuda": None, **facts}


def updates(
    own: list, applied: list, weights=None, counts=None, size=32, loss=1.0
) -> list[dict]:
    """What a worker reports of its updates, from the gradients of each.

    counts: how much its losses count together, of which there are `size`.
    """
    totals = [] if counts is None else [[counts, size]]
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
        ({}, {}, "can't be seen"),
    ],
)
def test_who_shares_a_gpu_is_told(first, second, verdict):
    ends = [the_end(**first)], [the_end(**second)]
    assert answer("devices", *ends)[0] == verdict


SUMMED, DIVIDED = 1.0, 0.5  # how much a batch's losses count on each of two workers


@pytest.mark.parametrize(
    ("own_step", "count", "losses", "verdict"),
    [
        (False, SUMMED, (1.0, 1.0), "right"),  # Keras divides its own loss
        (True, DIVIDED, (0.5, 1.0), "right"),
        (True, DIVIDED, (0.9, 1.0), "right"),  # other samples, or other weights
        (True, SUMMED, (1.0, 1.0), "wrong"),
        (True, SUMMED, (0.8, 1.0), "wrong"),
        (True, SUMMED, (0.5, 1.0), "can't be seen"),  # divided before it is summed up
        (True, SUMMED, (float("nan"), 1.0), "can't be seen"),
        (True, 0.7, (0.7, 1.0), "can't be seen"),
        (True, None, (1.0, 1.0), "can't be seen"),
    ],
)
def test_a_strategy_s_sum_is_of_a_loss_that_somebody_divides(
    own_step, count, losses, verdict
):
    """losses: on each of two workers, and on one that is alone."""

    def trains(own: list[float], counts: float | None, loss: float) -> list[dict]:
        fit = {"what": "fit", "own_step": own_step, "where": None}
        return [fit, *updates([own], [[1.0, 1.0]], counts=counts, loss=loss)]

    many = of_reports(
        trains([1.0, 0.0], count, losses[0]),
        trains([0.0, 1.0], count, losses[0]),
        kind=audit.TASKS,
    )
    one = of_reports(trains([1.0, 1.0], 1.0, losses[1]), kind=audit.TASKS)
    assert judge.gradients(many, one)[0] == verdict


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
    one = of_reports(updates(mean, mean, counts=1.0, size=32, loss=1.0))
    assert judge.gradients(of_reports(*workers), one)[0] == verdict


@pytest.mark.parametrize("applied", [[0.25, 0.25], [1.0, 1.0]])
@pytest.mark.parametrize(("alone", "verdict"), [(1.0, "wrong"), (0.5, "can't be seen")])
def test_a_factor_that_one_worker_has_too_is_not_of_workers(applied, alone, verdict):
    """alone: how much of its gradients one worker applies."""
    options = {"counts": 1.0}
    workers = [updates([own], [applied], **options) for own in ([1.0, 0], [0, 1.0])]
    one = of_reports(updates([[1.0, 1.0]], [[alone, alone]], **options))
    assert judge.gradients(of_reports(*workers), one)[0] == verdict


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
        # A fixed number of steps, each of a part.
        ([[A[:8], B[:8]], [A[8:], B[8:]]], [A[:8], A[8:]], "can't be seen", "can't"),
        ([[A[:8], A[8:]], [A[8:], A[:8]]], [A[:4], A[4:8]], "can't be seen", "can't"),
        ([[A[:2], A[4:6]], [B[:2], B[4:6]]], [A[:8], A[8:]], "can't be seen", "can't"),
        # The same, of which all workers take the same ones.
        ([[A[:8], A[8:]], [A[:8], A[8:]]], [A[:8], A[8:]], "can't be seen", "wrong"),
        # Data of its own: dealt out before; drawn by each, once for all or each time.
        ([[A, A], [B, B]], [A, A], "can't be seen", "can't"),
        ([[A, A], [B, B]], [range(32, 48)] * 2, "can't be seen", "can't"),
        (
            [[A, B], [range(32, 48), range(48, 64)]],
            [range(64, 80), range(80, 96)],
            "can't be seen",
            "can't",
        ),
    ],
)
def test_one_worker_s_epoch_is_no_measure_of_what_is_no_pass(
    workers, alone, everything, one_pass
):
    many, one = of_reports(*map(draws, workers)), of_reports(draws(alone))
    assert judge.everything(many, one)[0] == everything
    assert judge.one_pass(many, one)[0].startswith(one_pass)


@pytest.mark.parametrize(
    ("worker", "alone", "verdict"),
    [
        ([A, A], [A, A], "can't be seen"),
        ([A, A], [A, A[::-1]], "wrong"),  # shuffled on one alone
        ([A, A[::-1]], [A, A[::-1]], "right"),
        # A cycle in which epochs slide: of 16 samples, 15 to an epoch.
        ([A, A], [A[:15], [15, *A[:14]]], "can't be seen"),
        ([A[:15], [15, *A[:14]]], [A[:15], [15, *A[:14]]], "can't be seen"),
        ([A[:15], [15, *A[:14]]], [A, A[::-1]], "wrong"),
        ([A[:15], [*A[8:], *A[:7]]], [A, A[::-1]], "right"),
    ],
)
def test_an_order_is_the_same_wherever_an_epoch_begins(worker, alone, verdict):
    many = of_reports(draws(worker), draws(worker))
    assert judge.order(many, of_reports(draws(alone)))[0] == verdict


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
        many = of_reports(both, kind=kind)
    else:
        reports = [[event | common | {"replica": 0} for event in row] for row in rows]
        many = of_reports(*reports, kind=kind)
    assert judge.rate(many, None)[0].startswith(verdict)


def fails(error: str, where: str) -> judge.Watched:
    failed = {"what": "failed", "error": error, "where": where}
    run = of_reports([*updates([[1.0]], [[1.0]]), failed])
    run.outcome = judge.FAILED
    return run


@pytest.mark.parametrize(
    ("alone", "verdict"),
    [
        (fails("KeyError: 'val_loss'", "p.py:9"), "can't be seen"),
        (fails("KeyError: 'other'", "p.py:9"), "can't be seen"),
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
        ({"seed": 1}, {"seed": 1}, "can't be seen"),
        ({"numpy": "a", "python": "b"}, {"numpy": "c", "python": "d"}, "right"),
        ({"numpy": "a", "python": "b"}, {"numpy": "a", "python": "d"}, "can't be seen"),
        ({"numpy": "a", "python": "b"}, {"numpy": "c", "python": "b"}, "can't be seen"),
    ],
)
def test_a_generator_that_all_have_seeded_is_told(first, second, verdict):
    assert answer("random", [the_end(**first)], [the_end(**second)])[0] == verdict


@pytest.mark.parametrize(
    ("second", "asks", "verdict"),
    [(0.5, False, "right"), (0.6, False, "wrong"), (0.6, True, "right")],
)
def test_who_asks_the_others_may_read_what_is_its_own(second, asks, verdict):
    def reads(value: float) -> dict:
        return {
            "what": "metrics",
            "epoch": 0,
            "callback": "Stop",
            "made": None,
            "read": {"loss": value},
            "decides": True,
            "asks": asks,
        }

    assert answer("metrics", [reads(0.5)], [reads(second)])[0] == verdict


@pytest.mark.parametrize(
    ("hows", "verdict"),
    [
        (("written", None), "right"),
        (("written", "written"), "wrong"),
        (("appended", "appended"), "can't be seen"),
    ],
)
def test_who_writes_what_others_write_is_told(hows, verdict):
    reports = [
        [{"what": "file", "path": "/a/b", "how": how, "by": "p.py:1"}] if how else []
        for how in hows
    ]
    assert answer("files", *reports)[0] == verdict


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
    assert isinstance(result.exception, course.CourseError)
