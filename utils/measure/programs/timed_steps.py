"""Train the course's network for some steps and note how long each of them takes.

    python utils/measure/programs/timed_steps.py --out FOLDER
    mpirun -np 2 python utils/measure/programs/timed_steps.py --with horovod --cases together:64x1 alone:64x1 --out FOLDER

A case is WAY:BATCHxWIDTH. `together` averages gradients, as the course's programs do;
`alone`, workers train side by side without a word to each other: what the machine
could give at most. All cases take turns, round by round, in the same processes.

Process r writes FOLDER/timed-r.json. `course bench` runs this file in many ways.
"""  # noqa: E501

import time

born = time.time()

import argparse  # noqa: E402
import collections  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import tempfile  # noqa: E402
from pathlib import Path  # noqa: E402

os.environ["TF_USE_LEGACY_KERAS"] = "1"  # Keras 2; Horovod knows no Keras 3

import tensorflow as tf  # noqa: E402

from distcheck import files  # noqa: E402
from utils.training import data, devices, networks  # noqa: E402

imported = time.time()

WAYS = ("single", "horovod", "mirrored", "multi_worker")


class Clock(tf.keras.callbacks.Callback):
    """The moments at which the batches of a fit ended."""

    def __init__(self):
        super().__init__()
        self.ends: list[float] = []

    def on_train_batch_end(self, batch, logs=None):
        self.ends.append(time.time())


class Profiler(tf.keras.callbacks.Callback):
    """TensorFlow's profiler, over the steps of a fit that come after `warm_up` others.

    Appends to `operations` the seconds of a step: type of operation -> seconds.
    """

    def __init__(self, warm_up: int, operations: list[dict[str, float]]):
        super().__init__()
        self.warm_up, self.operations = warm_up, operations

    def on_train_batch_begin(self, batch, logs=None):
        if batch == self.warm_up:
            self.folder = tempfile.TemporaryDirectory()
            tf.profiler.experimental.start(self.folder.name)

    def on_train_end(self, logs=None):
        steps = self.params["steps"] - self.warm_up
        tf.profiler.experimental.stop()
        with self.folder as name:
            self.operations.append(seconds_by_type(name, steps))


def seconds_by_type(folder: str | Path, steps: int) -> dict[str, float]:
    """Seconds of a step in each type of operation, from the profile in a folder.

    An operation is an event named NAME:TYPE; those of iterators hold others in them.
    """
    from utils.measure import step_profile  # the start is timed, too

    totals = collections.Counter()
    for event in step_profile.events(folder):
        operation, _, kind = event.name.partition(":")
        if operation and kind.isidentifier():
            totals[kind.removeprefix("_MklNative")] += event.end - event.start
    return {kind: seconds / steps for kind, seconds in totals.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    option = parser.add_argument
    option("--with", dest="how", choices=WAYS, default="single")
    option("--cases", nargs="+", default=["alone:64x1"], metavar="WAY:BATCHxWIDTH")
    option("--rounds", type=int, default=1)
    option("--steps", type=int, default=20, help="timed steps of a case in a round")
    option("--warm-up", type=int, default=3, help="steps before them")
    option("--replicas", type=int, default=1, help="of --with mirrored")
    option("--precision", default="float32", help="policy, such as mixed_bfloat16")
    option("--jit", action="store_true", help="compile with XLA")
    option("--profile", action="store_true", help="time each kind of operation, too")
    option("--data", choices=data.CHOICES, default="auto")
    option("--train-images", type=int, help="as of all programs")
    option("--out", type=Path, default=os.environ.get("COURSE_RUN", "."))
    args = parser.parse_args()
    sizes = {case: parse(case) for case in args.cases}

    strategy, rank = tf.distribute.get_strategy(), 0
    barrier = lambda: None  # noqa: E731
    if args.how == "horovod":
        import horovod.tensorflow.keras as hvd

        hvd.init()
        rank = hvd.rank()

        def barrier():
            hvd.allreduce(0.0)  # ends when all have come

        devices.pin(hvd.local_rank())
    elif args.how == "mirrored":
        strategy = tf.distribute.MirroredStrategy(
            devices.replica_devices(args.replicas)
        )
    elif args.how == "multi_worker":
        strategy = tf.distribute.MultiWorkerMirroredStrategy(
            communication_options=devices.communication()
        )
        rank = strategy.cluster_resolver.task_id
    started = time.time()
    tf.keras.mixed_precision.set_global_policy(args.precision)
    dataset = data.load(args.data, args.train_images)
    loaded = time.time()

    def optimizer(way):
        plain = tf.keras.optimizers.SGD(0.02, momentum=0.9)
        if args.how == "horovod" and way == "together":
            return hvd.DistributedOptimizer(plain)
        return plain

    models, batches = {}, {}
    for case, (way, batch, width) in sizes.items():
        with strategy.scope():
            models[case] = networks.wide_resnet(width)
            models[case].compile(
                optimizer(way),
                tf.keras.losses.CategoricalCrossentropy(),
                metrics=["accuracy"],
                jit_compile=args.jit or None,
            )
        # Every worker of a process for each has its own; replicas share one.
        of_process = batch * (args.replicas if args.how == "mirrored" else 1)
        batches[case] = data.training_batches(dataset, of_process)
        if args.how == "multi_worker":
            batches[case] = strategy.distribute_datasets_from_function(
                lambda context, b=batches[case]: b
            )
    built = time.time()

    first = None
    steps = {case: [] for case in args.cases}
    operations = {case: [] for case in args.cases}
    for turn in range(args.rounds):
        # Each case is first, second, ... in turn: what warms up or tires favours none.
        shift = turn % len(args.cases)
        for case in args.cases[shift:] + args.cases[:shift]:
            barrier()
            clock = Clock()
            callbacks = [clock]
            if args.profile:
                callbacks.append(Profiler(args.warm_up, operations[case]))
            models[case].fit(
                batches[case],
                steps_per_epoch=args.warm_up + args.steps,
                callbacks=callbacks,
                verbose=0,
            )
            first = first or clock.ends[0]
            timed = clock.ends[args.warm_up - 1 :]
            steps[case].append((timed[-1] - timed[0]) / args.steps)
    report = {
        "data": dataset.name,
        "moments": {
            "born": born,
            "imported": imported,
            "started": started,
            "loaded": loaded,
            "built": built,
            "first_batch": first,
        },
        "step_seconds": steps,
        "operation_seconds": operations,
    }
    files.write_whole(args.out / f"timed-{rank}.json", json.dumps(report))


def parse(case: str) -> tuple[str, int, int]:
    """(way, images per worker and step, width) of WAY:BATCHxWIDTH."""
    way, _, size = case.partition(":")
    batch, _, width = size.partition("x")
    if way not in ("alone", "together") or not (batch.isdigit() and width.isdigit()):
        raise SystemExit(f"{case!r} is not a case like together:64x1 or alone:64x1.")
    return way, int(batch), int(width)


if __name__ == "__main__":
    main()
