"""Train on Amazon SageMaker: what its container starts, once for each worker.

    python solutions/cluster/sagemaker_launch.py ...    tells SageMaker to (see there)

The container sets the variables SM_... and starts this file under mpirun on all hosts,
with the hyperparameters as arguments. It uses nothing of the course, as the container
has none of it, and keeps to Python 3.10, TensorFlow 2.12 and Horovod 0.27, which the
last of SageMaker's TensorFlow images with Horovod is said to have. No account was used,
so that was not confirmed: the course's tests run it with two workers and with folders
in place of S3.

To try it on your own machine, on the four files of Fashion-MNIST:

    export SM_CHANNEL_TRAIN=FOLDER SM_CHANNEL_VALIDATION=FOLDER
    export SM_MODEL_DIR=model SM_OUTPUT_DATA_DIR=output
    mpirun -np 2 python solutions/cluster/sagemaker_train.py --checkpoint-dir kept
"""

import argparse
import gzip
import json
import os
import subprocess
import sys
import traceback
from pathlib import Path

CHANNELS = {  # the images and the labels in each
    "train": ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"),
    "validation": ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"),
}
CLASSES = 10


class Refused(Exception):
    """What SageMaker gave cannot be trained on. The message says what to change."""


class Parser(argparse.ArgumentParser):
    """Raises Refused where argparse would print its usage and leave."""

    def error(self, message):
        raise Refused(f"hyperparameters: {message}.")


def positive(kind):
    """A type for argparse: a number of this kind, above 0."""

    def read(text):
        number = kind(text)
        if not number > 0:
            raise argparse.ArgumentTypeError(f"{text} is not above 0")
        return number

    read.__name__ = kind.__name__
    return read


def hyperparameters(words=None):
    """The arguments, which SageMaker makes of the estimator's `hyperparameters`."""
    parser = Parser(allow_abbrev=False)
    option = parser.add_argument
    option("--epochs", type=positive(int), default=10)
    option("--batch-size", type=positive(int), default=64, help="for one worker")
    option("--base-lr", type=positive(float), default=0.005, help="for one worker")
    option("--checkpoint-dir", type=Path, default=Path("/opt/ml/checkpoints"))
    option("--logs-uri", help="where in S3 logs go after each epoch; else at the end")
    option(
        "--model_dir", help="SageMaker may add it, an S3 address; SM_MODEL_DIR rules"
    )
    return parser.parse_args(words)


def folder(variable):
    """The folder that the container names in a variable."""
    if not os.environ.get(variable):
        advice = "SageMaker's container sets it."
        if variable.startswith("SM_CHANNEL_"):
            channel = variable[len("SM_CHANNEL_") :].lower()
            advice = f"Call the estimator's fit({{'{channel}': 's3://...'}})."
        raise Refused(f"{variable} is not set. {advice}")
    return Path(os.environ[variable])


def load(part):
    """Images (n, 28, 28) and labels (n,) of a channel, both uint8."""
    import numpy as np

    channel = folder(f"SM_CHANNEL_{part.upper()}")
    there = sorted(path.name for path in channel.glob("*")) or "nothing"
    arrays = []
    for name, header in zip(CHANNELS[part], (16, 8), strict=True):
        if not (channel / name).is_file():
            raise Refused(f"the channel {channel} lacks {name}; it has {there}.")
        try:
            with gzip.open(channel / name) as file:
                array = np.frombuffer(file.read(), np.uint8, offset=header)
            arrays.append(array.reshape(-1, 28, 28) if header == 16 else array)
        except (OSError, EOFError, ValueError) as error:
            raise Refused(f"{channel / name} is damaged: {error}.") from error
    images, labels = arrays
    if len(images) != len(labels):
        raise Refused(f"{channel} has {len(images)} images and {len(labels)} labels.")
    return images, labels


def send(logs, address):
    """Bring what is new in a folder to an address in S3, such as s3://BUCKET/logs.

    SageMaker itself keeps the folder when the job is over. In S3 nothing is added to a
    file: one that grew is sent anew. The others wait meanwhile, in their next
    all-reduce. And logs aren't worth a training: where it fails, that is said.
    """
    sync = ["aws", "s3", "sync", "--only-show-errors", logs, address]
    try:
        subprocess.run(sync, check=True, timeout=120)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"logs were not sent: {error}", flush=True)


def check_workers(hvd, gpus):
    """Refuse workers that SageMaker has not put together as it was meant."""
    hosts = json.loads(os.environ.get("SM_HOSTS", "[]"))
    if hvd.size() < len(hosts):
        raise Refused(
            f"SM_HOSTS has {len(hosts)} hosts, but Horovod {hvd.size()} worker(s): "
            "each would train alone. Give the estimator distribution={'mpi': "
            "{'enabled': True}}."
        )
    if gpus and hvd.local_size() > int(os.environ.get("SM_NUM_GPUS", len(gpus))):
        host = os.environ.get("SM_CURRENT_HOST", "this host")
        raise Refused(
            f"{hvd.local_size()} workers share {len(gpus)} GPUs on {host}: lower "
            "processes_per_host."
        )


