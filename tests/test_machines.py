"""On machines with 2 to 64 cores and up to eight GPUs: what the doctor says, what a
lesson asks for, and what is started. They are pretended; nothing is trained here."""

import ast
import contextlib
import itertools
import re
import shlex
import subprocess
import sys
from unittest import mock

import nbformat
import pytest
from machines import PROBED, PROBED_GPU
from processes import captured, empty_course

from distcheck import errors, machine, mpi
from utils import figures
from utils.base import course, profiles
from utils.checking import doctor
from utils.checking.doctor import LIMITED, OK
from utils.cluster import namespaces
from utils.lessons import markup
from utils.measure import equality, scaling
from utils.running import launch, launchers
from utils.training import leaderboard

NOTEBOOKS = sorted((course.PACKAGE_ROOT / "notebooks").glob("*.ipynb"))
ALONE = "01"  # trains with one worker
# Hosts that are one machine would choose the same GPUs; MPI alone has none.
HIDE_GPUS = ("20", "21", "23", "24", "25", "26", "27")
CORES, GPUS = (2, 4, 8, 16, 64), (0, 1, 2, 8)
WORKERS = (1, 2, 3, 8, 16)


@pytest.fixture(params=itertools.product(CORES, GPUS), ids="{0[0]}c{0[1]}g".format)
def counts(request, pretend):
    """The cores and GPUs of the machine that is pretended, all of them in turn."""
    cores, gpus = request.param
    pretend(cores=cores, gpus=gpus)
    return cores, gpus


# ------------------------------------------------------------ how they are pretended


def test_a_pretended_machine_is_there_for_all_that_counts(pretend):
    pretend(cores=16, gpus=8, visible="2,3", memory=64e9)
    assert (machine.cores(), machine.installed(), machine.gpus()) == (16, 8, 2)
    assert machine.gpus({}) == 8
    said = machine.summary()  # stands beside numbers that are recorded
    assert said.startswith("16 cores of ")
    assert "60 GiB, 2 GPUs" in said
    assert said.endswith("of which cores=16 gpus=8 is pretended")


def test_a_process_that_is_started_pretends_likewise(pretend):
    pretend(cores=64, gpus=1)
    code = "from utils import settings; print(settings(alone=True))"
    done = captured([sys.executable, "-c", code])
    assert done.stdout == f"{profiles.settings(alone=True)}\n"
    assert "this machine is pretended: cores=64 gpus=1." in done.stderr


def test_the_workers_of_a_lesson_can_be_chosen(monkeypatch, capsys):
    monkeypatch.setenv("COURSE_PROFILE", "ci")
    assert (profiles.settings().workers, capsys.readouterr().err) == (2, "")
    monkeypatch.setenv(machine.PRETEND, "workers=8")
    assert profiles.settings().workers == 8
    assert capsys.readouterr().err.count("workers=8") == 1
    assert profiles.settings(alone=True).workers == 1


@pytest.mark.parametrize(
    "text", ["cores", "cores=0", "cores=many", "gpus=-1", "workers=1", "core=4", "8"]
)
def test_what_can_not_be_pretended_is_refused(text, monkeypatch):
    monkeypatch.setenv(machine.PRETEND, f"gpus=0 {text}")
    with pytest.raises(errors.UserError, match=f"DISTCHECK_PRETEND has '{text}'"):
        profiles.in_force()


# ------------------------------------------------------------ what the doctor says


@pytest.fixture
def probes(monkeypatch):
    """The doctor's probes find all well, whatever there is; and what was started."""
    commands = []

    def facts(command, environment, limit=None):
        commands.append((command, environment))
        if "--gpu" not in command:
            return PROBED
        workers = int(command[command.index("-np") + 1])
        total = workers * (workers + 1) / 2
        seen = {"gpus": machine.gpus(environment), "workers": workers, "sum": total}
        return PROBED_GPU | seen

    monkeypatch.setattr(doctor, "_facts_from", facts)
    monkeypatch.setattr(doctor, "_cgroup", lambda *_: None)
    monkeypatch.setattr(doctor, "_data_line", lambda: doctor.Line("data", "Data", ""))
    return commands


