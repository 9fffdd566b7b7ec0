"""What notebook 27 reads off, calculates, draws and quotes."""

import itertools
import types

import pytest

from distcheck import lab
from distcheck.errors import UserError
from distcheck.judges.runs import Rank, Run
from distcheck.recorder.recorder import schema_of
from distcheck.scenarios import SCENARIOS
from utils.checking import exercises
from utils.checking.judges import wires as judged
from utils.checking.recorders import wires as observed
from utils.cluster import recorded
from utils.figures import wires as figures
from utils.measure import cost_model, wires

PRINTED = """\
[0] # 2 workers, 20 rounds of each size
[0] #      bytes      count     type         us     algbw     busbw
[1]           64         16  float32       99.0  0.000001  0.000001
[0]           64         16  float32       50.0   0.00128   0.00128
[0]      4000000    1000000  float32     4000.0         1         1
"""


def test_a_table_is_what_rank_0_printed():
    rows = wires.table(PRINTED)
    assert [*rows.columns] == [*wires.COLUMNS]
    assert rows.us.tolist() == [50, 4000]
    assert wires.read_off(rows) == pytest.approx((50e-6, 1e9))


def test_what_has_no_row_is_refused():
    with pytest.raises(UserError, match="there is no row with bytes"):
        wires.table("[0] # 2 workers\nTraceback")


def test_a_ring_sends_the_fewest_bytes_in_the_most_messages():
    counts = {law: of(64) for law, of in wires.LAWS.items()}
    assert max(counts, key=lambda law: counts[law][0]) == "ring"
    assert min(counts, key=lambda law: counts[law][1]) == "ring"
    # As the cost model of notebook 15 has it.
    model = cost_model.CostModel(0, 0, 0, message=2e-5, byte=1 / 1.25e9)
    network = cost_model.Network("one", 1_000_000)
    ring = wires.seconds("ring", 64, network.bytes, 2e-5, 1.25e9)
    assert ring == pytest.approx(model.communicate(64, network))


@pytest.mark.parametrize("law", wires.LAWS)
def test_with_two_workers_each_law_is_counted_by_hand(law):
    messages, share = wires.LAWS[law](2)
    by_hand = {"ring": (2, 1), "tree": (2, 2), "recursive doubling": (1, 1)}
    assert (messages, share) == by_hand[law]


def family(log, tmp_path):
    path = tmp_path / "log.txt"
    path.write_text(log)
    return wires.results(types.SimpleNamespace(log=path))


def test_what_a_collective_gave_is_found_in_a_log(tmp_path):
    log = "[1] alltoall: [10, 11] -> [1, 11]\n[0] alltoall: [0, 1] -> [0, 10]\nnoise\n"
    assert family(log, tmp_path) == {
        "alltoall": [([0, 1], [0, 10]), ([10, 11], [1, 11])]
    }


def test_a_sum_is_in_the_color_of_nobody():
    results = {"all-reduce": [([0, 1, 2], [30, 33, 36])] * 3}
    (axis,) = figures.collectives(results).axes
    edges = {text.get_text(): text.get_bbox_patch() for text in axis.texts}
    assert edges["30"].get_facecolor() != edges["0"].get_facecolor()


def test_a_figure_has_the_points_and_a_line():
    rows = wires.table(PRINTED)
    (axis,) = figures.times({"here": rows}, {"here": wires.read_off(rows)}).axes
    points, line = axis.lines
    assert points.get_ydata().tolist() == [0.05, 4]  # milliseconds
    assert line.get_ydata()[-1] == pytest.approx(4.05)
    ticks = [label.get_text() for label in axis.get_yticklabels()]
    assert ticks == ["0.01", "0.1", "1", "10"]
    assert axis.get_ylim() == pytest.approx((0.01, 10))


def test_what_was_recorded_shows_what_the_notebook_says():
    seen = recorded.read("wires")
    assert len(wires.table(seen["slow"])) > 1
    with pytest.raises(UserError):  # no row: it hung
        wires.table(seen["hung"])
    assert len(wires.table(seen["cured"])) == 1
    sent = {law: facts[0] for law, facts in seen["algorithms"].items()}
    # 4 rounds of 1 MiB: 2 and 1.5 times that, and some headers.
    for law, share in {"recursive doubling": 2, "ring": 1.5}.items():
        assert share < sent[law] / 4 / 2**20 < 1.1 * share


def test_what_is_quoted_says_where_it_is_from():
    quoted = recorded.read("nccl")
    for name in ("origin", "topology_origin"):
        assert "https://github.com/NVIDIA/nccl/issues/" in quoted[name]
        assert "Not run for this course" in quoted[name]
    head, *rows = quoted["topology"]
    assert all(len(row) == len(head) + 1 for row in rows)


def test_each_way_to_measure_gives_a_number_of_its_own():
    """On the made-up clock; else a judge could not tell them apart."""
    right, own, apart = judged.RIGHT, judged.OWN, judged.APART
    all_rounds = observed.WARM_UP + observed.ROUNDS
    mean = (right + own) / 2
    too_many = [n * observed.ROUNDS / all_rounds for n in (right, own, apart)]
    undivided = [n * observed.ROUNDS for n in (right, own, apart)]
    warm_up = observed.FIRST + (observed.WARM_UP - 1) * observed.EARLY
    counted = [(warm_up + own * observed.ROUNDS) / n for n in (all_rounds, 4)]
    numbers = sorted([right, own, apart, mean, *too_many, *undivided, *counted])
    gaps = [b / a for a, b in itertools.pairwise(numbers)]
    assert min(gaps) > 1 + 2 * judged.RTOL_PRINTED


@pytest.mark.parametrize("us", ["0.0", "-1.0", "nan", "inf", "1e400", "many"])
@pytest.mark.parametrize("algbw", ["0", "nan", "1e308"])
def test_no_row_that_a_program_prints_breaks_a_judge(us, algbw, tmp_path):
    rows = "".join(
        f"{count * 8:12} {count:10} float64 {us} {algbw} 1\n"
        for count in observed.COUNTS
    )
    runs = {}
    for name in (judged.TWO, judged.THREE):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "rank.0.out").write_text(rows)
        ranks = [
            Rank(folder, number, schema=schema_of(SCENARIOS[name]))
            for number in range(SCENARIOS[name].size)
        ]
        runs[name] = Run(folder, name, lab.ENDED, ranks)
    exercise = exercises.find("bandwidth")
    verdicts = [check.verdict(runs) for check in exercise.checks.values()]
    assert not any(verdict.ok for verdict in verdicts)
