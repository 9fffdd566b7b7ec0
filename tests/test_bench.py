"""The benchmark: what it makes of numbers, that it measures for real, that it fails.

How fast anything is decides no test.
"""

import csv
import re
import subprocess
import sys

import pytest

from distcheck import errors, machine, mpi, supervise
from utils import figures
from utils.measure import bench, cost_model, records, table
from utils.measure.bench import Plan
from utils.measure.programs import pipelines, products
from utils.measure.table import Row, Section
from utils.running import launch
from utils.running.result import Run, RunFailed
from utils.training import data, samples

TINY = Plan(
    rounds=1,
    workers=2,
    steps=1,
    batch=4,
    seconds=0.05,
    data="sample",
    train_images=120,
    epochs=1,
)


def example() -> Section:
    rows = [
        Row("limit", [100.0, 110.0, 90.0], "images/s"),
        Row("ours", [95.0, 99.0, 90.0], "images/s"),
    ]
    section = Section("launch", rows, ["A note."])
    section.compare("limit")
    return section


def test_ratios_are_taken_within_a_round():
    limit, course_row = example().rows
    assert limit.ratios == []
    assert course_row.ratios == pytest.approx([0.95, 0.9, 1.0])
    assert course_row.base == "limit"


def test_the_table_has_median_spread_and_ratio():
    text = example().markdown()
    last = next(line for line in text.splitlines() if "ours" in line)
    cells = [cell.strip() for cell in last.strip("|").split("|")]
    assert cells == [
        "ours",
        "95.0 images/s",
        "90.0 to 99.0",
        "0.95 (0.90 to 1.00) of limit",
        "3",
    ]
    assert text.endswith("A note.")


def test_a_bound_is_called_one():
    row = Row("plain", [600.0], "s", "ours", [6.0], at_least=True)
    section = Section("accuracy", [Row("ours", [100.0], "s"), row])
    assert "more than 600 s" in section.markdown()
    assert "more than 6.00 of ours" in section.markdown()


@pytest.mark.parametrize(
    ("values", "warned"), [([100, 101, 99], 0), ([100, 160, 99], 1)]
)
def test_rounds_that_disagree_are_warned_of(values, warned):
    section = Section("start", [Row("import", values, "s")])
    assert len(section.warnings()) == warned
    assert all("'import'" in text for text in section.warnings())


def test_files_have_every_round(tmp_path):
    section = example()
    bench.write([section], tmp_path)
    assert machine.summary() in (tmp_path / "bench.md").read_text()
    lines = list(csv.DictReader((tmp_path / "bench.csv").open()))
    assert [float(line["value"]) for line in lines] == [
        value for row in section.rows for value in row.values
    ]
    assert [line["ratio_to"] for line in lines] == [""] * 3 + ["limit"] * 3


def test_the_figure_has_a_bar_for_each_row_that_is_compared():
    section = example()
    (axis,) = figures.speed.of_section(section, "Recorded today.").axes
    assert [label.get_text() for label in axis.get_yticklabels()] == ["ours"]
    assert [bar.get_width() for bar in axis.patches] == pytest.approx([0.95])
    assert axis.get_xlabel() == "ratio to: limit (median, and each round)"
    assert axis.texts[0].get_text() == "0.95 (0.90 to 1.00)"


def test_a_record_comes_back_as_it_was(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "FOLDER", tmp_path)
    kept = example()
    kept.rows.append(Row("against ours", [190.0, 99.0, 45.0], "images/s"))
    kept.compare("ours", "against ours")
    table.keep(kept, "course bench launch")
    section, record = table.recorded("launch")
    assert section.rows == kept.rows
    assert section.notes[0] == "A note."
    assert record.machine == machine.summary()
    assert "`course bench launch`" in record.origin


def test_pages_have_the_recorded_tables_and_no_others():
    for path, update in bench.PAGES.items():
        assert update(path.read_text()) == path.read_text(), path.name
    sentence = bench.README.read_text().split(bench.SENTENCE)[1].split(bench.END)[0]
    assert re.search(r"\d\.\d\d times as many as one; ", sentence)


def test_records_are_written_between_the_marks(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "FOLDER", tmp_path)
    table.keep(example(), "course bench launch")
    old = f"before\n{bench.BEGIN}\nstale\n{bench.END}\nafter\n"
    new = bench.with_records(old)
    assert new.startswith("before\n")
    assert new.endswith("\nafter\n")
    assert "0.95 (0.90 to 1.00) of limit" in new
    assert "`course bench launch`" in new
    assert "stale" not in new
    assert bench.with_records(new) == new
    with pytest.raises(errors.UserError, match=r"BENCHMARKS\.md lacks the line"):
        bench.with_records("no marks")


def test_the_sections_stand_in_one_order_everywhere():
    assert list(bench.SECTIONS) == list(table.TITLES)


