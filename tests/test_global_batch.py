"""What notebook 16 measures and draws, and the exact shard of the validation images."""

import json
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest

from distcheck import errors
from utils import figures
from utils.measure import global_batch, optimizers, records
from utils.measure.global_batch import Attempt
from utils.training import data, networks, samples

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def dataset():
    arrays = samples.fashion_mnist()
    few = {key: rows[: 300 if "train" in key else 10] for key, rows in arrays.items()}
    return data.dataset_of("garments", few)


# ------------------------------------------------------------ the shard


@pytest.mark.parametrize("size", [1, 2, 3, 10])
def test_the_shards_together_are_every_image_once(dataset, size):
    images_seen = []
    for rank in range(size):
        batches = list(data.validation_shard(dataset, 3, rank, size))
        images = np.concatenate([x.numpy() for x, _ in batches])
        labels = np.concatenate([y.numpy() for _, y in batches]).argmax(axis=1)
        assert (labels == dataset.y_val[rank::size]).all()
        assert len(batches) == -(-len(images) // 3)
        pixels = np.rint(images[..., 0] * dataset.std + dataset.mean).astype(np.uint8)
        images_seen += [image.tobytes() for image in pixels]
    assert sorted(images_seen) == sorted(image.tobytes() for image in dataset.x_val)


@pytest.mark.parametrize(
    ("rank", "size", "message"),
    [(2, 2, "no rank 2"), (-1, 2, "no rank -1"), (10, 11, "too few for 11 workers")],
)
def test_a_shard_that_there_is_not_is_refused(dataset, rank, size, message):
    with pytest.raises(errors.UserError, match=message):
        data.validation_shard(dataset, 3, rank, size)


# ------------------------------------------------------------ noise


def test_the_gradient_is_that_of_the_loss(dataset):
    layer = global_batch.OneLayer(dataset)
    gradient = layer.gradient()
    place = np.unravel_index(np.abs(gradient).argmax(), gradient.shape)
    losses = []
    for change in (-1e-2, 1e-2):
        layer.weights[:] = 0
        layer.weights[place] = change
        losses.append(layer.loss())
    assert (losses[1] - losses[0]) / 2e-2 == pytest.approx(gradient[place], rel=0.02)


def test_noise_falls_with_the_square_root_of_the_batch(dataset):
    layer = global_batch.OneLayer(dataset)
    noise = global_batch.deviations(layer, (4, 16, 64), repeats=100)
    assert noise[4] / noise[16] == pytest.approx(2, rel=0.15)
    assert noise[16] / noise[64] == pytest.approx(2, rel=0.15)
    scale = global_batch.noise_scale(noise)
    assert global_batch.noise_scale({b: (scale / b) ** 0.5 for b in (2, 8)}) == (
        pytest.approx(scale)
    )


def test_a_larger_batch_needs_fewer_steps_and_more_images(dataset):
    steps = global_batch.steps_needed(dataset, (2, 32, 256), loss=1.0)
    assert steps[2] > steps[32] >= steps[256]
    assert 2 * steps[2] < 32 * steps[32] < 256 * steps[256]


def test_batches_that_take_too_long_are_left_out(dataset):
    assert global_batch.steps_needed(dataset, (1, 2), loss=0.01, limit=20) == {}


def test_three_rounds_are_right_in_the_mean_and_exact_with_few_workers():
    right = np.arange(100) < 70
    for workers in (1, 3):  # whole passes
        assert np.allclose(global_batch.three_rounds(right, workers, 5), 0.7)
    accuracies = global_batch.three_rounds(right, 8)
    assert accuracies.mean() == pytest.approx(0.7, abs=0.01)
    assert accuracies.std() > 0.01


# ------------------------------------------------------------ records


def run(workers, recipe, seed, accuracy):
    seconds = [10.0 * n / workers for n in range(1, len(accuracy) + 1)]
    return {
        "workers": workers,
        "recipe": recipe,
        "seed": seed,
        "accuracy": accuracy,
        "seconds": seconds,
    }


RUNS = [run(1, "base rate", seed, [0.5, 0.8]) for seed in (1, 2)] + [
    run(2, recipe, seed, [0.3, last + seed / 100])
    for recipe, last in (("base rate", 0.6), ("scaled", 0.7), ("scaled, warm-up", 0.77))
    for seed in (1, 2)
]


def test_one_worker_belongs_to_all_recipes():
    groups = global_batch.grouped(RUNS)
    assert list(groups) == list(global_batch.RECIPES)
    assert all(
        len(by_workers[n]) == 2 for by_workers in groups.values() for n in (1, 2)
    )
    assert {r["recipe"] for r in groups["scaled"][2]} == {"scaled"}


def test_the_time_and_the_target(monkeypatch):
    monkeypatch.setattr(global_batch, "IMAGES", 640)
    assert global_batch.seconds_to(RUNS[0], 0.5) == 10
    assert global_batch.seconds_to(RUNS[0], 0.6) == 20
    assert global_batch.seconds_to(RUNS[0], 0.81) is None
    two_workers = RUNS[-1]  # five steps of 64 images each are an epoch
    assert global_batch.steps_to(two_workers, 0.3) == 5
    assert global_batch.steps_to(two_workers, 0.7) == 10
    assert global_batch.steps_to(two_workers, 0.9) is None
    assert global_batch.target(RUNS) == 0.75


def test_runs_that_are_done_are_not_repeated(tmp_path, monkeypatch):
    monkeypatch.setattr(global_batch, "WORKERS", (1,))
    which = {"workers": 1, "recipe": "base rate"}
    done = [which | {"seed": seed, "accuracy": [0.5]} for seed in (1, 2, 3)]
    saved = tmp_path / "kept.json"
    saved.write_text(json.dumps(done))
    assert global_batch.measure(saved) == done


def test_all_recipes_end_at_the_rate_that_they_name():
    for name, options in global_batch.RECIPES.items():
        full = 4 * options(4)["base_lr"]  # the program scales it
        base = global_batch.BASE_LR
        assert full == pytest.approx(base if name == "base rate" else 4 * base)


def test_recorded_figures_say_where_they_come_from(tmp_path):
    results = {"runs": RUNS, "epochs": 2, "target": 0.75}
    records.save("made up", results, "a command", ("a note",), tmp_path)
    record = records.load("made up", tmp_path)
    for figure in (
        figures.accuracy.accuracy_by_workers(record),
        figures.accuracy.time_to_accuracy(record, 0.75),
    ):
        text = figure.get_supxlabel()
        assert record.origin in text
        assert "a note" in text
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert labels == ["base rate", "scaled", "scaled, warm-up"]


def test_steps_and_seconds_are_drawn_against_the_workers(tmp_path, monkeypatch):
    monkeypatch.setattr(global_batch, "IMAGES", 640)
    records.save("made up", {"runs": RUNS, "epochs": 2}, "a command", (), tmp_path)
    record = records.load("made up", tmp_path)
    figure = figures.accuracy.time_to_accuracy(record, 0.75)
    axes, below = figure.axes, figure.get_supxlabel()
    assert "Not from every seed: base rate, 2 workers." in below
    assert "warm-up" not in below
    assert [label.get_text() for label in axes[0].get_xticklabels()] == ["1", "2"]
    for axis in axes:  # these runs take a second for each step
        base, _, warm = (list(line[0].get_ydata()) for line in axis.containers)
        assert base == [20]  # of one worker; two never got there
        assert warm == [20, 10]


def test_a_loss_takes_steps_and_time(dataset):
    rows = global_batch.to_a_loss(dataset, (8, 64), (1, 2))
    assert [(row["batch"], row["seed"]) for row in rows] == [
        *((8, 1), (64, 1), (8, 2), (64, 2)),
    ]
    for row in rows:
        needed = global_batch.steps_needed(dataset, (row["batch"],), seed=row["seed"])
        assert row["steps"] >= needed[row["batch"]] > 0
        assert row["seconds"] >= 0


def test_what_a_loss_took_is_drawn_where_all_seeds_got_there(tmp_path):
    rows = [
        {"batch": batch, "seed": seed, "steps": 100 // batch + seed, "seconds": 0.1}
        for batch, seed in ((1, 1), (4, 1), (4, 2), (16, 1), (16, 2))
    ]
    records.save("made up", {"rows": rows}, "a command", (), tmp_path)
    record = records.load("made up", tmp_path)
    figure = figures.accuracy.steps_and_seconds(record)
    left, right = figure.axes
    assert list(left.lines[0].get_xdata()) == [4, 16]
    assert list(left.lines[0].get_ydata()) == [26.5, 7.5]
    assert list(right.lines[0].get_ydata()) == pytest.approx([0.1, 0.1])
    assert record.origin in figure.get_supxlabel()
    assert "Batches of 1: not from every seed." in figure.get_supxlabel()


def test_a_recipe_that_never_gets_there_is_called_so(tmp_path):
    records.save("made up", {"runs": RUNS[2:], "epochs": 2}, "a command", (), tmp_path)
    record = records.load("made up", tmp_path)
    figure = figures.accuracy.time_to_accuracy(record, 0.75)
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert labels == ["base rate: never", "scaled: never", "scaled, warm-up"]


def test_the_record_that_is_shipped_is_whole():
    runs = records.load("global_batch").results["runs"]
    groups = global_batch.grouped(runs)
    seeds = {run["seed"] for run in runs}
    workers = {run["workers"] for run in runs}
    for by_workers in groups.values():
        assert set(by_workers) == workers
        assert all(
            {r["seed"] for r in repeats} == seeds for repeats in by_workers.values()
        )


# ------------------------------------------------------------ attempts


def test_the_front_is_what_nobody_beats():
    fast, good = Attempt("fast", 2, 10, 0.5), Attempt("good", 2, 30, 0.9)
    slow, twin = Attempt("slow", 1, 40, 0.8), Attempt("twin", 1, 10, 0.5)
    assert global_batch.front([good, slow, fast]) == [fast, good]
    assert global_batch.front([fast, twin]) == [fast, twin]
    assert [attempt.meets_goal for attempt in (fast, good)] == [False, True]
    figures.accuracy.pareto([fast, good, slow])


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A network with weights of its own, and the folder with its checkpoint."""
    import tensorflow as tf

    folder = tmp_path_factory.mktemp("kept")
    model = networks.wide_resnet(1)
    checkpoint = tf.train.Checkpoint(model=model, optimizer=tf.keras.optimizers.SGD())
    tf.train.CheckpointManager(checkpoint, str(folder), max_to_keep=1).save()
    return model, folder


def test_the_score_is_that_of_the_kept_weights(checkpoint, dataset):
    model, folder = checkpoint
    ((images, _),) = data.test_batches(dataset, 200)
    guess = model(images, training=False).numpy().argmax(axis=1).astype(np.uint8)
    agreeing = replace(dataset, y_test=guess)
    assert global_batch.score(folder, agreeing) == 1
    guess[:3] = (guess[:3] + 1) % 10
    assert global_batch.score(folder, replace(dataset, y_test=guess)) == 0.7


@pytest.mark.parametrize("way", ["other keys", "its root", "keras", "weights.h5"])
def test_what_the_check_of_step_4_lets_pass_can_be_read(way, checkpoint, dataset):
    """That check looks for the weights in any file, by any key."""
    import tensorflow as tf

    model, folder = checkpoint
    folder = folder.parent / way.replace(" ", "_")
    folder.mkdir(exist_ok=True)
    if way == "other keys":
        kept = tf.train.Checkpoint(opt=tf.keras.optimizers.SGD(), net=model)
        tf.train.CheckpointManager(kept, str(folder), max_to_keep=1).save()
    elif way == "its root":
        tf.train.Checkpoint(model).save(str(folder / "model"))
    elif way == "keras":
        model.save(folder / "1.keras")
    else:
        model.save_weights(folder / "1.weights.h5")
    images = next(iter(data.test_batches(dataset, 10)))[0]
    guess = model(images, training=False).numpy().argmax(axis=1).astype(np.uint8)
    assert global_batch.score(folder, replace(dataset, y_test=guess)) == 1


def network(outputs=10, activation=None):
    """One dense layer on images, in Keras 2."""
    import tensorflow as tf

    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            tf.keras.Input((28, 28, 1)),
            layers.Flatten(),
            *([layers.Lambda(activation)] if activation else []),
            layers.Dense(outputs),
        ]
    )


def test_a_network_of_ones_own_is_tested_as_it_was_kept(dataset, tmp_path):
    model = network()
    model.save(tmp_path / "model.keras")
    images = next(iter(data.test_batches(dataset, 10)))[0]
    guess = model(images).numpy().argmax(axis=1).astype(np.uint8)
    agreeing = replace(dataset, y_test=guess)
    assert global_batch.score(tmp_path, agreeing, width=None) == 1
    guess[:4] = (guess[:4] + 1) % 10
    agreeing = replace(dataset, y_test=guess)
    assert global_batch.score(tmp_path, agreeing, width=None) == 0.6


def test_what_is_no_network_for_these_images_is_refused(dataset, tmp_path):
    def refusal():
        with pytest.raises(errors.UserError) as refused:
            global_batch.score(tmp_path, dataset, width=None)
        return str(refused.value)

    assert "there is no network in" in refusal()
    path = tmp_path / "model.keras"
    path.write_text("0.99")
    assert "model.keras can't be loaded" in refusal()
    network(outputs=3).save(path)
    assert "(None, 3) of (None, 28, 28, 1)" in refusal()
    network(activation=lambda x: 2 * x).save(path)  # code that comes with the file
    assert "model.keras can't be loaded" in refusal()


def test_in_as_many_seconds_only_those_who_wait_lose_time_to_the_slowest(dataset):
    """With one worker there is nobody to wait for; a rate of 0 changes nothing."""
    alone = [
        global_batch.train_for(dataset, [1.0], 20, 0.002, 1, waits)
        for waits in (True, False)
    ]
    assert alone[0] == alone[1]
    made = []
    for waits in (True, False):
        seen = mock.Mock(side_effect=global_batch._gradients)
        with mock.patch.object(global_batch, "_gradients", seen):
            global_batch.train_for(dataset, [1.0, 4.0], 8, 0.002, 1, waits)
        made.append(seen.call_count)
    # Two updates of two workers; eight and two updates, and two that are on their way.
    assert made == [4, 12]


def test_each_learning_rate_has_its_place_in_the_figure():
    at = {0.01: [0.7, 0.8], 0.1: [0.3, 0.5]}
    figure = figures.accuracy.by_rate(
        {"equal": {"wait": at, "don't": at}, "un": {"wait": at}}
    )
    left, right = figure.axes
    assert [len(axis.get_xticks()) for axis in (left, right)] == [2, 2]
    assert left.get_title() == "equal"


def test_a_small_network_learns_by_the_rates_it_is_given(dataset):
    still = global_batch.small_network(dataset, 10, [0.0] * 60, seed=1)
    trained = global_batch.small_network(dataset, 10, [0.002] * 60, seed=1)
    assert trained > still + 0.2
    again = global_batch.small_network(dataset, 10, [0.002] * 60, seed=1)
    assert again == trained


@pytest.mark.parametrize("name", ["Adam", "Momentum"])
def test_an_optimizer_does_what_that_of_keras_does(name):
    """Keras 3's Adam and momentum are those of Keras 2."""
    import keras

    random = np.random.default_rng(1)
    start = [random.normal(size=(3, 2)), np.zeros(2)]
    ours = [layer.astype(np.float32) for layer in start]
    theirs = [keras.Variable(layer, dtype="float32") for layer in start]
    kind, options = keras.optimizers.__dict__.get(name), {"epsilon": 1e-6}
    if name == "Momentum":
        kind, options = keras.optimizers.SGD, {"momentum": 0.9}
    optimizer, mine = kind(0.01, **options), getattr(optimizers, name)()
    for _ in range(4):
        gradients = [random.normal(size=w.shape).astype(np.float32) for w in ours]
        mine.step(ours, gradients, 0.01)
        optimizer.apply([keras.ops.array(g) for g in gradients], theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert np.allclose(a, b.numpy(), rtol=1e-4, atol=1e-6)
        assert (a != 0).all()


def test_several_seeds_are_drawn():
    axis = figures.accuracy.by_workers(
        {"a": {1: [0.5, 0.6], 2: [0.4, 0.5]}, "b": {1: [0.5, 0.6], 2: [0.6, 0.7]}}
    ).axes[0]
    words = [text.get_text() for text in axis.get_legend().get_texts()]
    assert words == ["1 worker", "a", "b"]
    axis = figures.accuracy.choices({"a": [0.5, 0.7], "b": [0.9, 0.9]}).axes[0]
    assert [bar.get_width() for bar in axis.patches] == pytest.approx([0.6, 0.9])
    left = figures.accuracy.needed([{1: 100, 4: 40}, {1: 120, 4: 40}], 6).axes[0]
    assert list(left.lines[0].get_ydata()) == [110, 40]


def test_what_holds_no_weights_of_the_network_is_refused(checkpoint, dataset, tmp_path):
    import tensorflow as tf

    with pytest.raises(errors.UserError, match="does it save there"):
        global_batch.score(tmp_path, dataset)
    with pytest.raises(errors.UserError, match="holds no weights of WRN-16-2"):
        global_batch.score(checkpoint[1], dataset, width=2)
    tf.train.Checkpoint(number=tf.Variable(1.0)).save(str(tmp_path / "another"))
    with pytest.raises(errors.UserError, match="holds no weights of WRN-16-1"):
        global_batch.score(tmp_path, dataset)
