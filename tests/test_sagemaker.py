"""The SageMaker files: the entry point is run for real as the container runs it, with
folders in place of S3; that the estimator starts it so, only the documentation says.
What goes to S3 while it trains is sent by AWS's own command line, where that is
installed, to a store on this machine."""

import gzip
import importlib.util
import json
import os
import shlex
import shutil
import struct
import subprocess
import sys

import numpy as np
import object_store
import pytest
from processes import captured, serving

from distcheck import mpi, supervise
from utils.base import course
from utils.cluster import sagemaker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

CLUSTER = course.PACKAGE_ROOT / "solutions" / "cluster"
TRAIN, LAUNCH = CLUSTER / "sagemaker_train.py", CLUSTER / "sagemaker_launch.py"
TAKE_DOWN = CLUSTER / "sagemaker_take_down.sh"
IMAGES, UNSEEN, BATCH, RATE = 256, 40, 16, 0.01
STEPS = IMAGES // (2 * BATCH)
GIVEN = ["--epochs", "2", "--batch-size", BATCH, "--base-lr", RATE]


def module(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    imported = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(imported)
    return imported


def channels(place, images=IMAGES, labels=IMAGES):
    """Fashion-MNIST's four files, with few images, in two folders; the first one."""
    random = np.random.default_rng(0)
    for name, part, counts in (
        ("train", "train", (images, labels)),
        ("validation", "t10k", (UNSEEN, UNSEEN)),
    ):
        folder = place / "input" / "data" / name
        folder.mkdir(parents=True)
        digits = np.arange(counts[1], dtype=np.uint8) % 10
        pixels = random.integers(0, 255, (counts[0], 28, 28), np.uint8)
        header = struct.pack(">4i", 2051, counts[0], 28, 28)
        for kind, content in (
            ("images-idx3", header + pixels.tobytes()),
            ("labels-idx1", struct.pack(">2i", 2049, counts[1]) + digits.tobytes()),
        ):
            with gzip.open(folder / f"{part}-{kind}-ubyte.gz", "wb") as file:
                file.write(content)
    return place / "input" / "data" / "train"


def container(place, hosts=("algo-1",), **changed):
    """The variables of the container, with all its folders below `place`; None takes
    one away."""
    (place / "output").mkdir(exist_ok=True)
    variables = {
        "SM_CHANNEL_TRAIN": str(place / "input" / "data" / "train"),
        "SM_CHANNEL_VALIDATION": str(place / "input" / "data" / "validation"),
        "SM_CHANNELS": '["train", "validation"]',
        "SM_MODEL_DIR": str(place / "model"),
        "SM_OUTPUT_DIR": str(place / "output"),
        "SM_OUTPUT_DATA_DIR": str(place / "output" / "data"),
        "SM_HPS": json.dumps({"epochs": 2, "batch-size": BATCH, "base-lr": RATE}),
        "SM_HOSTS": json.dumps(hosts),
        "SM_CURRENT_HOST": hosts[0],
        "SM_NUM_GPUS": "0",
        "SM_NUM_CPUS": "2",
        **mpi.thread_variables(1),
    } | changed
    return {name: value for name, value in variables.items() if value is not None}


def start(place, *words, workers=None, **more):
    """Run the entry point, as the container's toolkit does if `workers` are asked for:
    (status, what it said)."""
    command = [sys.executable]
    variables = container(place, **more)
    if workers:
        mpirun = f"mpirun --host localhost:{workers} -np {workers} --tag-output"
        mpirun += " --bind-to none --map-by slot --mca pml ob1 --mca btl ^openib"
        mpirun += " --mca orte_abort_on_non_zero_status 1"
        mpirun += " --mca mpi_yield_when_idle 1"
        exported = [word for name in variables for word in ("-x", name)]
        command = [*shlex.split(mpirun), *exported, *command, "-m", "mpi4py"]
    command += [str(TRAIN), *map(str, words)]
    environment = mpi.clean_environment() | variables
    with (
        (place / "said.txt").open("w+") as file,
        supervise.owned(
            command, 200, env=environment, cwd=place, stdout=file, stderr=file
        ) as process,
    ):
        status = process.wait()
        file.seek(0)
        return status, file.read()


def aws():
    """The path of AWS's command line, or None: a name alone proves nothing, as pyenv
    keeps some that start nothing."""
    path = shutil.which("aws")
    if not path or subprocess.run([path, "--version"], capture_output=True).returncode:
        return None
    return path


needs_aws = pytest.mark.skipif(aws() is None, reason="AWS's command line is missing")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    with serving(object_store.Store(tmp_path_factory.mktemp("store"))) as store:
        yield store


@pytest.fixture(scope="module")
def trained(tmp_path_factory, store):
    """A job of two epochs, which sends its logs; then one of three, which finds the
    first's checkpoints, and an `aws` that fails."""
    place = tmp_path_factory.mktemp("sagemaker")
    channels(place)
    options = ["--checkpoint-dir", place / "checkpoints"]
    options += ["--logs-uri", "s3://ours/logs"]
    first = start(place, *GIVEN, *options, workers=2, PATH=store.path(aws() or "false"))
    assert first[0] == 0, first[1]
    (place / "model").rename(place / "first-model")
    options += ["--epochs", 3]
    second = start(place, *GIVEN, *options, workers=2, PATH=store.path("false"))
    assert second[0] == 0, second[1]
    return place, first[1], second[1]


def test_rank_0_alone_speaks_and_keeps_the_newest_three_checkpoints(trained):
    place, output, _ = trained
    assert "Epoch 2/2" in output
    assert output.count("val_accuracy") == 2  # once for each epoch, not for each worker
    names = sorted(path.name for path in (place / "checkpoints").glob("*.index"))
    assert names == ["ckpt-1.index", "ckpt-2.index", "ckpt-3.index"]


def test_steps_are_shared_out_and_the_rate_is_scaled(trained):
    import tensorflow as tf

    for epochs in (1, 2, 3):
        path = trained[0] / "checkpoints" / f"ckpt-{epochs}"
        reader = tf.train.load_checkpoint(str(path))

        def value(name, reader=reader):
            return reader.get_tensor(f"{name}/.ATTRIBUTES/VARIABLE_VALUE")

        assert value("epoch") == epochs
        assert value("optimizer/_iterations") == epochs * STEPS
        assert value("optimizer/_learning_rate") == pytest.approx(2 * RATE)


def test_it_goes_on_from_its_checkpoint(trained):
    _, _, output = trained
    assert "going on after epoch 2" in output
    assert "Epoch 3/3" in output
    assert "Epoch 1/3" not in output


def test_the_model_can_be_served(trained):
    import tensorflow as tf

    place, *_ = trained
    answers = []
    for name in ("first-model", "model"):
        served = tf.saved_model.load(str(place / name / "1"))
        answer = served.signatures["serving_default"](tf.zeros((3, 28, 28, 1)))
        (probabilities,) = answer.values()
        np.testing.assert_allclose(tf.reduce_sum(probabilities, 1), 1, rtol=1e-5)
        answers.append(probabilities.numpy())
    assert answers[0].shape == (3, 10)
    assert not np.allclose(*answers)  # the third epoch changed it


def losses_in(paths):
    """The loss of each epoch in TensorBoard's files."""
    import tensorflow as tf

    losses = {}
    for record in tf.data.TFRecordDataset([str(path) for path in paths]):
        event = tf.compat.v1.Event.FromString(record.numpy())
        for value in event.summary.value:
            if value.tag == "epoch_loss":
                losses[event.step] = float(tf.make_ndarray(value.tensor))
    return losses


def test_tensorboard_gets_the_averages_of_each_epoch_from_rank_0(trained):
    place, output, _ = trained
    logs = place / "output" / "data" / "tensorboard"
    for part in ("train", "validation"):
        paths = sorted((logs / part).glob("events.out.tfevents.*"))
        assert len(paths) == 2  # one for each of the two jobs
        losses = losses_in(paths)
        assert sorted(losses) == [0, 1, 2]
    assert f"val_loss: {losses[1]:.4f}" in output


@needs_aws
@pytest.mark.parametrize("part", ["train", "validation"])
def test_after_each_epoch_its_logs_are_in_the_store(trained, store, tmp_path, part):
    sent = [body for key, body in store.puts if key.startswith(f"ours/logs/{part}/")]
    epochs = []
    for body in sent:
        (tmp_path / "events").write_bytes(body)
        epochs.append(sorted(losses_in([tmp_path / "events"])))
    assert epochs == [[0], [0, 1]]  # so the first was there before the second was over


def test_a_store_that_fails_is_named_and_stops_nothing(trained):
    *_, output = trained
    assert output.count("logs were not sent") == 1  # of its one epoch, by rank 0 alone
    assert "Epoch 3/3" in output


@pytest.mark.parametrize(
    ("words", "changed", "why"),
    [
        ([], {"SM_CHANNEL_VALIDATION": None}, "Call the estimator's fit({'validation'"),
        ([], {"SM_CHANNEL_TRAIN": "nowhere"}, "lacks train-images-idx3-ubyte.gz"),
        ([], {"SM_MODEL_DIR": None}, "SM_MODEL_DIR is not set"),
        (["--epochs", "many"], {}, "--epochs: invalid int value: 'many'"),
        (["--batch-size", "0"], {}, "--batch-size: 0 is not above 0"),
        (["--base-lr", "nan"], {}, "--base-lr: nan is not above 0"),
        (["--epoch", "3"], {}, "unrecognized arguments: --epoch 3"),
    ],
)
def test_what_cannot_be_trained_on_is_refused(tmp_path, words, changed, why):
    channels(tmp_path)
    assert_refused(tmp_path, why, start(tmp_path, *words, **changed))


def assert_refused(place, why, outcome):
    status, output = outcome
    assert status == 1
    assert f"{why}" in output
    assert output.startswith("refused: ")  # and no traceback
    assert why in (place / "output" / "failure").read_text()
    assert not (place / "model").exists()


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        ("empty", "it has nothing"),
        ("cut", "train-images-idx3-ubyte.gz is damaged"),
        ("fewer", "train has 256 images and 255 labels"),
    ],
)
def test_a_channel_without_the_data_is_refused(tmp_path, spoil, why):
    place = channels(tmp_path, labels=255 if spoil == "fewer" else IMAGES)
    images = place / "train-images-idx3-ubyte.gz"
    if spoil == "cut":
        images.write_bytes(images.read_bytes()[:5000])
    if spoil == "empty":
        for path in place.iterdir():
            path.unlink()
    assert_refused(tmp_path, why, start(tmp_path))


