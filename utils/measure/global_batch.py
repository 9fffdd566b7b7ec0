"""What the global batch does to accuracy: measured on workers, and in a tiny model.

    python -m utils.measure.global_batch

trains solutions/scaled_solution.py on 1, 2 and 4 workers for the same number of epochs,
by three recipes, from three seeds each, and records how accurate it became. Stopped,
it goes on where it was.

    OPENBLAS_NUM_THREADS=1 python -m utils.measure.global_batch --to-a-loss

records steps and time of the tiny model to a loss, in a minute.
"""

import argparse
import heapq
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas

from distcheck import errors, files, keras_2, machine
from utils.base import course, logs
from utils.measure import optimizers, records
from utils.running import launch
from utils.running.result import Run
from utils.training import data, networks

if TYPE_CHECKING:
    import tensorflow as tf

PROGRAM = course.PACKAGE_ROOT / "solutions" / "scaled_solution.py"
BASE_LR, BATCH, EPOCHS, IMAGES = 0.02, 64, 4, 6_400
WORKERS, SEEDS = (1, 2, 4), (1, 2, 3)
TIME_LIMIT = 600.0  # seconds for a run; on two idle cores it takes about fifty
GOAL = 0.9  # test accuracy, of an attempt

# Recipe -> options of the program, on so many workers. On one, all are the same.
RECIPES = {
    "base rate": lambda n: {"base_lr": BASE_LR / n, "warmup_epochs": 0},
    "scaled": lambda n: {"base_lr": BASE_LR, "warmup_epochs": 0},
    "scaled, warm-up": lambda n: {"base_lr": BASE_LR, "warmup_epochs": 1},
}


# ------------------------------------------------------------ recording


def measure(saved: Path) -> list[dict]:
    """Train on each of WORKERS by each recipe from each of SEEDS.

    Each worker has the share of the cores that one of the largest team has. saved: file
    with the runs that are done, to go on from. Returns, for each run, its workers,
    recipe and seed, and after each epoch the validation accuracy and the seconds of
    training so far. Raises RunFailed as `launch.run` does.
    """
    done = json.loads(saved.read_text()) if saved.exists() else []
    for n in WORKERS:
        for recipe, options in RECIPES.items():
            for seed in SEEDS:
                setting = {"workers": n, "recipe": recipe, "seed": seed}
                if any(setting.items() <= run.items() for run in done):
                    continue
                # With one worker there is nothing to scale.
                if n == 1 and recipe != next(iter(RECIPES)):
                    continue
                run = launch.run(
                    PROGRAM,
                    workers=n,
                    compared_with=max(WORKERS),
                    time_limit=TIME_LIMIT,
                    quiet=True,
                    epochs=EPOCHS,
                    batch_size=BATCH,
                    train_images=IMAGES,
                    width=1,
                    seed=seed,
                    data="auto",
                    **options(n),
                )
                facts = {
                    "accuracy": [round(a, 4) for a in run.history["val_accuracy"]],
                    "seconds": [round(s, 1) for s in run.history["seconds"]],
                    "notices": [text for text in run.notices if "sample" in text],
                }
                done.append(setting | facts)
                reached = f"{facts['accuracy'][-1]:.4f} after {run.seconds:.0f} s"
                print(f"{n} workers, {recipe}, seed {seed}: {reached}")
                files.write_whole(saved, json.dumps(done))
    return done


def grouped(runs: list[dict]) -> dict[str, dict[int, list[dict]]]:
    """Recipe -> workers -> the runs, one for each seed.

    Those of one worker, where the recipes are the same, are in all of them.
    """
    by_recipe: dict[str, dict[int, list[dict]]] = {recipe: {} for recipe in RECIPES}
    for run in runs:
        for recipe in RECIPES if run["workers"] == 1 else [run["recipe"]]:
            by_recipe[recipe].setdefault(run["workers"], []).append(run)
    return by_recipe


def summary(runs: list[dict]) -> pandas.DataFrame:
    """The accuracy after the last epoch, a row for each number of workers and a column
    for each recipe: the mean over the seeds, and in brackets the lowest and highest."""
    table = {}
    for recipe, by_workers in grouped(runs).items():
        for workers, repeats in sorted(by_workers.items()):
            last = [run["accuracy"][-1] for run in repeats]
            words = f"{np.mean(last):.0%} ({min(last):.0%} to {max(last):.0%})"
            table.setdefault(recipe, {})[workers] = words
    return pandas.DataFrame(table).rename_axis("workers")


