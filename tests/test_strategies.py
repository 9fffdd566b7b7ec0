"""What notebook 14 says about the strategies is what happens under each."""

from unittest import mock

import kept_evidence
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text
from rich.console import Console

from distcheck import errors
from utils.base import course, sources
from utils.figures import diagrams
from utils.lessons import markup, notebook_rules
from utils.measure import strategies

KINDS = {kind.name: kind for kind in strategies.KINDS}
CELLS = [(name, way) for name in KINDS for way in strategies.WAYS if name != "tpu"]


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    """A course of its own, so that the runs leave nothing in this one."""
    folder = tmp_path_factory.mktemp("course")
    for name in ("notebooks", "exercises", "solutions"):
        (folder / name).symlink_to(course.PACKAGE_ROOT / name)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        yield folder


@pytest.fixture(scope="module")
def outcomes():
    """What happened, now or before (see kept_evidence.py)."""
    program = course.PACKAGE_ROOT / "solutions" / "any_strategy.py"
    return kept_evidence.value(
        strategies.try_out,
        modules=(
            *("utils.measure.strategies", "utils.running.worker", "distcheck.tasks"),
            *sources.imported_by(program.read_text()),
        ),
        others=(program,),
        worth=lambda outcomes: not strategies.surprises(outcomes),
    )


@pytest.mark.slow
@pytest.mark.parametrize(("name", "way"), CELLS)
def test_a_cell_of_the_table_says_what_happens(name, way, outcomes):
    kind = KINDS[name]
    assert len(outcomes[name]) == kind.processes
    for happened in outcomes[name]:
        assert happened["start"] is None
        if kind.verdict(way) == "works":
            assert happened[way] is None
        else:
            assert kind.refuses[way] in happened[way]


@pytest.mark.slow
def test_the_replicas_are_as_many_as_asked_for(outcomes):
    replicas = {
        name: processes[0].get("replicas") for name, processes in outcomes.items()
    }
    assert replicas == {
        "default": 1,
        "one_device": 1,
        "mirrored": 2,
        "central_storage": 2,
        "multi_worker": 2,
        "parameter_server": 1,  # its two workers are not in step with each other
        "tpu": None,
    }


@pytest.mark.slow
def test_without_a_tpu_the_resolver_says_so(outcomes):
    (happened,) = outcomes["tpu"]
    assert "NotFoundError" in happened["start"]
    assert "TPU" in happened["start"]
    assert all(KINDS["tpu"].verdict(way) == "not run" for way in strategies.WAYS)


@pytest.mark.slow
def test_all_is_as_expected_and_the_tables_agree(outcomes):
    assert strategies.surprises(outcomes) == []
    assert strategies.tried(outcomes).rows == strategies.table().rows


# ------------------------------------------------------------ without TensorFlow


def happened(**other):
    refused = f"AttributeError: it {strategies.ONLY_SERVERS}"
    usual = dict.fromkeys(("start", "fit", "loop", "save"))
    return {**usual, "coordinator": refused, "replicas": 1, **other}


@pytest.mark.parametrize(
    ("other", "surprise"),
    [
        ({}, None),
        ({"fit": "ValueError: no"}, "fit, process 0: ValueError: no; expected: works"),
        ({"coordinator": None}, "coordinator, process 0: works; expected: has no"),
        ({"coordinator": "ValueError: else"}, "ValueError: else; expected: has no"),
        ({"start": "NotFoundError: none"}, "start, process 0: NotFoundError"),
    ],
)
def test_a_surprise_is_noticed(other, surprise):
    sentences = strategies.surprises({"mirrored": [happened(**other)]})
    assert len(sentences) == (surprise is not None)
    assert surprise is None or surprise in sentences[0]


def test_one_process_that_fails_makes_a_no():
    both = {"multi_worker": [happened(), happened(save="OSError: full")]}
    assert strategies.tried(both).rows == [
        ("MultiWorkerMirroredStrategy", "works", "works", "no", "no")
    ]


def test_an_unknown_strategy_is_refused():
    with pytest.raises(errors.UserError, match="no strategy 'mirrord': choose from"):
        strategies.try_out("mirrord")