def test_hosts_that_would_each_train_alone_are_refused(tmp_path):
    channels(tmp_path)
    outcome = start(tmp_path, *GIVEN, hosts=("algo-1", "algo-2"))
    why = "SM_HOSTS has 2 hosts, but Horovod 1 worker(s)"
    assert_refused(tmp_path, why, outcome)


# ------------------------------------------------------------ the estimator's call

CHOSEN = ["--role", "trainer", "--bucket", "ours", "--hosts", "3", "--epochs", "7"]


def test_the_call_names_the_entry_point_and_starts_it_under_mpi():
    launcher = module(LAUNCH)
    call = launcher.estimator_arguments(launcher.options(CHOSEN))
    assert os.path.samefile(call["entry_point"], TRAIN)
    mpi = call["distribution"]["mpi"]
    assert (mpi["enabled"], mpi["processes_per_host"]) == (True, 2)
    assert call["instance_count"] == 3
    assert call["max_wait"] >= call["max_run"]  # or SageMaker refuses spot hosts
    assert call["checkpoint_s3_uri"].startswith("s3://ours/")


def test_the_entry_point_understands_what_the_call_gives():
    launcher, trainer = module(LAUNCH), module(TRAIN)
    chosen = launcher.options(CHOSEN)
    hyperparameters = launcher.estimator_arguments(chosen)["hyperparameters"]
    words = [
        word
        for name, value in hyperparameters.items()
        for word in (f"--{name}", str(value))
    ]
    args = trainer.hyperparameters(words)
    assert args.epochs == 7
    assert str(args.checkpoint_dir) == "/opt/ml/checkpoints"  # that is what is kept
    assert args.logs_uri == "s3://ours/survive/logs"
    assert sorted(launcher.channels(chosen)) == sorted(trainer.CHANNELS)


