"""The events that recorders report: those of every program, and of Horovod programs.
Recorders of other exercises declare their own in `utils.checking.recorders`, and audits
have no such schema. `evidence` reads them.
"""

import math
from collections.abc import Mapping
from typing import Annotated, TypedDict

MOST_TEXT = 2_000  # characters of a name or a message in an event
MOST_ITEMS = 2_000  # of a list in an event


# -------------------------------------------------------------- what events are made of

# Numbers that have to be finite; others are what a program computed, and if it has
# diverged they are not.
Finite = Annotated[float, lambda value: is_number(value) and math.isfinite(value)]
# What tells a file from all others on its disk.
Inode = Annotated[int, lambda value: type(value) is int and 0 <= value < 2**64]
# What a program may have given for a number of steps, for example.
Argument = bool | float | str | None


class Event(TypedDict):
    """Something that a worker did or that happened to it.

    A recorder writes exactly the fields that are declared here: a report with others,
    or without one of these, can't be read, and the verdict on each part is `tampered`.

    Floats may be whole numbers. Texts and lists are of bounded length.
    """

    what: str
    """The name of the event, in the schema of the recorder."""
    time: Finite
    """Seconds on a clock of the worker's machine, which never goes back."""
    line: int | None
    """The line of the program that led to it, if one did."""


# The kinds of events that a recorder writes, by their names.
Schema = Mapping[str, type[Event]]


def is_number(value: object) -> bool:
    return is_whole(value) or type(value) is float


def is_whole(value: object) -> bool:
    # More than that a float can't tell from its neighbor.
    return type(value) is int and abs(value) <= 2**53


# -------------------------------------------------------------- of every program


class Started(Event):
    """The worker is there, and its program is about to run."""

    pid: int


class Keras3(Event):
    """By an import, the program gets Keras 3, where it would have to choose Keras 2."""

    module: str
    """That it imports."""


class Tampered(Event):
    """At the end of the program, a function by which it is watched is another one."""

    replaced: str
    """Its name, with that of its owner."""


class Failed(Event):
    """The program ended with an error."""

    error: str
    """In words, with its type."""
    status: int
    """The exit status, as the system has it."""


class Ended(Event):
    """The program ended well, or with `devices_only` it has chosen its devices. Nothing
    comes after this."""

    cpu: list[Finite]
    """Seconds of processor that the worker has used: for itself, and in the kernel."""


OF_EVERY_PROGRAM: Schema = {
    "started": Started,
    "keras 3": Keras3,
    "tampered": Tampered,
    "failed": Failed,
    "ended": Ended,
}


class Strategy(Event):
    """A strategy of tf.distribute was made."""

    kind: str
    """Its class."""
    replicas: int
    """How many it keeps in step."""


# -------------------------------------------------------------- of Horovod programs


class Asked(Event):
    """Horovod was asked who a worker is or how many there are; from each line of the
    program, the first time."""

    name: str
    """The function, such as `rank`."""
    too_early: bool
    """Was it before `init`, so that there was no answer?"""
    answer: bool | int | None


class CollectiveStart(Event):
    """The worker begins what all workers have to call, and waits for them in it."""

    op: str
    """What it is: `allreduce`, `broadcast`, `init` ..."""
    name: str | None
    """The name by which Horovod knows that workers call the same."""
    root: int | None
    """The rank that a broadcast is from."""
    elements: int
    """How many numbers the worker hands in."""
    given: list[float] | None
    """These numbers, where they are few."""


class CollectiveEnd(Event):
    """It has met the others there."""

    op: str
    got: list[float] | None
    """The numbers that came out, where those that went in were few."""


class Wrapped(Event):
    """A distributed optimizer of Horovod's was made."""


class Devices(Event):
    """TensorFlow takes hold of its devices: now it's too late to choose others."""

    visible: list[int]
    """Numbers of the pretended GPUs that the program has made visible."""
    growth: list[int]
    """Numbers of those that take memory only as they need it."""


class Pinned(Event):
    """The program chose which devices are visible."""