def test_the_doctor_reports_what_there_is(counts, probes):
    cores, gpus = counts
    report = doctor.doctor()
    states = {line.name: line.state for line in report.lines}
    assert states.pop("pretended") == LIMITED
    assert set(states.values()) == {OK}
    assert not any(line.fix for line in report.lines if line.state == OK)
    assert report.line("pretended").found == f"cores={cores} gpus={gpus}"
    assert report.line("cores").found == str(cores)
    assert {lesson.verdict for lesson in report.lessons} == {"yes"}
    on_cores, *on_gpus = probes
    assert on_cores[0][1:3] == ["-np", "2"]
    assert machine.gpus(on_cores[1]) == 0
    found = report.line("gpus").found
    if not gpus:
        assert (on_gpus, found) == (
            [],
            "none; none is needed, because workers use processor cores",
        )
        return
    ((command, environment),) = on_gpus
    assert command[1:3] == ["-np", str(min(2, gpus))]
    assert machine.gpus(environment) == gpus
    assert found.startswith(f"{gpus} x NVIDIA A100" if gpus > 1 else "NVIDIA A100")
    assert found.endswith(
        "for one worker each" if gpus > 1 else "several workers use processor cores"
    )


@pytest.mark.parametrize(
    ("visible", "words"),
    [
        ("5", "NVIDIA A100-SXM4-40GB, compute"),
        ("2,3", "2 x NVIDIA A100"),
        ("GPU-8932f937,GPU-1c2d", "8 x NVIDIA A100"),  # which of them isn't known
        ("-1", "none; none is needed"),
        ("", "none; none is needed"),
    ],
)
def test_the_doctor_reports_what_a_scheduler_lets_be_seen(
    visible, words, pretend, probes
):
    pretend(cores=64, gpus=8, visible=visible)
    report = doctor.doctor()
    assert report.line("gpus").found.startswith(words)
    assert report.line("gpus").state == OK
    assert [command[2] for command, _ in probes[1:]] == [
        str(min(2, count)) for count in [machine.gpus()] if count
    ]


def test_the_machine_is_drawn_with_all_its_workers(counts, probes):
    cores, gpus = counts
    report = doctor.doctor()
    drawing = figures.machine.show_machine(report)
    workers = report.profile.workers
    assert workers == max(2, gpus)
    said = {0: cores // 2, 1: cores // 2}.get(gpus, 1)
    each = f"{said} cores" if said > 1 else "one GPU" if gpus > 1 else "one core"
    assert drawing.words.startswith(f"{workers} workers, {each} each")
    drawn = " ".join(text.get_text() for text in drawing.axes[0].texts)
    for rank in range(workers):
        assert f"worker {rank}" in drawn


# ------------------------------------------------------------ what lessons ask for


def cells_with_parameters(path):
    cells = nbformat.read(path, 4).cells
    return [cell for cell in cells if "parameters" in cell.metadata.get("tags", [])]


def parameters(path):
    """What the parameters cells of a notebook set, by name; {} without such cells."""
    values = {"settings": profiles.settings, "leaderboard": leaderboard}
    values |= {"namespaces": namespaces, "os": machine.os}
    for cell in cells_with_parameters(path):
        lines = cell.source.splitlines()
        for line in [line for line in lines if line.startswith("%env ")]:
            name, value = line.removeprefix("%env ").split("=")
            machine.os.environ[name] = value
        tree = ast.parse("\n".join(ln for ln in lines if not ln.startswith("%")))
        ours = ast.ImportFrom  # from utils, which takes its time
        tree.body = [node for node in tree.body if not isinstance(node, ours)]
        exec(compile(tree, path.name, "exec"), values)
    return values


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name[:2])
def test_a_lesson_asks_for_what_there_is(path, pretend):
    """Cores change nothing of it, and one GPU nothing for several workers."""
    cells = [c.source for c in cells_with_parameters(path)]
    if not any("settings(" in cell or "%env CUDA" in cell for cell in cells):
        pytest.skip("its workers don't depend on the machine")
    sizes = ("workers", "replicas", "width", "train_images", "epochs", "counts")
    sizes += ("batch_size",)
    numbers = {}
    for cores, count in itertools.product(CORES, GPUS):
        pretend(cores=cores, gpus=count)
        values = parameters(path)
        found = {name: values[name] for name in sizes if name in values}
        assert numbers.setdefault(count, found) == found
        hides = path.name[:2] in HIDE_GPUS or count == 1
        assert machine.gpus() == (0 if hides and path.name[:2] != ALONE else count)
    if path.name[:2] == ALONE:
        assert numbers[1] == numbers[8] != numbers[0]
        assert numbers[1]["width"] == 10
    else:
        assert numbers[1] == numbers[0]
        assert numbers[2].get("workers", 2) == numbers[2].get("replicas", 2) == 2


