"""The SageMaker files: the entry point is run for real as the container runs it, with
folders in place of S3; that the estimator starts it so, only the documentation says."""

import gzip
import importlib.util
import json
import os
import shlex
import struct
import subprocess
import sys

import numpy as np
import pytest

from utils.base import course, supervise
from utils.running import launchers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

CLUSTER = course.PACKAGE_ROOT / "solutions" / "cluster"
TRAIN, LAUNCH = CLUSTER / "sagemaker_train.py", CLUSTER / "sagemaker_launch.py"
IMAGES, UNSEEN, BATCH, RATE = 256, 40, 16, 0.01
STEPS = IMAGES // (2 * BATCH)
GIVEN = ["--epochs", "2", "--batch-size", BATCH, "--base-lr", RATE]


def module(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    imported = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(imported)
    return imported


def channel(folder, images=IMAGES, labels=IMAGES):
    """Fashion-MNIST's four files, with few images."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    for part, counts in (("train", (images, labels)), ("t10k", (UNSEEN, UNSEEN))):
        digits = np.arange(counts[1], dtype=np.uint8) % 10
        pixels = random.integers(0, 255, (counts[0], 28, 28), np.uint8)
        header = struct.pack(">4i", 2051, counts[0], 28, 28)
        for kind, content in (
            ("images-idx3", header + pixels.tobytes()),
            ("labels-idx1", struct.pack(">2i", 2049, counts[1]) + digits.tobytes()),
        ):
            with gzip.open(folder / f"{part}-{kind}-ubyte.gz", "wb") as file:
                file.write(content)
    return folder


def container(place, hosts=("algo-1",), **changed):
    """The variables of the container, with all its folders below `place`; None takes
    one away."""
    (place / "output").mkdir(exist_ok=True)
    variables = {
        "SM_CHANNEL_TRAINING": str(place / "input" / "data" / "training"),
        "SM_CHANNELS": '["training"]',
        "SM_MODEL_DIR": str(place / "model"),
        "SM_OUTPUT_DIR": str(place / "output"),
        "SM_OUTPUT_DATA_DIR": str(place / "output" / "data"),
        "SM_HPS": json.dumps({"epochs": 2, "batch-size": BATCH, "base-lr": RATE}),
        "SM_HOSTS": json.dumps(hosts),
        "SM_CURRENT_HOST": hosts[0],
        "SM_NUM_GPUS": "0",
        "SM_NUM_CPUS": "2",
        **launchers.thread_variables(1),
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
    environment = launchers.clean_environment() | variables
    with (
        (place / "said.txt").open("w+") as file,
        supervise.owned(
            command, 200, env=environment, cwd=place, stdout=file, stderr=file
        ) as process,
    ):
        status = process.wait()
        file.seek(0)
        return status, file.read()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A job of two epochs; then one of three, which finds the first's checkpoints."""
    place = tmp_path_factory.mktemp("sagemaker")
    channel(place / "input" / "data" / "training")
    options = ["--checkpoint-dir", place / "checkpoints"]
    first = start(place, *GIVEN, *options, workers=2)
    assert first[0] == 0, first[1]
    (place / "model").rename(place / "first-model")
    second = start(place, *GIVEN, "--epochs", 3, *options, workers=2)
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


def test_tensorboard_gets_the_averages_of_each_epoch_from_rank_0(trained):
    import tensorflow as tf

    place, output, _ = trained
    logs = place / "output" / "data" / "tensorboard"
    for part in ("train", "validation"):
        paths = sorted((logs / part).glob("events.out.tfevents.*"))
        assert len(paths) == 2  # one for each of the two jobs
        losses = {}
        for record in tf.data.TFRecordDataset([str(path) for path in paths]):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                if value.tag == "epoch_loss":
                    losses[event.step] = float(tf.make_ndarray(value.tensor))
        assert sorted(losses) == [0, 1, 2]
    assert f"val_loss: {losses[1]:.4f}" in output


@pytest.mark.parametrize(
    ("words", "changed", "why"),
    [
        ([], {"SM_CHANNEL_TRAINING": None}, "Call the estimator's fit({'training'"),
        ([], {"SM_CHANNEL_TRAINING": "nowhere"}, "lacks train-images-idx3-ubyte.gz"),
        ([], {"SM_MODEL_DIR": None}, "SM_MODEL_DIR is not set"),
        (["--epochs", "many"], {}, "--epochs: invalid int value: 'many'"),
        (["--batch-size", "0"], {}, "--batch-size: 0 is not above 0"),
        (["--base-lr", "nan"], {}, "--base-lr: nan is not above 0"),
        (["--epoch", "3"], {}, "unrecognized arguments: --epoch 3"),
    ],
)
def test_what_cannot_be_trained_on_is_refused(tmp_path, words, changed, why):
    channel(tmp_path / "input" / "data" / "training")
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
        ("fewer", "256 images and 255 labels: train"),
    ],
)
def test_a_channel_without_the_data_is_refused(tmp_path, spoil, why):
    place = tmp_path / "input" / "data" / "training"
    channel(place, labels=255 if spoil == "fewer" else IMAGES)
    images = place / "train-images-idx3-ubyte.gz"
    if spoil == "cut":
        images.write_bytes(images.read_bytes()[:5000])
    if spoil == "empty":
        for path in place.iterdir():
            path.unlink()
    assert_refused(tmp_path, why, start(tmp_path))


def test_hosts_that_would_each_train_alone_are_refused(tmp_path):
    channel(tmp_path / "input" / "data" / "training")
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
    assert list(launcher.channels(chosen)) == ["training"]


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
    return subprocess.run(
        [sys.executable, LAUNCH, *CHOSEN, *words],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ,
    )
