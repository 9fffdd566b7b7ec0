"""What recorders have to keep to, which scenarios they are for, and what they note."""

import ast
import json
import types
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from distcheck import scenarios
from distcheck.recorder import patches
from distcheck.recorder.audit import tracing
from distcheck.recorder.audit.horovod import HorovodCalls
from distcheck.recorder.callbacks import TrackedLogs
from distcheck.recorder.gradients import Gradients
from distcheck.recorder.horovod import HorovodRecorder
from distcheck.recorder.recorder import Recorder, recorder_of
from distcheck.scenarios import SCENARIOS, Scenario
from utils.base import course
from utils.checking import recorders  # noqa: F401 (it registers their scenarios)

ROOT = course.PACKAGE_ROOT
MODULES = [
    path
    for folder in ("distcheck/recorder", "utils/checking/recorders")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if path.name != "patches.py"
]
PRIVATE = (
    *("tensorflow.python", "tf_keras.src", "keras.src", "horovod._keras"),
    *("horovod.common.basics", "horovod.tensorflow.mpi_ops"),
)


def imported_by(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_only_patches_reach_into_private_modules(path):
    private = [n for n in imported_by(path) if f"{n}.".startswith(PRIVATE)]
    assert private == []


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_only_patches_use_private_names_of_others(path):
    assert private_names_in(path) - {"os._exit", "sys._getframe"} == set()


def private_names_in(path: Path) -> set[str]:
    """Attributes of objects that are not its own, and names of what it looks up."""
    tree = ast.parse(path.read_text())
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    own |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            owner = ast.unparse(node.value)
            if owner not in ("self", "super()") and node.attr not in own:
                names.add(f"{owner}.{node.attr}")
        if isinstance(node, ast.Call):
            arguments = [n.value for n in node.args if isinstance(n, ast.Constant)]
            names |= {n for n in arguments if isinstance(n, str) and is_private(n)}
    return names


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name.isidentifier()


def test_patches_are_where_the_private_modules_are():
    """Else the test above would see nothing."""
    names = imported_by(ROOT / "distcheck" / "recorder" / "patches.py")
    for private in PRIVATE:
        assert [name for name in names if name.startswith(private)], private
    used = private_names_in(ROOT / "distcheck" / "recorder" / "patches.py")
    assert {"context._physical_devices", "_allreduce_grads"} <= used


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_has_a_recorder_and_survives_the_way_to_the_lab(name):
    scenario = SCENARIOS[name]
    recorder = recorder_of(scenario)
    assert recorder is None or issubclass(recorder, Recorder)
    received = Scenario(**json.loads(json.dumps(asdict(scenario))))
    assert json.dumps(asdict(received)) == json.dumps(asdict(scenario))
    assert recorder_of(received) is recorder
    assert not scenario.after or scenario.after in SCENARIOS


def test_a_name_of_a_scenario_is_taken_once():
    with pytest.raises(ValueError, match="'two'"):
        scenarios.register({"two": Scenario(2)})


# ------------------------------------------------------------ without TensorFlow


class Variable:
    """As much of TensorFlow's as recorders look at."""

    trainable = True

    def __init__(self, *numbers: float):
        self.numbers = np.array(numbers, np.float32)
        self.shape = types.SimpleNamespace(rank=1, num_elements=lambda: len(numbers))
        self.handle = object()

    def numpy(self) -> np.ndarray:
        return self.numbers


class Model:
    def __init__(self, *weights: Variable):
        self.trainable_weights = weights


@pytest.fixture
def recorder(tmp_path):
    return HorovodRecorder(tmp_path, 0, "program.py")


def kept(recorder, name: str) -> list[float]:
    return np.load(recorder.folder / f"rank.0.{name}.npy").tolist()


def written(recorder) -> list[dict]:
    lines = (recorder.folder / "rank.0.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_weights_are_kept_as_they_were_before_a_collective_changed_them(recorder):
    weights = recorder.create_variable(lambda: Variable(1.0, 2.0))

    def broadcast(variable, root_rank):
        variable.numbers = np.float32([5.0, 6.0])

    recorder.collective("broadcast", broadcast)(weights, root_rank=1)
    recorder.report_batch(Model(weights), True, None)
    assert kept(recorder, "initial") == [1.0, 2.0]
    assert kept(recorder, "start") == [5.0, 6.0]


def test_the_last_model_before_the_first_update_is_what_is_trained(recorder):
    for weights in (Variable(1.0), Variable(2.0)):
        recorder.report_batch(Model(weights), True, None)
    assert kept(recorder, "start") == [2.0]


def test_what_other_models_make_of_a_batch_is_the_same_batch(recorder):
    """What comes from the first one, or all get; but not the next batch."""
    body, other, head = (Model(Variable(float(n))) for n in range(3))
    images, features = np.zeros((4, 2)), np.ones((4, 2))
    for model, inputs in ((body, images), (other, images), (head, features)):
        recorder.answer(model, True, inputs).tensors += [inputs, features]
    assert kept(recorder, "start") == [0.0, 1.0, 2.0]
    recorder.answer(head, True, features)
    assert [event["what"] for event in written(recorder)] == [
        "output",
        *2 * ["forward"],
    ]
    assert kept(recorder, "start") == [2.0]


# ------------------------------------------------------------ gradients


@pytest.fixture
def gradients(recorder):
    return Gradients(recorder.keep)


BODY, HEAD = Variable(1.0, 1.0), Variable(1.0)


def test_two_optimizers_that_share_a_gradient_make_one_update(recorder, gradients):
    taken = [np.array([1.0, 2.0]), np.array([3.0])]
    for update in (0, 1):
        assert gradients.take([BODY, HEAD], taken)
        assert gradients.apply([(taken[1], HEAD)])
        assert not gradients.apply([(taken[0], BODY)])
        assert kept(recorder, f"applied.{update}") == kept(recorder, f"local.{update}")
    assert gradients.updates == 2


def test_two_optimizers_with_a_gradient_each_make_two_updates(recorder, gradients):
    others = [Variable(1.0), Variable(2.0)]
    assert gradients.take([BODY, HEAD], [np.ones(2), np.ones(1)])
    assert not gradients.take(others, [np.ones(1)] * 2)
    for pairs in ([(np.ones(2), BODY), (np.ones(1), HEAD)], [(np.ones(1), others[0])]):
        assert gradients.apply(pairs)
    assert kept(recorder, "applied.0") == [1.0] * 3


def test_several_gradients_are_taken_for_one_update(recorder, gradients):
    for number in (1.0, 3.0, 8.0):
        gradients.take([BODY, HEAD], [np.full(2, number), np.full(1, number)])
    gradients.apply([(np.ones(2), BODY)])
    firsts = {name: kept(recorder, f"{name}.0")[0] for name in ARRAYS}
    assert firsts == {"local": 1.0, "last": 8.0, "mean": 4.0, "total": 12.0}


ARRAYS = ("local", "last", "mean", "total")


def test_gradients_of_a_scaled_loss_are_kept_as_they_are_used(recorder, gradients):
    """The update that one of them is too large for is left out."""
    assert not gradients.take([BODY, HEAD], [np.ones(2), np.full(1, np.inf)], 4.0)
    assert gradients.take([BODY, HEAD], [np.full(2, 8.0), np.ones(1)], 4.0)
    assert kept(recorder, "local.0") == [2.0, 2.0, 0.25]


def test_the_choice_of_a_gpu_is_noted_before_it_is_made(recorder, monkeypatch):
    class Context:
        def set_visible_devices(self, devices):
            assert [event["what"] for event in written(recorder)] == ["pinned"]

        def _initialize_physical_devices(self):
            pass

        def ensure_initialized(self):
            pass

        def get_device_details(self, device):
            pass

    module = types.SimpleNamespace(Context=Context)
    monkeypatch.setattr(patches, "eager_context", lambda: module)
    recorder.hook_devices()
    Context().set_visible_devices([])
    assert len(written(recorder)) == 1


def test_what_a_callback_reads_is_not_what_the_next_one_reads():
    metrics = TrackedLogs({"loss": 1.0, "val_loss": 2.0})
    metrics.begin("the first")
    assert metrics["val_loss"] == 2.0
    assert metrics.begin("the next") == {"loss": 1.0, "val_loss": 2.0}
    assert metrics.get("loss") == 1.0
    assert metrics.read == {"loss"}


@pytest.mark.parametrize(
    ("inside", "taped", "mode"),
    [
        (["fit"], True, "train"),
        (["fit"], False, None),  # Keras builds the model
        (["fit", "evaluate"], False, "validate"),
        (["fit", "evaluate"], True, "validate"),
        (["evaluate"], False, "validate"),
        (["predict"], False, None),
        ([], True, "train"),
        ([], False, "validate"),
    ],
)
def test_what_a_model_is_given_for_is_told_by_who_calls_it(
    recorder, monkeypatch, inside, taped, mode
):
    monkeypatch.setattr(patches, "records_gradients", lambda: taped)
    monkeypatch.setattr(tracing, "_have", lambda look, given: look(0, *given))
    recorder.activities[:] = inside
    tracer = tracing.Tracer(recorder, HorovodCalls(recorder))
    tracer._look(0, [np.zeros((4, 2))])
    told = [(event["mode"], event["count"]) for event in written(recorder)]
    assert told == ([(mode, 4)] if mode else [])