@pytest.fixture
def cell_starts(pretend, monkeypatch):
    """Executes the cells of a lesson that have a word in them, where there are so many
    GPUs; gives the commands that these would start, and the GPUs each would see."""

    def execute(lesson, word, count):
        started = []

        def start(command, env=None, **options):
            started.append((command, machine.gpus(env)))
            return subprocess.CompletedProcess(command, 0, "what it said", "")

        monkeypatch.setattr(subprocess, "run", start)
        (path,) = [path for path in NOTEBOOKS if path.name.startswith(lesson)]
        pretend(gpus=count)
        values = parameters(path)
        values["gpus"] = ["a GPU"] * machine.gpus()  # that TensorFlow finds in there
        for cell in nbformat.read(path, 4).cells:
            if cell.cell_type == "code" and word in cell.source:
                exec(cell.source, values)
        return started

    return execute


@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_gpu_that_its_lesson_hides_is_split_all_the_same(count, cell_starts):
    ((command, seen),) = cell_starts("14", "SPLIT", count)
    assert "set_logical_device_configuration" in command[-1]
    assert seen == count


@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_gpu_that_its_lesson_hides_is_shown_all_the_same(count, cell_starts, capsys):
    started = cell_starts("03", "--query-gpu", count)
    assert [command[0] for command, _ in started] == ["nvidia-smi"] * (count > 0)
    assert ("No GPU here" in capsys.readouterr().out) == (count == 0)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_gpu_and_a_processor_are_compared_fairly(count, pretend, capsys):
    """With all cores, the same network and batch, and in float32 on both."""
    (path,) = [path for path in NOTEBOOKS if path.name.startswith("15")]
    cells = [cell.source for cell in nbformat.read(path, 4).cells]
    (code,) = [cell for cell in cells if cell.startswith("from utils import gpus\n")]
    (typed,) = [cell for cell in cells if "CUDA_VISIBLE_DEVICES=-1 course run" in cell]
    pretend(gpus=count)
    profiles.settings()  # hides a single GPU from the rest of the lesson
    runs = []

    def run(program, environment, **options):
        runs.append((environment, options))
        return mock.Mock(images_per_second=10.0 * len(runs))

    exec(code, {"run": run, "program": "p.py"})
    if count == 0:
        assert (runs, "No GPU here" in capsys.readouterr().out) == ([], True)
        return
    assert "2 times as fast as all cores" in capsys.readouterr().out
    (on_cores, slow), (on_gpu, quick) = runs
    assert machine.gpus(on_cores) == 0
    assert (machine.gpus(on_gpu), on_gpu["NVIDIA_TF32_OVERRIDE"]) == (1, "0")
    assert "threads" not in slow
    assert {**slow, "train_images": 0} == {**quick, "train_images": 0}
    for environment, options in runs:
        names = ("width", "batch_size", "epochs", "train_images")
        words = [f"--{name.replace('_', '-')} {options[name]}" for name in names]
        assert " ".join(words) in typed
        assert all(f"{name}={value}" in typed for name, value in environment.items())


