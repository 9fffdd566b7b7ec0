"""Tell Amazon SageMaker to run sagemaker_train.py on some hosts, for money.

    python solutions/cluster/sagemaker_launch.py --role ROLE --bucket BUCKET
    python solutions/cluster/sagemaker_launch.py --role ROLE --bucket BUCKET --start
    python solutions/cluster/sagemaker_launch.py --role ROLE --bucket BUCKET \\
        --hosts 1 --instance-type ml.g4dn.12xlarge --processes-per-host 4 --start

Only `--start` starts anything; without it, the call is printed. It needs an account,
`pip install 'sagemaker<3'` (version 3 has no estimators), a role that may train and
read and write in the bucket, and Fashion-MNIST's four .gz files there: train-* in
s3://BUCKET/fashion-mnist/train, t10k-* in s3://BUCKET/fashion-mnist/validation. The
course had no account: the call is checked against the documentation, and was not made.
While it trains, `tensorboard --logdir FOLDER` shows what this brings, when repeated:

    aws s3 sync s3://BUCKET/survive/logs FOLDER

And `sagemaker_take_down.sh BUCKET` says what still costs afterwards.
"""

import argparse
import json
import os
from pathlib import Path

TRAIN = Path(__file__).with_name("sagemaker_train.py")
# 2.12 is said to be the last of SageMaker's TensorFlow images that has Horovod.
FRAMEWORK, PYTHON = "2.12", "py310"


def options(words=None) -> argparse.Namespace:
    """What the user chose on the command line."""
    parser = argparse.ArgumentParser(
        description="Train on SageMaker.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    option = parser.add_argument
    option("--role", required=True, help="ARN or name of the role to train with")
    option("--bucket", required=True, help="for data, checkpoints and the model")
    option("--instance-type", default="ml.c5.xlarge", help="kind of each host")
    option("--hosts", type=int, default=2, help="how many of them")
    option(
        "--processes-per-host", type=int, default=2, help="one for each GPU, or core"
    )
    option("--epochs", type=int, default=10)
    option("--max-hours", type=int, default=1, help="end it then, whatever it does")
    option("--start", action="store_true", help="start it, and pay for it")
    chosen = parser.parse_args(words)
    for name in ("hosts", "processes_per_host", "epochs", "max_hours"):
        if getattr(chosen, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be 1 or more")
    if chosen.bucket.startswith("s3:") or "/" in chosen.bucket:
        parser.error(f"--bucket is a name, such as my-bucket, not {chosen.bucket}")
    return chosen


def estimator_arguments(chosen: argparse.Namespace) -> dict:
    """What sagemaker.tensorflow.TensorFlow is to be called with.

    Meaning of each: SageMaker Python SDK 2, "Use TensorFlow".
    """
    seconds = 3600 * chosen.max_hours
    place = f"s3://{chosen.bucket}/survive"
    return {
        "entry_point": os.path.relpath(TRAIN),
        "role": chosen.role,
        "instance_count": chosen.hosts,
        "instance_type": chosen.instance_type,
        "framework_version": FRAMEWORK,
        "py_version": PYTHON,
        # Without it, each host would train alone.
        "distribution": {
            "mpi": {
                "enabled": True,
                "processes_per_host": chosen.processes_per_host,
                "custom_mpi_options": "--mca mpi_yield_when_idle 1",
            }
        },
        "hyperparameters": {"epochs": chosen.epochs, "logs-uri": f"{place}/logs"},
        "model_dir": False,  # or it adds a --model_dir, which nothing here reads
        "output_path": f"{place}/output",
        # Spot hosts cost less and may be taken away; what is kept here is there again
        # when it begins anew.
        "checkpoint_s3_uri": f"{place}/checkpoints",
        "use_spot_instances": True,
        "max_run": seconds,
        "max_wait": 2 * seconds,
    }


def channels(chosen: argparse.Namespace) -> dict[str, str]:
    """The estimator's `fit` gets these; each becomes SM_CHANNEL_<NAME>."""
    place = f"s3://{chosen.bucket}/fashion-mnist"
    return {name: f"{place}/{name}" for name in ("train", "validation")}


def main() -> None:
    chosen = options()
    arguments = estimator_arguments(chosen)
    if not chosen.start:
        print("TensorFlow(**" + json.dumps(arguments, indent=4) + ")")
        print(f".fit({json.dumps(channels(chosen))})")
        print("Nothing was started: --start does, and SageMaker charges for it.")
        return
    try:
        from sagemaker.tensorflow import TensorFlow
    except ImportError as error:
        raise SystemExit(
            f"{error}. SageMaker's package is missing, or is too new: "
            "pip install 'sagemaker<3', in an environment of its own."
        ) from error
    TensorFlow(**arguments).fit(channels(chosen))


if __name__ == "__main__":
    main()