def test_nothing_starts_without_being_asked_to():
    done = call_launcher()
    assert done.returncode == 0
    assert "Nothing was started" in done.stdout
    assert '"instance_count": 3' in done.stdout


def test_to_start_it_needs_sagemakers_package():
    if importlib.util.find_spec("sagemaker"):
        pytest.skip("sagemaker is installed here, and would be asked to start the job")
    done = call_launcher("--start")
    assert done.returncode == 1
    assert "pip install 'sagemaker<3'" in done.stderr


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--hosts", "0"], "--hosts must be 1 or more"),
        (["--bucket", "s3://ours/data"], "--bucket is a name"),
    ],
)
def test_a_call_that_cannot_work_is_refused(words, why):
    done = call_launcher(*words)
    assert done.returncode == 2
    assert why in done.stderr


def call_launcher(*words):
    return captured([sys.executable, LAUNCH, *CHOSEN, *words], env=os.environ)


# ------------------------------------------------------------------ the take-down

LISTS = {
    "ListTrainingJobs": {
        "TrainingJobSummaries": [
            {"TrainingJobName": "over", "TrainingJobStatus": "Completed"},
            {"TrainingJobName": "on", "TrainingJobStatus": "InProgress"},
        ]
    },
    "ListNotebookInstances": {
        "NotebookInstances": [
            {"NotebookInstanceName": "idle", "NotebookInstanceStatus": "Stopped"}
        ]
    },
    "ListEndpoints": {
        "Endpoints": [{"EndpointName": "forgotten", "EndpointStatus": "InService"}]
    },
}


