"""The data sets, and the pipelines that feed them to a model."""

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from distcheck import keras_2, worker
from distcheck.errors import UserError, notice
from utils.training import fetch, samples

if TYPE_CHECKING:
    import tensorflow as tf

    # Of numbers of images: float32 (batch, *image_shape), and one-hot labels.
    Batch = Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]

CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
CIFAR10_CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
CHOICES = ("auto", "real", "sample")
CIFAR10_VALIDATION = 500  # of CIFAR-10's test images are there to validate on

SHIFT = 5  # pixels: 20 % of 28, rounded down


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images and labels, to train on, to validate on while training, and to test on.

    Images are uint8 (n, height, width), colored ones (n, height, width, 3); labels are
    uint8 (n,). `mean` and `std` are those of all pixels of `x_train`, in units of 0 to
    255. A data set without images of its own to validate on has its test images there.
    """

    name: str
    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    mean: float
    std: float
    classes: tuple[str, ...] = CLASSES
    x_val: np.ndarray | None = None
    y_val: np.ndarray | None = None

    def __post_init__(self):
        if self.x_val is None:
            object.__setattr__(self, "x_val", self.x_test)
            object.__setattr__(self, "y_val", self.y_test)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Of an image in a batch: height, width and 1 or, with colors, 3."""
        return (*self.x_train.shape[1:], 1)[:3]


_instead: tuple[str, dict[str, np.ndarray]] | None = None


def use_instead(name: str, arrays: dict[str, np.ndarray]) -> None:
    """Let `load` give these arrays x_train, y_train, x_test, y_test, in this process,
    whatever its choice: for who looks at what a program does with data it knows."""
    global _instead
    _instead = (name, arrays)


def load(choice: str = "auto", train_images: int | None = None) -> Dataset:
    """The data set: 60,000 images to train on and 10,000 to test on, or a part of it.

    `choice` is "real" for the whole of Fashion-MNIST, "sample" for the 6,400 and 1,070
    images that come with the course, or "auto": those only if the whole can't be
    downloaded. `train_images` takes so many images to train on, and a sixth as many to
    test on: the first of every class, as many of each (or one more), in the order of
    the full set. So up to 6,400 the sample gives the same images as the whole. Where
    there are fewer than asked for, all of them are used, with a notice.

    Raises UserError for another choice or number, for a COURSE_DATA folder that does
    not hold the published files, and with "real" if there is no way to get them.
    """
    name, arrays = _instead or _arrays(choice)
    return dataset_of(name, part_of(name, arrays, train_images, 6))


def load_cifar10(choice: str = "auto", train_images: int | None = None) -> Dataset:
    """CIFAR-10: 50,000 images to train on, 500 to validate on and 9,500 to test on.

    Those to validate on are the first 50 of every class of the test images. `choice`
    is as for `load`; the sample are 6,400 garments in color, and 570 to test on. So
    many `train_images` come with a fifth as many to test on, else as for `load`.

    Raises UserError as `load` does.
    """
    name, arrays, classes = _cifar10_arrays(choice)
    for_validation = _balanced(arrays["y_test"], CIFAR10_VALIDATION)
    validation = {f"{key}_val": arrays[f"{key}_test"][for_validation] for key in "xy"}
    for key in ("x_test", "y_test"):
        arrays[key] = np.delete(arrays[key], for_validation, axis=0)
    part = part_of(name, arrays, train_images, 5)
    return dataset_of(name, part | validation, classes)