@pytest.mark.parametrize("path", NOTEBOOKS[1:9], ids=lambda path: path.name[:2])
def test_gpus_train_all_images_in_the_batches_of_their_profile(path, pretend):
    """In every run of lessons 01 and 03 to 08; a number by hand would be forgotten."""
    if path.name.startswith("02"):
        pytest.skip("trains nothing")
    pretend(gpus=2)
    values = parameters(path)
    numbers = values.get("options", values)
    assert (numbers["train_images"], numbers["batch_size"]) == (60_000, 512)
    sources = [c.source for c in nbformat.read(path, 4).cells if c.cell_type == "code"]
    calls = [
        node
        for source in sources
        if not source.startswith("%") and "run(" in source
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "run"
    ]
    # What a learner writes into logs/ as a toy trains nothing.
    trainings = [
        call for call in calls if not re.search(r"limits|\.\./logs/", ast.unparse(call))
    ]
    assert trainings
    for call in trainings:
        given = {word.arg: ast.unparse(word.value) for word in call.keywords}
        assert given.get("batch_size", given.get(None)).split(" | ")[0] in (
            *("batch_size", "same", "short_run", "options"),
        )


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 3, 8, 16])
def test_what_lessons_draw_for_their_workers(workers, capsys):
    """The cells of 05 and 07 in which each worker of a data set draws images."""
    import tensorflow as tf

    values = {"tf": tf, "workers": workers}
    cells = {"def drawn(seed": "05", "def drawn(shard": "07", "ranks =": "07"}
    for word, lesson in cells.items():
        (path,) = [path for path in NOTEBOOKS if path.name.startswith(lesson)]
        (cell,) = [c.source for c in nbformat.read(path, 4).cells if word in c.source]
        exec(cell, values)
    said = dict(re.findall(r"^(.*?):? (\d+)%?$", capsys.readouterr().out, re.MULTILINE))
    seen = {words: int(number) for words, number in said.items()}
    assert seen["one seed for all"] == 5 * 64
    assert min(seen["no seed"], seen["the rank as a seed"]) > 5 * 64
    assert seen["a shard for each, epochs: 10"] == 100
    assert seen["a shard for each, epochs: 1"] > 98
    assert seen["the same shard for all, epochs: 10"] == round(100 / workers)


def test_the_profile_gpu_never_means_fewer_than_two_workers(pretend, monkeypatch):
    cpu = profiles.PROFILES["cpu"]
    monkeypatch.setenv("COURSE_PROFILE", "gpu")
    for count, workers, width in ((0, 2, cpu.width), (1, 2, cpu.width), (4, 4, 10)):
        pretend(gpus=count)
        chosen = profiles.in_force()
        assert (chosen.name, chosen.workers, chosen.width) == ("gpu", workers, width)
    pretend(gpus=1)
    assert profiles.in_force(alone=True).workers == 1
    assert profiles.in_force(alone=True).width == 10


def test_hiding_a_gpu_is_said(pretend, capsys):
    pretend(gpus=2)
    profiles.settings()
    assert "which need one each" not in capsys.readouterr().err
    pretend(gpus=1)
    profiles.settings(alone=True)
    assert "which need one each" not in capsys.readouterr().err
    assert machine.gpus() == 1
    profiles.settings()
    assert "1 GPU here, and this lesson has 2 workers" in capsys.readouterr().err
    assert machine.gpus() == 0


# ------------------------------------------------------------ what is started


@pytest.fixture
def started(tmp_path, monkeypatch):
    """Starts nothing; gives the variables that workers would have, and the notices."""

    def follow(line, result, surroundings, *_):
        follow.line, follow.surroundings = line, surroundings
        return result

    monkeypatch.setattr(launch, "follow", follow)

    def start(**options):
        result = launch.run("program.py", **options)
        start.command = result.command
        if "mpirun" in follow.line[0]:
            words = shlex.split(result.command)
            pairs = [words[i + 1] for i, word in enumerate(words) if word == "-x"]
            return dict(pair.split("=", 1) for pair in pairs), result.notices
        names = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")
        found = follow.surroundings
        return {name: found[name] for name in names if name in found}, result.notices

    with empty_course(tmp_path):
        (tmp_path / "program.py").write_text("import hvd\nhvd.init()\n")
        yield start


