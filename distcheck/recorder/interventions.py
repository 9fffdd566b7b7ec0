"""What changes what a program computes or sees, on purpose.

Some interventions make workers differ, so that a program that forgets to bring them
together is found out. Pretended GPUs show which one each worker takes. Others let a
check take seconds. In a check of a Horovod program, where each is called from:

    pretend_gpus              DeviceRecorder: only pretended GPUs are there
    details_of_a_gpu          DeviceRecorder: what TensorFlow says of one
    pretend_local_rank        HorovodRecorder.asked: local rank and size; by their
                              variables, `lab.forked` says the same
    share_files               HorovodRecorder.collective: what other ranks have written
    perturb_initial_weights   KerasRecorder.create_variable: on all but rank 0
    perturb_state             KerasRecorder._observe_update: the optimizer's state, on
                              all but rank 0, after the first update, unless
                              weights were handed out before
    shift_metrics             metrics.hook_callbacks: of validations
    always_wrong_or_right     KerasRecorder._forward: predictions, if that is asked for
    narrow                    KerasRecorder.intervene: convolutions have two channels
    few_groups                KerasRecorder.intervene: and are normalized in two groups
    updates_without_xla       KerasRecorder.intervene: pretended GPUs compile nothing
    skip_steps                KerasRecorder.intervene: of the steps that Keras makes
                              with a model, all but the first are only counted

In an audit, all of `distcheck.recorder.audit.interventions`:

    without_xla               Tracer: what observes can't be compiled with it
    split_processor           Auditor: a processor stands for several devices
    in_place_of_gpus          Auditor: and is taken where GPUs are named

What changes because of how a program is run or observed, and not here:

    patches.run_eagerly                functions run eagerly, but for those of tf.data
    metrics.hook_callbacks             callbacks are called by a loop of the recorder's,
                                       and get `TrackedLogs`
    DeviceRecorder._takes_hold         with `devices_only`, the program stops there
    HorovodRecorder.collective, .remembered    while graphs are built, no worker is
                                       asked: a concrete tensor comes back as it is. A
                                       symbolic one goes to Horovod's own function,
                                       which makes a node, and that never runs
    Recorder.wait_for_the_end          the program doesn't end before all others do, and
                                       then by a signal; after an error at once
    first_import.watched               TensorFlow seems not imported yet
    lab.environment, lab.forked        environment, working directory, what is in it; a
                                       session of its own, and what SIGUSR1 does
    lab.server                         no garbage is looked for in what was imported
    Source.prepare                     images; those of the course are few, in another
                                       order, and small in an empty margin
    audit.auditor.work                 Python's random numbers begin with the rank

A recorder of a single exercise may change more, see its module.
"""

import contextlib
import itertools
import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from distcheck.recorder import patches
from distcheck.recorder.files import changes_in
from distcheck.scenarios import Scenario, name_of

NOISE = 0.05  # of a weight's spread: how far apart the workers start
METRIC_SHIFT = 1 / 64  # how far apart their validation metrics are, at least
CHANNELS = 2  # of a convolution, at most
# So many training steps of a model are computed: STEPS // 2, as each of two workers has
# in an epoch that they share.
UPDATES = 3


def pretend_gpus(context, count: int, chosen: str | None) -> dict[Any, int]:
    """Let TensorFlow believe in GPUs for as long as they are only configured. Returns
    each that it believes in, with its number.

    chosen: CUDA_VISIBLE_DEVICES.
    """
    known = list(range(count))
    if chosen is not None:
        numbers = {str(n): n for n in known} | {name_of(n): n for n in known}
        words = [word.strip() for word in chosen.split(",")]
        # As CUDA has it: what comes after a name that no GPU has does not count.
        known = [
            numbers[word] for word in itertools.takewhile(numbers.__contains__, words)
        ]
    return dict(zip(patches.add_gpus(context, len(known)), known, strict=True))


def details_of_a_gpu() -> dict[str, Any]:
    """What TensorFlow says of a GPU that is pretended: it can compute in 16 bits."""
    return {"device_name": "a pretended GPU", "compute_capability": (8, 0)}


def narrow(original: Callable) -> Callable:
    """Give convolutions few channels, so that the program's own network computes in no
    time, and its weights can be kept whole. original: the `__init__` of their class."""

    def narrowed(layer, *args, filters, groups=1, **kwargs):
        if filters is not None:  # each channel by itself
            filters, groups = min(filters, CHANNELS), 1
        original(layer, *args, filters=filters, groups=groups, **kwargs)

    return narrowed


def few_groups(original: Callable) -> Callable:
    """Normalize as many groups of channels as there can be. original: the `__init__` of
    the layer."""

    def fewer(layer, groups=32, *args, **kwargs):
        original(layer, min(groups, CHANNELS), *args, **kwargs)

    return fewer


def updates_without_xla(result, optimizer, *args, **kwargs) -> None:
    """Let Keras' optimizer update its weights as it does without a GPU. Where it finds
    one, it has XLA compile the update of each weight, which takes longer to build than
    all else in a training step. To be called after the `__init__` of an optimizer."""
    optimizer.jit_compile = False