def seconds_to(run: dict, accuracy: float) -> float | None:
    """Seconds of training until the end of the first epoch with this accuracy."""
    epoch = _first_epoch(run, accuracy)
    return None if epoch is None else run["seconds"][epoch]


def steps_to(run: dict, accuracy: float) -> int | None:
    """The steps until then, each with BATCH images on each worker."""
    epoch = _first_epoch(run, accuracy)
    if epoch is None:
        return None
    return (epoch + 1) * (IMAGES // BATCH // run["workers"])


def _first_epoch(run: dict, accuracy: float) -> int | None:
    epochs = enumerate(run["accuracy"])
    return next((epoch for epoch, reached in epochs if reached >= accuracy), None)


def target(runs: list[dict]) -> float:
    """The highest accuracy, in steps of 5 %, that the last recipe always reached."""
    worst = min(run["accuracy"][-1] for run in runs if run["recipe"] == [*RECIPES][-1])
    return round(math.floor(20 * worst) / 20, 2)


# ------------------------------------------------------------ the gradient's noise


def _softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


class OneLayer:
    """Softmax regression, a network of one layer, on the images of a data set.

    x: float32 (images, pixels), standardised; y: (images, classes), one-hot; weights:
    (pixels, classes), 0 at first.
    """

    def __init__(self, dataset: data.Dataset):
        self.x = _standardised(dataset, dataset.x_train)
        self.y = np.eye(len(dataset.classes), dtype=np.float32)[dataset.y_train]
        self.weights = np.zeros((self.x.shape[1], self.y.shape[1]), np.float32)

    def _guess(self, x: np.ndarray) -> np.ndarray:
        return _softmax(x @ self.weights)

    def loss(self) -> float:
        """Mean cross-entropy of all images."""
        probabilities = (self._guess(self.x) * self.y).sum(axis=1)
        return float(-np.log(np.maximum(probabilities, 1e-12)).mean())

    def gradient(self, chosen: np.ndarray | slice = slice(None)) -> np.ndarray:
        """The gradient of these images' mean loss, by default of all images'."""
        x, y = self.x[chosen], self.y[chosen]
        return x.T @ (self._guess(x) - y) / len(x)

    def train(self, batch: int, rate: float, steps: int, random) -> None:
        """Take so many steps; every batch is drawn anew."""
        for _ in range(steps):
            self.weights -= rate * self.gradient(
                random.integers(len(self.x), size=batch)
            )


def deviations(
    model: OneLayer, batches: tuple[int, ...], repeats: int = 20, seed: int = 1
) -> dict[int, float]:
    """How far the gradient of a batch is from that of all images: batch -> the root
    mean square of the distance, over the length of the gradient of all images."""
    random = np.random.default_rng(seed)
    full = model.gradient()
    by_batch = {}
    for batch in batches:
        squares = [
            np.sum(
                (model.gradient(random.integers(len(model.x), size=batch)) - full) ** 2
            )
            for _ in range(repeats)
        ]
        by_batch[batch] = float(np.sqrt(np.mean(squares)) / np.linalg.norm(full))
    return by_batch


def noise_scale(by_batch: dict[int, float]) -> float:
    """The batch whose gradient is as much noise as signal, from `deviations`.

    Noise falls with the square root of the batch: so each batch times its squared
    deviation is an estimate (McCandlish et al., 2018, arXiv:1812.06162).
    """
    return float(np.mean([batch * value**2 for batch, value in by_batch.items()]))


DIVERGED = 10.0  # a cross-entropy from which no training of `steps_needed` came back


def steps_needed(
    dataset: data.Dataset,
    batches: tuple[int, ...],
    loss: float = 0.7,
    rates: tuple[float, ...] = (0.064, 0.032, 0.016, 0.008, 0.004, 0.002, 0.001),
    limit: int = 600,
    seed: int = 1,
) -> dict[int, int]:
    """Batch -> the steps until the loss of all images is reached, with the best of the
    rates. It is looked at after 5, 10, 15 ... steps; a rate with which it gets above
    DIVERGED is given up, and batches that take more than `limit` are left out."""
    steps: dict[int, int] = {}
    model = OneLayer(dataset)
    for batch in batches:
        best = limit
        for rate in rates:
            model.weights[:] = 0
            random = np.random.default_rng(seed)
            for done in range(5, best + 1, 5):
                model.train(batch, rate, 5, random)
                reached = model.loss()
                if reached <= loss:
                    best = done
                    steps[batch] = done
                if not loss < reached < DIVERGED:
                    break
    return steps


def to_a_loss(
    dataset: data.Dataset, batches: tuple[int, ...], seeds: Sequence[int]
) -> list[dict]:
    """What `steps_needed` finds for each batch and seed, and how long one core computes
    for it: rows of batch, seed, steps, and seconds of processor time."""
    model, rows = OneLayer(dataset), []
    for seed in seeds:
        for batch, steps in steps_needed(dataset, batches, seed=seed).items():
            random, began = np.random.default_rng(seed), time.process_time()
            model.train(batch, 0.0, steps, random)  # any rate takes as long
            row = {"batch": batch, "seed": seed, "steps": steps}
            rows.append(row | {"seconds": round(time.process_time() - began, 4)})
    return rows


# ------------------------------------------------------------ a small network

HIDDEN = 32  # units of its one hidden layer


def small_network(
    dataset: data.Dataset,
    batch: int,
    rates: Sequence[float],
    seed: int,
    optimizer: Callable = optimizers.Momentum,
) -> float:
    """Train a network with one hidden layer, and return its validation accuracy.

    batch: images of a step, of all workers together. rates: the learning rate of each
    step, and so their number. seed: of the weights, and of the order of the images.
    optimizer: makes one, such as those of `utils.measure.optimizers`. In NumPy, as it
    takes less than a second: its workers are not run, only their gradients' mean is
    computed, which is the gradient of all their images.
    """
    random = np.random.default_rng(seed)
    x, labels = _standardised(dataset, dataset.x_train), dataset.y_train
    classes = len(dataset.classes)
    weights = _new_weights(random, x.shape[1], classes)
    steps = optimizer()
    passes = -(-len(rates) * batch // len(x))
    order = np.concatenate([random.permutation(len(x)) for _ in range(passes)])
    targets = np.eye(classes, dtype=np.float32)[labels]
    for step, rate in enumerate(rates):
        chosen = order[step * batch : (step + 1) * batch]
        gradients = _gradients(weights, x[chosen], targets[chosen])
        steps.step(weights, gradients, rate)
    return _accuracy(weights, dataset)


def train_for(
    dataset: data.Dataset,
    step_seconds: Sequence[float],
    seconds: float,
    rate: float,
    seed: int,
    waits: bool,
    batch: int = 8,
) -> float:
    """Train the small network for some seconds on workers of which each takes a time of
    its own for a step, and return its validation accuracy. The time is pretended.

    step_seconds: of each worker. batch: images of a worker's step. waits: the workers
    wait for the slowest and make one update with the mean of their gradients; else
    each of them updates the weights as soon as it is done, with a gradient of the
    weights as they were when it began.
    """
    random = np.random.default_rng(seed)
    x = _standardised(dataset, dataset.x_train)
    targets = np.eye(len(dataset.classes), dtype=np.float32)[dataset.y_train]
    weights = _new_weights(random, x.shape[1], len(dataset.classes))

    def gradients() -> tuple[np.ndarray, ...]:
        chosen = random.integers(len(x), size=batch)
        return _gradients(weights, x[chosen], targets[chosen])

    def update(change: Sequence[np.ndarray]) -> None:
        for layer, gradient in zip(weights, change, strict=True):
            layer -= rate * gradient

    if waits:
        for _ in range(int(seconds / max(step_seconds) + 1e-9)):
            of_all = [gradients() for _ in step_seconds]
            update([np.mean(layer, axis=0) for layer in zip(*of_all, strict=True)])
        return _accuracy(weights, dataset)
    working = [(each, n, gradients()) for n, each in enumerate(step_seconds)]
    heapq.heapify(working)  # who is done first; of equals, the first worker
    while working[0][0] <= seconds + 1e-9:
        now, worker, change = heapq.heappop(working)
        update(change)
        heapq.heappush(working, (now + step_seconds[worker], worker, gradients()))
    return _accuracy(weights, dataset)


def _new_weights(
    random: np.random.Generator, inputs: int, classes: int
) -> list[np.ndarray]:
    """He's initial weights, and biases of 0."""
    return [
        layer.astype(np.float32)
        for ins, outs in ((inputs, HIDDEN), (HIDDEN, classes))
        for layer in (
            random.normal(0, np.sqrt(2 / ins), (ins, outs)),
            np.zeros(outs),
        )
    ]


def _accuracy(weights: list[np.ndarray], dataset: data.Dataset) -> float:
    """On the images to validate on."""
    _, scores = _forward(weights, _standardised(dataset, dataset.x_val))
    return float((scores.argmax(axis=1) == dataset.y_val).mean())


def _standardised(dataset: data.Dataset, images: np.ndarray) -> np.ndarray:
    pixels = (images - dataset.mean) / dataset.std
    return pixels.reshape(len(images), -1).astype(np.float32)


def _forward(weights: list[np.ndarray], x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What the hidden layer gives, and the scores of the classes."""
    first, first_bias, second, second_bias = weights
    hidden = np.maximum(x @ first + first_bias, 0)
    return hidden, hidden @ second + second_bias


def _gradients(
    weights: list[np.ndarray], x: np.ndarray, targets: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Of the mean cross-entropy, by each of the weights."""
    hidden, scores = _forward(weights, x)
    error = (_softmax(scores) - targets) / len(x)
    before = (error @ weights[2].T) * (hidden > 0)
    return x.T @ before, before.sum(axis=0), hidden.T @ error, error.sum(axis=0)


# ------------------------------------------------------------ validation


def three_rounds(
    right: np.ndarray, workers: int, repeats: int = 300, seed: int = 1
) -> np.ndarray:
    """What workers take the accuracy for that share three rounds of random validation.

    right: bool (images,), which the network recognizes. Each worker draws 3/N of them,
    pass by pass, on its own, and the mean is taken. Returns float (repeats,).
    """
    random = np.random.default_rng(seed)
    draws = 3 * len(right) // workers

    def one_worker() -> float:
        passes = [random.permutation(right) for _ in range(-(-draws // len(right)))]
        return float(np.concatenate(passes)[:draws].mean())

    return np.array(
        [np.mean([one_worker() for _ in range(workers)]) for _ in range(repeats)]
    )


# ------------------------------------------------------------ time to accuracy


@dataclass(frozen=True)
class Attempt:
    """seconds: from start to end, as the launcher saw it; accuracy: of the weights kept
    in `folder`, on all test images; run: what the program itself said."""

    name: str
    workers: int
    seconds: float
    accuracy: float
    folder: Path | None = None
    run: Run | None = None

    @property
    def meets_goal(self) -> bool:
        return self.accuracy >= GOAL

    def beats(self, other: "Attempt") -> bool:
        """At least as good in both, and better in one?"""
        ours, theirs = (self.accuracy, -self.seconds), (other.accuracy, -other.seconds)
        return ours != theirs and all(a >= b for a, b in zip(ours, theirs, strict=True))


def attempt(
    name: str,
    script: str | Path,
    workers: int,
    width: int | None = 1,
    **options: object,
) -> Attempt:
    """Run a program, time it, and test the weights that it kept on all test images.

    It has to keep them as exercises/scaled.py does, in the empty folder that it gets
    as --checkpoint. Its own word on time and accuracy is not asked for. width: of the
    course's network; None for a network of the program's own, which it keeps whole.
    options: its other ones. Raises UserError if it kept none of that, and as
    `launch.run` does.
    """
    folder = logs.new_folder("attempt") / "kept"
    if width is not None:
        options["width"] = width
    run = launch.run(script, workers=workers, checkpoint=files.shown(folder), **options)
    trained, everything = data.load("auto", options.get("train_images")), data.load()
    tested = replace(trained, x_test=everything.x_test, y_test=everything.y_test)
    accuracy = score(folder, tested, width)
    return Attempt(name, workers, run.seconds, accuracy, folder, run)


def score(folder: Path, dataset: data.Dataset, width: int | None = 1) -> float:
    """The accuracy on x_test of the course's network with the weights in `folder`, or,
    where width is None, of the network that is kept there whole.

    The newest checkpoint counts: of tf.train, by whatever key it holds the model, or a
    file of Keras. Raises UserError if there is none, or one of something else.
    """
    keras_2.choose()
    import tensorflow as tf

    # Of another network it would list every single weight.
    tf.get_logger().setLevel("ERROR")
    if width is None:
        model = _whole_network(folder, dataset)
    else:
        model = _course_network(folder, width)
    return data.test_accuracy(model, dataset)


def _newest(folder: Path, *endings: str) -> Path | None:
    """The newest file in a folder with such a name."""
    paths = (path for ending in endings for path in folder.rglob(f"*.{ending}"))
    return max(paths, key=lambda path: path.stat().st_mtime_ns, default=None)


def _course_network(folder: Path, width: int) -> "tf.keras.Model":
    """The course's network with the weights in a folder."""
    import tensorflow as tf

    model = networks.wide_resnet(width)
    newest = tf.train.latest_checkpoint(str(folder))
    file_of_keras = _newest(folder, "keras", "h5")
    if newest is not None:
        reason = _restore(model, newest)
    elif file_of_keras:
        reason = _load(model, file_of_keras)
    else:
        raise errors.UserError(
            f"there is no checkpoint in {files.shown(folder)}: is the program told "
            "to save there, and does it save there?"
        )
    if reason:
        raise errors.UserError(
            f"{files.shown(folder)} holds no weights of WRN-16-{width}: {reason}"
        )
    return model


def _whole_network(folder: Path, dataset: data.Dataset) -> "tf.keras.Model":
    """The network in a folder's newest *.keras. Only layers of Keras' own are loaded,
    no code that comes with the file."""
    import tensorflow as tf

    path = _newest(folder, "keras")
    if path is None:
        raise errors.UserError(
            f"there is no network in {files.shown(folder)}: let rank 0 keep it whole, "
            'with model.save(args.checkpoint / "model.keras").'
        )
    try:
        model = tf.keras.models.load_model(path, compile=False)
    except (OSError, TypeError, ValueError) as error:
        raise errors.UserError(
            f"{files.shown(path)} can't be loaded: {str(error).splitlines()[0]}"
        ) from None
    shapes = (None, *dataset.image_shape), (None, len(dataset.classes))
    if (model.input_shape, model.output_shape) != shapes:
        raise errors.UserError(
            f"{files.shown(path)} makes {model.output_shape} of {model.input_shape}; "
            f"wanted is {shapes[1]} of {shapes[0]}: a score for each class."
        )
    return model


def _restore(model, newest: str) -> str:
    """Fill the model from a checkpoint of tf.train; returns why that can't be done."""
    import tensorflow as tf

    names = tf.train.load_checkpoint(newest).get_variable_to_shape_map()
    keys = {name.partition("/")[0] for name in names if "/" in name} - {"save_counter"}
    # By the course's key first; last, the checkpoint may be of the model itself.
    ways = [{key: model} for key in sorted(keys, key=lambda key: key != "model")]
    reason = ""
    for kept in (*ways, {"root": model}):
        try:
            status = tf.train.Checkpoint(**kept).restore(newest)
            status.assert_existing_objects_matched().expect_partial()
            return ""
        except (AssertionError, ValueError) as error:
            reason = reason or str(error).splitlines()[0]
    return f"its keys are {', '.join(sorted(keys)) or 'none'}; {reason}"


def _load(model, path: Path) -> str:
    """Fill the model from a file of Keras; returns why that can't be done."""
    try:
        model.load_weights(path)
    except (OSError, ValueError) as error:
        return f"{path.name}: {str(error).splitlines()[0]}"
    return ""


def front(attempts: list[Attempt]) -> list[Attempt]:
    """The Pareto front: those that none beats, the fastest first."""
    best = [a for a in attempts if not any(b.beats(a) for b in attempts)]
    return sorted(best, key=lambda candidate: candidate.seconds)


# ------------------------------------------------------------ the command


def record_to_a_loss() -> None:
    """Record `to_a_loss`, of one thread, for batches from 1 to 1,024."""
    one_thread = "OPENBLAS_NUM_THREADS=1"
    if one_thread.partition("=")[::2] not in os.environ.items():
        raise errors.UserError(f"set {one_thread}: threads wait for one another.")
    rows = to_a_loss(data.load("sample", 2_400), (1, 4, 16, 64, 256, 1024), range(1, 6))
    command = f"{one_thread} python -m utils.measure.global_batch --to-a-loss"
    records.save("to_a_loss", {"rows": rows}, command)


def main() -> None:
    parser = argparse.ArgumentParser(description="Record what the global batch does.")
    parser.add_argument("--to-a-loss", action="store_true")
    args = parser.parse_args()
    if args.to_a_loss:
        record_to_a_loss()
        return
    saved = course.root() / "logs" / "global_batch.json"
    saved.parent.mkdir(exist_ok=True)
    runs = measure(saved)
    notices = list(dict.fromkeys(text for run in runs for text in run.pop("notices")))
    results = {"runs": runs, "batch": BATCH, "base_lr": BASE_LR, "target": target(runs)}
    results |= {"epochs": EPOCHS, "images": IMAGES}
    share = machine.share(max(WORKERS))
    note = f"Threads of each worker: {share}, on {machine.cores()} cores."
    command = "python -m utils.measure.global_batch"
    records.save("global_batch", results, command, (note, *notices))
    saved.unlink()


if __name__ == "__main__":
    main()