def test_unknown_sections_and_rounds_are_refused(tmp_path):
    with pytest.raises(errors.UserError, match=r"no section speed: choose from lau"):
        bench.bench(["speed"], out=tmp_path / "out")
    with pytest.raises(errors.UserError, match="rounds is 0"):
        bench.bench(["launch"], rounds=0, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.filterwarnings("ignore:Please import")  # Keras, to SciPy
@pytest.mark.parametrize("name", pipelines.PIPELINES)
def test_all_pipelines_make_the_same_kind_of_batches(name):
    dataset = data.dataset_of(
        "garments", data.part_of("garments", samples.fashion_mnist(), 600, 6)
    )
    images = dataset.x_train
    x, y = next(iter(pipelines.PIPELINES[name](dataset, 600)))
    assert (x.shape, x.dtype) == ((600, 28, 28, 1), "float32")
    assert (y.shape, y.dtype) == ((600, 10), "float32")
    black, white = ((edge - dataset.mean) / dataset.std for edge in (0, 255))
    pixels = x.numpy() if hasattr(x, "numpy") else x
    assert pixels.min() == pytest.approx(black, abs=1e-4)
    assert pixels.max() <= white + 1e-4
    still = (images / 1.0 - dataset.mean) / dataset.std
    moved = [not (abs(still - image[..., 0]).sum((1, 2)) < 1).any() for image in pixels]
    assert sum(moved) > 300  # most were flipped or shifted


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_it_measures_for_real(tmp_path):
    """Two workers, talking and not, in the same processes; the pipelines."""
    cases = ("alone:4x1", "together:4x1")
    options = ("--with", "horovod", "--cases", *cases, "--steps", 1, *TINY.dataset)
    reports = bench._timed(*options, workers=2)
    for case in cases:
        (speed,) = bench._speed(reports, case, 4)
        assert speed == sum(4 / report["step_seconds"][case][0] for report in reports)

    messages = []
    sections = ["pipeline", "profile"]
    pipes, parts = bench.bench(
        sections,
        out=tmp_path,
        tell=messages.append,
        plan=TINY,
        draw=figures.speed.of_section,
    )
    assert [len(row.values) for row in pipes.rows] == [1, 1, 1]
    assert {path.name for path in tmp_path.iterdir()} == {
        *("bench.md", "bench.csv", "pipeline.png", "profile.png"),
    }
    *parts, step = [row.values[0] for row in parts.rows]
    assert min(parts) > 0  # every part was found, and together they fit into a step
    assert sum(parts) == pytest.approx(step)
    assert messages


@pytest.mark.slow
def test_what_cannot_be_measured_is_an_error(tmp_path):
    def refuses(program, workers):
        return [*program, "--cases", "sideways:4x1"]

    with pytest.raises(errors.UserError, match=r"nothing was measured(.|\n)*sideways"):
        bench._timed("--data", "sample", workers=1, through=refuses)


def test_a_command_that_ends_before_it_has_said_something_is_an_error():
    options = {"stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", "print('one')"], **options) as process:
        bench._wait_for(process, "one")
        with pytest.raises(errors.UserError, match="without 'two'"):
            bench._wait_for(process, "two")


def test_operations_are_added_up_by_their_type(tmp_path):
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    from utils.measure.programs import timed_steps

    space = xplane_pb2.XSpace()
    plane = space.planes.add(name="/host:CPU")
    events = (
        ("model/conv/Conv2D:_MklNativeConv2D", 3e9),
        ("model/conv_1/Conv2D:_MklNativeConv2D", 1e9),
        ("model/relu/Relu:Relu", 2e9),
        ("Iterator::Root::Prefetch", 7e9),
        ("RunStep", 9e9),
    )
    line = plane.lines.add()
    for number, (name, picoseconds) in enumerate(events):
        plane.event_metadata[number].name = name
        when = {"offset_ps": int(number * 1e9), "duration_ps": int(picoseconds)}
        line.events.add(metadata_id=number, **when)
    (tmp_path / "host.xplane.pb").write_bytes(space.SerializeToString())
    totals = timed_steps.seconds_by_type(tmp_path, steps=2)
    assert totals == pytest.approx({"Conv2D": 0.002, "Relu": 0.001})


def test_a_program_that_never_gets_there_gives_no_time():
    import pandas

    history = pandas.DataFrame({"val_accuracy": [0.86, 0.84]})
    with pytest.raises(errors.UserError, match=r"not get above 0\.85 .* 2 epochs"):
        bench._reached(history, "it")
    bench._reached(pandas.DataFrame({"val_accuracy": [0.8, 0.86, 0.87]}), "it")


