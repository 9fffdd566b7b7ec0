"""Train on Spark, with `horovod.spark.run`: a worker in each Spark task.

    python solutions/cluster/spark_train.py --workers 2 --folder kept
    spark-submit --master spark://HOST:7077 solutions/cluster/spark_train.py \\
        --workers 8 --folder /mnt/shared/kept

The first line needs no cluster: Spark runs on this machine, with a core for each
worker. The second hands the same function to a cluster, each of whose nodes has the
course's environment at the same place, and a folder that all of them share. Either
goes on from the newest checkpoint in the folder. `make spark` installs Spark.
"""

import argparse
import json
import signal
import sys
from pathlib import Path

from utils import UserError, spark


def train(args):
    """One worker's work. Spark sends this function to its tasks, so all that it needs
    is imported here; Horovod tells each worker who it is."""
    import dataclasses
    import hashlib
    import os
    import socket

    os.environ["TF_USE_LEGACY_KERAS"] = "1"  # Keras 2; Horovod knows no Keras 3

    import horovod.tensorflow as hvd_tf
    import horovod.tensorflow.keras as hvd
    import tensorflow as tf
    from horovod.spark.task import get_available_devices

    from utils import data, networks, survival

    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    if given := get_available_devices():  # by Spark, to this task
        os.environ["CUDA_VISIBLE_DEVICES"] = given[0]
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        gpu = gpus[0] if len(gpus) == 1 else gpus[hvd.local_rank()]
        tf.config.set_visible_devices(gpu, "GPU")
        tf.config.experimental.set_memory_growth(gpu, True)
    args.width = args.width or (10 if gpus else 1)  # the driver may have no GPU
    if args.base_lr is None:
        args.base_lr = 0.005 / args.width

    data.seed_worker(args.seed)
    dataset = data.load(args.data, args.train_images)
    steps = len(dataset.x_train) // (size * args.batch_size)
    # Every size-th image, from number `rank` on: no worker has another's.
    own = dataclasses.replace(
        dataset,
        x_train=dataset.x_train[rank::size],
        y_train=dataset.y_train[rank::size],
    )

    rate = args.base_lr * size
    optimizer = tf.keras.optimizers.SGD(rate, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer)
    model = networks.wide_resnet(args.width)
    model.compile(optimizer, "categorical_crossentropy", ["accuracy"])
    optimizer.build(model.trainable_variables)

    # Rank 0 alone reads and writes checkpoints; the others get what it has.
    kept = tf.train.Checkpoint(model=model, optimizer=optimizer, epoch=tf.Variable(0))
    manager = tf.train.CheckpointManager(kept, args.folder, max_to_keep=3)
    if rank == 0:
        survival.restore_newest(kept, args.folder)
    done = hvd_tf.broadcast_object(int(kept.epoch))
    hvd_tf.broadcast_variables(model.variables, root_rank=0)
    hvd_tf.broadcast_variables(optimizer.variables, root_rank=0)

    def keep(epoch, logs):
        if rank == 0:
            kept.epoch.assign(epoch + 1)
            manager.save(checkpoint_number=epoch + 1)
            print(f"epoch {epoch + 1}: accuracy {logs['val_accuracy']:.4f}", flush=True)

    history = model.fit(
        data.training_batches(own, args.batch_size, args.seed),
        steps_per_epoch=steps,
        initial_epoch=done,
        epochs=args.epochs,
        validation_data=data.validation_shard(dataset, args.val_batch_size, rank, size),
        callbacks=[
            hvd.callbacks.MetricAverageCallback(),
            tf.keras.callbacks.LambdaCallback(on_epoch_end=keep),
        ],
        verbose=0,
    ).history
    # What this returns comes back to the driver.
    trained = b"".join(one.numpy().tobytes() for one in model.trainable_variables)
    return {
        "rank": rank,
        "host": socket.gethostname(),
        "data": dataset.name,
        "images": len(own.x_train),
        "history": {key: [float(v) for v in row] for key, row in history.items()},
        "epochs_before": done,
        "digest": hashlib.sha256(trained).hexdigest()[:12],
        "weights": model.get_weights() if rank == 0 else None,
    }


def time_is_up(*_):
    raise UserError("the time limit has passed; a larger --time-limit gives longer.")


def main():
    parser = argparse.ArgumentParser(
        description="Train a WideResNet-16 on Fashion-MNIST, on Spark.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    option = parser.add_argument
    option("--master", help="spark-submit's, else this machine with a core per worker")
    option("--workers", type=int, default=2, help="Spark tasks that train together")
    option("--folder", default="kept", help="shared by all, for checkpoints and result")
    option("--epochs", type=int, default=2, help="train so many epochs in all")
    option("--batch-size", type=int, default=64, help="images per worker and step")
    option("--val-batch-size", type=int, default=200, help="validation images likewise")
    option("--base-lr", type=float, help="for one worker; by itself 0.005 / width")
    option("--width", type=int, help="k of WRN-16-k; by itself 10 on GPUs, else 1")
    option("--train-images", type=int, help="take so many, and a sixth to validate on")
    option("--data", choices=["auto", "real", "sample"], default="auto", help="images")
    option("--seed", type=int, default=1, help="make weights and order repeatable")
    option("--start-limit", type=int, default=120, help="seconds for all to start in")
    option("--time-limit", type=int, default=3600, help="seconds for the whole")
    args = parser.parse_args()
    args.folder = str(Path(args.folder).absolute())  # tasks have folders of their own
    Path(args.folder).mkdir(parents=True, exist_ok=True)

    with spark.session(args.workers, args.master) as session:
        import horovod.spark

        signal.signal(signal.SIGALRM, time_is_up)
        signal.alarm(args.time_limit)
        results = horovod.spark.run(
            train,
            args=(args,),
            num_proc=args.workers,
            use_gloo=True,
            start_timeout=args.start_limit,
            verbose=0,
            nics=spark.network(session),
        )
        signal.alarm(0)

    weights = results[0].pop("weights")
    for worker in results:
        print("rank {rank} on {host}: {images} images of its own".format(**worker))
    print(f"the driver has the network: {sum(w.size for w in weights):,} numbers")
    result = Path(args.folder, "result.json")
    half = result.with_suffix(".half")
    half.write_text(json.dumps(results))
    half.replace(result)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"UserError: {error}")
