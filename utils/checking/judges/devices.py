"""Judge the tasks of exercises/way_on.py: by what the devices of one process did."""

from distcheck.judges.registry import exercise
from distcheck.judges.runs import Missing, Problem, Run, in_line
from utils.checking.recorders.devices import DEVICES

SCENARIO = "devices"
EPOCHS, BATCH, BASE_LR, TRAIN_IMAGES = 2, 8, 0.01, 40
GLOBAL_BATCH, FULL_RATE = DEVICES * BATCH, DEVICES * BASE_LR
STEPS = -(-TRAIN_IMAGES // GLOBAL_BATCH)  # in an epoch; the last batch is smaller
RTOL_UPDATE = 1e-4  # of the length of the first update

# What a Horovod program imports, and the environment of JAX has not.
OLD = ("tensorflow", "horovod", "tf_keras")

task = exercise(
    "way_on",
    options=(
        f"--epochs {EPOCHS} --batch-size {BATCH} --base-lr {BASE_LR} --train-images "
        f"{TRAIN_IMAGES} --data sample"
    ),
).part


@task(
    "A",
    scenarios=("devices",),
    expected=(
        "The program trains with Keras 3 and JAX, in an environment that has neither "
        "Horovod nor TensorFlow."
    ),
)
def leaves_horovod(runs: dict[str, Run]) -> None:
    """It trains with Keras 3, whose backend was chosen in time."""
    rank = runs[SCENARIO].ranks[0]
    for failure in rank.all("failed"):
        begun = rank.all("keras")
        if begun and begun[0]["chosen"] != "jax":
            chosen = begun[0]["chosen"]
            said = f"with the backend {chosen}" if chosen else "without a backend"
            raise Problem(
                "no-backend",
                f"The program imports Keras{in_line(begun[0]['line'])} {said}. Keras "
                "reads the variable KERAS_BACKEND while it is imported, and uses "
                "TensorFlow if the variable isn't set.",
                begun[0]["line"],
            )
        missing = [n for n in OLD if f"No module named '{n}" in failure["error"]]
        if missing:
            raise Problem(
                "old-import",
                f"The program imports {missing[0]}{in_line(failure['line'])}, which "
                "is not installed beside JAX.",
                failure["line"],
            )
    rank.first("trains")


@task(
    "B",
    scenarios=("devices",),
    expected=(f"JAX starts with {DEVICES} devices, which are made of the processor."),
)
def has_two_devices(runs: dict[str, Run]) -> None:
    """JAX has as many devices as the exercise asks for."""
    fit = runs[SCENARIO].ranks[0].first("fit")
    if fit["devices"] == DEVICES:
        return
    if fit["devices"] > 1:
        raise Problem(
            "other-devices",
            f"JAX has {fit['devices']} devices, but should have {DEVICES}.",
        )
    if fit["asked"] > 1:
        raise Problem(
            "too-late",
            "JAX has one device, although XLA_FLAGS asks for several when `fit` is "
            "called: the variable was set after JAX had started.",
        )
    raise Problem(
        "one-device", "JAX has one device, because XLA was not told to make two."
    )


@task(
    "C",
    scenarios=("devices",),
    expected=(
        f"Each of the {DEVICES} devices gets its part of each batch and has a copy of "
        "each variable. The first update is the one that a single device makes with "
        "the same batch, up to rounding."
    ),
)
def shares_the_batch(runs: dict[str, Run]) -> None:
    """Each device gets its part of each batch, and has a copy of each variable; and
    the update is that of one device."""
    run = runs[SCENARIO]
    rank = run.ranks[0]
    steps = rank.all("trains")
    if not steps:
        raise Missing
    for number, step in enumerate(steps, 1):
        parts, rows = step["parts"], step["rows"]
        if len(parts) != DEVICES:
            raise Problem(
                "one-device-trains",
                f"In step {number} the {rows} images of the batch were on {len(parts)} "
                f"of {DEVICES} devices.",
            )
        if sum(parts) != rows:
            raise Problem(
                "whole-batches",
                f"In step {number} each device got all {rows} images of the batch.",
            )
    model = rank.first("model")
    if model["copies"] != DEVICES or model["apart"]:
        raise Problem(
            "not-replicated",
            f"A variable has copies on {model['copies']} device(s), which differ by "
            f"up to {model['apart']:.2g}. Each variable should have equal copies on "
            f"all {DEVICES} devices.",
        )
    if not model["off"] <= RTOL_UPDATE:
        raise Problem(
            "another-update",
            "The first update is not the one that a single device makes from the same "
            f"batch: the difference is {model['off']:.1%} of its length.",
        )


@task(
    "D",
    scenarios=("devices",),
    expected=(
        f"The {DEVICES} devices share batches of {GLOBAL_BATCH} images, {BATCH} for "
        f"each, in {STEPS} training steps an epoch. The learning rate is --base-lr "
        f"times the number of devices: {FULL_RATE:g}."
    ),
)
def scales(runs: dict[str, Run]) -> None:
    """The global batch is as large as that of as many workers, and so is the rate."""
    rank = runs[SCENARIO].ranks[0]
    steps = rank.all("trains")
    if not steps:
        raise Missing
    rows = max(step["rows"] for step in steps)
    if rows != GLOBAL_BATCH:
        raise Problem(
            "batch-not-scaled",
            f"The batches have {rows} images for {DEVICES} devices; with --batch-size "
            f"{BATCH} they should have {GLOBAL_BATCH}.",
        )
    rates = sorted({round(step["rate"], 6) for step in steps})
    if rates != [round(FULL_RATE, 6)]:
        seen = " to ".join(f"{rate:g}" for rate in (rates[0], rates[-1])[: len(rates)])
        raise Problem(
            "rate-not-scaled",
            f"The program trains with the learning rate {seen}, but --base-lr "
            f"{BASE_LR:g} for each of {DEVICES} devices gives {FULL_RATE:g}.",
        )
    if len(steps) != EPOCHS * STEPS:
        raise Problem(
            "another-epoch",
            f"The program took {len(steps)} steps in {EPOCHS} epochs of "
            f"{TRAIN_IMAGES} images, not {EPOCHS * STEPS}.",
        )
