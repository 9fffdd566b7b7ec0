"""How much to train on which machine: the one place for these numbers."""

import os
import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

from utils.course import CourseError


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
    found = PROFILES[name]
    if name == "gpu":
        found = replace(found, workers=max(1, gpus()))
    return found


def gpus() -> int:
    """The number of NVIDIA GPUs that CUDA_VISIBLE_DEVICES leaves visible, found
    without importing TensorFlow."""
    there = len(list(Path("/dev").glob("nvidia[0-9]*"))) or _listed_by_nvidia_smi()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return there
    wanted = [name for name in visible.split(",") if name.strip() not in ("", "-1")]
    return min(there, len(wanted))


def _listed_by_nvidia_smi() -> int:
    """WSL2 has GPUs without device files."""
    if not shutil.which("nvidia-smi"):
        return 0
    try:
        listing = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return 0  # a driver that does not answer drives no GPU
    lines = listing.stdout.splitlines() if listing.returncode == 0 else []
    return sum(line.startswith("GPU ") for line in lines)
