"""Training on several devices ends where training on one does; and if not, it shows."""

import dataclasses
import functools

import kept_evidence
import numpy as np
import pytest
from rich.console import Console

from distcheck import errors
from utils.base import course
from utils.measure import equality
from utils.measure.equality import Case

pytestmark = pytest.mark.slow

FAULTS = (
    Case("custom_loop", fault="undivided"),
    Case("horovod", fault="apart"),
    Case("ring", fault="apart"),
)


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    """A course of its own, so that the runs leave nothing in this one."""
    folder = tmp_path_factory.mktemp("course")
    for name in ("notebooks", "exercises"):
        (folder / name).symlink_to(course.PACKAGE_ROOT / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder


def rows_of(cases, same: bool | None = None):
    """Case -> its row, from training now or before (see kept_evidence.py). same: what
    all should be."""
    table = kept_evidence.value(
        functools.partial(equality.compare, cases),
        cases,
        modules=(
            "utils.measure.equality",
            "utils.measure.programs.ten_steps",
            *("utils.running.worker", "distcheck.tasks"),
        ),
        others=(course.PACKAGE_ROOT / "exercises" / "ring_allreduce.py",),
        worth=lambda table: same is None or {row.same for row in table.rows} == {same},
    )
    return {row.case: row for row in table.rows}


@pytest.fixture(scope="module")
def small():
    return rows_of(equality.SMALL, same=True)


@pytest.fixture(scope="module")
def faulty():
    return rows_of(FAULTS, same=False)


@pytest.fixture(scope="module")
def batch_norm():
    """Some of the cases; `python -m utils.measure.equality` runs them all."""
    chosen = [
        case
        for case in equality.BATCH_NORM
        if case.batch_norm == "own" or case.precision == "float64"
    ]
    return {(c.way, c.batch_norm): row for c, row in rows_of(chosen).items()}


@pytest.mark.parametrize(
    "case", equality.SMALL, ids=lambda case: f"{case.way}-{case.workers}"
)
def test_the_weights_are_those_of_a_single_device(case, small):
    assert small[case].weights <= equality.TOLERANCE
    assert small[case].same


@pytest.mark.parametrize("case", FAULTS, ids=lambda case: f"{case.way}-{case.fault}")
def test_a_fault_is_far_above_the_tolerance(case, faulty):
    assert faulty[case].weights > 50 * equality.TOLERANCE
    assert not faulty[case].same


@pytest.mark.parametrize("way", ["horovod", "mirrored"])
def test_batch_norm_over_a_part_of_the_batch_leads_elsewhere(way, batch_norm):
    row = batch_norm[way, "own"]
    assert row.weights > 50 * equality.TOLERANCE
    assert row.moving > 50 * equality.TOLERANCE
    assert not row.same


def test_horovods_workers_keep_moving_averages_of_their_own(batch_norm):
    assert batch_norm["horovod", "own"].apart > 50 * equality.TOLERANCE


def test_synchronised_batch_norm_is_equal_but_for_rounding(batch_norm):
    row = batch_norm["mirrored", "synchronised"]
    assert row.weights < 1e-10
    assert row.moving < 1e-10


# ------------------------------------------------------------ without training


def arrays(start=0.0, end=1.0):
    return {
        "start": np.full(3, start, np.float32),
        "end": np.full(3, end, np.float32),
        "moving": np.empty(0, np.float32),
    }


def test_what_did_not_start_equal_or_did_not_move_is_not_compared():
    case = Case("mirrored")
    with pytest.raises(errors.UserError, match="did not start from"):
        equality._row(case, [arrays(start=1e-9)], arrays())
    for nowhere in (0.0, 1e-4, np.nan):
        with pytest.raises(errors.UserError, match="moved no weight"):
            equality._row(case, [arrays(end=nowhere)], arrays(end=nowhere))


@pytest.mark.parametrize(
    ("end", "same"), [(1.0, True), (1 + 5e-6, True), (1.0001, False), (np.nan, False)]
)
def test_every_worker_counts(end, same):
    row = equality._row(Case("ring"), [arrays(), arrays(end=end)], arrays())
    assert row.same is same
    assert equality.Comparison([row]).all_same is same


def test_the_table_shows_itself_everywhere():
    row = equality._row(Case("ring"), [arrays(end=1.0001)], arrays())
    table = equality.Comparison(
        [row, dataclasses.replace(row, weights=0.0, moving=0.5)]
    )
    page = table._repr_html_()
    assert page.count("<tr>") == 3
    console = Console(width=200)
    with console.capture() as captured:
        console.print(table)
    for text in (page, captured.get(), repr(table)):
        for word in ("our own ring", "1.0e-04", "no", "yes", "none", "small: 1.0e+00"):
            assert word in text