def take_down(store, *words):
    store.lists = LISTS
    kept = [
        "ours/fashion-mnist/train/data",
        "ours/survivors/data",
        "others/survive/data",
    ]
    store.objects = dict.fromkeys([*kept, "ours/survive/output/model"], b"1234")
    environment = mpi.clean_environment() | {"PATH": store.path(aws())}
    how = {"capture_output": True, "text": True, "timeout": 300, "check": True}
    done = subprocess.run([TAKE_DOWN, *words], env=environment, **how)
    return done.stdout, sorted(store.objects) == sorted(kept)


@needs_aws
def test_what_still_costs_is_named_and_nothing_is_deleted_unasked(store):
    said, deleted = take_down(store, "ours")
    assert not deleted
    for there in ("on\n", "idle\tStopped", "forgotten\tInService", "Total Objects: 3"):
        assert there in said
    assert "over" not in said


@needs_aws
def test_what_the_jobs_left_is_deleted_if_asked_for_and_no_more(store):
    said, deleted = take_down(store, "ours", "--delete")
    assert deleted
    assert "s3://ours/survive is gone." in said


# ------------------------------------------------------------ the lesson's tools


def test_the_lesson_plays_the_container(tmp_path):
    folder = sagemaker.channels(120)
    assert sagemaker.start(folder, {}).right is None
    variables = {"SM_CHANNEL_TRAIN": folder / "train"}
    refused = sagemaker.start(folder, variables)
    assert (refused.right, "SM_CHANNEL_VALIDATION" in repr(refused)) == (False, True)
    variables |= {"SM_CHANNEL_VALIDATION": folder / "validation"}
    variables |= {"SM_MODEL_DIR": folder / "model", "SM_OUTPUT_DATA_DIR": folder / "o"}
    trained = sagemaker.start(folder, variables)
    assert trained.right, trained
    assert "2 workers trained" in repr(trained)


RIGHT_ARGUMENTS = {
    "entry_point": "solutions/cluster/sagemaker_train.py",
    "role": "trainer",
    "instance_count": 2,
    "instance_type": "ml.g5.12xlarge",
    "distribution": {"mpi": {"enabled": True, "processes_per_host": 4}},
    "max_run": 3600,
}


def test_what_an_estimator_is_called_with_is_read():
    def problem(**changed):
        return sagemaker.estimator_problem(RIGHT_ARGUMENTS | changed, hosts=2, gpus=4)

    assert problem() == ""
    assert sagemaker.estimator_problem({}, hosts=2, gpus=4)
    for changed, says in (
        ({"entry_point": "train.py"}, "entry_point is train.py"),
        ({"role": ""}, "role"),
        ({"instance_count": 1}, "instance_count is 1"),
        ({"instance_type": "ml.c5.xlarge"}, "not in the table"),
        ({"instance_type": "ml.p5.48xlarge"}, "has 8 GPUs, not 4"),
        ({"distribution": {"parameter_server": {"enabled": True}}}, "train alone"),
        ({"distribution": {"mpi": {"enabled": True}}}, "processes_per_host is None"),
        ({"max_run": None}, "max_run"),
    ):
        assert says in problem(**changed)


def test_the_launcher_asks_for_kinds_of_hosts_with_workers_for_their_gpus():
    launcher = module(LAUNCH)
    words = [*CHOSEN[:4], "--hosts", "2", "--instance-type", "ml.g4dn.12xlarge"]
    words += ["--processes-per-host", "4"]
    call = launcher.estimator_arguments(launcher.options(words))
    assert sagemaker.estimator_problem(call, hosts=2, gpus=4) == ""