@pytest.fixture
def race(tmp_path, monkeypatch):
    """Starts nothing: the options of both starts; the plain recipe ends with a status,
    or well with 0."""

    def begin(status):
        starts = []

        def run(script, *words, **options):
            starts.append((words, options))
            plain = "--plain" in words
            result = Run(
                script.name, 2, "mpirun", tmp_path, seconds=40 if plain else 10
            )
            (tmp_path / "history.csv").write_text("val_accuracy\n0.9\n0.9\n")
            result.status = status if plain else 0
            if result.status:
                raise RunFailed("It failed.", result)
            return result

        monkeypatch.setattr(launch, "run", run)
        return bench.accuracy(TINY, lambda text: None), starts

    return begin


@pytest.mark.parametrize(("status", "ended"), [(0, False), (supervise.TIMED_OUT, True)])
def test_both_recipes_are_started_alike(status, ended, race):
    section, ((words, options), (plain_words, plain_options)) = race(status)
    assert section.rows[1].at_least == ended
    assert section.rows[1].values == [40]
    assert bool(section.notes) == ended
    assert plain_words == ("--plain", *words)
    del options["epochs"], plain_options["time_limit"]
    assert plain_options == options


def test_a_recipe_that_fails_has_no_time(race):
    with pytest.raises(RunFailed, match="It failed"):
        race(1)


def test_plain_ways_to_start_are_plain():
    program = ["python", "x.py"]
    assert bench._own_mpirun(program, 3) == ["mpirun", "-np", "3", *program]
    line = mpi.mpirun_line(2, program, 1, {"HOROVOD_CYCLE_TIME": "5"})
    assert " ".join(line).endswith("-x HOROVOD_CYCLE_TIME=5 python x.py")


# ------------------------------------------------------------ GPUs, pretended


@pytest.fixture
def started(monkeypatch):
    """Starts nothing; the options of each start, and speeds that are made up."""
    calls = []

    def timed(*options, workers, environment=None, **_):
        calls.append((options, workers, environment))
        case = options[options.index("--cases") + 1]
        policy = options[options.index("--precision") + 1]
        seconds = {"mixed_float16": 0.1}.get(policy, 0.2 if environment == {} else 0.4)
        return [{"step_seconds": {case: [seconds]}}] * workers

    monkeypatch.setattr(bench, "_timed", timed)
    monkeypatch.setattr(bench, "_peak", lambda policy, environment: 100.0)
    return calls


@pytest.mark.parametrize(
    ("gpus", "more"), [(1, []), (2, [2]), (3, [2, 3]), (8, [2, 4, 8])]
)
def test_gpus_are_measured_by_precision_and_by_number(gpus, more, started, pretend):
    pretend(gpus=gpus)
    section = bench.gpu(Plan(rounds=1), lambda text: None)
    medians = {row.name: row.values[0] for row in section.rows}
    single = {"float32": 320.0, "TF32": 640.0, "mixed precision": 1280.0}
    scaled = {f"{n} GPUs, mixed precision": 1280.0 * n for n in more}
    assert medians == pytest.approx(single | scaled)
    ratios = {row.name: (row.ratios, row.base) for row in section.rows}
    assert ratios["TF32"] == ([2.0], "float32")
    for count, name in zip(more, scaled, strict=True):
        assert ratios[name] == ([count], "mixed precision")
    assert [workers for _, workers, _ in started] == [1, 1, 1, *more]
    assert started[0][2] == {"NVIDIA_TF32_OVERRIDE": "0"}
    operations = 6 * cost_model.wide_resnet(10).macs
    share = f"{320 * operations / 1e14:.0%} of the 100.0"
    assert share in section.notes[0]


def test_without_a_gpu_there_is_nothing_to_measure(pretend, tmp_path):
    pretend(gpus=0)
    with pytest.raises(errors.UserError, match="there is no GPU here"):
        bench.bench(["gpu"], out=tmp_path)


@pytest.mark.parametrize(
    ("gpus", "names", "seen"), [(0, [], 0), (1, ["gpu"], 0), (4, ["gpu"], 4)]
)
def test_other_sections_have_a_device_for_each_worker(
    gpus, names, seen, monkeypatch, pretend, tmp_path
):
    pretend(gpus=gpus)
    visible = {}

    def section(name):
        def measure(plan, tell):
            visible[name] = machine.gpus()
            return Section(name, [Row("row", [1.0], "s")])

        return measure

    sections = {name: section(name) for name in ("launch", "gpu")}
    monkeypatch.setattr(bench, "SECTIONS", sections)
    bench.bench(out=tmp_path, plan=Plan(rounds=1, workers=2))
    assert visible == {"launch": seen} | {name: gpus for name in names}
    assert machine.gpus() == gpus


@pytest.mark.slow
def test_products_of_matrices_are_timed():
    (speed,) = products.products("float32", size=64, rounds=1, repeats=2)
    assert 0 < speed < 1_000
