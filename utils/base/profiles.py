"""How much to train on which machine: the one place for these numbers."""

import os
from dataclasses import dataclass, replace

from distcheck import machine
from distcheck.errors import UserError, notice


@dataclass(frozen=True)
class Settings:
    """What a notebook's parameters cell starts from.

    name: the profile in force, one of PROFILES.
    workers: processes that train together.
    epochs: passes over the training images.
    train_images: how many of the 60,000 training images are used.
    width: the WideResNet's k; its groups have 16k, 32k and 64k channels.
    batch_size: training images of a worker in a step.
    time_limit: seconds that one lesson may take when all of it is executed.
    """

    name: str
    workers: int
    epochs: int
    train_images: int
    width: int
    batch_size: int
    time_limit: float

    def part(self, parts: int) -> int:
        """The images of a run that only shows something: one part of so many. With
        the width that GPUs train, all of them, as they take a minute."""
        return self.train_images // (1 if self.width > 1 else parts)


# `gpu` is the training that the course comes from: WRN-16-10 on all images, in batches
# of 512. A lesson may take a learner 45 minutes; on GPUs, the network computes ninety
# times as much, and lessons compare several runs.
PROFILES = {
    "ci": Settings(
        "ci",
        workers=2,
        epochs=2,
        train_images=1_920,
        width=1,
        batch_size=64,
        time_limit=900,
    ),
    "cpu": Settings(
        "cpu",
        workers=2,
        epochs=2,
        train_images=6_400,
        width=1,
        batch_size=64,
        time_limit=2_700,
    ),
    "gpu": Settings(
        "gpu",
        workers=2,
        epochs=5,
        train_images=60_000,
        width=10,
        batch_size=512,
        time_limit=14_400,
    ),
}


def settings(alone: bool = False) -> Settings:
    """What a notebook's parameters cell starts from: see `in_force`.

    Where a lesson has more workers than there are GPUs, it leaves them alone: from here
    on, whatever this process starts computes on cores, a single worker too, or it could
    not be compared with the others. A notice says so.
    """
    chosen = in_force(alone)
    if pretence := machine.pretence():
        notice(f"{machine.PRETEND} is set, so this machine is pretended: {pretence}.")
    if 0 < machine.gpus() < chosen.workers:
        notice(
            f"{_gpus_here()}, and this lesson has {chosen.workers} workers, which need "
            "one each. They compute on cores instead, all of them, so that they can be "
            "compared: CUDA_VISIBLE_DEVICES is -1 from here on."
        )
        os.environ.update(machine.HIDDEN)
    return chosen


def _gpus_here() -> str:
    count = machine.gpus()
    return "There is 1 GPU here" if count == 1 else f"There are {count} GPUs here"


def in_force(alone: bool = False) -> Settings:
    """The settings of the profile in force: COURSE_PROFILE names it; without that it
    is `ci` where CI=true, `gpu` where there are NVIDIA GPUs, else `cpu`.

    alone: for a lesson with a single worker. Raises UserError when COURSE_PROFILE
    names no profile.
    """
    chosen = os.environ.get("COURSE_PROFILE")
    if chosen:
        return profile(chosen, alone)
    if os.environ.get("CI", "").lower() == "true":
        return profile("ci", alone)
    return profile("gpu" if machine.gpus() else "cpu", alone)


def profile(name: str, alone: bool = False) -> Settings:
    """The settings of the profile `name`. Raises UserError for an unknown name.

    On `gpu` there is a worker for each GPU, and never fewer than two. Where they don't
    have one each, they compute on cores, and train as much as `cpu` has it.
    """
    if name not in PROFILES:
        raise UserError(
            f"there is no profile {name!r}: choose ci, cpu or gpu "
            "(in COURSE_PROFILE, or with --profile)."
        )
    selected = PROFILES[name]
    if alone:
        selected = replace(selected, workers=1)
    elif name == "gpu":
        selected = replace(selected, workers=max(selected.workers, machine.gpus()))
    if not alone and (workers := machine.pretended().get("workers")):
        # Shared among more workers, the images of two would give some no batch.
        images = selected.train_images * max(1, workers // selected.workers)
        selected = replace(selected, workers=workers, train_images=images)
    if name == "gpu" and machine.gpus() < selected.workers:
        return replace(PROFILES["cpu"], name=name, workers=selected.workers)
    return selected