def part_of(
    name: str, arrays: dict[str, np.ndarray], train_images: int | None, ratio: int
) -> dict[str, np.ndarray]:
    """So many of the images to train on, and a `ratio`th as many of those to test on;
    None takes all. Raises UserError for less than one."""
    if train_images is None:
        return arrays
    train_images = no_more_than(len(arrays["y_train"]), train_images, name)
    chosen = {}
    for part, count in (("train", train_images), ("test", -(-train_images // ratio))):
        labels = arrays[f"y_{part}"]
        rows = _balanced(labels, min(count, len(labels)))
        chosen |= {f"{key}_{part}": arrays[f"{key}_{part}"][rows] for key in "xy"}
    return chosen


def no_more_than(available: int, train_images: int, name: str) -> int:
    """How many images to train on: so many, or all that are there, with a notice."""
    if train_images > available:
        notice(
            f"{train_images:,} training images were asked for; {name} has "
            f"{available:,}, and all of them are used."
        )
    return min(train_images, available)


def dataset_of(
    name: str, arrays: dict[str, np.ndarray], classes: tuple[str, ...] = CLASSES
) -> Dataset:
    """The Dataset of arrays x_train, y_train, x_test, y_test, perhaps x_val, y_val."""
    # Here, as every program comes by before it has a network and an optimizer.
    keras_2.choose()
    horovod_as_it_is()
    x_train = arrays["x_train"]
    mean = x_train.mean()
    std = np.sqrt(np.square(x_train, dtype=np.uint16).mean() - mean**2)
    return Dataset(name, **arrays, mean=float(mean), std=float(std), classes=classes)


def _balanced(labels: np.ndarray, count: int) -> np.ndarray:
    """The places of the first `count` labels if the classes take turns."""
    if not 1 <= count <= len(labels):
        raise UserError(
            f"train_images is {count}: choose from 1 to {len(labels):,} images."
        )
    return np.sort(in_turns(labels)[:count])


def in_turns(labels: np.ndarray) -> np.ndarray:
    """The places of all labels in the order in which the classes take turns."""
    turn = np.empty(len(labels), np.int64)
    for label in np.unique(labels):
        places = np.flatnonzero(labels == label)
        turn[places] = np.arange(len(places))
    return np.lexsort((labels, turn))


def real_or_why_not(choice: str, real: Callable[[bool], Any]) -> tuple[Any, str]:
    """What `real(try_again)` returns, or None and why it has to be the sample.

    Raises UserError for another choice, and whatever `real` raises; that there is no
    way to get the real data only if `choice` is "real".
    """
    if choice not in CHOICES:
        raise UserError(f"data is {choice!r}: choose one of {', '.join(CHOICES)}.")
    if choice == "sample":
        return None, "as chosen"
    try:
        return real(choice == "real"), ""
    except fetch.NoDownload as error:
        if choice == "real":
            raise
        return None, error.why


def _arrays(choice: str) -> tuple[str, dict[str, np.ndarray]]:
    arrays, why = real_or_why_not(choice, fetch.fashion_mnist)
    if arrays:
        return "Fashion-MNIST", arrays
    notice(
        f"this is a sample of Fashion-MNIST, not the whole, {why}. For all of it "
        f"connect to the network, where it is tried again after {fetch.REMEMBER // 60} "
        "minutes, or set COURSE_DATA to a folder that holds its four .gz files."
    )
    return "a sample of Fashion-MNIST", samples.fashion_mnist()


def _cifar10_arrays(
    choice: str,
) -> tuple[str, dict[str, np.ndarray], tuple[str, ...]]:
    arrays, why = real_or_why_not(choice, fetch.cifar10)
    if arrays:
        sample = "a sample of " if fetch.cifar10_sample() else ""
        return f"{sample}CIFAR-10", arrays, CIFAR10_CLASSES
    name = "a sample of Fashion-MNIST in color"
    notice(
        f"this is {name}, not CIFAR-10, {why}. For the real data connect to the "
        "network and use --data real, or set COURSE_DATA to a folder that holds "
        f"{fetch.CIFAR10_FILE[0]}."
    )
    return name, samples.garments_in_color(), CLASSES


def training_batches(
    dataset: Dataset, batch_size: int, seed: int | None = None
) -> "tf.data.Dataset":
    """Endless batches to train on: float32 (batch, *image_shape) and one-hot labels
    (batch, classes), of Fashion-MNIST (batch, 28, 28, 1) and (batch, 10).

    A pass has len(x_train) // batch_size batches and is a new permutation of the
    images. Each image is flipped left to right with probability 1/2, shifted by -5 to
    5 pixels in both directions, all equally likely, and standardised. What is shifted
    in is black, the background of every image: repeating the edge, as Keras does,
    would draw streaks where a sleeve touches it.

    One seed gives every rank a stream of its own, always the same; without a seed the
    stream is new every time. Raises UserError if not a single batch can be filled.
    """
    import tensorflow as tf

    check_batch_size(dataset, batch_size)
    count = len(dataset.x_train)
    key = _random_state(seed, words=2)
    passes = tf.data.Dataset.counter().map(
        _as_it_is(lambda number: _random_pass(key, number, count))
    )
    whole_batches = count - count % batch_size
    return _pipeline(passes, whole_batches, batch_size, _augmented(dataset))


def check_batch_size(dataset: Dataset, batch_size: int) -> None:
    """Raise UserError if not a single batch to train on can be filled."""
    count = len(dataset.x_train)
    if not 1 <= batch_size <= count:
        raise UserError(
            f"batch size is {batch_size}: choose from 1 to the {count:,} images "
            "to train on."
        )


def augmented(dataset: Dataset) -> "Batch":
    """A function from numbers of training images to a batch of them to train on: each
    flipped, shifted and standardised as `training_batches` has it, with random numbers
    of the process (see `seed_worker`). For `tf.data.Dataset.map`, on whole batches.
    """
    import tensorflow as tf

    moved = _augmented(dataset)

    def batch(numbers):
        count = tf.shape(numbers)[0]
        shifts = tf.random.uniform((count, 2), -SHIFT, SHIFT + 1, tf.int32)
        return moved(numbers, shifts, tf.random.uniform((count,)) < 0.5)

    return _as_it_is(batch)


def as_they_are(dataset: Dataset) -> "Batch":
    """A function from numbers of images to validate on to a batch of them, standardised
    and nothing else. For `tf.data.Dataset.map`, on whole batches."""
    return _standardised(dataset, dataset.x_val, dataset.y_val)


def one_thread() -> "tf.data.Options":
    """Let a pipeline of whole batches have one thread: that is many times faster than
    the model needs, and leaves the cores to it and to the other workers.

    Nothing is left to tune, and no tuner of TensorFlow's is started: it looks ever more
    rarely, and now and then, told to end, it first sleeps till its next look, while the
    program that has trained for a minute stands still for half of one.
    """
    import tensorflow as tf

    options = tf.data.Options()
    options.autotune.enabled = False
    options.threading.private_threadpool_size = 1
    options.threading.max_intra_op_parallelism = 1
    return options


def rest_of_epoch(
    dataset: Dataset,
    batch_size: int,
    seed: int,
    epoch: int,
    done: int = 0,
    rank: int = 0,
    size: int = 1,
) -> "tf.data.Dataset":
    """What is left of an epoch after `done` images, as the batches of one rank of
    `size`; images and labels as `training_batches` has them.

    Order, flips and shifts come from `seed` and `epoch` alone, so all ranks have the
    same. A step takes the next `size * batch_size` images, and each rank a batch of
    them. So training can go on after any step with another number of workers, and
    still no image comes twice in an epoch. Images at its end that don't fill a step are
    left out; what is returned has a length, which may be 0.

    Raises UserError for numbers that make no sense.
    """
    import tensorflow as tf

    count = len(dataset.x_train)
    if batch_size < 1:
        raise UserError(f"batch size is {batch_size}: choose 1 or more.")
    if size * batch_size > count:
        raise UserError(
            f"{count:,} images to train on are too few for one step of {size} workers "
            f"with {batch_size} each."
        )
    if not 0 <= done <= count:
        raise UserError(f"done is {done}: an epoch has {count:,} images.")
    if not 0 <= rank < size:
        raise UserError(f"there is no rank {rank} of {size}: they begin at 0.")
    key = _random_state(seed, words=2, rank=0)
    steps = (count - done) // (size * batch_size)
    places = np.arange(done, done + steps * size * batch_size)
    places_of_rank = places.reshape(steps, size, batch_size)[:, rank].ravel()
    with tf.device("CPU"):
        drawn_for_all = _random_pass(key, epoch, count)
        rows = tuple(tf.gather(row, places_of_rank) for row in drawn_for_all)
    once = tf.data.Dataset.from_tensors(rows)
    return _pipeline(once, len(places_of_rank), batch_size, _augmented(dataset))


# Everything random is drawn for a whole pass: a batch costs no more than its pixels,
# and is the same whatever runs in parallel.
def _random_pass(key, number, count: int):
    """For a pass over `count` images: their order, and each one's shift and flip."""
    import tensorflow as tf

    keys = tf.random.experimental.stateless_split(
        tf.random.experimental.stateless_fold_in(key, number), 3
    )
    order = tf.random.experimental.stateless_shuffle(tf.range(count), keys[0])
    shifts = tf.random.stateless_uniform(
        (count, 2), keys[1], -SHIFT, SHIFT + 1, tf.int32
    )
    flips = tf.random.stateless_uniform((count,), keys[2], 0, 2, tf.int32)
    return order, shifts, flips == 1


def _augmented(dataset: Dataset):
    """A function from places, shifts and flips to a batch to train on."""
    import tensorflow as tf

    images, labels = _tensors(dataset.x_train, dataset.y_train)

    def batch(places, shifts, flips):
        moved = flip_and_shift(tf.gather(images, places), flips, shifts)
        one_hot = tf.one_hot(tf.gather(labels, places), len(dataset.classes))
        return standardise(moved, dataset), one_hot

    return batch


def validation_batches(
    dataset: Dataset, batch_size: int, seed: int | None = None
) -> "tf.data.Dataset":
    """Endless batches of the images to validate on; shapes as for training.

    They are standardised and nothing else. Every pass is a permutation of all of them
    (each rank's own), its last batch may be smaller.
    """
    import tensorflow as tf

    key = _random_state(seed, words=2)

    def one_pass(number):
        return tf.random.experimental.stateless_shuffle(
            tf.range(len(dataset.x_val)),
            tf.random.experimental.stateless_fold_in(key, number),
        )

    passes = tf.data.Dataset.counter().map(_as_it_is(one_pass))
    return _plain(dataset, dataset.x_val, dataset.y_val, passes, batch_size)


def validation_shard(
    dataset: Dataset, batch_size: int, rank: int, size: int
) -> "tf.data.Dataset":
    """Every `size`-th image to validate on, from number `rank` on, once and in order;
    shapes as for training.

    The shards of ranks 0 to size - 1 together hold every image once. Raises UserError
    for a rank that there isn't, and for a shard without an image.
    """
    import tensorflow as tf

    if not 0 <= rank < size:
        raise UserError(f"there is no rank {rank} of {size}: they begin at 0.")
    if rank >= len(dataset.x_val):
        raise UserError(
            f"{len(dataset.x_val)} images to validate on are too few for {size} "
            "workers: take more images, or fewer workers."
        )
    images, labels = dataset.x_val[rank::size], dataset.y_val[rank::size]
    once = tf.data.Dataset.from_tensors(tf.range(len(images)))
    return _plain(dataset, images, labels, once, batch_size)


def test_batches(dataset: Dataset, batch_size: int) -> "tf.data.Dataset":
    """Every test image once, in order, standardised; shapes as for training."""
    import tensorflow as tf

    once = tf.data.Dataset.from_tensors(tf.range(len(dataset.x_test)))
    return _plain(dataset, dataset.x_test, dataset.y_test, once, batch_size)


def test_accuracy(model: "tf.keras.Model", dataset: Dataset) -> float:
    """The share of the test images that a model, which gives a number for each class,
    recognizes."""
    right = 0
    for images, labels in test_batches(dataset, 200).as_numpy_iterator():
        outputs = model(images, training=False).numpy()
        right += int((outputs.argmax(1) == labels.argmax(1)).sum())
    return right / len(dataset.x_test)


def flip_and_shift(
    images: "tf.Tensor", flips: "tf.Tensor", shifts: "tf.Tensor"
) -> "tf.Tensor":
    """Each image flipped or not, then moved (down, right) by pixels.

    Images are (batch, size, size) or, with colors, (batch, size, size, 3); `flips` is
    bool (batch,), `shifts` int32 (batch, 2) from -SHIFT to SHIFT. What moves in from
    outside is 0.
    """
    import tensorflow as tf

    size = images.shape[1]
    margin, colors = [SHIFT, SHIFT], list(range(3, len(images.shape)))
    padded = tf.pad(images, [[0, 0], margin, margin, *([0, 0] for _ in colors)])
    rows = tf.range(size) + SHIFT - shifts[:, :1]
    columns = tf.range(size) + SHIFT - shifts[:, 1:]
    mirrored = size + 2 * SHIFT - 1 - columns
    columns = tf.where(flips[:, None], mirrored, columns)
    # Columns are picked as rows of the transposed images: many times faster.
    transposed = [0, 2, 1, *colors]
    picked = tf.transpose(tf.gather(padded, rows, batch_dims=1), transposed)
    return tf.transpose(tf.gather(picked, columns, batch_dims=1), transposed)


def standardise(images: "tf.Tensor", dataset: Dataset) -> "tf.Tensor":
    """Pixels less their mean, over their standard deviation; both the training set's.

    Images are (..., size, size), without an axis of channels, or (..., size, size, 1)
    or, with colors, (..., size, size, 3). Returns float32 (..., *image_shape).
    """
    import tensorflow as tf

    pixels = tf.cast(images, tf.float32)
    if images.shape[-1] not in (1, 3):
        pixels = pixels[..., None]
    return (pixels - np.float32(dataset.mean)) / np.float32(dataset.std)


def seed_worker(seed: int | None) -> None:
    """Seed Python, NumPy and TensorFlow, for every rank differently.

    Ranks still start from different weights, as they do without a seed. None does
    nothing.
    """
    if seed is not None:
        import tensorflow as tf

        (word,) = _random_state(seed, words=1)
        tf.keras.utils.set_random_seed(int(word))


def _random_state(seed: int | None, words: int, rank: int | None = None) -> np.ndarray:
    """Numbers from 0 to 2**31 - 1 for a seed and a rank, by default this process's
    own; new ones for None."""
    if seed is not None and seed < 0:
        raise UserError(f"seed is {seed}: choose 0 or more.")
    rank = worker.rank() if rank is None else rank
    entropy = None if seed is None else [seed, rank]
    state = np.random.SeedSequence(entropy).generate_state(words)
    return (state >> 1).astype(np.int32)


def _tensors(images: np.ndarray, labels: np.ndarray) -> tuple:
    import tensorflow as tf

    with tf.device("CPU"):  # a GPU has better uses for its memory
        return tf.constant(images), tf.constant(labels)


def _plain(
    dataset: Dataset,
    images: np.ndarray,
    labels: np.ndarray,
    passes: "tf.data.Dataset",
    batch_size: int,
):
    """Batches of images in the order of each pass, standardised."""
    if batch_size < 1:
        raise UserError(f"batch size is {batch_size}: choose 1 or more.")
    return _pipeline(
        passes, len(images), batch_size, _standardised(dataset, images, labels)
    )


def _standardised(dataset: Dataset, images: np.ndarray, labels: np.ndarray) -> "Batch":
    """A function from places among these images to a batch of them."""
    import tensorflow as tf

    images, labels = _tensors(images, labels)

    def batch(places):
        pixels = standardise(tf.gather(images, places), dataset)
        return pixels, tf.one_hot(tf.gather(labels, places), len(dataset.classes))

    return _as_it_is(batch)


def _as_it_is(function):
    """Spare TensorFlow the second that AutoGraph takes to rewrite a function that has
    no Python loop or branch over tensors."""
    import tensorflow as tf

    return tf.autograph.experimental.do_not_convert(function)


def horovod_as_it_is() -> None:
    """The same for Horovod's averaging of gradients, which takes AutoGraph half of the
    time that a program needs for its first batch. Does nothing without Horovod, or when
    called again."""
    horovod = sys.modules.get("horovod.tensorflow")
    if horovod and not isinstance(horovod._make_subgraph, functools.partial):
        # Not before: who only loads images does without TensorFlow.
        import tensorflow as tf

        horovod._make_subgraph = functools.partial(tf.function, autograph=False)


def _pipeline(passes: "tf.data.Dataset", stop: int, batch_size: int, batch):
    """Cut each pass (tensors with a row per image) into batches, up to row `stop`."""
    import tensorflow as tf

    def cut(*rows):
        starts = tf.data.Dataset.range(0, stop, batch_size)
        part = _as_it_is(lambda at: tuple(row[at : at + batch_size] for row in rows))
        return starts.map(part)

    endless = passes.cardinality() == tf.data.INFINITE_CARDINALITY
    size = tf.data.INFINITE_CARDINALITY if endless else -(-stop // batch_size)
    batches = passes.flat_map(_as_it_is(cut)).map(_as_it_is(batch)).prefetch(2)
    # Keras then asks for the steps of an epoch instead of waiting for its end forever.
    batches = batches.apply(tf.data.experimental.assert_cardinality(size))
    return batches.with_options(one_thread())