def perturb_initial_weights(variable, rank: int) -> bool:
    """Let each rank but the first start from other weights, whatever the seed. Returns
    whether this one does."""
    if not (rank and variable.trainable and variable.dtype.is_floating):
        return False
    shape = tuple(variable.shape)
    if None in shape:
        return False
    value = variable.numpy()
    noise = np.random.default_rng([rank, value.size])
    spread = NOISE * (float(np.std(value)) or 1.0)
    variable.assign_add(
        noise.normal(0, spread, shape).astype(value.dtype), read_value=False
    )
    return True


def perturb_state(variables, rank: int) -> None:
    """Set the state of each rank's optimizer but the first apart: whoever hands out the
    weights from now on has to hand out that, too."""
    for variable in variables if rank else ():
        if len(variable.shape) and variable.dtype.is_floating:
            variable.assign_add(0.01 * rank + 0 * variable)


def always_wrong_or_right(labels, rank: int, result):
    """In place of what a network answers in validation: on rank 0 always a wrong class,
    on the others the right one. So the ranks' accuracies lie on either side of a
    target, whichever way a program computes them."""
    import tensorflow as tf

    answers, classes = labels + (rank == 0), result.shape[-1]
    return tf.one_hot(answers % classes, classes, dtype=result.dtype)


def shift_metrics(
    metrics: dict, means: list, rank: int, evaluations: int, step: float
) -> dict:
    """What an evaluation computes, a little apart on each rank: so few images may give
    all of them the same accuracy by chance. And it gets better from one to the next,
    but not for rank 0: who decides by those of its rank is apart then.

    means: Keras' objects for these metrics, where callbacks may look as well."""
    shift = step * rank * evaluations
    shifted = {
        name: value - shift if "loss" in name else value + shift
        for name, value in metrics.items()
    }
    for mean in means:
        if mean.name in shifted:
            mean.total.assign(shifted[mean.name])
            mean.count.assign(1)
    return shifted


def pretend_local_rank(scenario: Scenario, rank: int, name: str, answer):
    """What Horovod answers to a question by this name, on a machine with more workers
    than there are."""
    if scenario.local_ranks and name == "local_rank":
        return scenario.local_rank(rank)
    if scenario.local_ranks and name == "local_size":
        return scenario.local_size(rank)
    return answer


def share_files(home: Path, before: dict[str, int]) -> None:
    """Copy what the other ranks have written into this rank's home.

    Each rank has a home of its own, so that it is seen who writes what. Programs expect
    one folder, and may read what another rank wrote before they met.

    before: the files that this rank has not written, by when they were changed; those
    that are copied are added.
    """
    mine = changes_in(home)
    for other in home.parent.glob("rank.*.home"):
        if other == home:
            continue
        for name, changed in changes_in(other).items():
            touched = mine.get(name) != before.get(name)
            if touched or changed == mine.get(name):
                continue
            copy = home / name
            with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                copy.parent.mkdir(parents=True, exist_ok=True)
                if copy.is_symlink():  # the copy would go to where it leads
                    copy.unlink()
                shutil.copyfile(other / name, copy)
                os.utime(copy, ns=(changed, changed))
                before[name] = changed


def skip_steps(recorder, count_only: bool) -> None:
    """Compute the first UPDATES training steps of each model, more if none of them has
    made an update, and its first validation step. Of each later step that Keras makes,
    only the batch is reported, and the step returns the metrics of the last one that
    was computed.

    count_only: none is computed, not even an update; all steps return the metrics of
    the first batch. Loops of a program's own are computed whole.
    """
    import tensorflow as tf

    known: dict = {}

    def without_update(model, batch):
        """The metrics of a batch; for both kinds of steps, where all are counted."""
        x, y, weight = tf.keras.utils.unpack_x_y_sample_weight(batch)
        with recorder.inside("forward"):
            guess = model(x, training=True)
            if getattr(model.optimizer, "use_ema", False):  # asked for in the end
                model.optimizer.build(model.trainable_variables)
            model.compute_loss(x, y, guess, weight)
            return model.compute_metrics(x, y, guess, weight)

    def skipping(training: bool, computed: int):
        """computed: how many steps are, before the others are only counted."""
        done: Counter = Counter()

        def make(original):
            def counted(model, batch):
                key = id(model), training
                done[key] += 1
                needed = computed and training and not recorder.has_updated()
                if done[key] <= computed or needed:
                    known[key] = original(model, batch)  # which reports itself
                    return known[key]
                if count_only and id(model) not in known:
                    known[id(model)] = without_update(model, batch)
                x, _, _ = tf.keras.utils.unpack_x_y_sample_weight(batch)
                recorder.report_batch(model, training, x)
                return known[id(model) if count_only else key]

            return counted

        return make

    # Several updates, not one: so a rank that the others leave alone after the first
    # update is seen to wait for them in the second, as in a whole training.
    trained, validated = (0, 0) if count_only else (UPDATES, 1)
    recorder.replace(tf.keras.Model, "train_step", skipping(True, trained))
    recorder.replace(tf.keras.Model, "test_step", skipping(False, validated))