def on_cores(variables):
    hidden = variables.get("CUDA_VISIBLE_DEVICES") == "-1"
    assert hidden == ("OMP_NUM_THREADS" in variables), variables
    return hidden


def test_workers_share_the_machine_out(counts, started):
    cores, gpus = counts
    for workers in WORKERS:
        variables, notices = started(workers=workers)
        hidden = variables.get("CUDA_VISIBLE_DEVICES") == "-1"
        assert hidden == (0 < gpus < workers)
        assert ("OMP_NUM_THREADS" in variables) == (workers > gpus)
        crowded = workers > cores
        assert ("--oversubscribe" in started.command) == crowded
        assert "--bind-to none" in started.command
        assert any("take turns" in n for n in notices) == (crowded and workers > gpus)
        if workers > gpus:
            threads = int(variables["OMP_NUM_THREADS"])
            assert 1 <= threads
            assert threads * workers <= max(cores, workers)
            names = {name for name in variables if "THREADS" in name}
            assert names == set(mpi.thread_variables(1))
            assert {variables[name] for name in names} == {str(threads)}


@pytest.mark.parametrize(
    ("count", "options", "cores"),
    [
        (1, {"workers": 1}, False),
        (1, {"workers": 2}, True),
        (2, {"workers": 2}, False),
        (2, {"workers": 3}, True),
        (4, {"workers": 2}, False),
        (4, {"workers": 2, "elastic": True}, True),
        (1, {"tasks": {"worker": 2}}, True),
        (1, {"tasks": {"chief": 1, "worker": 1, "ps": 2}}, False),
        (2, {"tasks": {"chief": 1, "worker": 2, "ps": 2}}, False),
        (1, {"workers": 1, "compared_with": 2}, True),
        (2, {"workers": 1, "compared_with": 2}, False),
        (2, {"workers": 2, "compared_with": 3}, True),
    ],
)
def test_workers_use_gpus_just_if_there_is_one_for_each(
    count, options, cores, pretend, started
):
    pretend(gpus=count)
    variables, notices = started(**options)
    assert on_cores(variables) == cores
    if cores:
        assert "compute on cores" in notices[0]
        pretend(gpus=0)
        threads = started(**options)[0]
        assert variables == threads | machine.HIDDEN  # as on a machine without GPUs
    else:
        assert not any("cores" in notice for notice in notices)


@pytest.mark.parametrize("gpus", [0, 1, 2, 8])
@pytest.mark.parametrize("team", [2, 3, 8, 9])
def test_workers_that_are_compared_have_the_same_share(gpus, team, pretend, started):
    """Of 8 cores, or the same number of GPUs: one each, or none."""
    pretend(gpus=gpus)
    ways = [
        {"workers": 1, "compared_with": team},
        {"workers": team},
        {"workers": team, "compared_with": 1},
    ]
    alone, together, other_way_round = (started(**way)[0] for way in ways)
    assert alone == together == other_way_round
    if gpus < team:
        assert alone["OMP_NUM_THREADS"] == {2: "4", 3: "2", 8: "1", 9: "1"}[team]


def test_a_run_that_nobody_compares_has_all_cores(pretend, started):
    pretend(cores=8)
    assert started(workers=1)[0]["OMP_NUM_THREADS"] == "8"


def test_measured_teams_have_the_same_share(pretend, started, monkeypatch):
    """However a lesson counts its workers."""
    pretend(cores=8)
    given = []

    def run(*_, **options):
        given.append(launch_run("program.py", **options | {"train_images": 64}))
        return given[-1]

    launch_run = launch.run
    monkeypatch.setattr(launch, "run", run)
    scaling.measure("program.py", iter([1, 2, 4]), 64)
    with contextlib.suppress(errors.UserError):  # nothing was trained
        scaling.limit("program.py", 4, 64)
    assert len(given) == 4
    threads = {re.search("OMP_NUM_THREADS=(.)", one.command)[1] for one in given}
    assert threads == {"2"}