class Fit(Event):
    """`Model.fit` begins, with these arguments."""

    verbose: Argument
    steps_per_epoch: Argument
    validation_steps: Argument
    epochs: Argument
    modules: list[str]
    """Horovod's modules that the program has names for."""


class Fitted(Event):
    """`Model.fit` has ended, by an error perhaps."""


class Output(Event):
    """How much the program has printed: before it trains, and after each `fit`."""

    sizes: list[int]
    """Bytes on the standard output, and on the standard error."""


class Forward(Event):
    """A model was given a batch, or the batch was only counted."""

    training: bool
    fit: bool
    """Was it inside `Model.fit`?"""
    aside: bool
    """Was it inside `Model.predict`, or asked for by a callback when an epoch ended?"""
    step: int
    """Those of the same number belong to one training step."""
    images: list[int]
    """Which images: their numbers in the source; -1 for one that is none of these."""
    rate: float | None
    """The learning rate, in training, once it is known which optimizer updates."""


class Loss(Event):
    """A gradient is taken of a loss, for a batch of images that are known: the first
    before each of the first updates."""

    value: float
    """The loss, summed up if it is several numbers."""
    cross_entropy: float
    """The mean cross-entropy of the batch, as computed from what the model answered."""
    penalty: float
    """For large weights."""


class Update(Event):
    """An optimizer updates the weights."""

    wrapped: bool
    """Is it a distributed one of Horovod's?"""
    optimizer: str
    """Its class."""


class Callback(Event):
    """A callback was told that an epoch, or a validation in `fit`, has ended."""

    name: str
    """Its class."""
    made: int | None
    """The line of the program that made it."""
    before: dict[str, float]
    """The metrics that it was given."""
    after: dict[str, float]
    """The same when it had done."""
    read: list[str]
    """Those of them that it looked at."""
    stops: bool
    """Has anything told the training to stop by then?"""


class Evaluated(Event):
    """The metrics of a validation were computed, and set apart on each rank."""

    fit: bool
    """Was it inside `Model.fit`?"""
    own: bool
    """Was it a callback that validated?"""
    metrics: dict[str, float]
    """As the program sees them; their names begin with `val_`."""


class FilesWritten(Event):
    """At the end of the program: what it has written."""

    files: list[str]
    """Paths from the folder in which it ran; also of files that are gone by now."""


class Graphs(Event):
    """The worker is about to build what would have been compiled."""

    count: int
    """How many functions."""


class Graph(Event):
    """One of them was built, or can't be."""

    error: str | None
    function: str | None
    """Its name, if it is one of the program's own."""
    training: bool
    """Does it train?"""


HOROVOD: Schema = OF_EVERY_PROGRAM | {
    "asked": Asked,
    "collective_start": CollectiveStart,
    "collective_end": CollectiveEnd,
    "wrapped": Wrapped,
    "devices": Devices,
    "pinned": Pinned,
    "fit": Fit,
    "fitted": Fitted,
    "output": Output,
    "forward": Forward,
    "loss": Loss,
    "update": Update,
    "callback": Callback,
    "evaluated": Evaluated,
    "files_written": FilesWritten,
    "graphs": Graphs,
    "graph": Graph,
}

# The names of arrays that a worker keeps beside its report, each in a file of its own.
Arrays = Mapping[str, str]

# "local" to "total" and "applied" are kept for several updates, as NAME.0, NAME.1, ...
HOROVOD_ARRAYS: Arrays = {
    "initial": "The weights that are trained, before any collective has carried some.",
    "start": "The same at the last training batch before the first update.",
    "local": "The gradient that `tf.GradientTape.gradient` has returned, before it.",
    "last": "The last one of those, where there were several.",
    "mean": "The mean of these.",
    "total": "The sum of these.",
    "given": "What was all-reduced between the batch and the first update.",
    "reduced": "What that gave.",
    "applied": "The gradient that the optimizer is to apply in it.",
    "updated": "The weights right after it, or the last one before the next batch.",
    "resumed": "The weights at the first batch after that.",
    "state": "The optimizer's variables at the same time.",
    "end": "The weights at the end of the program.",
}