def test_every_strategy_is_tried():
    assert {name for group in strategies.TOGETHER for name in group} == set(KINDS)


def test_the_library_code_asks_no_questions():
    text = (course.PACKAGE_ROOT / "solutions" / "any_strategy.py").read_text()
    library, _, rest = text.partition("- the strategies")
    assert rest
    code = strategies.code_lines(library.split("import argparse")[1])
    assert "get_strategy()" in " ".join(code)
    assert not [line for line in code if line.startswith(("if ", "elif "))]


SOURCE = """\
a = 1

# Step 1: Change a line.
# was: b = 1
b = 2

# Step 2: Put two in, around a block.
# was: c = 3
with a:
    c = 3

d = 4  # not changed
"""


def test_lines_are_counted_without_comments_and_indentation(tmp_path):
    source = tmp_path / "x_solution.py"
    source.write_text(SOURCE)
    assert strategies.lines_changed(source) == (4, 1, 2)


def test_the_programs_that_are_named_are_counted():
    (source,) = [p for p in markup.sources() if p.stem == "mirrored_solution"]
    table = strategies.changes("servers", "mirrored")
    assert [row[0] for row in table.rows] == ["servers", "mirrored"]
    assert table.rows[1][1:] == tuple(map(str, strategies.lines_changed(source)))
    with pytest.raises(errors.UserError, match=r"no serverz\.py with steps"):
        strategies.changes("serverz")


@pytest.mark.parametrize(
    "rendered",
    [strategies.table(), strategies.places(), strategies.changes("mirrored")],
    ids=["ways", "places", "changes"],
)
def test_tables_show_themselves_everywhere(rendered):
    console = Console(width=200)
    with console.capture() as captured:
        console.print(rendered)
    for row in rendered.rows:
        assert row[0] in captured.get()
        assert row[0] in rendered._repr_html_()
        assert row[0] in repr(rendered)


def test_a_choice_is_judged_and_only_then_explained():
    right = [choices[0] for choices, _ in strategies.SITUATIONS.values()]
    table = strategies.judged(right)
    assert [row[0] for row in table.rows] == list(strategies.SITUATIONS)
    assert all(row[2].startswith("right: ") for row in table.rows)
    wrong = strategies.judged([*right[1:], ""])
    assert not any("right: " in row[2] for row in wrong.rows)
    assert wrong.rows[-1][1:] == ("", "not chosen yet")
    with pytest.raises(errors.UserError, match="there are 6 situations, not 1"):
        strategies.judged(["tpu"])


def test_the_chart_names_what_may_be_chosen_in_boxes_that_hold_it():
    chart = diagrams.decision_chart()
    canvas = FigureCanvasAgg(chart)
    canvas.draw()
    frames = [patch.get_window_extent() for patch in chart.axes[0].patches]
    for text in filter(Text.get_text, chart.axes[0].texts):
        box = text.get_window_extent(canvas.get_renderer())
        around = [frame for frame in frames if frame.overlaps(box)]
        assert all(f.x0 < box.x0 and box.x1 < f.x1 for f in around), text
    for title in ("MirroredStrategy", "TPUStrategy", "Horovod"):
        assert title in repr(chart)


@pytest.mark.parametrize("count", [1, 2, 8])
def test_one_gpu_is_split_however_many_there_are(count):
    path = course.PACKAGE_ROOT / "notebooks" / "14_choose_a_strategy.ipynb"
    cells = [cell.source for cell in notebook_rules.read(path).cells]
    (source,) = [text for text in cells if "SPLIT = " in text]
    names = {}
    exec(source, names)
    tensorflow = mock.MagicMock()
    config = tensorflow.config
    config.list_physical_devices.return_value = [f"GPU:{n}" for n in range(count)]
    with mock.patch.dict("sys.modules", tensorflow=tensorflow):
        exec(names["SPLIT"], {})
    config.set_visible_devices.assert_called_once_with("GPU:0", "GPU")
    config.LogicalDeviceConfiguration.assert_called_once_with(memory_limit=2048)
    halves = [config.LogicalDeviceConfiguration.return_value] * 2
    config.set_logical_device_configuration.assert_called_once_with("GPU:0", halves)