def build_model(tf):
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            tf.keras.Input((28, 28, 1)),
            layers.Rescaling(1 / 255),
            layers.Conv2D(16, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(CLASSES, activation="softmax"),
        ]
    )


def main():
    args = hyperparameters()
    arrays = {part: load(part) for part in CHANNELS}
    models, output = folder("SM_MODEL_DIR"), folder("SM_OUTPUT_DATA_DIR")

    os.environ["TF_USE_LEGACY_KERAS"] = "1"  # Keras 2; Horovod knows no Keras 3

    import horovod.tensorflow as hvd_tf
    import horovod.tensorflow.keras as hvd
    import tensorflow as tf

    hvd.init()
    gpus = tf.config.list_physical_devices("GPU")
    check_workers(hvd, gpus)
    if gpus:
        gpu = gpus[0] if len(gpus) == 1 else gpus[hvd.local_rank()]
        tf.config.set_visible_devices(gpu, "GPU")
        tf.config.experimental.set_memory_growth(gpu, True)

    # Each worker has its share of the images, and all do as many steps.
    images, unseen = (len(labels) for _, labels in arrays.values())
    steps = images // (args.batch_size * hvd.size())
    if steps == 0 or unseen < hvd.size():
        raise Refused(
            f"{images} images to train on and {unseen} to validate on are too few for "
            f"{hvd.size()} workers with batches of {args.batch_size}."
        )

    def batches(part):
        own = slice(hvd.rank(), None, hvd.size())
        images, labels = (array[own] for array in arrays[part])
        images = images[..., None]
        return tf.data.Dataset.from_tensor_slices((images, labels)), len(images)

    training, count = batches("train")
    training = training.shuffle(count).repeat().batch(args.batch_size)
    validation = batches("validation")[0].batch(args.batch_size)

    model = build_model(tf)
    rate = args.base_lr * hvd.size()  # as the global batch is so many times as large
    optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(rate, momentum=0.9))
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    optimizer.build(model.trainable_variables)

    # Rank 0 alone keeps checkpoints, and reads them when SageMaker begins again after
    # it took a spot host away. All begin where rank 0 is.
    epoch = tf.Variable(0, trainable=False)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, epoch=epoch)
    if hvd.rank() == 0:
        manager = tf.train.CheckpointManager(checkpoint, args.checkpoint_dir, 3)
        if manager.latest_checkpoint:
            checkpoint.restore(manager.latest_checkpoint).expect_partial()
            print(f"going on after epoch {int(epoch)}", flush=True)
    epoch.assign(hvd_tf.broadcast_object(int(epoch)))
    hvd_tf.broadcast_variables(model.variables, root_rank=0)
    hvd_tf.broadcast_variables(optimizer.variables, root_rank=0)

    def keep(number, logs):
        epoch.assign(number + 1)
        manager.save(checkpoint_number=number + 1)

    def share(number, metrics):
        if args.logs_uri:
            send(logs, args.logs_uri)

    callbacks = [hvd.callbacks.MetricAverageCallback()]
    if hvd.rank() == 0:  # after the averages, which it is to show
        logs = str(output / "tensorboard")
        callbacks += [
            tf.keras.callbacks.TensorBoard(logs, write_graph=False, profile_batch=0),
            tf.keras.callbacks.LambdaCallback(on_epoch_end=share),
            tf.keras.callbacks.LambdaCallback(on_epoch_end=keep),
        ]
    model.fit(
        training,
        steps_per_epoch=steps,
        initial_epoch=int(epoch),
        epochs=args.epochs,
        validation_data=validation,
        callbacks=callbacks,
        verbose=2 if hvd.rank() == 0 else 0,
    )
    if hvd.rank() == 0:
        # A copy without the optimizer: whoever serves the model has no Horovod, and
        # could not even load its operations. TensorFlow Serving wants a number, 1.
        served = tf.keras.models.clone_model(model)
        served.set_weights(model.get_weights())
        tf.saved_model.save(served, str(models / "1"))


def tell(why):
    """Leave the reason where SageMaker shows it: the file's first 1,024 characters."""
    output = os.environ.get("SM_OUTPUT_DIR", "/opt/ml/output")
    if os.path.isdir(output):
        Path(output, "failure").write_text(why)


if __name__ == "__main__":
    try:
        main()
    except Refused as error:
        tell(str(error))
        sys.exit(f"refused: {error}")
    except Exception:
        tell(traceback.format_exc()[-1024:])
        raise