@pytest.mark.parametrize("workers", [0, "2", 1.5])
def test_no_number_of_workers_to_compare_with_is_refused(workers, started):
    with pytest.raises(errors.UserError, match="compared_with is a number"):
        started(workers=1, compared_with=workers)


@pytest.mark.parametrize(
    ("count", "workers", "hidden"),
    [(0, 2, False), (1, 2, True), (2, 2, False), (2, 3, True)],
)
def test_ways_that_are_compared_compute_on_the_same(
    count, workers, hidden, pretend, monkeypatch
):
    environments = []

    def train(cases, environment):
        environments.append(environment)
        return {case: [] for case in cases}

    monkeypatch.setattr(equality, "train", train)
    monkeypatch.setattr(equality, "_row", lambda *_: None)
    pretend(gpus=count)
    equality.compare([equality.Case("horovod", workers), equality.Case("mirrored")])
    expected = machine.HIDDEN if hidden else {}
    assert len(environments) > 1
    assert all(environment == expected for environment in environments)


def test_gpus_that_a_task_sees_are_those_that_the_command_names(pretend):
    pretend(gpus=2)
    two = {"worker": ["a:1", "a:2"]}
    lines = launchers.plain_tasks(two, ["python"], {}).splitlines()
    assert re.findall(r"CUDA_VISIBLE_DEVICES=(\S+)", "\n".join(lines)) == ["0", "1"]
    hidden = launchers.plain_tasks(two, ["python"], dict(machine.HIDDEN))
    assert re.findall(r"CUDA_VISIBLE_DEVICES=(\S+)", hidden) == [
        "-1"
    ]  # for all at once


@pytest.mark.parametrize(
    ("visible", "count"),
    [
        ("", 0),
        ("-1", 0),
        ("1", 1),
        ("0,-1,1", 1),
        ("MIG-a, MIG-b", 2),
        ("0,1,2,3,4", 4),
    ],
)
def test_gpus_of_an_environment(visible, count, pretend):
    pretend(gpus=4)
    assert machine.gpus({"CUDA_VISIBLE_DEVICES": visible}) == count
    assert machine.gpus({}) == 4


def test_gpus_that_tensorflow_can_t_use_do_not_count(pretend, monkeypatch):
    """Many a laptop has one, and was set up without GPU=1."""
    pretend(gpus=1)
    monkeypatch.setattr(machine, "has_cudnn", lambda: False)
    assert (machine.gpus(), machine.gpus({}), machine.installed()) == (0, 0, 1)
    assert profiles.in_force(alone=True).name == "cpu"


# ------------------------------------------------------------ what programs take


def pinning(path):
    """The statements that choose a GPU by the local rank; of an exercise, those that
    it begins with."""
    text = path.read_text()
    if path in markup.sources(course.PACKAGE_ROOT):
        text = markup.render(text, 0)
    return [
        node
        for node in ast.parse(text).body
        if isinstance(node, ast.If) and "gpus[hvd.local_rank()]" in ast.unparse(node)
    ]


SOLUTIONS = course.PACKAGE_ROOT / "solutions"
PROGRAMS = [path for path in sorted(SOLUTIONS.rglob("*.py")) if pinning(path)]


@pytest.mark.parametrize(
    ("visible", "expected"), [(["given"], "given"), (["0", "1", "2", "3"], "3")]
)
@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_a_program_takes_the_one_gpu_that_it_was_given(path, visible, expected):
    """A scheduler may show a worker no other, whatever its local rank."""
    tf, hvd = mock.MagicMock(), mock.MagicMock()
    hvd.local_rank.return_value = 3
    code = compile(ast.Module(pinning(path), []), path.name, "exec")
    exec(code, {"gpus": visible, "tf": tf, "hvd": hvd})
    tf.config.set_visible_devices.assert_called_once_with(expected, "GPU")
