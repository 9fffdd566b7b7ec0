"""How much to train on which machine: the one place for these numbers."""

import os
from dataclasses import dataclass, replace

from utils.base.course import CourseError
from utils.base.machine import gpus


@dataclass(frozen=True)
class Settings:
    """What a notebook's parameters cell starts from.

    name: the profile these numbers come from, one of PROFILES.
    workers: processes that train together.
    epochs: passes over the training images.
    train_images: how many of the 60,000 training images are used.
    width: the WideResNet's k; its groups have 16k, 32k and 64k channels.
    """

    name: str
    workers: int
    epochs: int
    train_images: int
    width: int


PROFILES = {
    "ci": Settings("ci", workers=2, epochs=2, train_images=1_920, width=1),
    "cpu": Settings("cpu", workers=2, epochs=2, train_images=6_400, width=1),
    "gpu": Settings("gpu", workers=1, epochs=5, train_images=60_000, width=10),
}


def settings() -> Settings:
    """The settings of the profile in force: COURSE_PROFILE names it; without that it
    is `ci` where CI=true, `gpu` where there are NVIDIA GPUs, else `cpu`.

    On `gpu` there is one worker per GPU.
    Raises CourseError when COURSE_PROFILE names no profile.
    """
    chosen = os.environ.get("COURSE_PROFILE")
    if chosen:
        return profile(chosen)
    if os.environ.get("CI", "").lower() == "true":
        return profile("ci")
    return profile("gpu" if gpus() else "cpu")


def profile(name: str) -> Settings:
    """The settings of the profile `name`. Raises CourseError for an unknown name."""
    if name not in PROFILES:
        raise CourseError(
            f"there is no profile {name!r}: choose ci, cpu or gpu "
            "(in COURSE_PROFILE, or with --profile)."
        )
    selected = PROFILES[name]
    if name == "gpu":
        selected = replace(selected, workers=max(1, gpus()))
    return selected
